package pool

import (
	"testing"
	"time"
)

func TestSlowStart(t *testing.T) {
	for name, tc := range map[string]struct {
		after    time.Duration
		share    float64
		capacity int
		want     State
	}{
		"at the return":      {0, 0.1, 256, SlowStart},
		"after two seconds":  {2 * time.Second, 0.28, 286, SlowStart},
		"half way":           {5 * time.Second, 0.55, 563, SlowStart},
		"just before it end": {10*time.Second - 1, 1, 1023, SlowStart},
		"after ten seconds":  {10 * time.Second, 1, 1024, Up},
	} {
		t.Run(name, func(t *testing.T) {
			p, g, ids := newTestPool(t, "sequential", 2, DefaultRules())
			now := t0.Add(time.Second)
			eject(t, p, g, &now, ids[0])
			comeBack(t, p, &now, ids[0])
			now = now.Add(tc.after)
			p.Settle(now)
			m := p.members[ids[0]]
			if m.state != tc.want || m.capacity(now) != tc.capacity {
				t.Errorf("%v for %d exchanges, want %v for %d", m.state, m.capacity(now), tc.want, tc.capacity)
			}
			first := 0
			for range 2000 {
				if g.Pick(now, Query{}, nil)[0].ID == ids[0] {
					first++
				}
			}
			if got := float64(first) / 2000; got < tc.share-0.04 || got > tc.share+0.04 {
				t.Errorf("asked first %v of the time, want %v", got, tc.share)
			}
		})
	}
}

func TestSuspicionDuringTheSlowStart(t *testing.T) {
	for name, tc := range map[string]struct {
		after    time.Duration // the return, of the suspicion
		answered bool          // the probe that follows; else it is missed
		want     State
	}{
		"is refuted: it goes on starting":  {time.Second, true, SlowStart},
		"is refuted after it: up":          {10 * time.Second, true, Up},
		"one missed probe ejects":          {time.Second, false, Ejected},
		"one after it is over does not":    {10 * time.Second, false, Suspect},
		"one just before its end does too": {9700 * ms, false, Suspect},
	} {
		t.Run(name, func(t *testing.T) {
			p, g, ids := newTestPool(t, "sequential", 2, DefaultRules())
			now := t0.Add(time.Second)
			eject(t, p, g, &now, ids[0])
			comeBack(t, p, &now, ids[0])
			now = now.Add(tc.after)
			p.Settle(now)
			late := ask(t, p, g, now, ids[0])
			now = now.Add(late.Patience)
			p.Report(now, late, Late)
			ticket := nextProbeOf(t, p, &now, ids[0])
			if tc.answered {
				p.Report(now, ticket, Answered)
			} else {
				now = now.Add(ticket.Timeout)
				p.Report(now, ticket, Lost)
			}
			if got := p.State(ids[0]); got != tc.want {
				t.Errorf("state = %v, want %v", got, tc.want)
			}
		})
	}
	t.Run("without one it is up at once", func(t *testing.T) {
		rules := DefaultRules()
		rules.Ramp = 0
		p, g, ids := newTestPool(t, "sequential", 2, rules)
		now := t0.Add(time.Second)
		eject(t, p, g, &now, ids[0])
		comeBack(t, p, &now, ids[0])
		if got := p.State(ids[0]); got != Up {
			t.Errorf("state = %v, want %v", got, Up)
		}
	})
}
