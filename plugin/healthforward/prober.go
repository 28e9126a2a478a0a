package healthforward

import (
	"context"
	"sync"
	"time"

	"steadfast.internal/plugin/healthforward/internal/pool"

	"github.com/miekg/dns"
)

// probePatience is how long the answer to a probe is waited for at most. It may be
// longer than what decides of a miss: a late answer is a sign of life.
const probePatience = time.Second

// prober asks upstreams whether they live, when the pool wants to know: one loop
// for the process, one goroutine for each probe that is out.
type prober struct {
	registry *registry
	nudges   chan struct{}

	// Guarded by registry.mu.
	cancel context.CancelFunc
}

func (p *prober) init(r *registry) {
	p.registry = r
	p.nudges = make(chan struct{}, 1)
}

// start runs the loop unless it runs already. It requires that registry.mu is held.
func (p *prober) start() {
	if p.cancel != nil {
		p.wake()
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	go p.run(ctx)
}

// stop ends the loop and what it has started, soon. It requires that registry.mu
// is held, so it does not wait: a probe that ends takes that lock.
func (p *prober) stop() {
	if p.cancel != nil {
		p.cancel()
		p.cancel = nil
	}
}

// wake makes the loop look again at what is due.
func (p *prober) wake() {
	select {
	case p.nudges <- struct{}{}:
	default:
	}
}

// run returns when ctx has ended, and all probes with it.
func (p *prober) run(ctx context.Context) {
	var probes sync.WaitGroup
	defer probes.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var here network // of this loop alone: one that was stopped may not have ended yet
	for ctx.Err() == nil {
		now := time.Now()
		p.registry.settle(now)
		p.registry.lookAtNetwork(now, &here)
		ticket, at, due := p.registry.pool.NextProbe(now)
		if due {
			probes.Go(func() { p.probe(ctx, ticket) })
			continue
		}
		if look := here.looked; !look.IsZero() && (at.IsZero() || at.After(look.Add(addressEvery))) {
			at = look.Add(addressEvery)
		}
		if at.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(until(at))
		}
		select {
		case <-timer.C:
		case <-p.nudges:
		case <-ctx.Done():
		}
	}
}

// probe asks one upstream, on a fresh socket, and reports whether it answered in
// time; if it answers later, that too.
func (p *prober) probe(ctx context.Context, t pool.Ticket) {
	r := p.registry
	r.mu.Lock()
	u := r.byID[t.ID]
	r.mu.Unlock()
	if u == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, max(probePatience, t.Timeout)+grace+maxLag) // the verdict comes first
	defer cancel()
	ended := make(chan pool.Outcome, 1)
	go func() {
		reply, err := u.exchange(ctx, u.probe, true)
		outcome, _ := classify(reply, err, badProbeRcodes)
		ended <- outcome
	}()
	outcome, verdict := inTime(ended, t.Sent.Add(t.Timeout))
	p.report(u, t, outcome)
	if verdict {
		return
	}
	if late := <-ended; late == pool.Answered || late == pool.Failed {
		p.report(u, t, late)
	}
}

// badProbeRcodes are the rcodes that do not bring back who was ejected for rcodes: to
// all others any reply is a sign of life. They are the default of failover.
var badProbeRcodes = []int{dns.RcodeServerFailure, dns.RcodeRefused, dns.RcodeNotImplemented}

// grace is how long we look once more after a time-out. When a process goes on that
// was held up, by its CPU quota for one, timers come before what has arrived meanwhile.
const grace = 10 * time.Millisecond

// inTime returns what came until then. Without it the probe is lost, and came is
// false; or given up, if it was us who were late.
func inTime(ended <-chan pool.Outcome, due time.Time) (outcome pool.Outcome, came bool) {
	for range 2 {
		timer := time.NewTimer(until(due))
		select {
		case outcome := <-ended:
			timer.Stop()
			return outcome, true
		case <-timer.C:
		}
		now := time.Now()
		if now.Sub(due) > maxLag {
			return pool.Abandoned, false
		}
		due = now.Add(grace)
	}
	return pool.Lost, false
}

func (p *prober) report(u *upstream, t pool.Ticket, o pool.Outcome) {
	u.metrics.probes[o].Inc()
	if tr, said := p.registry.pool.Report(time.Now(), t, o); said {
		p.registry.announce(u, tr)
	}
	p.wake()
}
