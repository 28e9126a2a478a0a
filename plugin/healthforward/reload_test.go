package healthforward

import (
	"fmt"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"steadfast.internal/plugin/healthforward/internal/pool"
	"steadfast.internal/plugin/healthforward/internal/transport"
	"steadfast.internal/plugin/internal/dnsfake"

	"github.com/miekg/dns"
)

// reload replaces the generation of a stanza by one of these stanzas, as caddy does.
func (w *world) reload(t *testing.T, old *Forwarder, stanzas string, between func()) *Forwarder {
	t.Helper()
	old.generation.mark()
	next := live(t, load(t, w.registry, stanzas))
	if between != nil {
		between()
	}
	old.generation.shutdown()
	return next.forwarders[0]
}

// TestWhatIsKnownSurvivesAReload: who is ejected and held, what was learned, and what an
// operator wants; also where the thresholds, and so the upstreams, are others then.
func TestWhatIsKnownSurvivesAReload(t *testing.T) {
	for name, options := range map[string]string{"the same": "", "with other thresholds": "{\n fall 3\n}", "with another policy": "{\n policy round_robin\n}"} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.write(hostFile, "", "192.0.2.1", "192.0.2.2", "192.0.2.3")
				w.at("192.0.2.2").rtt = 80 * ms
				w.at("192.0.2.2").probeRTT = 2 * ms
				f := held(t, w, hostFile) // 192.0.2.1, for 5 s from within the last 2
				if _, err := w.registry.steer("somebody", "192.0.2.3:53", pool.Drain); err != nil {
					t.Fatal(err)
				}
				want := patience(f)
				f = w.reload(t, f, "healthforward . "+hostFile+" "+options, nil)
				if got := patience(f); got != want || want == hedgeCold {
					t.Errorf("patience %v, want what was learned: %v", got, want)
				}
				time.Sleep(time.Second)
				if got := stateOf(f, "192.0.2.1"); got != "ejected" {
					t.Errorf("the one that is held is %s", got)
				}
				began := time.Now()
				for i := range 20 {
					if addr, _ := resolve(t, f, distinct(i)); addr != "192.0.2.2" {
						t.Errorf("query %d: answered by %q, want by who is neither held nor drained", i, addr)
					}
				}
				if n := w.at("192.0.2.3").since(began); n != 0 {
					t.Errorf("the drained one was asked %d times", n)
				}
				time.Sleep(5 * time.Second)
				if got := stateOf(f, "192.0.2.1"); got == "ejected" {
					t.Error("the hold has no end")
				}
			})
		})
	}
}

// patience returns how long a query waits on the first upstream that it would ask.
func patience(f *Forwarder) time.Duration {
	g := f.groupFor(protoUDP)
	picked := g.Pick(time.Now(), pool.NewQuery("example.org."), nil)
	ticket, _ := f.registry.pool.Start(time.Now(), picked[0])
	f.registry.pool.End(ticket)
	return ticket.Patience
}

func TestSourcesSurviveAReload(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		const tos = hostFile + " dns.example.org"
		w.write(hostFile, "", "192.0.2.1")
		w.knows("dns.example.org", known{addrs: "192.0.2.2", ttl: time.Hour})
		f := w.start(t, "healthforward . "+tos)
		w.put(hostFile, content{})
		w.knows("dns.example.org", known{err: errNoSuchHost})
		time.Sleep(time.Second)
		began := time.Now()
		f = w.reload(t, f, "healthforward . "+tos, nil)
		if got := ups(f); got != "192.0.2.1 192.0.2.2" || time.Since(began) != 0 || w.lookedUp() != 1 {
			t.Errorf("the upstreams are %s after %v and %d look-ups, want the last good ones at once", got, time.Since(began), w.lookedUp())
		}
		// Another resolver may know another address: that is another source, without a past.
		f = w.reload(t, f, "healthforward . "+tos+" {\n resolver 192.0.2.53\n}", nil)
		if got := ups(f); got != "192.0.2.1" || len(w.registry.sources) != 2 {
			t.Errorf("the upstreams are %s, of %d sources", got, len(w.registry.sources))
		}
	})
}

// TestAChangeWhileReloadingIsNotLost, whatever moment it comes in.
func TestAChangeWhileReloadingIsNotLost(t *testing.T) {
	for at := -600 * ms; at <= 600*ms; at += 100 * ms {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.write(hostFile, "", "192.0.2.1")
				w.knows("slow.example.org", known{addrs: "192.0.2.2", ttl: time.Hour, after: time.Second})
				f := w.start(t, "healthforward . "+hostFile)
				time.AfterFunc(time.Second+at, func() { w.write(hostFile, "", "192.0.2.3") })
				time.Sleep(time.Second)
				// The start takes a second because of the name.
				f = w.reload(t, f, "healthforward . "+hostFile+" slow.example.org", func() { time.Sleep(100 * ms) })
				time.Sleep(time.Second)
				if got := ups(f); got != "192.0.2.3 192.0.2.2" {
					t.Errorf("the upstreams are %s", got)
				}
			})
		})
	}
}

// TestAGenerationThatIsTakenBackFollowsItsSources again, from where they were.
func TestAGenerationThatIsTakenBackFollowsItsSources(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.knows("dns.example.org", known{addrs: "192.0.2.1", ttl: 10 * time.Second})
		old := w.start(t, "healthforward . dns.example.org")
		old.generation.mark()
		f := live(t, load(t, w.registry, "healthforward . dns.example.org")).forwarders[0]
		old.generation.keep() // another plugin's shutdown failed: f serves all the same
		w.registry.mu.Lock()  // and now it is the old one that goes
		w.registry.release(old.generation)
		w.registry.mu.Unlock()
		w.knows("dns.example.org", known{err: errNoSuchHost})
		if addr, _ := resolve(t, f, "example.org."); addr != "192.0.2.1" {
			t.Errorf("answered by %q, want by who was known", addr)
		}
		w.knows("dns.example.org", known{addrs: "192.0.2.2", ttl: 10 * time.Second})
		time.Sleep(10 * time.Second)
		if got := ups(f); got != "192.0.2.2" {
			t.Errorf("the upstreams are %s", got)
		}
	})
}

// TestAThousandReloadsFollowNothingTwice: with real files and sockets.
func TestAThousandReloadsFollowNothingTwice(t *testing.T) {
	up := dnsfake.New(t, dnsfake.Address("192.0.2.1"))
	resolver := dnsfake.New(t, families(dnsfake.Address("127.0.0.96"), dnsfake.Answer()))
	r := newRegistry(transport.New)
	stanza := fmt.Sprintf("healthforward . %s %s dns.example.org {\n resolver %s\n policy sequential\n}", up.Addr(), filepath.Join(t.TempDir(), "resolv.conf"), resolver.Addr())
	g := live(t, load(t, r, stanza))
	early := 0
	for i := range 1000 {
		if i == 50 {
			early = runtime.NumGoroutine()
		}
		g.mark()
		next := load(t, r, stanza)
		if err := next.acquire(); err != nil {
			t.Fatal(err)
		}
		if i%10 == 0 { // in vain
			g.keep()
			continue
		}
		g.shutdown()
		g = next
		if i%100 == 0 {
			if reply, _, _ := ask(t, g.forwarders[0], question("example.org.", dns.TypeA)); addressIn(reply) != "192.0.2.1" {
				t.Fatalf("reload %d: reply %v", i, reply)
			}
		}
	}
	if late := runtime.NumGoroutine(); late > early+20 {
		t.Errorf("%d goroutines after 50 reloads, %d after 1000", early, late)
	}
	r.mu.Lock()
	for _, s := range r.sources {
		if s.refs != 1 {
			t.Errorf("source %s has %d references, want that of the last generation", s.name(), s.refs)
		}
	}
	if len(r.sources) != 2 || len(r.held) != 1 {
		t.Errorf("%d sources held by %d generations", len(r.sources), len(r.held))
	}
	r.mu.Unlock()
	if n := resolver.Count("dns.example.org."); n > 100 {
		t.Errorf("the name was looked up %d times", n)
	}
	replace(g)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.sources)+len(r.checks)+len(r.leaving)+len(r.held)+len(r.upstreams) != 0 {
		t.Errorf("left: %d sources, %d checks, %d sets, %d upstreams", len(r.sources), len(r.checks), len(r.leaving), len(r.upstreams))
	}
}
