package healthforward

import (
	"context"
	"sync"
	"time"

	"github.com/coredns/coredns/request"
)

// waiter is a client's query and the time that it has.
type waiter struct {
	state request.Request
	query query
	came  time.Time // when it was first ready to be asked
	due   time.Time // when its client gets what there is
}

// ending is what came of a query.
type ending struct {
	result         // without a reply where there is none
	full   bool    // that is because too many queries wait on every upstream
	flight *flight // who was asked; nil: nobody
}

// shareKey is what queries have in common that one flight can answer.
type shareKey struct {
	group *group // of one stanza and one transport
	wire  string // what goes upstream, but for the ID
}

// sharing is the flights of a stanza that clients may join. It holds what is in
// flight and nothing else, so it is as bounded as that is. See DESIGN.md, D28.
type sharing struct {
	mu      sync.Mutex
	flights map[shareKey]*shared
}

// shared is a flight and the clients that wait for it. It belongs to none of them:
// it ends with an answer, at its own deadline, or when nobody waits any more.
type shared struct {
	*flight
	key    shareKey
	began  time.Time
	cancel context.CancelFunc
	done   chan struct{} // closed when it is over

	// Guarded by sharing.mu; what won and many say is fixed when done is closed.
	waiting  int // clients
	won      result
	over     bool
	many     bool // several clients take what won, so each needs a copy
	orphaned bool // who started it has left, and nobody has tapped it yet
}

// answer asks the group: by a flight of its own, or by one that is under way. One
// that began before the query came may have had its bad luck before; if it ends
// without a reply, the query goes on with another. So it is asked twice at most.
func (f *Forwarder) answer(ctx context.Context, w *waiter, g *group) ending {
	for now := w.came; ; now = time.Now() {
		s, led := f.board(ctx, w, g, now)
		if s == nil {
			return ending{}
		}
		e := f.await(ctx, w, s, led)
		if e.reply != nil || !s.began.Before(w.came) || ctx.Err() != nil || !time.Now().Before(w.due) {
			return e
		}
	}
}

// board returns the flight to wait for, and whether it was started for that. Under
// failfast it is nil while nobody is up: who comes then does not wait, not even with
// a canary, which therefore nobody can join.
func (f *Forwarder) board(ctx context.Context, w *waiter, g *group, now time.Time) (s *shared, led bool) {
	key := shareKey{g, w.query.edns.Key()}
	if !f.Failfast || !g.allEjected() {
		if s = f.sharing.join(key); s != nil {
			return s, false
		}
	}
	fl := newFlight(f, g, w.query, now)
	canary := fl.parked && f.Failfast
	if canary && !f.canary.takes(now) {
		return nil, false
	}
	s = &shared{flight: fl, key: key, began: now, done: make(chan struct{}), waiting: 1}
	// The values stay: spans hang on them.
	own, cancel := context.WithDeadline(context.WithoutCancel(ctx), fl.deadline)
	s.cancel = cancel
	if !canary {
		if earlier := f.sharing.add(s); earlier != nil {
			s.cancel()
			return earlier, false
		}
	}
	f.enter(fl)
	if ctx.Done() == nil && !w.due.Before(fl.deadline) { // it cannot leave early, so it may as well fly itself
		f.fly(own, s)
	} else {
		f.attempts.Go(func() { f.fly(own, s) })
	}
	return s, true
}

// fly runs a flight until it is over, and lets go of it even if something below panics.
func (f *Forwarder) fly(ctx context.Context, s *shared) {
	var won result
	defer func() {
		s.cancel()
		f.exit(s.flight)
		f.sharing.end(s, won)
	}()
	var ok bool
	if won, ok = s.run(ctx); ok && answeredWell(won) {
		f.shadow(s.flight.group, s.query)
	}
}

// await waits for the end of a flight, as long as the client has time, and returns
// what the client may keep of it.
func (f *Forwarder) await(ctx context.Context, w *waiter, s *shared, led bool) ending {
	var timeUp <-chan time.Time
	if w.due.Before(s.deadline) {
		timer := time.NewTimer(until(w.due))
		defer timer.Stop()
		timeUp = timer.C
	}
	select {
	case <-s.done:
	case <-timeUp:
	case <-ctx.Done():
	}
	stays, taps := f.sharing.leave(s, led)
	if !stays {
		return ending{flight: s.flight}
	}
	s.cancel() // the last to leave takes what there is, as a reply that was held back
	<-s.done
	e := ending{result: s.won, full: s.full && len(s.tries) == 0 && !s.parked, flight: s.flight}
	if s.many && e.reply != nil {
		e.reply = e.reply.Copy()
	}
	if taps && len(f.taps) > 0 {
		for _, a := range s.sent() {
			if a.reply == s.won.reply {
				a.reply = e.reply // packing it would touch what others copy
			}
			f.tapAttempt(ctx, w.state, a)
		}
	}
	return e
}

// allEjected reports whether nobody is up or suspect.
func (g *group) allEjected() bool {
	for rank := range len(g.upstreams) {
		if !g.Ejected(rank) {
			return false
		}
	}
	return true
}

// join returns the flight for key, with one more client that waits for it, or nil.
func (s *sharing) join(key shareKey) *shared {
	s.mu.Lock()
	defer s.mu.Unlock()
	sh := s.flights[key]
	if sh != nil {
		sh.waiting++
	}
	return sh
}

// add lets others join sh. If there is such a flight since the last look, that one
// is joined and returned.
func (s *sharing) add(sh *shared) (earlier *shared) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if earlier = s.flights[sh.key]; earlier != nil {
		earlier.waiting++
		return earlier
	}
	s.flights[sh.key] = sh
	return nil
}

// leave says that a client waits no more. It stays for what won if the flight is
// over, or now will be because nobody else waits. taps says that its attempts are to
// be shown to dnstap: as those of who started it, because that one's query is what
// went out, or else of the first who takes its end, so that each is shown once.
func (s *sharing) leave(sh *shared, led bool) (stays, taps bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sh.waiting--
	if !sh.over && sh.waiting > 0 {
		sh.orphaned = sh.orphaned || led
		return false, false
	}
	s.remove(sh) // nobody joins what is about to be cancelled
	taps = led || sh.orphaned
	sh.orphaned = false
	return true, taps
}

// end says that the flight is over, and what won.
func (s *sharing) end(sh *shared, won result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(sh)
	sh.won, sh.over, sh.many = won, true, sh.waiting > 1
	close(sh.done)
}

// remove requires that mu is held.
func (s *sharing) remove(sh *shared) {
	if s.flights[sh.key] == sh {
		delete(s.flights, sh.key)
	}
}
