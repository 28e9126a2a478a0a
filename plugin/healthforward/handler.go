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
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"steadfast.internal/plugin/healthforward/internal/pool"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/dnstap"
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

	name       string // of the directive
	server     string // the keys of the server block
	taps       []*dnstap.Dnstap
	registry   *registry
	generation *generation
	groups     atomic.Pointer[groups] // set once the generation is acquired

	// Guarded by registry.mu.
	sources   []*source  // of each TO; nil for an address
	places    [][]target // where each TO leads, as the groups have it
	warned    string     // of what mixture of views
	connected bool       // groups are held

	attempts   sync.WaitGroup
	canary     canary
	concurrent atomic.Int64
	complaint  atomic.Int64 // when the last one was logged, in Unix nanoseconds

	sharing sharing

	mu      sync.Mutex
	flights map[*flight]struct{}
}

// Name implements plugin.Handler.
func (f *Forwarder) Name() string { return f.name }

// ServeDNS implements plugin.Handler. An error or a failing rcode is returned only
// where nothing has been written.
func (f *Forwarder) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	state := request.Request{W: w, Req: r}
	if state.QType() == dns.TypeHINFO && f.registry.questions.comesBack(state.Name()) {
		w.WriteMsg(new(dns.Msg).SetRcode(r, dns.RcodeNameError))
		return dns.RcodeSuccess, nil
	}
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
	q.about.Private = len(f.Backups) > 0 && f.Private.holds(state.Name(), state.QType())
	f.generation.ensure()
	answer, rcode, err := f.resolve(ctx, state, q)
	switch {
	case answer.reply == nil && err == nil && f.EDE:
		w.WriteMsg(failure(r, answer.flight))
		return dns.RcodeSuccess, nil
	case answer.reply == nil:
		return rcode, err
	}
	if next, ok := f.Next.(*Forwarder); ok && f.passesOn(answer.reply) {
		return plugin.NextOrFailure(f.Name(), next, ctx, w, r)
	}
	describe(ctx, answer.result)
	q.restore(answer.reply, r)
	if answer.tier > 0 && !q.once { // what is sent once may be signed
		capTTL(answer.reply)
	}
	w.WriteMsg(answer.reply)
	return dns.RcodeSuccess, nil
}

// passesOn reports whether the next stanza is to be asked instead of delivering
// the reply.
func (f *Forwarder) passesOn(reply *dns.Msg) bool {
	return slices.Contains(f.NextRcodes, reply.Rcode) ||
		f.NextOnNodata && reply.Rcode == dns.RcodeSuccess && len(reply.Answer) == 0
}

// maxWaiting is how many queries of all stanzas together may wait at once. Each
// takes some 24 kB, most of it the stacks of its goroutines, so all take 200 MB: an
// outage under load must not take all the memory there is. Below eight upstreams
// the limit of each, 1024, is met before.
const maxWaiting = 8192

// resolve returns the answer to q, or the rcode and the error to return where
// there is none. What is returned without an error is not kept by cache: a short
// outage must not be stretched for the names that were asked in it. See DESIGN.md, D9.
func (f *Forwarder) resolve(ctx context.Context, state request.Request, q query) (ending, int, error) {
	defer f.registry.waiting.Add(-1)
	if f.registry.waiting.Add(1) > maxWaiting {
		unansweredTotal.WithLabelValues("full").Inc()
		return ending{}, dns.RcodeRefused, errFull
	}
	if err := ctx.Err(); err != nil { // who calls wants no more than what is in memory, as searchexpand may
		unansweredTotal.WithLabelValues("cancelled").Inc()
		return ending{}, dns.RcodeServerFailure, err
	}
	now := time.Now()
	w := waiter{state: state, query: q, came: now, due: now.Add(f.Deadline)}
	answer := f.ask(ctx, &w, f.groupFor(state.Proto()))
	if f.PreferUDP && !f.ForceTCP && answer.reply != nil && answer.reply.Truncated {
		w.came = time.Now()
		if whole := f.ask(ctx, &w, (*f.groups.Load())[protoTCP]); whole.reply != nil {
			answer = whole
		}
	}
	switch {
	case answer.reply != nil:
		return answer, dns.RcodeSuccess, nil
	case ctx.Err() != nil:
		unansweredTotal.WithLabelValues("cancelled").Inc()
		return answer, dns.RcodeServerFailure, ctx.Err()
	case answer.full:
		unansweredTotal.WithLabelValues("full").Inc()
		return answer, dns.RcodeRefused, errFull
	}
	unansweredTotal.WithLabelValues("no_answer").Inc()
	f.complain(time.Now())
	return answer, dns.RcodeServerFailure, nil
}

// ask asks the group.
func (f *Forwarder) ask(ctx context.Context, w *waiter, g *group) ending {
	if w.query.once {
		return f.exchangeOnce(ctx, w, g)
	}
	return f.answer(ctx, w, g)
}

// canary lets a few queries through that find out whether somebody is back, while
// the others fail at once.
type canary struct {
	last atomic.Int64 // when the last one went, in Unix nanoseconds
}

// canaryInterval is a tenth of a second: soon enough for a person not to notice.
const canaryInterval = 100 * time.Millisecond

func (c *canary) takes(now time.Time) bool {
	last := c.last.Load()
	return now.UnixNano()-last >= int64(canaryInterval) && c.last.CompareAndSwap(last, now.UnixNano())
}

// exchangeOnce sends q to the first upstream that takes it. Only one that refused
// it outright, and so has not seen it, is followed by the next. What comes of it
// says nothing of the upstream: such queries are not like others.
func (f *Forwarder) exchangeOnce(ctx context.Context, w *waiter, g *group) ending {
	now := w.came
	ctx, cancel := context.WithDeadline(ctx, w.due)
	defer cancel()
	asked := &flight{fw: f, group: g}
	for _, picked := range f.pick(now, g, w.query.about) {
		ticket, ok := asked.started(f.registry.pool.Start(now, picked))
		if !ok {
			continue
		}
		up := g.upstreams[ticket.ID]
		up.metrics.attempts[first].Inc()
		traced := span(ctx, up)
		reply, err := up.exchange(ctx, w.query, true)
		if traced != nil {
			traced.Finish()
		}
		f.registry.pool.End(ticket)
		f.tapAttempt(ctx, w.state, sent{up: up, at: now, reply: reply, ended: time.Now()})
		if err == nil {
			return ending{result: result{reply: reply, grade: gradeFinal, up: up, tier: ticket.Tier}}
		}
		asked.tries = append(asked.tries, &try{up: up, err: err})
		if ctx.Err() != nil {
			return ending{flight: asked}
		}
	}
	return ending{full: asked.full, flight: asked}
}

// shadow sends a copy of a query that was answered to an upstream that has to show
// that it answers well too. Nobody waits for what comes of it.
func (f *Forwarder) shadow(g *group, q query) {
	t, ok := g.Shadow(time.Now(), q.about)
	if !ok {
		return
	}
	up := g.upstreams[t.ID]
	f.attempts.Go(func() {
		ctx, cancel := context.WithDeadline(context.Background(), t.Sent.Add(t.Timeout))
		defer cancel()
		reply, err := up.exchange(ctx, q, false)
		now := time.Now()
		outcome, _ := classify(reply, err, f.Failover)
		if late := now.Sub(t.Sent) - t.Timeout; err != nil && ctx.Err() != nil && late < maxLag {
			outcome = pool.Lost
		}
		f.registry.pool.End(t)
		up.metrics.shadows[outcome].Inc()
		f.registry.report(now, up, t, outcome)
	})
}

// groupFor returns the upstreams for queries that came over the client's transport.
func (f *Forwarder) groupFor(client string) *group {
	switch {
	case f.ForceTCP:
		client = protoTCP
	case f.PreferUDP:
		client = protoUDP
	}
	return (*f.groups.Load())[client]
}

// pick returns the upstreams to ask; those that asked to be left alone come last.
// Those that are not up may want a probe now that there is somebody who asks.
func (f *Forwarder) pick(now time.Time, g *group, about pool.Query) []pool.Ticket {
	tickets := g.Pick(now, about, make([]pool.Ticket, 0, len(g.upstreams)))
	slices.SortStableFunc(tickets, func(a, b pool.Ticket) int {
		switch busyA, busyB := g.upstreams[a.ID].busy(now), g.upstreams[b.ID].busy(now); {
		case busyA == busyB, a.Tier != b.Tier:
			return 0
		case busyA:
			return 1
		}
		return -1
	})
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
// forward uses, and of which tier it is: a lower one's denial may be mistaken.
func describe(ctx context.Context, answer result) {
	upstream := func() string { return answer.up.addr }
	metadata.SetValueFunc(ctx, pluginName+"/upstream", upstream)
	metadata.SetValueFunc(ctx, "forward/upstream", upstream)
	metadata.SetValueFunc(ctx, pluginName+"/tier", func() string { return strconv.Itoa(answer.tier + 1) })
}

// Ready implements ready.Readiness: each stanza of the server block has an upstream
// that is up, or a first verdict on all, which takes less than a second. CoreDNS asks
// the first stanza only.
func (f *Forwarder) Ready() bool {
	for {
		if f.groups.Load() == nil || !f.groupFor(protoUDP).Ready() {
			return false
		}
		next, ok := f.Next.(*Forwarder)
		if !ok {
			return true
		}
		f = next
	}
}

// complain logs that queries go unanswered, now and then.
func (f *Forwarder) complain(now time.Time) {
	last := f.complaint.Load()
	if now.UnixNano()-last < int64(complainEvery) || !f.complaint.CompareAndSwap(last, now.UnixNano()) {
		return
	}
	log.Warningf("no upstream that may be asked answers a query for %s: clients get SERVFAIL (said once in %s)", f.From, complainEvery)
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
