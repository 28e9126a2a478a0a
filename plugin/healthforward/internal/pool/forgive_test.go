package pool

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestForgiveVoidsWhatWasConcludedInAnotherNetwork(t *testing.T) {
	now := t0.Add(time.Hour)
	heldFor := holds{ejectedAt: now.Add(-time.Minute), returnedAt: now.Add(-2 * time.Minute), streak: 3, until: now.Add(20 * time.Second)}
	for name, tc := range map[string]struct {
		state State
		rules func(*Rules)
		admin Admin
		// what becomes of it
		probed   bool          // at once
		interval time.Duration // between its probes then; 0: does not matter
	}{
		"one that is held out": {state: Ejected, probed: true, interval: time.Second},
		"one that is up":       {state: Up, probed: true},
		"a suspect":            {state: Suspect, probed: true},
		"in its slow start":    {state: SlowStart, probed: true},
		"in maint":             {state: Ejected, admin: Maint},
		"without probes":       {state: Ejected, rules: func(r *Rules) { r.NoProbe = true }},
		"that nobody has used": {state: Suspect, rules: func(r *Rules) { r.OnDemand = true }},
	} {
		t.Run(name, func(t *testing.T) {
			rules := DefaultRules()
			if tc.rules != nil {
				tc.rules(&rules)
			}
			p := New(rand.NewPCG(1, 2))
			ids := []ID{p.Add(t0, "a", rules)}
			m := p.members[ids[0]]
			m.enter(now, tc.state)
			m.admin, m.holds, m.heard = tc.admin, heldFor, now
			m.skip, m.ours, m.blocked = now.Add(time.Second), 3, now
			m.probes = probes{misses: 1, passes: 1, newest: 7, out: true, interval: 5 * time.Second}
			old := Ticket{ID: ids[0], probe: 7, epoch: m.epoch, Sent: now}

			p.Forgive(now)
			ticket, _, probed := p.NextProbe(now)
			if probed != tc.probed {
				t.Fatalf("probed at once: %v, want %v", probed, tc.probed)
			}
			if m.state != tc.state || !m.holds.over(now) || m.holds.streak != 0 || m.skip.After(now) || m.ours != 0 {
				t.Errorf("%s, held until %v, asked last until %v; want only its state left", m.state, m.holds.until, m.skip)
			}
			if _, said := p.Report(now.Add(ms), old, Lost); said || m.probes.misses != 0 {
				t.Error("the loss of a probe from before counts")
			}
			if probed && tc.interval != 0 {
				p.Report(now.Add(100*ms), ticket, Lost)
				if next := m.probes.at.Sub(now); next > tc.interval*6/5 {
					t.Errorf("the next probe after %v, want %v ± 20 %%", next, tc.interval)
				}
			}
		})
	}
}

func TestAnAnswerFromBeforeIsASignOfLifeAllTheSame(t *testing.T) {
	p, g, ids := newTestPool(t, "sequential", 1, DefaultRules())
	now := t0.Add(time.Hour)
	g.Pick(now, Query{}, nil)
	ticket, _, ok := p.NextProbe(now)
	if !ok {
		t.Fatal("no probe after an hour of silence")
	}
	p.members[ids[0]].enter(now, Suspect)
	p.Forgive(now)
	if _, said := p.Report(now.Add(ms), ticket, Answered); !said || p.State(ids[0]) != Up {
		t.Errorf("it is %s, want up", p.State(ids[0]))
	}
}

func TestAnyEjected(t *testing.T) {
	for members, want := range map[string]bool{"uu": false, "us": false, "uw": false, "ue": true, "um": false, "uf": true} {
		p, _, ids := newTestPool(t, "sequential", 2, DefaultRules())
		set(p, t0, ids, members)
		if got := p.AnyEjected(); got != want {
			t.Errorf("%s: AnyEjected = %v, want %v", members, got, want)
		}
	}
}

func TestPlaceIsThatOfTheTickets(t *testing.T) {
	p, _, ids := newTestPool(t, "sequential", 4, DefaultRules())
	g := newTestGroup(t, p, "sequential", ids[:2], ids[2:3])
	for _, ticket := range g.Pick(t0, Query{}, nil) {
		if rank, tier, ok := g.Place(ticket.ID); !ok || rank != ticket.Rank || tier != ticket.Tier {
			t.Errorf("Place = %d, %d, %v; the ticket says %d, %d", rank, tier, ok, ticket.Rank, ticket.Tier)
		}
	}
	if _, _, ok := g.Place(ids[3]); ok {
		t.Error("a place for who is not in the group")
	}
}
