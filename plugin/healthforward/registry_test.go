package healthforward

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"steadfast.internal/plugin/healthforward/internal/transport"
	"steadfast.internal/plugin/internal/dnsfake"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
)

// live acquires a generation and ends it with the test as a reload would.
func live(t *testing.T, g *generation) *generation {
	t.Helper()
	if err := g.acquire(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { replace(g) })
	return g
}

// replace does what caddy does to an instance whose replacement has started.
func replace(g *generation) {
	g.mark()
	g.shutdown()
}

func (r *registry) counts() (upstreams, generations int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.upstreams), len(r.generations)
}

func TestAReloadKeepsHealthAndSockets(t *testing.T) {
	a, b := dnsfake.New(t, dnsfake.Silence), dnsfake.New(t, dnsfake.Address("192.0.2.2"))
	a.Stop()
	r := newRegistry(transport.New)
	const stanza = "healthforward . %s %s {\n policy sequential\n}"
	before := live(t, load(t, r, stanza, a.Addr(), b.Addr()))
	f := before.forwarders[0]
	waitFor(t, "both are judged", func() bool { return countState(f, "ejected") == 1 && countState(f, "up") == 1 })
	old := (*f.groups.Load())[protoUDP].upstreams

	before.mark()
	after := live(t, load(t, r, stanza, a.Addr(), b.Addr()))
	before.shutdown()
	if n, gens := r.counts(); n != 4 || gens != 1 {
		t.Errorf("%d upstreams in %d generations, want 2 over 2 transports in 1", n, gens)
	}
	f = after.forwarders[0]
	if countState(f, "ejected") != 1 || countState(f, "up") != 1 {
		t.Error("the reload has forgotten who is up and who is ejected")
	}
	for id, u := range (*f.groups.Load())[protoUDP].upstreams {
		if old[id] != u {
			t.Errorf("upstream %s is a new one", u.addr)
		}
	}
}

func TestAReloadWithOtherThresholdsKeepsHealth(t *testing.T) {
	a, b := dnsfake.New(t, dnsfake.Silence), dnsfake.New(t, dnsfake.Address("192.0.2.2"))
	a.Stop()
	r := newRegistry(transport.New)
	before := live(t, load(t, r, "healthforward . %s %s", a.Addr(), b.Addr()))
	waitFor(t, "both are judged", func() bool {
		f := before.forwarders[0]
		return countState(f, "ejected") == 1 && countState(f, "up") == 1
	})
	before.mark()
	after := live(t, load(t, r, "healthforward . %s %s {\n fall 5\n}", a.Addr(), b.Addr()))
	if f := after.forwarders[0]; countState(f, "ejected") != 1 || countState(f, "up") != 1 {
		t.Error("the reload has forgotten who is up and who is ejected")
	}
	before.shutdown()
	if n, _ := r.counts(); n != 4 {
		t.Errorf("%d upstreams are left, want those of the new generation", n)
	}
}

func TestAReloadThatFailsLeavesTheOldOneWhole(t *testing.T) {
	up := dnsfake.New(t, dnsfake.Address("192.0.2.1"))
	r := newRegistry(transport.New)
	g := live(t, load(t, r, "healthforward . %s", up.Addr()))
	for i := range 200 {
		g.mark()
		failed := load(t, r, "healthforward . %s %s", up.Addr(), fmt.Sprintf("127.0.0.1:%d", 20000+i))
		if i%2 == 0 { // it came as far as its start; else only as far as its Corefile
			if err := failed.acquire(); err != nil {
				t.Fatal(err)
			}
		}
		g.keep()
		if n, gens := r.counts(); n != 2 || gens != 1 {
			t.Fatalf("reload %d: %d upstreams in %d generations, want 2 in 1", i, n, gens)
		}
		if reply, _, _ := ask(t, g.forwarders[0], question("example.org.", dns.TypeA)); addressIn(reply) != "192.0.2.1" {
			t.Fatalf("reload %d: reply %v", i, reply)
		}
	}
	g.shutdown()
	if n, _ := r.counts(); n != 2 {
		t.Error("a generation that is not marked was released")
	}
}

func TestManyReloadsLeaveNothingBehind(t *testing.T) {
	up := dnsfake.New(t, dnsfake.Address("192.0.2.1"))
	r := newRegistry(transport.New)
	g := live(t, load(t, r, "healthforward . %s", up.Addr()))
	for i := range 300 {
		g.mark()
		next := load(t, r, "healthforward . %s 127.0.0.1:%s", up.Addr(), fmt.Sprint(20000+i))
		if err := next.acquire(); err != nil {
			t.Fatal(err)
		}
		g.shutdown()
		g = next
		if reply, _, _ := ask(t, g.forwarders[0], question("example.org.", dns.TypeA)); addressIn(reply) != "192.0.2.1" {
			t.Fatalf("reload %d: reply %v", i, reply)
		}
	}
	if n, gens := r.counts(); n != 4 || gens != 1 {
		t.Errorf("%d upstreams in %d generations, want 4 in 1", n, gens)
	}
	replace(g)
	if n, gens := r.counts(); n != 0 || gens != 0 {
		t.Errorf("%d upstreams in %d generations, want none", n, gens)
	}
	if n := testutil.CollectAndCount(upstreamState); n != 0 {
		for _, m := range collect(upstreamState) {
			t.Logf("left: %s", m)
		}
		t.Errorf("%d series of upstreams that left", n)
	}
}

func collect(c prometheus.Collector) []string {
	ch := make(chan prometheus.Metric, 1000)
	c.Collect(ch)
	close(ch)
	var all []string
	for m := range ch {
		var out dto.Metric
		m.Write(&out)
		all = append(all, out.String())
	}
	return all
}

func TestTheEndOfTheProcessClosesNothing(t *testing.T) {
	up := dnsfake.New(t, dnsfake.Address("192.0.2.1"))
	g := live(t, load(t, newRegistry(transport.New), "healthforward . %s", up.Addr()))
	g.shutdown() // SIGTERM: not marked; health's lameduck begins only now
	for i := range 20 {
		if reply, _, _ := ask(t, g.forwarders[0], question(fmt.Sprintf("n%d.example.org.", i), dns.TypeA)); addressIn(reply) != "192.0.2.1" {
			t.Fatalf("query %d: %v", i, reply)
		}
	}
}

func TestAGenerationThatServesIsTakenBack(t *testing.T) {
	up := dnsfake.New(t, dnsfake.Address("192.0.2.1"))
	r := newRegistry(transport.New)
	old := live(t, load(t, r, "healthforward . %s", up.Addr()))
	old.mark()
	next := live(t, load(t, r, "healthforward . %s", up.Addr()))
	old.keep() // another plugin's shutdown failed: caddy says that the restart did
	if reply, _, _ := ask(t, next.forwarders[0], question("example.org.", dns.TypeA)); addressIn(reply) != "192.0.2.1" {
		t.Errorf("reply %v", reply)
	}
	if n, gens := r.counts(); n != 2 || gens != 2 {
		t.Errorf("%d upstreams in %d generations, want 2 in 2", n, gens)
	}
	next.mark() // the next reload finds the old one left over
	if _, gens := r.counts(); gens != 1 {
		t.Errorf("%d generations, want the old one gone", gens)
	}
}

func TestWhatIsUnderWayOutlivesItsGeneration(t *testing.T) {
	asked, release := make(chan struct{}, 1), make(chan struct{})
	up := dnsfake.New(t, dnsfake.Probes(dnsfake.Address("192.0.2.9"), func(r dnsfake.Request) dnsfake.Response {
		select {
		case asked <- struct{}{}:
		default:
		}
		<-release
		return dnsfake.Address("192.0.2.1")(r)
	}))
	r := newRegistry(transport.New)
	g := live(t, load(t, r, "healthforward . %s {\n hedge off\n}", up.Addr()))
	var wg sync.WaitGroup
	wg.Go(func() {
		if reply, _, _ := ask(t, g.forwarders[0], question("example.org.", dns.TypeA)); addressIn(reply) != "192.0.2.1" {
			t.Errorf("reply %v", reply)
		}
	})
	<-asked
	replace(g)
	close(release)
	wg.Wait()
}

func TestNoQueryIsLostWhileReloading(t *testing.T) {
	up := dnsfake.New(t, dnsfake.Address("192.0.2.1"))
	r := newRegistry(transport.New)
	g := live(t, load(t, r, "healthforward . %s", up.Addr()))
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	current := g
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				mu.Lock()
				f := current.forwarders[0]
				mu.Unlock()
				if reply, rcode, err := ask(t, f, question(fmt.Sprintf("n%d-%d.example.org.", w, i), dns.TypeA)); addressIn(reply) != "192.0.2.1" {
					t.Errorf("reply %v, ServeDNS = %d, %v", reply, rcode, err)
				}
			}
		})
	}
	var retired []*generation
	for range 100 {
		next := load(t, r, "healthforward . %s", up.Addr())
		current.mark()
		if err := next.acquire(); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		old := current
		current = next
		mu.Unlock()
		retired = append(retired, old)
		if len(retired) > 3 { // as caddy: the old one stops serving before it is shut down
			retired[0].shutdown()
			retired = retired[1:]
		}
	}
	cancel()
	wg.Wait()
	for _, old := range append(retired, current) {
		replace(old)
	}
}

func TestSetup(t *testing.T) {
	c := caddy.NewTestController("dns", "healthforward example.org 127.0.0.1:20053\nhealthforward . 127.0.0.1:20053")
	if err := setup(c, pluginName); err != nil {
		t.Fatal(err)
	}
	plugins := dnsserver.GetConfig(c).Plugin
	if len(plugins) != 2 {
		t.Fatalf("%d handlers, want one for each stanza", len(plugins))
	}
	end := test.NextHandler(dns.RcodeNameError, nil)
	firstStanza := plugins[0](plugins[1](end)).(*Forwarder)
	second, ok := firstStanza.Next.(*Forwarder)
	if !ok || firstStanza.From != "example.org." || second.From != "." || second.Next == nil {
		t.Errorf("stanzas are not in the order of the Corefile")
	}
	err := setup(caddy.NewTestController("dns", "healthforward . 127.0.0.1 {\n fall 0\n}"), pluginName)
	if err == nil || !strings.HasPrefix(err.Error(), "plugin/healthforward: ") {
		t.Errorf("error = %v, want one that names the plugin", err)
	}
}

func TestReadyAfterTheFirstVerdict(t *testing.T) {
	for name, handler := range map[string]dnsfake.Handler{"it answers": dnsfake.Address("192.0.2.1"), "it is silent": dnsfake.Silence} {
		t.Run(name, func(t *testing.T) {
			up := dnsfake.New(t, handler)
			f := start(t, "healthforward . %s", up.Addr())
			began := time.Now()
			waitFor(t, "it is ready", f.Ready)
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("ready after %v", took)
			}
		})
	}
}
