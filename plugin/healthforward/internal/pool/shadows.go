package pool

import (
	"fmt"
	"time"
)

const (
	// shadowEvery is the least time between two copies to one member.
	shadowEvery = time.Second
	// shadowRise is how many good ones in a row bring a member back.
	shadowRise = 3
	// shadowTimeout is when a copy without an answer is lost.
	shadowTimeout = time.Second
)

// shadows is how the test by copies of live queries stands. No client waits for
// them, so none pays for the test.
type shadows struct {
	last time.Time // when the last one was sent
	good int       // in a row
}

// needsShadows reports whether answered probes are not enough for the member to
// return: it answered them while it failed queries.
func (m *member) needsShadows() bool {
	return m.rules.NoProbe || m.why == Losses || m.why == Slow || m.why == BadRcodes
}

// wantsShadow reports whether a copy of a query is to be sent to the member now.
func (m *member) wantsShadow(now time.Time) bool {
	if now.Sub(m.shadows.last) < shadowEvery || m.admin == Maint || m.inFlight >= m.capacity(now) {
		return false
	}
	switch m.state {
	case Ejected:
		return m.needsShadows() && m.mayReturn(now)
	case Suspect:
		return m.rules.NoProbe // nothing else would ever acquit it
	}
	return false
}

// unknown reports whether a member that could be asked has not been for so long that
// nobody knows how fast it is.
func (m *member) unknown(now time.Time) bool {
	return m.serves() && now.Sub(m.shadows.last) >= shadowEvery && now.Sub(m.latency.last) >= shadowEvery
}

// judgeShadow is judge for a copy of a query that another member has answered well.
func (m *member) judgeShadow(now time.Time, t Ticket, o Outcome, stale bool, s peers) finding {
	if o == Answered || o == Failed {
		m.alive(now)
		switch {
		case m.state == Suspect:
			return m.up(now, Heard)
		case m.state == Ejected && s.nobodyUp():
			return m.up(now, AloneAndHeard)
		}
	}
	took := t.took(now)
	if !stale && o == Answered {
		m.latency.add(now, took)
	}
	if stale || m.state != Ejected || o == Abandoned {
		return finding{}
	}
	if o != Answered || took > m.slowLimit(s.best()) {
		m.shadows.good = 0
		return finding{}
	}
	m.shadows.good++
	if m.shadows.good < shadowRise || !m.mayReturn(now) {
		return finding{}
	}
	f := m.up(now, Shadowed)
	f.detail = fmt.Sprintf("%d copies of queries in a row answered well", shadowRise)
	return f
}
