// Package pool decides which upstream a query goes to, and what is to be thought
// of an upstream: up, suspect or ejected. It is told what happened and when, and
// says what follows. It never waits, never sends, never reads the clock, never
// logs and calls nobody: time is an argument, transitions are return values.
package pool

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// ID names a member as long as it is in the pool, and nobody after that.
type ID uint64

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
		m.cause, m.detail = None, ""
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

// Numbers of the wait for one whom a peer has outrun.
const (
	lingerFactor = 4
	minLinger    = 250 * time.Millisecond
)

// beyond reports whether this host has had no way to the member for so long that a
// lower tier may speak for it. It requires that mu is held.
func (p *Pool) beyond(now time.Time, id ID) bool {
	m := p.members[id]
	return m != nil && m.skip.After(now) && now.Sub(m.heard) >= lastOfTier
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
	case m.inFlight >= m.capacity(now) && !m.takesCanary(now):
		return t, Full
	}
	m.inFlight++
	t.Unasked = now.Sub(m.askedAt) >= canaryEvery
	m.askedAt = now
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
	m.note(from, f)
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
