package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"
)

// Numbers of the pool of sockets. See DESIGN.md, D10.
const (
	udpSockets = 16 // as many source ports are in use at a time, so that one reader is no bottleneck
	udpQueries = 1000
	udpAge     = 10 * time.Second // then the source port changes, and a Service may choose another backend

	// udpBuffer is more than any query of ours invites (1,232 octets). What is
	// larger all the same is taken as truncated.
	udpBuffer = 4096
)

// udp exchanges over connected sockets, each with one reader and a table of the
// IDs that somebody waits for.
type udp struct {
	addr string
	opts Options

	mu     sync.Mutex
	slots  [udpSockets]*udpSocket
	closed bool
}

var _ Exchanger = (*udp)(nil)

func newUDP(addr string, opts Options) Exchanger { return &udp{addr: addr, opts: opts} }

// Exchange implements Exchanger.
func (u *udp) Exchange(ctx context.Context, q Query) (*dns.Msg, error) {
	w := &waiter{query: q, done: make(chan result, 1)}
	s, id, err := u.register(ctx, w)
	if err != nil {
		return nil, err
	}
	defer s.remove(id)

	packet := make([]byte, len(q.packed))
	copy(packet, q.packed)
	binary.BigEndian.PutUint16(packet, id)
	if _, err := s.conn.Write(packet); err != nil {
		return nil, err
	}
	select {
	case r := <-w.done:
		if r.err != nil {
			return nil, r.err
		}
		r.reply.Id = q.ID
		return r.reply, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Close implements Exchanger.
func (u *udp) Close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed = true
	for i, s := range u.slots {
		if s != nil {
			s.retire()
			u.slots[i] = nil
		}
	}
}

// register finds a socket for w, or opens one, and returns it with w's ID.
func (u *udp) register(ctx context.Context, w *waiter) (*udpSocket, uint16, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	slot := rand.IntN(udpSockets)
	if s := u.slots[slot]; s != nil {
		if id, ok := s.add(time.Now(), w); ok {
			return s, id, nil
		}
		s.retire()
		u.slots[slot] = nil
	}
	s, err := u.open(ctx)
	if err != nil {
		return nil, 0, err
	}
	id, _ := s.add(time.Now(), w)
	if u.closed || u.opts.Fresh {
		s.retire() // it goes with its only waiter
	} else {
		u.slots[slot] = s
	}
	return s, id, nil
}

func (u *udp) open(ctx context.Context) (*udpSocket, error) {
	d := net.Dialer{ControlContext: recvErr}
	if u.opts.Source != nil {
		d.LocalAddr = &net.UDPAddr{IP: u.opts.Source}
	}
	conn, err := d.DialContext(ctx, "udp", u.addr)
	if err != nil {
		return nil, err
	}
	s := &udpSocket{
		conn:    conn.(*net.UDPConn),
		opts:    u.opts,
		until:   time.Now().Add(udpAge),
		left:    udpQueries,
		waiting: make(map[uint16]*waiter),
	}
	go s.read()
	return s, nil
}

// waiter is an exchange that waits for its reply.
type waiter struct {
	query Query
	done  chan result // has room for the one result that anybody reads
}

type result struct {
	reply *dns.Msg
	err   error
}

// give hands r to whoever waits. A second result finds no room and is dropped.
func (w *waiter) give(r result) {
	select {
	case w.done <- r:
	default:
	}
}

// udpSocket is one source port. Its reader lives until the socket is closed,
// which is when it is retired and nobody waits on it.
type udpSocket struct {
	conn  *net.UDPConn
	opts  Options
	until time.Time

	mu      sync.Mutex
	left    int // queries that may still be sent
	waiting map[uint16]*waiter
	retired bool
}

// add enters w under an ID of its own; ok is false where the socket takes no more.
func (s *udpSocket) add(now time.Time, w *waiter) (id uint16, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.retired || s.left == 0 || now.After(s.until) {
		return 0, false
	}
	s.left--
	for {
		id = randomID()
		if _, taken := s.waiting[id]; !taken {
			s.waiting[id] = w
			return id, true
		}
	}
}

func (s *udpSocket) remove(id uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, id)
	s.closeIfDone()
}

// retire lets nobody new on the socket.
func (s *udpSocket) retire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retired = true
	s.closeIfDone()
}

// closeIfDone requires that mu is held.
func (s *udpSocket) closeIfDone() {
	if s.retired && len(s.waiting) == 0 {
		s.conn.Close()
	}
}

// read hands replies to those who wait for them until the socket is closed.
func (s *udpSocket) read() {
	s.conn.SetReadDeadline(s.until) // an idle socket ends by itself
	buf := make([]byte, udpBuffer)
	oob := make([]byte, 0)
	for {
		n, _, flags, _, err := s.conn.ReadMsgUDPAddrPort(buf, oob)
		switch {
		case err == nil:
			s.deliver(buf[:n], flags&syscall.MSG_TRUNC != 0)
		case errors.Is(err, os.ErrDeadlineExceeded):
			s.retire()
			s.conn.SetReadDeadline(time.Time{})
		default:
			// An ICMP error stays in the socket's error queue, and counts against its
			// receive buffer, so the socket is not used again.
			s.fail(err)
			return
		}
	}
}

// deliver finds out who waits for the packet. Whatever nobody waits for is passed
// over, and the waiting goes on: a forged packet must not end it (RFC 5452, section 9.1).
func (s *udpSocket) deliver(packet []byte, cut bool) {
	if len(packet) < 12 {
		s.opts.mismatched()
		return
	}
	s.mu.Lock()
	w := s.waiting[binary.BigEndian.Uint16(packet)]
	s.mu.Unlock()
	if w == nil {
		s.opts.mismatched()
		return
	}
	m, err := unpack(packet, cut)
	if err != nil || !matches(m, w.query) {
		s.opts.mismatched()
		return
	}
	w.give(result{reply: m})
}

// fail ends everything that waits on the socket with err.
func (s *udpSocket) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retired = true
	for _, w := range s.waiting {
		w.give(result{err: err})
	}
	s.conn.Close()
}
