package healthforward

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// play is a steady load on a stanza in a bubble, for a time, and what became of it.
type play struct {
	fw     *Forwarder
	period time.Duration
	name   func(i int) string

	mu     sync.Mutex
	asked  []time.Time
	took   []time.Duration
	lost   int // nobody answered, or with a failing rcode
	wrong  int // an answer that right says is none
	right  func(name string, m *dns.Msg) bool
	during sync.WaitGroup
}

// distinct are names that are all new, in fifty domains.
func distinct(i int) string { return fmt.Sprintf("n%d.d%d.example.", i, i%50) }

// ask plays the load for so long, and waits until it is all answered.
func (p *play) ask(t *testing.T, first int, lasts time.Duration) {
	t.Helper()
	for i := range int(lasts / p.period) {
		name := distinct(first + i)
		if p.name != nil {
			name = p.name(first + i)
		}
		p.during.Go(func() {
			began := time.Now()
			reply, _, _ := ask(t, p.fw, question(name, dns.TypeA))
			p.mu.Lock()
			defer p.mu.Unlock()
			p.asked, p.took = append(p.asked, began), append(p.took, time.Since(began))
			switch {
			case reply == nil || reply.Rcode == dns.RcodeServerFailure || reply.Rcode == dns.RcodeRefused:
				p.lost++
			case p.right != nil && !p.right(name, reply):
				p.wrong++
			}
		})
		time.Sleep(p.period)
	}
	p.during.Wait()
}

// over returns how many took longer.
func (p *play) over(limit time.Duration) int {
	n := 0
	for _, took := range p.took {
		if took > limit {
			n++
		}
	}
	return n
}

// TestOneBadUpstreamOfTwo plays the faults that one of two upstreams can have: at 500
// queries a second, with what nobody has set, after a warm-up. Nothing is lost, no
// answer takes 100 ms, and from a second after the fault nobody asks the bad one.
func TestOneBadUpstreamOfTwo(t *testing.T) {
	for name, tc := range map[string]struct {
		fault func(m *model)
		load  float64 // packets for each query, at most
	}{
		"it falls silent":    {func(m *model) { m.deaf = true }, 1.05},
		"its port is closed": {func(m *model) { m.refuses = true }, 1.05},
		"it is slow":         {func(m *model) { m.rtt = 800 * ms }, 1.05},
		"it answers its probes and drops the rest":               {func(m *model) { m.silent = true }, 1.05},
		"it answers its probes with SERVFAIL and drops the rest": {func(m *model) { m.silent, m.probeRcode = true, dns.RcodeServerFailure }, 1.05},
		"it answers SERVFAIL":                                    {func(m *model) { m.rcode = dns.RcodeServerFailure }, 1.05},
		"it refuses":                                             {func(m *model) { m.rcode = dns.RcodeRefused }, 1.05},
		"it is slow but for its probes":                          {func(m *model) { m.rtt, m.probeRTT = 800*ms, 2*ms }, 1.05},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, "", func(t *testing.T, fw *Forwarder, a, b *model) {
				p := &play{fw: fw, period: 2 * ms}
				p.ask(t, 0, 2*time.Second)
				a.set(tc.fault)
				fault := time.Now()
				p.ask(t, 1000, 16*time.Second)
				if p.lost > 0 || p.over(100*ms) > 0 {
					t.Errorf("%d lost, %d over 100ms, the slowest %v", p.lost, p.over(100*ms), slices.Max(p.took))
				}
				copies := 16 // of queries, to see whether it is well again
				if n := a.since(fault.Add(time.Second)); n > copies {
					t.Errorf("asked %d times from a second after the fault", n)
				}
				if load := float64(a.since(fault)+b.since(fault)) / 8000; load > tc.load {
					t.Errorf("%.3f packets for each query, want at most %v", load, tc.load)
				}
			})
		})
	}
}

func TestAnOutageEndsWhenItEnds(t *testing.T) {
	for _, outage := range []time.Duration{2 * time.Second, 7 * time.Second, 25 * time.Second, 10 * time.Minute} {
		t.Run(outage.String(), func(t *testing.T) {
			bubble(t, "", func(t *testing.T, fw *Forwarder, a, _ *model) {
				p := &play{fw: fw, period: 20 * ms}
				p.ask(t, 0, 2*time.Second)
				a.set(func(m *model) { m.deaf = true })
				p.ask(t, 100, outage)
				a.set(func(m *model) { m.deaf = false })
				back := time.Now()
				limit := 2 * time.Second
				if outage > 30*time.Second {
					limit = 5*time.Second*6/5 + 500*ms // the longest interval of probes, and a half
				}
				p.ask(t, 1000000, limit)
				if p.lost > 0 || p.over(100*ms) > 0 {
					t.Errorf("%d lost, %d over 100ms, the slowest %v", p.lost, p.over(100*ms), slices.Max(p.took))
				}
				if a.since(back) == 0 {
					t.Errorf("not asked again %v after its return", limit)
				}
			})
		})
	}
}

func TestAFlappingUpstreamCostsNothing(t *testing.T) {
	bubble(t, "", func(t *testing.T, fw *Forwarder, a, b *model) {
		p := &play{fw: fw, period: 2 * ms}
		p.ask(t, 0, 2*time.Second)
		began := time.Now()
		for i := range 8 {
			a.set(func(m *model) { m.deaf = i%2 == 0 })
			p.ask(t, 1000*(i+1), 2*time.Second)
		}
		if p.lost > 0 || p.over(100*ms) > 0 {
			t.Errorf("%d lost, %d over 100ms, the slowest %v", p.lost, p.over(100*ms), slices.Max(p.took))
		}
		if load := float64(a.since(began)+b.since(began)) / 8000; load > 1.05 {
			t.Errorf("%.3f packets for each query", load)
		}
	})
}

func TestAllDownAndOneBack(t *testing.T) {
	bubble(t, "", func(t *testing.T, fw *Forwarder, a, b *model) {
		p := &play{fw: fw, period: 2 * ms}
		p.ask(t, 0, 2*time.Second)
		for _, m := range []*model{a, b} {
			m.set(func(m *model) { m.deaf = true })
		}
		down := time.Now()
		go func() {
			time.Sleep(10 * time.Second)
			b.set(func(m *model) { m.deaf = false })
		}()
		back := down.Add(10 * time.Second)
		p.ask(t, 1000, 15*time.Second)
		var first time.Time
		answeredLate := 0
		for i, at := range p.asked {
			done := at.Add(p.took[i])
			if at.After(back) && (first.IsZero() || done.Before(first)) {
				first = done
			}
			if at.After(back.Add(100*ms)) && p.took[i] > 100*ms {
				answeredLate++
			}
			if p.took[i] > queryDeadline {
				t.Errorf("one waits %v", p.took[i])
			}
		}
		if took := first.Sub(back); took > 100*ms {
			t.Errorf("the first good answer %v after the return", took)
		}
		if answeredLate > 0 {
			t.Errorf("%d of those asked later are slow", answeredLate)
		}
		if load := float64(a.since(down)+b.since(down)) / 7500; load > 1.25 {
			t.Errorf("%.3f packets for each query", load)
		}
	})
}

func TestThreeOfFourAreDeadAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fw, models := modelled(t, 4, "policy sequential")
		for _, m := range models[:3] {
			m.set(func(m *model) { m.deaf = true })
		}
		if addr, took := resolve(t, fw, "first.example.org."); addr != "192.0.2.4" || took > 400*ms {
			t.Errorf("the first answer: %q in %v", addr, took)
		}
		p := &play{fw: fw, period: 10 * ms}
		p.ask(t, 0, 10*time.Second)
		if p.lost > 0 {
			t.Errorf("%d lost", p.lost)
		}
	})
}

// TestNamesAreNotServers: what is wrong with names is not held against upstreams, and
// does not double the load.
func TestNamesAreNotServers(t *testing.T) {
	dead := func(name string) (int, time.Duration) {
		if name == "dead.d7.example." {
			return -1, 0
		}
		return dns.RcodeSuccess, 2 * ms
	}
	slow := func(name string) (int, time.Duration) {
		var n, d int
		if fmt.Sscanf(name, "n%d.d%d.", &n, &d); n%10 == 3 {
			return dns.RcodeSuccess, time.Second
		}
		return dns.RcodeSuccess, 2 * ms
	}
	deadName := func(i int) string {
		if i%20 == 7 {
			return "dead.d7.example."
		}
		return distinct(i)
	}
	for name, tc := range map[string]struct {
		policy  string
		a, b    func(name string) (int, time.Duration)
		names   func(i int) string
		load    float64
		lost    int // at most
		over100 int // at most
	}{
		"one name is dead everywhere":                {"random", dead, dead, deadName, 1.1, 250, 250},
		"every tenth name is slow at its authority":  {"random", slow, slow, nil, 1.15, 0, 500},
		"one name is dead at one upstream":           {"random", dead, nil, deadName, 1.1, 0, 0},
		"one name is dead at the preferred upstream": {"sequential", dead, nil, deadName, 1.1, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, "policy "+tc.policy, func(t *testing.T, fw *Forwarder, a, b *model) {
				p := &play{fw: fw, period: 2 * ms}
				p.ask(t, 0, 2*time.Second)
				a.set(func(m *model) { m.answers = tc.a })
				b.set(func(m *model) { m.answers = tc.b })
				began := time.Now()
				p.name = tc.names
				p.ask(t, 1000, 10*time.Second)
				if causes := ejections(fw); len(causes) > 0 {
					t.Errorf("somebody is ejected: %v", causes)
				}
				if p.lost > tc.lost || p.over(450*ms) > max(tc.over100, tc.lost) || p.over(100*ms) > tc.over100 {
					t.Errorf("%d lost, %d over 100ms, %d over 450ms", p.lost, p.over(100*ms), p.over(450*ms))
				}
				if load := float64(a.since(began)+b.since(began)) / 5000; load > tc.load {
					t.Errorf("%.3f packets for each query, want at most %v", load, tc.load)
				}
			})
		})
	}
}

// ejections returns the causes for which upstreams of the stanza were ejected.
func ejections(fw *Forwarder) []string {
	var causes []string
	for _, u := range fw.groupFor(protoUDP).upstreams {
		for cause, counter := range u.metrics.wouldEject {
			causes = append(causes, slices.Repeat([]string{cause.String()}, int(testutil.ToFloat64(counter)))...)
		}
	}
	return causes
}
