package healthforward

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"
)

// private says which names never leave the first tier: a lower one, which may be a
// stranger's, is neither to learn of them nor to deny them.
type private struct {
	zones []string // besides those that are built in, normalised
	none  bool     // none is built in
}

// builtInPrivate are zones that mean something else in each network: the reverse ones
// of BCP 163, and those that are reserved for private names, or usual for them.
//
//nolint:gochecknoglobals // a table that nobody writes to
var builtInPrivate = zoneSet(
	// RFC 6303, section 4
	"10.in-addr.arpa.", numbered(16, 31, ".172.in-addr.arpa."), "168.192.in-addr.arpa.",
	"0.in-addr.arpa.", "127.in-addr.arpa.", "254.169.in-addr.arpa.", "2.0.192.in-addr.arpa.",
	"100.51.198.in-addr.arpa.", "113.0.203.in-addr.arpa.", "255.255.255.255.in-addr.arpa.",
	strings.Repeat("0.", 32)+"ip6.arpa.", "1."+strings.Repeat("0.", 31)+"ip6.arpa.",
	"d.f.ip6.arpa.", "8.e.f.ip6.arpa.", "9.e.f.ip6.arpa.", "a.e.f.ip6.arpa.", "b.e.f.ip6.arpa.",
	"8.b.d.0.1.0.0.2.ip6.arpa.",
	// RFC 7793
	numbered(64, 127, ".100.in-addr.arpa."),
	"internal.",  // ICANN has reserved it
	"local.",     // RFC 6762
	"home.arpa.", // RFC 8375
	"lan.",       // of many home routers
)

// numbered returns the zones of a range of numbers, for zoneSet.
func numbered(from, to int, parent string) string {
	var zones []string
	for i := from; i <= to; i++ {
		zones = append(zones, strconv.Itoa(i)+parent)
	}
	return strings.Join(zones, " ")
}

func zoneSet(lists ...string) map[string]bool {
	set := make(map[string]bool)
	for _, list := range lists {
		for _, zone := range strings.Fields(list) {
			set[zone] = true
		}
	}
	return set
}

// private reads zones, which are added to those that are built in, or none, which
// clears these.
func (c *Config) private(args []string) error {
	if len(args) == 0 {
		return errors.New("wants at least one zone, or none")
	}
	for _, arg := range args {
		if arg == "none" {
			c.Private.none = true
			continue
		}
		zones := plugin.Host(arg).NormalizeExact()
		if len(zones) == 0 {
			return fmt.Errorf("%q is no zone", arg)
		}
		c.Private.zones = append(c.Private.zones, zones...)
	}
	return nil
}

// holds reports whether a query for name, in lower case, must not leave the first tier.
func (p private) holds(name string, qtype uint16) bool {
	if slices.ContainsFunc(p.zones, func(zone string) bool { return plugin.Name(zone).Matches(name) }) {
		return true
	}
	if p.none {
		return false
	}
	for at, end := 0, false; !end; at, end = dns.NextLabel(name, at) {
		if builtInPrivate[name[at:]] {
			return true
		}
	}
	// Who validates asks for the keys of top-level domains, which are everybody's.
	return dns.CountLabel(name) == 1 && qtype != dns.TypeDS && qtype != dns.TypeDNSKEY
}
