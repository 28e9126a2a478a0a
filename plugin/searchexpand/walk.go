package searchexpand

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metadata"
	"github.com/coredns/coredns/plugin/metrics/vars"

	"github.com/miekg/dns"
)

const (
	// maxInFlight bounds the questions of this process that are below us, those
	// included that nobody waits for any more, since a plugin that ignores its
	// context cannot be ended. In front of cache and forward each takes 22 kB, so that
	// it is 45 MB at the worst.
	maxInFlight = 2048
)

// inFlight is shared by all server blocks, and by the instances before and after
// a reload: the memory is one.
//
//nolint:gochecknoglobals // it counts what the process holds
var inFlight = limit{max: maxInFlight}

// limit counts what is in flight and says when that is enough.
type limit struct {
	max int64
	n   atomic.Int64
}

// acquire reports whether there is room for one more, and takes it.
func (l *limit) acquire() bool {
	if l.n.Add(1) > l.max {
		l.n.Add(-1)
		return false
	}
	return true
}

func (l *limit) release() { l.n.Add(-1) }

// errOutrun ends a candidate that the walk no longer needs.
var errOutrun = errors.New("an earlier candidate has the name")

// walker asks the rest of the chain for the candidates of one query.
type walker struct {
	next     plugin.Handler
	limit    *limit
	pace     pace
	suffixes *suffixes
	bill     bill
	client   client
	request  *dns.Msg // as the client sent it; never changed, never handed on
	base     string   // what is completed, as in plan
	tries    []candidate
	strict   bool // a suffix that fails ends the walk

	wildcards *wildcards // nil: any match counts

	end time.Time // of the time for all candidates; zero: what pace says, from the walk's start on
}

// report is what was found about the candidate at a place in the list.
type report struct {
	index int
	finding
}

// walk asks for the candidates in their order, as the course says, until one ends
// the walk, and returns what it found, in that order. It starts at now and takes no
// longer than its pace allows; it ends early when ctx does. See DESIGN.md, D5, D9
// and D12.
func (w walker) walk(ctx context.Context, now time.Time, tries []candidate) []finding {
	c := newCourse(w.pace, now, tries)
	if !w.end.IsZero() {
		c.end = w.end
	}
	cancels := make([]context.CancelCauseFunc, len(tries))
	reports, over := make(chan report), make(chan struct{})
	defer close(over)
	defer func() { w.leave(ctx, c, cancels) }()

	timer := time.NewTimer(w.pace.timeout)
	defer timer.Stop()
	for ctx.Err() == nil {
		for c.ready(now) {
			a := w.admit(now, c.legs[c.next].candidate)
			i := c.ask(now, a)
			if a.skip {
				suffixCount.WithLabelValues(c.legs[i].entry, eventSkipped).Inc()
				c.decide(i, failure(c.legs[i].candidate, errSkipped).ending(w.strict))
				continue
			}
			// Not the query's: a candidate outlives a walk that goes past it.
			own, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
			cancels[i] = cancel
			go w.visit(own, c.legs[i], i, reports, over)
		}
		if c.over(now) {
			break
		}
		due := c.due(now)
		timer.Reset(due.Sub(now))
		select {
		case r := <-reports:
			if r.crash != nil {
				panic(r.crash) // CoreDNS recovers it, counts it and answers SERVFAIL, as without us
			}
			c.decide(r.index, r.ending(w.strict))
		case <-timer.C:
		case <-ctx.Done():
		}
		now = time.Now()
		c.excuse(due, now)
	}
	return c.findings()
}

// admit decides how a candidate is treated.
func (w walker) admit(now time.Time, c candidate) admission {
	a := w.suffixes.admit(now, c.suffix, w.pace)
	if (c.asked || c.gate != noGate) && (a.skip || a.probe) {
		a = admission{patience: patience} // who asks for a name is told what it is, if that can be
	}
	if w.strict || c.gate != noGate { // silence must not pass for a failure before its time
		a.patience = w.pace.timeout // not a candidate's, which ends as its failure is handed in
	}
	return a
}

// leave ends what a walk that is over has asked for in vain. The candidates in
// front of the one that ended it are left to their own deadline: whether they
// answer at all tells of their suffix.
func (w walker) leave(ctx context.Context, c *course, cancels []context.CancelCauseFunc) {
	cause := context.Cause(ctx)
	for i := range c.next {
		if c.legs[i].decided || cancels[i] == nil {
			continue // what cache refreshes in the background under a context goes on
		}
		if cause != nil {
			cancels[i](cause)
		} else if i >= c.limit {
			cancels[i](errOutrun)
		} else if c.won() {
			suffixCount.WithLabelValues(c.legs[i].entry, eventOutrun).Inc()
		}
	}
}

// visit finds out about one candidate, and hands in what it found unless the walk
// is over.
func (w walker) visit(ctx context.Context, l leg, index int, reports chan<- report, over <-chan struct{}) {
	f := w.try(ctx, l.candidate, l.since.Add(w.pace.candidateTimeout()))
	if ctx.Err() == nil { // else the walk ended it
		w.suffixes.report(time.Now(), l.since, f)
	}
	select {
	case reports <- report{index, f}:
	case <-over:
		if f.crash != nil {
			late(f.crash)
		}
	}
}

// late tells of a panic that comes when nobody waits any more.
func late(c *crash) {
	vars.Panic.Inc()
	log.Errorf("What nobody waits for any more: %v", c)
}

// try asks for one candidate, and, if it has no data of the type asked, for its
// siblings.
func (w walker) try(ctx context.Context, c candidate, deadline time.Time) finding {
	if c.gate != noGate {
		return gated(c, w.ask(ctx, c.name, gateType, deadline))
	}
	qtype := w.request.Question[0].Qtype
	o, made := w.look(ctx, c, qtype, deadline)
	f := newFinding(c, o, qtype)
	if made {
		return w.weakened(f, qtype)
	}
	if f.verdict != noData {
		return f
	}
	for _, sibling := range siblings(qtype) {
		o, made = w.look(ctx, c, sibling, deadline)
		if made {
			f = w.unowned(f)
			continue
		}
		f = f.withSibling(o, sibling)
		if f.verdict.final() || f.crash != nil {
			break
		}
	}
	return f
}

// ask puts one question to the rest of the chain and waits for the outcome until
// the deadline. Plugins may ignore their context, so the chain runs in a
// goroutine: one that takes longer is left to itself, with everything it touches
// its own.
func (w walker) ask(ctx context.Context, name string, qtype uint16, deadline time.Time) outcome {
	now := time.Now()
	left := deadline.Sub(now)
	if left <= 0 {
		return outcome{err: errTimeout, rcode: dns.RcodeServerFailure}
	}
	if !w.limit.acquire() {
		return outcome{err: errOverload, rcode: dns.RcodeServerFailure}
	}
	r := w.request.Copy()
	r.Question[0].Name, r.Question[0].Qtype = name, qtype
	if !w.bill.pay(now) {
		return w.recall(ctx, r)
	}

	// The context ends only if the question is abandoned. After an answer in time
	// it stays valid, because cache refreshes in the background under it.
	ctx, cancel := context.WithCancelCause(fork(ctx))
	timer := time.AfterFunc(left, func() { cancel(errTimeout) })
	defer timer.Stop()

	q := newInquiry(w.client)
	go w.run(ctx, q, r)
	select {
	case <-q.done:
		w.bill.settle(time.Since(now), q.outcome())
	case <-ctx.Done():
		q.abandon(context.Cause(ctx))
	}
	return q.outcome()
}

// recall puts a question that is not paid for to the rest of the chain, with a
// context that is over: cache, file and kubernetes answer all the same, forward and
// healthforward ask nobody, and cache keeps no failure that comes of it.
func (w walker) recall(ctx context.Context, r *dns.Msg) outcome {
	ctx, cancel := context.WithCancelCause(fork(ctx))
	cancel(errBudget)
	timer := time.NewTimer(recallTime)
	defer timer.Stop()

	q := newInquiry(w.client)
	go w.run(ctx, q, r)
	select {
	case <-q.done:
	case <-timer.C:
		q.abandon(errBudget)
	}
	o := q.outcome()
	if o.msg == nil && !plugin.ClientWrite(o.rcode) {
		o.err = errBudget // whatever a plugin makes of a context that is over
	}
	return o
}

// run hands r to the rest of the chain. A panic must not leave this goroutine,
// or it ends the process: it comes up in the query's.
func (w walker) run(ctx context.Context, q *inquiry, r *dns.Msg) {
	o := outcome{rcode: dns.RcodeServerFailure} // stands if the goroutine is made to exit
	defer func() {
		if v := recover(); v != nil {
			o.crash = &crash{value: v, stack: debug.Stack()}
		}
		if o.err != nil && ctx.Err() != nil {
			o.err = context.Cause(ctx) // a plugin that heeds its context cannot know why it ended
		}
		o.values = metadata.ValueFuncs(ctx)
		w.limit.release()
		if !q.finish(o) && o.crash != nil {
			late(o.crash)
		}
	}()
	o.rcode, o.err = plugin.NextOrFailure(pluginName, w.next, ctx, q, r)
}

// crash is a panic of a plugin below on its way from the candidate's goroutine
// to the query's.
type crash struct {
	value any
	stack []byte // where it happened
}

// Error returns the value and where it happened.
func (c *crash) Error() string { return fmt.Sprintf("%v\n%s", c.value, c.stack) }

// fork returns ctx with a metadata map of its own that starts with what ctx
// holds. Plugins write into the map; two candidates at once in one map would end
// the process.
func fork(ctx context.Context) context.Context {
	own := metadata.ContextWithMetadata(ctx)
	for label, value := range metadata.ValueFuncs(ctx) {
		metadata.SetValueFunc(own, label, value)
	}
	return own
}
