package searchexpand

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// What FuzzAnswer varies besides the message below.
const (
	withOPT     = 1 << iota // the client sent OPT
	withDO                  // and wants signatures
	asOwner                 // answer owner
	cut                     // the message below is truncated
	badAlias                // a plugin below made an alias, of any target
	badText                 // and a text of any length
	withSibling             // the sibling's question gets the same message
	asItIs                  // the name goes out as it is
	completed               // the client completed it by itself
)

// FuzzAnswer puts any message below us, from the wire and made by a plugin. What
// the client gets is always a message, about the question that it asked.
func FuzzAnswer(f *testing.F) {
	for _, m := range []*dns.Msg{
		msg(f, 0, host),
		msg(f, 0, host, "db01.b.test. 300 IN "+sigA),
		msg(f, 0, "db01.b.test. 60 IN CNAME x.test.", "x.test. 9 IN A 192.0.2.1"),
		msg(f, 0, "db01.b.test. 60 IN CNAME db01.b.test."),
		msg(f, 0, "db01.b.test. 60 IN CNAME db01.", "db01. 60 IN A 192.0.2.1"),
		msg(f, dns.RcodeNameError, soa20),
		msg(f, dns.RcodeServerFailure),
		msg(f, 0, "@b.test. 9 IN NS ns.b.test."),
	} {
		m.SetEdns0(4096, true)
		m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_EDE{InfoCode: 6, ExtraText: "x"}}
		wire, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		for _, vary := range []uint16{0, withOPT | withDO, withOPT | withDO | asOwner, cut | asOwner, badAlias | badText, withSibling, asItIs, completed, completed | withSibling} {
			f.Add(wire, dns.TypeA, vary, "x..y")
			f.Add(wire, dns.TypeTXT, vary, strings.Repeat("x", 300))
		}
	}
	f.Fuzz(func(t *testing.T, wire []byte, qtype uint16, vary uint16, text string) {
		below := new(dns.Msg)
		if below.Unpack(wire) != nil {
			t.Skip("nothing that a plugin below could have got")
		}
		c := tried("Db01.b.test.", "b.test.")
		if vary&asItIs != 0 {
			c = tried("Db01.", root)
		} else if vary&completed != 0 {
			c.asked = true
		}
		below.Truncated = below.Truncated || vary&cut != 0
		if vary&badAlias != 0 {
			below.Answer = append(below.Answer, &dns.CNAME{Hdr: dns.RR_Header{Name: c.name, Rrtype: dns.TypeCNAME, Class: dns.ClassINET}, Target: text})
		}
		if vary&badText != 0 {
			below.Answer = append(below.Answer, &dns.TXT{Hdr: dns.RR_Header{Name: c.name, Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: []string{text}})
		}
		before := below.String()
		req := query("Db01.", qtype)
		if c.asked {
			req = query(c.name, qtype)
		}
		if vary&withOPT != 0 {
			req.SetEdns0(1232, vary&withDO != 0)
		}
		found := newFinding(c, outcome{msg: below}, qtype)
		if vary&withSibling != 0 && found.verdict == noData {
			found = found.withSibling(outcome{msg: below}, siblings(qtype)[0])
		}
		f := newConfig().form
		if vary&asOwner != 0 {
			f.shape = shapeOwner
		}
		m := f.reply(req, conclude([]finding{found}))
		if c.asked && c.suffix != root {
			checkSame(t, req, m)
		} else {
			checkReply(t, req, m, below.Truncated)
		}
		if below.String() != before {
			t.Errorf("the message below changed")
		}
	})
}

// checkSame looks at a reply that may be the one from below.
func checkSame(t *testing.T, req, m *dns.Msg) {
	t.Helper()
	packed, err := m.Pack()
	if err != nil {
		t.Fatalf("%v does not pack: %v", m, err)
	}
	back := new(dns.Msg)
	if err := back.Unpack(packed); err != nil || back.Id != req.Id || !slices.Equal(back.Question, req.Question) {
		t.Errorf("%v, %v: not about what was asked", back, err)
	}
}

// checkReply packs m as CoreDNS does and looks at what the client gets.
func checkReply(t *testing.T, req, m *dns.Msg, cut bool) {
	t.Helper()
	m.Truncate(dns.MaxMsgSize) // as CoreDNS's ScrubWriter does
	packed, err := m.Pack()
	if err != nil {
		t.Fatalf("%v does not pack: %v", m, err)
	}
	back := new(dns.Msg)
	if err := back.Unpack(packed); err != nil {
		t.Fatalf("%v does not unpack again: %v", m, err)
	}
	asked, err := req.Pack()
	if err != nil {
		t.Fatal(err)
	}
	const header, typeAndClass = 12, 4
	end := header + wireOctets(req.Question[0].Name) + typeAndClass
	if !bytes.Equal(packed[header:end], asked[header:end]) {
		t.Errorf("question %q, want %q", packed[header:end], asked[header:end])
	}
	if back.Id != req.Id || !back.Response || !back.RecursionAvailable || back.Authoritative || back.AuthenticatedData || cut && back.Rcode == dns.RcodeSuccess && len(back.Ns) == 0 && !back.Truncated {
		t.Errorf("header %+v", back.MsgHdr)
	}
	if req.IsEdns0() == nil && back.IsEdns0() != nil {
		t.Error("OPT for who sent none")
	}
	for _, rr := range back.Ns {
		if _, ok := rr.(*dns.SOA); !ok || rr.Header().Name != root {
			t.Errorf("authority %v, want the SOA of the root or none", rr)
		}
	}
	checkChain(t, back, req.Question[0].Qtype)
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
