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
