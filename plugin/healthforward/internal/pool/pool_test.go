package pool

import (
	"fmt"
	"math/rand/v2"
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

// One more goes through now and then, to find out whether it answers again.
func TestFewWaitForWhoIsEjected(t *testing.T) {
	p, g, ids := newTestPool(t, "sequential", 1, DefaultRules())
	now := t0.Add(time.Second)
	eject(t, p, g, &now, ids[0]) // its query waits on
	for range ejectedInFlight - 1 {
		ask(t, p, g, now, ids[0])
	}
	for i, step := range []struct {
		after time.Duration
		want  Start
	}{
		{0, Started}, {0, Full}, {canaryEvery - 1, Full}, {1, Started}, {0, Full},
	} {
		now = now.Add(step.after)
		if _, what := p.Start(now, g.Pick(now, Query{}, nil)[0]); what != step.want {
			t.Errorf("Start %d = %v, want %v", i, what, step.want)
		}
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
	for fall, want := range map[int]State{7: Ejected, 0: Suspect} {
		rules := DefaultRules()
		rules.Fall = fall
		if got := p.State(p.Add(now, "a", rules)); got != want {
			t.Errorf("twin of a with fall %d = %v, want %v", fall, got, want)
		}
	}
	rules := DefaultRules()
	rules.DryRun = true
	if got := p.State(p.Add(now, "a", rules)); got != Suspect {
		t.Errorf("twin of a in a dry run = %v, want %v", got, Suspect)
	}
	rules = DefaultRules()
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
