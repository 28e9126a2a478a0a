package searchexpand

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metadata"
	"github.com/coredns/coredns/plugin/test"
	"github.com/coredns/coredns/request"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// pods is a plugin that has lists for clients, as kubernetes has for its pods: for those
// that it knows, and when it is asked about a name in its zone.
type pods struct {
	plugin.Handler
	Zones []string
	lists func(ip string) []string
}

func (p *pods) AutoPath(state request.Request) []string {
	if plugin.Zones(p.Zones).Matches(state.Name()) == "" {
		return nil
	}
	return p.lists(state.IP())
}

// others are the other plugins of a server block.
type others map[string]plugin.Handler

func (o others) handler(name string) plugin.Handler { return o[name] }

// startTestStanzas returns the plugin that the directives make, started.
func startTestStanzas(t *testing.T, next plugin.Handler, directives string, with others) *stanzas {
	t.Helper()
	s, l := newTestStanzas(t, next, directives), &load{}
	files.begin(l)
	t.Cleanup(func() { files.end(l) })
	if err := s.start(start{with.handler, l}); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTheListIsWhatItsSourcesHaveForTheClient(t *testing.T) {
	known := &pods{Zones: []string{"in-addr.arpa.", "cluster.local."}, lists: func(ip string) []string {
		return map[string][]string{
			"10.0.0.1": {"one.svc.cluster.local.", "svc.cluster.local.", "Corp.Example.", "..", "x.1.", ".", ""},
		}[ip]
	}}
	tests := map[string]struct {
		domains string
		values  map[string]string
		client  string // default 10.0.0.1
		want    []string
		first   string
		left    string // the entry that is left out
	}{
		"a namespace": {
			domains: "{kubernetes/client-namespace}.svc.cluster.local corp.example", values: map[string]string{"kubernetes/client-namespace": "Blue"},
			want: []string{"blue.svc.cluster.local.", "corp.example."}, first: "blue.svc.cluster.local.",
		},
		"no value": {
			domains: "{a/b}.svc.cluster.local corp.example", want: []string{"corp.example."}, left: "{a/b}.svc.cluster.local.",
		},
		"an empty value": {
			domains: "corp.example {a/b}.svc.cluster.local", values: map[string]string{"a/b": ""},
			want: []string{"corp.example."}, first: "corp.example.", left: "{a/b}.svc.cluster.local.",
		},
		"a value with a dot, which would choose the zone": {
			domains: "{a/b}.corp.example x.example", values: map[string]string{"a/b": "a.b"}, want: []string{"x.example."}, left: "{a/b}.corp.example.",
		},
		"a value that is a wildcard": {
			domains: "{a/b}.corp.example x.example", values: map[string]string{"a/b": "*"}, want: []string{"x.example."}, left: "{a/b}.corp.example.",
		},
		"a value with an escape": {
			domains: "{a/b}.corp.example x.example", values: map[string]string{"a/b": `\046`}, want: []string{"x.example."}, left: "{a/b}.corp.example.",
		},
		"a value of 64 octets": {
			domains: "{a/b}.corp.example x.example", values: map[string]string{"a/b": strings.Repeat("n", 64)}, want: []string{"x.example."}, left: "{a/b}.corp.example.",
		},
		"a value that makes the label too long": {
			domains: "x{a/b}.corp.example x.example", values: map[string]string{"a/b": strings.Repeat("n", 63)}, want: []string{"x.example."}, left: "x{a/b}.corp.example.",
		},
		"two values": {
			domains: "{a/Site}-{a/b}.x.{a/b}.corp.example", values: map[string]string{"a/Site": "s", "a/b": "42"},
			want: []string{"s-42.x.42.corp.example."}, first: "s-42.x.42.corp.example.",
		},
		"one of two is missing": {
			domains: "{a/c}.{a/b}.corp.example x.example", values: map[string]string{"a/b": "42"}, want: []string{"x.example."}, left: "{a/c}.{a/b}.corp.example.",
		},
		"a plugin's list, without the name as it is": {
			domains: "@pods x.example", want: []string{"one.svc.cluster.local.", "svc.cluster.local.", "corp.example.", "x.example."}, first: "one.svc.cluster.local.",
		},
		"each domain once": {
			domains: "svc.cluster.local . @pods corp.example", want: []string{"svc.cluster.local.", ".", "one.svc.cluster.local.", "corp.example."}, first: "svc.cluster.local.",
		},
		"a client that the plugin does not know": {domains: "@pods x.example", client: "10.0.0.2", want: []string{"x.example."}, left: "@pods"},
		"the root is not the first domain":       {domains: ". @pods", want: []string{".", "one.svc.cluster.local.", "svc.cluster.local.", "corp.example."}, first: "one.svc.cluster.local."},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if tc.client == "" {
				tc.client = "10.0.0.1"
			}
			s := startTestStanzas(t, newZones(t), "searchexpand "+tc.domains, others{"pods": known, "metadata": known}).list[0]
			ctx := withMetadata(t.Context(), tc.values)
			before := testutil.ToFloat64(suffixCount.WithLabelValues(tc.left, eventLeftOut))
			l := s.listFor(ctx, request.Request{W: from(tc.client), Req: query("db01.", dns.TypeA)}, s.entries)
			var got []string
			for _, d := range l.domains {
				got = append(got, d.suffix)
			}
			if !slices.Equal(got, tc.want) || l.first != tc.first {
				t.Errorf("list %q, first %q; want %q, %q", got, l.first, tc.want, tc.first)
			}
			if tc.left != "" && testutil.ToFloat64(suffixCount.WithLabelValues(tc.left, eventLeftOut)) != before+1 {
				t.Errorf("%s is not counted as left out", tc.left)
			}
		})
	}
}

func withMetadata(ctx context.Context, values map[string]string) context.Context {
	ctx = metadata.ContextWithMetadata(ctx)
	for label, value := range values {
		metadata.SetValueFunc(ctx, label, func() string { return value })
	}
	return ctx
}

// A pod's address is given to another pod: what is known of the name belongs to the list.
func TestWhatIsKnownOfANameGoesWithTheList(t *testing.T) {
	lists := []string{"a.test.", "b.test."}
	turn := 0
	p := &pods{Zones: []string{"test."}, lists: func(string) []string { return []string{lists[turn], ""} }}
	z := newZones(t)
	s := startTestStanzas(t, z, "searchexpand @pods", others{"pods": p})
	for i, want := range []string{"192.0.2.10", "192.0.2.20", "192.0.2.10"} {
		turn = i % 2
		if got := serve(t, s, query("v4only.", dns.TypeA)).Answer[1].(*dns.A).A.String(); got != want {
			t.Errorf("turn %d: %s, want %s", i, got, want)
		}
	}
}

// Two queries that are the same in every octet, from one address, at the same time.
func TestSearchesOfTwoListsAreNotJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turn atomic.Int32
		p := &pods{Zones: []string{"test."}, lists: func(string) []string { return []string{[]string{"a.test.", "b.test."}[turn.Add(1)%2]} }}
		s := startTestStanzas(t, distant(newZones(t)), "searchexpand @pods", others{"pods": p})
		got := make(chan string, 2)
		for range 2 {
			go func() {
				w := from("192.0.2.200")
				_, _ = s.ServeDNS(t.Context(), w, query("v4only.", dns.TypeA))
				got <- w.replies[0].Answer[1].(*dns.A).A.String()
			}()
		}
		answers := []string{<-got, <-got}
		slices.Sort(answers)
		if !slices.Equal(answers, []string{"192.0.2.10", "192.0.2.20"}) {
			t.Errorf("answers %q, want one of each list", answers)
		}
		time.Sleep(time.Hour)
	})
}

func TestAClientWithoutAListIsLeftAlone(t *testing.T) {
	p := &pods{Zones: []string{"c.example."}, lists: func(ip string) []string {
		if ip != "10.0.0.1" {
			return nil
		}
		return []string{"one.svc.c.example.", ""}
	}}
	kube := &pods{Zones: []string{"cluster.local."}, lists: func(string) []string {
		return []string{"one.svc.cluster.local.", "svc.cluster.local.", "cluster.local.", ""}
	}}
	for claim, tc := range map[string]struct {
		directive, client, name string
		want                    []string
	}{
		"it has one":                     {"searchexpand @pods", "10.0.0.1", "db01.", []string{"db01.one.svc.c.example. A"}},
		"it has none":                    {"searchexpand @pods", "10.0.0.2", "db01.", []string{"db01. A"}},
		"a name in its list is complete": {"searchexpand @pods {\n ndots 9\n}", "10.0.0.1", "x.One.svc.c.example.", []string{"x.One.svc.c.example. A"}},
		"which is not so for others":     {"searchexpand @pods b.test {\n ndots 9\n}", "10.0.0.2", "x.one.svc.c.example.", []string{"x.one.svc.c.example.b.test. A", "x.one.svc.c.example. A"}},
		"nor twice": {
			"searchexpand @pods b.test {\n trigger first\n}", "10.0.0.1", "y.one.svc.c.example.one.svc.c.example.",
			[]string{"y.one.svc.c.example.one.svc.c.example. A", "y.one.svc.c.example. A"},
		},
		"nor twice, in a cluster": {
			"searchexpand @kube b.test {\n trigger first\n}", "10.0.0.1", "y.one.svc.cluster.local.one.svc.cluster.local.",
			[]string{"y.one.svc.cluster.local.one.svc.cluster.local. A", "y.one.svc.cluster.local. A"},
		},
		"its first domain triggers":   {"searchexpand @pods b.test {\n trigger first\n}", "10.0.0.1", "x.one.svc.c.example.", []string{"x.one.svc.c.example. A", "x.b.test. A"}},
		"and that of nobody else":     {"searchexpand @pods b.test {\n trigger first\n}", "10.0.0.2", "x.one.svc.c.example.", []string{"x.one.svc.c.example. A"}},
		"nor another one of the list": {"searchexpand @pods b.test {\n trigger first\n}", "10.0.0.2", "x.b.test.", []string{"x.b.test. A"}},
		"in a namespace it has what all have": {
			"searchexpand @pods b.test {\n trigger namespace svc.cluster.local\n ndots 2\n wildcard allow\n}", "10.0.0.1", "x.y.two.svc.cluster.local.",
			[]string{"x.y.two.svc.cluster.local. A", "two.svc.cluster.local. A"},
		},
	} {
		t.Run(claim, func(t *testing.T) {
			z := newZones(t)
			s := startTestStanzas(t, z, tc.directive, others{"pods": p, "kube": kube})
			w := from(tc.client)
			if _, err := s.ServeDNS(t.Context(), w, query(tc.name, dns.TypeA)); err != nil {
				t.Fatal(err)
			}
			if got := z.questions(); !slices.Equal(got, tc.want) {
				t.Errorf("asked %q, want %q", got, tc.want)
			}
		})
	}
}

// In a namespace the answer depends on nothing but the name: what is made for a client has
// no part in it.
func TestANamespaceHasOneListForAll(t *testing.T) {
	z := newCluster(t)
	p := &pods{Zones: []string{"cluster.local."}, lists: func(string) []string { return []string{"b.test.", ""} }}
	s := startTestStanzas(t, z, "searchexpand @pods a.test {\n trigger namespace svc.cluster.local\n ndots 2\n}", others{"pods": p})
	serve(t, s, query("no.such"+ns, dns.TypeA))
	want := slices.Insert(walked("no.such", "such"), 5, "no.such.a.test. A")
	if got := z.questions(); !slices.Equal(got, want) {
		t.Errorf("asked %q, want %q", got, want)
	}
}

func TestWhatASourceNeedsIsCheckedAtStart(t *testing.T) {
	p := &pods{lists: func(string) []string { return nil }}
	for claim, tc := range map[string]struct {
		domain string
		others others
		want   error // nil: it starts
	}{
		"a placeholder":                   {"{pods/x}.corp.example", others{"metadata": p, "pods": p}, nil},
		"a placeholder nobody may set":    {"{pods/x}.corp.example", others{"metadata": p}, nil},
		"a placeholder without metadata":  {"{pods/x}.corp.example", others{"pods": p}, errNoMetadata},
		"a plugin":                        {"@pods", others{"pods": p}, nil},
		"a plugin that is not there":      {"@pods", others{"metadata": p}, errNoPlugin},
		"a plugin that has no such lists": {"@pods", others{"pods": newZones(t)}, errNoAutoPath},
	} {
		err := newTestStanzas(t, p, "searchexpand "+tc.domain).start(start{plugins: tc.others.handler})
		if !errors.Is(err, tc.want) || err != nil && !strings.Contains(err.Error(), "plugin/searchexpand: "+tc.domain[:5]) {
			t.Errorf("%s: %v, want %v that names %s", claim, err, tc.want, tc.domain)
		}
	}
}

func TestAPluginIsAskedAboutANameInItsZone(t *testing.T) {
	for claim, tc := range map[string]struct {
		h    plugin.Handler
		want string
	}{
		"the first that is no reverse zone": {&pods{Zones: []string{".", "10.in-addr.arpa.", "cluster.local."}}, "cluster.local."},
		"every zone":                        {&pods{Zones: []string{"."}}, root},
		"a plugin that does not say":        {newZones(t), root},
		"no plugin of ours":                 {plugin.HandlerFunc(nil), root},
	} {
		if got := zoneOf(tc.h); got != tc.want {
			t.Errorf("%s: %q, want %q", claim, got, tc.want)
		}
	}
}

// Who makes suffixes up must neither make series of metrics nor push out what is known of
// those that are used.
func TestNoClientMakesStateGrow(t *testing.T) {
	const names = maxSuffixes + 100
	z := newZones(t)
	s := startTestStanzas(t, z, "searchexpand {a/b}.b.test b.test", others{"metadata": z})
	s.list[0].suffixes.record("b.test.").failing = []string{"x.b.test."}
	series := testutil.CollectAndCount(suffixCount)
	for i := range names {
		w := &recorder{ResponseWriter: test.ResponseWriter{RemoteIP: net.IPv4(10, byte(i>>8), byte(i), 1).String()}}
		ctx := withMetadata(t.Context(), map[string]string{"a/b": fmt.Sprint("x", i)})
		s.list[0].suffixes.report(time.Now(), time.Now(), failure(candidate{name: "db01.", domain: domain{suffix: fmt.Sprintf("x%d.b.test.", i), entry: "{a/b}.b.test."}}, errTimeout))
		if _, err := s.ServeDNS(ctx, w, query("bonly.", dns.TypeA)); err != nil {
			t.Fatal(err)
		}
	}
	if got := testutil.CollectAndCount(suffixCount); got > series+1 {
		t.Errorf("%d series, were %d", got, series)
	}
	if got := s.list[0].suffixes.records.Len(); got != maxSuffixes {
		t.Errorf("%d suffixes are watched, want %d", got, maxSuffixes)
	}
	if !s.list[0].suffixes.records.Contains("b.test.") {
		t.Error("the one that all names are asked under is forgotten")
	}
}

// FuzzTemplate puts any value into a domain: what comes of it is a domain in the one that
// the operator has fixed, or nothing.
func FuzzTemplate(f *testing.F) {
	f.Add("{a/b}.corp.example", "blue")
	f.Add("x-{a/b}.{c/d}.corp.example.", "a.b")
	f.Add("{a/b}.{a/b}.corp.example", `\\046`)
	f.Fuzz(func(t *testing.T, arg, value string) {
		e, err := parseEntry(arg)
		if err != nil {
			return
		}
		tmpl, ok := e.source.(*template)
		if !ok {
			return
		}
		d, err := tmpl.fill(func(string) string { return value })
		if err != nil {
			return
		}
		if parsed, err := parseDomain(d); err != nil || parsed != d || tmpl.parent == root || !dns.IsSubDomain(tmpl.firstWithin(), d) {
			t.Errorf("%q with %q makes %q, not a domain in %q: %v", arg, value, d, tmpl.firstWithin(), err)
		}
	})
}
