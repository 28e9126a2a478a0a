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
