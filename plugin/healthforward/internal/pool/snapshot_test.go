package pool

import (
	"reflect"
	"testing"
	"time"
)

func TestSnapshotSaysHowAMemberStands(t *testing.T) {
	for name, tc := range map[string]struct {
		play func(p *Pool, g *Group, ids []ID) // at a second after all have come up
		now  time.Duration                     // after that
		want Standing                          // of the first of two
	}{
		"it came up by its first answer": {
			func(*Pool, *Group, []ID) {}, 4 * time.Second,
			Standing{State: Up, Since: t0, Cause: Heard, Heard: t0},
		},
		"queries wait on it": {
			func(p *Pool, g *Group, ids []ID) { ask(t, p, g, t0.Add(time.Second), ids[0]) }, 0,
			Standing{State: Up, Since: t0, Cause: Heard, Heard: t0, InFlight: 1},
		},
		"an answer was late": {
			func(p *Pool, g *Group, ids []ID) {
				ticket := ask(t, p, g, t0.Add(time.Second), ids[0])
				p.Report(t0.Add(1250*ms), ticket, Late)
				p.End(ticket)
			}, time.Second,
			Standing{State: Suspect, Since: t0.Add(1250 * ms), Cause: LateAnswer, Heard: t0},
		},
		"how fast it answers, a quarter too large at most": {
			func(p *Pool, g *Group, ids []ID) {
				for i := range 20 {
					ticket := ask(t, p, g, t0.Add(time.Second), ids[0])
					p.Report(ticket.Sent.Add([]time.Duration{3 * ms, 90 * ms}[i/18]), ticket, Answered)
					p.End(ticket)
				}
			}, time.Second,
			Standing{State: Up, Since: t0, Cause: Heard, Heard: t0.Add(1090 * ms), Median: 3072 * time.Microsecond, P95: 98304 * time.Microsecond},
		},
		"an operator has drained it": {
			func(p *Pool, _ *Group, ids []ID) { p.SetAdmin(t0, ids[0], Drain) }, 0,
			Standing{State: Up, Since: t0, Cause: Heard, Heard: t0, Admin: Drain},
		},
		"packets get lost on the way to it": {
			func(p *Pool, g *Group, ids []ID) {
				lost, heard := ask(t, p, g, t0.Add(time.Second), ids[0]), ask(t, p, g, t0.Add(time.Second), ids[0])
				p.Report(t0.Add(time.Second+time.Microsecond), heard, Answered)
				p.Report(t0.Add(2*time.Second), lost, Lost)
				p.End(lost)
				p.End(heard)
			}, time.Second,
			Standing{State: Up, Since: t0, Cause: Heard, Heard: t0.Add(time.Second + time.Microsecond), Median: 1250, P95: 1250, Loss: 1.0 / 64},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, g, ids := newTestPool(t, "sequential", 2, DefaultRules())
			tc.play(p, g, ids)
			got := p.Snapshot(t0.Add(time.Second + tc.now))
			tc.want.ID, tc.want.Name = ids[0], "a"
			if len(got) != 2 || !reflect.DeepEqual(got[0], tc.want) {
				t.Errorf("snapshot %+v\nwant     %+v", got[0], tc.want)
			}
			before := *p.members[ids[0]]
			p.Snapshot(t0.Add(time.Hour))
			if !reflect.DeepEqual(*p.members[ids[0]], before) {
				t.Error("to look has changed it")
			}
		})
	}
}

func TestSnapshotOfAnEjectionHasItsCauseAndWhatIsLeftOfTheHold(t *testing.T) {
	p, g, ids := newTestPool(t, "sequential", 2, DefaultRules())
	now := t0.Add(time.Second)
	eject(t, p, g, &now, ids[0])
	comeBack(t, p, &now, ids[0])
	if s := p.Snapshot(now)[0]; s.Cause != Probed || s.State != SlowStart || s.Hold != 0 {
		t.Errorf("back it is %+v", s)
	}
	now = now.Add(time.Second)
	tr := eject(t, p, g, &now, ids[0])
	s := p.Snapshot(tr.At.Add(2 * time.Second))[0]
	if s.State != Ejected || s.Cause != Silent || s.Detail != tr.Detail || s.Since != tr.At || s.Hold != 3*time.Second {
		t.Errorf("two seconds after an ejection with a hold of five it is %+v", s)
	}
	if s := p.Snapshot(tr.At.Add(time.Minute))[0]; s.Hold != 0 {
		t.Errorf("after its end, %v are left of the hold", s.Hold)
	}
}

func TestADryRunIsNoCauseOfAState(t *testing.T) {
	rules := DefaultRules()
	rules.DryRun = true
	p, g, ids := newTestPool(t, "sequential", 2, rules)
	now := t0.Add(time.Second)
	for i := range 5 {
		ticket := ask(t, p, g, now.Add(time.Duration(i)*time.Second), ids[0])
		p.Report(ticket.Sent.Add(time.Second), ticket, Lost)
		p.End(ticket)
	}
	if s := p.Snapshot(now.Add(6 * time.Second))[0]; s.State != Suspect || s.Cause != LostQuery {
		t.Errorf("%+v", s)
	}
}

func TestSavedTakesNothingFromTheBudget(t *testing.T) {
	_, g, _ := newTestPool(t, "sequential", 2, DefaultRules())
	if !g.Spend(t0, 60) {
		t.Fatal("the budget is not full at the start")
	}
	before := g.budget
	if got := g.Saved(t0.Add(2 * time.Second)); got != 60 || g.budget != before {
		t.Errorf("two seconds after 60 of 100 were spent, %v are left, want 60; it was %+v and is %+v", got, before, g.budget)
	}
}

func TestAProbeOnDemandIsDueAtOnceWhereThereAreProbes(t *testing.T) {
	never, onDemand := DefaultRules(), DefaultRules()
	never.NoProbe, onDemand.OnDemand = true, true
	for name, tc := range map[string]struct {
		rules Rules
		admin Admin
		want  bool
	}{
		"it is up":                   {DefaultRules(), Ready, true},
		"it is drained":              {DefaultRules(), Drain, true},
		"it is in maint":             {DefaultRules(), Maint, false},
		"its rules want none":        {never, Ready, false},
		"nobody has asked it, or so": {onDemand, Ready, false},
	} {
		t.Run(name, func(t *testing.T) {
			p, _, _ := newTestPool(t, "sequential", 1, DefaultRules())
			id := p.Add(t0, "z", tc.rules)
			for ticket, _, ok := p.NextProbe(t0); ok; ticket, _, ok = p.NextProbe(t0) {
				p.Report(t0, ticket, Answered)
			}
			now := t0.Add(5 * time.Second)
			p.SetAdmin(now, id, tc.admin)
			if got := p.ProbeNow(now, id); got != tc.want {
				t.Errorf("ProbeNow = %v, want %v", got, tc.want)
			}
			ticket, _, due := p.NextProbe(now)
			if due != tc.want || due && ticket.ID != id {
				t.Errorf("a probe is due: %v, want %v", due, tc.want)
			}
			if again := p.ProbeNow(now, id); again != tc.want {
				t.Errorf("while it is out ProbeNow = %v, want %v", again, tc.want)
			}
		})
	}
	p := New(nil)
	if p.ProbeNow(t0, 7) {
		t.Error("one that is not there is probed")
	}
}
