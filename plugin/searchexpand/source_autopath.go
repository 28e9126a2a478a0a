package searchexpand

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/request"

	"github.com/miekg/dns"
)

// autoPather is what the autopath plugin asks for a client's search list. The last
// element stands for the name as it is.
type autoPather interface {
	AutoPath(state request.Request) []string
}

var (
	errNoPlugin   = errors.New("is not a plugin of the same server block")
	errNoAutoPath = errors.New("has no search lists: it has no method AutoPath")
)

// fromPlugin is the list that another plugin has for a client, such as kubernetes for
// its pods.
type fromPlugin struct {
	name string
	zone string // a name to ask the plugin about; root: the one that the client asks for

	plugin autoPather // set when it starts
}

// parseAutoPath reads @PLUGIN.
func parseAutoPath(arg string) (entry, error) {
	name := arg[1:]
	if err := checkLabel(name); err != nil {
		return entry{}, fmt.Errorf("%q is not @ and the name of a plugin", arg)
	}
	return entry{text: arg, source: &fromPlugin{name: name, zone: root}}, nil
}

// domains leaves out the name as it is, whose place only the Corefile tells: the plugin
// would send bare names to the root servers.
func (p *fromPlugin) domains(_ context.Context, state request.Request) []string {
	if p.zone != root {
		state = request.Request{W: state.W, Req: new(dns.Msg).SetQuestion(p.zone, dns.TypeA)}
	}
	var domains []string
	for _, d := range p.plugin.AutoPath(state) {
		if d == "" || d == root {
			continue
		}
		domain, err := parseDomain(d)
		if err != nil {
			log.Debugf("@%s: %v", p.name, err)
			continue
		}
		domains = append(domains, domain)
	}
	return domains
}

func (p *fromPlugin) firstWithin() string { return p.zone }

func (p *fromPlugin) start(on start) error {
	h := on.plugins(p.name)
	if h == nil {
		return fmt.Errorf("@%s %w", p.name, errNoPlugin)
	}
	ap, ok := h.(autoPather)
	if !ok {
		return fmt.Errorf("@%s %w", p.name, errNoAutoPath)
	}
	p.plugin, p.zone = ap, zoneOf(h)
	return nil
}

// zoneOf returns a zone that the plugin answers for, root if it is not known. The list of
// kubernetes is one for names in its zones, and none for bare ones; which zones these are
// no method says, but it is written there.
func zoneOf(h plugin.Handler) string {
	v := reflect.Indirect(reflect.ValueOf(h))
	if v.Kind() != reflect.Struct {
		return root
	}
	zones := v.FieldByName("Zones")
	if !zones.IsValid() || zones.Type() != reflect.TypeFor[[]string]() {
		return root
	}
	for i := range zones.Len() {
		if d, err := parseZone(zones.Index(i).String()); err == nil && !dns.IsSubDomain("arpa.", d) {
			return d
		}
	}
	return root
}
