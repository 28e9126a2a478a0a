package healthforward

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"steadfast.internal/plugin/internal/resolvconf"

	"github.com/miekg/dns"
)

// schemes maps what may stand in front of :// in a TO to the port that it implies.
// The first is what stands for itself.
var schemes = map[string]string{"dns": "53", "tls": "853", "https": "443", "quic": "853"}

// to is one TO of a stanza: an address, a host name, or a file. Exactly one of
// addr, host and file is set.
type to struct {
	scheme     string
	serverName string // to verify and to ask for in TLS; empty: tls_servername or the address

	addr string // IP:port
	host string // name, port
	port string
	file string // resolv.conf(5)
}

// target is an upstream's place: where a TO leads when names are resolved and
// files are read.
type target struct {
	scheme, addr, serverName string
}

// String returns the TO as it could be written.
func (t to) String() string {
	switch {
	case t.file != "":
		return t.file
	case t.addr != "":
		return target{t.scheme, t.addr, t.serverName}.String()
	}
	return target{t.scheme, net.JoinHostPort(t.host, t.port), t.serverName}.String()
}

// String returns the TO that leads there.
func (t target) String() string {
	host, port, err := net.SplitHostPort(t.addr)
	if err != nil {
		return t.addr // it is an address since it was found
	}
	if t.serverName != "" {
		host += "%" + t.serverName
	}
	at := host
	if port != schemes[t.scheme] {
		at = net.JoinHostPort(host, port)
	}
	if t.scheme == schemePlain {
		return at
	}
	return t.scheme + "://" + at
}

// parseTo reads a TO as CoreDNS's forward does: IP, IP:port, [IP]:port, host name
// with or without a port, each also as SCHEME://..., with %NAME behind the host for
// the TLS server name (or the zone of a link-local address); or a file.
func parseTo(arg string) (to, error) {
	scheme, rest, explicit := strings.Cut(arg, "://")
	if !explicit {
		scheme, rest = "dns", arg
	}
	port, ok := schemes[scheme]
	if !ok {
		return to{}, fmt.Errorf("%s: transport %q is none of: dns, tls, https, quic", arg, scheme)
	}
	if rest == "" {
		return to{}, fmt.Errorf("%s: no address", arg)
	}
	if scheme == "https" && strings.Contains(rest, "/") {
		return to{}, fmt.Errorf("%s: no path is allowed, it is /dns-query", arg)
	}
	t := to{scheme: scheme}
	if scheme != "dns" {
		rest, t.serverName = cutServerName(rest)
	}

	bare := rest
	if strings.HasPrefix(rest, "[") && strings.HasSuffix(rest, "]") {
		bare = rest[1 : len(rest)-1]
	}
	if addr, err := netip.ParseAddr(bare); err == nil {
		t.addr = net.JoinHostPort(addr.String(), port)
		return t, nil
	}
	if addr, err := netip.ParseAddrPort(rest); err == nil {
		if addr.Port() == 0 {
			return to{}, fmt.Errorf("%s: port 0 is less than 1", arg)
		}
		t.addr = addr.String()
		return t, nil
	}
	if !explicit && isPath(rest) {
		t.file = rest
		return t, nil
	}
	return t.withHost(arg, rest, port)
}

// withHost sets the host name and the port that rest holds.
func (t to) withHost(arg, rest, port string) (to, error) {
	t.host, t.port = rest, port
	if host, p, err := net.SplitHostPort(rest); err == nil {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return to{}, fmt.Errorf("%s: port %q is not within 1 and 65535", arg, p)
		}
		t.host, t.port = host, p
	}
	labels := dns.SplitDomainName(t.host)
	if _, ok := dns.IsDomainName(t.host); !ok || len(labels) == 0 || strings.ContainsAny(t.host, ":/%") {
		return to{}, fmt.Errorf("%q is no IP address, no file and no host name", arg)
	}
	// A name in a number is an address with a slip in it.
	if strings.Trim(labels[len(labels)-1], "0123456789") == "" {
		return to{}, fmt.Errorf("%q is no IP address", arg)
	}
	return t, nil
}

// cutServerName takes %NAME out of HOST%NAME, HOST%NAME:PORT or [HOST%NAME]:PORT.
func cutServerName(s string) (rest, name string) {
	before, after, found := strings.Cut(s, "%")
	if !found {
		return s, ""
	}
	name, tail := after, ""
	if i := strings.LastIndexAny(after, "]:"); i >= 0 {
		end := strings.IndexAny(after, "]:")
		name, tail = after[:end], after[end:]
	}
	return before + tail, name
}

// isPath reports whether a TO without a scheme is meant as a file: it has a
// slash, or a file of that name is there.
func isPath(s string) bool {
	if strings.Contains(s, "/") {
		return true
	}
	_, err := resolvconf.Read(s)
	return err == nil
}

// check refuses what cannot become right while the process runs: a relative path
// to a file that is not there is a slip of the pen.
func (t to) check() error {
	if t.file == "" || filepath.IsAbs(t.file) {
		return nil
	}
	if _, err := os.Stat(t.file); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%q is no IP address and no host name, and as a file: %w", t.file, err)
	}
	return nil
}
