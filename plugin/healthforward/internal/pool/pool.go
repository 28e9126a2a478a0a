// Package pool decides which upstream a query goes to, and what is to be thought
// of an upstream: up, suspect or ejected. It is told what happened and when, and
// says what follows. It never waits, never sends, never reads the clock, never
// logs and calls nobody: time is an argument, transitions are return values.
package pool

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// ID names a member as long as it is in the pool, and nobody after that.
type ID uint64

// Ticket is the permission to ask one member, and the memory of what was thought
// of it then. What it reports later is weighed by that memory: its epoch tells
// whether the member has been ejected or has returned since.
type Ticket struct {
	ID ID
	// Rank is the member's place in its group, 0 for the first.
	Rank int
	// State is what the member was when it was picked.
	State State
	// Sent is when the exchange began: set by [Pool.Start] and [Pool.NextProbe].
	Sent time.Time
	// Patience is how long to wait for the answer before another member is asked
	// too and Late is reported.
	Patience time.Duration
	// Timeout is, for a probe, how long to wait before Lost is reported.
	Timeout time.Duration

	hedge time.Duration // the group's hedge delay
	epoch uint32
	probe uint32 // the probe's number, 0 for a query
}

// Pool holds the upstreams of the whole process, each over each transport, and
// their states. All methods are safe for concurrent use, and none blocks.
type Pool struct {
	mu      sync.Mutex
	rand    *rand.Rand
	members map[ID]*member
	order   []ID // of joining, so that probes are taken in turn
	groups  []*Group
	lastID  ID
}

// New returns an empty pool whose random choices are drawn from source.
func New(source rand.Source) *Pool {
	return &Pool{rand: rand.New(source), members: make(map[ID]*member)}
}

// Add lets a member join. It is suspect, with a probe due at once, unless one of
// the same name is there already: then it starts as that one stands.
func (p *Pool) Add(now time.Time, name string, rules Rules) ID {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastID++
	m := &member{since: now, probeAt: now}
	for _, id := range p.order {
		if twin := p.members[id]; twin.name == name {
			*m = *twin
			m.inFlight, m.probing = 0, false
			if m.state != Up {
				m.probeAt = now
			}
			break
		}
	}
	m.id, m.name, m.rules, m.rand = p.lastID, name, rules, p.rand
	p.members[m.id] = m
	p.order = append(p.order, m.id)
	return m.id
}

// Remove lets a member leave. Its tickets count for nothing from then on.
func (p *Pool) Remove(id ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.members, id)
	p.order = slices.DeleteFunc(p.order, func(o ID) bool { return o == id })
}

// Group is a list of members that can stand in for each other: the upstreams of
// one stanza over one transport.
type Group struct {
	pool   *Pool
	ids    []ID
	policy policy
	hedge  time.Duration

	// Guarded by pool.mu.
	turn     uint64
	lastPick time.Time
	budget   budget
}

// Group makes a group of ids, in the order of the Corefile, whose queries wait
// hedge on one member before the next is asked too. policy is one of [Policies].
func (p *Pool) Group(policy string, hedge time.Duration, ids []ID) (*Group, error) {
	order, ok := policies[policy]
	if !ok {
		return nil, fmt.Errorf("unknown policy %q", policy)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	g := &Group{pool: p, ids: slices.Clone(ids), policy: order, hedge: hedge}
	p.groups = append(p.groups, g)
	return g, nil
}

// Disband removes the group. Its members stay.
func (p *Pool) Disband(g *Group) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.groups = slices.DeleteFunc(p.groups, func(o *Group) bool { return o == g })
}

// Pick appends to dst a ticket for each member that a query may ask, in the order
// to ask them: who is up, by policy, then who is suspect. Where nobody is either,
// everybody is asked in turn: the last one is never refused.
func (g *Group) Pick(now time.Time, dst []Ticket) []Ticket {
	g.pool.mu.Lock()
	defer g.pool.mu.Unlock()
	g.lastPick = now
	g.budget.earn(now)
	return g.order(dst)
}

// PickAgain is Pick for a query that has asked everybody before: it has earned what
// it brings to the budget.
func (g *Group) PickAgain(dst []Ticket) []Ticket {
	g.pool.mu.Lock()
	defer g.pool.mu.Unlock()
	return g.order(dst)
}

// order requires that the pool's mu is held.
func (g *Group) order(dst []Ticket) []Ticket {
	g.turn++
	start := len(dst)
	for _, state := range []State{Up, Suspect} {
		from := len(dst)
		dst = g.appendState(dst, state)
		g.policy(g.pool.rand, g.turn, dst[from:])
	}
	if len(dst) == start {
		dst = g.appendState(dst, Ejected)
		roundRobin(nil, g.turn, dst[start:])
	}
	return dst
}

// appendState requires that the pool's mu is held.
func (g *Group) appendState(dst []Ticket, s State) []Ticket {
	for rank, id := range g.ids {
		if m := g.pool.members[id]; m != nil && m.state == s {
			dst = append(dst, Ticket{ID: id, Rank: rank, State: s, hedge: g.hedge, epoch: m.epoch})
		}
	}
	return dst
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
	for _, id := range g.ids {
		switch m := g.pool.members[id]; {
		case m == nil:
		case m.state == Up:
			return true
		case m.state == Suspect:
			judged = false
		}
	}
	return judged
}

// Ejected reports whether the member of that rank is ejected, or gone.
func (g *Group) Ejected(rank int) bool {
	g.pool.mu.Lock()
	defer g.pool.mu.Unlock()
	if rank >= len(g.ids) {
		return true
	}
	m := g.pool.members[g.ids[rank]]
	return m == nil || m.state == Ejected
}

// Start is what came of a ticket that was to be started.
type Start uint8

// Results of [Pool.Start].
const (
	Started Start = iota // the member may be asked
	Full                 // as many exchanges as its rules allow wait on it
	Gone                 // it was ejected since the pick, or left
)

// Start turns a picked ticket into the one to send with at now, which is to be
// followed by a call of [Pool.End].
func (p *Pool) Start(now time.Time, t Ticket) (Ticket, Start) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.members[t.ID]
	switch {
	case m == nil || m.state == Ejected && m.epoch != t.epoch:
		return t, Gone
	case m.inFlight >= m.capacity():
		return t, Full
	}
	m.inFlight++
	t.epoch = m.epoch
	t.State = m.state
	t.Sent = now
	t.Patience = m.patience(t.hedge)
	return t, Started
}

// End says that nothing waits on t any more.
func (p *Pool) End(t Ticket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.members[t.ID]; m != nil {
		m.inFlight--
	}
}

// Report tells what the exchange of t showed at now, and returns the transition
// that follows from it, if any.
func (p *Pool) Report(now time.Time, t Ticket, o Outcome) (Transition, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.members[t.ID]
	if m == nil {
		return Transition{}, false
	}
	from, since := m.state, m.since
	var s standing
	if m.state != Up || o != Answered { // nothing follows from what most exchanges show
		s = p.standing(m)
	}
	cause, count := m.judge(now, t, o, s)
	if m.state == from {
		return Transition{}, false
	}
	tr := Transition{ID: m.id, Name: m.name, From: from, To: m.state, Cause: cause, At: now, Lasted: now.Sub(since), Count: count}
	if m.state == Ejected {
		tr.Hold = m.holdUntil.Sub(now)
	}
	return tr, true
}

// standing requires that mu is held.
func (p *Pool) standing(m *member) standing {
	var s standing
	for _, g := range p.groups {
		if !slices.Contains(g.ids, m.id) {
			continue
		}
		others := 0
		for _, id := range g.ids {
			if o := p.members[id]; o != nil && o != m && o.state == Up {
				others++
			}
		}
		s.lastUp = s.lastUp || others == 0
		s.nobodyUp = s.nobodyUp || others == 0 && m.state != Up
	}
	return s
}

// NextProbe returns the ticket of a probe that is due at now, or else when the
// next one will be; a zero time says that none is in sight. Each ticket is to be
// reported on exactly once in time, and once more if an answer comes after that.
func (p *Pool) NextProbe(now time.Time) (t Ticket, at time.Time, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range p.order {
		m := p.members[id]
		due, wants := m.nextProbe(now, p.lastPick(id))
		switch {
		case !wants:
		case !due.After(now):
			return m.startProbe(now, p.standing(m)), time.Time{}, true
		case at.IsZero() || due.Before(at):
			at = due
		}
	}
	return Ticket{}, at, false
}

// lastPick requires that mu is held.
func (p *Pool) lastPick(id ID) time.Time {
	var last time.Time
	for _, g := range p.groups {
		if g.lastPick.After(last) && slices.Contains(g.ids, id) {
			last = g.lastPick
		}
	}
	return last
}

// State returns the state of a member; one that left is ejected.
func (p *Pool) State(id ID) State {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.members[id]; m != nil {
		return m.state
	}
	return Ejected
}
