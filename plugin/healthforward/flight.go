package healthforward

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"steadfast.internal/plugin/healthforward/internal/pool"

	"github.com/miekg/dns"
	ot "github.com/opentracing/opentracing-go"
)

// Numbers of a query's course. See DESIGN.md, D7.
const (
	// queryDeadline, the default of Config.Deadline, is below the 5 s after which a
	// glibc client asks again.
	queryDeadline = 4 * time.Second
	// maxOut is how many attempts on healthy upstreams wait at once (RFC 9520, section 3.1).
	maxOut = 3
	// maxRounds is how often one upstream is asked the same: each time from a new
	// socket, for a packet may have been lost. Time ends it before, nearly always.
	maxRounds = 8
	// slowFailure is how long an error takes that is a time-out, not a refusal.
	slowFailure = 250 * time.Millisecond
	// repeatCost is what it costs to ask the same upstream once more before the
	// attempt's time-out: it helps against loss only, and doubles the load of one
	// that is merely slow.
	repeatCost = 5
	// maxLag: a timer that fires so late was held up by ourselves, and proves nothing.
	maxLag = 50 * time.Millisecond
)

// result is the end of one attempt.
type result struct {
	reply *dns.Msg
	grade grade
	up    *upstream
	rank  int
	tier  int
	wasUp bool // when it was asked
	noWay bool // this host could not get there
	at    time.Time
}

// flight is one query on its way to an answer. Its attempts run in goroutines of
// their own, and those that lose outlive it for a while, so that they show what
// is to be thought of their upstreams.
type flight struct {
	fw       *Forwarder
	group    *group
	query    query
	began    time.Time
	deadline time.Time
	nudges   chan nudge

	tickets []pool.Ticket
	next    int       // into tickets
	round   int       // of asking everybody, 0 for the first
	replied bool      // somebody has replied, with whatever
	parked  bool      // nobody was up or suspect: asked all the same
	full    bool      // an upstream was passed over because too many wait on it
	crowded []pool.ID // those that were
	spared  bool      // the free fail-over after a hard error is used up
	denied  result    // what a lower tier denies while those above may know it
	moved   bool      // to other upstreams than there were at first
	inDoubt int       // the rank of the one who has not said yet what a later one denies, for reason doubted

	mu    sync.Mutex
	tries []*try
	back  pool.ID // the upstream that came back, for reason returned
}

// try is one attempt at a query.
type try struct {
	ticket pool.Ticket
	up     *upstream
	ctx    context.Context
	cancel context.CancelFunc
	span   ot.Span // nil: the query is not traced
	ended  atomic.Bool

	// Guarded by flight.mu.
	reply   *dns.Msg
	err     error
	endedAt time.Time
	failed  bool // the reply has a failing rcode
	outdone bool // a peer has answered well
}

func newFlight(fw *Forwarder, g *group, q query, now time.Time) *flight {
	f := &flight{
		fw:       fw,
		group:    g,
		query:    q,
		began:    now,
		deadline: now.Add(fw.Deadline),
		nudges:   make(chan nudge, 8),
	}
	f.tickets = fw.pick(now, g, q.about)
	f.parked = len(f.tickets) > 0 && f.tickets[0].State == pool.Ejected
	return f
}

// run returns the reply to deliver, or false where there is none. ctx ends at the
// deadline.
func (f *flight) run(ctx context.Context) (result, bool) {
	r := race[result]{
		admit:  func(why reason, _, pending int) (attempt[result], bool) { return f.admit(ctx, why, pending) },
		late:   f.late,
		settle: f.settle,
		nudges: f.nudges,
		spawn:  f.fw.attempts.Go,
		width:  f.fw.Race,
	}
	if f.lowerTier() {
		r.openAt = f.began.Add(tierHold)
	}
	won, ok := r.run(ctx)
	if !ok {
		won, ok = f.judged(ctx)
	}
	f.leave(won, ok)
	return won, ok
}

// admit starts an attempt on the next upstream that may be asked, if the reason
// and the budget allow.
func (f *flight) admit(ctx context.Context, why reason, pending int) (attempt[result], bool) {
	f.move()
	if limit := f.fw.MaxAttempts; limit > 0 && f.made() >= limit || why == moved && f.stays() {
		return attempt[result]{}, false
	}
	if slices.Contains(bounded, why) && f.out(true) >= maxOut {
		return attempt[result]{}, false
	}
	ticket, repeat, ok := f.nextTicket(why, pending)
	if !ok {
		return attempt[result]{}, false
	}
	cost, ok := f.cost(ticket, why, pending, repeat)
	if !ok || cost > 0 && !f.group.Spend(ticket.Sent, cost) {
		f.fw.registry.pool.End(ticket)
		if why != returned && why != doubted && (why != opened || f.round == 0) {
			f.next-- // not asked yet
		}
		if ok {
			hedgesDeniedTotal.Inc()
		}
		return attempt[result]{}, false
	}
	up := f.group.upstreams[ticket.ID]
	t := &try{ticket: ticket, up: up, span: span(ctx, up)}
	t.ctx, t.cancel = context.WithDeadline(context.WithoutCancel(ctx), f.deadline)
	f.mu.Lock()
	f.tries = append(f.tries, t)
	f.mu.Unlock()
	t.up.metrics.attempts[why].Inc()
	return attempt[result]{
		patience: ticket.Patience,
		timeout:  f.fw.ReadTimeout,
		try:      func() result { return f.try(t, repeat) },
	}, true
}

// bounded are the reasons for which no more than maxOut attempts wait at once.
var bounded = []reason{overdue, expired, failed, suspected}

// made returns how many attempts count against the limit: not those on who left.
func (f *flight) made() int {
	n := 0
	for _, t := range f.tries {
		if f.group.upstreams[t.ticket.ID] != nil {
			n++
		}
	}
	return n
}

// out returns how many attempts wait, but for those that are lost; with healthy on
// upstreams that are up.
func (f *flight) out(healthy bool) int {
	n, now := 0, time.Now()
	for _, t := range f.tries {
		if t.ended.Load() || now.Sub(t.ticket.Sent) >= f.fw.ReadTimeout || f.group.upstreams[t.ticket.ID] == nil {
			continue
		}
		if s := f.fw.registry.pool.State(t.ticket.ID); !healthy || s == pool.Up || s == pool.SlowStart {
			n++
		}
	}
	return n
}

// nextTicket returns the started ticket of the next upstream; repeat says that it
// has been asked before.
func (f *flight) nextTicket(why reason, pending int) (ticket pool.Ticket, repeat, ok bool) {
	switch why {
	case returned:
		return f.startOne(func(t pool.Ticket) bool { return t.ID == f.back })
	case doubted:
		return f.startOne(func(t pool.Ticket) bool { return t.Rank == f.inDoubt })
	}
	if why == opened && f.round > 0 { // all above have been asked, some more than once
		ticket, _, ok = f.startOne(func(t pool.Ticket) bool { return t.Tier > f.tickets[0].Tier && !f.asked(t.ID) })
		return ticket, false, ok
	}
	p := f.fw.registry.pool
	for {
		for f.next < len(f.tickets) && f.tierOpen(f.tickets[f.next]) && f.mayAsk(f.round, why, pending) {
			t := f.tickets[f.next]
			f.next++
			if ticket, ok = f.started(p.Start(time.Now(), t)); ok {
				return ticket, f.asked(ticket.ID), true
			}
		}
		more := f.next < len(f.tickets) && f.tierOpen(f.tickets[f.next])
		if more || len(f.tickets) == 0 || !f.mayAsk(f.round+1, why, pending) {
			return ticket, f.round > 0, false
		}
		f.round++
		f.next = 0
		f.tickets = f.group.PickAgain(time.Now(), f.query.about, f.tickets[:0]) // as they stand now
	}
}

// startOne starts the ticket that is meant, once more.
func (f *flight) startOne(meant func(pool.Ticket) bool) (ticket pool.Ticket, repeat, ok bool) {
	i := slices.IndexFunc(f.tickets, meant)
	if i < 0 {
		return ticket, true, false
	}
	ticket, ok = f.started(f.fw.registry.pool.Start(time.Now(), f.tickets[i]))
	return ticket, true, ok
}

// asked reports whether the upstream has been asked before.
func (f *flight) asked(id pool.ID) bool {
	return slices.ContainsFunc(f.tries, func(t *try) bool { return t.ticket.ID == id })
}

// mayAsk reports whether upstreams may be asked in that round: again for a late
// answer, because a packet may have been lost; again for a hard error once, and
// further while errors are slow to come, if nobody has replied and nobody else is
// being waited for.
func (f *flight) mayAsk(round int, why reason, pending int) bool {
	switch {
	case round == 0:
		return true
	case round >= maxRounds, f.out(false) >= maxOut: // of whatever state: they have had their chance
		return false
	case why == overdue, why == expired:
		return true
	case why == failed:
		slow := time.Since(f.tries[len(f.tries)-1].ticket.Sent) >= slowFailure
		return pending == 0 && !f.replied && (round == 1 || slow)
	}
	return false
}

// started notes why a ticket could not be started.
func (f *flight) started(t pool.Ticket, s pool.Start) (pool.Ticket, bool) {
	if s == pool.Full {
		f.full = true
		f.crowded = append(f.crowded, t.ID)
	}
	return t, s == pool.Started
}

// cost returns how many tokens an attempt for that reason costs, or false where
// none is to be made. Free is what rescues a query for the first time.
func (f *flight) cost(ticket pool.Ticket, why reason, pending int, repeat bool) (tokens int, ok bool) {
	switch {
	case pending == 0, why == first, why == ejected, why == returned, why == doubted, why == moved:
		return 0, true
	case (why == overdue || why == suspected) && f.fw.NoHedge:
		return 0, false
	case f.parked && why == overdue && !ticket.Unasked, f.parked && why != overdue && why != failed:
		return 0, false // whoever comes back is asked for all that wait
	case why == expired && len(f.tries) == 1:
		return 0, true
	case repeat && f.slowName() && (why == overdue || why == expired && len(f.tries) >= maxOut):
		return 0, false
	case (why == overdue || why == expired) && repeat:
		return repeatCost, true
	case why == failed && !f.spared:
		f.spared = true
		return 0, true
	}
	return 1, true
}

// slowName reports whether it is likely that no packet was lost, but that the name
// takes long: several upstreams, on good links, owe an answer and have sent others.
func (f *flight) slowName() bool {
	asked := make(map[pool.ID]bool)
	for _, t := range f.tries {
		if t.ticket.Lossy || !f.group.HeardSince(f.rank(t), t.ticket.Sent) {
			return false
		}
		asked[t.ticket.ID] = true
	}
	return len(asked) > 1
}

// try makes the attempt and reports what it showed.
func (f *flight) try(t *try, repeat bool) result {
	defer t.cancel()
	reply, err := t.up.exchange(t.ctx, f.query, repeat)
	now := time.Now()
	outcome, g := classify(reply, err, f.fw.Failover)
	f.mu.Lock()
	t.reply, t.err, t.endedAt, t.failed = reply, err, now, g == gradeBad
	outdone := t.failed && t.outdone
	f.mu.Unlock()
	t.ended.Store(true)
	if t.span != nil {
		t.span.Finish()
	}
	f.fw.registry.pool.End(t.ticket)
	f.fw.registry.report(now, t.up, t.ticket, outcome)
	if outdone {
		f.fw.registry.report(now, t.up, t.ticket, pool.Outdone)
	}
	if reply != nil {
		took := now.Sub(t.ticket.Sent).Seconds()
		t.up.metrics.duration.Observe(took)
		t.up.proxy.observe(f.fw.name, t.up.addr, reply.Rcode, took)
	}
	return result{
		reply: reply, grade: g, up: t.up, rank: t.ticket.Rank, tier: t.ticket.Tier,
		wasUp: t.ticket.State == pool.Up, noWay: outcome == pool.Unreachable, at: now,
	}
}

// late reports that attempt i was not over in time, unless we come late ourselves.
func (f *flight) late(i int, why reason, due time.Time) {
	now := time.Now()
	if now.Sub(due) > maxLag {
		return
	}
	outcome := pool.Late
	if why == expired {
		outcome = pool.Lost
	}
	t := f.tries[i]
	f.fw.registry.report(now, t.up, t.ticket, outcome)
}

// sent returns the attempts so far.
func (f *flight) sent() []sent {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make([]sent, 0, len(f.tries))
	for _, t := range f.tries {
		all = append(all, sent{up: t.up, at: t.ticket.Sent, reply: t.reply, ended: t.endedAt})
	}
	return all
}

// notify tells the flight that an upstream of its group changed its state.
func (f *flight) notify(tr pool.Transition) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if tr.To == pool.Up || tr.To == pool.SlowStart {
		if f.parked {
			f.back = tr.ID
			f.nudge(nudge{why: returned, about: -1})
		}
		return
	}
	why := suspected
	if tr.To == pool.Ejected {
		why = ejected
	}
	for i, t := range f.tries {
		if t.ticket.ID == tr.ID {
			f.nudge(nudge{why: why, about: i})
		}
	}
}

// nudge drops what finds no room: a flight that is so far behind has its timers.
func (f *flight) nudge(n nudge) {
	select {
	case f.nudges <- n:
	default:
	}
}
