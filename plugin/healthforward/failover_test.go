package healthforward

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"steadfast.internal/plugin/healthforward/internal/pool"
	"steadfast.internal/plugin/healthforward/internal/transport"

	"github.com/miekg/dns"
)

// bubble runs f in a synctest bubble with two models behind a stanza with these
// options, both up.
func bubble(t *testing.T, options string, f func(t *testing.T, fw *Forwarder, a, b *model)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		fw, models := modelled(t, 2, options)
		time.Sleep(10 * ms) // both answer their first probes
		f(t, fw, models[0], models[1])
	})
}

// modelled starts a stanza with these options in front of n models, 192.0.2.1 and on.
func modelled(t *testing.T, n int, options string) (*Forwarder, []*model) {
	var models []*model
	tos := ""
	for i := range n {
		addr := fmt.Sprintf("192.0.2.%d", i+1)
		models = append(models, &model{addr: addr, rtt: 2 * ms})
		tos += " " + addr
	}
	r := newRegistry(func(_, addr string, _ transport.Options) (transport.Exchanger, error) {
		i := slices.IndexFunc(models, func(m *model) bool { return m.addr+":53" == addr })
		return models[i], nil
	})
	return startAll(t, r, "healthforward ."+tos+" {\n"+options+"\n}")[0], models
}

// resolve asks for a name and returns the address, and how long it took.
func resolve(t *testing.T, fw *Forwarder, name string) (string, time.Duration) {
	t.Helper()
	began := time.Now()
	reply, _, _ := ask(t, fw, question(name, dns.TypeA))
	return addressIn(reply), time.Since(began)
}

// staggered asks for n names, one each period whether those before are answered or
// not, and tells of each answer when it comes.
func staggered(t *testing.T, fw *Forwarder, n int, period time.Duration, answered func(i int, addr string)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			time.Sleep(time.Duration(i) * period)
			addr, _ := resolve(t, fw, fmt.Sprintf("n%d.example.org.", i))
			answered(i, addr)
		})
	}
	wg.Wait()
}

func TestOnlyTheFirstQueryMeetsADeadUpstream(t *testing.T) {
	bubble(t, "policy sequential", func(t *testing.T, fw *Forwarder, a, _ *model) {
		a.set(func(m *model) { m.deaf = true })
		if addr, took := resolve(t, fw, "first.example.org."); addr != "192.0.2.2" || took != 252*ms {
			t.Errorf("first query: %s in %v, want the other upstream's answer in 252ms", addr, took)
		}
		died := time.Now()
		for i := range 100 {
			if addr, took := resolve(t, fw, fmt.Sprintf("n%d.example.org.", i)); addr != "192.0.2.2" || took != 2*ms {
				t.Errorf("query %d: %s in %v, want 2ms", i, addr, took)
			}
		}
		if n := a.since(died); n != 0 {
			t.Errorf("%d later queries went to the dead upstream", n)
		}
	})
}

func TestAClosedPortCostsNoTimeAtAll(t *testing.T) {
	bubble(t, "policy sequential", func(t *testing.T, fw *Forwarder, a, _ *model) {
		a.set(func(m *model) { m.refuses = true })
		for i := range 10 {
			if addr, took := resolve(t, fw, fmt.Sprintf("n%d.example.org.", i)); addr != "192.0.2.2" || took != 2*ms {
				t.Errorf("query %d: %s in %v, want 2ms", i, addr, took)
			}
		}
	})
}

func TestWhatIsInFlightIsSentElsewhereWhenItsUpstreamIsEjected(t *testing.T) {
	bubble(t, "hedge off", func(t *testing.T, fw *Forwarder, a, b *model) {
		a.set(func(m *model) { m.deaf = true })
		began := time.Now()
		staggered(t, fw, 50, 5*ms, func(i int, addr string) {
			// Suspect 250 ms after it was first asked, which chance decides, two probes of
			// 110 ms each, then the other's 2 ms.
			if done := time.Since(began); addr != "192.0.2.2" || done > 500*ms {
				t.Errorf("query %d: %q at %v, want an answer by 500ms", i, addr, done)
			}
		})
		if n := b.since(began); n != 50 {
			t.Errorf("%d queries re-sent for 50 in flight", n)
		}
	})
}

func TestSuspicionHedgesWhatIsInFlight(t *testing.T) {
	bubble(t, "policy sequential", func(t *testing.T, fw *Forwarder, a, _ *model) {
		a.set(func(m *model) { m.deaf = true })
		began := time.Now()
		staggered(t, fw, 20, 10*ms, func(i int, addr string) {
			if done := time.Since(began); addr != "192.0.2.2" || done != 252*ms {
				t.Errorf("query %d: %q at %v, want all at 252ms, with the first", i, addr, done)
			}
		})
	})
}

func TestAGreyUpstreamIsEjectedThoughItsProbesPass(t *testing.T) {
	bubble(t, "policy round_robin", func(t *testing.T, fw *Forwarder, a, b *model) {
		a.set(func(m *model) { m.silent = true })
		for i := range 200 {
			addr, took := resolve(t, fw, fmt.Sprintf("n%d.example.org.", i))
			if addr != "192.0.2.2" || took > 252*ms {
				t.Fatalf("query %d: %q in %v", i, addr, took)
			}
			time.Sleep(50 * ms)
			if countState(fw, "ejected") == 1 {
				return
			}
		}
		t.Error("never ejected")
	})
}

func TestAnUpstreamIsUsedAgainWithinTwoSecondsOfItsReturn(t *testing.T) {
	for _, outage := range []time.Duration{2 * time.Second, 7 * time.Second, 25 * time.Second} {
		bubble(t, "policy sequential", func(t *testing.T, fw *Forwarder, a, _ *model) {
			a.set(func(m *model) { m.deaf = true })
			resolve(t, fw, "first.example.org.")
			time.Sleep(outage)
			a.set(func(m *model) { m.deaf = false })
			back := time.Now()
			for {
				if addr, _ := resolve(t, fw, "again.example.org."); addr == "192.0.2.1" {
					break
				}
				time.Sleep(10 * ms)
			}
			if took := time.Since(back); took > 2*time.Second {
				t.Errorf("outage of %v: used again after %v", outage, took)
			}
		})
	}
}

func TestAllDownThenOneBack(t *testing.T) {
	bubble(t, "policy sequential", func(t *testing.T, fw *Forwarder, a, b *model) {
		for _, m := range []*model{a, b} {
			m.set(func(m *model) { m.deaf = true })
		}
		if _, took := resolve(t, fw, "down.example.org."); took != queryDeadline {
			t.Errorf("nobody answers: gave up after %v, want %v", took, queryDeadline)
		}
		time.Sleep(10 * time.Second)
		parked := make(chan time.Time, 1)
		go func() {
			if addr, _ := resolve(t, fw, "parked.example.org."); addr != "192.0.2.2" {
				t.Errorf("what waits is answered by %q", addr)
			}
			parked <- time.Now()
		}()
		time.Sleep(100 * ms)
		b.set(func(m *model) { m.deaf = false })
		back := time.Now()
		if addr, took := resolve(t, fw, "first.example.org."); addr != "192.0.2.2" || took > 60*ms {
			t.Errorf("first query after the return: %q in %v, want an answer within the hedge delay of 50ms", addr, took)
		}
		if took := (<-parked).Sub(back); took > 60*ms {
			t.Errorf("what waited is answered %v after the return", took)
		}
	})
}

func TestAServerThatIsFullIsAskedUntilThereIsNoTime(t *testing.T) {
	bubble(t, "max_fails 0", func(t *testing.T, fw *Forwarder, a, b *model) {
		for _, m := range []*model{a, b} {
			m.set(func(m *model) { m.full = true })
		}
		time.AfterFunc(2500*ms, func() { a.set(func(m *model) { m.full = false }) })
		if addr, took := resolve(t, fw, "example.org."); addr != "192.0.2.1" || took > queryDeadline {
			t.Errorf("answered by %q in %v, want once there is room", addr, took)
		}
	})
}

func TestWhoAsksToBeLeftAloneIs(t *testing.T) {
	bubble(t, "policy sequential", func(t *testing.T, fw *Forwarder, a, b *model) {
		a.set(func(m *model) { m.busy = 30 * time.Second })
		began := time.Now()
		for i := range 20 {
			if addr, took := resolve(t, fw, fmt.Sprintf("n%d.example.org.", i)); addr != "192.0.2.2" || took != 2*ms {
				t.Errorf("query %d: %q in %v", i, addr, took)
			}
			time.Sleep(time.Second)
		}
		if n := a.since(began); n != 1 {
			t.Errorf("it was asked %d times, want once", n)
		}
		if n := countState(fw, "up"); n != 2 {
			t.Errorf("%d upstreams are up, want both: it is only busy", n)
		}
		b.set(func(m *model) { m.refuses = true })
		a.set(func(m *model) { m.busy = 0 })
		if addr, _ := resolve(t, fw, "last.example.org."); addr != "192.0.2.1" {
			t.Errorf("answered by %q, want by who is left", addr)
		}
	})
}

func TestASlowNameEjectsNobody(t *testing.T) {
	bubble(t, "policy sequential", func(t *testing.T, fw *Forwarder, a, b *model) {
		slow := func(m *model) { m.rtt = 900 * ms }
		fast := func(m *model) { m.rtt = 2 * ms }
		for i := range 20 {
			a.set(slow)
			b.set(slow)
			var wg sync.WaitGroup
			wg.Go(func() {
				if addr, _ := resolve(t, fw, "slow.example.org."); addr == "" {
					t.Error("a slow name is not answered")
				}
			})
			time.Sleep(ms)
			a.set(fast)
			b.set(fast)
			for j := range 100 {
				if addr, took := resolve(t, fw, fmt.Sprintf("n%d-%d.example.org.", i, j)); addr != "192.0.2.1" || took != 2*ms {
					t.Errorf("another name: %q in %v", addr, took)
				}
				time.Sleep(8 * ms)
			}
			wg.Wait()
		}
		if n := countState(fw, "up"); n != 2 {
			t.Errorf("%d upstreams are up, want both", n)
		}
	})
}

func TestLoadStaysNearOneWhileEverybodyIsSlow(t *testing.T) {
	bubble(t, "policy random", func(t *testing.T, fw *Forwarder, a, b *model) {
		for _, m := range []*model{a, b} {
			m.set(func(m *model) { m.rtt = 700 * ms })
		}
		began := time.Now()
		const queries = 4000
		var wg sync.WaitGroup
		for i := range queries {
			wg.Go(func() {
				if addr, _ := resolve(t, fw, fmt.Sprintf("n%d.example.org.", i)); addr == "" {
					t.Error("no answer")
				}
			})
			time.Sleep(2 * ms)
		}
		wg.Wait()
		if load := float64(a.since(began)+b.since(began)) / queries; load > 1.25 {
			t.Errorf("load on the upstreams = %.2f×, want at most 1.25×", load)
		} else {
			t.Logf("load on the upstreams: %.3f×", load)
		}
	})
}

func TestAnEjectionFlushesThePool(t *testing.T) {
	var mu sync.Mutex
	opened := make(map[string]int)
	synctest.Test(t, func(t *testing.T) {
		a := &model{addr: "192.0.2.1", rtt: 2 * ms}
		r := newRegistry(func(proto, _ string, opts transport.Options) (transport.Exchanger, error) {
			mu.Lock()
			defer mu.Unlock()
			if !opts.Fresh {
				opened[proto]++
			}
			return a, nil
		})
		fw := startAll(t, r, "healthforward . 192.0.2.1")[0]
		time.Sleep(10 * ms)
		a.set(func(m *model) { m.deaf = true })
		resolve(t, fw, "first.example.org.")
		if countState(fw, "ejected") != 1 {
			t.Error("it is not ejected")
		}
	})
	if opened["udp"] != 2 || opened["tcp"] != 1 {
		t.Errorf("ways opened: %v, want UDP's twice, once after the ejection", opened)
	}
}

func TestProbesOfADeadUpstreamAreFew(t *testing.T) {
	bubble(t, "", func(t *testing.T, fw *Forwarder, a, _ *model) {
		a.set(func(m *model) { m.deaf = true })
		resolve(t, fw, "first.example.org.")
		transitions := make(map[pool.State]int)
		for range 120 {
			time.Sleep(time.Second)
			for id := range (*fw.groups.Load())[protoUDP].upstreams {
				transitions[fw.registry.pool.State(id)]++
			}
		}
		if transitions[pool.Suspect] != 0 {
			t.Errorf("states over two minutes: %v, want up and ejected only", transitions)
		}
	})
}
