package pool

import (
	"slices"
	"time"
)

// peers is how a member stands among those that could stand in for it. What it says
// is looked up when it is asked, because nothing follows from most exchanges. Its
// methods require that the pool's mu is held.
type peers struct {
	pool *Pool
	m    *member
	now  time.Time
}

// each calls f for each other member of the groups that hold m, and for whether it is
// of m's tier there. It ends when f returns false.
func (s peers) each(f func(o *member, sameTier bool) bool) {
	for _, g := range s.pool.groups {
		own := g.tierOf(s.m.id)
		if own < 0 {
			continue
		}
		for tier, ids := range g.tiers {
			for _, id := range ids {
				if o := s.pool.members[id]; o != nil && o != s.m && !f(o, tier == own) {
					return
				}
			}
		}
	}
}

// any reports whether f holds for one of each's.
func (s peers) any(f func(o *member, sameTier bool) bool) bool {
	found := false
	s.each(func(o *member, sameTier bool) bool {
		found = f(o, sameTier)
		return !found
	})
	return found
}

// nobodyUp reports whether in one of m's groups nobody is up, m included.
func (s peers) nobodyUp() bool {
	for _, g := range s.pool.groups {
		if g.tierOf(s.m.id) >= 0 && !s.pool.serving(slices.Concat(g.tiers...), nil) {
			return true
		}
	}
	return false
}

// lastUp reports whether in one of m's groups nobody else of its tier is up, and
// whether there is a lower tier in all of those.
func (s peers) lastUp() (last, lower bool) {
	lower = true
	for _, g := range s.pool.groups {
		tier := g.tierOf(s.m.id)
		if tier < 0 || s.pool.serving(g.tiers[tier], s.m) {
			continue
		}
		last = true
		lower = lower && tier+1 < len(g.tiers)
	}
	return last, last && lower
}

// ranked reports whether somebody ranks after m in one of its groups, who may deny
// what m knows.
func (s peers) ranked() bool {
	return slices.ContainsFunc(s.pool.groups, func(g *Group) bool {
		tier := g.tierOf(s.m.id)
		return tier >= 0 && g.ranked && g.tiers[tier][len(g.tiers[tier])-1] != s.m.id
	})
}

// domains returns how many domains the traffic of m's groups has, up to [minDomains]:
// a suspect is asked last, so its own says little.
func (s peers) domains() int {
	n := 0
	for _, g := range s.pool.groups {
		if g.tierOf(s.m.id) >= 0 {
			n = max(n, g.domains.count(s.now))
		}
	}
	return n
}

// serving reports whether one of ids other than but takes its part of the queries.
func (p *Pool) serving(ids []ID, but *member) bool {
	return slices.ContainsFunc(ids, func(id ID) bool {
		o := p.members[id]
		return o != nil && o != but && o.serves()
	})
}

// reached reports whether this host has a way to one of the others.
func (s peers) reached() bool {
	return s.any(func(o *member, _ bool) bool { return o.ours == 0 && !o.heard.IsZero() })
}

// blocked reports whether this host has just not let through what was for each of
// the others either, if there are any.
func (s peers) blocked() bool {
	others := false
	free := s.any(func(o *member, _ bool) bool {
		others = true
		return o.blocked.IsZero() || s.now.Sub(o.blocked) > blockedTogether
	})
	return others && !free
}

// best returns the lowest 95th percentile of a peer's latencies, 0 where none is known.
func (s peers) best() time.Duration {
	var best time.Duration
	s.each(func(o *member, sameTier bool) bool {
		if !sameTier || !o.serves() {
			return true
		}
		if p95, n := o.latency.learned.quantile(s.now, delayShare); n > 0 && (best == 0 || p95 < best) {
			best = p95
		}
		return true
	})
	return best
}

// share returns the lowest share of a peer's exchanges that went wrong; ok is false
// where nobody can be compared with.
func (s peers) share(k kind) (best share, ok bool) {
	s.each(func(o *member, sameTier bool) bool {
		if !sameTier || !o.serves() {
			return true
		}
		sh := o.evidence.share(s.now, k)
		if sh.total >= peerSamples && (!ok || sh.wrong*best.total < best.wrong*sh.total) {
			best, ok = sh, true
		}
		return true
	})
	return best, ok
}
