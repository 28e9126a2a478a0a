package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"
)

// Numbers of the pool of connections. See DESIGN.md, D11.
const (
	dialTimeout = time.Second // a handshake of three packets, one of them lost
	streamIdle  = 8 * time.Second
	streamAge   = 30 * time.Second // then a Service may choose another backend
	streamKeep  = 8
)

// tcp exchanges over connections that carry one query at a time (RFC 7766): a
// server that answers in the order of asking would let one slow name delay all
// that are behind it.
type tcp struct {
	addr string
	opts Options

	mu     sync.Mutex
	idle   []*stream // the most recently used last
	closed bool
}

var _ Exchanger = (*tcp)(nil)

func newTCP(addr string, opts Options) Exchanger { return &tcp{addr: addr, opts: opts} }

// Exchange implements Exchanger.
func (t *tcp) Exchange(ctx context.Context, q Query) (*dns.Msg, error) {
	if c := t.take(); c != nil {
		m, err := c.exchange(ctx, q)
		if err == nil {
			t.put(c)
			return m, nil
		}
		c.conn.Close()
		if ctx.Err() != nil || c.heard || !isClosed(err) {
			return nil, err
		}
		// The peer closed it while it was idle, and says nothing of its health. Its
		// siblings are as old: let go of them, and ask again on a fresh one.
		t.flush()
	}
	c, err := t.dial(ctx)
	if err != nil {
		return nil, err
	}
	m, err := c.exchange(ctx, q)
	if err != nil {
		c.conn.Close()
		return nil, err
	}
	t.put(c)
	return m, nil
}

// Close implements Exchanger.
func (t *tcp) Close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.flush()
}

func (t *tcp) dial(ctx context.Context) (*stream, error) {
	dialCtx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	d := net.Dialer{KeepAlive: -1} // idle connections do not live that long
	if t.opts.Source != nil {
		d.LocalAddr = &net.TCPAddr{IP: t.opts.Source}
	}
	conn, err := d.DialContext(dialCtx, "tcp", t.addr)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case isTimeout(err):
		// The dialer's clock may strike before the context's.
		if until, ok := ctx.Deadline(); ok && !time.Now().Before(until) {
			return nil, context.DeadlineExceeded
		}
		return nil, fmt.Errorf("dial %s: %w", t.addr, ErrNoConnection)
	default:
		return nil, err
	}
	age := time.Duration(float64(streamAge) * (0.8 + 0.4*rand.Float64())) // spread, so that not all go at once
	return &stream{conn: conn, opts: t.opts, until: time.Now().Add(age)}, nil
}

// take returns an idle connection, the most recently used one, or nil.
func (t *tcp) take() *stream {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.idle) > 0 {
		c := t.idle[len(t.idle)-1]
		t.idle = t.idle[:len(t.idle)-1]
		if c.expiry.Stop() {
			c.heard = false
			return c
		}
	}
	return nil
}

// put keeps c for the next query, for a while.
func (t *tcp) put(c *stream) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.opts.Fresh || len(t.idle) >= streamKeep || time.Now().After(c.until) {
		c.conn.Close()
		return
	}
	c.expiry = time.AfterFunc(streamIdle, func() { t.expire(c) })
	t.idle = append(t.idle, c)
}

func (t *tcp) expire(c *stream) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, o := range t.idle {
		if o == c {
			t.idle = append(t.idle[:i], t.idle[i+1:]...)
			break
		}
	}
	c.conn.Close()
}

// flush closes all idle connections.
func (t *tcp) flush() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.idle {
		c.expiry.Stop()
		c.conn.Close()
	}
	t.idle = nil
}

// stream is one connection, used by one exchange at a time.
type stream struct {
	conn   net.Conn
	opts   Options
	until  time.Time   // when it is too old to be kept
	expiry *time.Timer // closes it while it is idle
	heard  bool        // whether any byte came since it was taken
}

// exchange sends q and reads its reply. After an error the connection is in an
// unknown state and must be closed.
func (c *stream) exchange(ctx context.Context, q Query) (*dns.Msg, error) {
	longAgo := time.Unix(1, 0) // a deadline that ends what waits on the connection
	stop := context.AfterFunc(ctx, func() { c.conn.SetDeadline(longAgo) })
	m, err := c.roundTrip(q)
	if !stop() {
		return nil, ctx.Err() // the deadline is or will be in the past: of no use any more
	}
	return m, err
}

func (c *stream) roundTrip(q Query) (*dns.Msg, error) {
	if len(q.packed) > dns.MaxMsgSize {
		return nil, fmt.Errorf("send query: %d octets", len(q.packed))
	}
	frame := make([]byte, 2+len(q.packed))
	binary.BigEndian.PutUint16(frame, uint16(len(q.packed)))
	copy(frame[2:], q.packed)
	id := randomID()
	binary.BigEndian.PutUint16(frame[2:], id)
	if _, err := c.conn.Write(frame); err != nil {
		return nil, err
	}
	var length [2]byte
	n, err := io.ReadFull(c.conn, length[:])
	c.heard = n > 0
	if err != nil {
		return nil, err
	}
	packet := make([]byte, binary.BigEndian.Uint16(length[:]))
	if _, err := io.ReadFull(c.conn, packet); err != nil {
		return nil, err
	}
	m, err := unpack(packet, false)
	if err != nil {
		return nil, err
	}
	if m.Id != id || !matches(m, q) {
		c.opts.mismatched()
		return nil, errMismatch
	}
	m.Id = q.ID
	return m, nil
}

// isTimeout reports whether err is a time-out, be it the dialer's or the kernel's.
func isTimeout(err error) bool {
	e, ok := errors.AsType[net.Error](err)
	return ok && e.Timeout()
}

// isClosed reports whether err says that the peer had closed the connection.
func isClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// IsBrokenStream reports whether err says that a stream ended in the middle of an
// exchange, or carried something that is no reply to it.
func IsBrokenStream(err error) bool {
	return isClosed(err) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, errMismatch)
}
