package searchexpand

import (
	"context"
	"errors"
	"testing"

	"github.com/miekg/dns"
)

// msg makes a message from below: an rcode and records in the answer section,
// or, if they begin with "@", in the authority section.
func msg(t testing.TB, rcode int, lines ...string) *dns.Msg {
	t.Helper()
	m := new(dns.Msg)
	m.Response = true
	m.Rcode = rcode
	for _, line := range lines {
		authority := line[0] == '@'
		if authority {
			line = line[1:]
		}
		rr, err := dns.NewRR(line)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if authority {
			m.Ns = append(m.Ns, rr)
		} else {
			m.Answer = append(m.Answer, rr)
		}
	}
	return m
}

const (
	soa20   = "@b.test. 20 IN SOA ns.b.test. root.b.test. 1 2 3 4 3600"
	soaMin7 = "@b.test. 3600 IN SOA ns.b.test. root.b.test. 1 2 3 4 7"
	host    = "db01.b.test. 300 IN A 192.0.2.1"
)

func TestJudge(t *testing.T) {
	truncatedMsg := msg(t, dns.RcodeSuccess)
	truncatedMsg.Truncated = true
	withNil := msg(t, dns.RcodeSuccess, host)
	withNil.Answer = []dns.RR{nil, withNil.Answer[0], nil}
	tooLong := msg(t, dns.RcodeSuccess, host)
	tooLong.Answer[0].(*dns.A).A = []byte{192, 0, 2, 1, 0}
	badTarget := msg(t, dns.RcodeSuccess, "db01.b.test. 9 IN CNAME x.test.")
	badTarget.Answer[0].(*dns.CNAME).Target = "a..b."
	badTarget.Answer = append(badTarget.Answer, &dns.A{Hdr: dns.RR_Header{Name: "a..b.", Rrtype: dns.TypeA, Class: dns.ClassINET}, A: []byte{192, 0, 2, 1}})

	tests := map[string]struct {
		o    outcome
		want verdict
	}{
		"records of the type":                      {outcome{msg: msg(t, 0, host)}, answered},
		"records of the type, owner in other case": {outcome{msg: msg(t, 0, "DB01.b.TEST. 300 IN A 192.0.2.1")}, answered},
		"an alias that leads to the type":          {outcome{msg: msg(t, 0, "db01.b.test. 9 IN CNAME x.test.", "x.test. 9 IN A 192.0.2.1")}, answered},
		"an alias that leads there, in disorder":   {outcome{msg: msg(t, 0, "x.test. 9 IN A 192.0.2.1", "db01.b.test. 9 IN CNAME x.test.")}, answered},
		"holes in the answer section":              {outcome{msg: withNil}, answered},
		"an address that is none":                  {outcome{msg: tooLong}, failed},
		"an alias of what is no name":              {outcome{msg: badTarget}, failed},
		"an answer, though an error came with it":  {outcome{msg: msg(t, 0, host), err: errors.New("late"), rcode: dns.RcodeServerFailure}, answered},
		"an alias that leads nowhere":              {outcome{msg: msg(t, 0, "db01.b.test. 9 IN CNAME x.test.")}, noData},
		"an alias that leads to itself":            {outcome{msg: msg(t, 0, "db01.b.test. 9 IN CNAME db01.b.test.")}, failed},
		"records of another name":                  {outcome{msg: msg(t, 0, "other.test. 300 IN A 192.0.2.1")}, failed},
		"records of another type":                  {outcome{msg: msg(t, 0, "db01.b.test. 300 IN AAAA 2001:db8::1")}, failed},
		"records of another class":                 {outcome{msg: msg(t, 0, "db01.b.test. 300 CH A 192.0.2.1")}, failed},
		"a signature alone":                        {outcome{msg: msg(t, 0, "db01.b.test. 300 IN RRSIG A 13 3 300 20300101000000 20200101000000 1 b.test. AAAA")}, failed},
		"no records, and an SOA":                   {outcome{msg: msg(t, 0, soa20)}, noData},
		"no records at all":                        {outcome{msg: msg(t, 0)}, noData},
		"a referral":                               {outcome{msg: msg(t, 0, "@b.test. 9 IN NS ns.b.test.")}, failed},
		"NS records beside an SOA":                 {outcome{msg: msg(t, 0, "@b.test. 9 IN NS ns.b.test.", soa20)}, noData},
		"truncated":                                {outcome{msg: truncatedMsg}, truncated},
		"NXDOMAIN":                                 {outcome{msg: msg(t, dns.RcodeNameError, soa20)}, nxDomain},
		"NXDOMAIN of an alias's target":            {outcome{msg: msg(t, dns.RcodeNameError, "db01.b.test. 9 IN CNAME x.test.")}, nxDomain},
		"SERVFAIL":                                 {outcome{msg: msg(t, dns.RcodeServerFailure)}, failed},
		"SERVFAIL with records":                    {outcome{msg: msg(t, dns.RcodeServerFailure, host)}, failed},
		"REFUSED":                                  {outcome{msg: msg(t, dns.RcodeRefused)}, failed},
		"an rcode above 15":                        {outcome{msg: msg(t, dns.RcodeBadCookie)}, failed},
		"SERVFAIL, unwritten":                      {outcome{rcode: dns.RcodeServerFailure}, failed},
		"REFUSED, unwritten":                       {outcome{rcode: dns.RcodeRefused}, failed},
		"FORMERR, unwritten":                       {outcome{rcode: dns.RcodeFormatError}, failed},
		"NOTIMP, unwritten":                        {outcome{rcode: dns.RcodeNotImplemented}, failed},
		"success, unwritten":                       {outcome{rcode: dns.RcodeSuccess}, dropped},
		"NXDOMAIN, unwritten":                      {outcome{rcode: dns.RcodeNameError}, dropped},
		"success, unwritten, with an error":        {outcome{rcode: dns.RcodeSuccess, err: errors.New("no route")}, failed},
		"no answer in time":                        {outcome{rcode: dns.RcodeServerFailure, err: errTimeout}, failed},
		"no room":                                  {outcome{rcode: dns.RcodeServerFailure, err: errOverload}, overloaded},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := judge(tc.o, "db01.b.test.", dns.TypeA); got != tc.want {
				t.Errorf("judge = %s, want %s", got, tc.want)
			}
		})
	}
}

func TestASiblingDecidesWhoseTheNameIs(t *testing.T) {
	c := tried("db01.b.test.", "b.test.")
	tests := map[string]struct {
		siblings []outcome
		want     verdict
		ttl      uint32
	}{
		"it exists":                             {[]outcome{{msg: msg(t, 0, host)}}, owned, 20},
		"it is truncated":                       {[]outcome{{msg: &dns.Msg{MsgHdr: dns.MsgHdr{Truncated: true}}}}, owned, 20},
		"it has no data either":                 {[]outcome{{msg: msg(t, 0, soaMin7)}}, noData, 7},
		"it does not exist":                     {[]outcome{{msg: msg(t, dns.RcodeNameError, soaMin7)}}, noData, 7},
		"it is undecided":                       {[]outcome{{msg: msg(t, dns.RcodeServerFailure)}}, failed, 20},
		"it is dropped":                         {[]outcome{{rcode: dns.RcodeSuccess}}, failed, 20},
		"it could not be asked":                 {[]outcome{{err: errOverload}}, overloaded, 20},
		"one is undecided, the other exists":    {[]outcome{{err: errTimeout}, {msg: msg(t, 0, host)}}, owned, 20},
		"one is undecided, the other not there": {[]outcome{{err: errTimeout}, {msg: msg(t, 0, soaMin7)}}, failed, 7},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFinding(c, outcome{msg: msg(t, 0, soa20)}, dns.TypeTXT)
			for _, o := range tc.siblings {
				f = f.withSibling(o, dns.TypeA)
			}
			if f.verdict != tc.want || f.ttl != tc.ttl {
				t.Errorf("verdict %s with TTL %d, want %s with %d", f.verdict, f.ttl, tc.want, tc.ttl)
			}
		})
	}
}

func TestSiblingsAreTheAddressesNotAskedFor(t *testing.T) {
	tests := map[uint16][]uint16{
		dns.TypeA:     {dns.TypeAAAA},
		dns.TypeAAAA:  {dns.TypeA},
		dns.TypeHTTPS: {dns.TypeA, dns.TypeAAAA},
		dns.TypeTXT:   {dns.TypeA, dns.TypeAAAA},
	}
	for qtype, want := range tests {
		got := siblings(qtype)
		if len(got) != len(want) || got[0] != want[0] || got[len(got)-1] != want[len(want)-1] {
			t.Errorf("siblings(%s) = %v, want %v", dns.Type(qtype), got, want)
		}
	}
}

func TestConclude(t *testing.T) {
	const no = 86400 // a denial that holds for a day
	servfail := finding{candidate: tried("db01.sf.test.", "sf.test."), outcome: outcome{msg: msg(t, dns.RcodeServerFailure)}}
	refused := finding{candidate: tried("db01.r.test.", "r.test."), outcome: outcome{msg: msg(t, dns.RcodeRefused)}}
	unwritten := finding{candidate: tried("db01.r.test.", "r.test."), outcome: outcome{rcode: dns.RcodeRefused}}
	silent := finding{candidate: tried("db01.s.test.", "s.test."), outcome: outcome{rcode: dns.RcodeServerFailure, err: errTimeout}}
	secret := finding{candidate: tried("db01.x.test.", "x.test."), outcome: outcome{err: errors.New("dial 10.0.0.1:53")}}
	odd := finding{candidate: tried("db01.o.test.", "o.test."), outcome: outcome{msg: msg(t, 0, "x.test. 1 IN A 192.0.2.1")}}
	of := func(v verdict, ttl uint32) finding { return finding{verdict: v, ttl: ttl} }

	tests := map[string]struct {
		findings []finding
		want     result
		rcode    int
		ttl      uint32 // 0: any
		ede      uint16
		reason   string
	}{
		"nothing to try":                            {nil, resultNXDomain, dns.RcodeNameError, 0, 0, ""},
		"found at once":                             {[]finding{of(answered, 0)}, resultAnswer, 0, 0, 0, ""},
		"found past denials":                        {[]finding{of(nxDomain, no), of(noData, 9), of(answered, 0)}, resultAnswer, 0, 9, 0, ""},
		"found past a failure":                      {[]finding{of(nxDomain, no), servfail, of(answered, 0)}, resultAnswer, 0, 5, 0, "sf.test.: SERVFAIL"},
		"found past a failure and a shorter denial": {[]finding{of(nxDomain, 3), servfail, of(answered, 0)}, resultAnswer, 0, 3, 0, "sf.test.: SERVFAIL"},
		"truncated":                                 {[]finding{of(nxDomain, no), of(truncated, 0)}, resultTruncated, 0, no, 0, ""},
		"owned":                                     {[]finding{of(nxDomain, no), of(owned, 20)}, resultNoData, 0, 20, 0, ""},
		"owned, past a failure":                     {[]finding{servfail, of(owned, 20)}, resultNoData, 0, 5, 0, "sf.test.: SERVFAIL"},
		"weak, and nothing else":                    {[]finding{of(weak, 60), of(nxDomain, 9)}, resultAnswer, 0, 9, 0, ""},
		"weak, and found":                           {[]finding{of(weak, 60), of(answered, 0)}, resultAnswer, 0, 60, 0, ""},
		"weak, and owned":                           {[]finding{of(weak, 60), of(owned, 20)}, resultNoData, 0, 20, 0, ""},
		"weak, and no data":                         {[]finding{of(noData, 9), of(weak, 60)}, resultAnswer, 0, 9, 0, ""},
		"weak, and a failure":                       {[]finding{of(weak, 60), servfail}, resultAnswer, 0, 5, 0, "sf.test.: SERVFAIL"},
		"denied by all":                             {[]finding{of(nxDomain, no), of(nxDomain, 20)}, resultNXDomain, dns.RcodeNameError, 20, 0, ""},
		"denied by all, one has another type":       {[]finding{of(noData, 20), of(nxDomain, no)}, resultNoData, 0, 20, 0, ""},
		"undecided by one, denied by the rest":      {[]finding{of(nxDomain, no), servfail, of(noData, no)}, resultServFail, dns.RcodeServerFailure, 0, 0, "sf.test.: SERVFAIL"},
		"silent":                                    {[]finding{of(nxDomain, no), silent}, resultServFail, dns.RcodeServerFailure, 0, 22, "s.test.: no answer in time"},
		"the first failure is the one told":         {[]finding{silent, servfail}, resultServFail, dns.RcodeServerFailure, 0, 22, "s.test.: no answer in time, and 1 more"},
		"the text of an error stays here":           {[]finding{secret}, resultServFail, dns.RcodeServerFailure, 0, 0, "x.test.: SERVFAIL"},
		"an answer to something else":               {[]finding{odd}, resultServFail, dns.RcodeServerFailure, 0, 0, "o.test.: the answer is of no use"},
		"refused by all":                            {[]finding{refused, unwritten}, resultRefused, dns.RcodeRefused, 0, 0, "r.test.: REFUSED, and 1 more"},
		"refused by one, denied by the other":       {[]finding{refused, of(nxDomain, no)}, resultServFail, dns.RcodeServerFailure, 0, 0, "r.test.: REFUSED"},
		"refused by one, undecided by the other":    {[]finding{refused, servfail}, resultServFail, dns.RcodeServerFailure, 0, 0, "r.test.: REFUSED, and 1 more"},
		"dropped, past a failure":                   {[]finding{servfail, of(dropped, 0)}, resultDropped, 0, 0, 0, "sf.test.: SERVFAIL"},
		"no room":                                   {[]finding{{candidate: tried("db01.a.test.", "a.test."), verdict: overloaded, outcome: outcome{err: errOverload}}}, resultOverload, dns.RcodeServerFailure, 0, 0, "a.test.: too many candidates are in flight"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := conclude(tc.findings)
			if c.result != tc.want || c.rcode != tc.rcode {
				t.Errorf("conclude = %s with rcode %d, want %s with %d", c.result, c.rcode, tc.want, tc.rcode)
			}
			if tc.ttl != 0 && c.ttl != tc.ttl {
				t.Errorf("TTL = %d, want %d", c.ttl, tc.ttl)
			}
			if c.ede != tc.ede || c.reason != tc.reason {
				t.Errorf("EDE = %d %q, want %d %q", c.ede, c.reason, tc.ede, tc.reason)
			}
		})
	}
}

func TestACancelledQueryReturnsWhatEndedIt(t *testing.T) {
	c := cancelled(context.Canceled)
	if !errors.Is(c.last.err, context.Canceled) || c.last.rcode != dns.RcodeServerFailure {
		t.Errorf("cancelled = %v with rcode %d, want %v with SERVFAIL", c.last.err, c.last.rcode, context.Canceled)
	}
}

func TestTheNegativeTTLIsTheLowerOfTwo(t *testing.T) {
	tests := map[string]struct {
		m    *dns.Msg
		want uint32
	}{
		"the record's TTL":                   {msg(t, 0, soa20), 20},
		"the zone's minimum":                 {msg(t, 0, soaMin7), 7},
		"an SOA behind an NS":                {msg(t, 0, "@b.test. 9 IN NS ns.b.test.", soaMin7), 7},
		"no SOA counts as the most we allow": {msg(t, 0), maxNegativeTTL},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := negativeTTL(tc.m); got != tc.want {
				t.Errorf("negativeTTL = %d, want %d", got, tc.want)
			}
		})
	}
}
