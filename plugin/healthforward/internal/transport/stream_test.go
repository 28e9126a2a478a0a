package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"steadfast.internal/plugin/internal/dnsfake"

	"github.com/miekg/dns"
)

// serveOne answers one query, or returns false.
func serveOne(c net.Conn) bool {
	dc := dns.Conn{Conn: c}
	m, err := dc.ReadMsg()
	return err == nil && dc.WriteMsg(new(dns.Msg).SetReply(m)) == nil
}

// hold opens n connections of x at once, all of which are idle afterwards.
func hold(t *testing.T, p *connPool, n int) {
	t.Helper()
	var conns []*pooled
	for range n {
		l, err := p.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		c := &pooled{link: l, born: now, until: now.Add(time.Minute), load: 1}
		c.expiry = time.AfterFunc(time.Minute, func() {})
		conns = append(conns, c)
	}
	p.mu.Lock()
	p.conns, p.cold = append(p.conns, conns...), false
	p.unlock()
	for _, c := range conns {
		if _, err := c.exchange(t.Context(), newQuery(t, "example.org.")); err != nil {
			t.Fatal(err)
		}
		p.release(c, false)
	}
}

func TestConnectionsThatWereResetAreNotSeen(t *testing.T) {
	for name, linger := range map[string]int{"by FIN": -1, "by RST": 0} {
		t.Run(name, func(t *testing.T) {
			reset := make(chan struct{})
			addr := tcpServer(t, func(n int, c net.Conn) {
				if n >= 5 { // the first five are closed after one query each
					for serveOne(c) {
					}
					return
				}
				serveOne(c)
				<-reset
				c.(*net.TCPConn).SetLinger(linger)
			})
			x := newExchanger(t, "tcp", addr, Options{}).(*streams)
			hold(t, x.connPool, 5)
			close(reset)
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(func() { exchange(t, x) })
			}
			wg.Wait()
		})
	}
}

// A server that closes on the second query is indistinguishable from one that
// closed a moment ago.
func TestAReusedConnectionThatIsLostIsReplaced(t *testing.T) {
	var conns atomic.Int32
	addr := tcpServer(t, func(_ int, c net.Conn) {
		conns.Add(1)
		if serveOne(c) {
			io.ReadFull(c, make([]byte, 14)) // the second one
			c.(*net.TCPConn).SetLinger(0)
		}
	})
	x := newExchanger(t, "tcp", addr, Options{})
	for range 4 {
		exchange(t, x)
	}
	if n := conns.Load(); n != 4 {
		t.Errorf("%d connections, want 4", n)
	}
}

func TestAFreshConnectionThatIsClosedIsAnError(t *testing.T) {
	for name, partial := range map[string][]byte{"at once": nil, "within the length": {0}, "within the reply": {0, 40, 1, 2}} {
		t.Run(name, func(t *testing.T) {
			addr := tcpServer(t, func(_ int, c net.Conn) {
				io.ReadFull(c, make([]byte, 14))
				c.Write(partial)
			})
			for _, fresh := range []bool{false, true} {
				if err := ask(t, newExchanger(t, "tcp", addr, Options{Fresh: fresh})); !IsBrokenStream(err) {
					t.Errorf("error = %v, want a broken stream", err)
				}
			}
		})
	}
}

func TestAReusedConnectionThatEndsWithinAReplyIsAnError(t *testing.T) {
	addr := tcpServer(t, func(_ int, c net.Conn) {
		if serveOne(c) {
			io.ReadFull(c, make([]byte, 14))
			c.Write([]byte{0})
		}
	})
	x := newExchanger(t, "tcp", addr, Options{})
	exchange(t, x)
	if err := ask(t, x); !IsBrokenStream(err) || errors.Is(err, errLost) {
		t.Errorf("error = %v, want a broken stream", err)
	}
}

func TestAStreamThatCarriesSomethingElseIsClosed(t *testing.T) {
	for name, bytes := range map[string]func(q *dns.Msg) []byte{
		"another ID":    func(q *dns.Msg) []byte { r := new(dns.Msg).SetReply(q); r.Id++; return framed(r) },
		"another name":  func(q *dns.Msg) []byte { r := new(dns.Msg).SetReply(q); r.Question[0].Name = "x."; return framed(r) },
		"the query":     func(q *dns.Msg) []byte { return framed(q) },
		"length 0":      func(*dns.Msg) []byte { return []byte{0, 0} },
		"less than 12":  func(*dns.Msg) []byte { return append([]byte{0, 11}, make([]byte, 11)...) },
		"broken within": func(q *dns.Msg) []byte { return append(append([]byte{0, 16}, pack(q)[:12]...), 0xC0, 0xFF, 1, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			var conns atomic.Int32
			addr := tcpServer(t, func(_ int, c net.Conn) {
				conns.Add(1)
				dc := dns.Conn{Conn: c}
				if m, err := dc.ReadMsg(); err == nil {
					c.Write(bytes(m))
				}
				io.Copy(io.Discard, c)
			})
			x := newExchanger(t, "tcp", addr, Options{})
			for range 2 {
				if err := ask(t, x); !IsBrokenStream(err) {
					t.Errorf("error = %v, want a broken stream", err)
				}
			}
			if n := conns.Load(); n != 2 {
				t.Errorf("%d connections, want a new one each time", n)
			}
		})
	}
}

func TestASlowNameDelaysNoOther(t *testing.T) {
	for _, network := range []string{"tcp", "tls"} { // of servers that answer in order
		t.Run(network, func(t *testing.T) {
			asked := make(chan struct{}, 1)
			up := serve(t, network, func(r dnsfake.Request) dnsfake.Response {
				if r.Name() == "slow.example.org." {
					asked <- struct{}{}
					return dnsfake.After(time.Minute, dnsfake.Address("192.0.2.1"))(r)
				}
				return dnsfake.Address("192.0.2.1")(r)
			})
			x := newExchanger(t, network, up.addr, trusting()).(*streams)
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() { x.Exchange(ctx, newQuery(t, "slow.example.org.")) })
			<-asked
			for range 50 {
				exchange(t, x)
			}
			cancel()
			wg.Wait()
			if !x.serial.Load() {
				t.Error("taken for a server that answers out of order")
			}
		})
	}
}

// concurrentServer answers each query as soon as it can, but for slow names, which
// it answers when released. It reports what is asked.
func concurrentServer(t *testing.T, conns *atomic.Int32, asked chan string, release chan struct{}) string {
	return tcpServer(t, func(_ int, c net.Conn) {
		conns.Add(1)
		var mu sync.Mutex
		var wg sync.WaitGroup
		defer wg.Wait()
		dc := dns.Conn{Conn: c}
		for {
			m, err := dc.ReadMsg()
			if err != nil {
				return
			}
			wg.Go(func() {
				name := m.Question[0].Name
				asked <- name
				if name != "." && name != "example.org." {
					<-release
				}
				mu.Lock()
				defer mu.Unlock()
				dc.WriteMsg(new(dns.Msg).SetReply(m))
			})
		}
	})
}

func TestQueriesArePipelinedOnceTheServerHasAnsweredOutOfOrder(t *testing.T) {
	var conns atomic.Int32
	asked, release := make(chan string, 1000), make(chan struct{})
	addr := concurrentServer(t, &conns, asked, release)
	x := newExchanger(t, "tcp", addr, Options{}).(*streams)
	var wg sync.WaitGroup
	slow := func(n int) {
		for i := range n {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				if _, err := x.Exchange(ctx, newQuery(t, fmt.Sprintf("slow%d.example.org.", i))); err != nil {
					t.Error(err)
				}
			})
		}
	}
	slow(1)
	for name := range asked {
		if name == "." {
			break
		}
	}
	// The reply to the proof is on its way.
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		if !x.serial.Load() {
			break
		}
	}
	slow(60)
	for range 60 {
		if name := <-asked; name == "." {
			t.Error("asked for a second proof")
		}
	}
	if n := conns.Load(); n > 2 { // two where the first took too long and was taken for stalled
		t.Errorf("61 queries over %d connections, want one", n)
	}
	close(release)
	wg.Wait()
}

func TestWhatIsPipelinedSurvivesTheLossOfItsConnection(t *testing.T) {
	const queries = 30
	var conns atomic.Int32
	addr := tcpServer(t, func(n int, c net.Conn) {
		conns.Add(1)
		dc := dns.Conn{Conn: c}
		for i := 0; n > 0 || i < queries; i++ {
			m, err := dc.ReadMsg()
			if err != nil {
				return
			}
			if n > 0 {
				dc.WriteMsg(new(dns.Msg).SetReply(m))
			}
		}
	})
	x := newExchanger(t, "tcp", addr, Options{}).(*streams)
	x.serial.Store(false)
	var wg sync.WaitGroup
	for range queries {
		wg.Go(func() { exchange(t, x) })
	}
	wg.Wait()
	if n := conns.Load(); n > 3 {
		t.Errorf("%d connections, want the lost one and another", n)
	}
}

func TestConnectionsThatHaveGoneSilentAreLeft(t *testing.T) {
	var conns atomic.Int32
	addr := tcpServer(t, func(n int, c net.Conn) {
		conns.Add(1)
		for i := 0; n >= 5 || i < 1; i++ { // the first five answer once
			if !serveOne(c) {
				return
			}
		}
		io.Copy(io.Discard, c)
	})
	x := newExchanger(t, "tcp", addr, Options{}).(*streams)
	hold(t, x.connPool, 5)
	// Each of them costs a query its attempt; the layer above asks again meanwhile.
	answered := 0
	for range 6 {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if _, err := x.Exchange(ctx, newQuery(t, "example.org.")); err == nil {
			answered++
		}
		cancel()
	}
	exchange(t, x)
	if answered > 1 {
		t.Errorf("%d queries answered by silent connections", answered)
	}
}

func TestAServerThatEndsThePipelineLosesNoQuery(t *testing.T) {
	var proofs atomic.Int32
	addr := tcpServer(t, func(n int, c net.Conn) {
		dc := dns.Conn{Conn: c}
		if n > 0 {
			for serveOne(c) {
			}
			return
		}
		dc.ReadMsg()
		if m, err := dc.ReadMsg(); err == nil && m.Question[0].Name == "." { // it wants one at a time
			proofs.Add(1)
		}
	})
	exchange(t, newExchanger(t, "tcp", addr, Options{}))
	if proofs.Load() != 1 {
		t.Error("no proof was tried")
	}
}

func TestAFreshConnectionIsNotUsedForAProof(t *testing.T) {
	up := dnsfake.New(t, dnsfake.After(3*proofAfter, dnsfake.Address("192.0.2.1")))
	exchange(t, newExchanger(t, "tcp", up.Addr(), Options{Fresh: true}))
	if n := up.Count("."); n != 0 {
		t.Errorf("%d proofs", n)
	}
}

// pipe is a stream to a server that reads nothing, or nothing more.
func pipe(t *testing.T) (*stream, net.Conn) {
	ours, theirs := net.Pipe()
	x := newExchanger(t, "tcp", "192.0.2.1:53", Options{}).(*streams)
	l := &stream{conn: ours, peer: x, waiting: make(map[uint16]*waiter)}
	done := make(chan struct{})
	go func() { defer close(done); l.read() }()
	t.Cleanup(func() { theirs.Close(); <-done })
	return l, theirs
}

func TestAWriteThatBlocksEndsWithTheContext(t *testing.T) {
	l, _ := pipe(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := l.exchange(ctx, newQuery(t, "example.org.")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error = %v, want the context's", err)
	}
	if s := l.state(time.Now()); s.room != 0 {
		t.Errorf("state %+v, want no room", s)
	}
}

func TestAStreamIsStalled(t *testing.T) {
	now := time.Now()
	for name, tc := range map[string]struct {
		waiting int
		quiet   time.Duration
		want    bool
	}{
		"nothing is owed":      {0, time.Hour, false},
		"not for long":         {1, stallAfter - 1, false},
		"for long":             {1, stallAfter, true},
		"many are, for longer": {9, time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			l := &stream{peer: newExchanger(t, "tcp", "192.0.2.1:53", Options{}).(*streams), waiting: make(map[uint16]*waiter), heard: now.Add(-tc.quiet)}
			p := progress{underWay: tc.waiting, since: now.Add(-tc.quiet)}
			for range tc.waiting {
				enter(l.waiting, newWaiter(proofQuery))
			}
			if s := l.state(now); s.stalled != tc.want || s.pending != tc.waiting || s.room != 1 {
				t.Errorf("state %+v, want stalled %v", s, tc.want)
			}
			if s := p.state(now); s.stalled != tc.want || s.pending != tc.waiting {
				t.Errorf("state of others %+v, want stalled %v", s, tc.want)
			}
		})
	}
}

func TestAReplyThatNobodyWaitsForAnyMoreDoesNotBreakTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, theirs := pipe(t)
		server := dns.Conn{Conn: theirs}
		var late *dns.Msg
		asked := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			late, _ = server.ReadMsg()
			time.Sleep(time.Millisecond) // until the query is all written
			cancel()
			close(asked)
		}()
		if _, err := l.exchange(ctx, newQuery(t, "slow.example.org.")); !errors.Is(err, context.Canceled) {
			t.Errorf("error = %v, want the context's", err)
		}
		<-asked
		if s := l.state(time.Now()); s.pending != 1 || s.room == 0 {
			t.Errorf("state %+v, want one that is owed", s)
		}
		go func() { server.WriteMsg(new(dns.Msg).SetReply(late)); serveOne(theirs) }()
		if _, err := l.exchange(t.Context(), newQuery(t, "example.org.")); err != nil {
			t.Error(err)
		}
		if s := l.state(time.Now()); s.pending != 0 || s.room != 1 {
			t.Errorf("state %+v, want nothing owed", s)
		}
	})
}

// FuzzStream reads whatever a server may send while somebody waits.
func FuzzStream(f *testing.F) {
	q := new(dns.Msg).SetQuestion("example.org.", dns.TypeA)
	q.Id = 7
	query := must(NewQuery(q))
	f.Add(framed(new(dns.Msg).SetReply(q)))
	f.Add(framed(q))
	f.Add(append(framed(new(dns.Msg).SetReply(q)), 0, 0))
	f.Add([]byte{0, 200, 0, 7})
	f.Fuzz(func(t *testing.T, sent []byte) {
		ours, theirs := net.Pipe()
		w := newWaiter(query)
		l := &stream{conn: ours, peer: newStreams("192.0.2.1:53", Options{}, nil), waiting: map[uint16]*waiter{7: w}}
		go func() { theirs.Write(sent); theirs.Close() }()
		l.read()
		theirs.Close()
		select {
		case r := <-w.done:
			if r.err == nil && !matches(r.reply, query) {
				t.Errorf("delivered %v", r.reply)
			}
		default:
			t.Error("whoever waits is told nothing")
		}
	})
}

func TestWhatWasGivenUpIsOwedUntilSomethingIsHeard(t *testing.T) {
	t0 := time.Now()
	p := progress{born: t0}
	if p.begin(t0); p.used() {
		t.Error("a new connection is taken for a used one")
	}
	p.end(t0.Add(stallAfter/2), false)
	if p.begin(t0.Add(stallAfter / 2)); !p.used() {
		t.Error("a used connection is taken for a new one")
	}
	if p.state(t0.Add(stallAfter-1)).stalled || !p.state(t0.Add(stallAfter)).stalled {
		t.Error("want it stalled since the first query, not the second one")
	}
	p.end(t0.Add(stallAfter), true)
	if p.state(t0.Add(time.Hour)).stalled {
		t.Error("stalled, though all was answered")
	}
	for age, want := range map[time.Duration]bool{agedAfter - 1: false, agedAfter: true} {
		p := progress{born: t0}
		if p.begin(t0.Add(age)); p.used() != want {
			t.Errorf("first used after %v: want to be taken for used: %v", age, want)
		}
	}
}
