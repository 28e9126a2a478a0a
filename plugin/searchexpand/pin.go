package searchexpand

import (
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/miekg/dns"
)

const (
	// maxPins bounds the memory, at about 400 octets each. One that is pushed out is
	// missed only by a client whose other question comes later than that.
	maxPins = 10000

	// maxPinTime is how late the other question about a host may come, from a client
	// that asks one after the other and asks again after a loss. A host that is new in
	// a nearer domain is not seen for as long.
	maxPinTime = 5 * time.Second

	// minPinTime is for what may not be kept, by its TTL or because a suffix before it
	// failed: both questions of one look-up get one host all the same.
	minPinTime = time.Second
)

// subject is what a suffix is found for: a name asked by a client with a list. It is by
// client because plugins below may show each another view, by list because who has an
// address may change, and the types of a name are one subject because they have to come
// from one host.
type subject struct {
	client string // address without port, which differs between the questions of a look-up
	list   string // as told apart from others of the stanza
	name   string // lower case
}

func newSubject(client net.Addr, list, name string) subject {
	host := client.String()
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return subject{client: host, list: list, name: strings.ToLower(name)}
}

// pin is the suffix that has a host of the name asked.
type pin struct {
	suffix string
	host   uint16 // type of the address that was found there
	ttl    uint32 // seconds, from made on, for which the name may be taken for that host
	made   time.Time
	until  time.Time
	soa    *dns.SOA // for denials, as in conclusion
}

// newPin returns the pin that the conclusion about qtype calls for, if any: one for a
// suffix that has an address. What else a name has makes it no host, and must not
// hide one (DESIGN.md, D5).
func newPin(c conclusion, qtype uint16, now time.Time) (pin, bool) {
	p := pin{suffix: c.last.suffix, ttl: c.ttl, made: now, soa: c.soa}
	ttl := c.ttl
	switch c.last.verdict {
	case owned:
		p.host = c.last.host
	case answered, truncated:
		p.host = qtype
		records, _ := chain(c.last.msg.Answer, c.last.name, qtype)
		ttl = min(ttl, lowestTTL(records))
	}
	if p.host != dns.TypeA && p.host != dns.TypeAAAA {
		return pin{}, false
	}
	keep := min(maxPinTime, time.Duration(ttl)*time.Second)
	if c.degraded() {
		keep = minPinTime
	}
	p.until = now.Add(max(minPinTime, keep))
	return p, true
}

// among returns the place of the pin's candidate, -1 if it is none of them.
func (p pin) among(tries []candidate) int {
	return slices.IndexFunc(tries, func(c candidate) bool { return c.suffix == p.suffix })
}

// left returns for how many seconds from now on the pin's host may be taken for the
// one that is meant.
func (p pin) left(now time.Time) uint32 {
	return p.ttl - min(p.ttl, uint32(now.Sub(p.made)/time.Second))
}

// accepts returns the finding as it stands under the pin, and whether it ends the
// search. That a host has no record of another type is then certain, even if its
// server says that there is no such name, as some do when asked for AAAA: musl would
// take that for the end of a good A record. The pin is wrong only if the address
// itself is gone.
func (p pin) accepts(f finding, qtype uint16) (finding, bool) {
	switch f.verdict {
	case noData, nxDomain:
		if qtype == p.host {
			return f, false
		}
		f.verdict, f.host = owned, p.host
	}
	return f, f.verdict.final()
}

// pins are the suffixes of the names found last. Who is not asked for is pushed out
// first.
type pins struct {
	mu  sync.Mutex
	lru *simplelru.LRU[subject, pin]
}

func newPins(size int) *pins {
	lru, err := simplelru.NewLRU[subject, pin](size, nil)
	if err != nil {
		panic(err) // the size is a constant
	}
	return &pins{lru: lru}
}

// get returns the pin of the subject, unless its time is over.
func (p *pins) get(s subject, now time.Time) (pin, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	found, ok := p.lru.Get(s)
	if ok && !now.Before(found.until) {
		p.lru.Remove(s)
		return pin{}, false
	}
	return found, ok
}

// add pins the subject. One that is pinned stays where it is: what is found past it,
// where it failed for another type, is not the host that the client has.
func (p *pins) add(s subject, found pin) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if earlier, ok := p.lru.Peek(s); ok && found.made.Before(earlier.until) {
		return
	}
	p.lru.Add(s, found)
}

// drop forgets the pin of the subject.
func (p *pins) drop(s subject) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lru.Remove(s)
}
