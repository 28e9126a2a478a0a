package healthforward

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"steadfast.internal/plugin/healthforward/internal/pool"
	"steadfast.internal/plugin/internal/corefile"

	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/plugin"
	pkgtls "github.com/coredns/coredns/plugin/pkg/tls"
	"github.com/miekg/dns"
)

// Config is one stanza of the Corefile.
type Config struct {
	// From is the zone whose queries are forwarded, normalised.
	From string
	// To are the upstreams in the order of the Corefile.
	To []to
	// Backups are the upstreams of the lower tiers, in the order of the Corefile. Each
	// is asked only while nobody above is up. Default none.
	Backups [][]to
	// Private says which names are never asked of a lower tier. Default those that are
	// built in.
	Private private
	// Except are the zones below From whose queries go to the next plugin.
	Except []string
	// Policy orders the upstreams that are up. Default random.
	Policy string
	// ReadTimeout is how long one attempt may take before it counts as lost and
	// another one is due. Default 1 s.
	ReadTimeout time.Duration
	// Deadline is how long the whole query may take. Default 4 s, or ReadTimeout if
	// that is more.
	Deadline time.Duration
	// Race is how many upstreams are asked at once, under the policy race.
	Race int
	// Hedge is how long to wait for one upstream before another is asked too: the
	// 95th percentile of its answers' latencies within 50 and 280 ms by default, and
	// 250 ms before it is known.
	Hedge pool.Hedge
	// NoHedge asks no other one before an attempt is lost or its upstream ejected.
	NoHedge bool
	// Budget is what part of a packet each query earns for further ones. Default 0.2.
	Budget float64
	// Failover are the rcodes that are not delivered while another upstream may
	// answer better. Default SERVFAIL, REFUSED and NOTIMP.
	Failover []int
	// NextRcodes are the rcodes whose replies are not delivered if another stanza
	// follows: it is asked then. NextOnNodata does the same for NOERROR without an
	// answer. Default none.
	NextRcodes   []int
	NextOnNodata bool
	// MaxConcurrent is how many queries may be under way at once, 0 for as many
	// as the limit of each upstream allows. Default 0.
	MaxConcurrent int
	// MaxAttempts is how many attempts a query may make, 0 for as many as there is
	// time for. Default 0.
	MaxAttempts int
	// Failfast answers SERVFAIL at once while nobody is up, but for a few queries
	// that find out whether somebody is back.
	Failfast bool
	// EDE writes a SERVFAIL with an extended error where no upstream answered, instead
	// of nothing, which cache would keep. Default off.
	EDE bool
	// ForceTCP asks over TCP whatever the client used, PreferUDP over UDP, and
	// again over TCP if the answer is truncated. ForceTCP wins.
	ForceTCP, PreferUDP bool
	// Rules are what each upstream is judged by.
	Rules pool.Rules
	// Way is how each upstream is reached.
	Way way
	// TLS is what encrypted upstreams are verified by; its identity is in Way.
	TLS *tls.Config
	// Status is where the page is served that shows the process's upstreams.
	// Default: nowhere.
	Status statusPage
	// Resolvers look up host names, IP:port. Default: those of the system.
	Resolvers []string
}

// way is how an upstream is reached, besides its address. Two upstreams with equal
// ways can share sockets and health.
type way struct {
	tlsName    string        // tls_servername
	tlsID      string        // of the files of tls, by content
	httpMethod string        // GET or POST, empty for the default
	source     netip.Addr    // zero: the kernel chooses
	expire     time.Duration // idle connections, 0 for the transport's default
	maxAge     time.Duration // all connections, likewise
	maxIdle    int           // likewise
	probeName  string        // what probes ask for, fully qualified
	probeType  uint16        // likewise
	probeNoRD  bool          // without the RD bit
}

// Numbers of the configuration.
const (
	defaultPolicy      = "random" // as in forward
	policySequential   = "sequential"
	maxRace            = 8 // times the load
	defaultReadTimeout = time.Second
	defaultBudget      = 0.2                    // the load never exceeds 1.2× for long
	hedgeMin           = 50 * time.Millisecond  // two or three hiccups of a scheduler, and half of what a person notices
	hedgeMax           = 280 * time.Millisecond // above, the slow tail of a wide network outweighs the load saved (DESIGN.md, D19)
	hedgeCold          = 250 * time.Millisecond // RFC 8305, section 5: the delay between connection attempts

	// forwardExpire is the default of forward's expire, which its max_age must not
	// be below.
	forwardExpire = 10 * time.Second
	// minProbeInterval keeps health_check 0, which forward accepts, from being a
	// busy loop (coredns issue 4113).
	minProbeInterval = 100 * time.Millisecond
	// forever is a duration that no connection lives to see.
	forever = 100 * 365 * 24 * time.Hour
)

func newConfig() Config {
	return Config{
		Policy:      defaultPolicy,
		ReadTimeout: defaultReadTimeout,
		Deadline:    queryDeadline,
		Hedge:       pool.Hedge{Min: hedgeMin, Max: hedgeMax, Cold: hedgeCold},
		Budget:      defaultBudget,
		Failover:    []int{dns.RcodeServerFailure, dns.RcodeRefused, dns.RcodeNotImplemented},
		Rules:       pool.DefaultRules(),
		Way:         way{probeName: ".", probeType: dns.TypeNS},
	}
}

// properties are the words of a stanza's block: all of forward's, and ours. The
// README's Syntax lists the same. Paths in it are relative to root.
func (c *Config) properties(root string, seen map[string]bool) corefile.Table {
	once := func(name string, p corefile.Property) corefile.Property {
		return func(args []string) error {
			seen[name] = true
			return p(args)
		}
	}
	return corefile.Table{
		"backup":                           c.backup,
		"budget":                           c.budget,
		"deadline":                         corefile.Duration(&c.Deadline, time.Second, 30*time.Second),
		"doh_method":                       corefile.Enum(&c.Way.httpMethod, http.MethodGet, http.MethodPost),
		"ede":                              c.ede,
		"enforce":                          c.enforce,
		"except":                           c.except,
		"expire":                           once("expire", corefile.Duration(&c.Way.expire, 0, forever)),
		"failfast_all_unhealthy_upstreams": corefile.Flag(&c.Failfast),
		"failover":                         func(args []string) error { return c.failover(args, seen) },
		"fall":                             once("fall", corefile.Int(&c.Rules.Fall, 1, 100)),
		"force_tcp":                        corefile.Flag(&c.ForceTCP),
		"health_check":                     once("health_check", c.healthCheck),
		"hedge":                            c.hedge,
		"hold":                             c.hold,
		"max_age":                          once("max_age", corefile.Duration(&c.Way.maxAge, 0, forever)),
		"max_concurrent":                   corefile.Int(&c.MaxConcurrent, 0, math.MaxInt),
		"max_connect_attempts":             corefile.Int(&c.MaxAttempts, 0, math.MaxUint32),
		"max_fails":                        once("max_fails", corefile.Int(&c.Rules.Fall, 0, math.MaxUint32)),
		"max_idle_conns":                   once("max_idle_conns", corefile.Int(&c.Way.maxIdle, 0, math.MaxInt)),
		"next":                             c.next,
		"next_on_nodata":                   corefile.Flag(&c.NextOnNodata),
		"policy":                           c.policy,
		"prefer_udp":                       corefile.Flag(&c.PreferUDP),
		"private":                          c.private,
		"probe":                            once("probe", c.probe),
		"read_timeout":                     corefile.Duration(&c.ReadTimeout, 1, forever),
		"resolver":                         c.resolver,
		"rise":                             corefile.Int(&c.Rules.Rise, 1, 100),
		"slow":                             orOff(&c.Rules.Slow, slowAtLeast, slowAtMost),
		"slowstart":                        orOff(&c.Rules.Ramp, 0, rampAtMost),
		"source_address":                   c.sourceAddress,
		"status":                           func(args []string) error { return c.status(root, args) },
		"tls":                              func(args []string) error { return c.tls(root, args) },
		"tls_servername":                   c.tlsServerName,
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

// failover replaces the default; further lines add to it, as in forward.
func (c *Config) failover(args []string, seen map[string]bool) error {
	if !seen["failover"] {
		c.Failover = nil
	}
	seen["failover"] = true
	if len(args) == 1 && args[0] == "none" {
		return nil
	}
	rcodes, err := parseRcodes(args)
	if slices.Contains(rcodes, dns.RcodeSuccess) {
		return errors.New("NOERROR is an answer, nothing to fail over from")
	}
	c.Failover = append(c.Failover, rcodes...)
	return err
}

func (c *Config) next(args []string) error {
	rcodes, err := parseRcodes(args)
	c.NextRcodes = append(c.NextRcodes, rcodes...)
	return err
}

func parseRcodes(args []string) ([]int, error) {
	var rcodes []int
	err := corefile.List(&rcodes, func(s string) (int, error) {
		rcode, ok := dns.StringToRcode[strings.ToUpper(s)]
		if !ok {
			return 0, fmt.Errorf("%q is no rcode", s)
		}
		return rcode, nil
	})(args)
	return rcodes, err
}

func (c *Config) resolver(args []string) error {
	c.Resolvers = nil
	return corefile.List(&c.Resolvers, func(s string) (string, error) {
		if addr, err := netip.ParseAddr(s); err == nil {
			return net.JoinHostPort(addr.String(), "53"), nil
		}
		addr, err := netip.ParseAddrPort(s)
		if err != nil {
			return "", fmt.Errorf("%q is no IP address with or without a port", s)
		}
		return addr.String(), nil
	})(args)
}

func (c *Config) sourceAddress(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("wants one argument, got %d", len(args))
	}
	addr, err := netip.ParseAddr(args[0])
	if err != nil {
		return fmt.Errorf("%q is no IP address", args[0])
	}
	c.Way.source = addr.Unmap()
	return nil
}

// tls reads [CERT KEY] [CA], and makes an identity of what the files hold: with
// other certificates an upstream is another one.
func (c *Config) tls(root string, args []string) error {
	id := sha256.New()
	for i, path := range args {
		if !filepath.IsAbs(path) && root != "" {
			args[i] = filepath.Join(root, path)
		}
		content, err := os.ReadFile(args[i])
		if err != nil {
			return err // it names the file
		}
		fmt.Fprintf(id, "%d %d\n%s", len(args), len(content), content)
	}
	config, err := pkgtls.NewTLSConfigFromArgs(args...)
	if err != nil {
		return err
	}
	c.TLS, c.Way.tlsID = config, ""
	if len(args) > 0 {
		c.Way.tlsID = hex.EncodeToString(id.Sum(nil))
	}
	return nil
}

func (c *Config) tlsServerName(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("wants one argument, got %d", len(args))
	}
	c.Way.tlsName = args[0]
	return nil
}

// policy reads NAME, or race NUMBER.
func (c *Config) policy(args []string) error {
	c.Race = 0
	if len(args) > 0 && args[0] == "race" {
		c.Policy = args[0]
		return corefile.Int(&c.Race, 2, maxRace)(args[1:])
	}
	return corefile.Enum(&c.Policy, pool.Policies()...)(args)
}

// parse reads all stanzas of a server block. Paths in it are relative to root.
func parse(d *caddyfile.Dispenser, root string) ([]Config, error) {
	var configs []Config
	for d.Next() {
		c, err := parseStanza(d, root)
		if err != nil {
			return nil, err
		}
		configs = append(configs, c)
	}
	return configs, nil
}

func parseStanza(d *caddyfile.Dispenser, root string) (Config, error) {
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
	if err := c.properties(root, seen).Parse(d); err != nil {
		return c, err
	}
	if err := c.reconcile(seen); err != nil {
		return c, d.Errf("%v", err)
	}
	var err error
	if c.To, err = parseTos(args[1:]); err == nil {
		err = c.nameServers(c.To)
	}
	if err != nil {
		return c, d.Errf("TO: %v", err)
	}
	for _, tier := range c.Backups {
		if err := c.nameServers(tier); err != nil {
			return c, d.Errf("backup: %v", err)
		}
	}
	return c, nil
}

// reconcile checks what depends on more than one property, and gives the words of
// forward that mean "no limit" their meaning.
func (c *Config) reconcile(seen map[string]bool) error {
	if seen["fall"] && seen["max_fails"] {
		return errors.New("fall and max_fails are two words for one thing: give one of them")
	}
	if seen["probe"] && seen["health_check"] {
		return errors.New("probe and health_check are two words for one thing: give one of them")
	}
	c.Deadline = max(c.Deadline, c.ReadTimeout) // or the attempt could not take as long as it may
	expire := c.Way.expire
	if !seen["expire"] {
		expire = forwardExpire
	}
	if c.Way.maxAge > 0 && c.Way.maxAge < expire {
		return fmt.Errorf("max_age: %s is less than expire, %s", c.Way.maxAge, expire)
	}
	if seen["max_age"] && c.Way.maxAge == 0 {
		c.Way.maxAge = forever
	}
	if seen["expire"] && c.Way.expire == 0 {
		c.Way.expire = 1 // not to be kept at all
	}
	if seen["max_idle_conns"] && c.Way.maxIdle == 0 {
		c.Way.maxIdle = math.MaxInt
	}
	return nil
}
