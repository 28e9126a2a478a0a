package searchexpand

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// triggers say which names are searched besides bare ones: those that a client's own
// search list has already completed.
type triggers struct {
	first bool     // in the first domain of the client's list
	zones []string // in a namespace of one of these zones, lower case and fully qualified
}

// parse reads first, or namespace and zones.
func (t *triggers) parse(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "first":
		t.first = true
		return nil
	case len(args) > 1 && args[0] == "namespace":
		for _, arg := range args[1:] {
			zone, err := parseZone(arg)
			if err != nil {
				return err
			}
			if dots(zone) == 0 {
				return fmt.Errorf("%q has no domain above it, want one like svc.cluster.local", arg)
			}
			for _, other := range t.zones {
				if dns.IsSubDomain(zone, other) || dns.IsSubDomain(other, zone) {
					return fmt.Errorf("%q and %q are in one another", arg, other)
				}
			}
			t.zones = append(t.zones, zone)
		}
		return nil
	}
	return fmt.Errorf("%q is neither first nor namespace with at least one zone", strings.Join(args, " "))
}

// errNoFirst is a trigger that never acts.
var errNoFirst = errors.New("trigger: first needs a domain to be the first, other than \".\"")

// cutZone returns what of name stands in front of zone, fully qualified, and whether name
// is in zone and not its own apex. Zone has no escapes.
func cutZone(name, zone string) (base string, ok bool) {
	if zone == root {
		return name, true
	}
	at := len(name) - len(zone)
	if at <= 0 || name[at-1] != '.' || !strings.EqualFold(name[at:], zone) || isEscaped(name, at-1) {
		return "", false
	}
	return name[:at], true
}

// cutNamespace returns what of name, which is BASE.NAMESPACE.ZONE, stands in front of the
// namespace, and the namespace, as they are spelled. A base without a dot is more often
// a service that is gone than a name to be searched.
func cutNamespace(name, zone string) (base, namespace string, ok bool) {
	front, ok := cutZone(name, zone)
	if !ok {
		return "", "", false
	}
	at := strings.LastIndexByte(front[:len(front)-1], '.')
	if at < 0 || isEscaped(front, at) {
		return "", "", false
	}
	base, namespace = front[:at+1], front[at+1:len(front)-1]
	if !isNamespace(namespace) || dots(base) == 0 {
		return "", "", false
	}
	return base, namespace, true
}

// isNamespace reports whether a label can be the name of a namespace, which is one of
// letters, digits and hyphens (RFC 1123).
func isNamespace(label string) bool {
	for i := range len(label) {
		if !isLabelRune(rune(label[i])) || label[i] == '_' {
			return false
		}
	}
	return label != ""
}

// gate is a question whose answer says whether the candidates behind it may be asked.
type gate uint8

const (
	noGate    gate = iota
	ifExists       // a namespace: without it the name is no client's that has this zone in its list
	ifMissing      // a service: a name below it is an endpoint that is gone, and not meant otherwise
)

// gated returns the finding of a gate. Undecided, it ends the walk, because what stands
// behind it may be anybody's.
func gated(c candidate, o outcome) finding {
	f := finding{candidate: c, outcome: o, verdict: judge(o, c.name, gateType)}
	exists := true
	switch f.verdict {
	case failed:
		f.verdict = fatal
		return f
	case dropped, overloaded:
		return f
	case nxDomain:
		exists = false
		f.ttl = negativeTTL(o.msg)
	default:
		f.ttl = maxNegativeTTL
	}
	f.verdict = gateShut
	if exists == (c.gate == ifExists) {
		f.verdict = gateOpen
	}
	return f
}

// gateType is what gates are asked for: whether a name exists is the same for all types,
// and caches need it once.
const gateType = dns.TypeA

// plan is how the name of a query is searched.
type plan struct {
	base  string // what is completed: the name asked, or what a trigger leaves of it
	tries []candidate
	key   string // of the list
}

// planBare returns the plan for a name that is completed as it was asked.
func planBare(name string, l list) plan {
	p := plan{base: name, tries: candidates(name, l.domains), key: l.key}
	for i := range p.tries {
		p.tries[i].asked = p.tries[i].suffix == root
	}
	return p
}

// planFirst returns the plan for base, which a client has completed with the first
// domain of its list. A base that is complete without is looked for as it is and nowhere
// else.
func planFirst(name, base string, l list, known bool) plan {
	at := slices.IndexFunc(l.domains, func(d domain) bool { return d.suffix == l.first })
	domains := []domain{l.domains[at]}
	if !known {
		domains = slices.Concat(domains, l.domains[:at], l.domains[at+1:])
	}
	return planOf(name, base, domains, l.key)
}

// planNamespace returns the plan for base, which a client in a cluster has completed with
// its namespace's domain. The rest of what it has in its list is known: the zone and the
// domain above. The list l comes behind these; empty, none does.
func planNamespace(name, base, namespace, zone string, l list) plan {
	above := zone[strings.IndexByte(zone, '.')+1:]
	domains := []domain{
		{suffix: strings.ToLower(namespace) + "." + zone, entry: "{namespace}." + zone, served: true},
		{suffix: zone, entry: zone, served: true},
		{suffix: above, entry: above, served: true},
	}
	for _, d := range l.domains {
		if !slices.ContainsFunc(domains, func(known domain) bool { return known.suffix == d.suffix }) {
			domains = append(domains, d)
		}
	}
	p := planOf(name, base, domains, l.key)
	_, service := lastLabel(base)
	p.tries = slices.Insert(p.tries, 1,
		candidate{name: domains[0].suffix, domain: domains[0], gate: ifExists},
		candidate{name: service + domains[0].suffix, domain: domains[0], gate: ifMissing},
	)
	return p
}

// planOf returns the plan for base in the domains, the first of which makes the name as
// it was asked.
func planOf(name, base string, domains []domain, key string) plan {
	p := plan{base: base, tries: candidates(base, domains), key: key}
	p.tries[0].name, p.tries[0].asked = name, true
	return p
}

// lastLabel parts a name, fully qualified, in front of its last label.
func lastLabel(name string) (front, last string) {
	starts := dns.Split(name)
	at := starts[len(starts)-1]
	return name[:at], name[at:]
}
