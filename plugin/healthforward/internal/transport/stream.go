package transport

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// Numbers of the proof that a server answers out of order. See DESIGN.md, D11.
const (
	proofAfter = 20 * time.Millisecond // a reply that takes longer had to be looked up
	proofEvery = 10 * time.Second
)

// headerSize is the least that a message has (RFC 1035, section 4.1.1).
const headerSize = 12

// errInterrupted says that the context of a query ended while it was written.
var errInterrupted = errors.New("write interrupted")

// longAgo returns a deadline that ends what waits on a connection.
func longAgo() time.Time { return time.Unix(1, 0) }

// streams exchanges over TCP (RFC 7766) or TLS (RFC 7858). A connection carries
// one query at a time until the server has been seen to answer out of order: one
// that answers in the order of asking, as CoreDNS does, would let one slow name
// delay all that are behind it.
type streams struct {
	*connPool
	dialer dialer

	mu     sync.Mutex
	proved time.Time // when the proof was last tried
}

func newTCP(addr string, opts Options) Exchanger { return newStreams(addr, opts, nil) }

// newTLS offers no protocol by ALPN unless opts.TLS does: "dot" is registered for
// this (RFC 9103, section 7.1), but only a transfer of a zone needs it, and a
// server that selects among others would end the handshake.
func newTLS(addr string, opts Options) Exchanger {
	return newStreams(addr, opts, clientTLS(addr, opts))
}

func newStreams(addr string, opts Options, config *tls.Config) *streams {
	s := &streams{connPool: newConnPool(opts, true), dialer: dialer{addr, opts, config}}
	s.dial = s.open
	return s
}

func (s *streams) open(ctx context.Context) (link, error) {
	conn, err := s.dialer.dial(ctx)
	if err != nil {
		s.serial.Store(true) // what comes back may be another server
		return nil, err
	}
	l := &stream{conn: conn, peer: s, born: time.Now(), waiting: make(map[uint16]*waiter)}
	go l.read()
	return l, nil
}

// mayProve reports whether it is time to try the proof, and takes the turn.
func (s *streams) mayProve(now time.Time) bool {
	if s.opts.Fresh || !s.serial.Load() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.proved.IsZero() && now.Sub(s.proved) < proofEvery {
		return false
	}
	s.proved = now
	return true
}

// proofQuery is what every resolver has at hand.
//
//nolint:gochecknoglobals // it is packed once, and nobody changes it
var proofQuery = func() Query {
	q, err := NewQuery(new(dns.Msg).SetQuestion(".", dns.TypeNS))
	if err != nil {
		panic(err)
	}
	return q
}()

// stream is one connection, with one reader and a table of the IDs that are to be
// answered, be it that nobody waits any more. The reader closes it.
type stream struct {
	conn net.Conn
	peer *streams
	born time.Time

	mu      sync.Mutex
	waiting map[uint16]*waiter
	sent    int       // queries so far
	aged    bool      // it waited long for the first of them
	heard   time.Time // when a byte came last, or the oldest query was sent if that is later
	err     error     // why it takes no more queries
	over    bool      // nothing more is read from it

	// The proof: if proof is answered while behind is not, the server answers out of
	// order. Nil while there is none under way.
	proof, behind *waiter
}

// exchange implements link.
func (l *stream) exchange(ctx context.Context, q Query) (*dns.Msg, error) {
	w := newWaiter(q)
	if err := l.send(ctx, w); err != nil {
		return nil, err
	}
	var late <-chan time.Time
	if l.peer.serial.Load() && !l.peer.opts.Fresh {
		timer := time.NewTimer(proofAfter)
		defer timer.Stop()
		late = timer.C
	}
	for {
		select {
		case r := <-w.done:
			if r.err != nil && ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return r.reply, r.err
		case <-ctx.Done():
			return nil, ctx.Err() // its ID stays in the table: the reply may come yet
		case now := <-late:
			if l.peer.mayProve(now) {
				l.prove(ctx, w)
			}
		}
	}
}

// prove sends a query more behind that of w, to find out whether the server
// answers out of order. No client's query is risked for this: pipelining is
// allowed (RFC 7766, section 6.2.1.1), but a server that answers in order is too,
// and would make whoever is behind wait. Nobody gets the reply.
func (l *stream) prove(ctx context.Context, w *waiter) {
	proof := newWaiter(proofQuery)
	l.mu.Lock()
	l.proof, l.behind = proof, w
	l.mu.Unlock()
	_ = l.send(ctx, proof) // if it fails w is told
}

// send writes w's query, in one piece. The error is ctx's, or that of a query
// which cannot be sent at all: what else goes wrong is told to all who wait.
func (l *stream) send(ctx context.Context, w *waiter) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	frame, err := w.query.frame(0)
	if err != nil {
		return err
	}
	l.mu.Lock()
	if l.err != nil { // since it was picked
		w.give(result{err: failure(l.err, true)})
		l.mu.Unlock()
		return nil //nolint:nilerr // who waits is told
	}
	now := time.Now()
	if len(l.waiting) == 0 {
		l.heard = now
	}
	if l.sent == 0 {
		l.aged = now.Sub(l.born) >= agedAfter
	}
	l.sent++
	binary.BigEndian.PutUint16(frame[2:], enter(l.waiting, w))
	l.mu.Unlock()

	// A server that reads nothing must not hold the query longer than its context.
	stop := context.AfterFunc(ctx, func() { _ = l.conn.SetWriteDeadline(longAgo()) })
	if _, err := l.conn.Write(frame); err != nil {
		l.fail(err, false) // who waits is told
	}
	if !stop() {
		l.refuse(errInterrupted) // nothing more can be written, but replies may come
	}
	return nil
}

// refuse takes no more queries.
func (l *stream) refuse(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
	}
}

// fail ends everything that waits on the connection. On one that was used before,
// or has waited, the queries may be asked again elsewhere, unless within says that
// a part of a reply had come and there is only one whose it can be.
func (l *stream) fail(err error, within bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return
	}
	l.over, l.err = true, err
	err = failure(err, (l.sent > 1 || l.aged) && (!within || len(l.waiting) > 1))
	for _, w := range l.waiting {
		w.give(result{err: err})
	}
	clear(l.waiting)
	l.conn.SetReadDeadline(longAgo()) // wakes the reader if another has noticed
}

// close implements link.
func (l *stream) close() { l.fail(net.ErrClosed, false) }

// state implements link.
func (l *stream) state(now time.Time) linkState {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := linkState{room: 1, pending: len(l.waiting)}
	switch {
	case l.err != nil:
		s.room = 0
	case !l.peer.serial.Load():
		s.room = poolEach
	}
	s.stalled = s.pending > 0 && now.Sub(l.heard) >= stallAfter
	return s
}

// Read reads from the connection, and notes that something came.
func (l *stream) Read(p []byte) (int, error) {
	n, err := l.conn.Read(p)
	if n > 0 {
		now := time.Now()
		l.mu.Lock()
		l.heard = now
		l.mu.Unlock()
	}
	return n, err
}

// read hands replies to those who wait for them until the connection ends.
func (l *stream) read() {
	defer l.conn.Close()
	r := bufio.NewReader(l)
	packet := make([]byte, 0, udpBuffer)
	for {
		var length [2]byte
		if n, err := io.ReadFull(r, length[:]); err != nil {
			l.fail(err, n > 0)
			return
		}
		size := int(binary.BigEndian.Uint16(length[:]))
		if size < headerSize {
			l.peer.opts.mismatched(length[:])
			l.fail(fmt.Errorf("%w: %d octets", errMismatch, size), true)
			return
		}
		if size > cap(packet) {
			packet = make([]byte, 0, size)
		}
		packet = packet[:size]
		if _, err := io.ReadFull(r, packet); err != nil {
			l.fail(err, true)
			return
		}
		if err := l.deliver(packet); err != nil {
			l.peer.opts.mismatched(packet)
			l.fail(err, true)
			return
		}
	}
}

// deliver hands a reply to whoever waits for it. On a stream nobody but the server
// can have sent the packet, so one that is no reply to anything is an error.
func (l *stream) deliver(packet []byte) error {
	id := binary.BigEndian.Uint16(packet)
	l.mu.Lock()
	w := l.waiting[id]
	l.mu.Unlock()
	if w == nil {
		return errMismatch
	}
	m, err := unpack(packet, false)
	if err != nil {
		return fmt.Errorf("%w: %w", errMismatch, err)
	}
	if !matches(m, w.query) {
		return errMismatch
	}
	m.Id = w.query.ID
	l.mu.Lock()
	delete(l.waiting, id)
	if w == l.proof {
		for _, other := range l.waiting {
			if other == l.behind {
				l.peer.serial.Store(false)
			}
		}
		l.proof, l.behind = nil, nil
	}
	l.mu.Unlock()
	w.give(result{reply: m})
	return nil
}
