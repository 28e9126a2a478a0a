// Package healthforward implements a plugin that forwards queries to upstream
// resolvers and hides their failures: when one dies or slows down, the query in
// hand is answered by another, later queries do not meet the bad one, and it is
// let back in by proof.
//
// What is decided about upstreams is decided in internal/pool, what goes over the
// wire in internal/transport. This package connects them: a [Forwarder] is a
// stanza of the Corefile, a flight is one query, and the registry holds what
// outlives both.
package healthforward

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"steadfast.internal/plugin/healthforward/internal/pool"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metadata"
	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
)

const pluginName = "healthforward"

var log = clog.NewWithPlugin(pluginName)

// errFull is returned, with REFUSED, where too many queries are under way already.
var errFull = errors.New("too many queries under way")

// complainEvery is the least time between two log lines about unanswered queries.
const complainEvery = 10 * time.Second

// Forwarder is one stanza of the Corefile.
type Forwarder struct {
	Config
	Next plugin.Handler

	registry   *registry
	generation *generation
	groups     atomic.Pointer[groups] // set while the generation is acquired

	attempts   sync.WaitGroup
	concurrent atomic.Int64
	complaint  atomic.Int64 // when the last one was logged, in Unix nanoseconds

	mu      sync.Mutex
	flights map[*flight]struct{}
}

// Name implements plugin.Handler.
func (f *Forwarder) Name() string { return pluginName }

// ServeDNS implements plugin.Handler. An error or a failing rcode is returned only
// where nothing has been written.
func (f *Forwarder) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	state := request.Request{W: w, Req: r}
	if !f.match(state.Name()) {
		return plugin.NextOrFailure(f.Name(), f.Next, ctx, w, r)
	}
	if n := f.concurrent.Add(1); f.MaxConcurrent > 0 && n > int64(f.MaxConcurrent) {
		f.concurrent.Add(-1)
		unansweredTotal.WithLabelValues("max_concurrent").Inc()
		return dns.RcodeRefused, errFull
	}
	defer f.concurrent.Add(-1)

	q, err := prepare(r)
	if err != nil {
		return dns.RcodeFormatError, err
	}
	f.generation.ensure()
	answer, rcode, err := f.resolve(ctx, (*f.groups.Load())[state.Proto()], q)
	if answer.reply == nil {
		return rcode, err
	}
	describe(ctx, answer.up.addr)
	q.restore(answer.reply, r)
	w.WriteMsg(answer.reply)
	return dns.RcodeSuccess, nil
}

// resolve returns the answer to q, or the rcode and the error to return where
// there is none. What is returned without an error is not kept by cache: a short
// outage must not be stretched for the names that were asked in it. See DESIGN.md, D9.
func (f *Forwarder) resolve(ctx context.Context, g *group, q query) (result, int, error) {
	var (
		answer result
		full   bool
	)
	if q.once {
		answer, full = f.exchangeOnce(ctx, g, q)
	} else {
		flight := newFlight(f, g, q, time.Now())
		f.enter(flight)
		answer, _ = flight.run(ctx)
		f.exit(flight)
		full = flight.full && len(flight.tries) == 0 && !flight.parked
	}
	switch {
	case answer.reply != nil:
		return answer, dns.RcodeSuccess, nil
	case ctx.Err() != nil:
		unansweredTotal.WithLabelValues("cancelled").Inc()
		return answer, dns.RcodeServerFailure, ctx.Err()
	case full:
		unansweredTotal.WithLabelValues("full").Inc()
		return answer, dns.RcodeRefused, errFull
	}
	unansweredTotal.WithLabelValues("no_answer").Inc()
	f.complain(time.Now())
	return answer, dns.RcodeServerFailure, nil
}

// exchangeOnce sends q to the first upstream that takes it. Only one that refused
// it outright, and so has not seen it, is followed by the next. What comes of it
// says nothing of the upstream: such queries are not like others.
func (f *Forwarder) exchangeOnce(ctx context.Context, g *group, q query) (answer result, full bool) {
	now := time.Now()
	ctx, cancel := context.WithDeadline(ctx, now.Add(max(queryDeadline, f.ReadTimeout)))
	defer cancel()
	flight := flight{fw: f, group: g}
	for _, picked := range f.pick(now, g) {
		ticket, ok := flight.started(f.registry.pool.Start(now, picked))
		if !ok {
			continue
		}
		up := g.upstreams[ticket.ID]
		up.metrics.attempts[first].Inc()
		reply, err := up.exchange(ctx, q, true)
		f.registry.pool.End(ticket)
		if err == nil {
			return result{reply: reply, grade: gradeFinal, up: up}, false
		}
		if ctx.Err() != nil {
			return answer, false
		}
	}
	return answer, flight.full
}

// pick returns the upstreams to ask. Those that are not up may want a probe now
// that there is somebody who asks.
func (f *Forwarder) pick(now time.Time, g *group) []pool.Ticket {
	tickets := g.Pick(now, make([]pool.Ticket, 0, len(f.To)))
	if len(tickets) > 0 && tickets[0].State != pool.Up {
		f.registry.prober.wake()
	}
	return tickets
}

// match reports whether queries for name, in lower case, are this stanza's.
func (f *Forwarder) match(name string) bool {
	if !plugin.Name(f.From).Matches(name) {
		return false
	}
	if name == f.From {
		return true // as in forward: nobody can except the zone itself
	}
	for _, zone := range f.Except {
		if plugin.Name(zone).Matches(name) {
			return false
		}
	}
	return true
}

// describe tells the log plugin and others who answered, also under the name that
// forward uses.
func describe(ctx context.Context, addr string) {
	value := func() string { return addr }
	metadata.SetValueFunc(ctx, pluginName+"/upstream", value)
	metadata.SetValueFunc(ctx, "forward/upstream", value)
}

// Ready implements ready.Readiness: an upstream is up, or each has had its first
// verdict, which takes less than a second.
func (f *Forwarder) Ready() bool {
	g := f.groups.Load()
	return g != nil && (*g)[protoUDP].Ready()
}

// complain logs that queries go unanswered, now and then.
func (f *Forwarder) complain(now time.Time) {
	last := f.complaint.Load()
	if now.UnixNano()-last < int64(complainEvery) || !f.complaint.CompareAndSwap(last, now.UnixNano()) {
		return
	}
	log.Warningf("no upstream of %s answers: clients get SERVFAIL (said once in %s)", f.From, complainEvery)
}

func (f *Forwarder) enter(fl *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.flights[fl] = struct{}{}
}

func (f *Forwarder) exit(fl *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.flights, fl)
}
