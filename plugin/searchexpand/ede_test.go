package searchexpand

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

func TestTheReasonOfAFailureIsForWhoSentOPT(t *testing.T) {
	c := conclusion{result: resultServFail, rcode: dns.RcodeServerFailure, ede: 22, reason: "s.test.: no answer in time"}
	req := query("db01.", dns.TypeA)
	if m := asDefault.reply(req, c); m.Rcode != dns.RcodeServerFailure || m.IsEdns0() != nil {
		t.Errorf("without OPT: %v, want SERVFAIL without OPT", m)
	}
	req.SetEdns0(1400, true)
	opt := asDefault.reply(req, c).IsEdns0()
	if opt == nil || len(opt.Option) != 1 || opt.UDPSize() != 1400 || !opt.Do() {
		t.Fatalf("with OPT: %v, want size, DO and one option", opt)
	}
	ede, ok := opt.Option[0].(*dns.EDNS0_EDE)
	if !ok || ede.InfoCode != 22 || ede.ExtraText != "searchexpand: s.test.: no answer in time" {
		t.Errorf("option = %v, want EDE 22 with the suffix", opt.Option[0])
	}
}

// withEDE returns a SERVFAIL from below with an extended error.
func withEDE(t *testing.T, code uint16) *dns.Msg {
	t.Helper()
	m := msg(t, dns.RcodeServerFailure)
	m.SetEdns0(1232, false)
	m.IsEdns0().Option = []dns.EDNS0{
		&dns.EDNS0_NSID{Code: dns.EDNS0NSID}, &dns.EDNS0_EDE{InfoCode: code, ExtraText: "upstream 192.0.2.1 said so"},
	}
	m.Extra = append([]dns.RR{nil}, m.Extra...)
	return m
}

func TestAFailureSaysWhichSuffixAndHow(t *testing.T) {
	a := func(o outcome) finding { return newFinding(tried("db01.a.test.", "a.test."), o, dns.TypeA) }
	b := newFinding(tried("db01.b.test.", "b.test."), outcome{msg: msg(t, dns.RcodeNotImplemented)}, dns.TypeA)
	denied := newFinding(tried("db01.c.test.", "c.test."), outcome{msg: msg(t, dns.RcodeNameError, soa20)}, dns.TypeA)
	tests := map[string]struct {
		findings []finding
		code     uint16
		text     string // "" for no extended error
	}{
		"SERVFAIL":                   {[]finding{a(outcome{msg: msg(t, dns.RcodeServerFailure)})}, 0, "a.test.: SERVFAIL"},
		"SERVFAIL, unwritten":        {[]finding{a(outcome{rcode: dns.RcodeServerFailure})}, 0, "a.test.: SERVFAIL"},
		"an error from below":        {[]finding{a(outcome{rcode: dns.RcodeServerFailure, err: errors.New("dial 192.0.2.1")})}, 0, "a.test.: SERVFAIL"},
		"REFUSED by the only suffix": {[]finding{a(outcome{msg: msg(t, dns.RcodeRefused)})}, 0, "a.test.: REFUSED"},
		"silence":                    {[]finding{a(outcome{err: errTimeout})}, 22, "a.test.: no answer in time"},
		"no time left":               {[]finding{a(outcome{err: errDeadline})}, 22, "a.test.: the time of the whole walk is over"},
		"too many in flight":         {[]finding{a(outcome{err: errOverload})}, 0, "a.test.: too many candidates are in flight"},
		"a referral":                 {[]finding{a(outcome{msg: msg(t, 0, "@b.test. 9 IN NS ns.b.test.")})}, 0, "a.test.: the answer is of no use"},
		"a bad signature":            {[]finding{a(outcome{msg: withEDE(t, dns.ExtendedErrorCodeDNSBogus)})}, 6, "a.test.: SERVFAIL, DNSSEC Bogus"},
		"a code we do not know":      {[]finding{a(outcome{msg: withEDE(t, 49152)})}, 49152, "a.test.: SERVFAIL"},
		"two of three":               {[]finding{denied, a(outcome{err: errTimeout}), b}, 22, "a.test.: no answer in time, and 1 more"},
		"the first of two says it":   {[]finding{b, a(outcome{err: errTimeout}), denied}, 0, "b.test.: NOTIMP, and 1 more"},
		"a denial says nothing":      {[]finding{denied}, 0, ""},
		"nor does an answer past a failure": {
			[]finding{b, a(outcome{msg: msg(t, 0, "db01.a.test. 300 IN A 192.0.2.1")})}, 0, "",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			req := query("db01.", dns.TypeA)
			req.SetEdns0(1232, false)
			code, text := extended(asDefault.reply(req, conclude(tc.findings)))
			if want := strings.TrimSuffix("searchexpand: "+tc.text, "searchexpand: "); code != tc.code || text != want {
				t.Errorf("EDE %d %q, want %d %q", code, text, tc.code, want)
			}
		})
	}
}

func TestABlockedNameSaysSo(t *testing.T) {
	req := query("wpad.", dns.TypeA)
	req.SetEdns0(1232, false)
	m := asDefault.reply(req, blocked())
	if code, text := extended(m); code != dns.ExtendedErrorCodeBlocked || text == "" || len(m.Ns) != 1 {
		t.Errorf("EDE %d %q in %v, want %d beside the SOA", code, text, m, dns.ExtendedErrorCodeBlocked)
	}
}

// TestAReasonFitsIntoTheSmallestMessage has the longest suffix, name and causes.
func TestAReasonFitsIntoTheSmallestMessage(t *testing.T) {
	label := strings.Repeat("x", 63) + "."
	suffix := strings.Repeat(label, 3) + strings.Repeat("y", 61) + "."
	causes := []outcome{{err: errTimeout}, {err: errDeadline}, {err: errOverload}, {msg: msg(t, dns.RcodeBadCookie)}, {msg: msg(t, 0, "x. 1 IN A 192.0.2.1")}}
	for code := range dns.ExtendedErrorCodeToString {
		causes = append(causes, outcome{msg: withEDE(t, code)})
	}
	for _, o := range causes {
		findings := []finding{newFinding(tried("db01."+suffix, suffix), o, dns.TypeA)}
		for range 99 {
			findings = append(findings, finding{verdict: failed, outcome: outcome{err: errTimeout}})
		}
		req := query(suffix, dns.TypeA)
		req.SetEdns0(dns.MinMsgSize, false)
		m := asDefault.reply(req, conclude(findings))
		_, text := extended(m)
		if len(text) > maxReason || !strings.HasPrefix(text, "searchexpand: x") || m.Len() > dns.MinMsgSize {
			t.Errorf("%d octets of text %q in %d, want at most %d in %d", len(text), text, m.Len(), maxReason, dns.MinMsgSize)
		}
		if findings[0].verdict == failed && !strings.HasSuffix(text, ", and 99 more") {
			t.Errorf("%q is cut", text)
		}
	}
	c := conclusion{result: resultServFail, rcode: dns.RcodeServerFailure, ttl: math.MaxUint32, reason: strings.Repeat("z", 300)}
	req := query("db01.", dns.TypeA)
	req.SetEdns0(dns.MinMsgSize, false)
	if _, text := extended(asDefault.reply(req, c)); len(text) != maxReason {
		t.Errorf("%d octets of text, want %d", len(text), maxReason)
	}
}

// extended returns code and text of the extended error of m, if it has one.
func extended(m *dns.Msg) (uint16, string) {
	if m.IsEdns0() == nil {
		return 0, ""
	}
	for _, o := range m.IsEdns0().Option {
		if ede, ok := o.(*dns.EDNS0_EDE); ok {
			return ede.InfoCode, ede.ExtraText
		}
	}
	return 0, fmt.Sprint("no extended error among ", m.IsEdns0().Option)
}
