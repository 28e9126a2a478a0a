package searchexpand

import (
	"slices"
	"testing"
	"time"
)

// started returns a course on which all of n candidates were asked at once.
func started(now time.Time, n int) *course {
	c := newCourse(pace{parallel: n, timeout: 2 * time.Second}, now, candidates("db01.", domainsOf(longList(n)...)))
	for c.ready(now) {
		c.ask(now, admission{patience: patience})
	}
	return c
}

func TestWhoIsStoppedItselfJudgesNobody(t *testing.T) {
	const ms = time.Millisecond
	tests := map[string]struct {
		due, now time.Duration
		overAt   time.Duration // the second candidate has the name
	}{
		"on time":              {250 * ms, 250 * ms, 250 * ms},
		"as late as it may be": {250 * ms, 300 * ms, 250 * ms},
		"later":                {250 * ms, 301 * ms, 301 * ms},
		"stopped for a while":  {50 * ms, 450 * ms, 650 * ms},
		"for all there is":     {50 * ms, 2000 * ms, 2000 * ms},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			start := time.Unix(1e9, 0)
			c := started(start, 2)
			c.decide(1, finding{verdict: answered})
			c.excuse(start.Add(tc.due), start.Add(tc.now))
			if c.over(start.Add(tc.overAt-1)) || !c.over(start.Add(tc.overAt)) {
				t.Errorf("not over at %v", tc.overAt)
			}
		})
	}
}

func TestTheFirstOneInTheListWinsWhateverTheOrderOfAnswers(t *testing.T) {
	now := time.Unix(1e9, 0)
	for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}, {2, 0, 3, 1}} {
		for winner := range 4 {
			c := started(now, 4)
			for _, i := range order {
				v := nxDomain
				if i >= winner {
					v = answered
				}
				c.decide(i, finding{verdict: v})
			}
			got, want := verdicts(c.findings()), append(slices.Repeat([]verdict{nxDomain}, winner), answered)
			if !c.over(now) || !c.won() || !slices.Equal(got, want) {
				t.Errorf("answers in the order %v: %v, want %v", order, got, want)
			}
		}
	}
}

func TestNothingIsAskedBehindTheOneThatEndsTheWalk(t *testing.T) {
	now := time.Unix(1e9, 0)
	for _, v := range []verdict{answered, truncated, owned, dropped, overloaded} {
		c := newCourse(pace{parallel: 2, timeout: 2 * time.Second}, now, candidates("db01.", domainsOf(longList(9)...)))
		for c.ready(now) {
			c.ask(now, admission{patience: patience})
		}
		c.decide(1, finding{verdict: v})
		if later := now.Add(hedgeDelay); c.ready(now) || c.ready(later) {
			t.Errorf("%v: the next one is asked all the same", v)
		}
		if wait := c.over(now.Add(patience)); wait != v.found() {
			t.Errorf("%v: past a silent one, over = %v, want %v", v, wait, v.found())
		}
		c.decide(0, finding{verdict: nxDomain})
		if !c.over(now) {
			t.Errorf("%v: not over when all in front of it are decided", v)
		}
	}
}

func TestWhatIsDueLiesAhead(t *testing.T) {
	start := time.Unix(1e9, 0)
	c := started(start, 3)
	var got []time.Duration
	for now := start; now.Before(c.end); {
		now = c.due(now)
		got = append(got, now.Sub(start))
	}
	if want := []time.Duration{hedgeDelay, patience, 2 * time.Second}; !slices.Equal(got, want) {
		t.Errorf("due at %v, want %v", got, want)
	}
}

func TestAnEmptyCourseIsOver(t *testing.T) {
	now := time.Unix(1e9, 0)
	if c := started(now, 0); !c.over(now) || c.won() || len(c.findings()) != 0 {
		t.Error("a walk with nobody to ask goes on")
	}
}

func TestAProbeIsGivenUpNoSoonerThanItsPatienceEnds(t *testing.T) {
	for wait, want := range map[time.Duration]time.Duration{hedgeDelay: patience, time.Second: time.Second} {
		now := time.Unix(1e9, 0)
		c := newCourse(pace{parallel: 1, timeout: 2 * time.Second}, now, candidates("db01.", domainsOf(longList(1)...)))
		c.ask(now, admission{probe: true, patience: wait})
		if c.over(now.Add(want-1)) || !c.over(now.Add(want)) {
			t.Errorf("with a patience of %v, not given up at %v", wait, want)
		}
	}
}
