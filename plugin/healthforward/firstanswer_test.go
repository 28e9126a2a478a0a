package healthforward

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"steadfast.internal/plugin/internal/dnsfake"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/forward"
	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
)

// firstAnswers are faults of the first of two upstreams that a cold start meets:
// nothing is known yet, and the second upstream has to answer.
var firstAnswers = map[string]struct {
	first    func(t testing.TB) string // its TO
	property string
	queries  int
}{
	"TCP, SYNs are dropped":              {deafListener, "force_tcp", 1},
	"TLS, nobody shakes hands":           {muteListener, "", 1},
	"QUIC, nothing answers, six at once": {silentSocket, "", 6},
	"UDP, nothing answers":               {func(t testing.TB) string { return dnsfake.New(t, dnsfake.Silence).Addr() }, "", 1},
}

func (s stanzaFor) text(first, second string) string {
	return fmt.Sprintf("%s . %s %s {\n policy sequential\n %s\n}", s.directive, first, second, s.property)
}

// stanzaFor is the directive and the property of a stanza with two upstreams.
type stanzaFor struct{ directive, property string }

func TestTheFirstAnswerComesFromTheSecondUpstream(t *testing.T) {
	for name, tc := range firstAnswers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			second := dnsfake.New(t, dnsfake.Address("192.0.2.2"))
			f := start(t, stanzaFor{pluginName, tc.property}.text(tc.first(t), second.Addr()))
			took := askAtOnce(t, f, tc.queries)
			t.Logf("answered in %v", took)
			if took > 3*time.Second {
				t.Errorf("answered in %v: as if the first had been waited for", took)
			}
		})
	}
}

// askAtOnce asks so many names at once, wants the second upstream's answer to each,
// and returns how long the slowest took.
func askAtOnce(t testing.TB, h plugin.Handler, queries int) time.Duration {
	t.Helper()
	began := time.Now()
	var wg sync.WaitGroup
	for i := range queries {
		wg.Go(func() {
			reply, rcode, err := ask(t, h, question(fmt.Sprintf("n%d.example.org.", i), dns.TypeA))
			if got := addressIn(reply); got != "192.0.2.2" {
				t.Errorf("query %d: address %q, ServeDNS = %d, %v", i, got, rcode, err)
			}
		})
	}
	wg.Wait()
	return time.Since(began)
}

// BenchmarkFirstAnswer prints how long the first answer takes from a cold start
// with the first of two upstreams at fault, beside CoreDNS's forward. That takes up
// to half a minute each, or answers nothing.
func BenchmarkFirstAnswer(b *testing.B) {
	for name, tc := range firstAnswers {
		for _, directive := range []string{pluginName, "forward"} {
			b.Run(name+"/"+directive, func(b *testing.B) {
				for b.Loop() {
					second := dnsfake.New(b, dnsfake.Address("192.0.2.2"))
					text := stanzaFor{directive, tc.property}.text(tc.first(b), second.Addr())
					var h plugin.Handler
					if directive == pluginName {
						h = start(b, text)
					} else {
						h = startForward(b, text)
					}
					answered, took := askAll(h, tc.queries)
					b.ReportMetric(float64(took.Milliseconds()), "ms/slowest")
					b.ReportMetric(float64(answered)/float64(tc.queries), "answered")
				}
			})
		}
	}
}

// askAll is askAtOnce without a verdict.
func askAll(h plugin.Handler, queries int) (answered int, took time.Duration) {
	began := time.Now()
	var (
		wg sync.WaitGroup
		mu sync.Mutex
	)
	for i := range queries {
		wg.Go(func() {
			rec := dnstest.NewRecorder(&test.ResponseWriter{})
			h.ServeDNS(context.Background(), rec, question(fmt.Sprintf("n%d.example.org.", i), dns.TypeA))
			mu.Lock()
			defer mu.Unlock()
			if addressIn(rec.Msg) != "" {
				answered++
			}
		})
	}
	wg.Wait()
	return answered, time.Since(began)
}

// startForward starts CoreDNS's forward.
func startForward(tb testing.TB, text string) plugin.Handler {
	tb.Helper()
	run, err := caddy.DirectiveAction("dns", "forward")
	if err != nil {
		tb.Fatal(err)
	}
	c := caddy.NewTestController("dns", text)
	if err := run(c); err != nil {
		tb.Fatal(err)
	}
	f := dnsserver.GetConfig(c).Plugin[0](nil).(*forward.Forward)
	f.OnStartup()
	tb.Cleanup(func() { f.OnShutdown() })
	return f
}

// deafListener is a TCP port whose queue is full, so that the kernel drops SYNs.
func deafListener(tb testing.TB) string {
	tb.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		tb.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		tb.Fatal(err)
	}
	sa, err := syscall.Getsockname(fd)
	if err != nil {
		tb.Fatal(err)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", sa.(*syscall.SockaddrInet4).Port)
	for range 3 {
		d := net.Dialer{Timeout: 100 * time.Millisecond}
		if c, err := d.Dial("tcp", addr); err == nil {
			tb.Cleanup(func() { c.Close() })
		}
	}
	return addr
}

// muteListener accepts connections and never says a word.
func muteListener(tb testing.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				io.Copy(io.Discard, c) // until the client gives up
			})
		}
	})
	tb.Cleanup(func() { l.Close(); wg.Wait() })
	return "tls://" + l.Addr().String()
}

// silentSocket is a UDP port that reads and never writes.
func silentSocket(tb testing.TB) string {
	tb.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	return "quic://" + c.LocalAddr().String()
}

func TestPooledConnectionsThatAreResetEjectNobody(t *testing.T) {
	var (
		mu    sync.Mutex
		conns []net.Conn
	)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	five := make(chan struct{}) // closed when five queries are there at once
	var wg sync.WaitGroup
	waiting := 0
	serve := func(c net.Conn) {
		defer c.Close()
		dc := dns.Conn{Conn: c}
		for {
			m, err := dc.ReadMsg()
			if err != nil {
				return
			}
			if m.Question[0].Name != "." {
				mu.Lock()
				if waiting++; waiting == 5 {
					close(five)
				}
				mu.Unlock()
				<-five
			}
			reply := new(dns.Msg).SetReply(m)
			reply.Answer = []dns.RR{test.A(m.Question[0].Name + " 60 IN A 192.0.2.2")}
			dc.WriteMsg(reply)
		}
	}
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			wg.Go(func() { serve(c) })
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })

	f := start(t, "healthforward . %s {\n force_tcp\n hedge 2s\n}", l.Addr().String())
	askAtOnce(t, f, 5)
	mu.Lock()
	for _, c := range conns {
		c.(*net.TCPConn).SetLinger(0) // RST
		c.Close()
	}
	mu.Unlock()
	for range 3 {
		askAtOnce(t, f, 1)
	}
	for id := range f.groupFor(protoTCP).upstreams {
		if s := f.registry.pool.State(id); s.String() != "up" {
			t.Errorf("the upstream is %s", s)
		}
	}
}

// BenchmarkSlowNameOverTCP prints the p99 of 400 names over TCP while every
// twentieth takes nearly two seconds (the time that forward allows) at the upstream, which answers a connection in the
// order of asking, as CoreDNS does.
func BenchmarkSlowNameOverTCP(b *testing.B) {
	up := dnsfake.New(b, func(r dnsfake.Request) dnsfake.Response {
		if strings.HasPrefix(r.Name(), "slow") {
			return dnsfake.After(1800*time.Millisecond, dnsfake.Address("192.0.2.2"))(r)
		}
		return dnsfake.After(2*time.Millisecond, dnsfake.Address("192.0.2.2"))(r)
	})
	const stanza = " . %s {\n force_tcp\n}"
	handlers := map[string]plugin.Handler{
		pluginName: start(b, pluginName+stanza, up.Addr()),
		"forward":  startForward(b, fmt.Sprintf("forward"+stanza, up.Addr())),
	}
	for name, h := range handlers {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				var (
					wg   sync.WaitGroup
					mu   sync.Mutex
					took []time.Duration
				)
				tick := time.NewTicker(5 * time.Millisecond)
				for i := range 400 {
					<-tick.C
					wg.Go(func() {
						prefix := "fast"
						if i%20 == 0 {
							prefix = "slow"
						}
						began := time.Now()
						rec := dnstest.NewRecorder(&test.ResponseWriter{})
						h.ServeDNS(context.Background(), rec, question(fmt.Sprintf("%s%d.example.org.", prefix, i), dns.TypeA))
						if addressIn(rec.Msg) == "" {
							b.Errorf("%s%d is not answered", prefix, i)
						}
						if prefix == "fast" {
							mu.Lock()
							took = append(took, time.Since(began))
							mu.Unlock()
						}
					})
				}
				tick.Stop()
				wg.Wait()
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "us/p99")
			}
		})
	}
}
