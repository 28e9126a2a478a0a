package pool

import (
	"math/rand/v2"
	"time"
)

// Numbers of the state machine that are no knobs. See DESIGN.md, D3 and D4.
const (
	// suspectPatience is how long a query waits on a suspect: below the 100 ms
	// that a person notices, and well above a scheduler's hiccup.
	suspectPatience = 50 * time.Millisecond

	// streakWindow: who falls again so soon after its return has not really returned.
	streakWindow = 60 * time.Second
	// forgiveAfter: an ejection so long ago does not lengthen the next hold.
	forgiveAfter = 10 * time.Minute

	// riseGap lies between the first answered probe and the next: long enough
	// that one packet in a burst of loss does not pass both.
	riseGap = 250 * time.Millisecond

	// probeSteady: while an outage is so fresh, probes while ejected keep their interval.
	probeSteady = 30 * time.Second
	// idleProbe: one who was silent so long is asked before a client has to find out.
	idleProbe = 10 * time.Second
	// idleClients: after so long without a client an upstream is unused.
	idleClients = 60 * time.Second

	// ejectedInFlight bounds the queries that wait for one that may never answer.
	ejectedInFlight = 128

	// Probe time-outs. Before the first sample: a LAN or a near resolver.
	probeTimeoutCold = 150 * time.Millisecond
	probeTimeoutMin  = 100 * time.Millisecond
	probeTimeoutMax  = time.Second
)

// Rules are the thresholds that a member is judged by.
type Rules struct {
	// Fall is how many probes in a row must miss to eject a suspect.
	// 0 never ejects. Default 2.
	Fall int
	// Rise is how many probes in a row must be answered for the return. Default 2.
	Rise int
	// Losses is how many exchanges in a row must be lost to eject a member whose
	// probes may pass, if another one is up. Default 5.
	Losses int
	// Hold is how long a member stays out that was ejected again within 60 s of
	// its return; it doubles each time up to HoldMax. Default 5 s and 300 s.
	Hold, HoldMax time.Duration
	// Interval is how long lies between the probes of an ejected member, and
	// IntervalMax what it grows to after half a minute. Default 1 s and 5 s.
	Interval, IntervalMax time.Duration
	// InFlight is how many exchanges may wait on the member at once. Default 1,024.
	InFlight int
	// OnDemand leaves the member unprobed until it has been picked, and again when
	// it has not been picked for a minute.
	OnDemand bool
}

// DefaultRules returns the rules that DESIGN.md, D3 gives the reasons for.
func DefaultRules() Rules {
	return Rules{
		Fall: 2, Rise: 2, Losses: 5,
		Hold: 5 * time.Second, HoldMax: 300 * time.Second,
		Interval: time.Second, IntervalMax: 5 * time.Second,
		InFlight: 1024,
	}
}

// member is one upstream over one transport. Its methods require that the
// pool's mu is held.
type member struct {
	id    ID
	name  string
	rules Rules
	rand  *rand.Rand

	state State
	since time.Time // when it came to state
	epoch uint32    // grows whenever it is ejected or returns
	heard time.Time // when the last valid message came

	losses int       // lost exchanges in a row; a passed probe does not reset it
	lostAt time.Time // when the last one that counted was sent

	misses int // probes in a row without an answer, or one refused exchange
	passes int // probes in a row that were answered

	ejectedAt  time.Time
	returnedAt time.Time
	streak     int // ejections that each came soon after a return
	holdUntil  time.Time

	probe    uint32        // the number of the newest probe
	probing  bool          // whether it is out and not yet judged
	probeAt  time.Time     // when the next one is due; zero: when it has been idle
	interval time.Duration // between probes while ejected
	rtt      time.Duration // of probes, of late; 0 before the first sample

	inFlight int
}

// standing is how a member's groups look without its own help.
type standing struct {
	nobodyUp bool // in one of its groups nobody is up, the member included
	lastUp   bool // in one of its groups nobody else is up
}

// judge applies what t's exchange showed. It returns the cause of the
// transition that may have followed, and the count that made it.
func (m *member) judge(now time.Time, t Ticket, o Outcome, s standing) (Cause, int) {
	stale := t.epoch != m.epoch
	switch {
	case t.probe != 0:
		return m.judgeProbe(now, t, o, stale, s)
	case o == Answered:
		return m.answered(now, t, false, stale, s)
	case stale:
		// What was asked before an ejection, or before a return, says nothing of now.
	case o == Late:
		if m.state == Up && !m.heard.After(t.Sent) {
			return m.suspect(now, LateAnswer), 1
		}
	case o == Refused:
		return m.refused(now)
	case o == Lost:
		if !m.heard.After(t.Sent) {
			return m.lost(now, t, s)
		}
	case o == LostToPeer:
		return m.lost(now, t, s)
	}
	return None, 0
}

// judgeProbe is judge for a probe. Only the newest one counts, once, but for a
// late answer.
func (m *member) judgeProbe(now time.Time, t Ticket, o Outcome, stale bool, s standing) (Cause, int) {
	newest := m.probing && t.probe == m.probe
	if o == Late || o != Answered && !newest {
		return None, 0
	}
	if newest {
		m.probing = false
	}
	switch {
	case o == Answered:
		return m.answered(now, t, newest, stale, s)
	case stale: // the change of epoch has set the time of the next one
	case o == Abandoned:
		m.probeAt = now.Add(m.rules.Interval) // our own fault is no reason for a busy loop
	case m.heard.After(t.Sent): // a packet was lost, but the member lives
		if m.state == Ejected {
			m.probeAt = t.Sent.Add(m.pause())
		}
	case o == Refused:
		return m.missed(now, t.Sent, RefusedProbes)
	default:
		return m.missed(now, t.Sent, Silent)
	}
	return None, 0
}

// answered applies a valid message. It proves life now even where the question
// was asked before an ejection, but then it proves no more than that: it may end
// a suspicion and the time when nobody is up, not a hold. See DESIGN.md, D5.
func (m *member) answered(now time.Time, t Ticket, probe, stale bool, s standing) (Cause, int) {
	m.heard = now
	if t.probe != 0 {
		m.sample(now.Sub(t.Sent))
	}
	if !stale {
		m.misses = 0
		if t.probe == 0 {
			m.losses = 0
		}
	}
	switch {
	case m.state == Suspect:
		m.up(now)
		return Heard, 1
	case m.state == Up:
		return None, 0
	case s.nobodyUp:
		m.up(now)
		return AloneAndHeard, 1
	case !probe:
		return None, 0
	}
	m.passes++
	if m.passes >= m.rules.Rise && !now.Before(m.holdUntil) {
		passes := m.passes
		m.up(now)
		return Probed, passes
	}
	if m.passes < m.rules.Rise {
		m.probeAt = now.Add(riseGap)
	} else {
		m.probeAt = now.Add(m.pause())
	}
	// The probe that ends a hold comes with its end, not an interval later.
	if m.holdUntil.After(now) && m.probeAt.After(m.holdUntil) {
		m.probeAt = m.holdUntil
	}
	return None, 0
}

// refused applies the hard error of a query. It counts as one miss and no more,
// however many there are: an ICMP message is easily forged, so a probe has to
// confirm it.
func (m *member) refused(now time.Time) (Cause, int) {
	if m.state == Ejected {
		return None, 0
	}
	m.misses = max(m.misses, 1)
	if m.state == Up {
		return m.suspect(now, HardError), 1
	}
	return None, 0
}

// missed applies a probe that was not answered.
func (m *member) missed(now, sent time.Time, why Cause) (Cause, int) {
	m.passes = 0
	m.misses++
	if m.state == Ejected {
		m.probeAt = sent.Add(m.pause()) // the time-out is part of the interval
		return None, 0
	}
	if m.rules.Fall > 0 && m.misses >= m.rules.Fall {
		misses := m.misses
		m.eject(now)
		return why, misses
	}
	cause := None
	if m.state == Up {
		cause = m.suspect(now, MissedProbe)
	}
	m.probeAt = now // back to back until the verdict,
	if m.rules.Fall == 0 && m.misses > 1 {
		m.probeAt = now.Add(m.rules.Interval) // or at leisure where there will be none.
	}
	return cause, m.misses
}

// lost applies an exchange without an answer. Queries that were out at the same
// time are one observation: one blip of the network must not count for each.
func (m *member) lost(now time.Time, t Ticket, s standing) (Cause, int) {
	if m.state == Ejected || m.losses > 0 && t.Sent.Sub(m.lostAt) < t.Patience {
		return None, 0
	}
	m.losses++
	m.lostAt = t.Sent
	// A grey member never leaves a group with nobody: half an answer is better than none.
	if m.rules.Fall > 0 && m.losses >= m.rules.Losses && !s.lastUp {
		losses := m.losses
		m.eject(now)
		return Losses, losses
	}
	if m.state == Up && !m.heard.After(t.Sent) {
		return m.suspect(now, LostQuery), m.losses
	}
	return None, 0
}

func (m *member) suspect(now time.Time, why Cause) Cause {
	m.enter(now, Suspect)
	m.probeAt = now
	return why
}

func (m *member) up(now time.Time) {
	if m.state == Ejected {
		m.epoch++
		m.returnedAt = now
	}
	m.enter(now, Up)
	m.misses, m.passes = 0, 0
	m.probeAt = time.Time{}
}

func (m *member) eject(now time.Time) {
	switch {
	case m.ejectedAt.IsZero() || now.Sub(m.ejectedAt) >= forgiveAfter:
		m.streak = 0
	case now.Sub(m.returnedAt) <= streakWindow:
		m.streak++
	}
	m.epoch++
	m.enter(now, Ejected)
	m.ejectedAt = now
	m.holdUntil = now.Add(m.hold())
	m.misses, m.passes, m.losses = 0, 0, 0
	m.interval = m.rules.Interval
	m.probeAt = now.Add(m.pause())
}

// pause returns the time to the next probe while ejected: ± 20 %, so that the
// probes of many processes spread out.
func (m *member) pause() time.Duration {
	return time.Duration(float64(m.interval) * (0.8 + 0.4*m.rand.Float64()))
}

// hold returns how long an ejection lasts at least, which is nothing for the
// first of a streak: return is tested, so an early one costs no client.
func (m *member) hold() time.Duration {
	if m.streak == 0 {
		return 0
	}
	h := m.rules.Hold
	for i := 1; i < m.streak && h < m.rules.HoldMax; i++ {
		h *= 2
	}
	return min(h, m.rules.HoldMax)
}

func (m *member) enter(now time.Time, s State) {
	m.state = s
	m.since = now
}

// sample learns the round trip of a probe: at once where it has grown, slowly
// where it has shrunk. An upstream that is slow now must not be taken for silent.
func (m *member) sample(rtt time.Duration) {
	if rtt > m.rtt {
		m.rtt = rtt
		return
	}
	m.rtt -= (m.rtt - rtt) / 8
}

// patience returns how long a query waits before another one is asked too.
func (m *member) patience(configured time.Duration) time.Duration {
	if m.state == Up {
		return configured
	}
	return min(configured, suspectPatience)
}

// capacity returns how many exchanges may wait on the member at once. One that is
// ejected is asked only because nobody else can be: a queue would do no good.
func (m *member) capacity() int {
	if m.state == Ejected {
		return min(m.rules.InFlight, ejectedInFlight)
	}
	return m.rules.InFlight
}

// probeTimeout returns when an unanswered probe counts as a miss. An answer that
// comes later is a sign of life all the same. There is no hurry to convict the
// last one, whom nobody could stand in for.
func (m *member) probeTimeout(last bool) time.Duration {
	switch {
	case m.state == Ejected, last && !m.heard.IsZero():
		return probeTimeoutMax
	case m.rtt == 0:
		return probeTimeoutCold
	}
	return min(max(4*m.rtt, probeTimeoutMin), probeTimeoutMax)
}

// startProbe returns the ticket of the next probe.
func (m *member) startProbe(now time.Time, s standing) Ticket {
	if m.state == Ejected && now.Sub(m.ejectedAt) > probeSteady {
		m.interval = min(m.interval*3/2, m.rules.IntervalMax)
	}
	m.probe++
	m.probing = true
	m.probeAt = time.Time{}
	return Ticket{ID: m.id, Sent: now, Timeout: m.probeTimeout(s.lastUp), epoch: m.epoch, probe: m.probe}
}

// nextProbe returns when the member wants its next probe; ok is false while one
// is out.
func (m *member) nextProbe(now, lastPick time.Time) (at time.Time, ok bool) {
	unused := now.Sub(lastPick) > idleClients // nobody cares for the health of what nobody uses
	if m.probing || m.rules.OnDemand && unused {
		return time.Time{}, false
	}
	if !m.probeAt.IsZero() {
		return m.probeAt, true
	}
	at = m.heard.Add(idleProbe)
	if at.After(now) || !unused {
		return at, true
	}
	return now.Add(idleProbe), true // look again, ask nobody
}
