package transport

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// Numbers of the pool of connections. See DESIGN.md, D11.
const (
	poolDials  = 8   // under way at once, to a server that is known to accept
	poolShared = 8   // connections that carry many queries each
	poolEach   = 100 // queries on each of them before there is another

	// stallAfter is how long a connection may owe replies and carry nothing at all
	// before new queries go elsewhere. The hedge delay of the layer above is less.
	stallAfter = 500 * time.Millisecond
)

// link is one connection.
type link interface {
	// exchange does as Exchanger.Exchange. Its error is an errLost where the query
	// may be asked again on another connection.
	exchange(ctx context.Context, q Query) (*dns.Msg, error)
	state(now time.Time) linkState
	// close ends the connection. It is called when no exchange is under way on it.
	close()
}

// linkState is what the choice of a connection depends on.
type linkState struct {
	room    int  // queries it may carry at a time; 0: none, ever again
	pending int  // queries that the server has to answer yet, be they given up
	stalled bool // it owes replies, and nothing came for stallAfter
}

// connPool is an Exchanger over connections that are reused.
type connPool struct {
	dial func(ctx context.Context) (link, error) // keeps to dialTimeout
	opts Options

	// serial says that connections carry one query at a time.
	serial atomic.Bool

	mu      sync.Mutex
	conns   []*pooled // that new queries may use, once they have room
	wants   []*want   // that wait for a connection, in the order of asking
	dialing int
	cold    bool // there never was a connection, or the last dial failed
	closed  bool
	ended   []*pooled // to be closed by unlock
}

var _ Exchanger = (*connPool)(nil)

func newConnPool(opts Options, serial bool) *connPool {
	p := &connPool{opts: opts, cold: true}
	p.serial.Store(serial)
	return p
}

// pooled is a connection in the pool, whose mu guards it.
type pooled struct {
	link
	born, until time.Time
	load        int // exchanges under way
	idleSince   time.Time
	expiry      *time.Timer // ends it when it is not used
	lost        time.Time   // when it turned out to be
	retired     bool        // not in conns: it ends with its last exchange
	over        bool        // it has ended
}

// want is an exchange that waits for a connection.
type want struct {
	after time.Time  // the connection must be younger
	ready chan error // nil: conn is set. Has room for its one message.
	conn  *pooled    // guarded by connPool.mu until ready
}

// Exchange implements Exchanger.
func (p *connPool) Exchange(ctx context.Context, q Query) (*dns.Msg, error) {
	if p.opts.Fresh {
		l, err := p.dial(ctx)
		if err != nil {
			return nil, err
		}
		defer l.close()
		return l.exchange(ctx, q)
	}
	m, lost, err := p.attempt(ctx, q, time.Time{})
	if errors.Is(err, errLost) && ctx.Err() == nil {
		// The peer closed it while it was idle, or because of another query, and says
		// nothing of its health. What was there before is not trusted either.
		m, _, err = p.attempt(ctx, q, lost)
	}
	return m, err
}

// attempt asks over a connection that came about after the given time. It also
// returns when that was lost, if it was.
func (p *connPool) attempt(ctx context.Context, q Query, after time.Time) (m *dns.Msg, lost time.Time, err error) {
	c, err := p.acquire(ctx, after)
	if err != nil {
		return nil, time.Time{}, err
	}
	m, err = c.exchange(ctx, q)
	return m, p.release(c, errors.Is(err, errLost)), err
}

// Close implements Exchanger.
func (p *connPool) Close() {
	p.mu.Lock()
	defer p.unlock()
	p.closed = true
	for len(p.conns) > 0 {
		p.retire(0)
	}
}

// unlock gives up mu, and closes what has ended meanwhile: that may take time.
func (p *connPool) unlock() {
	ended := p.ended
	p.ended = nil
	p.mu.Unlock()
	for _, c := range ended {
		c.close()
	}
}

// acquire returns a connection for one exchange, at once or when there is one.
func (p *connPool) acquire(ctx context.Context, after time.Time) (*pooled, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	now := time.Now()
	if len(p.wants) == 0 {
		if c := p.pick(now, after); c != nil {
			p.take(c)
			p.unlock()
			return c, nil
		}
	}
	w := &want{after: after, ready: make(chan error, 1)}
	p.wants = append(p.wants, w)
	p.dispatch(now)
	p.unlock()
	select {
	case err := <-w.ready:
		return w.conn, err
	case <-ctx.Done():
		p.abandon(w)
		return nil, ctx.Err()
	}
}

// abandon takes back a want. A dial that began for it goes on for the others.
func (p *connPool) abandon(w *want) {
	p.mu.Lock()
	if i := slices.Index(p.wants, w); i >= 0 {
		p.wants = slices.Delete(p.wants, i, i+1)
	}
	c := w.conn
	p.unlock()
	if c != nil {
		p.release(c, false) // it came too late
	}
}

// release ends an exchange on c. If the connection was lost, those that are idle
// are as old and go as well, and it returns when that became known.
func (p *connPool) release(c *pooled, lost bool) time.Time {
	p.mu.Lock()
	defer p.unlock()
	now := time.Now()
	c.load--
	c.idleSince = now
	if lost && c.lost.IsZero() {
		c.lost = now
		for i, o := range slices.Backward(p.conns) { // from the end, since it loses some
			if o.load == 0 {
				p.retire(i)
			}
		}
	}
	if len(p.wants) > 0 {
		p.dispatch(now)
	}
	p.settle(c, now)
	return c.lost
}

// The methods below require that mu is held.

// pick returns the connection for the next query, or nil where there is none: of
// the least loaded ones that which was used last, because it is the least likely
// to have been closed. It retires what it finds to be of no more use.
func (p *connPool) pick(now, after time.Time) *pooled {
	var best *pooled
	least := 0
	serial := p.serial.Load()
	for i, c := range slices.Backward(p.conns) { // from the end, since it may lose some
		if c.born.Before(after) || serial && c.load > 0 {
			continue
		}
		s := c.state(now)
		if s.room == 0 || s.stalled || now.After(c.until) {
			p.retire(i)
			continue
		}
		used := max(c.load, s.pending)
		// Beyond eight times a hundred, a connection more would help nobody.
		if used >= s.room && (serial || len(p.conns) < poolShared) {
			continue
		}
		if best == nil || used < least || used == least && c.idleSince.After(best.idleSince) {
			best, least = c, used
		}
	}
	return best
}

func (p *connPool) take(c *pooled) {
	c.load++
	c.expiry.Stop()
}

// dispatch hands connections to those who want one, and begins the dials that are
// needed for the rest. While the server is not known to accept there is one dial,
// whose verdict all wait for: a server that is gone must not be asked a thousand
// times, nor let anybody wait for more than one time-out.
func (p *connPool) dispatch(now time.Time) {
	full := false // for those that take any connection
	p.wants = slices.DeleteFunc(p.wants, func(w *want) bool {
		if full && w.after.IsZero() {
			return false
		}
		c := p.pick(now, w.after)
		if c == nil {
			full = full || w.after.IsZero()
			return false
		}
		p.take(c)
		w.conn = c
		w.ready <- nil
		return true
	})
	dials := len(p.wants)
	if !p.serial.Load() {
		dials = (dials + poolEach - 1) / poolEach
	}
	if p.cold {
		dials = min(dials, 1)
	}
	for dials = min(dials, poolDials); p.dialing < dials; p.dialing++ {
		go p.connect(p.cold)
	}
}

// connect is one dial. It ends by the dial's own time-outs, whoever waits for it.
func (p *connPool) connect(cold bool) {
	l, err := p.dial(context.Background())
	p.mu.Lock()
	defer p.unlock()
	p.dialing--
	now := time.Now()
	if err != nil {
		p.failed(err, cold)
		return
	}
	p.cold = false
	c := &pooled{link: l, born: now, until: now.Add(p.opts.age()), idleSince: now}
	c.expiry = time.AfterFunc(p.opts.Expire, func() { p.expire(c) })
	p.conns = append(p.conns, c)
	p.dispatch(now)
	p.settle(c, now)
}

// failed tells those who wait that a dial failed. If there were more dials than
// one they are told when the last of them has failed too: until then one lost
// packet may be all there is.
func (p *connPool) failed(err error, cold bool) {
	p.cold = true
	told := len(p.wants)
	if !cold && p.dialing > 0 {
		told = min(told, 1)
	}
	for _, w := range p.wants[:told] {
		w.ready <- err
	}
	p.wants = slices.Delete(p.wants, 0, told)
}

// settle decides what becomes of c after an exchange.
func (p *connPool) settle(c *pooled, now time.Time) {
	if c.load > 0 {
		return
	}
	if c.retired {
		p.end(c)
		return
	}
	s := c.state(now)
	if p.closed || s.room == 0 || s.stalled || now.After(c.until) || p.idle() > p.opts.MaxIdle {
		p.retire(slices.Index(p.conns, c))
		return
	}
	c.expiry.Reset(p.opts.Expire)
}

// idle returns how many connections nobody uses, be it that the server still has
// to answer somebody who has given up.
func (p *connPool) idle() int {
	n := 0
	for _, c := range p.conns {
		if c.load == 0 {
			n++
		}
	}
	return n
}

// retire lets nobody new on connection i.
func (p *connPool) retire(i int) {
	c := p.conns[i]
	p.conns = slices.Delete(p.conns, i, i+1)
	c.retired = true
	if c.load == 0 {
		p.end(c)
	}
}

func (p *connPool) end(c *pooled) {
	if c.over {
		return
	}
	c.over = true
	c.expiry.Stop()
	p.ended = append(p.ended, c)
}

// expire ends c if it has been idle for long enough. It takes mu.
func (p *connPool) expire(c *pooled) {
	p.mu.Lock()
	defer p.unlock()
	if i := slices.Index(p.conns, c); i >= 0 && c.load == 0 && time.Since(c.idleSince) >= p.opts.Expire {
		p.retire(i)
	}
}
