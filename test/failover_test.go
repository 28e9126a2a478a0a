package test

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
)

func init() { roles["upstream"] = runUpstream }

// runUpstream is a resolver that answers every question for an address with its
// own: upstream LISTEN ADDRESS [DELAY]. It knows the zone lab.test and nothing else.
func runUpstream() {
	listen, address := os.Args[1], os.Args[2]
	var delay time.Duration
	if len(os.Args) > 3 {
		var err error
		if delay, err = time.ParseDuration(os.Args[3]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) {
		m := new(dns.Msg).SetReply(r)
		name := r.Question[0].Name
		switch {
		case name == ".":
		case !strings.HasSuffix(strings.ToLower(name), ".lab.test."):
			m.Rcode = dns.RcodeNameError
		case r.Question[0].Qtype == dns.TypeA:
			m.Answer = []dns.RR{&dns.A{
				Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60},
				A:   net.ParseIP(address),
			}}
		}
		<-time.After(delay)
		w.WriteMsg(m)
	})
	for _, network := range []string{"tcp", "udp"} {
		srv := &dns.Server{Addr: listen, Net: network, Handler: handler}
		srv.NotifyStartedFunc = func() { fmt.Println("serving", network) }
		go func() {
			if err := srv.ListenAndServe(); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
		}()
	}
	select {} // until a signal ends the process
}

// upstream is a resolver in a process of its own.
type upstream struct {
	*process
	listen  string // where it listens
	address string // what it answers
}

func startUpstream(t testing.TB, listen, address string, delay ...string) *upstream {
	t.Helper()
	args := append([]string{listen, address}, delay...)
	u := &upstream{process: startProcess(t, "upstream", t.TempDir(), args...), listen: listen, address: address}
	u.waitForLog("serving udp", startLimit)
	u.waitForLog("serving tcp", startLimit)
	return u
}

// answer is what became of one query.
type answer struct {
	sent    time.Time
	took    time.Duration
	address string // "": none came
	err     error
}

// load asks for names, each another one, at a steady rate, whatever becomes of
// the ones before.
type load struct {
	t    testing.TB
	addr string
	zone string // of the names; empty for bare ones
	stop chan struct{}
	done chan struct{}

	mu      sync.Mutex
	answers []answer
}

func startLoad(t testing.TB, addr, zone string, perSecond int) *load {
	l := &load{t: t, addr: addr, zone: zone, stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(l.done)
		var queries sync.WaitGroup
		defer queries.Wait()
		ticker := time.NewTicker(time.Second / time.Duration(perSecond))
		defer ticker.Stop()
		for i := range 60 * perSecond { // bounded, should nobody stop it
			select {
			case <-l.stop:
				return
			case <-ticker.C:
			}
			queries.Go(func() { l.ask(fmt.Sprintf("host%d.%s", i, l.zone)) })
		}
	}()
	t.Cleanup(func() { l.end() })
	return l
}

func (l *load) ask(name string) {
	client := &dns.Client{Timeout: 5 * time.Second} // glibc's
	a := answer{sent: time.Now()}
	reply, _, err := client.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeA), l.addr)
	a.took, a.err = time.Since(a.sent), err
	if err == nil {
		for _, rr := range reply.Answer {
			if record, ok := rr.(*dns.A); ok {
				a.address = record.A.String()
			}
		}
		if a.address == "" {
			a.err = fmt.Errorf("%s: %s", name, dns.RcodeToString[reply.Rcode])
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answers = append(l.answers, a)
}

// end stops asking and returns what became of all queries.
func (l *load) end() []answer {
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	<-l.done
	return l.answers
}

// since returns what is known about the queries that were sent after t.
func (l *load) since(t time.Time) []answer {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.answers), func(a answer) bool { return a.sent.Before(t) })
}

// waitUntilAnsweredBy waits until the address is among the answers to queries from
// now on.
func (l *load) waitUntilAnsweredBy(address string, limit time.Duration) {
	l.t.Helper()
	began := time.Now()
	waitFor(l.t, limit, "an answer by "+address, func() error {
		for _, a := range l.since(began) {
			if a.address == address {
				return nil
			}
		}
		return fmt.Errorf("none yet")
	})
}

// waitForQueries waits until n more queries have been answered.
func (l *load) waitForQueries(n int) {
	l.t.Helper()
	began := time.Now()
	waitFor(l.t, startLimit, fmt.Sprintf("%d queries", n), func() error {
		if got := len(l.since(began)); got < n {
			return fmt.Errorf("%d", got)
		}
		return nil
	})
}

// lost returns the errors of the queries that got no address.
func lost(answers []answer) []error {
	var errs []error
	for _, a := range answers {
		if a.err != nil {
			errs = append(errs, fmt.Errorf("after %v: %w", a.took.Round(time.Millisecond), a.err))
		}
	}
	return errs
}

// quantile returns the time that a share of the queries stayed below.
func quantile(answers []answer, share float64) time.Duration {
	if len(answers) == 0 {
		return 0
	}
	var took []time.Duration
	for _, a := range answers {
		took = append(took, a.took)
	}
	slices.Sort(took)
	return took[min(int(share*float64(len(took))), len(took)-1)]
}

// pair is a coredns that forwards bare names, completed, to two upstreams.
type pair struct {
	server *server
	a, b   *upstream
}

const addressA, addressB = "192.0.2.1", "192.0.2.2"

// startPair starts it; forwarder is healthforward or forward, more stands in the
// server block besides.
func startPair(t testing.TB, forwarder, more string) *pair {
	t.Helper()
	a := startUpstream(t, loopbackAddr(freePort(t)), addressA)
	b := startUpstream(t, loopbackAddr(freePort(t)), addressB)
	p := &pair{a: a, b: b}
	p.server = startServer(t, fmt.Sprintf(`.:{PORT1} {
		bind 127.0.0.1
		searchexpand lab.test {
			budget 10000 10000
			wildcard allow
		}
		%s . %s %s
		%s
	}`, forwarder, a.listen, b.listen, more))
	l := startLoad(t, p.server.addr(), "lab.test.", 50)
	l.waitUntilAnsweredBy(addressA, startLimit)
	l.waitUntilAnsweredBy(addressB, startLimit)
	l.end()
	return p
}

func TestNoQueryIsLostWhenAnUpstreamDies(t *testing.T) {
	for name, fault := range map[string]struct {
		die  func(u *upstream)
		back func(t *testing.T, u *upstream)
	}{
		"killed, its port closed": {
			die:  func(u *upstream) { u.Signal(syscall.SIGKILL); u.Wait(endLimit) },
			back: func(t *testing.T, u *upstream) { startUpstream(t, u.listen, u.address) },
		},
		"stopped, it is silent": {
			die:  func(u *upstream) { u.Signal(syscall.SIGSTOP) },
			back: func(_ *testing.T, u *upstream) { u.Signal(syscall.SIGCONT) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := startPair(t, "healthforward", "")
			l := startLoad(t, p.server.addr(), "", 200)
			l.waitForQueries(100)
			fault.die(p.a)
			p.server.waitForLog("udp://"+p.a.listen+" is ejected", startLimit)
			ejected := time.Now()
			l.waitForQueries(400)
			for _, answer := range l.since(ejected) {
				if answer.address == addressA {
					t.Error("an answer by the upstream that is down")
				}
			}
			fault.back(t, p.a)
			l.waitUntilAnsweredBy(addressA, startLimit)
			l.waitForQueries(100)
			answers := l.end()
			if errs := lost(answers); len(errs) > 0 {
				t.Errorf("%d of %d queries lost, the first %v", len(errs), len(answers), errs[0])
			}
			t.Logf("%d queries, none lost; p99 %v, max %v", len(answers), quantile(answers, 0.99), quantile(answers, 1))
		})
	}
}

func TestSIGTERMLosesNothingBeforeTheListenerCloses(t *testing.T) {
	const lameduck = 5 * time.Second
	p := startPair(t, "healthforward", "health 127.0.0.1:{PORT2} {\n lameduck 5s\n }")
	l := startLoad(t, p.server.addr(), "", 500)
	l.waitForQueries(500)
	p.server.Signal(syscall.SIGTERM)
	down := time.Now()
	if err := p.server.Wait(endLimit); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	took := time.Since(down)
	if took < lameduck {
		t.Errorf("the process ended %v after SIGTERM, want a lameduck of %v", took, lameduck)
	}
	answers := l.end()
	before := slices.DeleteFunc(slices.Clone(answers), func(a answer) bool { return a.sent.After(down.Add(lameduck - 500*time.Millisecond)) })
	if errs := lost(before); len(errs) > 0 {
		t.Errorf("%d of %d queries before the end of lameduck lost, the first %v", len(errs), len(before), errs[0])
	}
	if n := len(before); n < 1000 {
		t.Errorf("only %d queries before the end of lameduck", n)
	}
}

func TestReloadsUnderLoadLoseNothing(t *testing.T) {
	p := startPair(t, "healthforward", "")
	good, err := os.ReadFile(p.server.corefile)
	if err != nil {
		t.Fatal(err)
	}
	taken, err := net.ListenPacket("udp", loopbackAddr(freePort(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, takenPort, _ := net.SplitHostPort(taken.LocalAddr().String())
	l := startLoad(t, p.server.addr(), "", 200)
	reload := func(corefile, want string) {
		t.Helper()
		seen := strings.Count(p.server.Log(), want)
		if err := os.WriteFile(p.server.corefile, []byte(corefile), 0o600); err != nil {
			t.Fatal(err)
		}
		p.server.Signal(syscall.SIGUSR1)
		waitFor(t, startLimit, fmt.Sprintf("%q in the log", want), func() error {
			if strings.Count(p.server.Log(), want) == seen {
				return fmt.Errorf("not yet")
			}
			return nil
		})
		l.waitForQueries(20)
	}
	for range 3 {
		reload(string(good)+"\nbad.test:"+takenPort+" {\n bind 127.0.0.1\n healthforward . 127.0.0.9\n}\n", "Restart failed")
		reload(strings.Replace(string(good), "searchexpand lab.test", "searchexpand", 1), "Restart failed")
		reload(string(good), "Reloading complete")
	}
	answers := l.end()
	if errs := lost(answers); len(errs) > 0 {
		t.Errorf("%d of %d queries lost, the first %v", len(errs), len(answers), errs[0])
	}
}

// TestCorefileExampleAnswersAsTheREADMESays asks what the README asks.
func TestCorefileExampleAnswersAsTheREADMESays(t *testing.T) {
	text, err := os.ReadFile("../Corefile.example")
	if err != nil {
		t.Fatal(err)
	}
	m := &move{t: t}
	s := startServerIn(t, "..", m.corefile(string(text)))
	addr := m.addr("1053")
	check := func(name string, qtype uint16, rcode int, records ...string) {
		t.Helper()
		reply := ask(t, addr, name, qtype)
		var got []string
		for _, rr := range append(reply.Answer, reply.Ns...) {
			got = append(got, strings.Join(strings.Fields(rr.String()), " "))
		}
		if reply.Rcode != rcode || !slices.Equal(got, records) {
			t.Errorf("%s %s: %s %q, want %s %q", name, dns.TypeToString[qtype], dns.RcodeToString[reply.Rcode], got, dns.RcodeToString[rcode], records)
		}
	}
	all := func() {
		t.Helper()
		check("db01", dns.TypeA, dns.RcodeSuccess, "db01. 300 IN CNAME db01.lab.example.org.", "db01.lab.example.org. 300 IN A 192.0.2.7")
		check("www", dns.TypeAAAA, dns.RcodeSuccess, "www. 60 IN CNAME www.corp.example.org.", "www.corp.example.org. 300 IN AAAA 2001:db8::8")
		check("nosuch", dns.TypeA, dns.RcodeNameError, ". 30 IN SOA searchexpand.invalid. nobody.invalid. 1 1800 900 604800 30")
		check("example.com", dns.TypeA, dns.RcodeSuccess, "example.com. 300 IN A 192.0.2.8")
	}
	all()

	// One upstream's block is taken away, as the README tells to try.
	moved, err := os.ReadFile(s.corefile)
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(m.addr("1054"))
	before, rest, found := strings.Cut(string(moved), ".:"+port+" {")
	if !found {
		t.Fatalf("no block for port %s in\n%s", port, moved)
	}
	_, after, _ := strings.Cut(rest, "\n}\n")
	after = after[strings.Index(after, ".:"):]
	if err := os.WriteFile(s.corefile, []byte(before+after), 0o600); err != nil {
		t.Fatal(err)
	}
	s.waitForLog("Reloading complete", startLimit) // reload sees it within two or three seconds
	for range 10 {
		all()
	}
	s.waitForLog("127.0.0.1:"+port+" is ejected: refused", startLimit)
	all()
}
