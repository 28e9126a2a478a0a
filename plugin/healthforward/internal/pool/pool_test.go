package pool

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

// newTestPool returns a pool of members a, b, ... that are up at t0, and their group.
func newTestPool(t testing.TB, policy string, n int, rules Rules) (*Pool, *Group, []ID) {
	t.Helper()
	p := New(rand.NewPCG(1, 2))
	var ids []ID
	for i := range n {
		ids = append(ids, p.Add(t0, string(rune('a'+i)), rules))
	}
	g := newTestGroup(t, p, policy, ids)
	for range n {
		ticket, _, ok := p.NextProbe(t0)
		if !ok {
			t.Fatal("no probe is due at the start")
		}
		p.Report(t0, ticket, Answered)
	}
	return p, g, ids
}

// newTestGroup returns a group that hedges after 250 ms, with a tier for each of ids.
func newTestGroup(t testing.TB, p *Pool, policy string, tiers ...[]ID) *Group {
	t.Helper()
	g, err := p.Group(Plan{Tiers: tiers, Policy: policy, Hedge: Hedge{250 * ms, 250 * ms, 250 * ms}, Budget: 0.2})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// ask starts a query to the member of that ID.
func ask(t testing.TB, p *Pool, g *Group, now time.Time, id ID) Ticket {
	t.Helper()
	for _, ticket := range g.Pick(now, Query{}, nil) {
		if ticket.ID == id {
			if started, what := p.Start(now, ticket); what == Started {
				return started
			}
		}
	}
	t.Fatalf("member %d is not to be asked", id)
	return Ticket{}
}

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

func TestHoldGrowsOnlyForWhoFallsSoonAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		between []time.Duration // from each return to the next fall
		want    []time.Duration // holds
	}{
		"the first has none":                     {nil, []time.Duration{0}},
		"again within a minute":                  {[]time.Duration{30 * time.Second}, []time.Duration{0, 5 * time.Second}},
		"again after more than a minute":         {[]time.Duration{61 * time.Second}, []time.Duration{0, 0}},
		"it doubles":                             {repeat(time.Second, 4), []time.Duration{0, 5 * time.Second, 10 * time.Second, 20 * time.Second, 40 * time.Second}},
		"up to five minutes":                     {repeat(time.Second, 9), []time.Duration{0, 5e9, 10e9, 20e9, 40e9, 80e9, 160e9, 300e9, 300e9, 300e9}},
		"a quiet while keeps what it has grown":  {[]time.Duration{time.Second, time.Second, 5 * time.Minute}, []time.Duration{0, 5e9, 10e9, 10e9}},
		"ten quiet minutes forgive, and no less": {[]time.Duration{time.Second, 11 * time.Minute}, []time.Duration{0, 5e9, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			p, g, ids := newTestPool(t, "sequential", 2, DefaultRules())
			now := t0.Add(time.Second)
			var got []time.Duration
			for i := range tc.want {
				tr := eject(t, p, g, &now, ids[0])
				got = append(got, tr.Hold)
				if i < len(tc.between) {
					comeBack(t, p, &now, ids[0])
					if up := now; up.Before(tr.At.Add(tr.Hold)) {
						t.Errorf("back after %v, want a hold of %v", up.Sub(tr.At), tr.Hold)
					}
					now = now.Add(tc.between[i] - 450*ms) // the fall itself takes 250 + 2×100 ms
				}
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("holds = %v, want %v", got, tc.want)
			}
		})
	}
}

func repeat(d time.Duration, n int) []time.Duration { return slices.Repeat([]time.Duration{d}, n) }

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

// A fresh socket that is answered while pooled ones lose has these replaced, once in a
// while, and only what the new ones lose counts.
func TestFiveLossesInARowEject(t *testing.T) {
	for name, tc := range map[string]struct {
		results string // l: lost to a peer, a: answered, t: timed out, p: a probe passes
		want    State
	}{
		"four lost":                            {"llll", Suspect},
		"five lost":                            {"lllll", Ejected},
		"an answer between starts afresh":      {"llllall", Suspect},
		"a fresh socket is answered between":   {"llllpl", Suspect},
		"the new ones lose as well":            {"llllplllll", Ejected},
		"it is answered again between":         {"lpllllpl", Ejected},
		"time-outs count like those to a peer": {"ttttt", Ejected},
	} {
		t.Run(name, func(t *testing.T) {
			p, g, ids := newTestPool(t, "sequential", 2, DefaultRules())
			now := t0.Add(time.Second)
			for _, r := range tc.results {
				if r == 'p' {
					p.Report(now, nextProbeOf(t, p, &now, ids[0]), Answered)
					continue
				}
				ticket := ask(t, p, g, now, ids[0])
				now = now.Add(time.Second)
				p.Report(now, ticket, map[rune]Outcome{'l': LostToPeer, 'a': Answered, 't': Lost}[r])
				p.End(ticket)
			}
			if got := p.State(ids[0]); got != tc.want {
				t.Errorf("state = %v, want %v", got, tc.want)
			}
		})
	}
}

func TestStartKeepsToTheLimits(t *testing.T) {
	rules := DefaultRules()
	rules.InFlight = 3
	p, g, ids := newTestPool(t, "sequential", 2, rules)
	now := t0.Add(time.Second)
	var tickets []Ticket
	for range 3 {
		tickets = append(tickets, ask(t, p, g, now, ids[0]))
	}
	fourth := g.Pick(now, Query{}, nil)[0]
	if _, what := p.Start(now, fourth); what != Full {
		t.Errorf("Start of a fourth = %v, want %v", what, Full)
	}
	p.End(tickets[0])
	if _, what := p.Start(now, fourth); what != Started {
		t.Errorf("Start after one ended = %v, want %v", what, Started)
	}
	p.Remove(ids[0])
	if _, what := p.Start(now, fourth); what != Gone {
		t.Errorf("Start of one that left = %v, want %v", what, Gone)
	}
}

func TestFewWaitForWhoIsEjected(t *testing.T) {
	rules := DefaultRules()
	p, g, ids := newTestPool(t, "sequential", 1, rules)
	now := t0.Add(time.Second)
	eject(t, p, g, &now, ids[0]) // its query waits on
	for range ejectedInFlight - 1 {
		ask(t, p, g, now, ids[0])
	}
	if _, what := p.Start(now, g.Pick(now, Query{}, nil)[0]); what != Full {
		t.Errorf("Start of one more = %v, want %v", what, Full)
	}
}

func TestAPickedTicketIsVoidOnceItsMemberIsEjected(t *testing.T) {
	p, g, ids := newTestPool(t, "sequential", 2, DefaultRules())
	now := t0.Add(time.Second)
	picked := g.Pick(now, Query{}, nil)[0]
	eject(t, p, g, &now, ids[0])
	if _, what := p.Start(now, picked); what != Gone {
		t.Errorf("Start = %v, want %v", what, Gone)
	}
}

func TestATwinStartsAsItsSiblingStands(t *testing.T) {
	p, g, ids := newTestPool(t, "sequential", 2, DefaultRules())
	now := t0.Add(time.Second)
	eject(t, p, g, &now, ids[0])
	rules := DefaultRules()
	rules.Fall = 7
	if got := p.State(p.Add(now, "a", rules)); got != Ejected {
		t.Errorf("twin of a = %v, want %v", got, Ejected)
	}
	if got := p.State(p.Add(now, "b", rules)); got != Up {
		t.Errorf("twin of b = %v, want %v", got, Up)
	}
	if got := p.State(p.Add(now, "c", rules)); got != Suspect {
		t.Errorf("newcomer c = %v, want %v", got, Suspect)
	}
}

func TestReadyOnceOneIsUpOrAllAreJudged(t *testing.T) {
	for name, tc := range map[string]struct {
		states string // s, u, e for each member
		want   bool
	}{
		"nobody is judged":            {"ss", false},
		"one is up":                   {"su", true},
		"one is ejected, one unknown": {"es", false},
		"all are ejected":             {"ee", true},
	} {
		t.Run(name, func(t *testing.T) {
			p := New(rand.NewPCG(1, 2))
			var ids []ID
			for i, s := range tc.states {
				id := p.Add(t0, fmt.Sprint(i), DefaultRules())
				ids = append(ids, id)
				p.members[id].state = map[rune]State{'s': Suspect, 'u': Up, 'e': Ejected}[s]
			}
			g := newTestGroup(t, p, "random", ids)
			if got := g.Ready(); got != tc.want {
				t.Errorf("Ready = %v, want %v", got, tc.want)
			}
		})
	}
}

func TestPolicies(t *testing.T) {
	orders := func(policy string, n int) map[string]int {
		_, g, _ := newTestPool(t, policy, 3, DefaultRules())
		got := make(map[string]int)
		for range n {
			var order strings.Builder
			for _, ticket := range g.Pick(t0, Query{}, nil) {
				order.WriteByte(byte('a' + ticket.Rank))
			}
			got[order.String()]++
		}
		return got
	}
	if got := orders("sequential", 100); got["abc"] != 100 {
		t.Errorf("sequential = %v, want abc always", got)
	}
	if got := orders("round_robin", 99); got["abc"] != 33 || got["bca"] != 33 || got["cab"] != 33 {
		t.Errorf("round_robin = %v, want each rotation a third of the time", got)
	}
	got := orders("random", 6000)
	for order, n := range got {
		if n < 900 || n > 1100 {
			t.Errorf("random: order %s %d times of 6000, want about 1000", order, n)
		}
	}
	if len(got) != 6 {
		t.Errorf("random: %d orders, want 6", len(got))
	}
	if _, err := New(rand.NewPCG(1, 2)).Group(Plan{Policy: "best"}); err == nil {
		t.Error("Group takes an unknown policy")
	}
}

func TestBudget(t *testing.T) {
	second := func(n float64) time.Time { return t0.Add(time.Duration(n * float64(time.Second))) }
	t.Run("begins with its cap", func(t *testing.T) {
		b := budget{perQuery: 0.2}
		if !b.spend(t0, budgetCap) || b.spend(t0, 1) {
			t.Error("want exactly the cap at the start")
		}
	})
	t.Run("a fifth of a token for each query", func(t *testing.T) {
		b := budget{perQuery: 0.2}
		b.spend(t0, budgetCap)
		for range 5 {
			if b.spend(t0, 1) {
				t.Error("a token before five queries")
			}
			b.earn(t0)
		}
		if !b.spend(t0, 1) {
			t.Error("no token after five queries")
		}
	})
	t.Run("ten a second without traffic", func(t *testing.T) {
		b := budget{perQuery: 0.2}
		b.spend(t0, budgetCap)
		if b.spend(second(0.09), 1) || !b.spend(second(0.11), 1) {
			t.Error("want one token after a tenth of a second")
		}
	})
	t.Run("saves up its cap and two seconds of traffic", func(t *testing.T) {
		b := budget{perQuery: 0.2}
		for i := range 3000 { // 1,000 a second
			b.earn(second(float64(i) / 1000))
		}
		if n := b.tokens; n < budgetCap || n > budgetCap+2000 {
			t.Errorf("tokens = %v, want at most the cap and two seconds of traffic", n)
		}
		b.earn(second(60))
		if n := b.tokens; n > budgetCap+1 {
			t.Errorf("tokens = %v after a minute of silence, want the cap", n)
		}
	})
	t.Run("a clock that runs backwards brings nothing", func(t *testing.T) {
		b := budget{perQuery: 0.2}
		b.spend(t0, budgetCap)
		if b.spend(second(-3600), 1) || b.tokens < 0 {
			t.Errorf("tokens = %v", b.tokens)
		}
	})
}

// FuzzPool plays any sequence of events and checks what must hold after each.
func FuzzPool(f *testing.F) {
	f.Add([]byte{0, 10, 1, 3, 2, 2, 3, 1, 5, 9, 4, 4, 4, 4, 200, 3, 3, 3})
	f.Add(slices.Repeat([]byte{1, 50, 3, 50}, 40))
	f.Fuzz(func(t *testing.T, ops []byte) {
		p := New(rand.NewPCG(7, 7))
		rules := DefaultRules()
		var ids []ID
		for _, name := range []string{"a", "b", "c"} {
			ids = append(ids, p.Add(t0, name, rules))
		}
		g := newTestGroup(t, p, "random", ids)
		other := newTestGroup(t, p, "sequential", ids[:2])
		now := t0
		var asked, probes []Ticket
		for len(ops) >= 2 {
			op, arg := ops[0], ops[1]
			ops = ops[2:]
			now = now.Add(time.Duration(arg) * 10 * ms)
			before := states(p)
			switch group := []*Group{g, other}[arg%2]; op % 4 {
			case 0:
				for _, ticket := range group.Pick(now, Query{}, nil) {
					if started, what := p.Start(now, ticket); what == Started {
						asked = append(asked, started)
						break
					}
				}
			case 1:
				if ticket, _, ok := p.NextProbe(now); ok {
					probes = append(probes, ticket)
				}
			case 2:
				asked = fuzzReport(t, p, now, asked, op, before)
			case 3:
				probes = fuzzReport(t, p, now, probes, op, before)
			}
			checkInvariants(t, p, []*Group{g, other}, now)
		}
	})
}

// fuzzReport reports an outcome for one of the tickets and returns the rest.
func fuzzReport(t *testing.T, p *Pool, now time.Time, tickets []Ticket, op byte, before map[ID]State) []Ticket {
	if len(tickets) == 0 {
		return nil
	}
	i := int(op) % len(tickets)
	ticket, outcome := tickets[i], Outcome(op/4%6)
	stale := p.members[ticket.ID].epoch != ticket.epoch
	nobody := peers{p, p.members[ticket.ID], now}.nobodyUp()
	tr, changed := p.Report(now, ticket, outcome)
	if changed && stale && (tr.To == Ejected || tr.From == Ejected && !nobody) {
		t.Errorf("a stale ticket made %v -> %v", tr.From, tr.To)
	}
	if changed != (before[ticket.ID] != p.State(ticket.ID)) {
		t.Errorf("a transition was not returned, or returned without one: %+v", tr)
	}
	if ticket.probe == 0 {
		p.End(ticket)
	}
	return slices.Delete(tickets, i, i+1)
}

func states(p *Pool) map[ID]State {
	s := make(map[ID]State)
	for id, m := range p.members {
		s[id] = m.state
	}
	return s
}

func checkInvariants(t *testing.T, p *Pool, groups []*Group, now time.Time) {
	t.Helper()
	for _, g := range groups {
		if len(g.Pick(now, Query{}, nil)) == 0 {
			t.Fatal("nobody is to be asked")
		}
		if g.budget.tokens < 0 {
			t.Fatalf("budget = %v", g.budget.tokens)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(p.members)) {
		m := p.members[id]
		if !m.serves() && !m.probes.out && m.probes.at.IsZero() {
			t.Fatalf("%s is %s and has no probe in sight", m.name, m.state)
		}
		if hold := m.holds.until.Sub(m.holds.ejectedAt); hold < 0 || hold > m.rules.HoldMax {
			t.Fatalf("hold = %v", hold)
		}
		if m.inFlight < 0 {
			t.Fatalf("%d in flight", m.inFlight)
		}
	}
}

func BenchmarkPickStartReport(b *testing.B) {
	p, g, _ := newTestPool(b, "random", 3, DefaultRules())
	now := t0.Add(time.Second)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		buf := make([]Ticket, 0, 4)
		for pb.Next() {
			ticket, what := p.Start(now, g.Pick(now, Query{}, buf[:0])[0])
			if what != Started {
				continue
			}
			p.Report(now, ticket, Answered)
			p.End(ticket)
		}
	})
}
