package healthforward

import (
	"testing"
	"testing/synctest"
	"time"

	"steadfast.internal/plugin/healthforward/internal/pool"
)

// A timer that fires late is as if its time were past already.
func TestAProbeIsJudgedWhenWhatHasArrivedIsRead(t *testing.T) {
	const never = time.Hour
	for name, tc := range map[string]struct {
		until   time.Duration // from now
		comes   time.Duration
		want    pool.Outcome
		came    bool
		expects time.Duration // how long it takes
	}{
		"in time":                       {100 * ms, 99 * ms, pool.Answered, true, 99 * ms},
		"a blink after the time-out":    {100 * ms, 105 * ms, pool.Answered, true, 105 * ms},
		"later":                         {100 * ms, 111 * ms, pool.Lost, false, 110 * ms},
		"never":                         {100 * ms, never, pool.Lost, false, 110 * ms},
		"we are a little late":          {-40 * ms, never, pool.Lost, false, grace},
		"we are late, and it is there":  {-40 * ms, 5 * ms, pool.Answered, true, 5 * ms},
		"we are as late as is forgiven": {-maxLag + ms, never, pool.Lost, false, grace},
		"we are later: it is our fault": {-maxLag - ms, never, pool.Abandoned, false, 0},
		"we are later, it is coming":    {-maxLag - ms, 5 * ms, pool.Abandoned, false, 0},
		"we have been away for an hour": {-time.Hour, never, pool.Abandoned, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ended := make(chan pool.Outcome, 1)
				if tc.comes != never {
					time.AfterFunc(tc.comes, func() { ended <- pool.Answered })
				}
				began := time.Now()
				got, came := inTime(ended, began.Add(tc.until))
				if took := time.Since(began); got != tc.want || came != tc.came || took > tc.expects+1 || took < tc.expects {
					t.Errorf("inTime = %v, %v after %v; want %v, %v after %v", outcomes[got], came, took, outcomes[tc.want], tc.came, tc.expects)
				}
			})
		})
	}
}

func TestALateTimerOfOursIsNoEvidence(t *testing.T) {
	for name, tc := range map[string]struct {
		lag  time.Duration
		want string
	}{
		"on time":        {0, "suspect"},
		"late, a little": {maxLag, "suspect"},
		"late":           {maxLag + 1, "up"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, "policy sequential", func(t *testing.T, fw *Forwarder, a, _ *model) {
				a.set(func(m *model) { m.deaf = true })
				now := time.Now()
				q, err := prepare(question("example.org.", 1))
				if err != nil {
					t.Fatal(err)
				}
				fl := newFlight(fw, fw.groupFor(protoUDP), q, now)
				ticket, ok := fl.started(fw.registry.pool.Start(now, fl.tickets[0]))
				if !ok {
					t.Fatal("not started")
				}
				fl.tries = []*try{{ticket: ticket, up: fl.group.upstreams[ticket.ID]}}
				time.Sleep(300 * ms)
				fl.late(0, overdue, time.Now().Add(-tc.lag))
				fw.registry.pool.End(ticket)
				if got := fw.registry.pool.State(ticket.ID).String(); got != tc.want {
					t.Errorf("the upstream is %s, want %s", got, tc.want)
				}
			})
		})
	}
}
