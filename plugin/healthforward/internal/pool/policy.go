package pool

import (
	"cmp"
	"maps"
	"slices"
)

// policy orders the members of a tier that stand equal in health, in place.
type policy func(c choice, ts []Ticket)

// choice is what a policy may look at. Whoever has one holds the pool's mu.
type choice struct {
	group *Group
	q     Query
}

func (c choice) member(t Ticket) *member { return c.group.pool.members[t.ID] }

// policies maps the word in a Corefile to the policy.
var policies = map[string]policy{
	"fastest":     fastest,
	"hash":        byHash,
	"p2c":         powerOfTwo,
	"race":        random,
	"random":      random,
	"round_robin": roundRobin,
	"sequential":  sequential,
}

// Policies returns the names of the policies, sorted.
func Policies() []string { return slices.Sorted(maps.Keys(policies)) }

// random spreads queries evenly, and so the share of one who falls over all the others.
func random(c choice, ts []Ticket) {
	c.group.pool.rand.Shuffle(len(ts), func(i, j int) { ts[i], ts[j] = ts[j], ts[i] })
}

// roundRobin turns the whole order by one at each pick.
func roundRobin(c choice, ts []Ticket) { turnBy(c.group.turn, ts) }

func turnBy(turn uint64, ts []Ticket) {
	if len(ts) < 2 {
		return
	}
	n := int(turn % uint64(len(ts)))
	slices.Reverse(ts[:n])
	slices.Reverse(ts[n:])
	slices.Reverse(ts)
}

// sequential keeps the order of the Corefile.
func sequential(choice, []Ticket) {}

// powerOfTwo draws two at random and prefers the one with the lower latency times
// load: near to the best choice, without a herd that runs to whoever was best.
func powerOfTwo(c choice, ts []Ticket) {
	random(c, ts)
	if len(ts) < 2 {
		return
	}
	if c.member(ts[1]).cost() < c.member(ts[0]).cost() {
		ts[0], ts[1] = ts[1], ts[0]
	}
}

// cost is what the next query is expected to wait. One who is not known yet costs
// next to nothing, so that it gets known.
func (m *member) cost() float64 { return float64(max(m.latency.mean, 1)) * float64(m.inFlight+1) }

// hysteresis: who was first stays so until another one is a fifth faster.
const hysteresis = 0.8

// fastest prefers the lowest latency. The others get copies of queries now and then,
// so that it is known when one of them becomes faster.
func fastest(c choice, ts []Ticket) {
	mean := func(t Ticket) float64 {
		mean := float64(c.member(t).latency.mean)
		if t.ID == c.group.favourite {
			return hysteresis * mean
		}
		return mean
	}
	slices.SortStableFunc(ts, func(a, b Ticket) int { return cmp.Compare(mean(a), mean(b)) })
	if ts[0].place == byPolicy {
		c.group.favourite = ts[0].ID
	}
}

// byHash sends a name to the same member each time, whose cache then has it, and
// moves only the names of one who falls (rendezvous hashing).
func byHash(c choice, ts []Ticket) {
	weight := func(t Ticket) uint64 { return mix(c.q.Name ^ c.member(t).hash) }
	slices.SortStableFunc(ts, func(a, b Ticket) int { return cmp.Compare(weight(b), weight(a)) })
}

// mix spreads what differs in a few bits over all of them (the finaliser of splitmix64).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
