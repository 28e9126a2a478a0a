package pool

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// FuzzPool plays any sequence of events and checks what must hold after each. Two
// bytes are an event: what happens, and to whom.
func FuzzPool(f *testing.F) {
	f.Add([]byte{0, 10, 1, 3, 2, 2, 3, 1, 5, 9, 4, 4, 4, 4, 200, 3, 3, 3})
	f.Add(slices.Repeat([]byte{1, 50, 3, 50}, 40))
	f.Add(slices.Repeat([]byte{0, 17, 3, 112, 1, 3, 4, 112}, 40))                  // losses
	f.Add(slices.Repeat([]byte{0, 1, 3, 48, 0, 2, 3, 16, 5, 0, 6, 16, 10, 9}, 60)) // rcodes, shadows
	f.Fuzz(func(t *testing.T, script []byte) {
		w := newWorld(t)
		script = script[:min(len(script), 2000)] // more shows no more, and takes long
		for ; len(script) >= 2; script = script[2:] {
			w.play(script[0], int(script[1]))
			w.check()
		}
	})
}

// world is a pool and all that is out there.
type world struct {
	t       *testing.T
	now     time.Time
	pool    *Pool
	groups  []*Group
	ids     []ID
	queries []Ticket // shadows too
	probes  []Ticket
}

// newWorld has two tiers, a group that shares a member with them, and one whose
// members are of the sorts that are rare.
func newWorld(t *testing.T) *world {
	w := &world{t: t, now: t0, pool: New(rand.NewPCG(7, 7))}
	for i := range 7 {
		w.add(i)
	}
	a := w.ids
	w.groups = []*Group{
		newTestGroup(t, w.pool, "random", a[0:2], a[2:3]),
		newTestGroup(t, w.pool, "sequential", a[1:4]),
		newTestGroup(t, w.pool, "fastest", a[4:6], a[6:7]),
	}
	return w
}

// add lets a member join; each fourth one is a twin.
func (w *world) add(sort int) {
	rules := DefaultRules()
	switch sort % 8 {
	case 1:
		rules.Ramp, rules.Rise = 0, 1
	case 3:
		rules.InFlight = 2
	case 4:
		rules.NoProbe = true
	case 5:
		rules.DryRun = true
	case 6:
		rules.OnDemand = true
	case 7:
		rules.Fall = 0
	}
	w.ids = append(w.ids, w.pool.Add(w.now, fmt.Sprint(sort%4+len(w.ids)/4), rules))
}

func (w *world) play(op byte, arg int) {
	w.now = w.now.Add(time.Duration(arg&15) * 20 * ms)
	g, id := w.groups[arg%len(w.groups)], w.ids[arg%len(w.ids)]
	switch op % 13 {
	case 0:
		w.ask(g, Query{Name: uint64(arg), Domain: uint64(arg % 5), Private: arg&64 != 0})
	case 1:
		if ticket, _, ok := w.pool.NextProbe(w.now); ok {
			w.probes = append(w.probes, ticket)
		}
	case 2: // it may show more than one
		w.reportOne(w.queries, arg)
	case 3:
		if i := w.reportOne(w.queries, arg); i >= 0 {
			w.pool.End(w.queries[i])
			w.queries = slices.Delete(w.queries, i, i+1)
		}
	case 4:
		if i := w.reportOne(w.probes, arg); i >= 0 && arg&128 != 0 {
			w.probes = slices.Delete(w.probes, i, i+1)
		}
	case 5, 6:
		if ticket, ok := g.Shadow(w.now, Query{Private: arg&64 != 0}); ok {
			w.queries = append(w.queries, ticket)
		}
	case 7:
		w.pool.SetAdmin(w.now, id, Admin(arg/16%4))
	case 8:
		w.settle()
	case 9:
		w.change(arg, id)
	case 10:
		w.now = w.now.Add(time.Duration(arg-64) * time.Second) // backwards, too
	case 11:
		g.Spend(w.now, arg%16)
	case 12:
		w.pool.Forgive(w.now)
	}
}

// ask sends a query to the first that takes it.
func (w *world) ask(g *Group, q Query) {
	for _, ticket := range g.Pick(w.now, q, nil) {
		if started, what := w.pool.Start(w.now, ticket); what == Started {
			w.queries = append(w.queries, started)
			return
		}
	}
}

// change lets a member join a new group of its own, or one leave.
func (w *world) change(arg int, id ID) {
	switch {
	case arg&64 != 0:
		w.pool.Remove(id)
	case len(w.groups) < 6:
		w.add(arg / 8)
		w.groups = append(w.groups, newTestGroup(w.t, w.pool, "p2c", []ID{w.ids[len(w.ids)-1], id}))
	default:
		w.pool.Disband(w.groups[5])
		w.groups = w.groups[:5]
	}
}

// reportOne reports an outcome for one of the tickets and returns which.
func (w *world) reportOne(tickets []Ticket, arg int) int {
	if len(tickets) == 0 {
		return -1
	}
	i := arg % len(tickets)
	w.report(tickets[i], Outcome(arg/16%10))
	return i
}

func (w *world) report(ticket Ticket, outcome Outcome) {
	before := w.states()
	m := w.pool.members[ticket.ID]
	if m == nil {
		if _, said := w.pool.Report(w.now, ticket, outcome); said {
			w.t.Error("one that left has a transition")
		}
		return
	}
	stale := ticket.epoch != m.epoch
	s := peers{w.pool, m, w.now}
	last, _ := s.lastUp()
	nobody, passes := s.nobodyUp(), m.probes.passes
	tr, said := w.pool.Report(w.now, ticket, outcome)
	w.checkTransition(before, tr, said)
	if said && stale && !signOfLife(tr, nobody) || stale && m.probes.passes > passes {
		w.t.Errorf("a stale ticket counts: %+v", tr)
	}
	if said && last && tr.To == Ejected && slices.Contains([]Cause{Losses, Slow, BadRcodes}, tr.Cause) && tr.From != Ejected {
		w.t.Errorf("the last one is ejected: %+v", tr)
	}
}

// signOfLife reports whether the transition is one that an answer may make to a
// question from before an ejection or a return.
func signOfLife(tr Transition, nobodyUp bool) bool {
	switch {
	case tr.WouldEject:
		return false
	case tr.From == Suspect:
		return tr.Cause == Heard
	case tr.To == Ejected:
		return tr.Cause == Slow
	}
	return tr.Cause == AloneAndHeard && nobodyUp
}

func (w *world) settle() {
	before := w.states()
	tr, said := w.pool.Settle(w.now)
	w.checkTransition(before, tr, said)
}

// checkTransition checks that what is said is what happened.
func (w *world) checkTransition(before map[ID]State, tr Transition, said bool) {
	w.t.Helper()
	if said {
		if before[tr.ID] != tr.From {
			w.t.Errorf("it was %v: %+v", before[tr.ID], tr)
		}
		if tr.From == tr.To && !tr.WouldEject && !tr.Renew && tr.Cause != Slow {
			w.t.Errorf("nothing changed: %+v", tr)
		}
		before[tr.ID] = tr.To
	}
	if after := w.states(); !maps.Equal(before, after) {
		w.t.Errorf("states are %v, want %v by what was said: %+v", after, before, tr)
	}
}

func (w *world) states() map[ID]State {
	s := make(map[ID]State)
	for id, m := range w.pool.members {
		s[id] = m.state
	}
	return s
}

func (w *world) check() {
	w.t.Helper()
	waiting := make(map[ID]int)
	for _, ticket := range w.queries {
		waiting[ticket.ID]++
	}
	for _, id := range slices.Sorted(maps.Keys(w.pool.members)) {
		w.checkMember(w.pool.members[id], waiting[id])
	}
	for _, g := range w.groups {
		w.checkOrder(g, Query{})
		w.checkOrder(g, Query{Private: true})
		if g.budget.tokens < 0 {
			w.t.Fatalf("budget = %v", g.budget.tokens)
		}
	}
}

func (w *world) checkMember(m *member, waiting int) {
	w.t.Helper()
	doubted := m.state == Suspect || m.state == Ejected
	probed := !m.rules.NoProbe && m.admin != Maint
	if doubted && probed && !m.probes.out && m.probes.at.IsZero() {
		w.t.Fatalf("%s is %s and has no probe in sight", m.name, m.state)
	}
	if hold := m.holds.until.Sub(m.holds.ejectedAt); hold < 0 || hold > m.rules.HoldMax {
		w.t.Fatalf("hold = %v", hold)
	}
	if m.inFlight != waiting {
		w.t.Fatalf("%d in flight, want %d", m.inFlight, waiting)
	}
	if m.capacity(w.now) < 1 {
		w.t.Fatalf("capacity = %d", m.capacity(w.now))
	}
	if m.latency.mean < 0 || m.probes.rtt < 0 {
		w.t.Fatalf("mean = %v, round trip of probes = %v", m.latency.mean, m.probes.rtt)
	}
	if m.state == Ejected && (m.rules.DryRun || m.rules.Fall == 0) {
		w.t.Fatalf("%s is ejected against its rules", m.name)
	}
}

// checkOrder checks that somebody is to be asked where anybody may be, and who.
func (w *world) checkOrder(g *Group, q Query) {
	w.t.Helper()
	some, fit := false, false // may be asked; may be asked first
	for _, ids := range g.open(q) {
		for _, id := range ids {
			m := w.pool.members[id]
			some = some || m != nil && m.admin != Maint
			fit = fit || !w.pool.out(id)
		}
	}
	order := g.PickAgain(w.now, q, nil)
	if some != (len(order) > 0) {
		w.t.Fatalf("%d to be asked", len(order))
	}
	for _, ticket := range order {
		m := w.pool.members[ticket.ID]
		if m.admin == Maint || fit && w.pool.out(m.id) {
			w.t.Fatalf("%s is %s (admin %d) and to be asked", m.name, m.state, m.admin)
		}
		if q.Private && ticket.Tier > 0 {
			w.t.Fatalf("%s is of a lower tier and asked for a private name", m.name)
		}
	}
}
