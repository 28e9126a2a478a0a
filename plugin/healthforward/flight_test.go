package healthforward

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"steadfast.internal/plugin/internal/dnsfake"

	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
)

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
	waitFor(t, "both are up", func() bool { return countState(f, "up") == 2 })
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

func TestOneUpstreamIsAskedAgainAfterAHardError(t *testing.T) {
	var mu sync.Mutex
	asked := make(map[string]int)
	breaking := func(r dnsfake.Request) dnsfake.Response {
		mu.Lock()
		defer mu.Unlock()
		if asked[r.Name()]++; asked[r.Name()] == 1 {
			return dnsfake.Response{Close: true}
		}
		return dnsfake.Address("192.0.2.1")(r)
	}
	up := dnsfake.New(t, dnsfake.Probes(dnsfake.Address("192.0.2.9"), breaking))
	f := start(t, "healthforward . %s {\n force_tcp\n}", up.Addr())
	for i := range 5 {
		name := fmt.Sprintf("n%d.example.org.", i)
		if reply, _, _ := ask(t, f, question(name, dns.TypeA)); addressIn(reply) != "192.0.2.1" {
			t.Errorf("%s: reply %v", name, reply)
		}
		if n := up.Count(name); n != 2 {
			t.Errorf("%s was asked %d times, want twice", name, n)
		}
	}
}

func TestAReplyIsNotAskedForAgain(t *testing.T) {
	up := dnsfake.New(t, dnsfake.Rcode(dns.RcodeServerFailure))
	f := start(t, "healthforward . %s", up.Addr())
	if reply, _, _ := ask(t, f, question("example.org.", dns.TypeA)); reply == nil || reply.Rcode != dns.RcodeServerFailure {
		t.Errorf("reply %v", reply)
	}
	if n := up.Count("example.org."); n != 1 {
		t.Errorf("asked %d times, want once: it has replied", n)
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

func TestFailoverNoneDeliversWhatCame(t *testing.T) {
	a, b := dnsfake.New(t, dnsfake.Rcode(dns.RcodeServerFailure)), dnsfake.New(t, dnsfake.Address("192.0.2.2"))
	f := start(t, "healthforward . %s %s {\n policy sequential\n failover none\n}", a.Addr(), b.Addr())
	waitFor(t, "both are up", func() bool { return countState(f, "up") == 2 })
	if reply, _, _ := ask(t, f, question("example.org.", dns.TypeA)); reply == nil || reply.Rcode != dns.RcodeServerFailure {
		t.Errorf("reply = %v, want the first one's SERVFAIL", reply)
	}
}
