package healthforward

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"steadfast.internal/plugin/healthforward/internal/transport"
	"steadfast.internal/plugin/internal/dnsfake"
	"steadfast.internal/plugin/internal/leaktest"

	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/dnstest"
	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
)

func TestMain(m *testing.M) {
	clog.Discard()
	leaktest.Main(m, "steadfast.internal")
}

// start parses one stanza, in which %s stands for the addresses in turn, and
// starts it with a registry of its own.
func start(t testing.TB, stanza string, addrs ...string) *Forwarder {
	t.Helper()
	return startAll(t, newRegistry(transport.New), stanza, addrs...)[0]
}

func startAll(t testing.TB, r *registry, stanzas string, addrs ...string) []*Forwarder {
	t.Helper()
	g := load(t, r, stanzas, addrs...)
	if err := g.acquire(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.mark()
		g.shutdown()
		for _, f := range g.forwarders {
			f.attempts.Wait()
		}
	})
	return g.forwarders
}

// load parses stanzas as a generation that has not been acquired.
func load(t testing.TB, r *registry, stanzas string, addrs ...string) *generation {
	t.Helper()
	args := make([]any, len(addrs))
	for i, addr := range addrs {
		args[i] = addr
	}
	d := caddyfile.NewDispenser("Corefile", strings.NewReader(fmt.Sprintf(stanzas, args...)))
	configs, err := parse(&d, "")
	if err != nil {
		t.Fatal(err)
	}
	g := &generation{registry: r}
	for _, c := range configs {
		g.add(c)
	}
	return g
}

// query asks f over UDP and returns what it wrote, or nil, and what it returned.
func ask(t testing.TB, f plugin.Handler, m *dns.Msg) (*dns.Msg, int, error) {
	t.Helper()
	return askOver(t, f, m, &test.ResponseWriter{})
}

func askOver(t testing.TB, f plugin.Handler, m *dns.Msg, w dns.ResponseWriter) (*dns.Msg, int, error) {
	t.Helper()
	rec := dnstest.NewRecorder(w)
	rcode, err := f.ServeDNS(context.Background(), rec, m)
	return rec.Msg, rcode, err
}

func question(name string, qtype uint16) *dns.Msg { return new(dns.Msg).SetQuestion(name, qtype) }

// addressIn returns the first A record of a reply.
func addressIn(m *dns.Msg) string {
	if m == nil {
		return ""
	}
	for _, rr := range m.Answer {
		if a, ok := rr.(*dns.A); ok {
			return a.A.String()
		}
	}
	return ""
}

// waitFor polls until what holds.
func waitFor(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting until %s", what)
		}
	}
}

func garbage(dnsfake.Request) dnsfake.Response {
	return dnsfake.Response{Raw: [][]byte{[]byte("garbage"), make([]byte, 12), make([]byte, 600)}}
}

func wrongQuestion(r dnsfake.Request) dnsfake.Response {
	m := new(dns.Msg).SetReply(r.Msg)
	m.Question = []dns.Question{{Name: "forged.example.org.", Qtype: dns.TypeA, Qclass: dns.ClassINET}}
	return dnsfake.Response{Msg: m}
}

func wrongID(r dnsfake.Request) dnsfake.Response {
	response := dnsfake.Address("203.0.113.66")(r)
	response.Msg.Id++
	return response
}

func noQuestion(r dnsfake.Request) dnsfake.Response {
	m := new(dns.Msg).SetRcode(r.Msg, dns.RcodeRefused)
	m.Question = nil
	return dnsfake.Response{Msg: m}
}

func countState(f *Forwarder, state string) int {
	n := 0
	for id := range (*f.groups.Load())[protoUDP].upstreams {
		if f.registry.pool.State(id).String() == state {
			n++
		}
	}
	return n
}
