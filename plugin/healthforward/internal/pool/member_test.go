package pool

import (
	"testing"
	"time"
)

// exchange lets a query to the member show an outcome at once, and returns what followed.
func exchange(t *testing.T, p *Pool, g *Group, now time.Time, id ID, o Outcome) (Transition, bool) {
	t.Helper()
	ticket := ask(t, p, g, now, id)
	defer p.End(ticket)
	return p.Report(now, ticket, o)
}

func TestWhoIsEjectedIsNotAskedThoughItWasOutOfReach(t *testing.T) {
	p, g, ids := newTestPool(t, "sequential", 2, DefaultRules())
	now := t0.Add(time.Second)
	for range unreachableRow {
		exchange(t, p, g, now, ids[0], Unreachable)
	}
	eject(t, p, g, &now, ids[0])
	if order := g.Pick(now, Query{}, nil); len(order) != 1 || order[0].ID != ids[1] {
		t.Errorf("order = %v, want b alone", order)
	}
}

func TestForceUpIsAsIfUp(t *testing.T) {
	p, g, ids := newTestPool(t, "sequential", 2, DefaultRules())
	now := t0.Add(time.Second)
	eject(t, p, g, &now, ids[0])
	p.SetAdmin(now, ids[0], ForceUp)
	for i := range ejectedInFlight + 1 {
		ticket := g.Pick(now, Query{}, nil)[0]
		if _, what := p.Start(now, ticket); ticket.ID != ids[0] || what != Started {
			t.Fatalf("Start of exchange %d with member %d = %v", i, ticket.ID, what)
		}
	}
}

func TestAnAnswerFromBeforeAnEjectionDoesNotEjectForSlowness(t *testing.T) {
	p, g, ids := newTestPool(t, "sequential", 2, DefaultRules())
	now := t0.Add(time.Second)
	exchange(t, p, g, now, ids[1], Answered)
	before := ask(t, p, g, now, ids[0])
	eject(t, p, g, &now, ids[0])
	comeBack(t, p, &now, ids[0])
	var slow []Ticket
	for range learnedFrom {
		slow = append(slow, ask(t, p, g, now, ids[0]))
	}
	now = now.Add(2 * time.Second)
	for _, ticket := range slow { // at once, so that only the first is followed by a look
		p.Report(now, ticket, Answered)
	}
	now = now.Add(relearnEvery)
	if tr, said := p.Report(now, before, Answered); said {
		t.Errorf("the answer from before: %+v", tr)
	}
	if tr, _ := p.Report(now, slow[0], Answered); tr.Cause != Slow {
		t.Errorf("an answer from after: %+v, want the ejection", tr)
	}
}

// answer lets the member answer n queries at once that took so long each, unseen by
// the judgement.
func answer(p *Pool, now time.Time, id ID, n int, took time.Duration) {
	for range n {
		p.members[id].latency.add(now, took)
	}
}

// Latencies are known up to a quarter, so what is just below a threshold is at the end
// of the bucket below it: 229 ms for 250 ms.
func TestWhoIsFarSlowerThanItsBestPeerIsEjected(t *testing.T) {
	for name, tc := range map[string]struct {
		slow     time.Duration // Rules.Slow
		n        int           // answers of the member
		took     time.Duration
		fastOnes int           // of the n, which took as long as the peer's
		peer     time.Duration // of each answer of the peer
		want     State
	}{
		"19 slow answers":                         {250 * ms, 19, 800 * ms, 0, 2 * ms, Up},
		"20 slow answers":                         {250 * ms, 20, 800 * ms, 0, 2 * ms, Ejected},
		"just below the least that is slow":       {250 * ms, 20, 229 * ms, 0, 2 * ms, Up},
		"just above it":                           {250 * ms, 20, 263 * ms, 0, 2 * ms, Ejected},
		"just below five times the peer's":        {250 * ms, 20, 480 * ms, 0, 100 * ms, Up},
		"just above five times the peer's":        {250 * ms, 20, 720 * ms, 0, 100 * ms, Ejected},
		"the peer is as slow":                     {250 * ms, 20, 800 * ms, 0, 800 * ms, Up},
		"most names are fast":                     {250 * ms, 40, 800 * ms, 21, 2 * ms, Up},
		"most names are slow":                     {250 * ms, 40, 800 * ms, 19, 2 * ms, Ejected},
		"nothing is known of the peer":            {250 * ms, 20, 800 * ms, 0, 0, Up},
		"a limit of a second":                     {time.Second, 20, 800 * ms, 0, 2 * ms, Up},
		"never ejected for it, however slow":      {0, 20, 4 * time.Second, 0, 2 * ms, Up},
		"a lower limit than the peer's five time": {100 * ms, 20, 200 * ms, 0, 10 * ms, Ejected},
	} {
		t.Run(name, func(t *testing.T) {
			rules := DefaultRules()
			rules.Slow = tc.slow
			p, g, ids := newTestPool(t, "sequential", 2, rules)
			now := t0.Add(10 * time.Second)
			if tc.peer > 0 {
				answer(p, now, ids[1], 100, tc.peer)
			}
			p.members[ids[0]].latency = latency{}
			answer(p, now, ids[0], tc.fastOnes, tc.peer)
			answer(p, now, ids[0], tc.n-tc.fastOnes-1, tc.took)
			tr, _ := endAs(t, p, g, &now, ids[0], Query{}, tc.took, Answered)
			if got := p.State(ids[0]); got != tc.want {
				t.Errorf("state = %v, want %v", got, tc.want)
			}
			if tc.want == Ejected && tr.Cause != Slow {
				t.Errorf("cause = %v, want %v", tr.Cause, Slow)
			}
		})
	}
	t.Run("the last one that is up never is", func(t *testing.T) {
		p, g, ids := newTestPool(t, "sequential", 2, DefaultRules())
		now := t0.Add(10 * time.Second)
		answer(p, now, ids[1], 100, 2*ms)
		exchange(t, p, g, now, ids[1], Refused)
		answer(p, now, ids[0], 100, 800*ms)
		endAs(t, p, g, &now, ids[0], Query{}, 800*ms, Answered)
		if got := p.State(ids[0]); got != Up {
			t.Errorf("state = %v, want %v", got, Up)
		}
	})
}

func TestWhoWasSilentAndAnswersLateIsSlow(t *testing.T) {
	for name, tc := range map[string]struct {
		took []time.Duration // of the answers to probes
		want Cause           // of the ejection; None: it is back
	}{
		"no answer yet":                        {nil, Silent},
		"just below the limit":                 {[]time.Duration{250 * ms}, Silent},
		"just above it":                        {[]time.Duration{250*ms + 1}, Slow},
		"all are late":                         {[]time.Duration{800 * ms, 800 * ms, 800 * ms}, Slow},
		"twice in time brings it back":         {[]time.Duration{2 * ms, 2 * ms}, None},
		"late once and then in time":           {[]time.Duration{800 * ms, 2 * ms}, Silent},
		"late once and then twice in time":     {[]time.Duration{800 * ms, 2 * ms, 2 * ms}, None},
		"in time once and then late":           {[]time.Duration{2 * ms, 800 * ms}, Slow},
		"in time, late, in time: starts again": {[]time.Duration{2 * ms, 800 * ms, 2 * ms}, Silent},
	} {
		t.Run(name, func(t *testing.T) {
			p, g, ids := newTestPool(t, "sequential", 2, DefaultRules())
			now := t0.Add(time.Second)
			answer(p, now, ids[1], 20, 2*ms)
			eject(t, p, g, &now, ids[0])
			for _, took := range tc.took {
				ticket := nextProbeOf(t, p, &now, ids[0])
				now = now.Add(took)
				p.Report(now, ticket, Answered)
			}
			m := p.members[ids[0]]
			if back := m.state != Ejected; back != (tc.want == None) || !back && m.why != tc.want {
				t.Errorf("state = %v for being %v, want %v", m.state, m.why, tc.want)
			}
		})
	}
}

func TestWhoIsOutOfReachIsAskedLastForAWhile(t *testing.T) {
	for name, tc := range map[string]struct {
		outcomes string // of a's exchanges: u: unreachable, a: answered
		others   bool   // b can be reached
		later    time.Duration
		want     string
	}{
		"twice":                        {"uu", true, 0, "ab"},
		"three times":                  {"uuu", true, 0, "ba"},
		"just before a second is over": {"uuu", true, unreachableSkip - 1, "ba"},
		"a second later":               {"uuu", true, unreachableSkip, "ab"},
		"an answer between":            {"uuauu", true, 0, "ab"},
		"an answer after":              {"uuua", true, 0, "ab"},
		"nobody can be reached":        {"uuu", false, 0, "ab"},
	} {
		t.Run(name, func(t *testing.T) {
			p, g, ids := newTestPool(t, "sequential", 2, DefaultRules())
			now := t0.Add(time.Second)
			if !tc.others {
				exchange(t, p, g, now, ids[1], Unreachable)
			}
			for _, o := range tc.outcomes {
				if tr, said := exchange(t, p, g, now, ids[0], map[rune]Outcome{'u': Unreachable, 'a': Answered}[o]); said {
					t.Errorf("%+v, want nothing: it is our own fault", tr)
				}
			}
			if got := order(g, now.Add(tc.later), Query{}); got != tc.want {
				t.Errorf("order = %q, want %q", got, tc.want)
			}
		})
	}
}

// order returns the members in the order in which a query would ask, by their rank.
func order(g *Group, now time.Time, q Query) string {
	var names []byte
	for _, ticket := range g.Pick(now, q, nil) {
		names = append(names, byte('a'+ticket.Rank))
	}
	return string(names)
}

func TestWhomAFirewallBlocksIsDoubtedUnlessAllAre(t *testing.T) {
	for name, tc := range map[string]struct {
		between time.Duration // from b's to a's
		blocked string        // in this order
		want    []State
	}{
		"one only":                        {0, "a", []State{Suspect, Up, Up}},
		"two of three":                    {0, "ba", []State{Suspect, Suspect, Up}},
		"all: the last shows it":          {0, "cba", []State{Up, Suspect, Suspect}},
		"all, within the time":            {blockedTogether / 2, "cba", []State{Up, Suspect, Suspect}},
		"all, but not together":           {blockedTogether, "cba", []State{Suspect, Suspect, Suspect}},
		"all, and again: no more follows": {0, "cbacba", []State{Up, Suspect, Suspect}},
	} {
		t.Run(name, func(t *testing.T) {
			p, g, ids := newTestPool(t, "sequential", 3, DefaultRules())
			now := t0.Add(time.Second)
			for _, name := range tc.blocked {
				exchange(t, p, g, now, ids[name-'a'], Blocked)
				now = now.Add(tc.between)
			}
			for i, id := range ids {
				if got := p.State(id); got != tc.want[i] {
					t.Errorf("%c is %v, want %v", 'a'+i, got, tc.want[i])
				}
			}
		})
	}
}

func TestADryRunEjectsNobodyAndSaysWhomItWould(t *testing.T) {
	rules := DefaultRules()
	rules.DryRun = true
	for name, tc := range map[string]struct {
		do   func(t *testing.T, p *Pool, g *Group, now *time.Time, id ID) (Transition, bool)
		want Cause
	}{
		"silence": {func(t *testing.T, p *Pool, g *Group, now *time.Time, id ID) (tr Transition, said bool) {
			p.Report(*now, ask(t, p, g, *now, id), Late)
			for range 2 {
				ticket := nextProbeOf(t, p, now, id)
				tr, said = p.Report(*now, ticket, Lost)
			}
			return tr, said
		}, Silent},
		"losses": {func(t *testing.T, p *Pool, g *Group, now *time.Time, id ID) (tr Transition, said bool) {
			for i := range 5 {
				tr, said = lose(t, p, g, now, id, uint64(i))
			}
			return tr, said
		}, Losses},
		"slowness": {func(t *testing.T, p *Pool, g *Group, now *time.Time, id ID) (Transition, bool) {
			*now = now.Add(10 * time.Second)
			answer(p, *now, id, 100, 800*ms)
			answer(p, *now, id+1, 100, 2*ms)
			return endAs(t, p, g, now, id, Query{}, 800*ms, Answered)
		}, Slow},
	} {
		t.Run(name, func(t *testing.T) {
			p, g, ids := newTestPool(t, "sequential", 2, rules)
			now := t0.Add(time.Second)
			tr, said := tc.do(t, p, g, &now, ids[0])
			if !said || !tr.WouldEject || tr.Cause != tc.want || tr.To == Ejected || tr.Hold != 0 {
				t.Errorf("transition = %+v, want that it would be ejected as %v", tr, tc.want)
			}
			if got := p.State(ids[0]); got == Ejected {
				t.Errorf("state = %v", got)
			}
		})
	}
}
