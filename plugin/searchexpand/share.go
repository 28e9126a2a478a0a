package searchexpand

import (
	"context"
	"errors"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/coredns/coredns/plugin/metrics/vars"
	"github.com/coredns/coredns/request"

	"github.com/miekg/dns"
)

// errUnwanted ends a search that nobody waits for any more.
var errUnwanted = errors.New("nobody waits for the name")

// flight is the search for one question, and the queries that wait for it. It belongs
// to none of them: it has a time of its own, and ends early when nobody waits.
type flight struct {
	about subject
	exact string  // what its queries have in common besides; empty: nobody may join
	lead  *flight // one about the same subject that came before; nil if none did

	cancel   context.CancelCauseFunc // set before who started it leaves
	searched chan struct{}           // closed when it has found what it can: the name is pinned, if it will be
	done     chan struct{}           // closed when it is over

	// Guarded by flights.mu.
	waiting int // queries, and flights that it leads
	over    bool

	// Fixed when done is closed. Queries that share the conclusion read it only: reply
	// copies what it takes.
	won   conclusion
	crash *crash
}

// flights are the searches that may be joined. They hold what is in flight and
// nothing else, so they are as bounded as that is.
type flights struct {
	mu sync.Mutex
	by map[subject][]*flight // in the order in which they came
}

func newFlights() *flights { return &flights{by: make(map[subject][]*flight)} }

// board returns a flight to wait for, and whether the caller is to start it.
func (fs *flights) board(about subject, exact string) (f *flight, start bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	same := fs.by[about]
	for _, f := range same {
		if f.exact == exact && exact != "" {
			f.waiting++
			return f, false
		}
	}
	f = &flight{about: about, exact: exact, searched: make(chan struct{}), done: make(chan struct{}), waiting: 1}
	if len(same) > 0 {
		// The first one waits for nobody, or no longer, so no two wait for each other.
		f.lead = same[0]
		f.lead.waiting++
	}
	fs.by[about] = append(same, f)
	return f, true
}

// later returns the flights about the same subject that came after f.
func (fs *flights) later(f *flight) []*flight {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	same := fs.by[f.about]
	return slices.Clone(same[slices.Index(same, f)+1:])
}

// leave says that one waits no more, and reports whether that was the last one of a
// flight that is not over. Nobody joins such a flight, and it is to be cancelled.
func (fs *flights) leave(f *flight) (last bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.waiting--
	if f.over || f.waiting > 0 {
		return false
	}
	fs.remove(f)
	return true
}

// end says that the flight is over, and what came of it. It reports whether anybody
// will see that.
func (fs *flights) end(f *flight, won conclusion, c *crash) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.remove(f)
	f.won, f.crash, f.over = won, c, true
	close(f.done)
	return f.waiting > 0
}

// remove requires that mu is held.
func (fs *flights) remove(f *flight) {
	rest := fs.by[f.about]
	for i := range rest {
		if rest[i] == f {
			rest = append(rest[:i:i], rest[i+1:]...)
			break
		}
	}
	if len(rest) > 0 {
		fs.by[f.about] = rest
	} else {
		delete(fs.by, f.about)
	}
}

// exactly returns what makes two questions about one subject the same: the request
// but for its ID, as healthforward takes it, and what it came over, since what is too
// big for UDP depends on it. It is empty for a request that cannot be packed.
func exactly(w dns.ResponseWriter, r *dns.Msg) string {
	wire, err := r.Pack()
	if err != nil || len(wire) < 2 {
		return ""
	}
	state := request.Request{W: w, Req: r}
	return state.Proto() + string(wire[2:])
}

// resolve returns the verdict on the name that r asks for, by a search as planned or
// by one that is under way.
func (s *SearchExpand) resolve(ctx context.Context, w dns.ResponseWriter, r *dns.Msg, p plan, now time.Time) conclusion {
	f, start := s.flights.board(newSubject(w.RemoteAddr(), p.key, r.Question[0].Name), exactly(w, r))
	if start {
		s.start(ctx, f, s.walker(w, r.Copy(), p, now), now)
	}
	select {
	case <-f.done:
	case <-ctx.Done():
	}
	if s.flights.leave(f) {
		f.cancel(errUnwanted)
		<-f.done
	}
	if err := ctx.Err(); err != nil {
		return cancelled(err)
	}
	if f.crash != nil {
		panic(f.crash) // CoreDNS recovers it, counts it and answers SERVFAIL, as without us
	}
	return f.won
}

// start lets the flight search. What becomes of the query and its metadata above us,
// whether or not it still waits, does not touch the flight.
func (s *SearchExpand) start(ctx context.Context, f *flight, w walker, now time.Time) {
	// The values stay: spans hang on them. At the end the context is left as it is,
	// because cache refreshes in the background under it.
	ctx, f.cancel = context.WithCancelCause(fork(withMark(context.WithoutCancel(ctx))))
	go func() {
		var won conclusion
		defer func() {
			if c := caught(recover()); !s.flights.end(f, won, c) && c != nil {
				vars.Panic.Inc()
				log.Errorf("The search for a name that nobody waits for any more: %v", c)
			}
		}()
		won = s.search(ctx, w, f, now)
		close(f.searched)
		won = s.heed(ctx, w, f, won)
	}()
}

// caught returns the crash that a recovered value stands for: nil if it is nil.
func caught(v any) *crash {
	if v == nil {
		return nil
	}
	if c, ok := v.(*crash); ok { // of a plugin below, and where it happened
		return c
	}
	return &crash{value: v, stack: debug.Stack()}
}

// follow waits until the flight that leads f has found what it can, or ctx is over.
func (f *flight) follow(ctx context.Context) {
	select {
	case <-f.lead.searched:
	case <-f.lead.done: // by a panic
	case <-ctx.Done():
	}
}

// unfollow says that f waits for its leader no more.
func (s *SearchExpand) unfollow(f *flight) {
	if s.flights.leave(f.lead) {
		f.lead.cancel(errUnwanted)
	}
}

// heed returns the conclusion of f, with a denial put off until the searches for other
// types that came after f are over: where one of them finds a host, the name exists,
// whatever its server says when asked for the type of f. Who asks for two types waits for
// both. An earlier search is not waited for, so no two wait for each other.
func (s *SearchExpand) heed(ctx context.Context, w walker, f *flight, won conclusion) conclusion {
	if won.result != resultNXDomain {
		return won
	}
	ctx, cancel := context.WithDeadline(ctx, w.end)
	defer cancel()
	for _, other := range s.flights.later(f) {
		select {
		case <-other.done:
		case <-ctx.Done():
		}
	}
	now := time.Now()
	p, ok := s.pins.get(f.about, now)
	if !ok || p.host == w.request.Question[0].Qtype {
		return won
	}
	at := p.among(w.tries)
	if at < 0 {
		return won
	}
	c := conclude([]finding{{candidate: w.tries[at], verdict: owned, host: p.host, ttl: min(won.ttl, p.left(now))}})
	c.soa = won.soa
	return c
}
