package healthforward

import (
	"net/netip"
	"slices"
	"strings"
)

// carrierGrade is the address space that providers share among their customers
// (RFC 6598).
//
//nolint:gochecknoglobals // a constant, which Go has not for this type
var carrierGrade = netip.MustParsePrefix("100.64.0.0/10")

// isPrivate reports whether an upstream there may know names that nobody else does.
func isPrivate(addr netip.Addr) bool {
	return addr.IsPrivate() || addr.IsLoopback() || addr.IsLinkLocalUnicast() || carrierGrade.Contains(addr)
}

// warnOfMixedViews says that upstreams are taken for equals that hardly are: a public
// resolver denies what only an internal one knows, and half of all queries go to it.
func (f *Forwarder) warnOfMixedViews() {
	if len(f.Backups) > 0 || f.ranked() {
		return
	}
	f.registry.mu.Lock()
	targets := slices.Concat(f.places...)
	f.registry.mu.Unlock()
	var private, global []string
	for _, t := range targets {
		addr, err := netip.ParseAddrPort(t.addr)
		switch {
		case err != nil: // it is an address since it was found
		case isPrivate(addr.Addr()):
			private = append(private, t.String())
		default:
			global = append(global, t.String())
		}
	}
	if len(private) > 0 && len(global) > 0 {
		log.Warningf("%s %s takes %s and %s for equals, though as a rule only the former know private names: if so, add the line: backup %s",
			f.name, f.From, strings.Join(private, " "), strings.Join(global, " "), strings.Join(global, " "))
	}
}
