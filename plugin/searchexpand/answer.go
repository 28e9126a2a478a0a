package searchexpand

import (
	"math"
	"strings"

	"github.com/miekg/dns"
)

// maxAliases is how many CNAMEs of a message we follow: more than any resolver
// does (BIND 16, Unbound 11), and few enough that a message made to be slow is
// not.
const maxAliases = 32

// form is what an operator may say about replies.
type form struct {
	negTTL uint32 // seconds that a denial may be kept at most; default maxNegativeTTL
	maxTTL uint32 // seconds that what was found may be kept at most; default noMaxTTL
	shape  string // of what was found: shapeAlias, which is the default, or shapeOwner
}

// The shapes of what was found.
const (
	shapeAlias = "cname" // an alias to it stands in front
	shapeOwner = "owner" // its records get the name asked
)

// noMaxTTL bounds no TTL.
const noMaxTTL = math.MaxUint32

// reply returns what the client gets for req. It changes neither req nor any
// message of c, and shares no record with them. The conclusion is one that calls
// for a reply. See DESIGN.md, D7 and D8.
func (f form) reply(req *dns.Msg, c conclusion) *dns.Msg {
	if m := c.asIs(req); m != nil {
		return m
	}
	m := new(dns.Msg).SetReply(req) // the question is spelled as it was asked
	m.RecursionAvailable = true     // glibc takes a reply without RA, AA and SOA for a lame server's
	m.Rcode = c.rcode
	opt := req.IsEdns0()

	switch c.result {
	case resultAnswer, resultTruncated:
		m.Truncated = c.last.msg.Truncated
		do := opt != nil && opt.Do()
		m.Answer = f.found(c, req.Question[0], do)
		m.Extra = useful(c.last.msg.Extra, req.Question[0].Qtype, do)
		lowerTTLs(m.Answer, f.maxTTL)
		lowerTTLs(m.Extra, f.maxTTL)
	case resultNoData, resultNXDomain, resultBlocked:
		m.Ns = []dns.RR{denial(c.soa, min(c.ttl, f.negTTL))}
	}
	if m.Rcode != dns.RcodeSuccess {
		explain(m, opt, c)
	}
	return m
}

// asIs returns the reply that the client would have got without us, if the name that it
// asked for, with a domain that it knows, is the one that is meant: nil otherwise, or if
// what a plugin below made is no message.
func (c conclusion) asIs(req *dns.Msg) *dns.Msg {
	if !c.last.asked || c.last.suffix == root || c.last.msg == nil || c.last.msg.Rcode != dns.RcodeSuccess || c.degraded() {
		return nil
	}
	m := c.last.msg.Copy()
	m.Id, m.Question = req.Id, req.Question
	if _, err := m.Pack(); err != nil {
		return nil
	}
	return m
}

// found returns the answer section: what makes the name asked lead to the name
// found, then the records found, in the order of the chain.
func (f form) found(c conclusion, q dns.Question, do bool) []dns.RR {
	records, _ := chain(c.last.msg.Answer, c.last.name, q.Qtype)
	records, back := onward(records, q.Name)
	if c.result == resultTruncated && !sendable(records) {
		records = nil // TC says enough
	}
	answer := make([]dns.RR, 0, len(records)+1)
	switch {
	case len(records) == 0:
	case back || c.last.asked: // the name found is the one asked
		if c.reason != "" { // past a failure
			records = shortLived(records)
		}
	case f.shape == shapeOwner:
		var set []dns.RR
		set, records = firstSet(records)
		answer = append(answer, renamed(set, q.Name, c.ttl)...)
	default:
		answer = append(answer, &dns.CNAME{
			Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeCNAME, Class: dns.ClassINET, Ttl: min(c.ttl, lowestTTL(records))},
			// Spelled as the record below is: some clients compare octets.
			Target: records[0].Header().Name,
		})
	}
	for _, rr := range records {
		if do || rr.Header().Rrtype != dns.TypeRRSIG {
			answer = append(answer, dns.Copy(rr))
		}
	}
	return answer
}

// shortLived returns copies of records that were found past a suffix that failed
// and have no alias of ours in front that says for how long.
func shortLived(records []dns.RR) []dns.RR {
	out := make([]dns.RR, 0, len(records))
	for _, rr := range records {
		out = append(out, dns.Copy(rr))
	}
	lowerTTLs(out, degradedTTL)
	return out
}

// firstSet returns the records that a chain begins with, without their
// signatures, and what comes after these.
func firstSet(records []dns.RR) (set, rest []dns.RR) {
	rrtype := records[0].Header().Rrtype
	n := 0
	for n < len(records) && records[n].Header().Rrtype == rrtype && (n == 0 || rrtype != dns.TypeCNAME) {
		n++
	}
	set, rest = records[:n], records[n:]
	for len(rest) > 0 && rest[0].Header().Rrtype == dns.TypeRRSIG {
		rest = rest[1:]
	}
	return set, rest
}

// renamed returns copies of a set of records that are name's, and no longer kept
// than limit: like an alias they are our word. No signature of theirs would hold.
func renamed(set []dns.RR, name string, limit uint32) []dns.RR {
	ttl := min(limit, lowestTTL(set)) // one for the whole set (RFC 2181, section 5.2)
	out := make([]dns.RR, 0, len(set))
	for _, rr := range set {
		rr = dns.Copy(rr)
		rr.Header().Name, rr.Header().Ttl = name, ttl
		out = append(out, rr)
	}
	return out
}

// sendable reports whether a message can hold the records. All that came in one
// can be sent on; what a plugin made out of an operator's data may not.
func sendable(records []dns.RR) bool {
	_, err := (&dns.Msg{Answer: records}).Pack()
	return err == nil
}

// onward returns what a chain holds from the name asked on, if it leads back to
// that name, and whether it does. With our alias in front it would be a loop, and
// the name would have an alias and other records.
func onward(found []dns.RR, asked string) (rest []dns.RR, back bool) {
	for i, rr := range found {
		if back && strings.EqualFold(rr.Header().Name, asked) {
			return found[i:], true
		}
		if cname, ok := rr.(*dns.CNAME); ok && strings.EqualFold(cname.Target, asked) {
			back = true
		}
	}
	if back { // a truncated answer ended there
		return nil, true
	}
	return found, false
}

// chain returns the records of answer that lead from owner over aliases to
// records of qtype, in that order, each set followed by its signatures, and
// whether it gets there. A chain that never ends is no chain: it returns none.
func chain(answer []dns.RR, owner string, qtype uint16) (records []dns.RR, found bool) {
	for range maxAliases {
		if set := rrset(answer, owner, qtype); len(set) > 0 {
			return append(records, set...), true
		}
		alias := rrset(answer, owner, dns.TypeCNAME)
		if len(alias) == 0 {
			return records, false
		}
		cname, ok := alias[0].(*dns.CNAME)
		if !ok { // a header that lies about its record
			return records, false
		}
		records = append(records, cname)
		records = append(records, signatures(alias)...) // a second CNAME of one owner is illegal: dropped
		owner = cname.Target
	}
	return nil, false
}

// rrset returns the records of one owner and type, then their signatures. It is
// empty if there are only signatures.
func rrset(answer []dns.RR, owner string, rrtype uint16) []dns.RR {
	var set, sigs []dns.RR
	for _, rr := range answer {
		if rr == nil {
			continue // no message from the wire holds one; one made in this process may
		}
		h := rr.Header()
		if h.Class != dns.ClassINET || !strings.EqualFold(h.Name, owner) {
			continue
		}
		if h.Rrtype == rrtype {
			set = append(set, rr)
		} else if sig, ok := rr.(*dns.RRSIG); ok && sig.TypeCovered == rrtype {
			sigs = append(sigs, rr)
		}
	}
	if len(set) == 0 {
		return nil
	}
	return append(set, sigs...)
}

// signatures returns the signatures among the records of an RRset.
func signatures(set []dns.RR) []dns.RR {
	for i, rr := range set {
		if rr.Header().Rrtype == dns.TypeRRSIG {
			return set[i:]
		}
	}
	return nil
}

// lowestTTL returns the lowest TTL of the records, in seconds.
func lowestTTL(records []dns.RR) uint32 {
	ttl := uint32(math.MaxUint32)
	for _, rr := range records {
		ttl = min(ttl, rr.Header().Ttl)
	}
	return ttl
}

// lowerTTLs lets none of the records be kept for more than limit seconds. They
// are ours.
func lowerTTLs(records []dns.RR, limit uint32) {
	for _, rr := range records {
		h := rr.Header()
		h.Ttl = min(h.Ttl, limit)
	}
}

// useful returns copies of the additional records that spare a client of qtype
// its next question: those of the targets that such records name. OPT and
// signatures of the message below end with that message.
func useful(extra []dns.RR, qtype uint16, do bool) []dns.RR {
	switch qtype {
	case dns.TypeSRV, dns.TypeMX, dns.TypeSVCB, dns.TypeHTTPS, dns.TypeNAPTR:
	default:
		return nil
	}
	var keep []dns.RR
	for _, rr := range extra {
		if rr == nil || !sendable([]dns.RR{rr}) {
			continue
		}
		switch rr.(type) {
		case *dns.A, *dns.AAAA, *dns.SRV, *dns.SVCB, *dns.HTTPS:
			keep = append(keep, dns.Copy(rr))
		case *dns.RRSIG:
			if do {
				keep = append(keep, dns.Copy(rr))
			}
		}
	}
	return keep
}

// denial returns the SOA record of a negative reply, which says for how many
// seconds it may be kept (RFC 2308, section 3). Its owner has to be at or above the name
// asked. The zone of a candidate is not, so it is the root, unless that name was itself
// a candidate.
func denial(own *dns.SOA, ttl uint32) dns.RR {
	if own != nil {
		soa := *own
		soa.Hdr.Ttl, soa.Minttl = ttl, ttl
		return &soa
	}
	return &dns.SOA{
		Hdr:     dns.RR_Header{Name: root, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: ttl},
		Ns:      "searchexpand.invalid.",
		Mbox:    "nobody.invalid.",
		Serial:  1,
		Refresh: 1800, // this and the next two are for secondaries; nobody transfers the zone
		Retry:   900,
		Expire:  604800,
		Minttl:  ttl,
	}
}
