package pool

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestFallProbesInARowEject(t *testing.T) {
	for name, tc := range map[string]struct {
		fall, misses int
		want         State
	}{
		"fall 1, none missed":           {1, 0, Suspect},
		"fall 1, one missed":            {1, 1, Ejected},
		"fall 2, one missed":            {2, 1, Suspect},
		"fall 2, two missed":            {2, 2, Ejected},
		"fall 5, four missed":           {5, 4, Suspect},
		"fall 5, five missed":           {5, 5, Ejected},
		"fall 0 never ejects by probes": {0, 50, Suspect},
	} {
		t.Run(name, func(t *testing.T) {
			rules := DefaultRules()
			rules.Fall = tc.fall
			p, g, ids := newTestPool(t, "sequential", 2, rules)
			now := t0.Add(time.Second)
			p.Report(now.Add(250*ms), ask(t, p, g, now, ids[0]), Late)
			now = now.Add(250 * ms)
			for range tc.misses {
				ticket := nextProbeOf(t, p, &now, ids[0])
				now = now.Add(ticket.Timeout)
				p.Report(now, ticket, Lost)
			}
			if got := p.State(ids[0]); got != tc.want {
				t.Errorf("state = %v, want %v", got, tc.want)
			}
		})
	}
}

// nextProbeOf moves now to the next probe of that member, answering those of others.
func nextProbeOf(t *testing.T, p *Pool, now *time.Time, id ID) Ticket {
	t.Helper()
	for range 1000 {
		ticket, at, ok := p.NextProbe(*now)
		switch {
		case ok && ticket.ID == id:
			return ticket
		case ok:
			p.Report(*now, ticket, Answered)
		case at.IsZero():
			t.Fatal("no probe in sight")
		default:
			*now = at
		}
	}
	t.Fatal("no probe of the member in a thousand")
	return Ticket{}
}

func TestRiseProbesInARowReturn(t *testing.T) {
	for name, tc := range map[string]struct {
		rise    int
		results string // a: answered, l: lost
		want    State
	}{
		"rise 1, one answered":                 {1, "a", SlowStart},
		"rise 2, one answered":                 {2, "a", Ejected},
		"rise 2, two answered":                 {2, "aa", SlowStart},
		"rise 2, a miss between starts afresh": {2, "ala", Ejected},
		"rise 3, two answered":                 {3, "aa", Ejected},
		"rise 3, three answered":               {3, "aaa", SlowStart},
	} {
		t.Run(name, func(t *testing.T) {
			rules := DefaultRules()
			rules.Rise, rules.Fall = tc.rise, 1
			p, g, ids := newTestPool(t, "sequential", 2, rules)
			now := t0.Add(time.Second)
			eject(t, p, g, &now, ids[0])
			for _, result := range tc.results {
				ticket := nextProbeOf(t, p, &now, ids[0])
				outcome := Answered
				if result == 'l' {
					outcome = Lost
				}
				p.Report(now, ticket, outcome)
			}
			if got := p.State(ids[0]); got != tc.want {
				t.Errorf("state = %v, want %v", got, tc.want)
			}
		})
	}
}

// eject makes the member fall by as many silent probes as it takes.
func eject(t *testing.T, p *Pool, g *Group, now *time.Time, id ID) Transition {
	t.Helper()
	late := ask(t, p, g, *now, id)
	*now = now.Add(late.Patience)
	p.Report(*now, late, Late)
	for range 100 {
		ticket := nextProbeOf(t, p, now, id)
		*now = now.Add(ticket.Timeout)
		if tr, changed := p.Report(*now, ticket, Lost); changed && tr.To == Ejected {
			return tr
		}
	}
	t.Fatal("a hundred silent probes do not eject")
	return Transition{}
}

// comeBack lets the member pass probes until it is up.
func comeBack(t *testing.T, p *Pool, now *time.Time, id ID) {
	t.Helper()
	for range 1000 {
		ticket := nextProbeOf(t, p, now, id)
		if tr, changed := p.Report(*now, ticket, Answered); changed && tr.From == Ejected && tr.To != Ejected {
			return
		}
	}
	t.Fatal("a thousand answered probes do not bring it back")
}

func TestBackWithinTwoSecondsOfAShortOutage(t *testing.T) {
	for seed := range uint64(200) {
		p := New(rand.NewPCG(seed, seed))
		a, b := p.Add(t0, "a", DefaultRules()), p.Add(t0, "b", DefaultRules())
		g := newTestGroup(t, p, "sequential", []ID{a, b})
		now := t0
		comeUp := nextProbeOf(t, p, &now, a)
		p.Report(now, comeUp, Answered)
		p.Report(now, nextProbeOf(t, p, &now, b), Answered)
		now = now.Add(time.Second)
		eject(t, p, g, &now, a)
		outage := now.Add(time.Duration(seed) * 25 * ms) // ends some time within the next five seconds
		for {
			ticket := nextProbeOf(t, p, &now, a)
			if now.Before(outage) {
				now = now.Add(ticket.Timeout)
				p.Report(now, ticket, Lost)
				continue
			}
			if _, up := p.Report(now, ticket, Answered); up {
				break
			}
		}
		if took := now.Sub(outage); took > 2*time.Second {
			t.Errorf("seed %d: back %v after the outage, want at most 2s", seed, took)
		}
	}
}

func TestAProbeFromBeforeAnEjectionIsNoPass(t *testing.T) {
	rules := DefaultRules()
	rules.Rise = 1
	p, g, ids := newTestPool(t, "sequential", 2, rules)
	now := t0.Add(time.Second)
	p.Report(now, ask(t, p, g, now, ids[0]), Late)
	before := nextProbeOf(t, p, &now, ids[0])
	ejectByLosses(t, p, g, &now, ids[0])
	p.Report(now, before, Answered)
	if ticket, ok := g.Shadow(now, Query{}); ok {
		t.Errorf("Shadow = %v, want none before a probe from after", ticket)
	}
	p.Report(now, nextProbeOf(t, p, &now, ids[0]), Answered)
	if _, ok := g.Shadow(now, Query{}); !ok {
		t.Error("no shadow after it")
	}
}

func TestSocketsAreReplacedBeforeAnybodyIsBlamed(t *testing.T) {
	for name, tc := range map[string]struct {
		before time.Duration // since they were last replaced; 0: never
		losses int           // since the last good answer
		want   bool
	}{
		"nothing was lost":             {0, 0, false},
		"one was lost":                 {0, 1, true},
		"just before a minute is over": {renewEvery - 1, 1, false},
		"a minute after the last time": {renewEvery, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			p, g, ids := newTestPool(t, "sequential", 2, DefaultRules())
			now := t0.Add(2 * time.Minute)
			m := p.members[ids[0]]
			for range tc.losses {
				lose(t, p, g, &now, ids[0], 1)
			}
			m.suspect(now, LateAnswer)
			if tc.before > 0 {
				m.renewed = now.Add(-tc.before)
			}
			tr, _ := p.Report(now, nextProbeOf(t, p, &now, ids[0]), Answered)
			if tr.Renew != tc.want {
				t.Errorf("transition = %+v, want sockets to be replaced: %v", tr, tc.want)
			}
			if tc.want && m.evidence.rows[loss].n != 0 {
				t.Errorf("the row stays at %d", m.evidence.rows[loss].n)
			}
		})
	}
}

func TestWhatAnOldSocketLosesIsNotHeldAgainstTheNewOnes(t *testing.T) {
	for name, tc := range map[string]struct {
		after time.Duration // the replacement, of the sending
		want  int           // in the row
	}{
		"sent just before": {-1, 0},
		"sent just then":   {0, 1},
		"sent after":       {time.Second, 1},
	} {
		t.Run(name, func(t *testing.T) {
			p, g, ids := newTestPool(t, "sequential", 2, DefaultRules())
			now := t0.Add(time.Minute)
			m := p.members[ids[0]]
			ticket := ask(t, p, g, now, ids[0])
			m.renewed = now.Add(-tc.after)
			p.Report(now.Add(time.Second), ticket, LostToPeer)
			if got := m.evidence.rows[loss].n; got != tc.want {
				t.Errorf("%d in a row, want %d", got, tc.want)
			}
		})
	}
}

func TestProbeTimeout(t *testing.T) {
	for name, tc := range map[string]struct {
		rtt     time.Duration
		members string // a is probed; see set
		lower   bool   // b is of a lower tier
		heard   bool
		want    time.Duration
	}{
		"before the first sample":         {0, "su", false, false, probeTimeoutCold},
		"a LAN":                           {ms, "su", false, true, probeTimeoutMin},
		"just below the least":            {24 * ms, "su", false, true, probeTimeoutMin},
		"just above the least":            {26 * ms, "su", false, true, 104 * ms},
		"just below the most":             {249 * ms, "su", false, true, 996 * ms},
		"above the most":                  {251 * ms, "su", false, true, probeTimeoutMax},
		"ejected: no hurry":               {ms, "eu", false, true, probeTimeoutMax},
		"the last one: no hurry":          {ms, "ss", false, true, probeTimeoutMax},
		"the last one, never heard of":    {ms, "ss", false, false, probeTimeoutMin},
		"the last one above a lower tier": {ms, "su", true, true, probeTimeoutMin},
	} {
		t.Run(name, func(t *testing.T) {
			p, _, ids := newTestPool(t, "sequential", 2, DefaultRules())
			p.groups = nil
			if tc.lower {
				newTestGroup(t, p, "sequential", ids[:1], ids[1:])
			} else {
				newTestGroup(t, p, "sequential", ids)
			}
			set(p, t0, ids, tc.members)
			m := p.members[ids[0]]
			m.probes.rtt = tc.rtt
			if !tc.heard {
				m.heard = time.Time{}
			}
			if got := m.probeTimeout(peers{p, m, t0}); got != tc.want {
				t.Errorf("time-out = %v, want %v", got, tc.want)
			}
		})
	}
}

func TestProbeIntervalsGrow(t *testing.T) {
	p, g, ids := newTestPool(t, "sequential", 2, DefaultRules())
	now := t0.Add(time.Second)
	eject(t, p, g, &now, ids[0])
	ejected, last := now, now
	for now.Sub(ejected) < 3*time.Minute {
		ticket := nextProbeOf(t, p, &now, ids[0])
		age, gap := now.Sub(ejected), now.Sub(last)
		low, high := 800*ms, 1200*ms
		if age > time.Minute { // 1 s × 1.5 by then is beyond 5 s
			low, high = 4*time.Second, 6*time.Second
		} else if age > probeSteady {
			high = 6 * time.Second
		}
		if gap < low || gap > high {
			t.Errorf("%v between probes %v after the ejection, want %v to %v", gap, age, low, high)
		}
		last = now
		now = now.Add(ticket.Timeout)
		p.Report(now, ticket, Lost)
	}
}

func TestASuspectIsProbedThoughTheClockRunsBackwards(t *testing.T) {
	p, _, ids := newTestPool(t, "sequential", 2, DefaultRules())
	p.members[ids[0]].suspect(t0, LateAnswer)
	now := t0.Add(-time.Hour)
	p.SetAdmin(now, ids[0], Ready)
	p.Report(now.Add(150*ms), nextProbeOf(t, p, &now, ids[0]), Lost)
	start := now
	nextProbeOf(t, p, &now, ids[0])
	if got := now.Sub(start); got > 2*time.Second {
		t.Errorf("the next probe comes %v later, want seconds", got)
	}
}
