package pool

import "time"

// Forgive voids what was concluded in another network: after a change of the
// upstreams, or of this host's addresses, old holds and old pauses between probes keep
// nobody out. Everybody is as it was, and is to be probed at once. A probe that is out
// counts only if it is answered. See DESIGN.md, D4.
func (p *Pool) Forgive(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range p.order {
		p.members[id].forgive(now)
	}
}

func (m *member) forgive(now time.Time) {
	m.ours = 0
	m.skip, m.blocked = time.Time{}, time.Time{}
	m.holds = holds{}
	if m.state == Ejected {
		m.holds.ejectedAt = now // the probes keep their interval as for a fresh outage
		m.probes.interval = m.rules.Interval
	}
	m.probes.misses, m.probes.passes = 0, 0
	m.probes.out = false
	m.probes.at = now
}

// AnyEjected reports whether a member is ejected: there is something to forgive.
func (p *Pool) AnyEjected() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.members {
		if m.state == Ejected {
			return true
		}
	}
	return false
}
