package searchexpand

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/coredns/coredns/plugin"

	"github.com/miekg/dns"
)

func TestAStanzaIsForTheClientsItNames(t *testing.T) {
	tests := map[string]struct {
		block  string
		client net.Addr
		want   bool
	}{
		"nobody is named":                     {"", &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1)}, true},
		"in the network":                      {"client 192.0.2.0/25", &net.UDPAddr{IP: net.IPv4(192, 0, 2, 127)}, true},
		"just outside":                        {"client 192.0.2.0/25", &net.UDPAddr{IP: net.IPv4(192, 0, 2, 128)}, false},
		"over TCP":                            {"client 192.0.2.0/25", &net.TCPAddr{IP: net.IPv4(192, 0, 2, 127)}, true},
		"an address alone":                    {"client 192.0.2.1", &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1)}, true},
		"the address beside it":               {"client 192.0.2.1", &net.UDPAddr{IP: net.IPv4(192, 0, 2, 2)}, false},
		"the second of two lines":             {"client 10.0.0.0/8\n client 192.0.2.1", &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1)}, true},
		"IPv4 on an IPv6 socket":              {"client 192.0.2.1", &net.UDPAddr{IP: net.ParseIP("::ffff:192.0.2.1")}, true},
		"IPv4 written as IPv6":                {"client ::ffff:192.0.2.0/120", &net.UDPAddr{IP: net.IP{192, 0, 2, 9}}, true},
		"IPv4 address written as IPv6":        {"client ::ffff:192.0.2.9", &net.UDPAddr{IP: net.IP{192, 0, 2, 9}}, true},
		"IPv6":                                {"client 2001:db8::/32", &net.UDPAddr{IP: net.ParseIP("2001:db8:ffff::1")}, true},
		"IPv4 is in no IPv6 network":          {"client ::/0", &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1)}, false},
		"a link-local one with its interface": {"client fe80::/10", &net.UDPAddr{IP: net.ParseIP("fe80::1"), Zone: "eth0"}, true},
		"left out":                            {"client 10.0.0.0/8\n except_client 10.1.0.0/16", &net.UDPAddr{IP: net.IPv4(10, 1, 2, 3)}, false},
		"beside who is left out":              {"client 10.0.0.0/8\n except_client 10.1.0.0/16", &net.UDPAddr{IP: net.IPv4(10, 2, 2, 3)}, true},
		"left out of everybody":               {"except_client 10.1.0.0/16", &net.UDPAddr{IP: net.IPv4(10, 1, 2, 3)}, false},
		"not left out of everybody":           {"except_client 10.1.0.0/16", &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1)}, true},
		"another kind of address, by text":    {"client 192.0.2.1", text("192.0.2.1:53"), true},
		"with an interface, by text":          {"client fe80::1", text("[fe80::1%eth0]:53"), true},
		"no IP address, and clients named":    {"client 0.0.0.0/0 ::/0", text("@"), false},
		"no IP address, and nobody named":     {"", text("@"), true},
		"no address at all":                   {"", nil, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c, err := parseOne(dispenser("searchexpand a.test {\n " + tc.block + "\n}"))
			if err != nil {
				t.Fatal(err)
			}
			if got := c.clients.has(ipOf(tc.client)); got != tc.want {
				t.Errorf("%v: %v, want %v", tc.client, got, tc.want)
			}
		})
	}
}

// text is an address of a kind that we do not know.
type text string

func (t text) Network() string { return "text" }
func (t text) String() string  { return string(t) }

// newTestStanzas returns the plugin that the directives make, in front of next.
func newTestStanzas(t *testing.T, next plugin.Handler, directives string) *stanzas {
	t.Helper()
	configs, err := parse(dispenser(directives))
	if err != nil {
		t.Fatal(err)
	}
	s := newStanzas(configs)
	s.follow(next)
	for _, each := range s.list {
		each.limit = &limit{max: 256}
		each.budget = newBudget(rates{defaultClientRate, defaultProcessRate}, &credit{})
	}
	return s
}

func TestAClientHasTheListOfTheFirstStanzaThatIsForIt(t *testing.T) {
	z := newZones(t)
	s := newTestStanzas(t, z, `searchexpand a.test {
			client 10.0.0.0/8 2001:db8::/32
			except_client 10.9.0.0/16
		}
		searchexpand b.test {
			client 10.0.0.0/8 192.0.2.0/24
			ndots 2
			except lan
		}`)
	tests := map[string]struct {
		client, name string
		want         []string // that next is asked
	}{
		"the first":                               {"10.0.0.1", "db01.", []string{"db01.a.test. A"}},
		"the first, by IPv6":                      {"2001:db8::1", "db01.", []string{"db01.a.test. A"}},
		"who is left out of it":                   {"10.9.0.1", "db01.", []string{"db01.b.test. A"}},
		"the second alone":                        {"192.0.2.1", "db01.", []string{"db01.b.test. A"}},
		"none, and the query is not touched":      {"198.51.100.1", "db01.", []string{"db01. A"}},
		"none, and a name that would be blocked":  {"198.51.100.1", "wpad.", []string{"wpad. A"}},
		"what the first leaves alone, nobody has": {"10.0.0.1", "db01.x.", []string{"db01.x. A"}},
		"though the second would":                 {"10.9.0.1", "db01.x.", []string{"db01.x.b.test. A", "db01.x. A"}},
		"a name of the other list, bare by dots":  {"192.0.2.1", "a.test.", []string{"a.test. A"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := from(tc.client)
			if _, err := s.ServeDNS(t.Context(), w, query(tc.name, dns.TypeA)); err != nil {
				t.Fatal(err)
			}
			if got := z.questions(); !slices.Equal(got, tc.want) {
				t.Errorf("asked %q, want %q", got, tc.want)
			}
		})
	}
}

// What one list has found or spent is nothing to another, even about one name.
func TestStanzasShareNothing(t *testing.T) {
	z := newZones(t)
	s := newTestStanzas(t, z, "searchexpand a.test b.test {\n client 10.0.0.0/8\n budget 1 1\n}\nsearchexpand b.test a.test")
	for range 2 {
		for client, want := range map[string]string{"10.0.0.1": "192.0.2.10", "192.0.2.1": "192.0.2.20"} {
			w := from(client)
			if _, err := s.ServeDNS(t.Context(), w, query("v4only.", dns.TypeA)); err != nil {
				t.Fatal(err)
			}
			if got := w.replies[0].Answer[1].(*dns.A).A.String(); got != want {
				t.Errorf("%s gets %s, want %s", client, got, want)
			}
		}
	}
	if a, b := s.list[0].pins, s.list[1].pins; a == b || a.lru.Len() != 1 || b.lru.Len() != 1 {
		t.Errorf("%d and %d pins, want one each", a.lru.Len(), b.lru.Len())
	}
}

func TestFindingTheStanzaAllocatesNothing(t *testing.T) {
	var c clients
	for i := range 100 {
		c.only = append(c.only, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), 0, 0}), 16))
	}
	s := &stanzas{next: plugin.HandlerFunc(func(context.Context, dns.ResponseWriter, *dns.Msg) (int, error) { return 0, nil })}
	s.list = append(s.list, &SearchExpand{clients: c}, &SearchExpand{clients: c})
	for _, addr := range []net.Addr{
		&net.UDPAddr{IP: net.IPv4(192, 0, 2, 1)}, &net.TCPAddr{IP: net.ParseIP("2001:db8::1")}, &net.UDPAddr{IP: net.ParseIP("fe80::1"), Zone: "eth0"},
	} {
		found := false
		if n := testing.AllocsPerRun(100, func() {
			for _, each := range s.list {
				found = found || each.clients.has(ipOf(addr))
			}
		}); n != 0 || found {
			t.Errorf("%v: %v allocations, found %v", addr, n, found)
		}
	}
}
