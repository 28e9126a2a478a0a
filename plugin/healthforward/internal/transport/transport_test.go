package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"steadfast.internal/plugin/internal/dnsfake"
	"steadfast.internal/plugin/internal/leaktest"

	"github.com/miekg/dns"
)

func TestMain(m *testing.M) { leaktest.Main(m, "steadfast.internal") }

var networks = []string{"udp", "tcp"}

func newExchanger(t testing.TB, network, addr string, opts Options) Exchanger {
	t.Helper()
	x, err := New(network, addr, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.Close)
	return x
}

func newQuery(t testing.TB, name string) Query {
	t.Helper()
	q, err := NewQuery(new(dns.Msg).SetQuestion(name, dns.TypeA))
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func TestExchangeReturnsTheReplyWithTheQuerysID(t *testing.T) {
	up := dnsfake.New(t, dnsfake.Address("192.0.2.1"))
	for _, network := range networks {
		for _, fresh := range []bool{false, true} {
			x := newExchanger(t, network, up.Addr(), Options{Fresh: fresh})
			for range 50 {
				q := newQuery(t, "example.org.")
				m, err := x.Exchange(t.Context(), q)
				if err != nil {
					t.Fatalf("%s, fresh %v: %v", network, fresh, err)
				}
				if m.Id != q.ID || len(m.Answer) != 1 {
					t.Errorf("%s, fresh %v: reply %v", network, fresh, m)
				}
			}
		}
	}
}

func TestExchangeEndsWithItsContext(t *testing.T) {
	up := dnsfake.New(t, dnsfake.Silence)
	for _, network := range networks {
		t.Run(network, func(t *testing.T) {
			x := newExchanger(t, network, up.Addr(), Options{})
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if _, err := x.Exchange(ctx, newQuery(t, "example.org.")); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error = %v, want the context's", err)
			}
		})
	}
}

func TestAClosedPortIsRefused(t *testing.T) {
	up := dnsfake.New(t, dnsfake.Silence)
	up.Stop()
	for _, network := range networks {
		t.Run(network, func(t *testing.T) {
			x := newExchanger(t, network, up.Addr(), Options{})
			if _, err := x.Exchange(t.Context(), newQuery(t, "example.org.")); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("error = %v, want connection refused", err)
			}
		})
	}
}

func TestManyAtOnceEachGetTheirOwn(t *testing.T) {
	up := dnsfake.New(t, func(r dnsfake.Request) dnsfake.Response {
		delay := time.Duration(len(r.Name())%7) * time.Millisecond // out of order
		return dnsfake.After(delay, dnsfake.Answer("@ 60 IN TXT "+r.Name()))(r)
	})
	for _, network := range networks {
		t.Run(network, func(t *testing.T) {
			x := newExchanger(t, network, up.Addr(), Options{})
			var wg sync.WaitGroup
			for i := range 300 {
				wg.Go(func() {
					name := strings.Repeat("x", i%20) + fmt.Sprintf("n%d.example.org.", i)
					m, err := x.Exchange(t.Context(), newQuery(t, name))
					if err != nil {
						t.Error(err)
						return
					}
					if got := m.Answer[0].(*dns.TXT).Txt[0]; got != name {
						t.Errorf("reply to %s, want to %s", got, name)
					}
				})
			}
			wg.Wait()
		})
	}
}

func TestUDPPassesOverWhatIsNoReply(t *testing.T) {
	for name, packet := range map[string]func(q *dns.Msg) []byte{
		"a short packet":       func(*dns.Msg) []byte { return []byte{1, 2, 3} },
		"another ID":           func(q *dns.Msg) []byte { r := new(dns.Msg).SetReply(q); r.Id++; return pack(r) },
		"another name":         func(q *dns.Msg) []byte { r := new(dns.Msg).SetReply(q); r.Question[0].Name = "x.org."; return pack(r) },
		"another type":         func(q *dns.Msg) []byte { r := new(dns.Msg).SetReply(q); r.Question[0].Qtype = 28; return pack(r) },
		"another class":        func(q *dns.Msg) []byte { r := new(dns.Msg).SetReply(q); r.Question[0].Qclass = 3; return pack(r) },
		"another opcode":       func(q *dns.Msg) []byte { r := new(dns.Msg).SetReply(q); r.Opcode = 4; return pack(r) },
		"the query, reflected": func(q *dns.Msg) []byte { return pack(q) },
		"no question, NOERROR": func(q *dns.Msg) []byte { r := new(dns.Msg).SetReply(q); r.Question = nil; return pack(r) },
		"broken records":       func(q *dns.Msg) []byte { return append(pack(new(dns.Msg).SetReply(q))[:12], 0xC0, 0xFF, 1, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			up := dnsfake.New(t, func(r dnsfake.Request) dnsfake.Response {
				response := dnsfake.Address("192.0.2.1")(r)
				copied := r.Msg.Copy()
				response.Raw = [][]byte{packet(copied)}
				return response
			})
			var mismatched atomic.Int32
			x := newExchanger(t, "udp", up.Addr(), Options{Mismatched: func() { mismatched.Add(1) }})
			m, err := x.Exchange(t.Context(), newQuery(t, "example.org."))
			if err != nil || len(m.Answer) != 1 {
				t.Errorf("reply %v, error %v; want the one that came second", m, err)
			}
			if n := mismatched.Load(); n != 1 {
				t.Errorf("%d mismatches counted, want 1", n)
			}
		})
	}
}

func pack(m *dns.Msg) []byte {
	packet, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return packet
}

func TestAReplyWithoutAQuestionIsTakenIfItSaysWhatIsWrong(t *testing.T) {
	up := dnsfake.New(t, func(r dnsfake.Request) dnsfake.Response {
		m := new(dns.Msg).SetRcode(r.Msg, dns.RcodeFormatError)
		m.Question = nil
		return dnsfake.Response{Msg: m}
	})
	for _, network := range networks {
		x := newExchanger(t, network, up.Addr(), Options{})
		if m, err := x.Exchange(t.Context(), newQuery(t, "example.org.")); err != nil || m.Rcode != dns.RcodeFormatError {
			t.Errorf("%s: reply %v, error %v", network, m, err)
		}
	}
}

func TestTooLargeOverUDPIsTruncated(t *testing.T) {
	var records []string
	for i := range 40 {
		records = append(records, fmt.Sprintf("@ 60 IN TXT \"%d%s\"", i, strings.Repeat("x", 200)))
	}
	up := dnsfake.New(t, dnsfake.Answer(records...))
	x := newExchanger(t, "udp", up.Addr(), Options{})
	m, err := x.Exchange(t.Context(), newQuery(t, "example.org."))
	if err != nil || !m.Truncated || len(m.Answer) != 0 || len(m.Question) != 1 {
		t.Errorf("reply %v, error %v; want an empty truncated one", m, err)
	}
	x = newExchanger(t, "tcp", up.Addr(), Options{})
	if m, err = x.Exchange(t.Context(), newQuery(t, "example.org.")); err != nil || len(m.Answer) != 40 {
		t.Errorf("over TCP: error %v; want all 40 records", err)
	}
}

func TestUDPUsesManyPortsAndChangesThem(t *testing.T) {
	up := dnsfake.New(t, dnsfake.Address("192.0.2.1"))
	x := newExchanger(t, "udp", up.Addr(), Options{})
	for range 200 {
		if _, err := x.Exchange(t.Context(), newQuery(t, "example.org.")); err != nil {
			t.Fatal(err)
		}
	}
	ids, ports := make(map[uint16]bool), make(map[string]bool)
	for _, r := range up.Seen() {
		ids[r.Id], ports[r.From.String()] = true, true
	}
	if len(ports) != udpSockets {
		t.Errorf("200 queries from %d ports, want %d", len(ports), udpSockets)
	}
	if len(ids) < 190 {
		t.Errorf("200 queries with %d IDs, want hardly a repetition", len(ids))
	}
}

func TestAUDPSocketIsRetired(t *testing.T) {
	now := time.Now()
	for name, tc := range map[string]struct {
		left    int
		age     time.Duration
		retired bool
		want    bool
	}{
		"it is new":                {udpQueries, 0, false, true},
		"its last query":           {1, 0, false, true},
		"it has sent all":          {0, 0, false, false},
		"just young enough":        {5, udpAge, false, true},
		"too old":                  {5, udpAge + 1, false, false},
		"its server has gone away": {5, 0, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := &udpSocket{left: tc.left, until: now.Add(udpAge), retired: tc.retired, waiting: make(map[uint16]*waiter)}
			if _, ok := s.add(now.Add(tc.age), &waiter{}); ok != tc.want {
				t.Errorf("takes another query: %v, want %v", ok, tc.want)
			}
		})
	}
}

func TestCloseLeavesWhatIsUnderWay(t *testing.T) {
	for _, network := range networks {
		t.Run(network, func(t *testing.T) {
			asked, release := make(chan struct{}, 1), make(chan struct{})
			up := dnsfake.New(t, func(r dnsfake.Request) dnsfake.Response {
				if r.Name() == "slow.example.org." {
					asked <- struct{}{}
					<-release
				}
				return dnsfake.Address("192.0.2.1")(r)
			})
			x := newExchanger(t, network, up.Addr(), Options{})
			done := make(chan error, 1)
			go func() {
				_, err := x.Exchange(context.Background(), newQuery(t, "slow.example.org."))
				done <- err
			}()
			<-asked
			x.Close()
			if _, err := x.Exchange(t.Context(), newQuery(t, "later.example.org.")); err != nil {
				t.Errorf("after Close: %v", err)
			}
			close(release)
			if err := <-done; err != nil {
				t.Errorf("under way: %v", err)
			}
		})
	}
}

// tcpServer serves each connection, by its number, with handle.
func tcpServer(t *testing.T, handle func(n int, c net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { defer c.Close(); handle(n, c) })
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String()
}

// serveOne answers one query, or returns false.
func serveOne(c net.Conn) bool {
	dc := dns.Conn{Conn: c}
	m, err := dc.ReadMsg()
	return err == nil && dc.WriteMsg(new(dns.Msg).SetReply(m)) == nil
}

func TestAConnectionThatWasClosedWhileIdleIsNotSeen(t *testing.T) {
	for name, bye := range map[string]func(c net.Conn){
		"by FIN": func(net.Conn) {},
		"by RST": func(c net.Conn) { c.(*net.TCPConn).SetLinger(0) },
	} {
		t.Run(name, func(t *testing.T) {
			closed := make(chan struct{}, 10)
			addr := tcpServer(t, func(n int, c net.Conn) {
				if n > 2 { // the first three are closed after one query each
					for serveOne(c) {
					}
					return
				}
				serveOne(c)
				bye(c)
				c.Close()
				closed <- struct{}{}
			})
			x := newExchanger(t, "tcp", addr, Options{}).(*tcp)
			var wg sync.WaitGroup
			var conns []*stream
			for range 3 { // three idle connections
				c, err := x.dial(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				conns = append(conns, c)
			}
			for _, c := range conns {
				if _, err := c.exchange(t.Context(), newQuery(t, "example.org.")); err != nil {
					t.Fatal(err)
				}
				x.put(c)
				<-closed
			}
			wg.Wait()
			for range 3 {
				if _, err := x.Exchange(t.Context(), newQuery(t, "example.org.")); err != nil {
					t.Errorf("error = %v, want none", err)
				}
			}
		})
	}
}

func TestAFreshConnectionThatIsClosedIsAnError(t *testing.T) {
	addr := tcpServer(t, func(_ int, c net.Conn) { io.ReadFull(c, make([]byte, 14)) })
	x := newExchanger(t, "tcp", addr, Options{})
	_, err := x.Exchange(t.Context(), newQuery(t, "example.org."))
	if err == nil || !IsBrokenStream(err) {
		t.Errorf("error = %v, want a broken stream", err)
	}
}

func TestAStreamThatCarriesSomethingElseIsClosed(t *testing.T) {
	var conns atomic.Int32
	addr := tcpServer(t, func(_ int, c net.Conn) {
		conns.Add(1)
		dc := dns.Conn{Conn: c}
		m, err := dc.ReadMsg()
		if err != nil {
			return
		}
		reply := new(dns.Msg).SetReply(m)
		reply.Id++
		dc.WriteMsg(reply)
		io.Copy(io.Discard, c)
	})
	x := newExchanger(t, "tcp", addr, Options{})
	for range 2 {
		if _, err := x.Exchange(t.Context(), newQuery(t, "example.org.")); !IsBrokenStream(err) {
			t.Errorf("error = %v, want a broken stream", err)
		}
	}
	if n := conns.Load(); n != 2 {
		t.Errorf("%d connections, want a new one each time", n)
	}
}

func TestASlowNameDelaysNoOther(t *testing.T) {
	up := dnsfake.New(t, func(r dnsfake.Request) dnsfake.Response {
		if r.Name() == "slow.example.org." {
			return dnsfake.After(time.Minute, dnsfake.Address("192.0.2.1"))(r)
		}
		return dnsfake.Address("192.0.2.1")(r)
	})
	x := newExchanger(t, "tcp", up.Addr(), Options{})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { x.Exchange(ctx, newQuery(t, "slow.example.org.")) })
	for range 20 {
		if _, err := x.Exchange(t.Context(), newQuery(t, "example.org.")); err != nil {
			t.Error(err)
		}
	}
	cancel()
	wg.Wait()
}

func TestNoConnectionInTime(t *testing.T) {
	// A listener whose queue is full drops further SYNs.
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	sa, _ := syscall.Getsockname(fd)
	addr := fmt.Sprintf("127.0.0.1:%d", sa.(*syscall.SockaddrInet4).Port)
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		var d net.Dialer
		if c, err := d.DialContext(ctx, "tcp", addr); err == nil {
			defer c.Close()
		}
		cancel()
	}
	x := newExchanger(t, "tcp", addr, Options{})
	began := time.Now()
	_, err = x.Exchange(t.Context(), newQuery(t, "example.org."))
	if !errors.Is(err, ErrNoConnection) {
		t.Errorf("error = %v, want %v", err, ErrNoConnection)
	}
	if took := time.Since(began); took < dialTimeout {
		t.Errorf("gave up after %v", took)
	}
}

func TestNewRefusesWhatItCannotDo(t *testing.T) {
	for _, tc := range [][2]string{{"sctp", "127.0.0.1:53"}, {"udp", "127.0.0.1"}} {
		if _, err := New(tc[0], tc[1], Options{}); err == nil {
			t.Errorf("New(%q, %q) gives no error", tc[0], tc[1])
		}
	}
	if _, err := NewQuery(new(dns.Msg)); err == nil {
		t.Error("NewQuery takes a message without a question")
	}
}

// FuzzDeliver feeds packets to a socket on which somebody waits: whatever comes,
// nothing panics, and nothing but a reply to the query is delivered.
func FuzzDeliver(f *testing.F) {
	q := new(dns.Msg).SetQuestion("example.org.", dns.TypeA)
	query, err := NewQuery(q)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(pack(new(dns.Msg).SetReply(q)), false)
	f.Add(pack(q), false)
	f.Add(pack(new(dns.Msg).SetRcode(q, dns.RcodeRefused))[:12], true)
	f.Fuzz(func(t *testing.T, packet []byte, cut bool) {
		w := &waiter{query: query, done: make(chan result, 1)}
		s := &udpSocket{waiting: make(map[uint16]*waiter)}
		if len(packet) >= 2 {
			s.waiting[binary.BigEndian.Uint16(packet)] = w
		}
		s.deliver(packet, cut)
		select {
		case r := <-w.done:
			if !matches(r.reply, query) {
				t.Errorf("delivered %v", r.reply)
			}
		default:
		}
	})
}

func BenchmarkUDP(b *testing.B) {
	up := dnsfake.New(b, dnsfake.Address("192.0.2.1"))
	q := newQuery(b, "example.org.")
	for name, opts := range map[string]Options{"pooled": {}, "a socket per query": {Fresh: true}} {
		b.Run(name, func(b *testing.B) {
			x := newExchanger(b, "udp", up.Addr(), opts)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := x.Exchange(context.Background(), q); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}
