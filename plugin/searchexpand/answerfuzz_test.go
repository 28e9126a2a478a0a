package searchexpand

import (
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

func FuzzAnswer(f *testing.F) {
	for _, m := range []*dns.Msg{
		msg(f, 0, host),
		msg(f, 0, "db01.b.test. 60 IN CNAME x.test.", "x.test. 9 IN A 192.0.2.1"),
		msg(f, 0, "db01.b.test. 60 IN CNAME db01.b.test."),
		msg(f, dns.RcodeNameError, soa20),
		msg(f, 0, "@b.test. 9 IN NS ns.b.test."),
	} {
		m.SetEdns0(4096, true)
		wire, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(wire, dns.TypeA)
	}
	f.Fuzz(func(t *testing.T, wire []byte, qtype uint16) {
		below := new(dns.Msg)
		if below.Unpack(wire) != nil {
			t.Skip("nothing that a plugin below could have got")
		}
		if _, err := below.Pack(); err != nil {
			t.Skip("a plugin below could not have sent it either")
		}
		before := below.String()
		req := query("db01.", qtype)
		req.SetEdns0(1232, true)
		c := candidate{"db01.b.test.", "b.test."}
		findings := []finding{newFinding(c, outcome{msg: below}, qtype)}
		m := asDefault.reply(req, conclude(findings))
		m.Truncate(dns.MaxMsgSize) // as CoreDNS's ScrubWriter does
		packed, err := m.Pack()
		if err != nil {
			t.Fatalf("%v does not pack: %v", m, err)
		}
		back := new(dns.Msg)
		if err := back.Unpack(packed); err != nil {
			t.Fatalf("%v does not unpack again: %v", m, err)
		}
		if below.String() != before {
			t.Errorf("the message below changed")
		}
		checkChain(t, back, qtype)
	})
}

// checkChain reports whether the answer section is what glibc accepts: each
// alias once and in order, then records of the name it leads to.
func checkChain(t *testing.T, m *dns.Msg, qtype uint16) {
	t.Helper()
	owner, aliases := "db01.", map[string]bool{}
	for i, rr := range m.Answer {
		other := func(o dns.RR) bool {
			return o.Header().Rrtype != dns.TypeRRSIG && strings.EqualFold(o.Header().Name, rr.Header().Name)
		}
		if qtype != dns.TypeCNAME && rr.Header().Rrtype == dns.TypeCNAME && slices.ContainsFunc(m.Answer[i+1:], other) {
			t.Errorf("%q has an alias and more: %v", rr.Header().Name, m.Answer)
		}
	}
	for _, rr := range m.Answer {
		h := rr.Header()
		if cname, ok := rr.(*dns.CNAME); ok && qtype != dns.TypeCNAME {
			if aliases[strings.ToLower(h.Name)] || !strings.EqualFold(h.Name, owner) {
				t.Errorf("alias %v where %q is looked for", rr, owner)
			}
			aliases[strings.ToLower(h.Name)] = true
			owner = cname.Target
			continue
		}
		if h.Rrtype == qtype && !strings.EqualFold(h.Name, owner) && qtype != dns.TypeCNAME {
			t.Errorf("record %v where %q is looked for", rr, owner)
		}
	}
}
