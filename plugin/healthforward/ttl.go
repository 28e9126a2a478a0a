package healthforward

import (
	"slices"

	"github.com/miekg/dns"
)

// What a lower tier says is not to outlive the outage of those above by much in caches.
const (
	// lowerTTL is what RFC 8767, section 4, gives to answers that are second best.
	lowerTTL = 30
	// lowerDenialTTL: the name that is denied may be one that only those above know, and
	// they are back within two seconds of a short outage.
	lowerDenialTTL = 5
)

// capTTL bounds the TTLs of a lower tier's reply, in place.
func capTTL(reply *dns.Msg) {
	limit, denial := uint32(lowerTTL), !answers(reply)
	if denial {
		limit = lowerDenialTTL
	}
	// What is signed is not ours to change; of an SOA the TTL is enough for most (RFC
	// 2308, section 5: the lesser one counts).
	signed := slices.ContainsFunc(reply.Ns, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeRRSIG })
	for _, section := range [][]dns.RR{reply.Answer, reply.Ns, reply.Extra} {
		for _, rr := range section {
			if rr.Header().Rrtype == dns.TypeOPT {
				continue // its TTL is flags and the upper bits of the rcode
			}
			rr.Header().Ttl = min(rr.Header().Ttl, limit)
			if soa, ok := rr.(*dns.SOA); ok && denial && !signed {
				soa.Minttl = min(soa.Minttl, limit)
			}
		}
	}
}

// answers reports whether the reply has what was asked for, not only a chain to it.
func answers(reply *dns.Msg) bool {
	if reply.Rcode != dns.RcodeSuccess || len(reply.Question) == 0 {
		return false
	}
	qtype := reply.Question[0].Qtype
	return slices.ContainsFunc(reply.Answer, func(rr dns.RR) bool {
		return qtype == dns.TypeANY || rr.Header().Rrtype == qtype
	})
}
