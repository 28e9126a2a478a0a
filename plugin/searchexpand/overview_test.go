package searchexpand

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestTheOverviewSaysWhatListsStandFor(t *testing.T) {
	good, bad := conf(t, "search a.test b.test\n"), conf(t, "")
	configs, err := parse(dispenser(fmt.Sprintf("searchexpand c.test %s %s @kubernetes", good, bad)))
	if err != nil {
		t.Fatal(err)
	}
	s := newStanzas(configs)
	fs := followedFiles{byPath: make(map[string]*followedFile)}
	now := time.Now()
	if got := fs.overview(now); len(got.Stanzas) != 0 {
		t.Errorf("before the start it is %+v", got)
	}
	l := &load{blocks: []servedBlock{{".:53", s}}}
	fs.begin(l)
	defer fs.end(l)
	if got := fs.overview(now).Stanzas[0].List[1].Domains; len(got) != 0 {
		t.Errorf("before the file is read it stands for %q", got)
	}
	fs.use(l, good)
	fs.use(l, bad)
	for _, name := range []string{"x.", "y.", "z."} {
		s.list[0].suffixes.note(now, now, finding{candidate: candidate{domain: domain{suffix: "b.test."}, name: name}, verdict: failed})
	}
	want := stanzaView{
		Server: ".:53", Skipped: []string{"b.test."},
		List: []entryView{
			{Entry: "c.test.", Domains: []string{"c.test."}},
			{Entry: good, Domains: []string{"a.test.", "b.test."}},
			{Entry: bad, Domains: []string{}, Trouble: errEmptyFile.Error()},
			{Entry: "@kubernetes", PerClient: true, Domains: []string{}},
		},
	}
	got := fs.overview(now)
	if len(got.Stanzas) != 1 || !reflect.DeepEqual(got.Stanzas[0], want) {
		t.Errorf("%+v\nwant %+v", got.Stanzas, want)
	}
	page := fmt.Sprintf("%+v", got.report().Tables)
	for _, part := range []string{"Search list in .:53", "a.test. b.test.", errEmptyFile.Error(), "depends on the client", "skipped"} {
		if !strings.Contains(page, part) {
			t.Errorf("the page has not %q:\n%s", part, page)
		}
	}
	if late := fs.overview(now.Add(skipFor)); len(late.Stanzas[0].Skipped) != 0 {
		t.Errorf("ten seconds later %q are skipped", late.Stanzas[0].Skipped)
	}
}
