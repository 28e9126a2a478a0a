// Package dnsfake is a DNS server for tests that does what it is told: answer,
// wait, stay silent, lie, or be gone. It listens on loopback only.
package dnsfake

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// Request is a query as it arrived.
type Request struct {
	*dns.Msg
	Proto string   // udp or tcp
	From  net.Addr // with the client's port
}

// Name returns the name asked for, in lower case.
func (r Request) Name() string { return strings.ToLower(r.Question[0].Name) }

// Response is what the server does with a request. The zero value is silence.
type Response struct {
	Msg   *dns.Msg      // the reply; nil for none
	Delay time.Duration // before anything is sent
	Raw   [][]byte      // packets to send before Msg, as they are
	Close bool          // close the connection afterwards; over UDP of no effect
}

// Handler decides on a request. It may be called concurrently.
type Handler func(Request) Response

// Server is one fake upstream.
type Server struct {
	tb   testing.TB
	addr string

	mu      sync.Mutex
	handler Handler
	seen    []Request
	servers []*dns.Server
	gone    chan struct{} // closed when the server stops, so that no answer waits for its delay
	busy    sync.WaitGroup
}

// New starts a server that answers by handler, on a free port of 127.0.0.1, over
// UDP and TCP. It stops with the test.
func New(tb testing.TB, handler Handler) *Server {
	tb.Helper()
	return NewAt(tb, "127.0.0.1", handler)
}

// NewAt is New on another address of loopback, such as ::1.
func NewAt(tb testing.TB, ip string, handler Handler) *Server {
	tb.Helper()
	s := &Server{tb: tb, handler: handler}
	var err error
	for range 20 { // a port that is free over UDP may be taken over TCP
		if err = s.listen(net.JoinHostPort(ip, "0")); err == nil {
			tb.Cleanup(s.Stop)
			return s
		}
	}
	tb.Fatalf("dnsfake: no port is free over both UDP and TCP: %v", err)
	return nil
}

// Addr returns the server's IP:port.
func (s *Server) Addr() string { return s.addr }

// Set makes the server answer by handler from now on.
func (s *Server) Set(handler Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handler = handler
}

// Seen returns the requests so far, in the order of their arrival.
func (s *Server) Seen() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.seen...)
}

// Count returns how many requests for name, in any case, there were so far.
func (s *Server) Count(name string) int {
	n := 0
	for _, r := range s.Seen() {
		if r.Name() == strings.ToLower(name) {
			n++
		}
	}
	return n
}

// Stop closes the server's ports: whoever asks is refused. It waits for the
// answers that are under way.
func (s *Server) Stop() {
	s.mu.Lock()
	servers := s.servers
	s.servers = nil
	if s.gone != nil {
		close(s.gone)
		s.gone = nil
	}
	s.mu.Unlock()
	for _, srv := range servers {
		srv.Shutdown()
	}
	s.busy.Wait()
}

// Restart opens the ports again that Stop closed.
func (s *Server) Restart() {
	s.tb.Helper()
	if err := s.listen(s.addr); err != nil {
		s.tb.Fatalf("dnsfake: restart: %v", err)
	}
}

func (s *Server) listen(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	pc, err := net.ListenPacket("udp", l.Addr().String())
	if err != nil {
		l.Close()
		return err
	}
	gone := make(chan struct{})
	tcp := &dns.Server{Listener: l, Handler: s.serve("tcp", gone)}
	udp := &dns.Server{PacketConn: pc, Handler: s.serve("udp", gone), MsgAcceptFunc: acceptAll}
	tcp.MsgAcceptFunc = acceptAll
	var up sync.WaitGroup
	for _, srv := range []*dns.Server{tcp, udp} {
		up.Add(1)
		srv.NotifyStartedFunc = up.Done
		go srv.ActivateAndServe()
	}
	up.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addr = l.Addr().String()
	s.servers = []*dns.Server{tcp, udp}
	s.gone = gone
	return nil
}

// acceptAll lets every opcode through, for the handler to judge.
func acceptAll(dns.Header) dns.MsgAcceptAction { return dns.MsgAccept }

func (s *Server) serve(proto string, gone chan struct{}) dns.HandlerFunc {
	return func(w dns.ResponseWriter, m *dns.Msg) {
		s.busy.Add(1)
		defer s.busy.Done()
		r := Request{Msg: m, Proto: proto, From: w.RemoteAddr()}
		s.mu.Lock()
		s.seen = append(s.seen, r)
		handler := s.handler
		s.mu.Unlock()

		response := handler(r)
		if response.Delay > 0 {
			timer := time.NewTimer(response.Delay)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-gone:
				return
			}
		}
		for _, packet := range response.Raw {
			w.Write(packet)
		}
		if response.Msg != nil {
			w.WriteMsg(response.Msg)
		}
		if response.Close {
			w.Close()
		}
	}
}

// Answer replies with records in the form of a zone file, in which @ stands for
// the name asked for. Without records the reply is NODATA.
func Answer(records ...string) Handler {
	return func(r Request) Response {
		m := new(dns.Msg).SetReply(r.Msg)
		for _, record := range records {
			rr, err := dns.NewRR(strings.ReplaceAll(record, "@", r.Question[0].Name))
			if err != nil {
				panic(fmt.Sprintf("dnsfake: record %q: %v", record, err))
			}
			m.Answer = append(m.Answer, rr)
		}
		return Response{Msg: m}
	}
}

// Address replies with one A record of that address, for whatever name.
func Address(ip string) Handler { return Answer("@ 60 IN A " + ip) }

// Rcode replies with an rcode and nothing else.
func Rcode(rcode int) Handler {
	return func(r Request) Response { return Response{Msg: new(dns.Msg).SetRcode(r.Msg, rcode)} }
}

// Silence never replies.
func Silence(Request) Response { return Response{} }

// After does what handler does, but later.
func After(delay time.Duration, handler Handler) Handler {
	return func(r Request) Response {
		response := handler(r)
		response.Delay += delay
		return response
	}
}

// Probes does what probe says for the name server query of the root, by which
// upstreams are probed, and what other says for all others.
func Probes(probe, other Handler) Handler {
	return func(r Request) Response {
		if r.Name() == "." {
			return probe(r)
		}
		return other(r)
	}
}
