package healthforward

import (
	"context"
	"sync"
	"time"

	"steadfast.internal/plugin/healthforward/internal/pool"
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
	for ctx.Err() == nil {
		ticket, at, due := p.registry.pool.NextProbe(time.Now())
		if due {
			probes.Go(func() { p.probe(ctx, ticket) })
			continue
		}
		if at.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(at))
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
	ctx, cancel := context.WithTimeout(ctx, max(probePatience, t.Timeout))
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := u.exchange(ctx, u.probe, true)
		ended <- err
	}()

	timer := time.NewTimer(t.Timeout)
	defer timer.Stop()
	select {
	case err := <-ended:
		p.report(u, t, probeOutcome(err))
		return
	case <-timer.C:
	}
	outcome := pool.Lost
	if time.Since(t.Sent) > t.Timeout+maxLag {
		outcome = pool.Abandoned // we were held up ourselves
	}
	p.report(u, t, outcome)
	if err := <-ended; err == nil {
		p.report(u, t, pool.Answered)
	}
}

// probeOutcome says what the end of a probe shows: any reply is a sign of life.
func probeOutcome(err error) pool.Outcome {
	if err == nil {
		return pool.Answered
	}
	return classifyError(err)
}

func (p *prober) report(u *upstream, t pool.Ticket, o pool.Outcome) {
	u.metrics.probes[o].Inc()
	if tr, changed := p.registry.pool.Report(time.Now(), t, o); changed {
		p.registry.announce(u, tr)
	}
	p.wake()
}
