package pool

import (
	"fmt"
	"slices"
	"time"
)

// Group is a list of members that can stand in for each other: the upstreams of
// one stanza over one transport, in tiers.
type Group struct {
	pool   *Pool
	tiers  [][]ID
	policy policy
	hedge  Hedge
	// explores says that members which are not asked get copies of queries, for their
	// latency to be known.
	explores bool
	ranked   bool

	// Guarded by pool.mu.
	turn      uint64
	favourite ID // of the policy fastest
	lastPick  time.Time
	domains   domains // of its queries
	budget    budget
}

// Plan is what makes a group.
type Plan struct {
	// Tiers are the members in the order of the Corefile, the first tier first. A
	// member that is named twice is where it is named last.
	Tiers [][]ID
	// Policy is one of [Policies].
	Policy string
	// Ranked says that the order of the members ranks what they know: who comes later
	// may deny what an earlier one knows, so it takes more to eject an earlier one.
	Ranked bool
	Hedge  Hedge
	// Budget is what part of a packet each query earns for further ones.
	Budget float64
}

// Group makes a group.
func (p *Pool) Group(plan Plan) (*Group, error) {
	order, ok := policies[plan.Policy]
	if !ok {
		return nil, fmt.Errorf("unknown policy %q", plan.Policy)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	g := &Group{pool: p, policy: order, hedge: plan.Hedge, explores: plan.Policy == "fastest", ranked: plan.Ranked, budget: budget{perQuery: plan.Budget}}
	for i, ids := range plan.Tiers {
		lower := slices.Concat(plan.Tiers[i+1:]...)
		g.tiers = append(g.tiers, slices.DeleteFunc(slices.Clone(ids), func(id ID) bool { return slices.Contains(lower, id) }))
	}
	p.groups = append(p.groups, g)
	return g, nil
}

// tierOf returns the tier of a member, -1 if the group does not hold it.
func (g *Group) tierOf(id ID) int {
	return slices.IndexFunc(g.tiers, func(ids []ID) bool { return slices.Contains(ids, id) })
}

// Place returns the rank and the tier of a member in the group, as its tickets have
// them; ok is false where the group does not hold it.
func (g *Group) Place(id ID) (rank, tier int, ok bool) {
	for tier, ids := range g.tiers {
		if i := slices.Index(ids, id); i >= 0 {
			return rank + i, tier, true
		}
		rank += len(ids)
	}
	return 0, 0, false
}

// Disband removes the group. Its members stay.
func (p *Pool) Disband(g *Group) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.groups = slices.DeleteFunc(p.groups, func(o *Group) bool { return o == g })
}

// Pick appends to dst a ticket for each member that a query may ask, in the order
// to ask them: tier by tier who is up, by policy, then who is suspect. Where nobody
// is either, everybody is asked in turn: the last one is never refused.
func (g *Group) Pick(now time.Time, q Query, dst []Ticket) []Ticket {
	g.pool.mu.Lock()
	defer g.pool.mu.Unlock()
	g.lastPick = now
	g.domains.add(now, q.Domain)
	g.budget.earn(now)
	return g.order(now, q, dst)
}

// PickAgain is Pick for a query that has asked everybody before: it has earned what
// it brings to the budget.
func (g *Group) PickAgain(now time.Time, q Query, dst []Ticket) []Ticket {
	g.pool.mu.Lock()
	defer g.pool.mu.Unlock()
	return g.order(now, q, dst)
}

// place is where a member stands in the order of its tier.
type place uint8

// Places, the first first.
const (
	byPolicy   place = iota // who is up, and who is coming up, for its share
	ramping                 // who is coming up, for the rest of its share
	doubtful                // who is suspect
	outOfReach              // whom this host cannot reach
	nowhere                 // not to be asked
)

// order requires that the pool's mu is held.
func (g *Group) order(now time.Time, q Query, dst []Ticket) []Ticket {
	g.turn++
	start, rank := len(dst), 0
	for tier, ids := range g.open(q) {
		from, last, sorted := len(dst), byPolicy, true
		for _, id := range ids {
			if m := g.pool.members[id]; m != nil {
				if at := g.pool.place(now, m); at != nowhere {
					dst = append(dst, g.ticket(m, q, rank, tier))
					dst[len(dst)-1].place = at
					last, sorted = at, sorted && at >= last
				}
			}
			rank++
		}
		if !sorted { // as a rule all are up
			slices.SortStableFunc(dst[from:], func(a, b Ticket) int { return int(a.place) - int(b.place) })
		}
		g.orderTier(choice{g, q}, dst[from:])
	}
	if len(dst) == start {
		dst = g.everybody(q, dst)
		turnBy(g.turn, dst[start:])
	}
	return dst
}

// open returns the tiers that the query may go to.
func (g *Group) open(q Query) [][]ID {
	if q.Private {
		return g.tiers[:1]
	}
	return g.tiers
}

// orderTier orders the tickets of a tier, which are sorted by place, by policy
// within each place.
func (g *Group) orderTier(c choice, ts []Ticket) {
	for len(ts) > 0 {
		n := 1
		for n < len(ts) && ts[n].place == ts[0].place {
			n++
		}
		g.policy(c, ts[:n])
		ts = ts[n:]
	}
}

// place requires that mu is held.
func (p *Pool) place(now time.Time, m *member) place {
	switch {
	case m.out():
		return nowhere
	case m.skip.After(now):
		return outOfReach
	case m.admin == ForceUp, m.state == Up:
		return byPolicy
	case m.state == SlowStart && p.rand.Float64() < m.ramp(now):
		return byPolicy
	case m.state == SlowStart:
		return ramping
	}
	return doubtful
}

// everybody appends a ticket for each member that no operator has taken out. It
// requires that the pool's mu is held.
func (g *Group) everybody(q Query, dst []Ticket) []Ticket {
	rank := 0
	for tier, ids := range g.open(q) {
		for _, id := range ids {
			if m := g.pool.members[id]; m != nil && m.admin != Maint {
				dst = append(dst, g.ticket(m, q, rank, tier))
			}
			rank++
		}
	}
	return dst
}

func (g *Group) ticket(m *member, q Query, rank, tier int) Ticket {
	return Ticket{ID: m.id, Rank: rank, Tier: tier, State: m.state, group: g, domain: q.Domain, epoch: m.epoch}
}

// Shadow returns the ticket of a copy of q, which another member has answered well,
// for a member that has to show that it answers well too. It is started: a call of
// [Pool.End] is to follow.
func (g *Group) Shadow(now time.Time, q Query) (Ticket, bool) {
	g.pool.mu.Lock()
	defer g.pool.mu.Unlock()
	for tier, ids := range g.open(q) {
		explores := g.explores && !g.pool.serving(slices.Concat(g.tiers[:tier]...), nil)
		for _, id := range ids {
			m := g.pool.members[id]
			if m == nil || !m.wantsShadow(now) && (!explores || !m.unknown(now)) {
				continue
			}
			m.shadows.last = now
			m.inFlight++
			t := g.ticket(m, q, 0, 0)
			t.Sent, t.shadow = now, true
			t.Timeout = shadowTimeout
			return t, true
		}
	}
	return Ticket{}, false
}

// Spend takes n extra packets from the group's budget, or returns false.
func (g *Group) Spend(now time.Time, n int) bool {
	g.pool.mu.Lock()
	defer g.pool.mu.Unlock()
	return g.budget.spend(now, float64(n))
}

// Ready reports whether the group has an upstream that is up, or at least a
// verdict on each.
func (g *Group) Ready() bool {
	g.pool.mu.Lock()
	defer g.pool.mu.Unlock()
	judged := true
	for _, id := range slices.Concat(g.tiers...) {
		switch m := g.pool.members[id]; {
		case m == nil:
		case m.serves():
			return true
		case m.state == Suspect && !m.rules.NoProbe:
			judged = false
		}
	}
	return judged
}

// Ejected reports whether the member of that rank is ejected, taken out by an
// operator, or gone.
func (g *Group) Ejected(rank int) bool {
	g.pool.mu.Lock()
	defer g.pool.mu.Unlock()
	return g.pool.out(g.at(rank))
}

// HeardSince reports whether a valid message has come from the member of that rank
// since then.
func (g *Group) HeardSince(rank int, then time.Time) bool {
	g.pool.mu.Lock()
	defer g.pool.mu.Unlock()
	m := g.pool.members[g.at(rank)]
	return m != nil && m.heard.After(then)
}

// at returns the member of that rank, 0 if there is none.
func (g *Group) at(rank int) ID {
	for _, ids := range g.tiers {
		if rank < len(ids) {
			return ids[rank]
		}
		rank -= len(ids)
	}
	return 0
}

// TierServes reports whether a member of one of the tiers above that one is up.
func (g *Group) TierServes(above int) bool {
	g.pool.mu.Lock()
	defer g.pool.mu.Unlock()
	return g.pool.serving(slices.Concat(g.tiers[:above]...), nil)
}

// TierOut reports whether all members of the tiers above that one are ejected, taken
// out by an operator, gone, or, for some time now, where this host has no way to.
func (g *Group) TierOut(now time.Time, above int) bool {
	g.pool.mu.Lock()
	defer g.pool.mu.Unlock()
	return !slices.ContainsFunc(slices.Concat(g.tiers[:above]...), func(id ID) bool {
		return !g.pool.out(id) && !g.pool.beyond(now, id)
	})
}
