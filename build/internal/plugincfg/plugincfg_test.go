package plugincfg

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// root is the module's root, seen from this package.
var root = filepath.Join("..", "..", "..")

func TestParseReadsDirectivesInOrder(t *testing.T) {
	tests := map[string]struct {
		in   string
		want []Entry
	}{
		"a bare name is one of CoreDNS's plugins": {
			in:   "prometheus:metrics\n",
			want: []Entry{{"prometheus", "github.com/coredns/coredns/plugin/metrics"}},
		},
		"a path is taken as it is": {
			in:   "on:github.com/coredns/caddy/onevent\n",
			want: []Entry{{"on", "github.com/coredns/caddy/onevent"}},
		},
		"a module of one element is a path when it has a dot": {
			in:   "other:example.org",
			want: []Entry{{"other", "example.org"}},
		},
		"comments, blank lines, blanks around and CRLF say nothing": {
			in:   "# top\n\n  log:log  \r\n\t# indented\nfile:file",
			want: []Entry{{"log", stock + "log"}, {"file", stock + "file"}},
		},
		"the order is the file's, not the alphabet's": {
			in:   "whoami:whoami\nacl:acl\nlog:log\n",
			want: []Entry{{"whoami", stock + "whoami"}, {"acl", stock + "acl"}, {"log", stock + "log"}},
		},
		"two directives of one package": {
			in:   "forward:example.org/p\nhealthforward:example.org/p\n",
			want: []Entry{{"forward", "example.org/p"}, {"healthforward", "example.org/p"}},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(strings.NewReader(tc.in))
			if err != nil {
				t.Fatalf("Parse(%q): %v", tc.in, err)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("Parse(%q) = %v, want %v", tc.in, got, tc.want)
			}
		})
	}
}

func TestParseRefusesWithTheLineNumber(t *testing.T) {
	tests := map[string]struct {
		in   string
		want []string // each in the error's text
	}{
		"a directive twice":        {"log:log\n# x\nlog:other\n", []string{`line 3: directive "log" stands in line 1 already`}},
		"no colon":                 {"log:log\nfile\n", []string{`line 2: "file" is not of the form directive:package`}},
		"no directive":             {":log\n", []string{`line 1: directive ""`}},
		"no package":               {"\nlog:\n", []string{`line 2: package ""`}},
		"two colons":               {"log:log:log\n", []string{`line 1: package "log:log"`}},
		"a blank inside":           {"log: log\n", []string{`line 1: package " log"`}},
		"a comment behind":         {"log:log # why\n", []string{`line 1: package "log # why"`}},
		"a directive in capitals":  {"Log:log\n", []string{`line 1: directive "Log"`}},
		"a quote in the package":   {"log:lo\"g\n", []string{`line 1: package "lo\"g"`}},
		"an empty path element":    {"log:example.org//log\n", []string{`line 1: package "example.org//log"`}},
		"every bad line, at once":  {"a\nlog:log\nb\n", []string{"line 1: ", "line 3: "}},
		"nothing":                  {"", []string{"line 0: the end, and no plugin is listed"}},
		"nothing but comments":     {"# log:log\n\n", []string{"line 2: the end, and no plugin is listed"}},
		"a line as long as a book": {"log:log\n#" + strings.Repeat("x", 1<<16) + "\n", []string{"line 2: "}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(strings.NewReader(tc.in))
			if err == nil {
				t.Fatalf("Parse = %v, want an error", got)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Parse: %q, want %q in it", err, want)
				}
			}
		})
	}
}

func TestSourceImportsOnlyWhatIsListed(t *testing.T) {
	got, err := Source([]Entry{
		{"whoami", stock + "whoami"},
		{"mine", "example.org/mine"},
		{"mine_too", "example.org/mine"},
	})
	if err != nil {
		t.Fatal(err)
	}
	imports := `import (
	"github.com/coredns/coredns/core/dnsserver"

	_ "example.org/mine"
	_ "github.com/coredns/coredns/plugin/whoami"
)`
	order := `var directives = []string{
	"whoami",
	"mine",
	"mine_too",
}`
	for _, want := range []string{imports, order} {
		if !strings.Contains(string(got), want) {
			t.Errorf("Source = %s\nwant in it:\n%s", got, want)
		}
	}
}

// flavours are the committed files, and what each makes of the lines of plugin.cfg.
var flavours = map[string]func([]Entry) ([]Entry, error){
	"build/plugins/zplugin.go": func(all []Entry) ([]Entry, error) { return all, nil },
	"build/compat/plugins/zplugin.go": func(all []Entry) ([]Entry, error) {
		return all, Replace(all, "forward:steadfast.internal/plugin/healthforward/asforward")
	},
	"build/slim/plugins/zplugin.go": func(all []Entry) ([]Entry, error) {
		return Without(all, "route53", "azure", "clouddns", "k8s_external", "kubernetes", "etcd", "nomad", "trace")
	},
}

func TestCommittedFilesAreWhatPluginCfgGenerates(t *testing.T) {
	cfg, err := os.ReadFile(filepath.Join(root, "plugin.cfg"))
	if err != nil {
		t.Fatal(err)
	}
	for committed, derive := range flavours {
		all, err := Parse(bytes.NewReader(cfg))
		if err != nil {
			t.Fatal(err)
		}
		entries, err := derive(all)
		if err != nil {
			t.Fatal(err)
		}
		want, err := Source(entries)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(committed)))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what plugin.cfg generates: run `make generate` and commit the result", committed)
		}
	}
}

func TestReplaceNeedsItsDirective(t *testing.T) {
	entries := []Entry{{"log", stock + "log"}}
	if err := Replace(entries, "log:example.org/log"); err != nil || entries[0].Package != "example.org/log" {
		t.Errorf("Replace: %v, entries %v", err, entries)
	}
	for _, line := range []string{"file:example.org/file", "log"} {
		if err := Replace(entries, line); err == nil || !strings.Contains(err.Error(), line) {
			t.Errorf("Replace(%q): %v, want an error that names it", line, err)
		}
	}
}

func TestWithoutLeavesOutWhatIsThere(t *testing.T) {
	all := []Entry{{"log", stock + "log"}, {"file", stock + "file"}, {"etcd", stock + "etcd"}}
	rest, err := Without(all, "etcd", "log")
	if want := []Entry{{"file", stock + "file"}}; err != nil || !slices.Equal(rest, want) {
		t.Errorf("Without = %v, %v, want %v", rest, err, want)
	}
	if all[0].Directive != "log" || len(all) != 3 {
		t.Errorf("Without changed what it was given: %v", all)
	}
	for _, directive := range []string{"ectd", ""} {
		if rest, err := Without(all, directive); err == nil || !strings.Contains(err.Error(), `"`+directive+`"`) {
			t.Errorf("Without(%q) = %v, %v, want an error that names it", directive, rest, err)
		}
	}
}

func TestEveryListMadeByDeletingOneLineGenerates(t *testing.T) {
	cfg, err := os.ReadFile(filepath.Join(root, "plugin.cfg"))
	if err != nil {
		t.Fatal(err)
	}
	all, err := Parse(bytes.NewReader(cfg))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(cfg), "\n")
	for i, line := range lines {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		rest := strings.Join(slices.Delete(slices.Clone(lines), i, i+1), "\n")
		entries, err := Parse(strings.NewReader(rest))
		if err != nil {
			t.Errorf("without %q: %v", line, err)
			continue
		}
		if len(entries) != len(all)-1 {
			t.Errorf("without %q: %d plugins, want %d", line, len(entries), len(all)-1)
		}
		source, err := Source(entries)
		if err != nil {
			t.Errorf("without %q: %v", line, err)
		}
		directive, _, _ := strings.Cut(line, ":")
		if bytes.Contains(source, []byte("\""+directive+"\",\n")) {
			t.Errorf("without %q: the directive is still there", line)
		}
	}
}
