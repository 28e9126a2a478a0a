package transport

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/miekg/dns"
	"github.com/quic-go/quic-go"
)

// DNS over QUIC (RFC 9250), sections 4.1.1 and 4.3.
const (
	doqALPN      = "doq"
	doqNoError   = 0x0
	doqCancelled = 0x3 // DOQ_REQUEST_CANCELLED
)

// quicIdle is QUIC's own time-out, which must not end a connection that waits for
// a slow reply. One that nobody uses ends earlier, by Options.Expire.
const quicIdle = 30 * time.Second

// quicker exchanges over QUIC, each query on a stream of its own. There is no 0-RTT:
// what is sent so can be replayed by others, and tells who asks from afar (RFC
// 9250, sections 5.5.1 and 10).
type quicker struct {
	*connPool
	addr   string
	tls    *tls.Config
	config *quic.Config
}

func newQUIC(addr string, opts Options) Exchanger {
	q := &quicker{
		connPool: newConnPool(opts, false),
		addr:     addr,
		tls:      clientTLS(addr, opts, doqALPN),
		config: &quic.Config{
			HandshakeIdleTimeout:  dialTimeout,
			MaxIdleTimeout:        max(quicIdle, opts.Expire),
			MaxIncomingStreams:    -1, // the server opens none
			MaxIncomingUniStreams: -1,
		},
	}
	q.dial = q.open
	return q
}

// open makes a connection with a socket of its own, so that each has its own port
// and a Service may choose another backend. The socket is a connected one, and
// hears from the kernel that nobody is there.
func (q *quicker) open(ctx context.Context) (link, error) {
	d := net.Dialer{ControlContext: recvErr}
	if q.opts.Source != nil {
		d.LocalAddr = &net.UDPAddr{IP: q.opts.Source}
	}
	socket, err := d.DialContext(ctx, "udp", q.addr)
	if err != nil {
		return nil, err
	}
	t := &quic.Transport{Conn: connected{socket.(*net.UDPConn)}}
	shake, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := t.Dial(shake, socket.RemoteAddr(), q.tls, q.config)
	if err != nil {
		t.Close()
		socket.Close()
		return nil, q.handshakeError(ctx, err)
	}
	return &quicLink{peer: q, conn: conn, transport: t, socket: socket, progress: progress{born: time.Now()}}, nil
}

func (q *quicker) handshakeError(ctx context.Context, err error) error {
	if timedOut := dialError(ctx, q.addr, err); timedOut != nil {
		return timedOut
	}
	if e, ok := errors.AsType[*net.OpError](err); ok {
		return e // the socket's, to whom it says the same as to any other
	}
	return fmt.Errorf("%w with %s: %w", ErrHandshake, q.addr, err)
}

// connected lets quic-go write to a socket that has its one destination already.
type connected struct {
	*net.UDPConn
}

// WriteTo implements net.PacketConn.
func (c connected) WriteTo(p []byte, _ net.Addr) (int, error) { return c.Write(p) }

// WriteMsgUDP implements quic.OOBCapablePacketConn.
func (c connected) WriteMsgUDP(p, oob []byte, _ *net.UDPAddr) (n, oobn int, err error) {
	return c.UDPConn.WriteMsgUDP(p, oob, nil)
}

// quicLink is one connection.
type quicLink struct {
	peer      *quicker
	conn      *quic.Conn
	transport *quic.Transport
	socket    net.Conn
	progress
}

// exchange implements link.
func (l *quicLink) exchange(ctx context.Context, q Query) (*dns.Msg, error) {
	frame, err := q.frame(0)
	if err != nil {
		return nil, err
	}
	l.begin(time.Now())
	packet, err := l.roundTrip(ctx, frame)
	l.end(time.Now(), err == nil || len(packet) > 0)
	if err != nil {
		// net.ErrClosed is in all errors of a connection's end, and in none of a stream's.
		return nil, brokenLink(ctx, err, l.used() && len(packet) == 0 && errors.Is(err, net.ErrClosed))
	}
	m, err := q.reply(packet)
	if err != nil {
		l.peer.opts.mismatched(packet)
	}
	return m, err
}

// roundTrip sends frame on a stream of its own and returns the one message that
// comes back. With an error it returns what there was of it.
func (l *quicLink) roundTrip(ctx context.Context, frame []byte) ([]byte, error) {
	s, err := l.conn.OpenStreamSync(ctx) // waits where the server allows no more
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() {
		s.CancelRead(doqCancelled)
		s.CancelWrite(doqCancelled)
	})
	defer stop()
	if _, err := s.Write(frame); err != nil {
		s.CancelRead(doqCancelled)
		return nil, err
	}
	if err := s.Close(); err != nil { // FIN: there is one query on a stream
		s.CancelRead(doqCancelled)
		return nil, err
	}
	packet, err := readMessage(s)
	if err != nil {
		s.CancelRead(doqCancelled)
	}
	return packet, err
}

// readMessage reads one message with its length in front, and lets go of the
// stream. With an error it returns what there was.
func readMessage(s *quic.Stream) ([]byte, error) {
	buf := make([]byte, udpBuffer)
	for n := 0; ; {
		got, err := s.Read(buf[n:])
		n += got
		if n >= 2 {
			size := 2 + int(binary.BigEndian.Uint16(buf))
			if size < 2+headerSize || n > size {
				return buf[:n], fmt.Errorf("%w: of %d octets, %d came", errMismatch, size-2, n-2)
			}
			if n == size {
				if err == nil {
					s.CancelRead(doqNoError) // no need to wait for its FIN
				}
				return buf[2:n], nil
			}
			if len(buf) <= size { // with room for one octet too many
				buf = append(make([]byte, 0, size+1), buf[:n]...)[:size+1]
			}
		}
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return buf[:n], err
		}
	}
}

// state implements link.
func (l *quicLink) state(now time.Time) linkState {
	s := l.progress.state(now)
	if l.conn.Context().Err() == nil {
		s.room = poolEach
	}
	return s
}

// close implements link.
func (l *quicLink) close() {
	_ = l.conn.CloseWithError(doqNoError, "") // whom would it tell?
	l.transport.Close()
	l.socket.Close()
}
