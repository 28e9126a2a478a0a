package healthforward

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// limited returns what a model answers that takes so many queries a second.
func limited(perSecond float64) func(string) (int, time.Duration) {
	var mu sync.Mutex
	tokens, last := perSecond/100, time.Now()
	return func(string) (int, time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		now := time.Now()
		tokens = min(tokens+now.Sub(last).Seconds()*perSecond, perSecond/100)
		last = now
		if tokens < 1 {
			return -1, 0
		}
		tokens--
		return dns.RcodeSuccess, 2 * ms
	}
}

// TestAResolverThatLimitsItsRateIsUsedToTheFull: what it drops shows nothing of its
// health, and no packet more makes it answer more.
func TestAResolverThatLimitsItsRateIsUsedToTheFull(t *testing.T) {
	const limit, offered, seconds = 1000, 1500, 10
	for name, upstreams := range map[string]int{"one address": 1, "two addresses, one limit": 2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fw, models := modelled(t, upstreams, "")
				time.Sleep(10 * ms)
				answer := limited(limit)
				for _, m := range models {
					m.set(func(m *model) { m.answers = answer })
				}
				p := &play{fw: fw, period: time.Second / offered}
				p.ask(t, 0, seconds*time.Second)
				packets := 0
				for _, m := range models {
					packets += m.since(time.Time{})
				}
				if causes := ejections(fw); len(causes) > 0 {
					t.Errorf("ejected: %v", causes)
				}
				if answered := len(p.took) - p.lost; answered < limit*seconds*95/100 {
					t.Errorf("%d answered, of %d that it would have", answered, limit*seconds)
				}
				if load := float64(packets) / float64(len(p.took)); load > 1.25 {
					t.Errorf("%.2f packets for each query", load)
				}
			})
		})
	}
}
