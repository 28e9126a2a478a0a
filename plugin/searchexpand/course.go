package searchexpand

import "time"

const (
	// hedgeDelay is how long a candidate may be undecided before the next one is
	// asked beside it. What this process knows takes microseconds and a resolver
	// nearby a few milliseconds: only what is slow overlaps.
	hedgeDelay = 50 * time.Millisecond

	// patience is how long a candidate may be silent while a later one has the name.
	// It is five times the hedge delay, and what a person does not notice.
	patience = 250 * time.Millisecond
)

// maxLag is how late this process may be by itself. Who is stopped for longer, by the
// collector or a quota of the processor, has not listened and judges nobody.
const maxLag = 50 * time.Millisecond

// pace says how fast a walk goes.
type pace struct {
	parallel int           // candidates that are asked at once
	timeout  time.Duration // for the whole walk
}

// candidateTimeout is the time for one candidate with the questions about its
// siblings. At half of the whole, one that is silent leaves time for others.
func (p pace) candidateTimeout() time.Duration { return p.timeout / 2 }

// leg is what became of one candidate so far.
type leg struct {
	candidate
	finding finding // of one that is decided
	asked   bool
	decided bool
	since   time.Time // when it was asked
	admission
}

// silent reports whether the walk may go past a candidate that is undecided.
func (l *leg) silent(now time.Time) bool { return now.Sub(l.since) >= l.patience }

// givenUp reports whether the walk may end without a candidate though no other has
// the name. That is so for a probe, which was to be skipped: one whose suffix is
// back has answered by then.
func (l *leg) givenUp(now time.Time) bool {
	return l.probe && now.Sub(l.since) >= max(patience, l.patience)
}

// place is how long it holds up the candidates behind it. A probe is beside the
// others from the start.
func (l *leg) place() time.Duration {
	if l.probe {
		return 0
	}
	return hedgeDelay
}

// course decides which candidate of a walk is asked when, and when the walk is
// over. It asks nobody and reads no clock. See DESIGN.md, D12.
type course struct {
	pace
	legs    []leg
	end     time.Time
	settled int // the candidates in front of it are decided, and none ended the walk
	next    int // the first one that is not asked
	limit   int // none from here on is needed, because the one in front of it ended the walk
}

func newCourse(p pace, now time.Time, tries []candidate) *course {
	c := &course{pace: p, legs: make([]leg, len(tries)), end: now.Add(p.timeout), limit: len(tries)}
	for i, try := range tries {
		c.legs[i].candidate = try
	}
	return c
}

// ready reports whether the next candidate is to be asked. As many as parallel
// hold up those behind them, each for hedgeDelay at most. The name as it is goes to
// strangers, so it waits until no domain in front of it is going to answer.
func (c *course) ready(now time.Time) bool {
	if c.next >= c.limit || !now.Before(c.end) {
		return false
	}
	asIs := c.legs[c.next].suffix == root
	fresh := 0
	for i := c.settled; i < c.next; i++ {
		l := &c.legs[i]
		if l.decided {
			continue
		}
		if asIs && !l.silent(now) {
			return false
		}
		if now.Sub(l.since) < l.place() {
			fresh++
		}
	}
	return fresh < c.parallel
}

// ask marks the next candidate as asked and returns its place in the list.
func (c *course) ask(now time.Time, a admission) int {
	i := c.next
	c.next++
	l := &c.legs[i]
	l.asked, l.since, l.admission = true, now, a
	return i
}

// decide takes what was found about a candidate that was asked.
func (c *course) decide(i int, f finding) {
	l := &c.legs[i]
	l.decided, l.finding = true, f
	if f.verdict.final() {
		c.limit = min(c.limit, i+1)
	}
	for c.settled < c.next && c.legs[c.settled].decided && !c.legs[c.settled].finding.verdict.final() {
		c.settled++
	}
}

// excuse gives all that are undecided the time by which we are too late ourselves,
// when now is not what was due.
func (c *course) excuse(due, now time.Time) {
	lag := now.Sub(due)
	if lag <= maxLag {
		return
	}
	for i := c.settled; i < c.next; i++ {
		c.legs[i].patience += lag
	}
}

// over reports whether the walk has what it can get: the first candidate in the
// list that ends it with all in front of it decided, or silent for as long as they
// may; or all of them; or no time left.
func (c *course) over(now time.Time) bool {
	if !now.Before(c.end) {
		return true
	}
	undecided := false
	for i := c.settled; i < len(c.legs); i++ {
		l := &c.legs[i]
		switch {
		case !l.asked:
			return false
		case l.decided && l.finding.verdict.final():
			return !undecided || l.finding.verdict.found()
		case l.decided:
		case l.givenUp(now):
		case l.silent(now):
			undecided = true
		default:
			return false
		}
	}
	return !undecided
}

// won reports whether a candidate ended the walk.
func (c *course) won() bool {
	return c.limit > 0 && c.legs[c.limit-1].decided && c.legs[c.limit-1].finding.verdict.final()
}

// due returns when time alone changes something: after now, for a walk that is not
// over.
func (c *course) due(now time.Time) time.Time {
	due := c.end
	for i := c.settled; i < c.next; i++ {
		l := &c.legs[i]
		if l.decided {
			continue
		}
		for _, t := range []time.Time{l.since.Add(l.place()), l.since.Add(l.patience), l.since.Add(patience)} {
			if t.After(now) && t.Before(due) {
				due = t
			}
		}
	}
	return due
}

// findings returns what was found, in the order of the list, up to the candidate
// that ended the walk. One that is undecided has failed, and where the time was over
// before a candidate could be asked, so has that one, for all behind it.
func (c *course) findings() []finding {
	var findings []finding
	for i := range c.legs {
		l := &c.legs[i]
		switch {
		case l.decided:
			findings = append(findings, l.finding)
			if l.finding.verdict.final() {
				return findings
			}
		case l.asked:
			findings = append(findings, failure(l.candidate, errTimeout))
		default:
			return append(findings, failure(l.candidate, errDeadline))
		}
	}
	return findings
}
