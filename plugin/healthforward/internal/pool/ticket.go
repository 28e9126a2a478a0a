package pool

import "time"

// Query is what the pool may know of a query: hashes, from which no name can be read.
type Query struct {
	Name   uint64 // of the whole name
	Domain uint64 // of its last two labels
	// Private says that the query must not leave the first tier.
	Private bool
}

// NewQuery returns what the pool may know of a query for name, in lower case.
func NewQuery(name string) Query { return Query{Name: Hash(name), Domain: Hash(domainOf(name))} }

// domainOf returns the last two labels of a name.
func domainOf(name string) string {
	dots := 0
	for i := len(name) - 1; i >= 0; i-- {
		if name[i] != '.' {
			continue
		}
		if dots++; dots == 3 {
			return name[i+1:]
		}
	}
	return name
}

// Hash is FNV-1a: the same in each process, so that a name meets the same upstream
// after a restart and at each replica.
func Hash(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// Ticket is the permission to ask one member, and the memory of what was thought
// of it then. What it reports later is weighed by that memory: its epoch tells
// whether the member has been ejected or has returned since.
type Ticket struct {
	ID ID
	// Rank is the member's place in its group, 0 for the first, and Tier that of its
	// tier.
	Rank, Tier int
	// State is what the member was when it was picked.
	State State
	// Sent is when the exchange began: set by [Pool.Start] and [Pool.NextProbe].
	Sent time.Time
	// Patience is how long to wait for the answer before another member is asked
	// too and Late is reported.
	Patience time.Duration
	// Linger is how long an answer is waited for though a peer has given one, before
	// LostToPeer is reported.
	Linger time.Duration
	// Unasked says that no query was sent to the member just before.
	Unasked bool
	// Lossy says that packets to the member get lost now and then.
	Lossy bool
	// Timeout is, for a probe, how long to wait before Lost is reported.
	Timeout time.Duration

	group  *Group // that it was picked from; nil for a probe
	domain uint64
	epoch  uint32
	probe  uint32 // the probe's number, 0 for a query
	place  place
	shadow bool
}

// took returns how long the exchange has lasted: no time where the clock has run
// backwards.
func (t Ticket) took(now time.Time) time.Duration { return max(now.Sub(t.Sent), 0) }

// Hedge bounds the delay after which another member is asked too: the 95th
// percentile of the member's latencies within Min and Max, and Cold while too little
// is known. With Min and Max equal nothing is learned.
type Hedge struct{ Min, Max, Cold time.Duration }

// delay returns the delay for a member.
func (h Hedge) delay(now time.Time, m *member) time.Duration {
	return min(max(m.latency.delay(now, h.Cold), h.Min), h.Max)
}
