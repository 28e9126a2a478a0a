package pool

import "time"

// Standing is how a member stands at one moment, for who looks on.
type Standing struct {
	ID    ID
	Name  string
	State State
	Admin Admin
	// Since is when it came to State, Cause why, and Detail the numbers behind that.
	// The cause is [None] where it is as it began.
	Since  time.Time
	Cause  Cause
	Detail string
	// Heard is when the last valid message came from it; zero: never.
	Heard time.Time
	// Hold is how much longer it stays out though probes may pass. 0 unless it is
	// ejected.
	Hold time.Duration
	// InFlight is how many exchanges wait on it.
	InFlight int
	// Median and P95 are quantiles of how long its answers of the last half minute or
	// so took, a quarter too large at most. 0 and 0 where there were none.
	Median, P95 time.Duration
	// Loss is what share of packets gets lost on the way to it while it lives, from 0
	// to 1.
	Loss float64
}

// Snapshot returns how each member stands at now, in the order of joining. It changes
// nothing.
func (p *Pool) Snapshot(now time.Time) []Standing {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]Standing, 0, len(p.order))
	for _, id := range p.order {
		all = append(all, p.members[id].standing(now))
	}
	return all
}

func (m *member) standing(now time.Time) Standing {
	s := Standing{
		ID: m.id, Name: m.name, State: m.state, Admin: m.admin,
		Since: m.since, Cause: m.cause, Detail: m.detail, Heard: m.heard,
		InFlight: m.inFlight, Loss: float64(m.link),
	}
	if m.state == Ejected {
		s.Hold = max(m.holds.until.Sub(now), 0)
	}
	learned := m.latency.learned // a copy: to look gives up what is too old
	s.Median, _ = learned.quantile(now, 0.5)
	s.P95, _ = learned.quantile(now, delayShare)
	return s
}

// note remembers why the member is in its state, for [Pool.Snapshot].
func (m *member) note(from State, f finding) {
	if m.state != from || f.cause != None && !f.would && !f.renew {
		m.cause, m.detail = f.cause, f.detail
	}
}

// Saved returns how many further packets the group's budget pays for at now.
func (g *Group) Saved(now time.Time) float64 {
	g.pool.mu.Lock()
	defer g.pool.mu.Unlock()
	b := g.budget // a copy: to look is not to fill it
	b.refill(now)
	return b.tokens
}

// ProbeNow makes a probe of a member due at now. It returns false where there will be
// none: it is in maint, its rules want no probe, or nobody has asked it of late and
// they want none then.
func (p *Pool) ProbeNow(now time.Time, id ID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.members[id]
	if m == nil {
		return false
	}
	if m.probes.out {
		return true
	}
	if _, wants := m.nextProbe(now, p.lastPick(id)); !wants {
		return false
	}
	m.probes.at = now
	return true
}
