package healthforward

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"steadfast.internal/plugin/healthforward/internal/pool"
	"steadfast.internal/plugin/internal/corefile"

	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"
)

// Config is one stanza of the Corefile.
type Config struct {
	// From is the zone whose queries are forwarded, normalised.
	From string
	// To are the upstreams, IP:port, in the order of the Corefile, no duplicates.
	To []string
	// Except are the zones below From whose queries go to the next plugin.
	Except []string
	// Policy orders the upstreams that are up. Default random.
	Policy string
	// ReadTimeout is how long one attempt may take before it counts as lost and
	// another one is due. Default 1 s.
	ReadTimeout time.Duration
	// Hedge is how long to wait for one upstream before another is asked too.
	// Default 250 ms. 0 is off: attempts follow each other.
	Hedge time.Duration
	// Failover are the rcodes that are not delivered while another upstream may
	// answer better. Default SERVFAIL, REFUSED and NOTIMP.
	Failover []int
	// MaxConcurrent is how many queries may be under way at once, 0 for as many
	// as the limit of each upstream allows. Default 0.
	MaxConcurrent int
	// Rules are what each upstream is judged by.
	Rules pool.Rules
}

// Numbers of the configuration.
const (
	defaultPolicy      = "random" // as in forward
	defaultReadTimeout = time.Second
	defaultHedge       = 250 * time.Millisecond // RFC 8305, section 5: the delay between connection attempts
)

func newConfig() Config {
	return Config{
		Policy:      defaultPolicy,
		ReadTimeout: defaultReadTimeout,
		Hedge:       defaultHedge,
		Failover:    []int{dns.RcodeServerFailure, dns.RcodeRefused, dns.RcodeNotImplemented},
		Rules:       pool.DefaultRules(),
	}
}

// properties are the words of a stanza's block. The README's Syntax lists the same.
func (c *Config) properties(seen map[string]bool) corefile.Table {
	once := func(name string, p corefile.Property) corefile.Property {
		return func(args []string) error {
			seen[name] = true
			return p(args)
		}
	}
	return corefile.Table{
		"except":         c.except,
		"failover":       c.failover,
		"fall":           once("fall", corefile.Int(&c.Rules.Fall, 1, 100)),
		"hedge":          c.hedge,
		"hold":           c.hold,
		"max_concurrent": corefile.Int(&c.MaxConcurrent, 0, 1<<30),
		"max_fails":      once("max_fails", corefile.Int(&c.Rules.Fall, 0, 1<<30)),
		"policy":         corefile.Enum(&c.Policy, pool.Policies()...),
		"read_timeout":   corefile.Duration(&c.ReadTimeout, 10*time.Millisecond, time.Minute),
		"rise":           corefile.Int(&c.Rules.Rise, 1, 100),
	}
}

func (c *Config) except(args []string) error {
	if len(args) == 0 {
		return errors.New("wants at least one zone")
	}
	for _, arg := range args {
		zones := plugin.Host(arg).NormalizeExact()
		if len(zones) == 0 {
			return fmt.Errorf("%q is no zone", arg)
		}
		c.Except = append(c.Except, zones...)
	}
	return nil
}

func (c *Config) failover(args []string) error {
	if len(args) == 1 && args[0] == "none" {
		c.Failover = nil
		return nil
	}
	var rcodes []int
	err := corefile.List(&rcodes, func(s string) (int, error) {
		rcode, ok := dns.StringToRcode[strings.ToUpper(s)]
		if !ok {
			return 0, fmt.Errorf("%q is no rcode", s)
		}
		if rcode == dns.RcodeSuccess {
			return 0, errors.New("NOERROR is an answer, nothing to fail over from")
		}
		return rcode, nil
	})(args)
	c.Failover = rcodes
	return err
}

func (c *Config) hedge(args []string) error {
	if len(args) == 1 && args[0] == "off" {
		c.Hedge = 0
		return nil
	}
	return corefile.Duration(&c.Hedge, 10*time.Millisecond, 2*time.Second)(args)
}

func (c *Config) hold(args []string) error {
	err := corefile.Duration(&c.Rules.Hold, 0, time.Hour)(args)
	c.Rules.HoldMax = max(c.Rules.HoldMax, c.Rules.Hold)
	return err
}

// parse reads all stanzas of a server block.
func parse(d *caddyfile.Dispenser) ([]Config, error) {
	var configs []Config
	for d.Next() {
		c, err := parseStanza(d)
		if err != nil {
			return nil, err
		}
		configs = append(configs, c)
	}
	return configs, nil
}

func parseStanza(d *caddyfile.Dispenser) (Config, error) {
	c := newConfig()
	args := d.RemainingArgs()
	if len(args) < 2 {
		return c, d.Errf("want FROM and at least one TO, got %d arguments", len(args))
	}
	zones := plugin.Host(args[0]).NormalizeExact()
	if len(zones) == 0 {
		return c, d.Errf("FROM: %q is no zone", args[0])
	}
	c.From = zones[0]
	if len(zones) > 1 {
		log.Warningf("FROM %s stands for %d zones, of which only %s is forwarded", args[0], len(zones), c.From)
	}

	seen := make(map[string]bool)
	if err := c.properties(seen).Parse(d); err != nil {
		return c, err
	}
	if seen["fall"] && seen["max_fails"] {
		return c, d.Errf("fall and max_fails are two words for one thing: give one of them")
	}
	for _, arg := range args[1:] {
		addrs, err := addresses(arg)
		if err != nil {
			return c, d.Errf("TO: %v", err)
		}
		for _, addr := range addrs {
			if !slices.Contains(c.To, addr) {
				c.To = append(c.To, addr)
			}
		}
	}
	return c, nil
}

// addresses returns the upstreams, IP:port, that a TO stands for: an address, or
// the nameservers of a file such as resolv.conf(5).
func addresses(to string) ([]string, error) {
	scheme, host, found := strings.Cut(to, "://")
	if !found {
		scheme, host = "dns", to
	}
	if scheme != "dns" {
		return nil, fmt.Errorf("%s: transport %q is none of: dns", to, scheme)
	}
	if addr, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return []string{net.JoinHostPort(addr.String(), "53")}, nil
	}
	if addr, err := netip.ParseAddrPort(host); err == nil {
		if addr.Port() == 0 {
			return nil, fmt.Errorf("%s: port 0 is less than 1", to)
		}
		return []string{addr.String()}, nil
	}
	if found {
		return nil, fmt.Errorf("%s: %q is no IP address with or without a port", to, host)
	}
	file, err := dns.ClientConfigFromFile(to)
	if err != nil {
		return nil, fmt.Errorf("%q is no IP address, and as a file: %w", to, err)
	}
	var addrs []string
	for _, server := range file.Servers {
		addr, err := netip.ParseAddr(server)
		if err != nil {
			return nil, fmt.Errorf("%s: nameserver %q is no IP address", to, server)
		}
		addrs = append(addrs, net.JoinHostPort(addr.String(), file.Port))
	}
	if len(addrs) == 0 {
		return nil, fmt.Errorf("%s: no nameserver line", to)
	}
	return addrs, nil
}
