package healthforward

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// lossy returns what a model answers behind a link that loses a share of the packets.
func lossy(seed uint64, share float64, answer func(name string) (int, time.Duration)) func(string) (int, time.Duration) {
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(seed, seed))
	return func(name string) (int, time.Duration) {
		mu.Lock()
		lost := random.Float64() < share
		mu.Unlock()
		if lost {
			return -1, 0
		}
		return answer(name)
	}
}

// TestAPublicResolverNeverDeniesWhatTheInternalKnows: an internal resolver that loses
// packets, and a public one behind it that denies all internal names.
func TestAPublicResolverNeverDeniesWhatTheInternalKnows(t *testing.T) {
	for _, loss := range []float64{0.05, 0.3} {
		t.Run(fmt.Sprint(loss), func(t *testing.T) {
			bubble(t, "policy sequential", func(t *testing.T, fw *Forwarder, internal, public *model) {
				knows := func(string) (int, time.Duration) { return dns.RcodeSuccess, 2 * ms }
				internal.set(func(m *model) { m.answers = lossy(1, loss, knows) })
				public.set(func(m *model) {
					m.answers = func(name string) (int, time.Duration) {
						if strings.HasSuffix(name, ".corp.example.") {
							return dns.RcodeNameError, 5 * ms
						}
						return dns.RcodeSuccess, 5 * ms
					}
				})
				p := &play{fw: fw, period: 2 * ms, right: func(_ string, m *dns.Msg) bool { return m.Rcode == dns.RcodeSuccess }}
				p.name = func(i int) string {
					if i%2 == 0 {
						return fmt.Sprintf("host%d.corp.example.", i)
					}
					return distinct(i)
				}
				p.ask(t, 0, 20*time.Second)
				if p.wrong > 0 || p.lost > 0 {
					t.Errorf("%d of 10,000 answers are wrong, %d lost; the slowest %v", p.wrong, p.lost, slices.Max(p.took))
				}
			})
		})
	}
}

// TestALongWayLosesPacketsAndEjectsNobody plays ten minutes each.
func TestALongWayLosesPacketsAndEjectsNobody(t *testing.T) {
	for _, rtt := range []time.Duration{80 * ms, 180 * ms} {
		for _, loss := range []float64{0.01, 0.05} {
			for _, period := range []time.Duration{100 * ms, 500 * ms} {
				t.Run(fmt.Sprintf("%v, %v lost, a query each %v", rtt, loss, period), func(t *testing.T) {
					bubble(t, "", func(t *testing.T, fw *Forwarder, a, b *model) {
						answer := func(string) (int, time.Duration) { return dns.RcodeSuccess, rtt }
						for i, m := range []*model{a, b} {
							m.set(func(m *model) {
								m.answers, m.probeRTT = lossy(uint64(i), loss, answer), rtt
								m.probeLoss, m.random = loss, rand.New(rand.NewPCG(uint64(i), 7))
							})
						}
						p := &play{fw: fw, period: period}
						p.ask(t, 0, 10*time.Minute)
						if causes := ejections(fw); len(causes) > 0 || p.lost > 0 {
							t.Errorf("ejected: %v; %d lost", causes, p.lost)
						}
					})
				})
			}
		}
	}
}

// TestWhatHedgesCostAndSave: next to nothing on a LAN; on a wide network, where some
// names take long, a little, for a third of the slow answers.
func TestWhatHedgesCostAndSave(t *testing.T) {
	for name, tc := range map[string]struct {
		answer func(random *rand.Rand) time.Duration
		load   float64
		third  bool // the 99th percentile is below a third of what it is without
	}{
		"a LAN": {func(*rand.Rand) time.Duration { return 2 * ms }, 1.02, false},
		"a wide network, nine names of ten are known": {func(random *rand.Rand) time.Duration {
			if random.Float64() < 0.9 {
				return 5 * ms
			}
			return time.Duration(50+random.IntN(950)) * ms
		}, 1.08, true},
	} {
		t.Run(name, func(t *testing.T) {
			p99 := func(options string) (p99 time.Duration, load float64) {
				bubble(t, options, func(t *testing.T, fw *Forwarder, a, b *model) {
					for i, m := range []*model{a, b} {
						random := rand.New(rand.NewPCG(uint64(i), 1))
						m.set(func(m *model) {
							m.answers = func(string) (int, time.Duration) { return dns.RcodeSuccess, tc.answer(random) }
						})
					}
					p := &play{fw: fw, period: 4 * ms}
					began := time.Now()
					p.ask(t, 0, 60*time.Second)
					slices.Sort(p.took)
					p99 = p.took[len(p.took)*99/100]
					load = float64(a.since(began)+b.since(began)) / float64(len(p.took))
					if causes := ejections(fw); len(causes) > 0 || p.lost > 0 {
						t.Errorf("ejected: %v; %d lost", causes, p.lost)
					}
				})
				return p99, load
			}
			with, load := p99("")
			without, _ := p99("hedge off")
			if load > tc.load || tc.third && with > without/3 {
				t.Errorf("p99 %v with hedges, %v without; %.3f packets for each query", with, without, load)
			}
		})
	}
}

// TestWhoCannotBeAskedHoldsUpNoDenial: a first upstream behind a VPN that is down, or
// that is not running, is no reason to wait for what it knows.
func TestWhoCannotBeAskedHoldsUpNoDenial(t *testing.T) {
	for name, tc := range map[string]struct {
		fault  func(m *model)
		within time.Duration
	}{
		"this host has no way there": {func(m *model) { m.err = syscall.ENETUNREACH }, 5 * ms},
		"its port is closed":         {func(m *model) { m.refuses = true }, 100*ms + 5*ms}, // until the next look at the verdict
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, "policy sequential", func(t *testing.T, fw *Forwarder, a, b *model) {
				a.set(tc.fault)
				b.set(func(m *model) { m.rcode = dns.RcodeNameError })
				for i := range 20 {
					began := time.Now()
					reply, _, _ := ask(t, fw, question(fmt.Sprintf("no%d.example.org.", i), dns.TypeA))
					if took := time.Since(began); reply == nil || reply.Rcode != dns.RcodeNameError || took > tc.within {
						t.Errorf("query %d: %v after %v, want a denial within %v", i, reply, took, tc.within)
					}
					time.Sleep(300 * ms)
				}
			})
		})
	}
}
