package test

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// patience is how long a client waits for a reply: glibc's time-out.
const patience = 5 * time.Second

// demand is a question and what may be said to it.
type demand struct {
	name  string
	by    int  // number of the upstream that knows the answer; 0 if all do, noUpstream if none may
	fails bool // a failure is to be expected, such as that of a name that is dead everywhere
	slow  bool // the name itself is slow, so that its time says nothing
}

// noUpstream as demand.by: an address is a lie, whoever gives it.
const noUpstream = -1

// fate is what became of a demand.
type fate struct {
	demand
	sent    time.Time
	took    time.Duration // 0 while there is no reply
	rcode   int
	address string // the first, or ""
}

// openLoop is a client that asks at its times, whether it was answered before or
// not: a client that waits asks less when it is served badly, which hides that.
type openLoop struct {
	t     testing.TB
	conns []net.Conn
	done  sync.WaitGroup // the readers

	mu      sync.Mutex
	fates   []fate
	pending map[uint16]int // ID → index in fates
	lag     time.Duration  // how late it was itself, at most
}

// startOpenLoop returns a client of the server at addr. It ends with the test.
func startOpenLoop(t testing.TB, addr string) *openLoop {
	t.Helper()
	c := &openLoop{t: t, pending: make(map[uint16]int)}
	// More than one socket, because all that waits may be answered at once, and a
	// socket's buffer holds some 300 packets.
	for range 8 {
		conn, err := net.Dial("udp", addr)
		if err != nil {
			t.Fatal(err)
		}
		c.conns = append(c.conns, conn)
		c.done.Go(func() { c.read(conn) })
	}
	t.Cleanup(c.end)
	return c
}

// ask sends what next says, perSecond times a second for as long as lasts. next is
// told the number of the query and its time since the start.
func (c *openLoop) ask(perSecond int, lasts time.Duration, next func(i int, at time.Duration) demand) {
	began := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := range int(lasts.Seconds() * float64(perSecond)) {
		at := time.Duration(i) * time.Second / time.Duration(perSecond)
		if wait := time.Until(began.Add(at)); wait > 0 {
			timer.Reset(wait)
			<-timer.C
		}
		c.send(next(i, at), time.Since(began)-at)
	}
}

func (c *openLoop) send(d demand, lag time.Duration) {
	m := new(dns.Msg).SetQuestion(d.name, dns.TypeA)
	c.mu.Lock()
	n := len(c.fates)
	m.Id = uint16(n) // comes round in two minutes at 500 a second, so long after patience
	c.fates = append(c.fates, fate{demand: d, sent: time.Now()})
	c.pending[m.Id] = n
	c.lag = max(c.lag, lag)
	c.mu.Unlock()
	packet, err := m.Pack()
	if err == nil {
		_, err = c.conns[n%len(c.conns)].Write(packet)
	}
	if err != nil {
		c.t.Errorf("send %s: %v", d.name, err)
	}
}

// read takes the replies from a socket until that is closed.
func (c *openLoop) read(conn net.Conn) {
	buf := make([]byte, 4096)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return
		}
		now := time.Now()
		m := new(dns.Msg)
		if err := m.Unpack(buf[:n]); err != nil {
			c.t.Errorf("a reply that is no message: %v", err)
			continue
		}
		c.settle(m, now)
	}
}

func (c *openLoop) settle(m *dns.Msg, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok := c.pending[m.Id]
	if !ok || len(m.Question) != 1 || m.Question[0].Name != c.fates[n].name {
		c.t.Errorf("a reply that nobody asked for, or a second one:\n%v", m)
		return
	}
	f := &c.fates[n]
	delete(c.pending, m.Id)
	f.took, f.rcode = now.Sub(f.sent), m.Rcode
	for _, rr := range m.Answer {
		if a, ok := rr.(*dns.A); ok {
			f.address = a.A.String()
			break
		}
	}
}

// rest waits until every query is answered or nobody waits for its answer any more.
func (c *openLoop) rest() {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		c.mu.Lock()
		waiting := len(c.pending)
		c.mu.Unlock()
		if waiting == 0 {
			return
		}
		select {
		case <-ticker.C:
		case <-timer.C:
			return
		}
	}
}

// end closes the sockets and waits for the readers; the fates are final then.
func (c *openLoop) end() {
	for _, conn := range c.conns {
		conn.Close()
	}
	c.done.Wait()
}

// parents is among how many parent domains the names of queries are spread: so many
// that no single zone is to blame for anything. It is a prime number, so that every
// nth name too comes from all of them.
const parents = 61

// unique asks for another name each time.
func unique(i int, _ time.Duration) demand { return demand{name: nameOf("name", i)} }

// nameOf returns name i of a kind.
func nameOf(kind string, i int) string { return fmt.Sprintf("%s%d.d%d.test.", kind, i, i%parents) }
