package pool

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

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
