package searchexpand

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

func TestWhatAFileSaysIsAListOrAnError(t *testing.T) {
	for claim, tc := range map[string]struct {
		content  string
		err      error
		want     fileList
		problems []string
		wantErr  error
	}{
		"its domains, folded":               {content: "search A.test b.test. a.test\n", want: fileList{[]string{"a.test.", "b.test."}, 1}},
		"and how many dots are enough":      {content: "search a.test\noptions ndots:5\n", want: fileList{[]string{"a.test."}, 5}},
		"bare names are completed whatever": {content: "search a.test\noptions ndots:0\n", want: fileList{[]string{"a.test."}, 1}},
		"no search line is no domain":       {content: "nameserver 192.0.2.1\n", want: fileList{nil, 1}},
		"the root has its place":            {content: "search a.test . b.test\n", want: fileList{[]string{"a.test.", ".", "b.test."}, 1}},
		"but alone it is no list":           {content: "search .\n", want: fileList{nil, 1}},
		"what is no domain is left out": {
			content: "search a.test 192.0.2.1 b..test\n", want: fileList{[]string{"a.test."}, 1},
			problems: []string{`"192.0.2.1" is not a domain name: it ends in a number, as an address does`, `"b..test" is not a domain name: a label is empty`},
		},
		"and so is what is no line of its": {
			content: "search a.test\nnameserver x\n", want: fileList{[]string{"a.test."}, 1},
			problems: []string{`line 2: nameserver "x" is no IP address`},
		},
		"a thousand domains are a list": {content: "search " + strings.Join(longList(1000), " ") + "\n", want: fileList{longList(1000), 1}},
		"one more is one too many": {
			content: "search " + strings.Join(longList(1001), " ") + "\n", want: fileList{longList(1000), 1},
			problems: []string{"it has more than 1000 domains"},
		},
		"nothing says nothing":              {content: "", wantErr: errEmptyFile},
		"nor do comments":                   {content: "# search a.test\n", wantErr: errEmptyFile},
		"a line that is cut off is no list": {content: "search a.test\nnameserver 192.", wantErr: errTornFile},
		"nor is what cannot be read":        {err: fs.ErrPermission, wantErr: fs.ErrPermission},
	} {
		t.Run(claim, func(t *testing.T) {
			got, problems, err := listIn([]byte(tc.content), tc.err)
			if !reflect.DeepEqual(got, tc.want) || !slices.Equal(problems, tc.problems) || !errors.Is(err, tc.wantErr) {
				t.Errorf("%+v, %q, %v\nwant %+v, %q, %v", got, problems, err, tc.want, tc.problems, tc.wantErr)
			}
		})
	}
}

// conf writes a file and returns its path.
func conf(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAFileStandsForItsList(t *testing.T) {
	for claim, tc := range map[string]struct {
		content string
		before  string // on the directive, in front of the file
		after   string // behind it, with the block
		name    string
		want    []string // questions
	}{
		"its domains are tried in order": {content: "search b.test a.test\n", name: "nope.", want: []string{"nope.b.test. A", "nope.a.test. A"}},
		"where the file stands": {
			content: "search b.test\n", before: "a.test", after: "c.test", name: "nope.",
			want: []string{"nope.a.test. A", "nope.b.test. A", "nope.c.test. A"},
		},
		"each once":                             {content: "search a.test b.test\n", before: "b.test", name: "nope.", want: []string{"nope.b.test. A", "nope.a.test. A"}},
		"an empty one is no list":               {content: "", name: "nope.", want: []string{"nope. A"}},
		"a dot is enough as a rule":             {content: "search a.test\n", name: "no.pe.", want: []string{"no.pe. A"}},
		"unless the file says otherwise":        {content: "search a.test\noptions ndots:2\n", name: "no.pe.", want: []string{"no.pe.a.test. A", "no.pe. A"}},
		"and the Corefile does not":             {content: "search a.test\noptions ndots:2\n", after: "{\n ndots 1\n}", name: "no.pe.", want: []string{"no.pe. A"}},
		"a name in one of its domains is whole": {content: "search a.test\noptions ndots:5\n", name: "nope.A.test.", want: []string{"nope.A.test. A"}},
		"its first domain may trigger":          {content: "search a.test b.test\n", after: "{\n trigger first\n}", name: "no.pe.a.test.", want: []string{"no.pe.a.test. A", "no.pe.b.test. A", "no.pe. A"}},
		"it is the same for all in a namespace": {
			content: "search a.test\noptions ndots:2\n", after: "{\n trigger namespace svc.cluster.local\n}", name: "no.such" + ns,
			want: slices.Insert(walked("no.such", "such"), 5, "no.such.a.test. A"),
		},
	} {
		t.Run(claim, func(t *testing.T) {
			z := newCluster(t)
			s := startTestStanzas(t, z, "searchexpand "+tc.before+" "+conf(t, tc.content)+" "+tc.after, nil)
			serve(t, s, query(tc.name, dns.TypeA))
			if got := z.questions(); !slices.Equal(got, tc.want) {
				t.Errorf("asked %q, want %q", got, tc.want)
			}
		})
	}
}

// become waits until the file's list is that one.
func (f *followedFile) become(t *testing.T, want ...string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range 3000 {
		if slices.Equal(f.now.Load().domains, want) {
			return
		}
		<-tick.C
	}
	t.Fatalf("the list is %q, want %q", f.now.Load().domains, want)
}

func TestAListFollowsItsFile(t *testing.T) {
	path := conf(t, "")
	z := newZones(t)
	s := startTestStanzas(t, z, "searchexpand "+path, nil)
	f := files.byPath[path]
	for _, step := range []struct{ content, want string }{
		{"search a.test\n", "a.test."},
		{"search b.test\nnameserver 192.0.", "a.test."}, // torn
		{"search b.test\nnameserver 192.0.2.1\n", "b.test."},
		{"", "b.test."},
		{"search c.test\n", "c.test."},
	} {
		if err := os.WriteFile(path+".new", []byte(step.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		f.become(t, step.want)
		serve(t, s, query("nope.", dns.TypeA))
		if got := z.questions(); !slices.Equal(got, []string{"nope." + step.want + " A"}) {
			t.Errorf("after %q asked %q, want the list %q", step.content, got, step.want)
		}
	}
}

// A bad file keeps what it said, in a load of the Corefile that comes after, too.
func TestAListSurvivesAReload(t *testing.T) {
	path := conf(t, "search a.test\n")
	old, failed, next := &load{}, &load{}, &load{}
	files.begin(old)
	f := files.use(old, path)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	files.begin(failed)
	files.use(failed, path)
	files.use(failed, path+".other")
	files.revive(old)
	if len(files.byPath) != 1 {
		t.Errorf("%d files are followed after a load that failed, want that of the one that serves", len(files.byPath))
	}
	files.replace(old)
	files.begin(next)
	if files.use(next, path) != f {
		t.Error("the file is another one after a reload")
	}
	files.end(old)
	if got := f.now.Load().domains; !slices.Equal(got, []string{"a.test."}) {
		t.Errorf("the list is %q after a reload without the file, want what it was", got)
	}
	files.end(next)
	if len(files.byPath) != 0 || len(files.loads) != 0 {
		t.Errorf("%d files are followed for %d loads when all are over", len(files.byPath), len(files.loads))
	}
}

// Where caddy skips our shutdown, the next reload makes up for it.
func TestALoadThatNobodyEndsIsEndedByTheNext(t *testing.T) {
	path := conf(t, "search a.test\n")
	lost, current := &load{}, &load{}
	files.begin(lost)
	files.use(lost, path)
	files.begin(current)
	files.replace(current)
	if len(files.byPath) != 0 {
		t.Error("the file of a load that was replaced is followed")
	}
	files.end(current)
}
