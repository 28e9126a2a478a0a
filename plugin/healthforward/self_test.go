package healthforward

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"steadfast.internal/plugin/healthforward/internal/transport"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
)

func TestWhatIsListenedOnIsKnown(t *testing.T) {
	local := []netip.Addr{netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("2001:db8::7"), netip.MustParseAddr("fe80::7%eth0")}
	for name, tc := range map[string]struct {
		listeners string
		at        string
		want      bool
	}{
		"everywhere, at loopback":                 {"[::]:53", "127.0.0.1:53", true},
		"everywhere, at another one of loopback":  {"[::]:53", "127.0.0.53:53", true},
		"everywhere, at loopback of IPv6":         {"[::]:53", "[::1]:53", true},
		"everywhere, at this host":                {"[::]:53", "10.0.0.7:53", true},
		"everywhere, at this host by IPv6":        {"[::]:53", "[2001:db8::7]:53", true},
		"everywhere, at this host's link":         {"[::]:53", "[fe80::7%eth0]:53", true},
		"everywhere, at no address":               {"[::]:53", "0.0.0.0:53", true},
		"everywhere, at another host":             {"[::]:53", "10.0.0.8:53", false},
		"everywhere, at another port":             {"[::]:1053", "127.0.0.1:53", false},
		"everywhere in IPv4, at loopback":         {"0.0.0.0:53", "127.0.0.1:53", true},
		"everywhere in IPv4, at IPv6":             {"0.0.0.0:53", "[::1]:53", false},
		"at one address, and that":                {"127.0.0.1:53", "127.0.0.1:53", true},
		"at one address, and systemd-resolved's":  {"127.0.0.1:53", "127.0.0.53:53", false},
		"at one address, and no address":          {"127.0.0.1:53", "0.0.0.0:53", true},
		"at one address, and no address of IPv6":  {"[::1]:53", "[::]:53", true},
		"at one address, and this host's":         {"169.254.20.10:53", "10.0.0.7:53", false},
		"at one address that is not on this host": {"192.0.2.1:53", "192.0.2.1:53", true}, // as a load balancer's may be
		"at two addresses, and the second":        {"127.0.0.1:53 10.0.0.7:53", "10.0.0.7:53", true},
		"at two ports, and one of them elsewhere": {"127.0.0.1:53 10.0.0.7:1053", "10.0.0.7:53", false},
		"an IPv4 address in one of IPv6":          {"127.0.0.1:53", "[::ffff:127.0.0.1]:53", true},
		"the socket of a link, at the same link":  {"[fe80::7%eth0]:53", "[fe80::7%eth0]:53", true},
		"nowhere":                                 {"", "127.0.0.1:53", false},
	} {
		t.Run(name, func(t *testing.T) {
			var listeners []netip.AddrPort
			for word := range strings.FieldsSeq(tc.listeners) {
				listeners = append(listeners, netip.MustParseAddrPort(word))
			}
			if got := listenedOn(netip.MustParseAddrPort(tc.at), listeners, local); got != tc.want {
				t.Errorf("%s, listening on %q: %v, want %v", tc.at, tc.listeners, got, tc.want)
			}
		})
	}
}

// TestOurListenersAreNoUpstreams: as in a resolv.conf that names this process first, as
// the clients of this host are to ask it.
func TestOurListenersAreNoUpstreams(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.move("10.0.0.7")
		w.write(hostFile, "", "127.0.0.1", "10.0.0.7", "192.0.2.1")
		w.knows("dns.example.org", known{addrs: "192.0.2.2 10.0.0.7", ttl: time.Hour})
		g := load(t, w.registry, "healthforward . "+hostFile+" dns.example.org dns.example.org:1053 127.0.0.1:53")
		g.servers = []*dnsserver.Config{{ListenHosts: []string{""}, Port: "53"}}
		live(t, g)
		f := g.forwarders[0]
		// An address that is written in the Corefile stays: that is what loop is for.
		const want = "192.0.2.1 192.0.2.2 192.0.2.2 10.0.0.7 127.0.0.1"
		if got := ups(f); got != want {
			t.Errorf("the upstreams are %s, want %s", got, want)
		}
		// A server block without a stanza is known when caddy has started it.
		w.registry.mu.Lock()
		w.registry.listeners = []netip.AddrPort{netip.MustParseAddrPort("10.0.0.7:1053")}
		w.registry.mu.Unlock()
		w.registry.reconcile(time.Now())
		if got := ups(f); got != "192.0.2.1 192.0.2.2 192.0.2.2 127.0.0.1" {
			t.Errorf("the upstreams are %s", got)
		}
	})
}

func TestTheListenersOfAServerBlockAreThoseOfAllItsKeys(t *testing.T) {
	c := caddy.NewTestController("dns", "healthforward . 127.0.0.1")
	c.ServerBlockKeys = []string{"dns://.:53", "tls://.:853"}
	for i, port := range []string{"53", "853"} {
		c.ServerBlockKeyIndex = i
		config := dnsserver.GetConfig(c)
		config.Port, config.ListenHosts = port, []string{"127.0.0.1", ""}
	}
	c.ServerBlockKeyIndex = 0
	g := &generation{servers: serversOf(c)}
	var got []string
	for _, at := range g.listeners() {
		got = append(got, at.String())
	}
	if want := []string{"127.0.0.1:53", "[::]:53", "127.0.0.1:853", "[::]:853"}; !slices.Equal(got, want) || c.ServerBlockKeyIndex != 0 {
		t.Errorf("listeners = %q, want %q", got, want)
	}
}

// loopTo makes what a model is asked for HINFO come to a stanza, as from a resolver that
// forwards to us.
func loopTo(t *testing.T, f *Forwarder) func(q transport.Query) (*dns.Msg, error) {
	return func(q transport.Query) (*dns.Msg, error) {
		m := question(strings.ToUpper(q.Question.Name), q.Question.Qtype) // as some do
		m.Id = q.ID
		reply, _, err := ask(t, f, m)
		return reply, err
	}
}

func TestAServerThatLeadsBackToUsIsLeftOut(t *testing.T) {
	for name, tc := range map[string]struct {
		stanzas string // the first is the one that has the file
		back    int    // the stanza that the question comes to
	}{
		"into the same stanza":                  {"healthforward . " + hostFile, 0},
		"into one for another zone":             {"healthforward . " + hostFile + "\nhealthforward example.org 192.0.2.9", 1},
		"into one that excepts it":              {"healthforward . " + hostFile + "\nhealthforward example.org 192.0.2.9 {\n except a.example.org\n}", 1},
		"from one for a zone":                   {"healthforward corp.example " + hostFile, 0},
		"from one with private zones":           {"healthforward . " + hostFile + " {\n backup 192.0.2.9\n private none\n}", 0},
		"into one that takes no more at a time": {"healthforward . " + hostFile + "\nhealthforward . 192.0.2.9 {\n max_concurrent 1\n}", 1},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.write(hostFile, "", "192.0.2.2")
				fs := startAll(t, w.registry, tc.stanzas)
				time.Sleep(10 * ms)
				back := fs[tc.back]
				back.concurrent.Store(int64(back.MaxConcurrent)) // as many are under way
				defer back.concurrent.Store(0)
				loops := w.at("192.0.2.1")
				loops.set(func(m *model) { m.loops = loopTo(t, back) })
				w.write(hostFile, "", "192.0.2.1", "192.0.2.2")
				time.Sleep(5*time.Minute + time.Second)
				got := strings.Fields(ups(fs[0]))
				if lines := w.logged("ERROR"); slices.Contains(got, "192.0.2.1") || !slices.Contains(got, "192.0.2.2") || len(lines) != 1 || !strings.Contains(lines[0], "192.0.2.1") {
					t.Errorf("the upstreams are %s; log = %q, want one error", got, lines)
				}
				if n := loops.hinfoCount(); n != 6 {
					t.Errorf("asked %d times, want at once and each minute", n)
				}
				if n := w.at("192.0.2.9").since(time.Time{}) + w.at("192.0.2.9").hinfoCount(); n != 0 {
					t.Errorf("the question was forwarded %d times", n)
				}
				loops.set(func(m *model) { m.loops = nil })
				time.Sleep(checkAgain + ms)
				if got := strings.Fields(ups(fs[0])); !slices.Contains(got, "192.0.2.1") {
					t.Errorf("it leads to us no more, and the upstreams are %s", got)
				}
				if n := len(w.registry.questions.asked); n != 0 {
					t.Errorf("%d questions are remembered", n)
				}
			})
		})
	}
}

// TestAFailureSaysNothingOfWhoseServerItIs: who forwards to us fails while we do not
// listen yet, as at the start.
func TestAFailureSaysNothingOfWhoseServerItIs(t *testing.T) {
	for _, rcode := range []int{dns.RcodeServerFailure, dns.RcodeRefused, dns.RcodeNotImplemented} {
		t.Run(dns.RcodeToString[rcode], func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.write(hostFile, "", "192.0.2.1", "192.0.2.2")
				w.at("192.0.2.1").set(func(m *model) {
					m.loops = func(q transport.Query) (*dns.Msg, error) {
						return new(dns.Msg).SetRcode(question(q.Question.Name, q.Question.Qtype), rcode), nil
					}
				})
				f := w.start(t, "healthforward . "+hostFile)
				time.Sleep(500 * ms)
				w.at("192.0.2.1").set(func(m *model) { m.loops = loopTo(t, f) })
				time.Sleep(time.Second)
				if got := ups(f); got != "192.0.2.2" {
					t.Errorf("the upstreams are %s, want but the one that does not lead back to us", got)
				}
			})
		})
	}
}

// TestACheckHoldsUpNobody: a server is used from the moment on that it is known, even
// where it is alone and says nothing to HINFO.
func TestACheckHoldsUpNobody(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.write(hostFile, "", "192.0.2.1")
		w.at("192.0.2.2").set(func(m *model) {
			m.loops = func(transport.Query) (*dns.Msg, error) { return nil, fmt.Errorf("no answer") }
		})
		f := w.start(t, "healthforward . "+hostFile)
		w.write(hostFile, "", "192.0.2.2")
		time.Sleep(500*ms + 1)
		for i := range 600 {
			if addr, took := resolve(t, f, distinct(i)); addr != "192.0.2.2" || took != 2*ms {
				t.Fatalf("query %d: %q after %v", i, addr, took)
			}
			time.Sleep(time.Second)
		}
		// After 1, 3, 7, 15, 31, 63 and 123 s and so on.
		if n := w.at("192.0.2.2").hinfoCount(); n < 12 || n > 16 {
			t.Errorf("asked %d times in ten minutes", n)
		}
	})
}

// TestWhatLoopsUntilItIsKnown: a query that comes back to its own flight joins it, so it
// comes once, and the other upstream answers it.
func TestWhatLoopsUntilItIsKnown(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.write(hostFile, "", "192.0.2.2")
		f := w.start(t, "healthforward . "+hostFile+" {\n policy sequential\n}")
		loop := w.at("192.0.2.1")
		back := loopTo(t, f)
		loop.set(func(m *model) {
			m.loops = func(q transport.Query) (*dns.Msg, error) {
				time.Sleep(100 * ms) // a long way round
				return back(q)
			}
			m.back = func(q transport.Query) (*dns.Msg, error) { return back(q) }
		})
		w.write(hostFile, "", "192.0.2.1", "192.0.2.2")
		time.Sleep(501 * ms)
		for i := range 20 {
			if addr, took := resolve(t, f, distinct(i)); addr != "192.0.2.2" || took > 300*ms {
				t.Errorf("query %d: %q after %v", i, addr, took)
			}
			time.Sleep(10 * ms)
		}
		if got := ups(f); got != "192.0.2.2" {
			t.Errorf("the upstreams are %s", got)
		}
	})
}

func TestLoopsOwnQuestionsAreNotTakenForOurs(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		f := w.start(t, "healthforward . 192.0.2.1")
		m := question("123.456.", dns.TypeHINFO)
		reply, rcode, err := askOver(t, f, m, &test.ResponseWriter{})
		if reply == nil || rcode != dns.RcodeSuccess || err != nil || w.at("192.0.2.1").hinfoCount() != 1 {
			t.Errorf("wrote %v, ServeDNS = %d, %v; want the upstream's answer", reply, rcode, err)
		}
	})
}
