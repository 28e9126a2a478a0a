package healthforward

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"steadfast.internal/plugin/internal/dnsfake"

	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
)

// askWithin asks for example.org with a context of that duration, and returns what
// was written, how long it took, and the error.
func askWithin(t *testing.T, fw *Forwarder, patience time.Duration) (*dns.Msg, time.Duration, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	began, rec := time.Now(), dnstest.NewRecorder(&test.ResponseWriter{})
	_, err := fw.ServeDNS(ctx, rec, question("example.org.", dns.TypeA))
	return rec.Msg, time.Since(began), err
}

// idle reports an error if something of a flight is left.
func idle(t *testing.T, fw *Forwarder) {
	t.Helper()
	fw.sharing.mu.Lock()
	defer fw.sharing.mu.Unlock()
	fw.mu.Lock()
	defer fw.mu.Unlock()
	if len(fw.sharing.flights) != 0 || len(fw.flights) != 0 || fw.registry.waiting.Load() != 0 {
		t.Errorf("left behind: %d flights to join, %d flights, %d that wait", len(fw.sharing.flights), len(fw.flights), fw.registry.waiting.Load())
	}
}

func TestAHundredIdenticalQueriesAreOnePacket(t *testing.T) {
	bubble(t, "", func(t *testing.T, fw *Forwarder, a, b *model) {
		began := time.Now()
		var wg sync.WaitGroup
		replies := make([]*dns.Msg, 100)
		for i := range replies {
			wg.Go(func() {
				m := question("example.org.", dns.TypeA)
				m.Id = uint16(i)
				replies[i], _, _ = ask(t, fw, m)
			})
		}
		wg.Wait()
		if n := a.since(began) + b.since(began); n != 1 {
			t.Errorf("%d packets went upstream, want 1", n)
		}
		if took := time.Since(began); took != 2*ms {
			t.Errorf("took %v, want 2ms", took)
		}
		records := make(map[dns.RR]bool)
		for i, reply := range replies {
			if addressIn(reply) == "" || reply.Id != uint16(i) || !reply.Response {
				t.Fatalf("query %d: reply %v", i, reply)
			}
			records[reply.Answer[0]] = true
		}
		if len(records) != len(replies) {
			t.Errorf("%d records for %d replies: some share one", len(records), len(replies))
		}
		idle(t, fw)
	})
}

func TestOnlyWhatIsIdenticalUpstreamIsShared(t *testing.T) {
	with := func(change func(m *dns.Msg)) *dns.Msg {
		m := question("example.org.", dns.TypeA)
		change(m)
		return m
	}
	option := func(o dns.EDNS0) *dns.Msg {
		return with(func(m *dns.Msg) { m.SetEdns0(4096, false).IsEdns0().Option = []dns.EDNS0{o} })
	}
	subnet := func(ip string) *dns.Msg {
		return option(&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: net.ParseIP(ip).To4()})
	}
	update := new(dns.Msg).SetUpdate("example.org.")
	signed := with(func(m *dns.Msg) { m.SetTsig("key.", dns.HmacSHA256, 300, 0) })
	udp, tcp := &test.ResponseWriter{}, &test.ResponseWriter{TCP: true}
	plain := question("example.org.", dns.TypeA)
	for name, tc := range map[string]struct {
		options string
		a, b    *dns.Msg
		over    *test.ResponseWriter // of b
		shared  bool
	}{
		"the same":                          {"", plain, plain.Copy(), udp, true},
		"another ID":                        {"", plain, with(func(m *dns.Msg) { m.Id++ }), udp, true},
		"an OPT that asks for nothing":      {"", plain, with(func(m *dns.Msg) { m.SetEdns0(4096, false) }), udp, true},
		"a cookie, which is of one hop":     {"", plain, option(&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0123456789abcdef"}), udp, true},
		"TCP, but all is asked over UDP":    {"prefer_udp", plain, plain.Copy(), tcp, true},
		"TCP":                               {"", plain, plain.Copy(), tcp, false},
		"another name":                      {"", plain, with(func(m *dns.Msg) { m.Question[0].Name = "example.net." }), udp, false},
		"another case of the name":          {"", plain, with(func(m *dns.Msg) { m.Question[0].Name = "Example.org." }), udp, false},
		"another type":                      {"", plain, with(func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeAAAA }), udp, false},
		"another class":                     {"", plain, with(func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }), udp, false},
		"DO":                                {"", plain, with(func(m *dns.Msg) { m.SetEdns0(4096, true) }), udp, false},
		"CD":                                {"", plain, with(func(m *dns.Msg) { m.CheckingDisabled = true }), udp, false},
		"AD":                                {"", plain, with(func(m *dns.Msg) { m.AuthenticatedData = true }), udp, false},
		"no RD":                             {"", plain, with(func(m *dns.Msg) { m.RecursionDesired = false }), udp, false},
		"a client subnet":                   {"", plain, subnet("198.51.100.0"), udp, false},
		"another client subnet":             {"", subnet("198.51.100.0"), subnet("203.0.113.0"), udp, false},
		"the same client subnet":            {"", subnet("198.51.100.0"), subnet("198.51.100.0"), udp, true},
		"twice an update":                   {"", update, update.Copy(), udp, false},
		"twice the same signed query":       {"", signed, signed.Copy(), udp, false},
		"twice a transfer":                  {"", with(func(m *dns.Msg) { m.SetAxfr("example.org.") }), with(func(m *dns.Msg) { m.SetAxfr("example.org.") }), udp, false},
		"twice what loop asks":              {"", question("1.2.", dns.TypeHINFO), question("1.2.", dns.TypeHINFO), udp, false},
		"twice a notice of another opcode":  {"", new(dns.Msg).SetNotify("example.org."), new(dns.Msg).SetNotify("example.org."), udp, false},
		"the same, while one is asked once": {"", signed, plain, udp, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, tc.options, func(t *testing.T, fw *Forwarder, a, b *model) {
				began := time.Now()
				var wg sync.WaitGroup
				wg.Go(func() { askOver(t, fw, tc.a, udp) })
				wg.Go(func() { askOver(t, fw, tc.b, tc.over) })
				wg.Wait()
				if shared := a.since(began)+b.since(began) == 1; shared != tc.shared {
					t.Errorf("shared: %v, want %v", shared, tc.shared)
				}
				idle(t, fw)
			})
		})
	}
}

func TestAFlightOutlivesTheClientThatStartedIt(t *testing.T) {
	bubble(t, "", func(t *testing.T, fw *Forwarder, a, b *model) {
		for _, m := range []*model{a, b} {
			m.set(func(m *model) { m.rtt = 100 * ms })
		}
		began := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() {
			if reply, took, err := askWithin(t, fw, 10*ms); reply != nil || !errors.Is(err, context.DeadlineExceeded) || took != 10*ms {
				t.Errorf("who gave up: wrote %v, error %v after %v", reply, err, took)
			}
		})
		for range 3 {
			wg.Go(func() {
				time.Sleep(5 * ms)
				if reply, took, err := askWithin(t, fw, time.Minute); addressIn(reply) == "" || err != nil || took != 95*ms {
					t.Errorf("who waits: wrote %v, error %v after %v, want an answer after 95ms", reply, err, took)
				}
			})
		}
		wg.Wait()
		if n := a.since(began) + b.since(began); n != 1 {
			t.Errorf("%d packets went upstream, want 1", n)
		}
		idle(t, fw)
	})
}

func TestAFlightThatNobodyWaitsForIsCancelled(t *testing.T) {
	bubble(t, "max_fails 0", func(t *testing.T, fw *Forwarder, a, b *model) {
		for _, m := range []*model{a, b} {
			m.set(func(m *model) { m.deaf = true })
		}
		began := time.Now()
		for i := range 3 {
			fw.attempts.Go(func() { askWithin(t, fw, time.Duration(i+1)*10*ms) })
		}
		fw.attempts.Wait() // for what the flight has started, too
		if took := time.Since(began); took != 30*ms {
			t.Errorf("it ended after %v, want with the last that waited, after 30ms", took)
		}
		idle(t, fw)
	})
}

func TestWhoJoinsHasAllOfItsTime(t *testing.T) {
	bubble(t, "policy sequential\nmax_fails 0", func(t *testing.T, fw *Forwarder, a, b *model) {
		silent := func(silent bool) {
			for _, m := range []*model{a, b} {
				m.set(func(m *model) { m.silent = silent })
			}
		}
		silent(true)
		var wg sync.WaitGroup
		// The flight that the first starts ends at 4s; the next one is answered after 4.3s.
		for came, answered := range map[time.Duration]bool{0: false, 250 * ms: false, 1500 * ms: true, 3 * time.Second: true} {
			wg.Go(func() {
				time.Sleep(came)
				reply, took, err := askWithin(t, fw, time.Minute)
				if got := addressIn(reply) != ""; got != answered || err != nil {
					t.Errorf("came at %v: answered: %v, error %v after %v; want %v", came, got, err, took, answered)
				}
				if !answered && took != queryDeadline || took > queryDeadline {
					t.Errorf("came at %v: over after %v, want its own %v", came, took, queryDeadline)
				}
			})
		}
		time.Sleep(4300 * ms)
		silent(false)
		wg.Wait()
		idle(t, fw)
	})
}

func TestEachFlightIsTappedOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		early []bool // those who leave before it is over: whether they started it
		late  []bool // those who leave after that
		want  []bool // who of all taps
	}{
		"by who started it":                  {nil, []bool{false, true, false}, []bool{false, true, false}},
		"by who started it and is alone":     {[]bool{true}, nil, []bool{true}},
		"by another where that one has left": {[]bool{true}, []bool{false, false}, []bool{false, true, false}},
		"by the last to leave":               {[]bool{false, true, false}, nil, []bool{false, false, true}},
	} {
		t.Run(name, func(t *testing.T) {
			s := sharing{flights: make(map[shareKey]*shared)}
			sh := &shared{done: make(chan struct{}), waiting: len(tc.early) + len(tc.late)}
			s.add(sh)
			var got []bool
			leave := func(led bool) {
				stays, taps := s.leave(sh, led)
				if last := len(got)+1 == len(tc.early)+len(tc.late); stays != (sh.over || last) {
					t.Errorf("stays: %v, as the last: %v, over: %v", stays, last, sh.over)
				}
				got = append(got, taps)
			}
			for _, led := range tc.early {
				leave(led)
			}
			if joinable := s.flights[sh.key] == sh; joinable != (len(tc.late) > 0) {
				t.Errorf("others may join: %v", joinable)
			}
			s.end(sh, result{})
			for _, led := range tc.late {
				leave(led)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("tapped by %v, want %v", got, tc.want)
			}
		})
	}
}

func TestAFailureIsSharedByWhoeverWasThereFromTheStart(t *testing.T) {
	bubble(t, "max_fails 0\nmax_connect_attempts 1", func(t *testing.T, fw *Forwarder, a, b *model) {
		for _, m := range []*model{a, b} {
			m.set(func(m *model) { m.full = true }) // an error after a second
		}
		began := time.Now()
		var wg sync.WaitGroup
		for i := range 51 {
			wg.Go(func() {
				want := time.Second
				if i > 0 { // joins, and is there when the second flight starts
					time.Sleep(500 * ms)
					want = 1500 * ms
				}
				if reply, took, err := askWithin(t, fw, time.Minute); reply != nil || err != nil || took != want {
					t.Errorf("client %d: wrote %v, error %v after %v; want nothing after %v", i, reply, err, took, want)
				}
			})
		}
		wg.Wait()
		if n := a.since(began) + b.since(began); n != 2 {
			t.Errorf("%d packets went upstream, want one of each flight", n)
		}
		idle(t, fw)
	})
}

func TestAReplyThatIsHeldBackGoesToTheLastThatWaits(t *testing.T) {
	up, silent := dnsfake.New(t, dnsfake.Probes(dnsfake.Address("192.0.2.9"), dnsfake.Rcode(dns.RcodeServerFailure))), dnsfake.New(t, dnsfake.Silence)
	f := start(t, "healthforward . %s %s {\n policy sequential\n deadline 1s\n}", up.Addr(), silent.Addr())
	waitFor(t, "it is up", func() bool { return countState(f, "up") == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
	defer cancel()
	rec := dnstest.NewRecorder(&test.ResponseWriter{})
	if _, err := f.ServeDNS(ctx, rec, question("example.org.", dns.TypeA)); rec.Msg == nil || rec.Rcode != dns.RcodeServerFailure || err != nil {
		t.Errorf("wrote %v, error %v; want the SERVFAIL of who replied", rec.Msg, err)
	}
}

func TestWhileNobodyIsUpFailfastWaitsForNoFlight(t *testing.T) {
	bubble(t, "deadline 10s\nfailfast_all_unhealthy_upstreams", func(t *testing.T, fw *Forwarder, a, b *model) {
		for _, m := range []*model{a, b} {
			m.set(func(m *model) { m.deaf = true })
		}
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() {
			if _, took, _ := askWithin(t, fw, time.Minute); took < 6*time.Second {
				t.Errorf("in flight since before: over after %v", took)
			}
		})
		time.Sleep(5 * time.Second)
		if n := countState(fw, "ejected"); n != 2 {
			t.Fatalf("%d upstreams are ejected, want both", n)
		}
		wg.Go(func() {
			if reply, took, _ := askWithin(t, fw, time.Minute); addressIn(reply) == "" || took < time.Second {
				t.Errorf("the canary: %q after %v, want who comes back after 1s", addressIn(reply), took)
			}
		})
		time.Sleep(ms)
		for range 3 {
			if reply, took, err := askWithin(t, fw, time.Minute); reply != nil || err != nil || took != 0 {
				t.Errorf("behind the canary: wrote %v, error %v after %v; want nothing at once", reply, err, took)
			}
		}
		time.Sleep(999 * ms)
		for _, m := range []*model{a, b} {
			m.set(func(m *model) { m.deaf = false })
		}
		wg.Wait()
		idle(t, fw)
	})
}

func TestWhereEveryUpstreamIsFullIdenticalQueriesAreRefused(t *testing.T) {
	bubble(t, "hedge off\nmax_fails 0\nread_timeout 20s", func(t *testing.T, fw *Forwarder, a, b *model) {
		for _, m := range []*model{a, b} {
			m.set(func(m *model) { m.silent = true })
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 2 * 1024 {
			wg.Go(func() {
				fw.ServeDNS(ctx, &test.ResponseWriter{}, question(fmt.Sprintf("n%d.example.org.", i), dns.TypeA))
			})
		}
		time.Sleep(ms)
		for range 10 {
			wg.Go(func() {
				if reply, took, err := askWithin(t, fw, time.Minute); reply != nil || !errors.Is(err, errFull) || took != 0 {
					t.Errorf("wrote %v, error %v after %v; want REFUSED at once", reply, err, took)
				}
			})
		}
		time.Sleep(ms)
		cancel()
		wg.Wait()
		idle(t, fw)
	})
}

func TestManyClientsOfFewNames(t *testing.T) {
	up := dnsfake.New(t, dnsfake.After(time.Millisecond, dnsfake.Address("192.0.2.1")))
	f := start(t, "healthforward . %s", up.Addr())
	waitFor(t, "it is up", func() bool { return countState(f, "up") == 1 })
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for i := range 100 {
				m := question(fmt.Sprintf("n%d.example.org.", rand.IntN(3)), dns.TypeA)
				if rand.IntN(2) == 0 {
					m.SetEdns0(1232, false)
				}
				ctx, cancel := context.WithCancel(t.Context())
				if i%4 == 0 {
					time.AfterFunc(time.Duration(rand.IntN(2000))*time.Microsecond, cancel)
				}
				rec := dnstest.NewRecorder(&test.ResponseWriter{})
				_, err := f.ServeDNS(ctx, rec, m)
				cancel()
				if rec.Msg == nil && i%4 == 0 && errors.Is(err, context.Canceled) {
					continue
				}
				if addressIn(rec.Msg) != "192.0.2.1" || rec.Msg.Id != m.Id || rec.Msg.Question[0] != m.Question[0] || (rec.Msg.IsEdns0() != nil) && m.IsEdns0() == nil {
					t.Errorf("reply %v to %v, error %v", rec.Msg, m, err)
				}
				if rec.Msg != nil { // it is ours alone: the race detector looks
					rec.Msg.Answer[0].Header().Ttl++
				}
			}
		})
	}
	wg.Wait()
	f.attempts.Wait()
	idle(t, f)
	if n := len(up.Seen()); n > 64*100/4 {
		t.Errorf("the upstream was asked %d times", n)
	} else {
		t.Logf("%d queries upstream for 6400", n)
	}
}
