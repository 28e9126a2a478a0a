package pool

import (
	"fmt"
	"time"
)

// Numbers of probing. See DESIGN.md, D3 and D4.
const (
	// riseGap lies between the first answered probe and the next: long enough
	// that one packet in a burst of loss does not pass both.
	riseGap = 250 * time.Millisecond

	// probeSteady: while an outage is so fresh, probes while ejected keep their interval.
	probeSteady = 30 * time.Second
	// idleProbe: one who was silent so long is asked before a client has to find out.
	idleProbe = 10 * time.Second
	// idleClients: after so long without a client an upstream is unused.
	idleClients = 60 * time.Second

	// Probe time-outs. Before the first sample: a LAN or a near resolver.
	probeTimeoutCold = 150 * time.Millisecond
	probeTimeoutMin  = 100 * time.Millisecond
	probeTimeoutMax  = time.Second
)

// probes is how the probing of a member stands.
type probes struct {
	misses int // in a row without an answer, or one refused exchange
	passes int // in a row that were answered
	spare  int // that may miss beyond the rules, on the link as it was before the suspicion

	newest   uint32        // the number of the newest probe
	out      bool          // it is out and not yet judged
	at       time.Time     // when the next one is due; zero: when the member has been idle
	interval time.Duration // between probes while ejected
	rtt      time.Duration // of late; 0 before the first sample
}

// sample learns a round trip: at once where it has grown, slowly where it has
// shrunk. An upstream that is slow now must not be taken for silent.
func (p *probes) sample(rtt time.Duration) {
	if rtt > p.rtt {
		p.rtt = rtt
		return
	}
	p.rtt -= (p.rtt - rtt) / 8
}

// eject sets the times of the probes of a member that was just ejected.
func (p *probes) eject(now time.Time, m *member) {
	p.misses, p.passes, p.spare = 0, 0, 0
	p.interval = m.rules.Interval
	p.at = now.Add(m.pause())
}

// judgeProbe is judge for a probe. Only the newest one counts, once, but for a
// late answer.
func (m *member) judgeProbe(now time.Time, t Ticket, o Outcome, stale bool, s peers) finding {
	answered := o == Answered || o == Failed
	newest := m.probes.out && t.probe == m.probes.newest
	if o == Late || !answered && !newest {
		return finding{}
	}
	if newest {
		m.probes.out = false
	}
	if o == Blocked {
		m.blocked = now
		if s.blocked() {
			o = Abandoned
		}
	}
	switch {
	case answered:
		return m.probeAnswered(now, t, o, newest, stale, s)
	case stale: // the change of epoch has set the time of the next one
	case o == Abandoned, o == Unreachable:
		m.probes.at = now.Add(m.rules.Interval) // our own fault is no reason for a busy loop
	case m.heard.After(t.Sent): // a packet was lost, but the member lives
		switch {
		case m.state == Ejected:
			m.probes.at = t.Sent.Add(m.pause())
		case m.state == Suspect && m.probes.at.IsZero(): // the clock has run backwards
			m.probes.at = now.Add(m.rules.Interval)
		}
	case o == Refused, o == Blocked:
		return m.missed(now, t.Sent, RefusedProbes, s)
	default:
		return m.missed(now, t.Sent, Silent, s)
	}
	return finding{}
}

// probeAnswered applies a reply to a probe.
func (m *member) probeAnswered(now time.Time, t Ticket, o Outcome, newest, stale bool, s peers) finding {
	m.alive(now)
	took := t.took(now)
	m.probes.sample(took)
	if !stale {
		m.probes.misses = 0
	}
	switch {
	case m.state == Suspect:
		f := m.up(now, Heard)
		f.renew = m.renews(now)
		return f
	case m.state != Ejected:
		return finding{}
	case s.nobodyUp():
		return m.up(now, AloneAndHeard)
	}
	f := m.slowNotSilent(took, s)
	switch {
	case !newest, stale: // a pass has to be from after the ejection
		return f
	case o == Failed && m.why == BadRcodes: // just what it is out for
		m.probes.passes = 0
		m.probes.at = now.Add(m.pause())
		return f
	}
	m.probes.passes++
	if m.mayReturn(now) && !m.needsShadows() {
		return m.up(now, Probed)
	}
	m.probes.at = now.Add(m.pause())
	if m.probes.passes < m.rules.Rise {
		m.probes.at = now.Add(riseGap)
	}
	// The probe that ends a hold comes with its end, not an interval later.
	if m.holds.until.After(now) && m.probes.at.After(m.holds.until) {
		m.probes.at = m.holds.until
	}
	return f
}

// renews reports whether the pooled sockets are to blame for the losses so far, now
// that a fresh one was answered.
func (m *member) renews(now time.Time) bool {
	if m.evidence.rows[loss].n == 0 || !m.renewed.IsZero() && now.Sub(m.renewed) < renewEvery {
		return false
	}
	m.renewed = now
	m.evidence.good(loss)
	return true
}

// mayReturn reports whether an ejected member has passed its probes and its hold.
func (m *member) mayReturn(now time.Time) bool {
	return m.holds.over(now) && (m.rules.NoProbe || m.probes.passes >= m.rules.Rise)
}

// missed applies a probe that was not answered.
func (m *member) missed(now, sent time.Time, why Cause, s peers) finding {
	p := &m.probes
	p.passes = 0
	p.misses++
	if m.state == Ejected {
		p.at = sent.Add(m.pause()) // the time-out is part of the interval
		return finding{}
	}
	fall := m.rules.Fall
	if m.ramping(now) {
		fall = 1 // it has only just come back
	}
	fall += p.spare
	_, lower := s.lastUp()
	tooSoon := lower && now.Sub(m.heard) < lastOfTier
	if p.misses >= fall && !tooSoon && !m.neverEjected() {
		if f := m.eject(now, why, fmt.Sprintf("%d in a row", p.misses)); f.would {
			p.at = m.afterDryRun(now)
			return f
		}
	}
	f := finding{}
	if m.state != Suspect {
		f = m.suspect(now, MissedProbe)
	}
	p.at = now // back to back until the verdict,
	switch {
	case m.neverEjected() && p.misses > 1:
		p.at = now.Add(m.rules.Interval) // or at leisure where there will be none,
	case tooSoon: // or in time for it where only that is missing: a refusal costs none
		p.at = later(now, earlier(sent.Add(probeTimeoutMin), m.heard.Add(lastOfTier)))
	}
	return f
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// afterDryRun returns when the next probe is due after an ejection: an interval
// later where there was none.
func (m *member) afterDryRun(now time.Time) time.Time {
	if m.state == Ejected {
		return m.probes.at
	}
	return now.Add(m.rules.Interval)
}

// pause returns the time to the next probe while ejected: ± 20 %, so that the
// probes of many processes spread out.
func (m *member) pause() time.Duration {
	return time.Duration(float64(m.probes.interval) * (0.8 + 0.4*m.rand.Float64()))
}

// probeTimeout returns when an unanswered probe counts as a miss. An answer that
// comes later is a sign of life all the same. There is no hurry to convict the
// last one, whom nobody could stand in for, or one whose view of the names nobody has.
func (m *member) probeTimeout(s peers) time.Duration {
	last, lower := s.lastUp()
	switch {
	case m.state == Ejected, last && !lower && !m.heard.IsZero(), s.ranked():
		return probeTimeoutMax
	case m.probes.rtt == 0:
		return probeTimeoutCold
	}
	return min(max(4*m.probes.rtt, probeTimeoutMin), probeTimeoutMax)
}

// startProbe returns the ticket of the next probe.
func (m *member) startProbe(now time.Time, s peers) Ticket {
	p := &m.probes
	if m.state == Ejected && now.Sub(m.holds.ejectedAt) > probeSteady {
		p.interval = min(p.interval*3/2, m.rules.IntervalMax)
	}
	p.newest++
	p.out = true
	p.at = time.Time{}
	return Ticket{ID: m.id, Sent: now, Timeout: m.probeTimeout(s), epoch: m.epoch, probe: p.newest}
}

// nextProbe returns when the member wants its next probe; ok is false while one
// is out.
func (m *member) nextProbe(now, lastPick time.Time) (at time.Time, ok bool) {
	unused := now.Sub(lastPick) > idleClients // nobody cares for the health of what nobody uses
	if m.probes.out || m.rules.NoProbe || m.admin == Maint || m.rules.OnDemand && unused {
		return time.Time{}, false
	}
	if !m.probes.at.IsZero() {
		return m.probes.at, true
	}
	at = m.heard.Add(idleProbe)
	if at.After(now) || !unused {
		return at, true
	}
	return now.Add(idleProbe), true // look again, ask nobody
}
