package healthforward

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"steadfast.internal/plugin/healthforward/internal/transport"
	"steadfast.internal/plugin/internal/dnsfake"
	"steadfast.internal/plugin/internal/leaktest"

	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metadata"
	"github.com/coredns/coredns/plugin/pkg/dnstest"
	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
)

func TestMain(m *testing.M) {
	clog.Discard()
	leaktest.Main(m, "steadfast.internal")
}

// start parses one stanza, in which %s stands for the addresses in turn, and
// starts it with a registry of its own.
func start(t testing.TB, stanza string, addrs ...string) *Forwarder {
	t.Helper()
	return startAll(t, newRegistry(transport.New), stanza, addrs...)[0]
}

func startAll(t testing.TB, r *registry, stanzas string, addrs ...string) []*Forwarder {
	t.Helper()
	g := load(t, r, stanzas, addrs...)
	if err := g.acquire(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.mark()
		g.shutdown()
		for _, f := range g.forwarders {
			f.attempts.Wait()
		}
	})
	return g.forwarders
}

// load parses stanzas as a generation that has not been acquired.
func load(t testing.TB, r *registry, stanzas string, addrs ...string) *generation {
	t.Helper()
	args := make([]any, len(addrs))
	for i, addr := range addrs {
		args[i] = addr
	}
	d := caddyfile.NewDispenser("Corefile", strings.NewReader(fmt.Sprintf(stanzas, args...)))
	configs, err := parse(&d)
	if err != nil {
		t.Fatal(err)
	}
	g := &generation{registry: r}
	for _, c := range configs {
		g.add(c)
	}
	return g
}

// query asks f over UDP and returns what it wrote, or nil, and what it returned.
func ask(t testing.TB, f plugin.Handler, m *dns.Msg) (*dns.Msg, int, error) {
	t.Helper()
	return askOver(t, f, m, &test.ResponseWriter{})
}

func askOver(t testing.TB, f plugin.Handler, m *dns.Msg, w dns.ResponseWriter) (*dns.Msg, int, error) {
	t.Helper()
	rec := dnstest.NewRecorder(w)
	rcode, err := f.ServeDNS(context.Background(), rec, m)
	return rec.Msg, rcode, err
}

func question(name string, qtype uint16) *dns.Msg { return new(dns.Msg).SetQuestion(name, qtype) }

// addressIn returns the first A record of a reply.
func addressIn(m *dns.Msg) string {
	if m == nil {
		return ""
	}
	for _, rr := range m.Answer {
		if a, ok := rr.(*dns.A); ok {
			return a.A.String()
		}
	}
	return ""
}

// waitFor polls until what holds.
func waitFor(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting until %s", what)
		}
	}
}

func TestAnswersAsTheUpstreamDoes(t *testing.T) {
	up := dnsfake.New(t, dnsfake.Address("192.0.2.1"))
	f := start(t, "healthforward . %s", up.Addr())
	for name, w := range map[string]*test.ResponseWriter{"over UDP": {}, "over TCP": {TCP: true}} {
		t.Run(name, func(t *testing.T) {
			m := question("ExAmPlE.org.", dns.TypeA)
			reply, rcode, err := askOver(t, f, m, w)
			if rcode != dns.RcodeSuccess || err != nil {
				t.Fatalf("ServeDNS = %d, %v", rcode, err)
			}
			if got := addressIn(reply); got != "192.0.2.1" {
				t.Errorf("address = %q", got)
			}
			if reply.Id != m.Id || reply.Question[0].Name != "ExAmPlE.org." || !reply.Response {
				t.Errorf("reply is none to the request: %v", reply)
			}
			want := "udp"
			if w.TCP {
				want = "tcp"
			}
			seen := up.Seen()
			if got := seen[len(seen)-1].Proto; got != want {
				t.Errorf("forwarded over %s, want %s", got, want)
			}
		})
	}
}

func TestTheSecondUpstreamAnswersForTheFirst(t *testing.T) {
	for name, first := range map[string]dnsfake.Handler{
		"that is silent":                         dnsfake.Silence,
		"that answers its probes only":           dnsfake.Probes(dnsfake.Address("192.0.2.9"), dnsfake.Silence),
		"that says SERVFAIL":                     dnsfake.Rcode(dns.RcodeServerFailure),
		"that says REFUSED":                      dnsfake.Rcode(dns.RcodeRefused),
		"that says NOTIMP":                       dnsfake.Rcode(dns.RcodeNotImplemented),
		"that closes its connections":            func(dnsfake.Request) dnsfake.Response { return dnsfake.Response{Close: true} },
		"that sends garbage":                     garbage,
		"whose reply is to another question":     wrongQuestion,
		"whose reply has another ID":             wrongID,
		"that says REFUSED without a question":   noQuestion,
		"that says SERVFAIL, after some thought": dnsfake.After(20*time.Millisecond, dnsfake.Rcode(dns.RcodeServerFailure)),
	} {
		for proto, w := range map[string]*test.ResponseWriter{"UDP": {}, "TCP": {TCP: true}} {
			t.Run(name+", over "+proto, func(t *testing.T) {
				t.Parallel()
				a, b := dnsfake.New(t, first), dnsfake.New(t, dnsfake.Address("192.0.2.2"))
				f := start(t, "healthforward . %s %s {\n policy sequential\n}", a.Addr(), b.Addr())
				for i := range 5 {
					reply, rcode, err := askOver(t, f, question(fmt.Sprintf("n%d.example.org.", i), dns.TypeA), w)
					if got := addressIn(reply); got != "192.0.2.2" || rcode != 0 || err != nil {
						t.Errorf("query %d: address %q, ServeDNS = %d, %v", i, got, rcode, err)
					}
				}
			})
		}
	}
}

func garbage(dnsfake.Request) dnsfake.Response {
	return dnsfake.Response{Raw: [][]byte{[]byte("garbage"), make([]byte, 12), make([]byte, 600)}}
}

func wrongQuestion(r dnsfake.Request) dnsfake.Response {
	m := new(dns.Msg).SetReply(r.Msg)
	m.Question = []dns.Question{{Name: "forged.example.org.", Qtype: dns.TypeA, Qclass: dns.ClassINET}}
	return dnsfake.Response{Msg: m}
}

func wrongID(r dnsfake.Request) dnsfake.Response {
	response := dnsfake.Address("203.0.113.66")(r)
	response.Msg.Id++
	return response
}

func noQuestion(r dnsfake.Request) dnsfake.Response {
	m := new(dns.Msg).SetRcode(r.Msg, dns.RcodeRefused)
	m.Question = nil
	return dnsfake.Response{Msg: m}
}

func TestAClosedPortCostsNothing(t *testing.T) {
	a, b := dnsfake.New(t, dnsfake.Silence), dnsfake.New(t, dnsfake.Address("192.0.2.2"))
	a.Stop()
	f := start(t, "healthforward . %s %s {\n policy sequential\n}", a.Addr(), b.Addr())
	for i := range 20 {
		if reply, _, _ := ask(t, f, question(fmt.Sprintf("n%d.example.org.", i), dns.TypeA)); addressIn(reply) != "192.0.2.2" {
			t.Fatalf("query %d: %v", i, reply)
		}
	}
}

func TestTheRightReplyIsTakenAfterForgedOnes(t *testing.T) {
	up := dnsfake.New(t, func(r dnsfake.Request) dnsfake.Response {
		response := dnsfake.Address("192.0.2.1")(r)
		for _, forge := range []dnsfake.Handler{wrongQuestion, wrongID} {
			packet, err := forge(r).Msg.Pack()
			if err != nil {
				panic(err)
			}
			response.Raw = append(response.Raw, packet)
		}
		response.Raw = append(response.Raw, []byte{1, 2, 3}, make([]byte, 40))
		return response
	})
	f := start(t, "healthforward . %s", up.Addr())
	reply, _, _ := ask(t, f, question("example.org.", dns.TypeA))
	if got := addressIn(reply); got != "192.0.2.1" {
		t.Errorf("address = %q, want the true one", got)
	}
}

func TestABadNameIsBadEverywhere(t *testing.T) {
	bad := func(r dnsfake.Request) dnsfake.Response {
		if r.Name() == "bad.example.org." {
			return dnsfake.Rcode(dns.RcodeServerFailure)(r)
		}
		return dnsfake.Address("192.0.2.1")(r)
	}
	a, b, c := dnsfake.New(t, bad), dnsfake.New(t, bad), dnsfake.New(t, bad)
	f := start(t, "healthforward . %s %s %s {\n policy sequential\n}", a.Addr(), b.Addr(), c.Addr())
	waitFor(t, "all are up", func() bool { return countState(f, "up") == 3 })
	for range 30 {
		reply, rcode, err := ask(t, f, question("bad.example.org.", dns.TypeA))
		if reply == nil || reply.Rcode != dns.RcodeServerFailure || rcode != 0 || err != nil {
			t.Fatalf("reply %v, ServeDNS = %d, %v; want the upstreams' SERVFAIL, written", reply, rcode, err)
		}
	}
	if n := c.Count("bad.example.org."); n != 0 {
		t.Errorf("the third upstream was asked %d times, want none once two agree", n)
	}
	if n := countState(f, "up"); n != 3 {
		t.Errorf("%d upstreams are up, want all: one name is no proof", n)
	}
}

func countState(f *Forwarder, state string) int {
	n := 0
	for id := range (*f.groups.Load())[protoUDP].upstreams {
		if f.registry.pool.State(id).String() == state {
			n++
		}
	}
	return n
}

func TestUnderSequentialALaterDenialWaitsForTheEarlier(t *testing.T) {
	nxdomain := dnsfake.Rcode(dns.RcodeNameError)
	for name, tc := range map[string]struct {
		policy    string
		internal  dnsfake.Handler
		want      string
		wantRcode int
		atLeast   time.Duration
	}{
		"the earlier knows the name, late": {
			"sequential", dnsfake.After(400*time.Millisecond, dnsfake.Address("10.0.0.1")), "10.0.0.1", dns.RcodeSuccess, 0,
		},
		"the earlier denies it too, late": {
			"sequential", dnsfake.After(400*time.Millisecond, nxdomain), "", dns.RcodeNameError, 300 * time.Millisecond,
		},
		"the earlier cannot decide: no denial": {
			"sequential", dnsfake.Rcode(dns.RcodeServerFailure), "", dns.RcodeServerFailure, 0,
		},
		"the earlier says that it is none of its business": {
			"sequential", dnsfake.Rcode(dns.RcodeRefused), "", dns.RcodeNameError, 0,
		},
		"the earlier never answers": {
			"sequential", dnsfake.Silence, "", dns.RcodeNameError, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fast := dnsfake.Address("192.0.2.9")
			a, b := dnsfake.New(t, dnsfake.Probes(fast, tc.internal)), dnsfake.New(t, dnsfake.Probes(fast, nxdomain))
			f := start(t, "healthforward . %s %s {\n policy "+tc.policy+"\n}", a.Addr(), b.Addr())
			waitFor(t, "both are up", func() bool { return countState(f, "up") == 2 })
			began := time.Now()
			reply, _, _ := ask(t, f, question("private.example.org.", dns.TypeA))
			if reply == nil {
				t.Fatal("no reply")
			}
			if got := addressIn(reply); got != tc.want || reply.Rcode != tc.wantRcode {
				t.Errorf("reply = %q, rcode %d; want %q, rcode %d", got, reply.Rcode, tc.want, tc.wantRcode)
			}
			if took := time.Since(began); took < tc.atLeast {
				t.Errorf("answered after %v, before the earlier upstream could", took)
			}
		})
	}
}

func TestEqualsNeedNotWaitForEachOther(t *testing.T) {
	fast := dnsfake.Address("192.0.2.9")
	slow := dnsfake.New(t, dnsfake.Probes(fast, dnsfake.After(3*time.Second, dnsfake.Address("192.0.2.1"))))
	quick := dnsfake.New(t, dnsfake.Probes(fast, dnsfake.Rcode(dns.RcodeNameError)))
	f := start(t, "healthforward . %s %s {\n policy round_robin\n}", slow.Addr(), quick.Addr())
	waitFor(t, "both are up", func() bool { return countState(f, "up") == 2 })
	for range 2 { // each is first once
		reply, _, _ := ask(t, f, question("example.org.", dns.TypeA))
		if reply == nil || reply.Rcode != dns.RcodeNameError {
			t.Errorf("reply = %v, want the quick one's NXDOMAIN", reply)
		}
	}
}

func TestAFailedValidationIsFinal(t *testing.T) {
	bogus := func(r dnsfake.Request) dnsfake.Response {
		m := new(dns.Msg).SetRcode(r.Msg, dns.RcodeServerFailure)
		if r.IsEdns0() != nil {
			m.SetEdns0(1232, false)
			m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_EDE{InfoCode: dns.ExtendedErrorCodeDNSBogus}}
		}
		return dnsfake.Response{Msg: m}
	}
	validating, plain := dnsfake.New(t, bogus), dnsfake.New(t, dnsfake.Address("203.0.113.66"))
	f := start(t, "healthforward . %s %s {\n policy sequential\n}", validating.Addr(), plain.Addr())
	for name, m := range map[string]*dns.Msg{
		"for a client with EDNS":    question("bogus.example.org.", dns.TypeA).SetEdns0(4096, true),
		"for a client without EDNS": question("bogus.example.org.", dns.TypeA),
	} {
		t.Run(name, func(t *testing.T) {
			reply, _, _ := ask(t, f, m)
			if reply == nil || reply.Rcode != dns.RcodeServerFailure {
				t.Fatalf("reply = %v, want SERVFAIL", reply)
			}
			if (reply.IsEdns0() != nil) != (m.IsEdns0() != nil) {
				t.Errorf("OPT in the reply: %v, in the request: %v", reply.IsEdns0() != nil, m.IsEdns0() != nil)
			}
		})
	}
	if n := plain.Count("bogus.example.org."); n != 0 {
		t.Errorf("the upstream that does not validate was asked %d times", n)
	}
}

func TestNobodyAnswers(t *testing.T) {
	t.Run("nothing is written, and nothing returned that cache would keep", func(t *testing.T) {
		t.Parallel()
		a := dnsfake.New(t, dnsfake.Silence)
		f := start(t, "healthforward . %s", a.Addr())
		began := time.Now()
		reply, rcode, err := ask(t, f, question("example.org.", dns.TypeA))
		if reply != nil || rcode != dns.RcodeServerFailure || err != nil {
			t.Errorf("wrote %v, ServeDNS = %d, %v; want nothing, SERVFAIL, nil", reply, rcode, err)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("took %v, longer than a client waits", took)
		}
	})
	t.Run("all refuse: no need to wait", func(t *testing.T) {
		t.Parallel()
		a := dnsfake.New(t, dnsfake.Silence)
		a.Stop()
		f := start(t, "healthforward . %s", a.Addr())
		began := time.Now()
		reply, rcode, err := ask(t, f, question("example.org.", dns.TypeA))
		if reply != nil || rcode != dns.RcodeServerFailure || err != nil {
			t.Errorf("wrote %v, ServeDNS = %d, %v", reply, rcode, err)
		}
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("took %v though everybody has refused", took)
		}
	})
	t.Run("the client gives up", func(t *testing.T) {
		t.Parallel()
		a := dnsfake.New(t, dnsfake.Silence)
		f := start(t, "healthforward . %s", a.Addr())
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(50*time.Millisecond, cancel)
		rcode, err := f.ServeDNS(ctx, &test.ResponseWriter{}, question("example.org.", dns.TypeA))
		if rcode != dns.RcodeServerFailure || !errors.Is(err, context.Canceled) {
			t.Errorf("ServeDNS = %d, %v; want SERVFAIL and the context's error", rcode, err)
		}
	})
}

func TestOneUpstreamIsAskedAgainWhenAPacketIsLost(t *testing.T) {
	var mu sync.Mutex
	asked := make(map[string]int)
	lossy := func(r dnsfake.Request) dnsfake.Response {
		mu.Lock()
		defer mu.Unlock()
		if asked[r.Name()]++; asked[r.Name()] == 1 {
			return dnsfake.Silence(r)
		}
		return dnsfake.Address("192.0.2.1")(r)
	}
	up := dnsfake.New(t, dnsfake.Probes(dnsfake.Address("192.0.2.9"), lossy))
	f := start(t, "healthforward . %s", up.Addr())
	waitFor(t, "it is up", func() bool { return countState(f, "up") == 1 })
	reply, _, _ := ask(t, f, question("example.org.", dns.TypeA))
	if got := addressIn(reply); got != "192.0.2.1" {
		t.Fatalf("address = %q", got)
	}
	ports := make(map[string]bool)
	for _, r := range up.Seen() {
		if r.Name() == "example.org." {
			ports[r.From.String()] = true
		}
	}
	if len(ports) != 2 {
		t.Errorf("asked from %d ports, want a new one for the second time", len(ports))
	}
}

func TestWhatWaitsOnAnEjectedUpstreamIsSentElsewhere(t *testing.T) {
	a, b := dnsfake.New(t, dnsfake.Address("192.0.2.1")), dnsfake.New(t, dnsfake.Address("192.0.2.2"))
	// No hedging: nothing but the ejection can rescue the queries before their time-out of a minute.
	f := start(t, "healthforward . %s %s {\n policy sequential\n hedge off\n read_timeout 1m\n}", a.Addr(), b.Addr())
	waitFor(t, "both are up", func() bool { return countState(f, "up") == 2 })
	a.Set(dnsfake.Silence)
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			reply, _, _ := ask(t, f, question(fmt.Sprintf("n%d.example.org.", i), dns.TypeA))
			if got := addressIn(reply); got != "192.0.2.2" {
				t.Errorf("query %d: address %q, want the other upstream's", i, got)
			}
		})
	}
	wg.Wait()
}

func TestAnUpstreamThatReturnsIsUsedAgain(t *testing.T) {
	a, b := dnsfake.New(t, dnsfake.Address("192.0.2.1")), dnsfake.New(t, dnsfake.Address("192.0.2.2"))
	f := start(t, "healthforward . %s %s {\n policy sequential\n}", a.Addr(), b.Addr())
	waitFor(t, "both are up", func() bool { return countState(f, "up") == 2 })
	a.Stop()
	i := 0
	from := func() string {
		i++
		reply, _, _ := ask(t, f, question(fmt.Sprintf("n%d.example.org.", i), dns.TypeA))
		return addressIn(reply)
	}
	waitFor(t, "a is ejected", func() bool {
		if got := from(); got != "192.0.2.2" {
			t.Fatalf("address %q while a is down", got)
		}
		return countState(f, "ejected") == 1
	})
	a.Restart()
	waitFor(t, "a answers again", func() bool { return from() == "192.0.2.1" })
}

func TestSentOnceAndAsReceived(t *testing.T) {
	update := new(dns.Msg).SetUpdate("example.org.")
	update.Insert([]dns.RR{test.A("new.example.org. 60 IN A 192.0.2.7")})
	signed := question("example.org.", dns.TypeA)
	signed.Extra = append(signed.Extra, &dns.TSIG{
		Hdr: dns.RR_Header{Name: "key.", Rrtype: dns.TypeTSIG, Class: dns.ClassANY}, Algorithm: dns.HmacSHA256,
		MACSize: 2, MAC: "abcd", OrigId: signed.Id,
	})
	for name, m := range map[string]*dns.Msg{
		"UPDATE": update,
		"NOTIFY": new(dns.Msg).SetNotify("example.org."),
		"AXFR":   new(dns.Msg).SetAxfr("example.org."),
		"IXFR":   new(dns.Msg).SetIxfr("example.org.", 1, "ns.example.org.", "host.example.org."),
		"HINFO":  question("123.456.", dns.TypeHINFO),
		"TSIG":   signed,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			slow := dnsfake.Probes(dnsfake.Address("192.0.2.9"), dnsfake.After(600*time.Millisecond, dnsfake.Rcode(dns.RcodeServerFailure)))
			a, b := dnsfake.New(t, slow), dnsfake.New(t, slow)
			f := start(t, "healthforward . %s %s {\n policy sequential\n}", a.Addr(), b.Addr())
			reply, _, err := ask(t, f, m.Copy())
			if reply == nil || reply.Rcode != dns.RcodeServerFailure || err != nil {
				t.Fatalf("reply %v, error %v", reply, err)
			}
			var got []dnsfake.Request
			for _, up := range []*dnsfake.Server{a, b} {
				got = append(got, slices.DeleteFunc(up.Seen(), func(r dnsfake.Request) bool { return r.Name() == "." })...)
			}
			if len(got) != 1 {
				t.Fatalf("the upstreams were asked %d times, want once", len(got))
			}
			if seen := got[0].Msg; seen.IsEdns0() != nil || len(seen.Extra) != len(m.Extra) || len(seen.Ns) != len(m.Ns) || seen.Opcode != m.Opcode {
				t.Errorf("sent as\n%v\nwant\n%v", seen, m)
			}
		})
	}
}

func TestEDNSIsOurs(t *testing.T) {
	up := dnsfake.New(t, dnsfake.Probes(dnsfake.Address("192.0.2.9"), func(r dnsfake.Request) dnsfake.Response {
		response := dnsfake.Address("192.0.2.1")(r)
		response.Msg.SetEdns0(4096, true)
		return response
	}))
	f := start(t, "healthforward . %s", up.Addr())
	waitFor(t, "it is up", func() bool { return countState(f, "up") == 1 })
	lastOPT := func() *dns.OPT {
		seen := up.Seen()
		return seen[len(seen)-1].IsEdns0()
	}
	client := question("example.org.", dns.TypeA).SetEdns0(4096, true)
	client.IsEdns0().Option = []dns.EDNS0{
		&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0123456789abcdef"},
		&dns.EDNS0_NSID{Code: dns.EDNS0NSID},
	}
	reply, _, _ := ask(t, f, client)
	if reply.IsEdns0() == nil {
		t.Error("OPT is missing in the reply to who sent one")
	}
	opt := lastOPT()
	if opt == nil || opt.UDPSize() != udpSize || !opt.Do() {
		t.Fatalf("OPT upstream = %v, want size %d and the client's DO", opt, udpSize)
	}
	if len(opt.Option) != 1 || opt.Option[0].Option() != dns.EDNS0NSID {
		t.Errorf("options upstream = %v, want all but the cookie", opt.Option)
	}
	reply, _, _ = ask(t, f, question("example.org.", dns.TypeA))
	if opt := lastOPT(); opt == nil || opt.Do() {
		t.Errorf("OPT upstream = %v, want one without DO", opt)
	}
	if reply.IsEdns0() != nil {
		t.Error("OPT in the reply to who sent none")
	}
}

func TestAServerThatRejectsOPTIsAskedWithout(t *testing.T) {
	for name, rcode := range map[string]int{"FORMERR": dns.RcodeFormatError, "NOTIMP": dns.RcodeNotImplemented} {
		t.Run(name, func(t *testing.T) {
			old := dnsfake.New(t, func(r dnsfake.Request) dnsfake.Response {
				if r.IsEdns0() != nil {
					return dnsfake.Rcode(rcode)(r)
				}
				return dnsfake.Address("192.0.2.1")(r)
			})
			f := start(t, "healthforward . %s", old.Addr())
			waitFor(t, "it is up", func() bool { return countState(f, "up") == 1 })
			for range 3 {
				reply, _, _ := ask(t, f, question("example.org.", dns.TypeA))
				if got := addressIn(reply); got != "192.0.2.1" {
					t.Errorf("address = %q", got)
				}
			}
			if n := old.Count("example.org."); n != 3 {
				t.Errorf("asked %d times for 3 queries, want it remembered since the probe", n)
			}
		})
	}
}

func TestExceptAndOtherZonesPass(t *testing.T) {
	up := dnsfake.New(t, dnsfake.Address("192.0.2.1"))
	f := start(t, "healthforward example.org %s {\n except sub.example.org a.b.example.org\n}", up.Addr())
	f.Next = test.NextHandler(dns.RcodeNameError, nil)
	for name, forwarded := range map[string]bool{
		"example.org.":         true,
		"EXAMPLE.org.":         true,
		"www.example.org.":     true,
		"xsub.example.org.":    true,
		"sub.example.org.":     false,
		"www.SUB.example.org.": false,
		"b.example.org.":       true,
		"a.b.example.org.":     false,
		"example.com.":         false,
		"notexample.org.":      false,
	} {
		_, rcode, _ := ask(t, f, question(name, dns.TypeA))
		if got := rcode == dns.RcodeSuccess; got != forwarded {
			t.Errorf("%s forwarded: %v, want %v", name, got, forwarded)
		}
	}
}

func TestTooManyAtOnceAreRefused(t *testing.T) {
	release := make(chan struct{})
	up := dnsfake.New(t, dnsfake.Probes(dnsfake.Address("192.0.2.9"), func(r dnsfake.Request) dnsfake.Response {
		<-release
		return dnsfake.Address("192.0.2.1")(r)
	}))
	f := start(t, "healthforward . %s {\n max_concurrent 2\n read_timeout 20s\n}", up.Addr())
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() { ask(t, f, question(fmt.Sprintf("n%d.example.org.", i), dns.TypeA)) })
	}
	waitFor(t, "two are under way", func() bool { return f.concurrent.Load() == 2 })
	reply, rcode, err := ask(t, f, question("third.example.org.", dns.TypeA))
	if reply != nil || rcode != dns.RcodeRefused || !errors.Is(err, errFull) {
		t.Errorf("wrote %v, ServeDNS = %d, %v; want nothing, REFUSED", reply, rcode, err)
	}
	close(release)
	wg.Wait()
}

func TestFailoverNoneDeliversWhatCame(t *testing.T) {
	a, b := dnsfake.New(t, dnsfake.Rcode(dns.RcodeServerFailure)), dnsfake.New(t, dnsfake.Address("192.0.2.2"))
	f := start(t, "healthforward . %s %s {\n policy sequential\n failover none\n}", a.Addr(), b.Addr())
	if reply, _, _ := ask(t, f, question("example.org.", dns.TypeA)); reply == nil || reply.Rcode != dns.RcodeServerFailure {
		t.Errorf("reply = %v, want the first one's SERVFAIL", reply)
	}
}

func TestTruncatedIsPassedOn(t *testing.T) {
	truncated := func(r dnsfake.Request) dnsfake.Response {
		m := new(dns.Msg).SetReply(r.Msg)
		m.Truncated = true
		return dnsfake.Response{Msg: m}
	}
	a, b := dnsfake.New(t, truncated), dnsfake.New(t, dnsfake.Address("192.0.2.2"))
	f := start(t, "healthforward . %s %s {\n policy sequential\n}", a.Addr(), b.Addr())
	if reply, _, _ := ask(t, f, question("example.org.", dns.TypeA)); reply == nil || !reply.Truncated {
		t.Errorf("reply = %v, want the truncated one", reply)
	}
}

func TestTheRequestIsNotChanged(t *testing.T) {
	up := dnsfake.New(t, dnsfake.Address("192.0.2.1"))
	f := start(t, "healthforward . %s", up.Addr())
	m := question("example.org.", dns.TypeA).SetEdns0(4096, true)
	before := m.Copy()
	ask(t, f, m)
	if m.String() != before.String() {
		t.Errorf("request is now\n%v\nwas\n%v", m, before)
	}
}

func TestMetadataNamesTheUpstream(t *testing.T) {
	up := dnsfake.New(t, dnsfake.Address("192.0.2.1"))
	f := start(t, "healthforward . %s", up.Addr())
	ctx := metadata.ContextWithMetadata(context.Background())
	if _, err := f.ServeDNS(ctx, &test.ResponseWriter{}, question("example.org.", dns.TypeA)); err != nil {
		t.Fatal(err)
	}
	for _, label := range []string{"healthforward/upstream", "forward/upstream"} {
		if value := metadata.ValueFunc(ctx, label); value == nil || value() != up.Addr() {
			t.Errorf("metadata %s does not name %s", label, up.Addr())
		}
	}
}
