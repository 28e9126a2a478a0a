package searchexpand

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/test"

	"github.com/miekg/dns"
)

// blocks returns a server with a block for the root, which has the plugin in
// front of next, and one for each zone. The context is that of its queries.
func blocks(t *testing.T, c config, next plugin.Handler, zones map[string]plugin.Handler) (context.Context, *dnsserver.Server) {
	t.Helper()
	block := func(zone string, p plugin.Plugin) *dnsserver.Config {
		return &dnsserver.Config{
			Zone: zone, Transport: "dns", ListenHosts: []string{"127.0.0.1"}, Port: "53", Debug: true, Plugin: []plugin.Plugin{p},
		}
	}
	configs := []*dnsserver.Config{block(root, func(plugin.Handler) plugin.Handler { return newTestPluginOf(next, c) })}
	for zone, h := range zones {
		configs = append(configs, block(zone, func(plugin.Handler) plugin.Handler { return h }))
	}
	s, err := dnsserver.NewServer("dns://127.0.0.1:53", configs)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.WithValue(t.Context(), dnsserver.Key{}, s)
	return context.WithValue(ctx, dnsserver.LoopKey{}, 0), s
}

func throughAll(list ...string) config {
	c := newConfig()
	c.entries, c.via = entriesOf(list...), viaServer
	return c
}

func TestViaServerFindsWhatAnotherBlockAnswers(t *testing.T) {
	tests := map[string]struct {
		via    string
		ask    string
		rcode  int
		answer []string
		ofRoot []string // what the rest of our own block is asked
		ofB    []string // what the block of b.test is asked
	}{
		"server: a host of the other block": {
			viaServer, "BONLY.", 0,
			[]string{"BONLY. CNAME bonly.b.test.", "bonly.b.test. A 192.0.2.23"},
			[]string{"BONLY.a.test. A"},
			[]string{"BONLY.b.test. A"},
		},
		"server: a host of our own": {
			viaServer, "v4only.", 0,
			[]string{"v4only. CNAME v4only.a.test.", "v4only.a.test. A 192.0.2.10"},
			[]string{"v4only.a.test. A"},
			nil,
		},
		"server: nobody's": {viaServer, "nope.", dns.RcodeNameError, nil, []string{"nope.a.test. A"}, []string{"nope.b.test. A"}},
		"chain: the other block is not asked": {
			viaChain, "bonly.", 0,
			[]string{"bonly. CNAME bonly.b.test.", "bonly.b.test. A 192.0.2.23"},
			[]string{"bonly.a.test. A", "bonly.b.test. A"},
			nil,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			own, b := newZones(t), newZones(t)
			c := throughAll("a.test.", "b.test.")
			c.via = tc.via
			ctx, s := blocks(t, c, own, map[string]plugin.Handler{"b.test.": b})
			w := &recorder{}
			s.ServeDNS(ctx, w, query(tc.ask, dns.TypeA))
			if len(w.replies) != 1 || w.replies[0].Rcode != tc.rcode || !slices.Equal(short(w.replies[0].Answer), tc.answer) {
				t.Errorf("replies = %v, want one with rcode %d and %q", w.replies, tc.rcode, tc.answer)
			}
			if got := own.questions(); !slices.Equal(got, tc.ofRoot) {
				t.Errorf("our own block was asked %q, want %q", got, tc.ofRoot)
			}
			if got := b.questions(); !slices.Equal(got, tc.ofB) {
				t.Errorf("the other block was asked %q, want %q", got, tc.ofB)
			}
		})
	}
}

// TestViaServerSearchesNothingTwice: the name goes out as it is, so that it comes
// back to us as it was asked.
func TestViaServerSearchesNothingTwice(t *testing.T) {
	own := newZones(t)
	c := throughAll(".", "a.test.")
	c.ndots = 5
	ctx, s := blocks(t, c, own, nil)
	s.ServeDNS(ctx, &recorder{}, query("nope.lab.", dns.TypeA))
	if got, want := own.questions(), []string{"nope.lab. A", "nope.lab.a.test. A"}; !slices.Equal(got, want) {
		t.Errorf("asked %q, want %q", got, want)
	}
}

func TestViaServerTakesWhatABlockDoesNotAnswer(t *testing.T) {
	silent := handler(func(context.Context, dns.ResponseWriter, *dns.Msg) (int, error) { return dns.RcodeSuccess, nil })
	failing := handler(func(context.Context, dns.ResponseWriter, *dns.Msg) (int, error) {
		return dns.RcodeServerFailure, errDeaf
	})
	tests := map[string]struct {
		b     plugin.Handler
		ask   string
		rcode int // of the one reply; -1 for none
	}{
		"dropped":              {silent, "nope.", -1},
		"failed":               {failing, "nope.", dns.RcodeServerFailure},
		"failed, and found on": {failing, "bonly.", dns.RcodeSuccess},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			ctx, s := blocks(t, throughAll("c.test.", "b.test."), newZones(t), map[string]plugin.Handler{"c.test.": tc.b})
			w := &recorder{}
			s.ServeDNS(ctx, w, query(tc.ask, dns.TypeA))
			got := -1
			if len(w.replies) == 1 {
				got = w.replies[0].Rcode
			}
			if got != tc.rcode {
				t.Errorf("replies = %v, want rcode %d", w.replies, tc.rcode)
			}
		})
	}
}

func TestViaServerWithoutAServerIsAFailure(t *testing.T) {
	rcode, err := wholeServer{}.ServeDNS(t.Context(), &test.ResponseWriter{}, query("db01.a.test.", dns.TypeA))
	if rcode != dns.RcodeServerFailure || !errors.Is(err, errNoServer) {
		t.Errorf("ServeDNS = %d, %v, want SERVFAIL and %v", rcode, err, errNoServer)
	}
	w := newWalker(wholeServer{})
	if got := w.walk(t.Context(), time.Now(), candidates("db01.", domainsOf("a.test."))); got[0].verdict != failed {
		t.Errorf("verdicts = %v, want %v", verdicts(got), failed)
	}
}
