package pool

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Numbers of the state machine that are no knobs. See DESIGN.md, D3 and D4.
const (
	// suspectPatience is how long a query waits on a suspect: below the 100 ms
	// that a person notices, and well above a scheduler's hiccup.
	suspectPatience = 50 * time.Millisecond

	// lastOfTier is how long the last one of a tier must have been silent before a
	// lower tier takes over: a backup may know fewer names.
	lastOfTier = 500 * time.Millisecond

	// viewPatience is how long one that ranks before another must have answered
	// nothing, before what the other denies is believed: as long as forward waits for
	// it. See DESIGN.md, D23.
	viewPatience = 2 * time.Second

	// renewEvery: pooled sockets that lose are replaced, but who loses on the new
	// ones too within this time has lost.
	renewEvery = 60 * time.Second

	// Who cannot be reached from here so many times in a row, while others can, is
	// asked last for a while.
	unreachableRow  = 3
	unreachableSkip = time.Second
	// blockedTogether: members that this host did not let out to within this time of
	// each other were blocked by one thing, unless one was heard between. It is longer
	// than one that is up may go unasked.
	blockedTogether = idleProbe + 5*time.Second

	// ejectedInFlight bounds the queries that wait for one that may never answer.
	ejectedInFlight = 128
	// returnInFlight is what one that returns may have waiting at least: those that
	// waited for it while nobody else could be asked, and each of them sent again.
	returnInFlight = 2 * ejectedInFlight
	// canaryEvery is how often one more query finds out whether it answers again: the
	// others may have been sent seconds ago, and would wait on. A query that waits
	// while nobody is up asks another one that has not been asked for so long.
	canaryEvery = 50 * time.Millisecond
)

// member is one upstream over one transport. Its methods require that the
// pool's mu is held.
type member struct {
	id    ID
	name  string
	hash  uint64 // of the name
	rules Rules
	rand  *rand.Rand
	admin Admin

	said [len(causes)]time.Time // in a dry run: when it was last said that it would be ejected

	state  State
	since  time.Time // when it came to state
	cause  Cause     // why it did, for who looks on
	detail string    // likewise
	epoch  uint32    // grows whenever it is ejected or returns
	heard  time.Time // when the last valid message came

	rampFrom time.Time // when its slow start began; zero: it had none

	why    Cause // of the ejection, while ejected
	silent bool  // it began as that of a silent one

	evidence evidence
	renewed  time.Time // when its pooled sockets were last to be replaced
	ours     int       // exchanges in a row for which this host had no way
	skip     time.Time // until when it is asked last for that
	blocked  time.Time // when this host last did not let an exchange out

	link    link
	latency latency
	probes  probes
	shadows shadows
	holds   holds

	inFlight int
	canaryAt time.Time // when a query was last let through beyond its capacity
	askedAt  time.Time // when a query was last sent
}

// finding is what follows from an exchange. The zero value says that nothing does.
type finding struct {
	cause  Cause
	detail string
	would  bool // it ejects, or would
	renew  bool
}

// serves reports whether the member takes its part of the queries.
func (m *member) serves() bool {
	switch m.admin {
	case ForceUp:
		return true
	case Drain, Maint:
		return false
	}
	return m.trusted()
}

// out reports whether the member is ejected, or taken out by an operator.
func (m *member) out() bool {
	return m.state == Ejected && m.admin != ForceUp || m.admin == Drain || m.admin == Maint
}

// trusted reports whether nothing speaks against the member.
func (m *member) trusted() bool { return m.state == Up || m.state == SlowStart }

// judge applies what t's exchange showed.
func (m *member) judge(now time.Time, t Ticket, o Outcome, s peers) finding {
	stale := t.epoch != m.epoch
	switch {
	case t.probe != 0:
		return m.judgeProbe(now, t, o, stale, s)
	case t.shadow:
		return m.judgeShadow(now, t, o, stale, s)
	case o == Answered, o == Failed:
		return m.answered(now, t, o, stale, s)
	case stale:
		// What was asked before an ejection, or before a return, says nothing of now.
	case o == Outdone:
		return m.wrong(now, badRcode, t, s)
	case o == Late:
		if m.trusted() && !m.heard.After(t.Sent) && now.Sub(t.Sent) >= m.latency.delay(now, 0) {
			return m.suspect(now, LateAnswer)
		}
	case o == Blocked:
		m.blocked = now
		if !s.blocked() { // else it is this host's fault, not theirs
			return m.refused(now)
		}
	case o == Refused:
		return m.refused(now)
	case o == Unreachable:
		m.unreachable(now, s)
	case o == Lost:
		m.evidence.count(now)
		m.lostByLink(t)
		if !m.heard.After(t.Sent) {
			return m.wrong(now, loss, t, s)
		}
	case o == LostToPeer:
		m.evidence.count(now)
		m.lostByLink(t)
		return m.wrong(now, loss, t, s)
	}
	return finding{}
}

// answered applies a valid message to a query. It proves life now even where the
// question was asked before an ejection, but then it proves no more than that: it may
// end a suspicion and the time when nobody is up, not a hold. See DESIGN.md, D5.
func (m *member) answered(now time.Time, t Ticket, o Outcome, stale bool, s peers) finding {
	m.alive(now)
	took := t.took(now)
	if !stale {
		m.probes.misses = 0
		m.latency.add(now, took)
		m.evidence.count(now)
		m.evidence.good(loss)
		m.link.passed()
		if o == Answered {
			m.evidence.good(badRcode)
		}
	}
	switch {
	case m.state == Suspect:
		return m.up(now, Heard)
	case m.state != Ejected && stale:
		return finding{} // it has shown nothing that was not known
	case m.state != Ejected:
		return m.tooSlow(now, s)
	case s.nobodyUp():
		return m.up(now, AloneAndHeard)
	}
	return m.slowNotSilent(took, s)
}

// lostByLink notes a loss while the member lives; else the link is not to blame.
func (m *member) lostByLink(t Ticket) {
	if m.heard.After(t.Sent) {
		m.link.lost()
	}
}

// alive notes a sign of life.
func (m *member) alive(now time.Time) {
	m.heard = now
	m.ours = 0
	m.skip, m.blocked = time.Time{}, time.Time{}
}

// refused applies the hard error of a query. It counts as one miss and no more,
// however many there are: an ICMP message is easily forged, so a probe has to
// confirm it.
func (m *member) refused(now time.Time) finding {
	if m.state == Ejected {
		return finding{}
	}
	m.probes.misses = max(m.probes.misses, 1)
	if m.state != Suspect {
		return m.suspect(now, HardError)
	}
	return finding{}
}

// unreachable applies that this host has no way to the member. Where it has one to
// nobody, that is no reason to prefer anybody.
func (m *member) unreachable(now time.Time, s peers) {
	m.ours++
	if m.ours >= unreachableRow && s.reached() {
		m.skip = now.Add(unreachableSkip)
	}
}

// wrong applies an exchange that went wrong in the way of kind k.
func (m *member) wrong(now time.Time, k kind, t Ticket, s peers) finding {
	if m.state == Ejected || k == loss && t.Sent.Before(m.renewed) {
		return finding{}
	}
	e := &m.evidence
	e.wrong(now, k, t)
	if detail, bad := m.tooBad(now, k, s); bad {
		return m.eject(now, [kinds]Cause{loss: Losses, badRcode: BadRcodes}[k], detail)
	}
	if k == loss && m.state != Suspect && !m.heard.After(t.Sent) {
		return m.suspect(now, LostQuery)
	}
	return finding{}
}

// tooBad reports whether too much went wrong in the way of kind k, and the numbers.
func (m *member) tooBad(now time.Time, k kind, s peers) (string, bool) {
	row, sh := &m.evidence.rows[k], m.evidence.share(now, k)
	need := min(minDomains, s.domains())
	inARow := row.n >= m.rules.Losses && row.domains.count(now) >= need
	if !inARow && !sh.large() || m.neverEjected() {
		return "", false
	}
	if s.ranked() && (k == badRcode || !inARow || now.Sub(row.first) < viewPatience) {
		return "", false
	}
	if last, lower := s.lastUp(); last && (!m.rules.NoProbe || !lower || k != loss) {
		return "", false // half an answer is better than none, but only a probe tells it from none
	}
	if inARow {
		return fmt.Sprintf("%d in a row", row.n), true
	}
	best, compared := s.share(k)
	if !compared || !sh.twice(best) || m.evidence.failed[k].count(now) < need {
		return "", false
	}
	return fmt.Sprintf("%d of %d in %s, %d of %d at the best peer", sh.wrong, sh.total, evidenceWindow, best.wrong, best.total), true
}

// neverEjected reports whether the member is to stay in whatever it does.
func (m *member) neverEjected() bool { return m.rules.Fall == 0 || m.admin == ForceUp }

// tooSlow ejects a member whose answers come far later than its best peer's. It is
// the server that is slow, not some names, if most answers are later than most of
// the peer's.
func (m *member) tooSlow(now time.Time, s peers) finding {
	p95, median, enough := m.latency.recent(now)
	if !enough || p95 <= m.rules.Slow || m.neverEjected() {
		return finding{}
	}
	best := s.best()
	if last, _ := s.lastUp(); last || s.ranked() || p95 <= m.slowLimit(best) || median <= best {
		return finding{}
	}
	return m.eject(now, Slow, fmt.Sprintf("p95 %s, %s at the best peer", round(p95), round(best)))
}

// slowNotSilent applies an answer that took so long to one who was taken for silent:
// to come back it has to show that it is fast, not that it is there.
func (m *member) slowNotSilent(took time.Duration, s peers) finding {
	if !m.silent {
		return finding{}
	}
	best := s.best()
	slow := took > m.slowLimit(best)
	switch {
	case slow && m.why == Silent:
		m.why = Slow
		return finding{cause: Slow, detail: fmt.Sprintf("answers after %s, %s is p95 at the best peer", round(took), round(best))}
	case !slow && m.why == Slow: // what came late had been waiting for the outage to end
		m.why = Silent
		m.probes.passes = 0
	}
	return finding{}
}

// slowLimit returns the latency above which the member is slow beside its best peer.
func (m *member) slowLimit(best time.Duration) time.Duration {
	if m.rules.Slow == 0 || best == 0 {
		return 1<<63 - 1
	}
	return max(m.rules.Slow, slowFactor*best)
}

// suspect doubts the member and wants a probe at once.
func (m *member) suspect(now time.Time, why Cause) finding {
	m.enter(now, Suspect)
	m.probes.at = now
	m.probes.spare = m.link.spareMisses() // as it was before what made us doubt
	return finding{cause: why}
}

// up puts the member up, or lets it start slowly where others are there already.
func (m *member) up(now time.Time, why Cause) finding {
	if m.state == Ejected {
		m.epoch++
		m.evidence = evidence{}
		m.holds.returnedAt = now
		m.rampFrom = time.Time{}
		if why != AloneAndHeard {
			m.rampFrom = now
		}
	}
	m.enter(now, Up)
	if m.ramping(now) {
		m.enter(now, SlowStart)
	}
	m.probes.misses, m.probes.passes = 0, 0
	m.probes.at = time.Time{}
	return finding{cause: why}
}

// eject takes the member out, unless its rules are not enforced.
func (m *member) eject(now time.Time, why Cause, detail string) finding {
	m.evidence = evidence{} // what it has done has had its consequence
	m.latency.forgetRecent()
	if m.rules.DryRun {
		m.probes.misses = 0
		if now.Sub(m.said[why]) < evidenceWindow {
			return finding{}
		}
		m.said[why] = now
		return finding{cause: why, detail: detail, would: true}
	}
	m.epoch++
	m.enter(now, Ejected)
	m.why, m.silent = why, why == Silent
	m.holds.eject(now, m.rules)
	m.probes.eject(now, m)
	m.shadows = shadows{}
	return finding{cause: why, detail: detail, would: true}
}

func (m *member) enter(now time.Time, s State) {
	m.state = s
	m.since = now
}

// takesCanary lets one more query through to an ejected member now and then.
func (m *member) takesCanary(now time.Time) bool {
	if m.state != Ejected || now.Sub(m.canaryAt) < canaryEvery {
		return false
	}
	m.canaryAt = now
	return true
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
