package transport

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/quic-go/quic-go"
)

// serveStreams starts a QUIC server that handles each stream with handle.
func serveStreams(t testing.TB, handle func(*quic.Conn, *quic.Stream)) *server {
	s := &server{network: "quic", gone: make(chan struct{})}
	s.tls = &tls.Config{Certificates: []tls.Certificate{goodCertificate()}}
	s.serveQUIC(handle)
	t.Cleanup(s.Stop)
	return s
}

func TestAQUICStreamThatCarriesNoReplyIsAnError(t *testing.T) {
	for name, answer := range map[string]func(s *quic.Stream, m *dns.Msg){
		"a reset":          func(s *quic.Stream, _ *dns.Msg) { s.CancelWrite(5) },
		"nothing":          func(s *quic.Stream, _ *dns.Msg) { s.Close() },
		"half a length":    func(s *quic.Stream, _ *dns.Msg) { s.Write([]byte{0}); s.Close() },
		"half a reply":     func(s *quic.Stream, m *dns.Msg) { s.Write(framed(m)[:20]); s.Close() },
		"length 0":         func(s *quic.Stream, _ *dns.Msg) { s.Write([]byte{0, 0}); s.Close() },
		"garbage":          func(s *quic.Stream, _ *dns.Msg) { s.Write(append([]byte{0, 12}, "hello, world"...)); s.Close() },
		"another question": func(s *quic.Stream, m *dns.Msg) { m.Question[0].Name = "x."; s.Write(framed(m)); s.Close() },
		"another ID":       func(s *quic.Stream, m *dns.Msg) { m.Id = 7; s.Write(framed(m)); s.Close() },
		"two replies":      func(s *quic.Stream, m *dns.Msg) { s.Write(append(framed(m), framed(m)...)); s.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			up := serveStreams(t, func(_ *quic.Conn, s *quic.Stream) {
				if m := readQUIC(s); m != nil {
					answer(s, new(dns.Msg).SetReply(m))
				}
			})
			x := newExchanger(t, "quic", up.addr, trusting())
			for range 3 { // on a reused connection, too
				if err := ask(t, x); !IsBrokenStream(err) {
					t.Errorf("error = %v, want one of the server's", err)
				}
			}
		})
	}
}

func TestAQUICReplyInPiecesOrWithoutAnEndIsTaken(t *testing.T) {
	up := serveStreams(t, func(_ *quic.Conn, s *quic.Stream) {
		m := readQUIC(s)
		if m == nil {
			return
		}
		reply := new(dns.Msg).SetReply(m)
		for range 300 {
			reply.Answer = append(reply.Answer, must(dns.NewRR(m.Question[0].Name+" 60 IN A 192.0.2.1")))
		}
		all := framed(reply)
		for _, piece := range [][]byte{all[:1], all[1:3], all[3:4200], all[4200:]} {
			s.Write(piece)
		}
		<-s.Context().Done() // no FIN: until it is told to stop
		s.CancelWrite(0)
	})
	x := newExchanger(t, "quic", up.addr, trusting())
	for i := range 150 { // more than streams are allowed at a time
		if m := exchange(t, x); len(m.Answer) != 300 {
			t.Fatalf("%d: %d records, want 300", i, len(m.Answer))
		}
	}
}

func TestAQUICConnectionThatIsLostIsReplacedUnseen(t *testing.T) {
	var conns sync.Map
	var dropped atomic.Int32
	up := serveStreams(t, func(conn *quic.Conn, s *quic.Stream) {
		m := readQUIC(s)
		if m == nil {
			return
		}
		if _, known := conns.LoadOrStore(conn, true); known && dropped.Add(1) <= 5 {
			conn.CloseWithError(0, "enough")
			return
		}
		s.Write(framed(new(dns.Msg).SetReply(m)))
		s.Close()
	})
	x := newExchanger(t, "quic", up.addr, trusting())
	for range 10 {
		exchange(t, x)
	}
	if n := dropped.Load(); n < 5 {
		t.Errorf("%d connections were dropped, want 5", n)
	}
}

func TestAFreshQUICConnectionThatIsClosedIsAnError(t *testing.T) {
	up := serveStreams(t, func(conn *quic.Conn, _ *quic.Stream) { conn.CloseWithError(1, "no") })
	for _, fresh := range []bool{false, true} {
		opts := trusting()
		opts.Fresh = fresh
		if err := ask(t, newExchanger(t, "quic", up.addr, opts)); !IsBrokenStream(err) {
			t.Errorf("error = %v, want one of the server's", err)
		}
	}
}

func TestAnIdleQUICConnectionIsClosed(t *testing.T) {
	ended := make(chan error, 1)
	up := serveStreams(t, func(conn *quic.Conn, s *quic.Stream) {
		if m := readQUIC(s); m != nil {
			s.Write(framed(new(dns.Msg).SetReply(m)))
			s.Close()
		}
		<-conn.Context().Done()
		ended <- context.Cause(conn.Context())
	})
	opts := trusting()
	opts.Expire = 50 * time.Millisecond
	x := newExchanger(t, "quic", up.addr, opts)
	exchange(t, x)
	if e, ok := errors.AsType[*quic.ApplicationError](<-ended); !ok || e.ErrorCode != 0 {
		t.Errorf("ended by %v, want by the client without an error", e)
	}
	exchange(t, x)
}

func TestAQUICStreamIsCancelledWithItsContext(t *testing.T) {
	asked, cancelled := make(chan struct{}), make(chan error, 1)
	up := serveStreams(t, func(_ *quic.Conn, s *quic.Stream) {
		if readQUIC(s) == nil {
			return
		}
		close(asked)
		<-s.Context().Done()
		cancelled <- context.Cause(s.Context())
	})
	x := newExchanger(t, "quic", up.addr, trusting())
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	if _, err := x.Exchange(ctx, newQuery(t, "example.org.")); !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v, want the context's", err)
	}
	if e, ok := errors.AsType[*quic.StreamError](<-cancelled); !ok || e.ErrorCode != doqCancelled {
		t.Errorf("the stream ended by %v, want by code %d", e, doqCancelled)
	}
}

func TestQUICLengths(t *testing.T) {
	for _, size := range []int{12, 4093, 4094, 4095, 4096, 65535} {
		up := serveStreams(t, func(_ *quic.Conn, s *quic.Stream) {
			if m := readQUIC(s); m != nil {
				packet := make([]byte, size) // padded behind the message
				copy(packet, pack(new(dns.Msg).SetRcode(m, dns.RcodeRefused))[:12])
				binary.BigEndian.PutUint16(packet[4:], 0) // no question
				s.Write(append(binary.BigEndian.AppendUint16(nil, uint16(size)), packet...))
				s.Close()
			}
		})
		if m := exchange(t, newExchanger(t, "quic", up.addr, trusting())); m.Rcode != dns.RcodeRefused {
			t.Errorf("%d octets: reply %v", size, m)
		}
	}
}
