package transport

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// agedAfter is how long a connection may wait for its first query and still be as
// good as new: after that its peer may have closed it, as if it had been used.
const agedAfter = 100 * time.Millisecond

// progress tells whether a connection that carries many exchanges at once, each
// on a stream of its own, still brings replies.
type progress struct {
	born time.Time

	mu       sync.Mutex
	begun    int
	aged     bool // it waited long for the first of them
	underWay int
	owed     bool      // the last thing that happened was that somebody gave up
	since    time.Time // when a reply came last, or the oldest query was sent if that is later
}

// begin notes a query.
func (p *progress) begin(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.underWay == 0 && !p.owed {
		p.since = now
	}
	p.underWay++
	if p.begun++; p.begun == 1 {
		p.aged = now.Sub(p.born) >= agedAfter
	}
}

// used reports whether the connection carried other queries, or waited long for
// its first one: if it breaks, that need not be a query's doing.
func (p *progress) used() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.begun > 1 || p.aged
}

// end notes that an exchange is over, and whether the server had a part in it.
func (p *progress) end(now time.Time, heard bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.underWay--
	p.owed = !heard
	if heard {
		p.since = now
	}
}

// state returns all of a connection's state but its room. Queries that were given
// up count until something is heard: one after the other must not wait on a
// connection that is dead.
func (p *progress) state(now time.Time) linkState {
	p.mu.Lock()
	defer p.mu.Unlock()
	return linkState{
		pending: p.underWay,
		stalled: (p.underWay > 0 || p.owed) && now.Sub(p.since) >= stallAfter,
	}
}

// brokenLink returns ctx's error if it has ended, or else what is told of an
// exchange whose connection broke. again says that another one may do.
func brokenLink(ctx context.Context, err error, again bool) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return failure(err, again)
}

// failure is what is told to who waits when the connection broke. again says that
// another one may do.
func failure(err error, again bool) error {
	if again {
		return fmt.Errorf("%w: %w: %w", errBroken, errLost, err)
	}
	return fmt.Errorf("%w: %w", errBroken, err)
}
