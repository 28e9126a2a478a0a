package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"slices"
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

	// udpDeaf is how many queries in a row may stay unanswered while siblings are
	// answered: a connected socket stays pinned to a Service's backend that is gone.
	udpDeaf = 2

	// udpForged is how many packets that answer nothing are taken for a try to guess
	// an ID (RFC 5452, section 9.3). By then it had one chance in 655.
	udpForged = 100
)

// errForged ends what waits on a socket to which somebody sends guesses.
var errForged = errors.New("too many packets that are no replies")

// udp exchanges over connected sockets, each with one reader and a table of the
// IDs that somebody waits for.
type udp struct {
	addr string
	opts Options
	tcp  Exchanger // for questions to which somebody tries to guess the reply

	mu     sync.Mutex
	slots  [udpSockets]*udpSocket
	closed bool
}

var _ Exchanger = (*udp)(nil)

func newUDP(addr string, opts Options) Exchanger {
	return &udp{addr: addr, opts: opts, tcp: newTCP(addr, opts)}
}

// Exchange implements Exchanger.
func (u *udp) Exchange(ctx context.Context, q Query) (*dns.Msg, error) {
	m, err := u.exchange(ctx, q)
	if errors.Is(err, errForged) {
		return u.tcp.Exchange(ctx, q) // there, a guess must hit a sequence number too
	}
	return m, err
}

func (u *udp) exchange(ctx context.Context, q Query) (*dns.Msg, error) {
	w := newWaiter(q)
	packet, err := q.wire(0, 0)
	if err != nil {
		return nil, err
	}
	s, id, err := u.register(ctx, w)
	if err != nil {
		return nil, err
	}
	binary.BigEndian.PutUint16(packet, id)
	if _, err := s.conn.Write(packet); err != nil {
		s.remove(id, false)
		return nil, err
	}
	select {
	case r := <-w.done:
		s.remove(id, false)
		if r.err != nil {
			return nil, r.err
		}
		r.reply.Id = q.ID
		return r.reply, nil
	case <-ctx.Done():
		s.remove(id, true)
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
	u.tcp.Close()
}

// register finds a socket for w, or opens one, and returns it with w's ID.
func (u *udp) register(ctx context.Context, w *waiter) (*udpSocket, uint16, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	slot := rand.IntN(udpSockets)
	if s := u.slots[slot]; s != nil {
		if !u.deaf(s) {
			if id, ok := s.add(time.Now(), w); ok {
				return s, id, nil
			}
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

// deaf reports whether queries on s stay unanswered while those that a sibling
// sent later are answered. It requires that mu is held.
func (u *udp) deaf(s *udpSocket) bool {
	since, ok := s.silent()
	return ok && slices.ContainsFunc(u.slots[:], func(o *udpSocket) bool {
		return o != nil && o != s && o.answeredAfter(since)
	})
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
		givenUp: make(map[uint16]bool),
	}
	go s.read()
	return s, nil
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

	givenUp  map[uint16]bool // IDs whose reply may come late: that is no guess
	forged   int             // packets that are no replies
	answered time.Time       // when the last one that was answered had been sent
	lost     int             // sent since and given up
	lastLost time.Time       // when the last of those had been sent
}

// add enters w under an ID of its own; ok is false where the socket takes no more.
func (s *udpSocket) add(now time.Time, w *waiter) (id uint16, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.retired || s.left == 0 || now.After(s.until) {
		return 0, false
	}
	s.left--
	w.sent = now
	id = enter(s.waiting, w)
	delete(s.givenUp, id)
	return id, true
}

// remove takes out the waiter with that ID. lost says that it gave up.
func (s *udpSocket) remove(id uint16, lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.waiting[id]
	delete(s.waiting, id)
	if lost {
		s.givenUp[id] = true
		if w.sent.After(s.answered) {
			s.lost++
			s.lastLost = later(s.lastLost, w.sent)
		}
	}
	s.closeIfDone()
}

// silent reports whether the last queries on the socket stayed unanswered, and
// when the last of them was sent.
func (s *udpSocket) silent() (since time.Time, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lastLost, s.lost >= udpDeaf
}

// answeredAfter reports whether a query was answered that was sent after t.
func (s *udpSocket) answeredAfter(t time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answered.After(t)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
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
// over, and the waiting goes on: a forged packet must not end it (RFC 5452, section
// 9.1), only a hundred of them.
func (s *udpSocket) deliver(packet []byte, cut bool) {
	if len(packet) < headerSize {
		s.pass(packet, false)
		return
	}
	id := binary.BigEndian.Uint16(packet)
	s.mu.Lock()
	w, late := s.waiting[id], s.givenUp[id]
	delete(s.givenUp, id)
	s.mu.Unlock()
	if w == nil {
		s.pass(packet, late)
		return
	}
	m, err := unpack(packet, cut)
	if err != nil || !matches(m, w.query) {
		s.pass(packet, false)
		return
	}
	s.mu.Lock()
	s.answered, s.lost = later(s.answered, w.sent), 0
	s.mu.Unlock()
	w.give(result{reply: m})
}

// pass counts a packet that nobody waits for. If there are too many, whoever sends
// them knows the port: the socket is given up, and its questions go another way.
func (s *udpSocket) pass(packet []byte, late bool) {
	s.opts.mismatched(packet)
	if late {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.forged++; s.forged != udpForged {
		return
	}
	s.retired = true
	for _, w := range s.waiting {
		w.give(result{err: errForged})
	}
	s.closeIfDone()
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
