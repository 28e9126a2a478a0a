package healthforward

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"steadfast.internal/plugin/healthforward/internal/transport"

	"github.com/miekg/dns"
)

// Upstreams of the tests of tiers.
const (
	primary = "10.0.0.1"
	second  = "10.0.0.2"
	spare   = "192.0.2.1"
	third   = "198.51.100.1"
)

// view is a model that says something of its own to some names.
type view struct {
	*model
	names map[string]said
	asked map[string]int // how often each name was

	cutOff time.Time // until when there was no route
}

// said is what a view says to a name.
type said struct {
	rcode int // NOERROR is NODATA, but for knows
	knows bool
	after time.Duration
	never bool
}

// Exchange implements transport.Exchanger.
func (v *view) Exchange(ctx context.Context, q transport.Query) (*dns.Msg, error) {
	v.mu.Lock()
	v.asked[q.Question.Name]++
	s, special := v.names[q.Question.Name]
	if special = special && !v.deaf && !v.silent && !v.refuses && v.err == nil; special {
		v.queries = append(v.queries, time.Now())
	}
	v.mu.Unlock()
	if !special {
		return v.model.Exchange(ctx, q)
	}
	timer := time.NewTimer(s.after)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s.never {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	reply := new(dns.Msg).SetQuestion(q.Question.Name, q.Question.Qtype)
	reply.Response, reply.Id, reply.Rcode = true, q.ID, s.rcode
	if s.knows {
		reply.Answer = []dns.RR{record(q.Question.Name + " 3600 IN A " + v.addr)}
	} else if s.rcode == dns.RcodeSuccess || s.rcode == dns.RcodeNameError {
		reply.Ns = []dns.RR{record("org. 3600 IN SOA a.example. b.example. 1 7200 900 1209600 600")}
	}
	return reply, nil
}

func record(s string) dns.RR {
	rr, err := dns.NewRR(s)
	if err != nil {
		panic(err)
	}
	return rr
}

// says makes the view say that to a name.
func (v *view) says(name string, s said) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.names[name] = s
}

func (v *view) alive(lives bool) { v.set(func(m *model) { m.deaf = !lives }) }

// tiered runs f in a synctest bubble with a stanza behind which there are views, all
// but the dead ones up.
func tiered(t *testing.T, stanza string, dead []string, f func(t *testing.T, fw *Forwarder, up map[string]*view)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		up := make(map[string]*view)
		r := newRegistry(func(_, addr string, _ transport.Options) (transport.Exchanger, error) {
			mu.Lock()
			defer mu.Unlock()
			host := addr[:len(addr)-len(":53")]
			if up[host] == nil {
				up[host] = &view{
					model: &model{addr: host, rtt: 2 * ms, deaf: slices.Contains(dead, host)},
					names: make(map[string]said), asked: make(map[string]int),
				}
			}
			return up[host], nil
		})
		r.outside.follow = polled
		fw := startAll(t, r, stanza)[0]
		if dead == nil {
			time.Sleep(10 * ms) // all answer their first probes
		}
		f(t, fw, up)
	})
}

const oneEach = "healthforward . " + primary + " {\n backup " + spare + "\n}"

// rcodeOf asks for a name and returns the rcode, -1 for no answer, and how long it took.
func rcodeOf(t *testing.T, fw *Forwarder, name string) (int, time.Duration) {
	t.Helper()
	began := time.Now()
	reply, _, _ := ask(t, fw, question(name, dns.TypeA))
	if reply == nil {
		return -1, time.Since(began)
	}
	return reply.Rcode, time.Since(began)
}

// lively runs f while other names are asked, and answered, all the time.
func lively(t *testing.T, fw *Forwarder, f func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			if addr, took := resolve(t, fw, fmt.Sprintf("other%d.example%d.org.", i, i%7)); addr != primary || took != 2*ms {
				t.Errorf("another name: %q in %v", addr, took)
			}
			time.Sleep(3 * ms)
		}
	})
	time.Sleep(time.Second) // so that the hedge delay is learned
	f()
	cancel()
	wg.Wait()
}
