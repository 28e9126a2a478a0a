package searchexpand

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

func TestANameIsCutAtAZone(t *testing.T) {
	tests := map[string]struct {
		name, zone, base, namespace string
		first                       string // what cutZone leaves
	}{
		"a service":                           {"db.default.svc.cluster.local.", "svc.cluster.local.", "", "", "db.default."},
		"a name completed for one":            {"www.example.default.svc.cluster.local.", "svc.cluster.local.", "www.example.", "default", "www.example.default."},
		"in other case":                       {"WWW.Example.Default.SVC.Cluster.local.", "svc.cluster.local.", "WWW.Example.", "Default", "WWW.Example.Default."},
		"the namespace itself":                {"default.svc.cluster.local.", "svc.cluster.local.", "", "", "default."},
		"the zone itself":                     {"svc.cluster.local.", "svc.cluster.local.", "", "", ""},
		"beside the zone":                     {"www.example.default.xsvc.cluster.local.", "svc.cluster.local.", "", "", ""},
		"a dot that is none":                  {`www.example.default\.svc.cluster.local.`, "svc.cluster.local.", "", "", ""},
		"a backslash before the dot":          {`www.example.x\\.svc.cluster.local.`, "svc.cluster.local.", "", "", `www.example.x\\.`},
		"a namespace with a dot that is none": {`www.example\.default.svc.cluster.local.`, "svc.cluster.local.", "", "", `www.example\.default.`},
		"a namespace with an underscore":      {"www.example._tcp.svc.cluster.local.", "svc.cluster.local.", "", "", "www.example._tcp."},
		"a base whose dot is none":            {`www\.example.default.svc.cluster.local.`, "svc.cluster.local.", "", "", `www\.example.default.`},
		"another zone":                        {"www.example.", "svc.cluster.local.", "", "", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got, ok := cutZone(tc.name, tc.zone); got != tc.first || ok != (tc.first != "") {
				t.Errorf("cutZone = %q, %v, want %q", got, ok, tc.first)
			}
			base, namespace, ok := cutNamespace(tc.name, tc.zone)
			if base != tc.base || namespace != tc.namespace || ok != (tc.base != "") {
				t.Errorf("cutNamespace = %q, %q, %v, want %q, %q", base, namespace, ok, tc.base, tc.namespace)
			}
		})
	}
}

// newCluster returns the zones, and a cluster's.
func newCluster(t *testing.T) *zones {
	t.Helper()
	z := newZones(t)
	z.minimum["cluster.local."] = 5
	z.add(t, "cluster.local.", 5, "db.default.svc A 10.0.0.1", "web.default.svc A 10.0.0.6", "web-0.web.default.svc A 10.0.0.7",
		"db.prod.svc A 10.0.0.2", "web-9.web.svc A 10.0.0.9", "x.web-9.svc A 10.0.0.9")
	z.add(t, "example.", 120, "both A 192.0.2.97", "both AAAA 2001:db8::97")
	z.add(t, "both.sf.test.", 120, "x A 192.0.2.96")
	return z
}

const ns, svc, cluster = ".default.svc.cluster.local.", ".svc.cluster.local.", ".cluster.local."

// walked is what is asked, by A, for a base that is as its client wrote it.
func walked(base, service string) []string {
	return []string{base + ns + " A", ns[1:] + " A", service + ns + " A", base + svc + " A", base + cluster + " A", base + ". A"}
}

func TestTriggerNamespace(t *testing.T) {
	type want struct {
		rcode  int
		answer []string
		soa    string // zone; none is wanted if empty
		asked  []string
	}
	alone := func(name string) []string { return []string{name + " A"} }
	tests := map[string]struct {
		directive string
		ask       string
		qtype     uint16 // default A
		want      want
	}{
		"an external name": {ask: "ext.example" + ns, want: want{
			answer: []string{"ext.example" + ns + " CNAME ext.example.", "ext.example. A 192.0.2.99"}, asked: walked("ext.example", "example"),
		}},
		"in other case": {ask: "Ext.Example.Default.svc.cluster.LOCAL.", want: want{
			answer: []string{"Ext.Example.Default.svc.cluster.LOCAL. CNAME ext.example.", "ext.example. A 192.0.2.99"},
			asked: []string{
				"Ext.Example.Default.svc.cluster.LOCAL. A", ns[1:] + " A", "Example" + ns + " A", "Ext.Example" + svc + " A", "Ext.Example" + cluster + " A",
				"Ext.Example. A",
			},
		}},
		"no such name": {ask: "no.such" + ns, want: want{rcode: dns.RcodeNameError, soa: "cluster.local.", asked: walked("no.such", "such")}},
		"an endpoint that is there": {ask: "web-0.web" + ns, want: want{
			answer: []string{"web-0.web" + ns + " A 10.0.0.7"}, asked: alone("web-0.web" + ns),
		}},
		"its other family": {ask: "web-0.web" + ns, qtype: dns.TypeAAAA, want: want{
			soa: "cluster.local.", asked: []string{"web-0.web" + ns + " AAAA", "web-0.web" + ns + " A"},
		}},
		"an endpoint that is gone is none of another namespace": {ask: "web-9.web" + ns, want: want{
			rcode: dns.RcodeNameError, soa: "cluster.local.", asked: []string{"web-9.web" + ns + " A", ns[1:] + " A", "web" + ns + " A"},
		}},
		"a namespace that is none, such as the last label of a name": {ask: "ext.example.com" + svc, want: want{
			rcode: dns.RcodeNameError, soa: "cluster.local.", asked: []string{"ext.example.com" + svc + " A", "com" + svc + " A"},
		}},
		"a service in another namespace": {ask: "db.prod" + ns, want: want{
			answer: []string{"db.prod" + ns + " CNAME db.prod" + svc, "db.prod" + svc + " A 10.0.0.2"}, asked: walked("db.prod", "prod")[:4],
		}},
		"a service by namespace and svc": {ask: "db.prod.svc" + ns, want: want{
			answer: []string{"db.prod.svc" + ns + " CNAME db.prod" + svc, "db.prod" + svc + " A 10.0.0.2"}, asked: walked("db.prod.svc", "svc")[:5],
		}},
		"a service that is gone is the client's to look for": {ask: "no" + ns, want: want{
			rcode: dns.RcodeNameError, soa: "cluster.local.", asked: alone("no" + ns),
		}},
		"an address":       {ask: "1.2.3.4" + ns, want: want{rcode: dns.RcodeNameError, soa: "cluster.local.", asked: alone("1.2.3.4" + ns)}},
		"a reverse name":   {ask: "4.3.2.1.in-addr.arpa" + ns, want: want{rcode: dns.RcodeNameError, soa: "cluster.local.", asked: alone("4.3.2.1.in-addr.arpa" + ns)}},
		"a special name":   {ask: "printer.local" + ns, want: want{rcode: dns.RcodeNameError, soa: "cluster.local.", asked: alone("printer.local" + ns)}},
		"wpad":             {ask: "wpad.corp" + ns, want: want{rcode: dns.RcodeNameError, soa: "cluster.local.", asked: alone("wpad.corp" + ns)}},
		"an excepted name": {directive: "searchexpand a.test {\n trigger namespace svc.cluster.local\n except lan\n}", ask: "tv.lan" + ns, want: want{rcode: dns.RcodeNameError, soa: "cluster.local.", asked: alone("tv.lan" + ns)}},
		"the list is for short names": {directive: "searchexpand a.test {\n trigger namespace svc.cluster.local\n ndots 2\n wildcard allow\n}", ask: "x.ent" + ns, want: want{
			answer: []string{"x.ent" + ns + " CNAME x.ent.a.test.", "x.ent.a.test. A 192.0.2.12"},
			asked:  append(walked("x.ent", "ent")[:5], "x.ent.a.test. A"),
		}},
		"and no others": {directive: "searchexpand a.test {\n trigger namespace svc.cluster.local\n ndots 2\n}", ask: "both.x.ent" + ns, want: want{
			rcode: dns.RcodeNameError, soa: "cluster.local.", asked: walked("both.x.ent", "ent"),
		}},
		"the root stands where it stands": {directive: "searchexpand . a.test {\n trigger namespace svc.cluster.local\n ndots 2\n wildcard allow\n}", ask: "x.ent" + ns, want: want{
			answer: []string{"x.ent" + ns + " CNAME x.ent.a.test.", "x.ent.a.test. A 192.0.2.12"},
			asked:  append(walked("x.ent", "ent"), "x.ent.a.test. A"),
		}},
		"a name in the list is complete": {directive: "searchexpand a.test {\n trigger namespace svc.cluster.local\n ndots 5\n}", ask: "both.a.test" + ns, want: want{
			answer: []string{"both.a.test" + ns + " CNAME both.a.test.", "both.a.test. A 192.0.2.11"}, asked: walked("both.a.test", "test"),
		}},
		"a full name of a service is no bare one": {directive: "searchexpand a.test {\n trigger namespace svc.cluster.local\n ndots 15\n}", ask: "no" + ns, want: want{
			rcode: dns.RcodeNameError, soa: "cluster.local.", asked: alone("no" + ns),
		}},
		"a stanza without a list leaves bare names alone": {ask: "wpad.", want: want{rcode: dns.RcodeNameError, soa: root, asked: alone("wpad.")}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if tc.directive == "" {
				tc.directive = "searchexpand {\n trigger namespace svc.cluster.local\n}"
			}
			if tc.qtype == 0 {
				tc.qtype = dns.TypeA
			}
			z := newCluster(t)
			s := newTestStanzas(t, z, tc.directive)
			m := serve(t, s, query(tc.ask, tc.qtype))
			if m.Rcode != tc.want.rcode || !slices.Equal(short(m.Answer), tc.want.answer) {
				t.Errorf("rcode %d, answer %q; want %d, %q", m.Rcode, short(m.Answer), tc.want.rcode, tc.want.answer)
			}
			if tc.want.soa != "" && (len(m.Ns) != 1 || m.Ns[0].Header().Rrtype != dns.TypeSOA || m.Ns[0].Header().Name != tc.want.soa) {
				t.Errorf("authority %v, want the SOA of %s", m.Ns, tc.want.soa)
			}
			if got := z.questions(); !slices.Equal(got, tc.want.asked) {
				t.Errorf("asked %q\n want %q", got, tc.want.asked)
			}
		})
	}
}

// What says nothing about a namespace must not send its names to strangers, and nothing
// that fails is a denial.
func TestAFailureDeniesNoTriggeredName(t *testing.T) {
	const outside = "none.example. A"
	for failing, leaves := range map[string]bool{
		ns[1:]: false, "example" + ns: false, "none.example" + ns: true, "none.example" + svc: true, "none.example" + cluster: true,
	} {
		ask := "none.example" + ns
		z := newCluster(t)
		s := newTestStanzas(t, handler(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			if r.Question[0].Name == failing {
				return dns.RcodeServerFailure, nil
			}
			return z.ServeDNS(ctx, w, r)
		}), "searchexpand {\n trigger namespace svc.cluster.local\n}")
		if m := serve(t, s, query(ask, dns.TypeA)); m.Rcode != dns.RcodeServerFailure {
			t.Errorf("%s fails: rcode %d, want SERVFAIL", failing, m.Rcode)
		}
		if asked := z.questions(); slices.Contains(asked, outside) != leaves {
			t.Errorf("%s fails: asked %q", failing, asked)
		}
	}
}

// The second question is one question, about the same host, and what is denied is denied
// by the zone of the name that was asked.
func TestTheTypesOfATriggeredNameComeFromOneHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := newCluster(t)
		s := newTestStanzas(t, z, "searchexpand {\n trigger namespace svc.cluster.local\n}")
		name := "both.example" + ns
		play(t, s.list[0], z, []step{
			{name: name, qtype: dns.TypeA, answer: []string{name + " CNAME both.example.", "both.example. A 192.0.2.97"}, ttl: 5, asked: walked("both.example", "example")},
			{name: name, qtype: dns.TypeAAAA, answer: []string{name + " CNAME both.example.", "both.example. AAAA 2001:db8::97"}, ttl: 5, asked: []string{"both.example. AAAA"}},
			{name: name, qtype: dns.TypeMX, ttl: 5, asked: []string{"both.example. MX"}},
		})
		w := from("192.0.2.200") // the client of those steps
		if _, err := s.ServeDNS(t.Context(), w, query(name, dns.TypeMX)); err != nil {
			t.Fatal(err)
		}
		if soa := w.replies[0].Ns; len(soa) != 1 || soa[0].Header().Name != "cluster.local." {
			t.Errorf("authority %v, want the SOA of cluster.local", soa)
		}
	})
}

// A server that denies the one family of a host is corrected by the other, asked for at
// the same time; what is left to deny is denied by the zone of the name asked.
func TestADenialPutOffIsThatOfTheNameAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := newCluster(t)
		s := newTestStanzas(t, distant(handler(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			if r.Question[0].Name == "ext.example." {
				return hostOnly{z}.ServeDNS(ctx, w, r)
			}
			return z.ServeDNS(ctx, w, r)
		})), "searchexpand {\n trigger namespace svc.cluster.local\n}")
		replies := make(chan *dns.Msg, 2)
		for i, qtype := range []uint16{dns.TypeAAAA, dns.TypeA} {
			go func() {
				time.Sleep(time.Duration(i+1) * time.Millisecond)
				w := from("192.0.2.200")
				_, _ = s.ServeDNS(t.Context(), w, query("ext.example"+ns, qtype))
				replies <- w.replies[0]
			}()
		}
		for range 2 {
			m := <-replies
			if m.Rcode != dns.RcodeSuccess || len(m.Answer) == 0 && (len(m.Ns) != 1 || m.Ns[0].Header().Name != "cluster.local.") {
				t.Errorf("want the host, and NODATA by cluster.local, get\n%v", m)
			}
		}
		untilAllHaveEnded()
	})
}

// A domain that fails name after name is skipped for names that are completed by us. One
// that the client asks for by its own name is asked for, whatever else failed.
func TestTheNameAskedIsNeverSkipped(t *testing.T) {
	z := newZones(t)
	s := newTestStanzas(t, handler(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		if strings.HasPrefix(r.Question[0].Name, "bad") {
			return dns.RcodeServerFailure, nil
		}
		return z.ServeDNS(ctx, w, r)
	}), "searchexpand a.test b.test {\n trigger first\n}")
	for i := range skipAfter + 1 { // the last one is the probe of this second
		serve(t, s, query(fmt.Sprintf("bad%d.a.test.", i), dns.TypeA))
	}
	if a := s.list[0].suffixes.record("a.test."); !a.open(time.Now()) {
		t.Fatal("a.test is not skipped")
	}
	if got := short(serve(t, s, query("v4only.a.test.", dns.TypeA)).Answer); !slices.Equal(got, []string{"v4only.a.test. A 192.0.2.10"}) {
		t.Errorf("answer %q, want that of a.test", got)
	}
}

// Silence is no sign that a namespace exists: however long it takes to say so, nobody else
// is asked before.
func TestAGateIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := newCluster(t)
		s := newTestStanzas(t, handler(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			if r.Question[0].Name == "com"+svc {
				time.Sleep(3 * patience)
			}
			return z.ServeDNS(ctx, w, r)
		}), "searchexpand {\n trigger namespace svc.cluster.local\n}")
		if m := serve(t, s, query("ext.example.com"+svc, dns.TypeA)); m.Rcode != dns.RcodeNameError {
			t.Errorf("%v, want NXDOMAIN", m)
		}
		if asked := z.questions(); slices.Contains(asked, "ext.example. A") {
			t.Errorf("asked %q", asked)
		}
		untilAllHaveEnded()
	})
}

func TestTriggerFirst(t *testing.T) {
	type want struct {
		rcode  int
		answer []string
		ttl    uint32 // of the first record; 0: any
		asked  []string
	}
	const two = "a.test b.test"
	tests := map[string]struct {
		list string
		ask  string
		want want
	}{
		"it is in the second": {two, "bonly.a.test.", want{answer: []string{"bonly.a.test. CNAME bonly.b.test.", "bonly.b.test. A 192.0.2.23"}, ttl: 30, asked: []string{"bonly.a.test. A", "bonly.b.test. A"}}},
		"it is in the first":  {two, "v4only.a.test.", want{answer: []string{"v4only.a.test. A 192.0.2.10"}, ttl: 60, asked: []string{"v4only.a.test. A"}}},
		"its alias stands once": {two, "chain.a.test.", want{
			answer: []string{"chain.a.test. CNAME v4only.b.test.", "v4only.b.test. A 192.0.2.20"}, asked: []string{"chain.a.test. A"},
		}},
		"an empty name hides no host": {two, "ent.a.test.", want{
			answer: []string{"ent.a.test. CNAME ent.b.test.", "ent.b.test. A 192.0.2.25"}, asked: []string{"ent.a.test. A", "ent.a.test. AAAA", "ent.b.test. A"},
		}},
		"it is nowhere, and the root is not told": {two, "nope.a.test.", want{rcode: dns.RcodeNameError, ttl: 20, asked: []string{"nope.a.test. A", "nope.b.test. A"}}},
		"a name of a stranger":                    {two, "ext.example.a.test.", want{answer: []string{"ext.example.a.test. CNAME ext.example.", "ext.example. A 192.0.2.99"}, asked: []string{"ext.example.a.test. A", "ext.example.b.test. A", "ext.example. A"}}},
		"past a failure":                          {"a.test sf.test b.test", "bonly.a.test.", want{answer: []string{"bonly.a.test. CNAME bonly.b.test.", "bonly.b.test. A 192.0.2.23"}, ttl: 5, asked: []string{"bonly.a.test. A", "bonly.sf.test. A", "bonly.b.test. A"}}},
		"nowhere, past a failure":                 {"a.test sf.test b.test", "nope.a.test.", want{rcode: dns.RcodeServerFailure, asked: []string{"nope.a.test. A", "nope.sf.test. A", "nope.b.test. A"}}},
		"the first fails":                         {"sf.test b.test", "nope.sf.test.", want{rcode: dns.RcodeServerFailure, asked: []string{"nope.sf.test. A", "nope.b.test. A"}}},
		"the root in front":                       {". a.test b.test", "bonly.a.test.", want{answer: []string{"bonly.a.test. CNAME bonly.b.test.", "bonly.b.test. A 192.0.2.23"}, asked: []string{"bonly.a.test. A", "bonly. A", "bonly.b.test. A"}}},
		"the first itself":                        {two, "a.test.", want{asked: []string{"a.test. A"}}},
		"the second is no trigger":                {two, "nope.b.test.", want{rcode: dns.RcodeNameError, asked: []string{"nope.b.test. A"}}},
		"wpad":                                    {two, "wpad.a.test.", want{rcode: dns.RcodeNameError, asked: []string{"wpad.a.test. A"}}},
		"a special name":                          {two, "printer.local.a.test.", want{rcode: dns.RcodeNameError, asked: []string{"printer.local.a.test. A"}}},
		"an address":                              {two, "192.0.2.1.a.test.", want{rcode: dns.RcodeNameError, asked: []string{"192.0.2.1.a.test. A"}}},
		"a name that is complete": {two, "both.a.test.a.test.", want{
			answer: []string{"both.a.test.a.test. CNAME both.a.test.", "both.a.test. A 192.0.2.11"}, asked: []string{"both.a.test.a.test. A", "both.a.test. A"},
		}},
		"a bare name, too": {two, "bonly.", want{answer: []string{"bonly. CNAME bonly.b.test.", "bonly.b.test. A 192.0.2.23"}, asked: []string{"bonly.a.test. A", "bonly.b.test. A"}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			z := newZones(t)
			z.add(t, "test.", 60, "x.sf A 192.0.2.1") // so that a denial is its zone's
			s := newTestStanzas(t, z, "searchexpand "+tc.list+" {\n trigger first\n wildcard allow\n}")
			m := serve(t, s, query(tc.ask, dns.TypeA))
			if m.Rcode != tc.want.rcode || !slices.Equal(short(m.Answer), tc.want.answer) {
				t.Errorf("rcode %d, answer %q; want %d, %q", m.Rcode, short(m.Answer), tc.want.rcode, tc.want.answer)
			}
			if rrs := slices.Concat(m.Answer, m.Ns); tc.want.ttl != 0 && rrs[0].Header().Ttl != tc.want.ttl {
				t.Errorf("TTL of %v, want %d", rrs[0], tc.want.ttl)
			}
			if m.Rcode == dns.RcodeNameError && len(m.Ns) == 1 && !dns.IsSubDomain(m.Ns[0].Header().Name, tc.ask) {
				t.Errorf("%v denies %s", m.Ns[0], tc.ask)
			}
			if got := z.questions(); !slices.Equal(got, tc.want.asked) {
				t.Errorf("asked %q, want %q", got, tc.want.asked)
			}
		})
	}
}

func TestANameThatIsMeantAsAskedIsAnsweredAsWithoutUs(t *testing.T) {
	z := newCluster(t)
	s := newTestStanzas(t, z, "searchexpand a.test b.test {\n trigger first\n trigger namespace svc.cluster.local\n}")
	for _, name := range []string{"v4only.a.test.", "both.a.test.", "web-0.web" + ns} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
			r := query(name, qtype)
			want, got := serve(t, z, r.Copy()), serve(t, s, r)
			if got.String() != want.String() {
				t.Errorf("%v\nwant %v", got, want)
			}
		}
	}
}

// A wildcard record in the first domain must not have every name of the world, nor be
// denied where it is all there is.
func TestAWildcardInTheFirstDomain(t *testing.T) {
	for _, policy := range []string{wildcardLast, wildcardIgnore} {
		for ask, want := range map[string][]string{
			"ext.example.w.test.":  {"ext.example.w.test. CNAME ext.example.", "ext.example. A 192.0.2.99"},
			"bonly.w.test.":        {"bonly.w.test. CNAME bonly.b.test.", "bonly.b.test. A 192.0.2.23"},
			"none.example.w.test.": {"none.example.w.test. A 203.0.113.66"},
			"none.w.test.":         {"none.w.test. A 203.0.113.66"},
		} {
			w := &wild{zones: newZones(t), made: map[string]func(string) string{"w.test.": always("A 203.0.113.66")}}
			s := newTestStanzas(t, w, "searchexpand w.test b.test {\n trigger first\n wildcard "+policy+"\n}")
			if m := serve(t, s, query(ask, dns.TypeA)); !slices.Equal(short(m.Answer), want) {
				t.Errorf("%s, %s: %q, want %q", policy, ask, short(m.Answer), want)
			}
		}
	}
}

func TestDecidingAgainstATriggerAllocatesNothing(t *testing.T) {
	configs, err := parse(dispenser("searchexpand {x/y}.corp.example a.test {\n trigger first\n trigger namespace svc.cluster.local svc.other.example\n ndots 5\n}"))
	if err != nil {
		t.Fatal(err)
	}
	r := newRules(configs[0])
	for _, name := range []string{
		"www.a.b.c.d.example.org.", "db.default.svc.cluster.local.", "1.2.3.4.default.svc.cluster.local.", "printer.local.default.svc.cluster.local.",
		"default.svc.cluster.local.", "wpad.corp.default.svc.cluster.local.", "corp.example.org.x.y.z.",
	} {
		m, d := query(name, dns.TypeA), expand
		if n := testing.AllocsPerRun(100, func() { d = r.decide(m) }); n != 0 || d != pass {
			t.Errorf("%s: %v allocations, decision %d; want none and to pass", name, n, d)
		}
	}
}
