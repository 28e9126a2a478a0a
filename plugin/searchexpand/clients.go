package searchexpand

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"steadfast.internal/plugin/internal/corefile"
)

// clients says whose queries a stanza is for.
type clients struct {
	only   []netip.Prefix // default everybody
	except []netip.Prefix // not these; default none
}

// everybody reports whether no query is left for a stanza behind this one.
func (c clients) everybody() bool { return len(c.only) == 0 && len(c.except) == 0 }

// has reports whether the stanza is for the client with that address. Who has no IP
// address is nobody that could be named.
func (c clients) has(addr netip.Addr) bool {
	holds := func(p netip.Prefix) bool { return p.Contains(addr) }
	return (len(c.only) == 0 || slices.ContainsFunc(c.only, holds)) && !slices.ContainsFunc(c.except, holds)
}

// takes reports whether the stanza takes every query from net.
func (c clients) takes(net netip.Prefix) bool {
	within := func(p netip.Prefix) bool { return p.Bits() <= net.Bits() && p.Contains(net.Addr()) }
	return (len(c.only) == 0 || slices.ContainsFunc(c.only, within)) && !slices.ContainsFunc(c.except, net.Overlaps)
}

// prefixes accepts networks and addresses, and adds them to dst.
func prefixes(dst *[]netip.Prefix) corefile.Property { return corefile.List(dst, parsePrefix) }

// parsePrefix reads a network such as 10.0.0.0/8, or an address, which is a network of
// one.
func parsePrefix(arg string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(arg); err == nil {
		if addr.Zone() != "" {
			return netip.Prefix{}, fmt.Errorf("%q has a zone, by which clients are not told apart", arg)
		}
		addr = addr.Unmap()
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	p, err := netip.ParsePrefix(arg)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is not a network such as 10.0.0.0/8 or 2001:db8::/32, nor an address", arg)
	}
	if masked := p.Masked(); masked != p {
		return netip.Prefix{}, fmt.Errorf("%q is an address in a network, want %s or the address alone", arg, masked)
	}
	if p.Addr().Is4In6() { // clients are compared as what they are, IPv4
		const mapped = 96
		if p.Bits() < mapped {
			return netip.Prefix{}, fmt.Errorf("%q is more than all of IPv4", arg)
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mapped)
	}
	return p, nil
}

// ipOf returns the IP address of a client: IPv4 as such even from an IPv6 socket, and
// without the zone that says by which interface a link-local one came. It is the zero
// Addr for who has none. For what CoreDNS listens on it allocates nothing.
func ipOf(addr net.Addr) netip.Addr {
	var octets net.IP
	switch addr := addr.(type) {
	case *net.UDPAddr:
		octets = addr.IP
	case *net.TCPAddr:
		octets = addr.IP
	case nil:
		return netip.Addr{}
	default:
		from, err := netip.ParseAddrPort(addr.String())
		if err != nil {
			return netip.Addr{}
		}
		return from.Addr().Unmap().WithZone("")
	}
	ip, _ := netip.AddrFromSlice(octets)
	return ip.Unmap()
}

// errUnreached is a stanza that no query gets to.
var errUnreached = errors.New("no query gets to it")

// checkReach reports a stanza, or a client of one, that those in front of it leave no
// query for.
func checkReach(stanzas []config) error {
	for i, c := range stanzas {
		for j, earlier := range stanzas[:i] {
			if earlier.clients.everybody() {
				return fmt.Errorf("stanza %d: %w, because stanza %d has no client and takes them all", i+1, errUnreached, j+1)
			}
			for _, net := range c.clients.only {
				if earlier.clients.takes(net) {
					return fmt.Errorf("stanza %d: client %s: %w, because stanza %d takes them all", i+1, net, errUnreached, j+1)
				}
			}
		}
	}
	return nil
}
