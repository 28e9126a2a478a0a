package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"steadfast.internal/plugin/internal/dnsfake"
	"steadfast.internal/plugin/internal/leaktest"

	"github.com/miekg/dns"
)

func TestMain(m *testing.M) { leaktest.Main(m, "steadfast.internal") }

var networks = []string{"udp", "tcp", "tls", "https", "quic"}

var quiet = log.New(io.Discard, "", 0)

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

func pack(m *dns.Msg) []byte {
	packet, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return packet
}

// exchange asks x for example.org. and returns the reply. It fails the test if
// there is none within seconds.
func exchange(t testing.TB, x Exchanger) *dns.Msg {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	q := newQuery(t, "example.org.")
	m, err := x.Exchange(ctx, q)
	if err != nil {
		t.Errorf("exchange: %v", err)
		return new(dns.Msg)
	}
	if m.Id != q.ID {
		t.Errorf("reply with ID %d, want %d", m.Id, q.ID)
	}
	return m
}

// ask is exchange where an error is wanted.
func ask(t testing.TB, x Exchanger) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	m, err := x.Exchange(ctx, newQuery(t, "example.org."))
	if err == nil {
		t.Errorf("reply %v, want an error", m)
	}
	return err
}

// each runs test for each network but those of except, with options that trust
// the servers.
func each(t *testing.T, test func(t *testing.T, network string, opts Options), except ...string) {
	for _, network := range networks {
		if slices.Contains(except, network) {
			continue
		}
		t.Run(network, func(t *testing.T) { test(t, network, trusting()) })
	}
}

func TestExchangeReturnsTheReplyWithTheQuerysID(t *testing.T) {
	each(t, func(t *testing.T, network string, opts Options) {
		for _, fresh := range []bool{false, true} {
			up := serve(t, network, dnsfake.Address("192.0.2.1"))
			opts.Fresh = fresh
			x := newExchanger(t, network, up.addr, opts)
			for range 20 {
				if m := exchange(t, x); len(m.Answer) != 1 {
					t.Errorf("fresh %v: reply %v", fresh, m)
				}
			}
		}
	})
}

func TestExchangeEndsWithItsContext(t *testing.T) {
	each(t, func(t *testing.T, network string, opts Options) {
		asked := make(chan struct{}, 2)
		up := serve(t, network, func(dnsfake.Request) dnsfake.Response {
			asked <- struct{}{}
			return dnsfake.Response{}
		})
		for _, fresh := range []bool{false, true} {
			opts.Fresh = fresh
			x := newExchanger(t, network, up.addr, opts)
			ctx, cancel := context.WithCancel(t.Context())
			go func() { <-asked; cancel() }()
			if _, err := x.Exchange(ctx, newQuery(t, "example.org.")); !errors.Is(err, context.Canceled) {
				t.Errorf("fresh %v: error = %v, want the context's", fresh, err)
			}
			if _, err := x.Exchange(ctx, newQuery(t, "example.org.")); !errors.Is(err, context.Canceled) {
				t.Errorf("fresh %v, ended before: error = %v, want the context's", fresh, err)
			}
		}
	})
}

func TestAClosedPortIsRefused(t *testing.T) {
	each(t, func(t *testing.T, network string, opts Options) {
		up := serve(t, network, dnsfake.Silence)
		up.Stop()
		for _, fresh := range []bool{false, true} {
			opts.Fresh = fresh
			x := newExchanger(t, network, up.addr, opts)
			if err := ask(t, x); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("error = %v, want connection refused", err)
			}
		}
	})
}

func TestAServerOnIPv6IsAskedAndRefusedLikeAnyOther(t *testing.T) {
	if l, err := net.Listen("tcp", "[::1]:0"); errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT) {
		t.Skip("this machine has no IPv6")
	} else if err == nil {
		l.Close()
	}
	each(t, func(t *testing.T, network string, opts Options) {
		up := &server{network: network, ip: "::1"}
		up.start(t, dnsfake.Address("192.0.2.1"), goodCertificate(), nil)
		for _, fresh := range []bool{false, true} {
			opts.Fresh = fresh
			if m := exchange(t, newExchanger(t, network, up.addr, opts)); len(m.Answer) != 1 {
				t.Errorf("fresh %v: reply %v", fresh, m)
			}
		}
		up.Stop()
		for _, fresh := range []bool{false, true} {
			opts.Fresh = fresh
			if err := ask(t, newExchanger(t, network, up.addr, opts)); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("fresh %v, once it is gone: error = %v, want connection refused", fresh, err)
			}
		}
	})
}

func TestManyAtOnceEachGetTheirOwn(t *testing.T) {
	each(t, func(t *testing.T, network string, opts Options) {
		up := serve(t, network, func(r dnsfake.Request) dnsfake.Response {
			delay := time.Duration(len(r.Name())%7) * time.Millisecond // out of order
			return dnsfake.After(delay, dnsfake.Answer("@ 60 IN TXT "+r.Name()))(r)
		})
		x := newExchanger(t, network, up.addr, opts)
		var wg sync.WaitGroup
		for i := range 200 {
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

func TestAReplyWithoutAQuestionIsTakenIfItSaysWhatIsWrong(t *testing.T) {
	each(t, func(t *testing.T, network string, opts Options) {
		up := serve(t, network, func(r dnsfake.Request) dnsfake.Response {
			m := new(dns.Msg).SetRcode(r.Msg, dns.RcodeFormatError)
			m.Question = nil
			return dnsfake.Response{Msg: m}
		})
		if m := exchange(t, newExchanger(t, network, up.addr, opts)); m.Rcode != dns.RcodeFormatError {
			t.Errorf("reply %v", m)
		}
	})
}

func TestALargeReplyIsWhole(t *testing.T) {
	var records []string
	for i := range 200 {
		records = append(records, fmt.Sprintf("@ 60 IN TXT \"%d%s\"", i, strings.Repeat("x", 200)))
	}
	each(t, func(t *testing.T, network string, opts Options) {
		up := serve(t, network, dnsfake.Answer(records...))
		if m := exchange(t, newExchanger(t, network, up.addr, opts)); len(m.Answer) != len(records) {
			t.Errorf("%d records, want %d", len(m.Answer), len(records))
		}
	}, "udp")
}

func TestCloseLeavesWhatIsUnderWay(t *testing.T) {
	each(t, func(t *testing.T, network string, opts Options) {
		asked, release := make(chan struct{}, 1), make(chan struct{})
		up := serve(t, network, func(r dnsfake.Request) dnsfake.Response {
			if r.Name() == "slow.example.org." {
				asked <- struct{}{}
				<-release
			}
			return dnsfake.Address("192.0.2.1")(r)
		})
		x := newExchanger(t, network, up.addr, opts)
		done := make(chan error, 1)
		go func() {
			_, err := x.Exchange(context.Background(), newQuery(t, "slow.example.org."))
			done <- err
		}()
		<-asked
		x.Close()
		exchange(t, x)
		close(release)
		if err := <-done; err != nil {
			t.Errorf("under way: %v", err)
		}
		exchange(t, x)
		if p := poolOf(x); p != nil {
			p.mu.Lock()
			if n := len(p.conns); n != 0 {
				t.Errorf("closed, and %d connections are kept", n)
			}
			p.mu.Unlock()
		}
	})
}

// poolOf returns x's pool of connections, or nil if it has none.
func poolOf(x Exchanger) *connPool {
	switch x := x.(type) {
	case *streams:
		return x.connPool
	case *https:
		return x.connPool
	case *quicker:
		return x.connPool
	}
	return nil
}

func TestAConnectionIsUsedAgainUnlessFresh(t *testing.T) {
	each(t, func(t *testing.T, network string, opts Options) {
		if network == "udp" {
			return // TestUDPUsesManyPortsAndChangesThem
		}
		var mu sync.Mutex
		ports := make(map[string]bool)
		up := serve(t, network, func(r dnsfake.Request) dnsfake.Response {
			mu.Lock()
			defer mu.Unlock()
			ports[r.From.String()] = true
			return dnsfake.Address("192.0.2.1")(r)
		})
		count := func() int {
			mu.Lock()
			defer mu.Unlock()
			defer clear(ports)
			return len(ports)
		}
		x := newExchanger(t, network, up.addr, opts)
		for range 10 {
			exchange(t, x)
		}
		if n := count(); n != 1 {
			t.Errorf("10 queries over %d connections, want one", n)
		}
		opts.Fresh = true
		x = newExchanger(t, network, up.addr, opts)
		for range 10 {
			exchange(t, x)
		}
		if n := count(); n < 9 { // the kernel may give a UDP port twice
			t.Errorf("10 fresh queries over %d connections", n)
		}
		if n := up.resumed.Load(); n > 0 {
			t.Errorf("%d sessions resumed by fresh ones", n)
		}
	})
}

func TestTheSourceAddressIsUsed(t *testing.T) {
	each(t, func(t *testing.T, network string, opts Options) {
		from := make(chan string, 1)
		up := serve(t, network, func(r dnsfake.Request) dnsfake.Response {
			from <- r.From.String()
			return dnsfake.Address("192.0.2.1")(r)
		})
		opts.Source = []byte{127, 0, 0, 2}
		exchange(t, newExchanger(t, network, up.addr, opts))
		if got := <-from; !strings.HasPrefix(got, "127.0.0.2:") {
			t.Errorf("asked from %s, want 127.0.0.2", got)
		}
	})
}

func TestAServerThatIsGoneIsRefusedThoughThereWereConnections(t *testing.T) {
	each(t, func(t *testing.T, network string, opts Options) {
		old := serve(t, network, dnsfake.Address("192.0.2.1"))
		x := newExchanger(t, network, old.addr, opts)
		for range 3 {
			exchange(t, x)
		}
		old.Stop()
		if err := ask(t, x); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("while it is gone: error = %v, want connection refused", err)
		}
	}, "udp")
}

// A connection whose way is gone looks like one to a server that thinks.
func TestAConnectionThatHasGoneSilentIsLeft(t *testing.T) {
	each(t, func(t *testing.T, network string, opts Options) {
		if network == "udp" {
			return // TestAQuerySoonReachesABackendThatAnswers
		}
		var mu sync.Mutex
		first, asked := "", 0
		up := serve(t, network, func(r dnsfake.Request) dnsfake.Response {
			mu.Lock()
			defer mu.Unlock()
			asked++
			if first == "" {
				first = r.From.String()
			}
			if first == r.From.String() && asked > 1 {
				return dnsfake.Silence(r)
			}
			return dnsfake.Address("192.0.2.1")(r)
		})
		x := newExchanger(t, network, up.addr, opts)
		exchange(t, x)
		// Hedges would have answered these meanwhile.
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			x.Exchange(ctx, newQuery(t, "example.org."))
			cancel()
		}
		exchange(t, x)
	})
}

func TestTheQueryIsNotChanged(t *testing.T) {
	each(t, func(t *testing.T, network string, opts Options) {
		up := serve(t, network, dnsfake.Address("192.0.2.1"))
		x := newExchanger(t, network, up.addr, opts)
		q := newQuery(t, "example.org.")
		before := string(q.packed)
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if _, err := x.Exchange(t.Context(), q); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if string(q.packed) != before {
			t.Error("the packed query has changed")
		}
	})
}

func TestAQueryThatIsTooLargeIsRefused(t *testing.T) {
	each(t, func(t *testing.T, network string, opts Options) {
		up := serve(t, network, dnsfake.Address("192.0.2.1"))
		x := newExchanger(t, network, up.addr, opts)
		q := newQuery(t, "example.org.")
		q.packed = make([]byte, dns.MaxMsgSize+1)
		if _, err := x.Exchange(t.Context(), q); err == nil {
			t.Error("no error")
		}
		exchange(t, x)
	})
}

func TestNewRefusesWhatItCannotDo(t *testing.T) {
	for _, tc := range [][2]string{{"sctp", "127.0.0.1:53"}, {"udp", "127.0.0.1"}} {
		if _, err := New(tc[0], tc[1], Options{}); err == nil {
			t.Errorf("New(%q, %q) gives no error", tc[0], tc[1])
		}
	}
	if _, err := New("https", "127.0.0.1:443", Options{HTTPMethod: "PUT"}); err == nil {
		t.Error("New takes the method PUT")
	}
	if _, err := NewQuery(new(dns.Msg)); err == nil {
		t.Error("NewQuery takes a message without a question")
	}
}

func BenchmarkExchange(b *testing.B) {
	q := newQuery(b, "example.org.")
	for _, network := range networks {
		b.Run(network, func(b *testing.B) {
			up := serve(b, network, dnsfake.Address("192.0.2.1"))
			x := newExchanger(b, network, up.addr, trusting())
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
