package pool

import (
	"testing"
	"time"
)

// ejectByLosses makes the member lose five queries in a row, of a domain each.
func ejectByLosses(t *testing.T, p *Pool, g *Group, now *time.Time, id ID) {
	t.Helper()
	for i := range 5 {
		lose(t, p, g, now, id, uint64(i))
	}
	if got := p.State(id); got != Ejected {
		t.Fatalf("state = %v after five losses, want %v", got, Ejected)
	}
}

// lose makes the member lose a query to a peer.
func lose(t *testing.T, p *Pool, g *Group, now *time.Time, id ID, domain uint64) (Transition, bool) {
	t.Helper()
	return endAs(t, p, g, now, id, Query{Domain: domain}, time.Second, LostToPeer)
}

// endAs lets a query to the member end with an outcome after a time.
func endAs(t *testing.T, p *Pool, g *Group, now *time.Time, id ID, q Query, took time.Duration, o Outcome) (Transition, bool) {
	t.Helper()
	for _, ticket := range g.Pick(*now, q, nil) {
		if ticket.ID == id {
			started, _ := p.Start(*now, ticket)
			*now = now.Add(took)
			defer p.End(started)
			return p.Report(*now, started, o)
		}
	}
	t.Fatalf("member %d is not to be asked", id)
	return Transition{}, false
}

func TestAGoodCopyPutsUpItsSenderWhereNobodyIs(t *testing.T) {
	p, g, ids := newTestPool(t, "sequential", 2, DefaultRules())
	now := t0.Add(time.Second)
	ejectByLosses(t, p, g, &now, ids[0])
	for range 2 {
		p.Report(now, nextProbeOf(t, p, &now, ids[0]), Answered)
	}
	ticket, ok := g.Shadow(now, Query{})
	if !ok || ticket.ID != ids[0] {
		t.Fatalf("Shadow = %v, %v, want one for a", ticket, ok)
	}
	exchange(t, p, g, now, ids[1], Refused)
	if tr, _ := p.Report(now, ticket, Answered); tr.To != Up || tr.Cause != AloneAndHeard {
		t.Errorf("transition = %+v, want up at once", tr)
	}
}

func TestGoodCopiesInARowBringBackWhoLost(t *testing.T) {
	for name, tc := range map[string]struct {
		results string // of copies a second from each other: a: answered, s: slowly, f: failed, l: lost, x: given up by us
		want    State
	}{
		"none":                          {"", Ejected},
		"two good ones":                 {"aa", Ejected},
		"three good ones":               {"aaa", SlowStart},
		"a lost one between":            {"aalaa", Ejected},
		"three after a lost one":        {"aalaaa", SlowStart},
		"a failing rcode between":       {"aafaa", Ejected},
		"a slow answer between":         {"aasaa", Ejected},
		"one that we gave up says none": {"aaxa", SlowStart},
	} {
		t.Run(name, func(t *testing.T) {
			p, g, ids := newTestPool(t, "sequential", 2, DefaultRules())
			now := t0.Add(time.Second)
			answer(p, now, ids[1], 20, 2*ms)
			ejectByLosses(t, p, g, &now, ids[0])
			for range 2 {
				p.Report(now, nextProbeOf(t, p, &now, ids[0]), Answered)
			}
			for _, r := range tc.results {
				ticket, ok := g.Shadow(now, Query{})
				if !ok || ticket.ID != ids[0] {
					t.Fatalf("Shadow = %v, %v, want one for a", ticket, ok)
				}
				took := 2 * ms
				if r == 's' {
					took = 251 * ms
				}
				p.Report(now.Add(took), ticket, map[rune]Outcome{'a': Answered, 's': Answered, 'f': Failed, 'l': Lost, 'x': Abandoned}[r])
				p.End(ticket)
				now = now.Add(shadowEvery)
			}
			if got := p.State(ids[0]); got != tc.want {
				t.Errorf("state = %v, want %v", got, tc.want)
			}
		})
	}
}

func TestWhoGetsCopies(t *testing.T) {
	const never = time.Duration(-1)
	for name, tc := range map[string]struct {
		why    Cause // of the ejection; None: it is suspect
		passes int
		last   time.Duration // since the last copy; never: there was none
		change func(m *member, now time.Time)
		want   bool
	}{
		"ejected for losses":                {Losses, 2, never, nil, true},
		"ejected for slowness":              {Slow, 2, never, nil, true},
		"ejected for rcodes":                {BadRcodes, 2, never, nil, true},
		"ejected for silence":               {Silent, 2, never, nil, false},
		"ejected as refused":                {RefusedProbes, 2, never, nil, false},
		"one probe short":                   {Losses, 1, never, nil, false},
		"the last one was just now":         {Losses, 2, 0, nil, false},
		"just less than a second ago":       {Losses, 2, shadowEvery - 1, nil, false},
		"a second ago":                      {Losses, 2, shadowEvery, nil, true},
		"the hold is not over":              {Losses, 2, never, func(m *member, now time.Time) { m.holds.until = now.Add(1) }, false},
		"the hold is just over":             {Losses, 2, never, func(m *member, now time.Time) { m.holds.until = now }, true},
		"in maint":                          {Losses, 2, never, func(m *member, _ time.Time) { m.admin = Maint }, false},
		"drained":                           {Losses, 2, never, func(m *member, _ time.Time) { m.admin = Drain }, true},
		"full":                              {Losses, 2, never, func(m *member, _ time.Time) { m.inFlight = ejectedInFlight }, false},
		"one short of full":                 {Losses, 2, never, func(m *member, _ time.Time) { m.inFlight = ejectedInFlight - 1 }, true},
		"never probed: passes none":         {Silent, 0, never, func(m *member, _ time.Time) { m.rules.NoProbe = true }, true},
		"suspect, and probed":               {None, 0, never, nil, false},
		"suspect, and nothing would acquit": {None, 0, never, func(m *member, _ time.Time) { m.rules.NoProbe = true }, true},
	} {
		t.Run(name, func(t *testing.T) {
			p, g, ids := newTestPool(t, "sequential", 2, DefaultRules())
			now := t0.Add(time.Minute)
			m := p.members[ids[0]]
			m.suspect(now, LateAnswer)
			if tc.why != None {
				m.eject(now, tc.why, "")
			}
			m.probes.passes = tc.passes
			if tc.last != never {
				m.shadows.last = now.Add(-tc.last)
			}
			if tc.change != nil {
				tc.change(m, now)
			}
			if _, got := g.Shadow(now, Query{}); got != tc.want {
				t.Errorf("a copy: %v, want %v", got, tc.want)
			}
		})
	}
}

func TestACopyOfAPrivateQueryStaysInTheFirstTier(t *testing.T) {
	p, _, ids := newTestPool(t, "sequential", 2, DefaultRules())
	g := newTestGroup(t, p, "sequential", ids[:1], ids[1:])
	m := p.members[ids[1]]
	m.eject(t0, Losses, "")
	m.probes.passes = 2
	if ticket, ok := g.Shadow(t0, Query{Private: true}); ok {
		t.Errorf("Shadow = %v", ticket)
	}
	if _, ok := g.Shadow(t0, Query{}); !ok {
		t.Error("no copy of a query that is not private")
	}
}

func TestFastestGetsToKnowTheOthersByCopies(t *testing.T) {
	for name, tc := range map[string]struct {
		policy string
		later  time.Duration
		want   bool
	}{
		"just after its last answer":      {"fastest", shadowEvery - 1, false},
		"a second after":                  {"fastest", shadowEvery, true},
		"other policies ask them anyway":  {"random", time.Hour, false},
		"a long time after, and they too": {"fastest", time.Hour, true},
	} {
		t.Run(name, func(t *testing.T) {
			p, g, ids := newTestPool(t, tc.policy, 2, DefaultRules())
			for _, id := range ids {
				answer(p, t0, id, 1, 2*ms)
			}
			if _, got := g.Shadow(t0.Add(tc.later), Query{}); got != tc.want {
				t.Errorf("a copy: %v, want %v", got, tc.want)
			}
		})
	}
}
