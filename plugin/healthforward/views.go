package healthforward

import (
	"fmt"
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

// mixedViews returns the targets that may know private names and those that hardly do.
func mixedViews(targets []target) (private, global []string) {
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
	return private, global
}

// warnOfMixedViews says that upstreams are taken for equals that hardly are: a public
// resolver denies what only an internal one knows, and half of all queries go to it. It
// says so once of the same ones.
func (f *Forwarder) warnOfMixedViews() {
	if len(f.Backups) > 0 || f.ranked() {
		return
	}
	f.registry.mu.Lock()
	private, global := mixedViews(slices.Concat(f.places...))
	mixture := fmt.Sprint(private, global)
	mixed := len(private) > 0 && len(global) > 0 && mixture != f.warned
	if mixed {
		f.warned = mixture
	}
	f.registry.mu.Unlock()
	if mixed {
		log.Warningf("%s %s takes %s and %s for equals, though as a rule only the former know private names: if so, add the line: backup %s",
			f.name, f.From, strings.Join(private, " "), strings.Join(global, " "), strings.Join(global, " "))
	}
}
