package pool

import (
	"maps"
	"math/rand/v2"
	"slices"
)

// policy orders the members of a group that stand equal in health, in place.
// turn counts the group's picks.
type policy func(r *rand.Rand, turn uint64, ts []Ticket)

// policies maps the word in a Corefile to the policy.
var policies = map[string]policy{
	"random":      random,
	"round_robin": roundRobin,
	"sequential":  sequential,
}

// Policies returns the names of the policies, sorted.
func Policies() []string { return slices.Sorted(maps.Keys(policies)) }

// random spreads queries evenly, and so the share of one who falls over all the others.
func random(r *rand.Rand, _ uint64, ts []Ticket) {
	r.Shuffle(len(ts), func(i, j int) { ts[i], ts[j] = ts[j], ts[i] })
}

// roundRobin turns the whole order by one at each pick.
func roundRobin(_ *rand.Rand, turn uint64, ts []Ticket) {
	if len(ts) < 2 {
		return
	}
	n := int(turn % uint64(len(ts)))
	slices.Reverse(ts[:n])
	slices.Reverse(ts[n:])
	slices.Reverse(ts)
}

// sequential keeps the order of the Corefile.
func sequential(*rand.Rand, uint64, []Ticket) {}
