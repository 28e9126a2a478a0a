package searchexpand

import (
	"context"
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
	// candidateTimeout is the time for one candidate with the questions about its
	// siblings: longer than a healthy resolver needs for a name it has to look up.
	candidateTimeout = time.Second

	// walkTimeout is the time for all candidates. musl asks again after 2.5 s,
	// glibc and Go after 5 s; a client that has asked again does not read this
	// answer.
	walkTimeout = 2 * time.Second

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

// walker asks the rest of the chain for the candidates of one query.
type walker struct {
	next    plugin.Handler
	limit   *limit
	client  client
	request *dns.Msg // as the client sent it; never changed, never handed on
	strict  bool     // a suffix that fails ends the walk
}

// walk asks for each candidate in turn until one ends the walk, and returns what
// it found, in that order. It starts at now and takes walkTimeout at most; what
// it does not get to is undecided. It ends early when ctx does. See DESIGN.md,
// D5 and D9.
func (w walker) walk(ctx context.Context, now time.Time, tries []candidate) []finding {
	end := now.Add(walkTimeout)
	var findings []finding
	for _, c := range tries {
		if ctx.Err() != nil {
			break
		}
		if !now.Before(end) {
			o := outcome{err: errDeadline, rcode: dns.RcodeServerFailure}
			findings = append(findings, finding{candidate: c, outcome: o, verdict: failed})
			break
		}
		f := w.try(ctx, c, earlier(now.Add(candidateTimeout), end)).ending(w.strict)
		findings = append(findings, f)
		if f.verdict.final() {
			break
		}
		now = time.Now()
	}
	return findings
}

// try asks for one candidate, and, if it has no data of the type asked, for its
// siblings.
func (w walker) try(ctx context.Context, c candidate, deadline time.Time) finding {
	qtype := w.request.Question[0].Qtype
	f := newFinding(c, w.ask(ctx, c.name, qtype, deadline), qtype)
	if f.verdict != noData {
		return f
	}
	for _, sibling := range siblings(qtype) {
		f = f.withSibling(w.ask(ctx, c.name, sibling, deadline), sibling)
		if f.verdict.final() {
			break
		}
	}
	return f
}

// ask puts one question to the rest of the chain and waits for the outcome until
// the deadline. Plugins may ignore their context, so the chain runs in a
// goroutine: one that takes longer is left to itself, with everything it touches
// its own. If a plugin below panics in time, so does ask.
func (w walker) ask(ctx context.Context, name string, qtype uint16, deadline time.Time) outcome {
	if !w.limit.acquire() {
		return outcome{err: errOverload, rcode: dns.RcodeServerFailure}
	}
	r := w.request.Copy()
	r.Question[0].Name, r.Question[0].Qtype = name, qtype

	// The context ends only if the question is abandoned. After an answer in time
	// it stays valid, because cache refreshes in the background under it.
	ctx, cancel := context.WithCancelCause(fork(ctx))
	timer := time.AfterFunc(time.Until(deadline), func() { cancel(errTimeout) })
	defer timer.Stop()

	q := newInquiry(w.client)
	go w.run(ctx, q, r)
	select {
	case <-q.done:
	case <-ctx.Done():
		q.abandon(context.Cause(ctx))
	}
	o := q.outcome()
	if o.crash != nil {
		panic(o.crash) // CoreDNS recovers it, counts it and answers SERVFAIL, as without us
	}
	return o
}

// run hands r to the rest of the chain. A panic must not leave this goroutine,
// or it ends the process.
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
			vars.Panic.Inc()
			log.Errorf("A candidate that nobody waits for any more: %v", o.crash)
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

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
