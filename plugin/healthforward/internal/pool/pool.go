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
	m := &member{since: now, probes: probes{at: now}}
	for _, id := range p.order {
		if twin := p.members[id]; twin.name == name {
			*m = *twin
			m.inFlight, m.probes.out = 0, false
			if m.state != Up {
				m.probes.at = now
			}
			break
		}
	}
	m.id, m.name, m.hash, m.rules, m.rand = p.lastID, name, Hash(name), rules, p.rand
	if m.state == Ejected && (rules.DryRun || rules.Fall == 0) {
		m.enter(now, Suspect) // what its twin's rules allow, its own do not
	}
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

// Numbers of the wait for one whom a peer has outrun.
const (
	lingerFactor = 4
	minLinger    = 250 * time.Millisecond
)

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
	for _, ids := range g.open(q) {
		for _, id := range ids {
			m := g.pool.members[id]
			if m == nil || !m.wantsShadow(now) && (!g.explores || !m.unknown(now)) {
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
// out by an operator, or gone.
func (g *Group) TierOut(above int) bool {
	g.pool.mu.Lock()
	defer g.pool.mu.Unlock()
	return !slices.ContainsFunc(slices.Concat(g.tiers[:above]...), func(id ID) bool { return !g.pool.out(id) })
}

// out requires that mu is held.
func (p *Pool) out(id ID) bool {
	m := p.members[id]
	return m == nil || m.out()
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
	case m.inFlight >= m.capacity(now):
		return t, Full
	}
	m.inFlight++
	t.epoch = m.epoch
	t.State = m.state
	t.Sent = now
	learned := t.group.hedge.delay(now, m)
	t.Patience = learned
	if !m.serves() {
		t.Patience = min(learned, suspectPatience)
	}
	t.Lossy = m.link.lossy()
	t.Linger = max(lingerFactor*learned, minLinger)
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
	f := m.judge(now, t, o, peers{p, m, now})
	return m.transition(now, from, since, f)
}

// transition makes what is said of a finding; ok is false where there is nothing to say.
func (m *member) transition(now time.Time, from State, since time.Time, f finding) (tr Transition, ok bool) {
	if f == (finding{}) {
		return Transition{}, false
	}
	tr = Transition{
		ID: m.id, Name: m.name, From: from, To: m.state, Cause: f.cause, At: now, Lasted: now.Sub(since),
		Detail: f.detail, WouldEject: f.would, Renew: f.renew,
	}
	if f.would && m.state == Ejected {
		tr.Hold = m.holds.until.Sub(now)
	}
	return tr, true
}

// Settle returns a transition that follows from time alone, if there is one.
func (p *Pool) Settle(now time.Time) (Transition, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range p.order {
		m := p.members[id]
		from, since := m.state, m.since
		if tr, changed := m.transition(now, from, since, m.settle(now)); changed {
			return tr, true
		}
	}
	return Transition{}, false
}

// SetAdmin sets what an operator wants of a member.
func (p *Pool) SetAdmin(now time.Time, id ID, a Admin) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.members[id]; m != nil {
		m.admin = a
		if m.state != Up {
			m.probes.at = now // it may be long since it was looked at
		}
	}
}

// NextProbe returns the ticket of a probe that is due at now, or else when the
// next one will be, or [Pool.Settle] has something to say; a zero time says that
// neither is in sight. Each ticket is to be
// reported on exactly once in time, and once more if an answer comes after that.
func (p *Pool) NextProbe(now time.Time) (t Ticket, at time.Time, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range p.order {
		m := p.members[id]
		due, wants := m.nextProbe(now, p.lastPick(id))
		if wants && !due.After(now) {
			return m.startProbe(now, peers{p, m, now}), time.Time{}, true
		}
		if ends := m.rampFrom.Add(m.rules.Ramp); m.state == SlowStart && (!wants || ends.Before(due)) {
			due, wants = ends, true // for Settle
		}
		if wants && (at.IsZero() || due.Before(at)) {
			at = due
		}
	}
	return Ticket{}, at, false
}

// lastPick requires that mu is held.
func (p *Pool) lastPick(id ID) time.Time {
	var last time.Time
	for _, g := range p.groups {
		if g.lastPick.After(last) && g.tierOf(id) >= 0 {
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
