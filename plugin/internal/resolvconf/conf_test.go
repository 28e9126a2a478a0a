package resolvconf

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func addrs(of ...string) []netip.Addr {
	var as []netip.Addr
	for _, a := range of {
		as = append(as, netip.MustParseAddr(a))
	}
	return as
}

func TestAFileIsReadAsItsManualSays(t *testing.T) {
	for claim, c := range map[string]struct {
		content string
		want    Conf
	}{
		"an empty file says nothing":        {"", Conf{Ndots: 1, Empty: true}},
		"comments say nothing":              {"# search a\n; nameserver 192.0.2.1\n\n \t\n", Conf{Ndots: 1, Empty: true}},
		"nameservers keep their order":      {"nameserver 192.0.2.2\nnameserver 192.0.2.1\n", Conf{Ndots: 1, Nameservers: addrs("192.0.2.2", "192.0.2.1")}},
		"one that stands twice counts once": {"nameserver 192.0.2.1\nnameserver ::ffff:192.0.2.1\n", Conf{Ndots: 1, Nameservers: addrs("192.0.2.1")}},
		"there may be more than three": {
			"nameserver 192.0.2.1\nnameserver 192.0.2.2\nnameserver 192.0.2.3\nnameserver 192.0.2.4\n",
			Conf{Ndots: 1, Nameservers: addrs("192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4")},
		},
		"a link-local address has a zone":         {"nameserver fe80::1%eth0\n", Conf{Ndots: 1, Nameservers: addrs("fe80::1%eth0")}},
		"the last search line counts":             {"search a.example b.example\nsearch c.example\n", Conf{Ndots: 1, Search: []string{"c.example"}}},
		"a domain line after it counts instead":   {"search a.example\ndomain b.example c.example\n", Conf{Ndots: 1, Search: []string{"b.example"}}},
		"a search line after it counts instead":   {"domain b.example\nsearch a.example c.example\n", Conf{Ndots: 1, Search: []string{"a.example", "c.example"}}},
		"a search line without domains clears":    {"search a.example\nsearch\n", Conf{Ndots: 1, Search: []string{}}},
		"a domain line without a domain does not": {"search a.example\ndomain\n", Conf{Ndots: 1, Search: []string{"a.example"}}},
		"the root is a domain":                    {"search . a.example\n", Conf{Ndots: 1, Search: []string{".", "a.example"}}},
		"words behind a comment sign do not count": {
			"nameserver 192.0.2.1 # one\nsearch a.example ;b.example\n",
			Conf{Ndots: 1, Nameservers: addrs("192.0.2.1"), Search: []string{"a.example"}},
		},
		"lines may be indented":             {"  nameserver\t192.0.2.1\r\n", Conf{Ndots: 1, Nameservers: addrs("192.0.2.1")}},
		"ndots is among the options":        {"options rotate ndots:5 timeout:1\n", Conf{Ndots: 5}},
		"the last ndots counts":             {"options ndots:5\noptions ndots:2\n", Conf{Ndots: 2}},
		"ndots may be none":                 {"options ndots:0\n", Conf{Ndots: 0}},
		"15 is the greatest ndots":          {"options ndots:15\n", Conf{Ndots: 15}},
		"what is above is taken for it":     {"options ndots:16\n", Conf{Ndots: 15}},
		"an ndots without sense is skipped": {"options ndots:x ndots:-1\n", Conf{Ndots: 1, Skipped: []string{`line 1: ndots "-1" is no number`}}},
		"a nameserver without sense is skipped": {
			"nameserver dns.example\nnameserver 192.0.2.1\n",
			Conf{Ndots: 1, Nameservers: addrs("192.0.2.1"), Skipped: []string{`line 1: nameserver "dns.example" is no IP address`}},
		},
		"a nameserver without an address is skipped": {"nameserver\n", Conf{Ndots: 1, Skipped: []string{"line 1: nameserver without an address"}}},
		"the words of other systems are left alone":  {"lookup file bind\nfamily inet4\nsortlist 192.0.2.0\n", Conf{Ndots: 1}},
		"an unknown keyword is skipped":              {"nameservers 192.0.2.1\n", Conf{Ndots: 1, Skipped: []string{`line 1: unknown keyword "nameservers"`}}},
		"a last line may lack its end":               {"nameserver 192.0.2.1", Conf{Ndots: 1, Nameservers: addrs("192.0.2.1")}},
		"one that also makes no sense is torn": {
			"nameserver 192.0.2.1\nnameserver 192.0.",
			Conf{Ndots: 1, Nameservers: addrs("192.0.2.1"), Skipped: []string{`line 2: nameserver "192.0." is no IP address`}, Torn: true},
		},
		"one in the middle is not": {
			"nameserver 192.0.\nnameserver 192.0.2.1",
			Conf{Ndots: 1, Nameservers: addrs("192.0.2.1"), Skipped: []string{`line 1: nameserver "192.0." is no IP address`}},
		},
	} {
		t.Run(claim, func(t *testing.T) {
			if got := Parse([]byte(c.content)); !reflect.DeepEqual(got, c.want) {
				t.Errorf("Parse(%q)\n is %+v\nwant %+v", c.content, got, c.want)
			}
		})
	}
}

func TestADHCPServerCannotMakeUsOfAnySize(t *testing.T) {
	var content strings.Builder
	for i := range 200 {
		content.WriteString("nameserver " + netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}).String() + "\n")
	}
	c := Parse([]byte(content.String()))
	if len(c.Nameservers) != maxNameservers || len(c.Skipped) != 200-maxNameservers {
		t.Errorf("%d nameservers and %d lines skipped, want %d and %d", len(c.Nameservers), len(c.Skipped), maxNameservers, 200-maxNameservers)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("nameserver 192.0.2.1\nsearch a.example . b\noptions ndots:5\n"))
	f.Add([]byte("domain x # y\nnameserver fe80::1%eth0"))
	f.Add([]byte("nameserver 192.0."))
	f.Fuzz(func(t *testing.T, content []byte) {
		c := Parse(content)
		if len(c.Nameservers) > maxNameservers || c.Ndots < 0 || c.Ndots > maxNdots {
			t.Errorf("%d nameservers, ndots %d", len(c.Nameservers), c.Ndots)
		}
		for i, a := range c.Nameservers {
			if !a.IsValid() || slices.Contains(c.Nameservers[:i], a) {
				t.Errorf("nameserver %v is invalid or stands twice", a)
			}
		}
		if c.Empty && (len(c.Nameservers)+len(c.Search)+len(c.Skipped) > 0 || c.Torn) || c.Torn && len(c.Skipped) == 0 {
			t.Errorf("%+v contradicts itself", c)
		}
		for _, word := range c.Search {
			if len(strings.Fields(word)) != 1 {
				t.Errorf("domain %q is not one word", word)
			}
		}
	})
}
