package pool

import "time"

// capacity returns how many exchanges may wait on the member at once. One that is
// ejected is asked only because nobody else can be: a queue would do no good.
func (m *member) capacity(now time.Time) int {
	switch {
	case m.admin == ForceUp:
	case m.state == Ejected:
		return min(m.rules.InFlight, ejectedInFlight)
	case m.state == SlowStart:
		return max(min(m.rules.InFlight, returnInFlight), int(float64(m.rules.InFlight)*m.ramp(now)))
	}
	return m.rules.InFlight
}

// firstShare is the part of its share that a member gets at its return.
const firstShare = 0.1

// ramping reports whether the member's slow start is not over, in whatever state.
func (m *member) ramping(now time.Time) bool {
	return !m.rampFrom.IsZero() && now.Sub(m.rampFrom) < m.rules.Ramp
}

// ramp returns what part of its share the member is to get, from 0.1 to 1.
func (m *member) ramp(now time.Time) float64 {
	if !m.ramping(now) {
		return 1
	}
	return firstShare + (1-firstShare)*float64(now.Sub(m.rampFrom))/float64(m.rules.Ramp)
}

// settle applies what follows from time alone.
func (m *member) settle(now time.Time) finding {
	if m.state != SlowStart || m.ramping(now) {
		return finding{}
	}
	m.enter(now, Up)
	return finding{cause: Ramped}
}
