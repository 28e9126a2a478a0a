package searchexpand

import (
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// decision says what becomes of a query.
type decision uint8

const (
	pass      decision = iota // the next plugin answers it, as if we were not there
	expand                    // it is completed from the search list
	block                     // it is answered NXDOMAIN
	namespace                 // it was completed for a namespace, and is searched as what stands in front
	first                     // it may have been completed with the first domain of the client's list
)

// specialZones have names that mean the same everywhere, so that no search list
// applies: RFC 6761 and the names registered under it (localhost, invalid, test,
// onion, alt), multicast DNS (local, RFC 6762), private use (internal), and
// reverse zones with home.arpa and resolver.arpa (arpa).
var specialZones = []string{
	"alt.", "arpa.", "internal.", "invalid.", "local.", "localhost.", "onion.", "test.",
}

// maxLabels is how many labels a name of maxNameOctets can have.
const maxLabels = 128

// autoDiscovery are the names of hosts that clients trust by name alone. Whoever
// owns one under a suffix owns the client, so they are never completed unless the
// operator says so (DESIGN.md, D4).
var autoDiscovery = []string{"isatap", "wpad"}

// standing says whether a name needs a search list.
type standing uint8

const (
	incomplete standing = iota
	complete            // it is in one of the domains that names are completed with
	foreign             // no search list applies to it
)

// rules decide which queries are expanded.
type rules struct {
	ndots int
	files []*fromFile // that may say more of ndots
	bare  bool        // there is a list to complete names from
	// absolute holds the zones whose names are complete as they are: the special
	// ones, the suffixes themselves and what the operator excepts, lower case and
	// fully qualified.
	absolute map[string]standing
	longest  int                 // characters of the longest of them, at most maxNameOctets: what is longer needs no look
	blocked  map[string]struct{} // first labels of names that are not completed, lower case
	zones    []string            // of trigger namespace
	first    string              // zone that the first domain of any client's list is in; empty: it triggers nothing
}

// newRules makes the rules that a directive asks for.
func newRules(c config) rules {
	r := rules{
		ndots: c.ndots, bare: len(c.entries) > 0, zones: c.triggers.zones,
		absolute: make(map[string]standing), blocked: make(map[string]struct{}),
	}
	for _, label := range c.block.labels {
		r.blocked[label] = struct{}{}
	}
	if !c.block.none {
		for _, label := range autoDiscovery {
			r.blocked[label] = struct{}{}
		}
	}
	for _, zone := range slices.Concat(specialZones, c.except) {
		r.add(zone, foreign)
	}
	for _, zone := range c.triggers.zones {
		r.add(zone[strings.IndexByte(zone, '.')+1:], complete) // the zone is in it
	}
	for _, e := range c.entries {
		switch source := e.source.(type) {
		case fixed:
			r.add(source[0], complete)
		case *fromFile:
			if !c.ndotsSet {
				r.files = append(r.files, source)
			}
		}
	}
	if c.triggers.first {
		r.first = leader(c.entries).firstWithin()
	}
	return r
}

// add makes the names of a zone stand as s, unless they do not need any list already.
func (r *rules) add(zone string, s standing) {
	if zone != root && r.absolute[zone] != foreign { // every name is under the root
		r.absolute[zone] = s
		r.longest = max(r.longest, len(zone))
	}
}

// decide looks at m alone. It costs no allocation, for every query of the
// server comes by. See DESIGN.md, D2.
func (r rules) decide(m *dns.Msg) decision {
	// A client that sets CD validates by itself, and a validator cannot accept
	// an alias that its owner never signed. A signature covers the name asked.
	if m.Opcode != dns.OpcodeQuery || len(m.Question) != 1 || m.CheckingDisabled || signed(m) {
		return pass
	}
	q := &m.Question[0]
	if q.Qclass != dns.ClassINET || !searched(q.Qtype) || q.Name == root || !dns.IsFqdn(q.Name) {
		return pass
	}
	for _, zone := range r.zones {
		if base, _, ok := cutNamespace(q.Name, zone); ok && r.searches(base) {
			return namespace
		}
	}
	d := r.decideBare(q.Name)
	if d == pass && r.first != "" {
		if _, ok := cutZone(q.Name, r.first); ok {
			return first
		}
	}
	return d
}

// limit returns how many dots make a name complete.
func (r rules) limit() int {
	limit := r.ndots
	for _, f := range r.files {
		limit = max(limit, f.ndots())
	}
	return limit
}

// decideBare looks at a name that no trigger is for.
func (r rules) decideBare(name string) decision {
	var room [maxNdots]int
	starts, short := labels(name, room[:0], r.limit())
	if !r.bare || !short || r.standing(name, starts) != incomplete {
		return pass
	}
	if r.isBlocked(name) {
		if len(starts) > 1 {
			return pass // wpad.example may be a complete name, and is not ours to guess at
		}
		return block
	}
	return expand
}

// searches reports whether a name is searched that a trigger leaves of another.
func (r rules) searches(base string) bool {
	return r.standingOf(base) != foreign && !r.isBlocked(base)
}

// standingOf is standing for a name of any length.
func (r rules) standingOf(name string) standing {
	var room [maxLabels]int
	starts, _ := labels(name, room[:0], maxLabels)
	return r.standing(name, starts)
}

// labels appends to starts where the labels of name, fully qualified, begin. It
// gives up and returns false at more than limit, which is where name has limit
// dots. A name full of escapes has a thousand characters, so it leaps from dot to
// dot, which dns.NextLabel does not.
func labels(name string, starts []int, limit int) ([]int, bool) {
	for start := 0; ; {
		if len(starts) == limit {
			return nil, false
		}
		starts = append(starts, start)
		start += strings.IndexByte(name[start:], '.') + 1
		for isEscaped(name, start-1) {
			start += strings.IndexByte(name[start:], '.') + 1
		}
		if start == len(name) {
			return starts, true
		}
	}
}

// isEscaped reports whether the character at i stands for itself: an odd number of
// backslashes is in front of it. The dot that ends a name is none such.
func isEscaped(name string, i int) bool {
	escaped := false
	for i--; i >= 0 && name[i] == '\\'; i-- {
		escaped = !escaped
	}
	return escaped
}

// standing says whether name is under one of the absolute zones, by the smallest, or ends
// in a number, as an address does. Its labels begin at starts.
func (r rules) standing(name string, starts []int) standing {
	var buf [maxNameOctets]byte
	var lower []byte // the tail of name that may be a zone
	for _, start := range starts {
		tail := len(name) - start
		if tail > r.longest {
			continue
		}
		if lower == nil {
			lower = appendLower(buf[:0], name[start:])
		}
		if s := r.absolute[string(lower[len(lower)-tail:])]; s != incomplete {
			return s
		}
	}
	if isNumber(name[starts[len(starts)-1] : len(name)-1]) {
		return foreign
	}
	return incomplete
}

// isBlocked reports whether the first label of name is one that is not
// completed.
func (r rules) isBlocked(name string) bool {
	label, _, _ := strings.Cut(name, ".")
	var buf [maxLabelOctets]byte
	if len(label) > len(buf) { // it has escapes, and no label that we block has
		return false
	}
	_, ok := r.blocked[string(appendLower(buf[:0], label))]
	return ok
}

// searched reports whether a search list applies to questions of the type. It
// does not where the question is about a zone cut, a signature or the owner's
// own alias, or is no question for data.
func searched(qtype uint16) bool {
	switch qtype {
	case dns.TypeDNSKEY, dns.TypeDS, dns.TypeRRSIG, dns.TypeNSEC, dns.TypeNSEC3, dns.TypeNSEC3PARAM,
		dns.TypeCDS, dns.TypeCDNSKEY, dns.TypeCSYNC,
		dns.TypeNS, dns.TypeSOA, dns.TypeCNAME, dns.TypeDNAME,
		dns.TypeAXFR, dns.TypeIXFR, dns.TypeTKEY, dns.TypeTSIG, dns.TypeANY, dns.TypeNULL:
		return false
	}
	return true
}

// signed reports whether m carries a transaction signature: TSIG (RFC 8945) or
// SIG(0) (RFC 2931). Both stand last.
func signed(m *dns.Msg) bool {
	if len(m.Extra) == 0 {
		return false
	}
	last := m.Extra[len(m.Extra)-1].Header().Rrtype
	return last == dns.TypeTSIG || last == dns.TypeSIG
}

// appendLower appends name to dst and puts all of dst in lower case, the ASCII
// letters of it (RFC 4343).
func appendLower(dst []byte, name string) []byte {
	dst = append(dst, name...)
	for i, b := range dst {
		if 'A' <= b && b <= 'Z' {
			dst[i] = b + 'a' - 'A'
		}
	}
	return dst
}
