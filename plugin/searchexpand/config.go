package searchexpand

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coredns/caddy/caddyfile"
	"github.com/miekg/dns"

	"steadfast.internal/plugin/internal/corefile"
)

const (
	defaultNdots = 1

	// maxNdots is glibc's and musl's bound (RES_MAXNDOTS).
	maxNdots = 15

	// topNegTTL bounds negttl. A denial for longer is about as long as the zones of
	// a search list say themselves, and a new host would be missing for that time.
	topNegTTL = 5 * time.Minute

	// topMaxTTL bounds maxttl: more is no bound for any record but a few.
	topMaxTTL = 24 * time.Hour
	// defaultTimeout ends a walk before musl asks again, after 2.5 s; glibc and Go do
	// so after 5 s. A client that has asked again does not read the first answer.
	defaultTimeout = 2 * time.Second
	minTimeout     = 100 * time.Millisecond // a candidate has half of it, a round trip across a continent
	maxTimeout     = 10 * time.Second       // no client waits longer

	// maxParallel bounds what one query can send at once.
	maxParallel = 64

	// maxLabelOctets is RFC 1035's, section 2.3.4.
	maxLabelOctets = 63
)

// config is what one directive says.
type config struct {
	entries   []entry  // search list in order, each once; "." is the name as it is
	clients   clients  // whom it is for; default everybody
	triggers  triggers // which names it is for besides bare ones; default none
	ndots     int      // names with as many dots or more are left alone; 1 to 15, default what files in the list say, or 1
	ndotsSet  bool     // it does not depend on files
	pace      pace     // how fast the list is tried; parallel 1 to 64, default 1; timeout 100 ms to 10 s, default 2 s
	rates     rates    // what may leave the process
	except    []string // zones whose names are complete, lower case, fully qualified; default none
	form      form
	onFailure string   // failureContinues, which is the default, or failureStops
	via       string   // viaChain, which is the default, or viaServer
	wildcard  string   // what a match is worth that a wildcard record made: last, allow or ignore; default last
	block     blocking // bare names that are denied; default wpad and isatap
}

// What a suffix that fails does to the walk.
const (
	failureContinues = "continue"
	failureStops     = "stop"
)

// Where candidates go.
const (
	viaChain  = "chain"  // through the rest of the server block
	viaServer = "server" // through all server blocks
)

// blocking says which bare names are denied.
type blocking struct {
	labels []string // lower case; besides those that are built in
	none   bool     // none is built in
}

// newConfig returns what a directive without a block says.
func newConfig() config {
	return config{
		ndots: defaultNdots, onFailure: failureContinues, via: viaChain, wildcard: wildcardLast,
		form:  form{negTTL: maxNegativeTTL, maxTTL: noMaxTTL, shape: shapeAlias},
		pace:  pace{parallel: 1, timeout: defaultTimeout},
		rates: rates{client: defaultClientRate, process: defaultProcessRate},
	}
}

// properties returns what may stand in the block.
func (c *config) properties() corefile.Table {
	return corefile.Table{
		"answer":        corefile.Enum(&c.form.shape, shapeAlias, shapeOwner),
		"block":         c.block.parse,
		"budget":        c.rates.parse,
		"client":        prefixes(&c.clients.only),
		"except":        corefile.List(&c.except, parseZone),
		"except_client": prefixes(&c.clients.except),
		"maxttl":        seconds(&c.form.maxTTL, 0, topMaxTTL),
		"ndots":         c.parseNdots,
		"negttl":        seconds(&c.form.negTTL, 0, topNegTTL),
		"on_failure":    corefile.Enum(&c.onFailure, failureContinues, failureStops),
		"parallel":      corefile.Int(&c.pace.parallel, 1, maxParallel),
		"timeout":       corefile.Duration(&c.pace.timeout, minTimeout, maxTimeout),
		"trigger":       c.triggers.parse,
		"via":           corefile.Enum(&c.via, viaChain, viaServer),
		"wildcard":      corefile.Enum(&c.wildcard, wildcardLast, wildcardAllow, wildcardIgnore),
	}
}

func (c *config) parseNdots(args []string) error {
	c.ndotsSet = true
	return corefile.Int(&c.ndots, 1, maxNdots)(args)
}

// seconds accepts a duration of whole seconds, of which TTLs are made.
func seconds(dst *uint32, minimum, maximum time.Duration) corefile.Property {
	return func(args []string) error {
		var d time.Duration
		if err := corefile.Duration(&d, minimum, maximum)(args); err != nil {
			return err
		}
		if d%time.Second != 0 {
			return fmt.Errorf("%s is not a whole number of seconds", d)
		}
		*dst = uint32(d / time.Second)
		return nil
	}
}

// parse reads the directives of a server block, each a stanza. A query is for the first
// one whose client it comes from.
func parse(d *caddyfile.Dispenser) ([]config, error) {
	var stanzas []config
	for d.Next() {
		c, err := parseStanza(d)
		if err != nil {
			return nil, err
		}
		stanzas = append(stanzas, c)
		if err := checkReach(stanzas); err != nil {
			return nil, d.Err(err.Error())
		}
	}
	return stanzas, nil
}

// parseStanza reads one directive.
func parseStanza(d *caddyfile.Dispenser) (config, error) {
	c := newConfig()
	for _, arg := range d.RemainingArgs() {
		e, err := parseEntry(arg)
		if err != nil {
			return config{}, d.Err(err.Error())
		}
		if !slices.ContainsFunc(c.entries, func(known entry) bool { return known.text == e.text }) {
			c.entries = append(c.entries, e)
		}
	}
	if err := c.properties().Parse(d); err != nil {
		return config{}, err
	}
	if len(c.entries) == 0 && len(c.triggers.zones) == 0 {
		return config{}, d.Err("wants at least one domain to complete names with")
	}
	if c.triggers.first && leader(c.entries).source == nil {
		return config{}, d.Err(errNoFirst.Error())
	}
	return c, nil
}

// leader returns the entry that comes first among the domains.
func leader(entries []entry) entry {
	for _, e := range entries {
		if e.text != root {
			return e
		}
	}
	return entry{}
}

// parseDomain returns the entry of a search list in lower case and fully
// qualified. Letters, digits, hyphens and underscores make a label: what is
// meant as a path, an address or a placeholder must not become a name by
// accident.
func parseDomain(arg string) (string, error) {
	if arg == root {
		return root, nil
	}
	domain := dns.Fqdn(arg)
	labels := strings.Split(strings.TrimSuffix(domain, "."), ".")
	for _, label := range labels {
		if err := checkLabel(label); err != nil {
			return "", fmt.Errorf("%q is not a domain name: %w", arg, err)
		}
	}
	if n := wireOctets(domain); n > maxNameOctets {
		return "", fmt.Errorf("%q is not a domain name: it takes %d octets, more than %d", arg, n, maxNameOctets)
	}
	if isNumber(labels[len(labels)-1]) {
		return "", fmt.Errorf("%q is not a domain name: it ends in a number, as an address does", arg)
	}
	return strings.ToLower(domain), nil
}

// parseZone returns a zone other than the root, as parseDomain does.
func parseZone(arg string) (string, error) {
	if arg == root {
		return "", errors.New(`"." would be every name`)
	}
	return parseDomain(arg)
}

// parse reads names, which are added to those that are built in, or none, which
// clears these.
func (b *blocking) parse(args []string) error {
	if len(args) == 0 {
		return errors.New("wants at least one name, or none")
	}
	for _, arg := range args {
		if arg == "none" {
			b.none = true
			continue
		}
		label := strings.TrimSuffix(arg, ".")
		if strings.Contains(label, ".") {
			return fmt.Errorf("%q has a dot inside, want a bare name", arg)
		}
		if err := checkLabel(label); err != nil {
			return fmt.Errorf("%q is not a bare name: %w", arg, err)
		}
		b.labels = append(b.labels, strings.ToLower(label))
	}
	return nil
}

// checkLabel reports what keeps a label from being one.
func checkLabel(label string) error {
	if label == "" {
		return errors.New("a label is empty")
	}
	if len(label) > maxLabelOctets {
		return fmt.Errorf("label %q takes %d octets, more than %d", label, len(label), maxLabelOctets)
	}
	for _, r := range label {
		if !isLabelRune(r) {
			return fmt.Errorf("label %q holds %q, want letters, digits, hyphens and underscores", label, r)
		}
	}
	return nil
}

func isLabelRune(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '-' || r == '_'
}

func isNumber(label string) bool { return strings.Trim(label, "0123456789") == "" }
