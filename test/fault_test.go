package test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// lan is how long an upstream takes to answer unless its behaviour says otherwise.
const lan = 2 * time.Millisecond

// edeDNSSECBogus is the extended error of a validator that found a forgery (RFC 8914,
// section 4.7).
const edeDNSSECBogus = 6

// arrival is a query as it comes to an upstream.
type arrival struct {
	name string // in lower case
	edns bool
}

// isProbe reports whether the query is one by which both plugins probe.
func (a arrival) isProbe() bool { return a.name == "." }

// reaction is what an upstream does with a query. The zero value is a good answer,
// at once.
type reaction struct {
	silent bool
	delay  time.Duration
	rcode  int
	ede    uint16 // extended error, for who sent OPT; 0 for none
	at     string // an address in the place of the upstream's own, for one second; nowhere for none
}

// nowhere as reaction.at: there is no address.
const nowhere = "-"

// behaviour decides on a query. It may be called concurrently.
type behaviour func(arrival) reaction

// closed is the behaviour of an upstream whose port nobody listens on.
var closed behaviour

func answers(arrival) reaction { return reaction{delay: lan} }

func silent(arrival) reaction { return reaction{silent: true} }

func answersIn(delay time.Duration) behaviour {
	return func(arrival) reaction { return reaction{delay: delay} }
}

func fails(rcode int) behaviour {
	return func(arrival) reaction { return reaction{delay: lan, rcode: rcode} }
}

// bogus is what a validator says of a forged name.
func bogus(arrival) reaction {
	return reaction{delay: lan, rcode: dns.RcodeServerFailure, ede: edeDNSSECBogus}
}

// lossy loses a share of what do would answer.
func lossy(share float64, do behaviour) behaviour {
	return func(a arrival) reaction {
		if rand.Float64() < share {
			return reaction{silent: true}
		}
		return do(a)
	}
}

// under does do for the names under a zone, and rest for all others.
func under(zone string, do, rest behaviour) behaviour {
	return func(a arrival) reaction {
		if dns.IsSubDomain(zone, a.name) {
			return do(a)
		}
		return rest(a)
	}
}

// called does do for the names of a kind, and rest for all others.
func called(kind string, do, rest behaviour) behaviour {
	return func(a arrival) reaction {
		if strings.HasPrefix(a.name, kind) {
			return do(a)
		}
		return rest(a)
	}
}

// grey answers probes in one way and everything else in another.
func grey(probes, rest behaviour) behaviour {
	return func(a arrival) reaction {
		if a.isProbe() {
			return probes(a)
		}
		return rest(a)
	}
}

// bimodal answers as a resolver far away: 90 % from its cache, the rest when the
// authorities have answered it, each time anew.
func bimodal(arrival) reaction {
	if rand.Float64() < 0.9 {
		return reaction{delay: 5 * time.Millisecond}
	}
	return reaction{delay: 50*time.Millisecond + rand.N(950*time.Millisecond)}
}

// limited answers so many queries a second and loses what exceeds that.
func limited(perSecond float64) behaviour {
	const burst = 20 // so that the client's ticks do not count as an excess
	var mu sync.Mutex
	left, last := float64(burst), time.Now()
	return func(arrival) reaction {
		mu.Lock()
		defer mu.Unlock()
		now := time.Now()
		left = min(burst, left+perSecond*now.Sub(last).Seconds())
		last = now
		if left < 1 {
			return reaction{silent: true}
		}
		left--
		return reaction{delay: lan}
	}
}

// faulty is an upstream in this process. It answers every question for an address
// with its own.
type faulty struct {
	t      testing.TB
	number int    // from 1
	addr   string // where it listens
	tell   func(f *faulty, a arrival, at time.Time)

	mu      sync.Mutex
	does    behaviour
	servers []*dns.Server // none while the port is closed
	gone    chan struct{} // closed with the port, so that no answer waits for its delay
}

// startFaulty starts upstream number, on an address of its own. It tells of every
// query that comes.
func startFaulty(t testing.TB, number, port int, does behaviour, tell func(*faulty, arrival, time.Time)) *faulty {
	t.Helper()
	f := &faulty{t: t, number: number, addr: fmt.Sprintf("127.0.0.%d:%d", number+1, port), tell: tell}
	f.set(does)
	t.Cleanup(func() { f.set(closed) })
	return f
}

// address is what upstream number answers.
func address(number int) string { return fmt.Sprintf("192.0.2.%d", number) }

// set makes the upstream behave otherwise from now on.
func (f *faulty) set(does behaviour) {
	f.mu.Lock()
	f.does = does
	isOpen := len(f.servers) > 0
	f.mu.Unlock()
	switch {
	case does == nil && isOpen:
		f.closePorts()
	case does != nil && !isOpen:
		f.openPorts()
	}
}

func (f *faulty) openPorts() {
	l, err := net.Listen("tcp", f.addr)
	if err != nil {
		f.t.Errorf("upstream %d: %v", f.number, err)
		return
	}
	pc, err := net.ListenPacket("udp", f.addr)
	if err != nil {
		l.Close()
		f.t.Errorf("upstream %d: %v", f.number, err)
		return
	}
	gone := make(chan struct{})
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) { f.serve(w, r, gone) })
	servers := []*dns.Server{{Listener: l, Handler: handler}, {PacketConn: pc, Handler: handler}}
	var up sync.WaitGroup
	for _, srv := range servers {
		up.Add(1)
		srv.NotifyStartedFunc = up.Done
		go srv.ActivateAndServe()
	}
	up.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.servers, f.gone = servers, gone
}

// closePorts returns when no answer is under way any more.
func (f *faulty) closePorts() {
	f.mu.Lock()
	servers := f.servers
	f.servers = nil
	close(f.gone)
	f.mu.Unlock()
	for _, srv := range servers {
		srv.Shutdown()
	}
}

func (f *faulty) serve(w dns.ResponseWriter, r *dns.Msg, gone chan struct{}) {
	a := arrival{name: strings.ToLower(r.Question[0].Name), edns: r.IsEdns0() != nil}
	f.tell(f, a, time.Now())
	f.mu.Lock()
	does := f.does
	f.mu.Unlock()
	if does == nil {
		return // the port is being closed
	}
	do := does(a)
	if do.silent {
		return
	}
	if do.delay > 0 {
		timer := time.NewTimer(do.delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-gone:
			return
		}
	}
	w.WriteMsg(f.reply(r, a, do))
}

func (f *faulty) reply(r *dns.Msg, a arrival, do reaction) *dns.Msg {
	m := new(dns.Msg).SetRcode(r, do.rcode)
	m.RecursionAvailable = true
	at, ttl := address(f.number), uint32(60)
	if do.at != "" {
		at, ttl = do.at, 1
	}
	if do.rcode == dns.RcodeSuccess && r.Question[0].Qtype == dns.TypeA && at != nowhere {
		m.Answer = []dns.RR{&dns.A{
			Hdr: dns.RR_Header{Name: r.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: ttl},
			A:   net.ParseIP(at),
		}}
	}
	if a.edns {
		m.SetEdns0(1232, false)
		if do.ede != 0 {
			m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_EDE{InfoCode: do.ede}}
		}
	}
	return m
}
