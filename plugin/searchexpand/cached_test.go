package searchexpand

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/cache"
	"github.com/coredns/coredns/plugin/metadata"

	"github.com/miekg/dns"
)

// resolver stands for forward: it takes 2 ms for each name, heeds its context
// before it asks, and tells whom it asked. It knows one name.
type resolver struct {
	knows string
	asked atomic.Int64
}

func (*resolver) Name() string { return "resolver" }

func (f *resolver) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	if err := ctx.Err(); err != nil {
		return dns.RcodeServerFailure, err
	}
	f.asked.Add(1)
	metadata.SetValueFunc(ctx, "forward/upstream", func() string { return "192.0.2.53" })
	<-time.After(2 * time.Millisecond)
	m := new(dns.Msg).SetReply(r)
	if r.Question[0].Name == f.knows {
		m.Answer = []dns.RR{&dns.A{
			Hdr: dns.RR_Header{Name: f.knows, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 300}, A: []byte{192, 0, 2, 1},
		}}
	} else {
		m.Rcode = dns.RcodeNameError
		m.Ns = []dns.RR{denial(nil, 300)}
	}
	return m.Rcode, w.WriteMsg(m)
}

// newCached returns the plugin with a list of 64 suffixes in front of cache and a
// resolver that knows db01 in the last one.
func newCached(r rates, parallel int) (*SearchExpand, *resolver) {
	c, below := newConfig(), &resolver{knows: "db01.d63.example."}
	c.entries, c.rates, c.pace.parallel, c.wildcard = entriesOf(longList(64)...), r, parallel, wildcardAllow
	s := newSearchExpand(c)
	cached := cache.New()
	cached.Next = below
	s.limit, s.budget, s.Next = &limit{max: 64}, newBudget(c.rates, &credit{}), plugin.Handler(cached)
	return s, below
}

func TestAListOf64WithTheHitInTheLast(t *testing.T) {
	const ms = time.Millisecond
	for parallel, want := range map[int]time.Duration{1: 128 * ms, 16: 8 * ms, 64: 2 * ms} {
		t.Run(fmt.Sprintf("parallel %d", parallel), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, below := newCached(newConfig().rates, parallel)
				a := asker{t, s}
				if m := a.check("db01.", 0, want); len(m.Answer) != 2 || below.asked.Load() != 64 {
					t.Errorf("answer %v after %d questions, want 64", m.Answer, below.asked.Load())
				}
				spent := s.budget.process.spent
				if m := a.check("db01.", 0, 0); len(m.Answer) != 2 || below.asked.Load() != 64 {
					t.Errorf("answer %v after %d questions, want no more than 64", m.Answer, below.asked.Load())
				}
				if full := time.Now().Add(-processBurst); s.budget.process.spent.After(spent) && s.budget.process.spent.After(full) {
					t.Error("what came from cache was paid for")
				}
			})
		})
	}
}

func TestWithoutBudgetACachedNameIsFoundAndNothingIsKeptOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, below := newCached(rates{64, 64}, 1)
		a := asker{t, s}
		a.check("db01.", 0, 128*time.Millisecond) // saves up no more than two seconds, and one for all
		a.check("db02.", dns.RcodeServerFailure, 18*time.Millisecond)
		if a.check("db01.", 0, 0); below.asked.Load() != 64+9 {
			t.Errorf("%d questions, want 64, and 9 earned meanwhile", below.asked.Load())
		}
		time.Sleep(2 * time.Second)
		a.check("db02.", dns.RcodeNameError, (64-9)*2*time.Millisecond) // no SERVFAIL for want of budget is in cache
	})
}

// BenchmarkListOf64 prints what a look-up costs whose name is under the last of 64
// suffixes, with a resolver that takes 2 ms.
func BenchmarkListOf64(b *testing.B) {
	for _, parallel := range []int{1, 16} {
		b.Run(fmt.Sprintf("asked/parallel%d", parallel), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				s, _ := newCached(rates{maxRate, maxRate}, parallel)
				b.StartTimer()
				benchQuery(b, s)
			}
		})
		b.Run(fmt.Sprintf("cached/parallel%d", parallel), func(b *testing.B) {
			s, _ := newCached(rates{maxRate, maxRate}, parallel)
			benchQuery(b, s)
			b.ReportAllocs()
			for b.Loop() {
				benchQuery(b, s)
			}
		})
	}
}

func benchQuery(b *testing.B, s *SearchExpand) {
	b.Helper()
	if m := serve(b, s, query("db01.", dns.TypeA)); len(m.Answer) != 2 {
		b.Fatalf("answer = %v, want the alias and the address", m.Answer)
	}
}
