// Package resolvconf reads files in the format of resolv.conf(5), and follows them
// while they change: where a DHCP client, NetworkManager, systemd-resolved or a
// Kubernetes volume puts them, by whatever means. What a file means to a plugin, it
// does not know.
package resolvconf

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

const (
	// DefaultNdots is that of every resolver.
	DefaultNdots = 1

	// maxNdots is glibc's and musl's bound (RES_MAXNDOTS). They take what is above for it.
	maxNdots = 15

	// maxNameservers bounds what a DHCP server can make of us. An option of DHCP has
	// room for 63 addresses.
	maxNameservers = 64
)

// Conf is what a file says. The zero value is that of an empty one, but for Ndots.
type Conf struct {
	// Nameservers are the addresses in order, each once, 64 at most.
	Nameservers []netip.Addr
	// Search holds the words of the last search or domain line, as they are written.
	Search []string
	// Ndots is that of the last options line that has one: 0 to 15, default 1.
	Ndots int
	// Skipped says of each line that makes no sense what it was.
	Skipped []string
	// Torn reports that the last line has no end and makes no sense: somebody is
	// writing, or was kept from it.
	Torn bool
	// Empty reports that no line says anything, understood or not.
	Empty bool
}

// Parse reads what resolv.conf(5) describes. What glibc does not understand it skips,
// and so does Parse. Words behind # or ; are comments, which musl and systemd say and
// glibc does not mind.
func Parse(content []byte) Conf {
	c := Conf{Ndots: DefaultNdots, Empty: true}
	ended := len(content) == 0 || content[len(content)-1] == '\n'
	lines := bytes.Split(bytes.TrimSuffix(content, []byte("\n")), []byte("\n"))
	for i, line := range lines {
		words := fields(string(line))
		if len(words) == 0 {
			continue
		}
		c.Empty = false
		if problem := c.line(words); problem != "" {
			c.Skipped = append(c.Skipped, fmt.Sprintf("line %d: %s", i+1, problem))
			c.Torn = c.Torn || !ended && i == len(lines)-1
		}
	}
	return c
}

// fields returns the words of a line up to a comment.
func fields(line string) []string {
	words := strings.Fields(line)
	for i, word := range words {
		if word[0] == '#' || word[0] == ';' {
			return words[:i]
		}
	}
	return words
}

// line reads one line and returns what is wrong with it, if anything is.
func (c *Conf) line(words []string) (problem string) {
	keyword, args := words[0], words[1:]
	switch keyword {
	case "nameserver":
		return c.nameserver(args)
	case "domain":
		if len(args) > 0 {
			c.Search = args[:1]
		}
	case "search":
		c.Search = args
	case "options":
		return c.options(args)
	case "sortlist", "lookup", "family": // of other systems, or long dead
	default:
		return fmt.Sprintf("unknown keyword %q", keyword)
	}
	return ""
}

func (c *Conf) nameserver(args []string) (problem string) {
	if len(args) == 0 {
		return "nameserver without an address"
	}
	addr, err := netip.ParseAddr(args[0])
	if err != nil {
		return fmt.Sprintf("nameserver %q is no IP address", args[0])
	}
	addr = addr.Unmap()
	if slices.Contains(c.Nameservers, addr) {
		return ""
	}
	if len(c.Nameservers) == maxNameservers {
		return fmt.Sprintf("nameserver %s is one more than %d", addr, maxNameservers)
	}
	c.Nameservers = append(c.Nameservers, addr)
	return ""
}

// options reads those that concern us: how far a name is from being complete.
func (c *Conf) options(args []string) (problem string) {
	for _, arg := range args {
		value, ok := strings.CutPrefix(arg, "ndots:")
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(value, 10, 31)
		if err != nil {
			problem = fmt.Sprintf("ndots %q is no number", value)
			continue
		}
		c.Ndots = int(min(n, maxNdots))
	}
	return problem
}
