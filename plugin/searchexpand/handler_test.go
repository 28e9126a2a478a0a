package searchexpand

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin/metadata"
	"github.com/coredns/coredns/plugin/test"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// T1, T3, T4, T8 and T9 are the rows of the table in DESIGN.md.
func TestANameIsAnsweredByOneSuffix(t *testing.T) {
	two, longLabel := []string{"a.test.", "b.test."}, strings.Repeat("n", 63)
	type want struct {
		rcode  int
		answer []string // without TTL and class
	}
	tests := map[string]struct {
		list  []string
		ask   string
		qtype uint16
		want  want
	}{
		"T1: A of a host of the first suffix":     {two, "v4only.", dns.TypeA, want{0, []string{"v4only. CNAME v4only.a.test.", "v4only.a.test. A 192.0.2.10"}}},
		"T1: its AAAA is not the second suffix's": {two, "v4only.", dns.TypeAAAA, want{0, nil}},
		"T1b: nor is its HTTPS":                   {two, "v4only.", dns.TypeHTTPS, want{0, nil}},
		"T1b: nor its TXT":                        {two, "v4only.", dns.TypeTXT, want{0, nil}},
		"T1: both families of one host, A":        {two, "both.", dns.TypeA, want{0, []string{"both. CNAME both.a.test.", "both.a.test. A 192.0.2.11"}}},
		"T1: both families of one host, AAAA":     {two, "both.", dns.TypeAAAA, want{0, []string{"both. CNAME both.a.test.", "both.a.test. AAAA 2001:db8::11"}}},
		"T1: an empty non-terminal hides no host": {two, "ent.", dns.TypeA, want{0, []string{"ent. CNAME ent.b.test.", "ent.b.test. A 192.0.2.25"}}},
		"T1: and its AAAA is that host's":         {two, "ent.", dns.TypeAAAA, want{0, nil}},
		"T1: a TXT record makes no host":          {two, "txtonly.", dns.TypeA, want{0, []string{"txtonly. CNAME txtonly.b.test.", "txtonly.b.test. A 192.0.2.22"}}},
		"T1: the TXT record is found":             {two, "txtonly.", dns.TypeTXT, want{0, []string{`txtonly. CNAME txtonly.a.test.`, `txtonly.a.test. TXT "here"`}}},
		"a dangling alias hides no host":          {two, "dangle.", dns.TypeA, want{0, []string{"dangle. CNAME dangle.b.test.", "dangle.b.test. A 192.0.2.24"}}},
		"T3: past SERVFAIL":                       {[]string{"a.test.", "sf.test.", "b.test."}, "bonly.", dns.TypeA, want{0, []string{"bonly. CNAME bonly.b.test.", "bonly.b.test. A 192.0.2.23"}}},
		"T3: AAAA past SERVFAIL":                  {[]string{"a.test.", "sf.test.", "b.test."}, "bonly.", dns.TypeAAAA, want{0, nil}},
		"T3: past REFUSED":                        {[]string{"a.test.", "refused.test.", "b.test."}, "bonly.", dns.TypeA, want{0, []string{"bonly. CNAME bonly.b.test.", "bonly.b.test. A 192.0.2.23"}}},
		"T3: past an error":                       {[]string{"a.test.", "fail.test.", "b.test."}, "bonly.", dns.TypeA, want{0, []string{"bonly. CNAME bonly.b.test.", "bonly.b.test. A 192.0.2.23"}}},
		"T3: no such name, past SERVFAIL":         {[]string{"a.test.", "sf.test.", "b.test."}, "nope.", dns.TypeA, want{dns.RcodeServerFailure, nil}},
		"T3: no such name, past REFUSED":          {[]string{"a.test.", "refused.test.", "b.test."}, "nope.", dns.TypeA, want{dns.RcodeServerFailure, nil}},
		"T3: no such name, past an error":         {[]string{"fail.test.", "b.test."}, "nope.", dns.TypeA, want{dns.RcodeServerFailure, nil}},
		"refused by all":                          {[]string{"refused.test."}, "nope.", dns.TypeA, want{dns.RcodeRefused, nil}},
		"T4: no such name":                        {two, "nope.", dns.TypeA, want{dns.RcodeNameError, nil}},
		"T4: the same for the other family":       {two, "nope.", dns.TypeAAAA, want{dns.RcodeNameError, nil}},
		"T8: a name too long for one suffix": {
			[]string{strings.Repeat(strings.Repeat("x", 62)+".", 3) + "a.test.", "b.test."},
			longLabel + ".", dns.TypeA,
			want{0, []string{longLabel + ". CNAME " + longLabel + ".b.test.", longLabel + ".b.test. A 192.0.2.26"}},
		},
		"T9: the case of the question": {two, "BoNlY.", dns.TypeA, want{0, []string{"BoNlY. CNAME bonly.b.test.", "bonly.b.test. A 192.0.2.23"}}},
		"T9: an alias across suffixes": {two, "chain.", dns.TypeA, want{0, []string{"chain. CNAME chain.a.test.", "chain.a.test. CNAME v4only.b.test.", "v4only.b.test. A 192.0.2.20"}}},
		"T9: an alias of an alias":     {two, "chain2.", dns.TypeAAAA, want{0, []string{"chain2. CNAME chain2.a.test.", "chain2.a.test. CNAME mid.a.test.", "mid.a.test. CNAME both.a.test.", "both.a.test. AAAA 2001:db8::11"}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			m := serve(t, newTestPlugin(newZones(t), 1, tc.list...), query(tc.ask, tc.qtype))
			if m.Rcode != tc.want.rcode || !slices.Equal(short(m.Answer), tc.want.answer) {
				t.Errorf("rcode %d, answer %q; want %d, %q", m.Rcode, short(m.Answer), tc.want.rcode, tc.want.answer)
			}
			if m.Question[0].Name != tc.ask || !m.RecursionAvailable || m.Authoritative || m.AuthenticatedData {
				t.Errorf("question %q, flags %v; want %q, RA, no AA, no AD", m.Question[0].Name, m.MsgHdr, tc.ask)
			}
		})
	}
}

func TestTTLsOfTheRows(t *testing.T) {
	tests := map[string]struct {
		list []string
		ask  string
		want uint32 // of the alias, or of the SOA
	}{
		"the record's own":             {[]string{"b.test."}, "bonly.", 300},
		"T1: the denial of a.test":     {[]string{"a.test.", "b.test."}, "bonly.", 30},
		"T3: past a failure":           {[]string{"sf.test.", "b.test."}, "bonly.", 5},
		"T4: the lower of two denials": {[]string{"a.test.", "b.test."}, "nope.", 20},
		"T4: never the root's day":     {[]string{"none.example."}, "nope.", 30},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			m := serve(t, newTestPlugin(newZones(t), 1, tc.list...), query(tc.ask, dns.TypeA))
			rr := append(m.Answer, m.Ns...)[0]
			if got := rr.Header().Ttl; got != tc.want {
				t.Errorf("TTL of %v, want %d", rr, tc.want)
			}
			if soa, ok := rr.(*dns.SOA); ok && (soa.Hdr.Name != root || soa.Minttl != tc.want || len(m.Ns) != 1) {
				t.Errorf("authority = %v, want one SOA of the root with minimum %d", m.Ns, tc.want)
			}
		})
	}
}

func TestWhatMustNotLeave(t *testing.T) {
	tests := map[string]struct {
		ndots int
		ask   string
		qtype uint16
		want  []string // what the rest of the chain is asked
	}{
		"T5: a bare name":                {1, "nosuchbare.", dns.TypeA, []string{"nosuchbare.a.test. A", "nosuchbare.b.test. A"}},
		"T5: wpad":                       {1, "wpad.", dns.TypeA, nil},
		"T5: isatap":                     {1, "IsATap.", dns.TypeAAAA, nil},
		"T5: the keys of a zone":         {1, "org.", dns.TypeDNSKEY, []string{"org. DNSKEY"}},
		"T5: the servers of a zone":      {1, "com.", dns.TypeNS, []string{"com. NS"}},
		"T5: localhost":                  {1, "localhost.", dns.TypeA, []string{"localhost. A"}},
		"T5: a reverse name":             {5, "1.2.0.192.in-addr.arpa.", dns.TypePTR, []string{"1.2.0.192.in-addr.arpa. PTR"}},
		"T5: NAT64 discovery":            {5, "ipv4only.arpa.", dns.TypeAAAA, []string{"ipv4only.arpa. AAAA"}},
		"T5: resolver discovery":         {5, "_dns.resolver.arpa.", dns.TypeSVCB, []string{"_dns.resolver.arpa. SVCB"}},
		"T5: multicast DNS":              {5, "printer.local.", dns.TypeA, []string{"printer.local. A"}},
		"T5: an address":                 {5, "1.2.3.4.", dns.TypeA, []string{"1.2.3.4. A"}},
		"a name under a suffix":          {5, "nope.A.test.", dns.TypeA, []string{"nope.A.test. A"}},
		"a dotted name, last as it is":   {5, "ext.example.", dns.TypeA, []string{"ext.example.a.test. A", "ext.example.b.test. A", "ext.example. A"}},
		"a name with enough dots":        {2, "www.ext.example.", dns.TypeA, []string{"www.ext.example. A"}},
		"a sibling, where there is none": {1, "txtonly.", dns.TypeAAAA, []string{"txtonly.a.test. AAAA", "txtonly.a.test. A", "txtonly.b.test. AAAA", "txtonly.b.test. A"}},
		"a hit ends the walk":            {1, "both.", dns.TypeA, []string{"both.a.test. A"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // where no candidate is late because the machine is busy
				z := newZones(t)
				m := serve(t, newTestPlugin(z, tc.ndots, "a.test.", "b.test."), query(tc.ask, tc.qtype))
				if got := z.questions(); !slices.Equal(got, tc.want) {
					t.Errorf("asked %q, want %q", got, tc.want)
				}
				if tc.want == nil && m.Rcode != dns.RcodeNameError {
					t.Errorf("rcode = %d, want NXDOMAIN", m.Rcode)
				}
			})
		})
	}
}

func TestAListOfAHundred(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := newZones(t)
		z.add(t, "d99.example.", 60, "db01 A 192.0.2.7")
		m := serve(t, newTestPlugin(z, 1, longList(100)...), query("db01.", dns.TypeA))
		if want := []string{"db01. CNAME db01.d99.example.", "db01.d99.example. A 192.0.2.7"}; !slices.Equal(short(m.Answer), want) {
			t.Errorf("answer = %q, want %q", short(m.Answer), want)
		}
		asked := z.questions()
		for i, q := range asked {
			if want := fmt.Sprintf("db01.d%d.example. A", i); q != want {
				t.Errorf("question %d = %q, want %q", i, q, want)
			}
		}
		if len(asked) != 100 {
			t.Errorf("%d questions, want 100", len(asked))
		}
	})
}

func TestAnAnswerTooBigForTheClientIsTruncated(t *testing.T) {
	m := serve(t, newTestPlugin(newZones(t), 1, "a.test.", "b.test."), query("big.", dns.TypeA))
	if !m.Truncated || len(m.Answer) == 0 || m.Answer[0].Header().Rrtype != dns.TypeCNAME || m.Len() > dns.MinMsgSize {
		t.Errorf("TC %v, %d records in %d octets, want TC and the alias first in 512", m.Truncated, len(m.Answer), m.Len())
	}
}

func TestAnAnswerTruncatedBelowIsPassedOnAsSuch(t *testing.T) {
	s := newTestPlugin(handler(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		m := new(dns.Msg).SetReply(r)
		m.Truncated = true
		return m.Rcode, w.WriteMsg(m)
	}), 1, "a.test.", "b.test.")
	if m := serve(t, s, query("db01.", dns.TypeA)); !m.Truncated || m.Rcode != dns.RcodeSuccess {
		t.Errorf("reply = %v, want NOERROR with TC", m)
	}
}

func TestASilentSuffix(t *testing.T) {
	tests := map[string]struct {
		ask     string
		rcode   int
		elapsed time.Duration
		ede     uint16
	}{
		"the name is behind it": {"bonly.", dns.RcodeSuccess, 250 * time.Millisecond, 0},
		"the name is nowhere":   {"nope.", dns.RcodeServerFailure, time.Second, dns.ExtendedErrorCodeNoReachableAuthority},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				defer untilAllHaveEnded()
				r := query(tc.ask, dns.TypeA)
				r.SetEdns0(1232, false)
				start := time.Now()
				m := serve(t, newTestPlugin(newZones(t), 1, "a.test.", "slow.test.", "b.test."), r)
				if elapsed := time.Since(start); elapsed != tc.elapsed || m.Rcode != tc.rcode {
					t.Errorf("rcode %d after %v, want %d after %v", m.Rcode, elapsed, tc.rcode, tc.elapsed)
				}
				for _, o := range m.IsEdns0().Option {
					if ede, ok := o.(*dns.EDNS0_EDE); !ok || ede.InfoCode != tc.ede || !strings.Contains(ede.ExtraText, "slow.test.") {
						t.Errorf("option = %v, want EDE %d that names slow.test.", o, tc.ede)
					}
				}
				if want := min(tc.rcode, 1); min(len(m.IsEdns0().Option), 1) != want {
					t.Errorf("%d options, want %d", len(m.IsEdns0().Option), want)
				}
			})
		})
	}
}

func TestADroppedCandidateEndsTheWalkWithoutAReply(t *testing.T) {
	z := newZones(t)
	s := newTestPlugin(z, 1, "a.test.", "drop.test.", "b.test.")
	if m := serve(t, s, query("bonly.", dns.TypeA)); m != nil {
		t.Errorf("reply = %v, want none", m)
	}
	if got := z.questions(); len(got) != 2 {
		t.Errorf("asked %q, want two questions", got)
	}
}

func TestNestedQuestionsPass(t *testing.T) {
	tests := map[string]struct {
		ctx    func(context.Context) context.Context
		expand bool
	}{
		"a client's":               {func(ctx context.Context) context.Context { return context.WithValue(ctx, dnsserver.LoopKey{}, 0) }, true},
		"one that dns64 repeats":   {func(ctx context.Context) context.Context { return ctx }, true},
		"the target of an alias":   {func(ctx context.Context) context.Context { return context.WithValue(ctx, dnsserver.LoopKey{}, 1) }, false},
		"part of one of our walks": {withMark, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			z := newZones(t)
			s := newTestPlugin(z, 1, "a.test.")
			if _, err := s.ServeDNS(tc.ctx(t.Context()), &recorder{}, query("both.", dns.TypeA)); err != nil {
				t.Fatal(err)
			}
			want := "both. A"
			if tc.expand {
				want = "both.a.test. A"
			}
			if got := z.questions(); !slices.Equal(got, []string{want}) {
				t.Errorf("asked %q, want %q", got, want)
			}
		})
	}
}

func TestWhatWeAskIsMarkedAsNested(t *testing.T) {
	marked := false
	s := newTestPlugin(handler(func(ctx context.Context, _ dns.ResponseWriter, _ *dns.Msg) (int, error) {
		marked = nested(ctx)
		return dns.RcodeServerFailure, nil
	}), 1, "a.test.")
	serve(t, s, query("db01.", dns.TypeA))
	if !marked {
		t.Error("a look-up of a plugin below would be expanded once more")
	}
}

func TestAPassedQueryIsNotTouched(t *testing.T) {
	type key struct{}
	ctx := context.WithValue(t.Context(), key{}, "x")
	w, r := &recorder{}, query("www.example.org.", dns.TypeA)
	before := r.String()
	errBelow := errors.New("below")
	s := newTestPlugin(handler(func(gotCtx context.Context, gotW dns.ResponseWriter, gotR *dns.Msg) (int, error) {
		if gotCtx != ctx || gotR != r || r.String() != before {
			t.Error("the next plugin got another context or another request")
		}
		return dns.RcodeNotAuth, errors.Join(errBelow, gotW.WriteMsg(gotR))
	}), 1, "a.test.")
	rcode, err := s.ServeDNS(ctx, w, r)
	if rcode != dns.RcodeNotAuth || !errors.Is(err, errBelow) || len(w.replies) != 1 {
		t.Errorf("ServeDNS = %d, %v with %d replies, want what is below", rcode, err, len(w.replies))
	}
}

func TestAFullHouseAnswersAtOnce(t *testing.T) {
	s := newTestPlugin(newZones(t), 1, "a.test.")
	s.limit = &limit{max: 0}
	r := query("both.", dns.TypeA)
	r.SetEdns0(1232, false)
	m := serve(t, s, r)
	ede, ok := m.IsEdns0().Option[0].(*dns.EDNS0_EDE)
	if m.Rcode != dns.RcodeServerFailure || !ok || !strings.Contains(ede.ExtraText, errOverload.Error()) {
		t.Errorf("reply = %v, want SERVFAIL that says why", m)
	}
}

func TestAClientThatIsGoneGetsNoReply(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := &recorder{}
	rcode, err := newTestPlugin(newZones(t), 1, "a.test.").ServeDNS(ctx, w, query("both.", dns.TypeA))
	if rcode != dns.RcodeServerFailure || !errors.Is(err, context.Canceled) || len(w.replies) != 0 {
		t.Errorf("ServeDNS = %d, %v with %d replies, want SERVFAIL, %v and none", rcode, err, len(w.replies), context.Canceled)
	}
}

// deaf is a client whose connection is broken.
type deaf struct{ test.ResponseWriter }

var errDeaf = errors.New("broken pipe")

func (*deaf) WriteMsg(*dns.Msg) error { return errDeaf }

func TestAReplyThatCannotBeWrittenIsAnError(t *testing.T) {
	rcode, err := newTestPlugin(newZones(t), 1, "a.test.").ServeDNS(t.Context(), &deaf{}, query("both.", dns.TypeA))
	if rcode != dns.RcodeServerFailure || !errors.Is(err, errDeaf) {
		t.Errorf("ServeDNS = %d, %v, want SERVFAIL and %v", rcode, err, errDeaf)
	}
}

func TestWithoutANextPluginASuffixIsUndecided(t *testing.T) {
	if m := serve(t, newTestPlugin(nil, 1, "a.test."), query("both.", dns.TypeA)); m.Rcode != dns.RcodeServerFailure {
		t.Errorf("rcode = %d, want SERVFAIL", m.Rcode)
	}
}

func TestMetadataAndMetricsOfAQuery(t *testing.T) {
	tests := map[string]struct {
		ask      string
		metadata map[string]string // "" means not set
		result   result            // "" means not counted
		verdicts map[verdict]float64
	}{
		"found": {
			"bonly.",
			map[string]string{labelName: "bonly.b.test.", labelSuffix: "b.test.", labelResult: "answer", "test/upstream": "of bonly.b.test."},
			resultAnswer,
			map[verdict]float64{nxDomain: 1, answered: 1},
		},
		"not found": {
			"nope.",
			map[string]string{labelName: "", labelSuffix: "", labelResult: "nxdomain", "test/upstream": ""},
			resultNXDomain,
			map[verdict]float64{nxDomain: 2},
		},
		"owned": {
			"v6only.",
			map[string]string{labelName: "v6only.a.test.", labelSuffix: "a.test.", labelResult: "nodata"},
			resultNoData,
			map[verdict]float64{owned: 1},
		},
		"blocked":   {"wpad.", map[string]string{labelName: "", labelResult: "blocked"}, resultBlocked, nil},
		"passed on": {"bonly.b.test.", map[string]string{labelName: "", labelResult: "", "test/upstream": "of bonly.b.test."}, "", nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			z := newZones(t)
			z.add(t, "a.test.", 60, "v6only AAAA 2001:db8::14")
			s := newTestPlugin(handler(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
				qname := r.Question[0].Name
				metadata.SetValueFunc(ctx, "test/upstream", func() string { return "of " + qname })
				return z.ServeDNS(ctx, w, r)
			}), 1, "a.test.", "b.test.")
			requestCount.Reset()
			candidateCount.Reset()

			ctx := metadata.ContextWithMetadata(t.Context())
			if _, err := s.ServeDNS(ctx, &recorder{}, query(tc.ask, dns.TypeA)); err != nil {
				t.Fatal(err)
			}
			checkMetadata(ctx, t, tc.metadata)
			for v, want := range tc.verdicts {
				if got := testutil.ToFloat64(candidateCount.WithLabelValues("", v.String())); got != want {
					t.Errorf("candidates with verdict %s = %v, want %v", v, got, want)
				}
			}
			if got, want := testutil.CollectAndCount(requestCount), min(len(tc.result), 1); got != want {
				t.Fatalf("series of requests = %d, want %d", got, want)
			}
			if tc.result != "" {
				if got := testutil.ToFloat64(requestCount.WithLabelValues("", string(tc.result))); got != 1 {
					t.Errorf("requests with result %s = %v, want 1", tc.result, got)
				}
			}
		})
	}
}

func checkMetadata(ctx context.Context, t *testing.T, want map[string]string) {
	t.Helper()
	for label, value := range want {
		got := ""
		if f := metadata.ValueFunc(ctx, label); f != nil {
			got = f()
		}
		if got != value {
			t.Errorf("metadata %s = %q, want %q", label, got, value)
		}
	}
}

// short returns owner, type and data of each record.
func short(rrs []dns.RR) []string {
	var out []string
	for _, line := range records(rrs) {
		f := strings.SplitN(line, " ", 4)
		out = append(out, f[0]+" "+f[3])
	}
	return out
}
