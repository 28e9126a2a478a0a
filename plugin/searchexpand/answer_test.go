package searchexpand

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

const sigA = "RRSIG A 13 3 300 20300101000000 20200101000000 1 b.test. AAAA"

// asDefault is what replies look like unless the operator says otherwise.
var asDefault = newConfig().form

// won is the conclusion of a walk that found m under b.test.
func won(m *dns.Msg, name string) conclusion {
	return conclusion{
		result: resultAnswer,
		ttl:    math.MaxUint32,
		last:   finding{candidate: tried(name, "b.test."), outcome: outcome{msg: m}, verdict: answered},
	}
}

func TestThePositiveAnswer(t *testing.T) {
	tests := map[string]struct {
		asked  string
		qtype  uint16
		do     bool
		found  string
		below  []string
		answer []string
	}{
		"an alias, then the address": {
			"db01.", dns.TypeA, false, "db01.b.test.",
			[]string{host},
			[]string{"db01. 300 IN CNAME db01.b.test.", host},
		},
		"the asked name keeps its case": {
			"Db01.", dns.TypeA, false, "Db01.b.test.",
			[]string{"Db01.b.test. 300 IN A 192.0.2.1"},
			[]string{"Db01. 300 IN CNAME Db01.b.test.", "Db01.b.test. 300 IN A 192.0.2.1"},
		},
		// glibc wants an alias to lead to the owner of the next record in any case;
		// others compare octets, so the alias is spelled as that owner is.
		"the owner below is in other case": {
			"Db01.", dns.TypeA, false, "Db01.b.test.",
			[]string{"db01.B.test. 300 IN A 192.0.2.1"},
			[]string{"Db01. 300 IN CNAME db01.B.test.", "db01.B.test. 300 IN A 192.0.2.1"},
		},
		"the alias lives as long as the shortest record": {
			"db01.", dns.TypeA, false, "db01.b.test.",
			[]string{host, "db01.b.test. 60 IN A 192.0.2.2"},
			[]string{"db01. 60 IN CNAME db01.b.test.", host, "db01.b.test. 60 IN A 192.0.2.2"},
		},
		"a chain of aliases, put in order, each once": {
			"www.", dns.TypeA, false, "www.b.test.",
			[]string{"y.test. 9 IN A 192.0.2.1", "x.test. 30 IN CNAME y.test.", "www.b.test. 60 IN CNAME x.test.", "www.b.test. 60 IN CNAME x.test."},
			[]string{"www. 9 IN CNAME www.b.test.", "www.b.test. 60 IN CNAME x.test.", "x.test. 30 IN CNAME y.test.", "y.test. 9 IN A 192.0.2.1"},
		},
		"a chain back to the name asked needs no alias": {
			"db01.", dns.TypeA, true, "db01.b.test.",
			[]string{"db01.b.test. 60 IN CNAME x.test.", "x.test. 60 IN CNAME DB01.", "x.test. 60 IN RRSIG CNAME 13 1 60 20300101000000 20200101000000 1 test. AAAA", "DB01. 300 IN A 192.0.2.1"},
			[]string{"DB01. 300 IN A 192.0.2.1"},
		},
		"nor does one that goes on from there": {
			"db01.", dns.TypeA, false, "db01.b.test.",
			[]string{"db01.b.test. 60 IN CNAME db01.", "db01. 60 IN CNAME y.test.", "y.test. 300 IN A 192.0.2.1"},
			[]string{"db01. 60 IN CNAME y.test.", "y.test. 300 IN A 192.0.2.1"},
		},
		"what does not belong to the chain is left out": {
			"db01.", dns.TypeA, false, "db01.b.test.",
			[]string{host, "other.test. 1 IN A 192.0.2.9", "db01.b.test. 1 IN AAAA 2001:db8::1", "@b.test. 1 IN NS ns.b.test."},
			[]string{"db01. 300 IN CNAME db01.b.test.", host},
		},
		"signatures stay for who asked for them": {
			"db01.", dns.TypeA, true, "db01.b.test.",
			[]string{"db01.b.test. 300 IN " + sigA, host},
			[]string{"db01. 300 IN CNAME db01.b.test.", host, "db01.b.test. 300 IN RRSIG A 13 3 300 20300101000000 20200101000000 1 b.test. AAAA"},
		},
		"signatures of an alias stay beside it": {
			"www.", dns.TypeA, true, "www.b.test.",
			[]string{"x.test. 9 IN A 192.0.2.1", "www.b.test. 60 IN CNAME x.test.", "www.b.test. 60 IN RRSIG CNAME 13 3 60 20300101000000 20200101000000 1 b.test. AAAA"},
			[]string{"www. 9 IN CNAME www.b.test.", "www.b.test. 60 IN CNAME x.test.", "www.b.test. 60 IN RRSIG CNAME 13 3 60 20300101000000 20200101000000 1 b.test. AAAA", "x.test. 9 IN A 192.0.2.1"},
		},
		"signatures go for who did not": {
			"db01.", dns.TypeA, false, "db01.b.test.",
			[]string{"db01.b.test. 300 IN " + sigA, host},
			[]string{"db01. 300 IN CNAME db01.b.test.", host},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			req := query(tc.asked, tc.qtype)
			if tc.do {
				req.SetEdns0(1232, true)
			}
			m := asDefault.reply(req, won(msg(t, dns.RcodeSuccess, tc.below...), tc.found))
			if got := records(m.Answer); !slices.Equal(got, tc.answer) {
				t.Errorf("answer:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(tc.answer, "\n"))
			}
			if m.Question[0] != req.Question[0] || len(m.Ns) != 0 || m.Rcode != dns.RcodeSuccess {
				t.Errorf("question %v, rcode %d, authority %v; want %v, 0 and none", m.Question[0], m.Rcode, m.Ns, req.Question[0])
			}
		})
	}
}

func TestTheAliasLivesNoLongerThanWhatWasPassedOver(t *testing.T) {
	tests := map[string]struct{ limit, want uint32 }{
		"nothing was passed over":             {math.MaxUint32, 300},
		"a denial that holds as long":         {300, 300},
		"a denial that holds one second less": {299, 299},
		"a denial that does not hold":         {0, 0},
		"a suffix failed":                     {degradedTTL, 5},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := won(msg(t, 0, host), "db01.b.test.")
			c.ttl = tc.limit
			m := asDefault.reply(query("db01.", dns.TypeA), c)
			if got := m.Answer[0].Header().Ttl; got != tc.want {
				t.Errorf("TTL of the alias = %d, want %d", got, tc.want)
			}
			if got := m.Answer[1].Header().Ttl; got != 300 {
				t.Errorf("TTL of the record = %d, want its own, 300", got)
			}
		})
	}
}

func TestNothingFoundIsKeptLongerThanMaxTTL(t *testing.T) {
	tests := map[string]struct {
		max  uint32
		want []string
	}{
		"more than the records": {301, []string{"_sip._tcp. 60 IN CNAME _sip._tcp.b.test.", "_sip._tcp.b.test. 60 IN SRV 0 5 5060 db01.b.test.", host}},
		"as much":               {300, []string{"_sip._tcp. 60 IN CNAME _sip._tcp.b.test.", "_sip._tcp.b.test. 60 IN SRV 0 5 5060 db01.b.test.", host}},
		"less than one":         {299, []string{"_sip._tcp. 60 IN CNAME _sip._tcp.b.test.", "_sip._tcp.b.test. 60 IN SRV 0 5 5060 db01.b.test.", "db01.b.test. 299 IN A 192.0.2.1"}},
		"less than all":         {59, []string{"_sip._tcp. 59 IN CNAME _sip._tcp.b.test.", "_sip._tcp.b.test. 59 IN SRV 0 5 5060 db01.b.test.", "db01.b.test. 59 IN A 192.0.2.1"}},
		"not to be kept":        {0, []string{"_sip._tcp. 0 IN CNAME _sip._tcp.b.test.", "_sip._tcp.b.test. 0 IN SRV 0 5 5060 db01.b.test.", "db01.b.test. 0 IN A 192.0.2.1"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			below := msg(t, 0, "_sip._tcp.b.test. 60 IN SRV 0 5 5060 db01.b.test.")
			below.Extra = msg(t, 0, host).Answer
			before := below.String()
			f := asDefault
			f.maxTTL = tc.max
			m := f.reply(query("_sip._tcp.", dns.TypeSRV), won(below, "_sip._tcp.b.test."))
			if got := records(append(m.Answer, m.Extra...)); !slices.Equal(got, tc.want) {
				t.Errorf("answer and additional:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
			}
			if below.String() != before {
				t.Error("the message below changed")
			}
		})
	}
}

func TestNoDenialIsKeptLongerThanNegTTL(t *testing.T) {
	tests := map[string]struct {
		neg  uint32
		c    conclusion
		want uint32
	}{
		"the zones say less":    {300, conclusion{result: resultNXDomain, ttl: 299}, 299},
		"the zones say as much": {300, conclusion{result: resultNXDomain, ttl: 300}, 300},
		"the zones say more":    {300, conclusion{result: resultNoData, ttl: 301}, 300},
		"not to be kept":        {0, conclusion{result: resultNoData, ttl: 30}, 0},
		"a blocked name":        {300, blocked(), 300},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := asDefault
			f.negTTL = tc.neg
			m := f.reply(query("db01.", dns.TypeA), tc.c)
			if soa, ok := m.Ns[0].(*dns.SOA); !ok || soa.Hdr.Ttl != tc.want || soa.Minttl != tc.want {
				t.Errorf("authority = %v, want TTL and minimum %d", m.Ns[0], tc.want)
			}
		})
	}
}

func TestHeaderOfTheReply(t *testing.T) {
	below := msg(t, 0, host)
	below.Authoritative, below.AuthenticatedData, below.RecursionAvailable, below.Zero = true, true, false, true
	req := query("db01.", dns.TypeA)
	req.AuthenticatedData = true
	m := asDefault.reply(req, won(below, "db01.b.test."))
	want := dns.MsgHdr{Id: req.Id, Response: true, RecursionDesired: true, RecursionAvailable: true}
	if m.MsgHdr != want {
		t.Errorf("header = %+v, want %+v", m.MsgHdr, want)
	}
}

func TestTheNameAsItIsNeedsNoAlias(t *testing.T) {
	c := won(msg(t, 0, "db01. 300 IN A 192.0.2.1"), "db01.")
	c.last.candidate = tried("db01.", root)
	got := records(asDefault.reply(query("db01.", dns.TypeA), c).Answer)
	if want := []string{"db01. 300 IN A 192.0.2.1"}; !slices.Equal(got, want) {
		t.Errorf("answer = %q, want %q", got, want)
	}
}

func TestTheNameAsItIsPastAFailureIsNotKeptForLong(t *testing.T) {
	asked := newFinding(tried("db01.lab.", root), outcome{msg: msg(t, 0, "db01.lab. 300 IN CNAME x.test.", "x.test. 3 IN A 192.0.2.1")}, dns.TypeA)
	back := newFinding(tried("db01.lab.b.test.", "b.test."), outcome{msg: msg(t, 0, "db01.lab.b.test. 300 IN CNAME db01.lab.", "db01.lab. 300 IN A 192.0.2.1")}, dns.TypeA)
	failure := newFinding(tried("db01.lab.a.test.", "a.test."), outcome{msg: msg(t, dns.RcodeServerFailure)}, dns.TypeA)
	denial := newFinding(tried("db01.lab.a.test.", "a.test."), outcome{msg: msg(t, dns.RcodeNameError, soaMin7)}, dns.TypeA)
	tests := map[string]struct {
		findings []finding
		want     []string
	}{
		"past a failure":                 {[]finding{failure, asked}, []string{"db01.lab. 5 IN CNAME x.test.", "x.test. 3 IN A 192.0.2.1"}},
		"an alias to it, past a failure": {[]finding{failure, back}, []string{"db01.lab. 5 IN A 192.0.2.1"}},
		"past a denial":                  {[]finding{denial, asked}, []string{"db01.lab. 300 IN CNAME x.test.", "x.test. 3 IN A 192.0.2.1"}},
		"past nothing":                   {[]finding{asked}, []string{"db01.lab. 300 IN CNAME x.test.", "x.test. 3 IN A 192.0.2.1"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := records(asDefault.reply(query("db01.lab.", dns.TypeA), conclude(tc.findings)).Answer)
			if !slices.Equal(got, tc.want) {
				t.Errorf("answer = %q, want %q", got, tc.want)
			}
		})
	}
}

func TestATruncatedAnswerStaysTruncated(t *testing.T) {
	bad := msg(t, 0, host)
	bad.Answer[0].(*dns.A).A = []byte{1}
	for name, below := range map[string]*dns.Msg{
		"with what no message can hold": bad,
		"with what fitted":              msg(t, 0, host),
		"empty":                         msg(t, 0),
		"cut where it leads back to the name asked": msg(t, 0, "db01.b.test. 60 IN CNAME db01."),
	} {
		t.Run(name, func(t *testing.T) {
			below.Truncated = true
			c := won(below, "db01.b.test.")
			c.result = resultTruncated
			m := asDefault.reply(query("db01.", dns.TypeA), c)
			if !m.Truncated || len(m.Answer) == 1 {
				t.Errorf("TC = %v with %q, want it set and no alias without a target", m.Truncated, records(m.Answer))
			}
		})
	}
}

func TestAdditionalRecordsAreKeptWhereTheySpareAQuestion(t *testing.T) {
	srv := "_sip._tcp.b.test. 300 IN SRV 0 5 5060 db01.b.test."
	bad := &dns.A{Hdr: dns.RR_Header{Name: "a..b.", Rrtype: dns.TypeA, Class: dns.ClassINET}} // no message can hold it
	extra := func(t *testing.T) []dns.RR {
		m := msg(t, 0, host, "db01.b.test. 300 IN "+sigA, "b.test. 300 IN TXT x")
		m.SetEdns0(4096, true)
		return append(append([]dns.RR{nil, bad}, m.Answer...), m.Extra...)
	}
	tests := map[string]struct {
		qtype uint16
		do    bool
		want  int
	}{
		"SRV":         {dns.TypeSRV, false, 1},
		"SRV with DO": {dns.TypeSRV, true, 2},
		"MX":          {dns.TypeMX, false, 1},
		"SVCB":        {dns.TypeSVCB, false, 1},
		"HTTPS":       {dns.TypeHTTPS, false, 1},
		"NAPTR":       {dns.TypeNAPTR, false, 1},
		"not for A":   {dns.TypeA, false, 0},
		"nor for TXT": {dns.TypeTXT, true, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			below := msg(t, 0, srv)
			below.Answer[0].Header().Rrtype = tc.qtype
			below.Extra = extra(t)
			req := query("_sip._tcp.", tc.qtype)
			if tc.do {
				req.SetEdns0(1232, true)
			}
			if got := asDefault.reply(req, won(below, "_sip._tcp.b.test.")).Extra; len(got) != tc.want {
				t.Errorf("additional = %q, want %d records", records(got), tc.want)
			}
		})
	}
}

func TestTheNegativeAnswer(t *testing.T) {
	tests := map[string]struct {
		c   conclusion
		ttl uint32
	}{
		"NXDOMAIN for less than our bound": {conclusion{result: resultNXDomain, rcode: dns.RcodeNameError, ttl: 29}, 29},
		"NXDOMAIN for as long":             {conclusion{result: resultNXDomain, rcode: dns.RcodeNameError, ttl: 30}, 30},
		"NXDOMAIN for longer":              {conclusion{result: resultNXDomain, rcode: dns.RcodeNameError, ttl: 31}, 30},
		"NODATA":                           {conclusion{result: resultNoData, ttl: 20}, 20},
		"a blocked name":                   {blocked(), 30},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			m := asDefault.reply(query("db01.", dns.TypeA), tc.c)
			if len(m.Ns) != 1 || len(m.Answer) != 0 || len(m.Extra) != 0 {
				t.Fatalf("reply = %v, want one authority record and no other", m)
			}
			soa, ok := m.Ns[0].(*dns.SOA)
			if !ok || soa.Hdr.Name != root || soa.Hdr.Ttl != tc.ttl || soa.Minttl != tc.ttl {
				t.Errorf("authority = %v, want an SOA of the root with TTL and minimum %d", m.Ns[0], tc.ttl)
			}
			if m.Rcode != tc.c.rcode || m.Authoritative || !m.RecursionAvailable {
				t.Errorf("rcode %d, AA %v, RA %v; want %d, false, true", m.Rcode, m.Authoritative, m.RecursionAvailable, tc.c.rcode)
			}
		})
	}
}

func TestTheMessageBelowIsNotTouched(t *testing.T) {
	below := msg(t, 0, "www.b.test. 60 IN CNAME x.test.", "x.test. 9 IN A 192.0.2.1")
	before := below.String()
	m := asDefault.reply(query("www.", dns.TypeA), won(below, "www.b.test."))
	for _, rr := range m.Answer {
		rr.Header().Ttl, rr.Header().Name = 1, "changed."
	}
	if below.String() != before {
		t.Errorf("the message below became\n%s\nwas\n%s", below, before)
	}
}

func TestAChainThatNeverEndsIsNone(t *testing.T) {
	long := func(n int) []dns.RR {
		var rrs []dns.RR
		for i := range n {
			rrs = append(rrs, &dns.CNAME{
				Hdr:    dns.RR_Header{Name: strings.Repeat("a", i+1) + ".", Rrtype: dns.TypeCNAME, Class: dns.ClassINET},
				Target: strings.Repeat("a", i+2) + ".",
			})
		}
		return append(rrs, &dns.A{Hdr: dns.RR_Header{Name: strings.Repeat("a", n+1) + ".", Rrtype: dns.TypeA, Class: dns.ClassINET}})
	}
	loop := msg(t, 0, "a. 1 IN CNAME b.", "b. 1 IN CNAME A.").Answer
	tests := map[string]struct {
		answer []dns.RR
		found  bool
		want   int
	}{
		"one alias less than we follow": {long(maxAliases - 1), true, maxAliases},
		"as many aliases":               {long(maxAliases), false, 0},
		"a loop":                        {loop, false, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, found := chain(tc.answer, "a.", dns.TypeA)
			if found != tc.found || len(got) != tc.want {
				t.Errorf("chain = %d records, found %v; want %d, %v", len(got), found, tc.want, tc.found)
			}
		})
	}
}
