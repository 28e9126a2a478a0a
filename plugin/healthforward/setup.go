package healthforward

import (
	"reflect"
	"strings"

	"steadfast.internal/plugin/internal/status"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"
)

func init() {
	Register(pluginName)
	process.page = status.Process
	status.Process.Add(process.section())
	caddy.RegisterEventHook(pluginName, heardOfServers)
	dnsserver.EnableChaos[pluginName] = struct{}{} // as for forward: class CH is for the upstreams
}

// directives are the words that the plugin answers to.
//
//nolint:gochecknoglobals // Register adds to it while the program starts, nobody after that
var directives []string

// Register makes the plugin answer to a directive: its own, and in another flavour
// of the program forward.
func Register(directive string) {
	directives = append(directives, directive)
	plugin.Register(directive, func(c *caddy.Controller) error { return setup(c, directive) })
}

func setup(c *caddy.Controller, directive string) error {
	server := dnsserver.GetConfig(c)
	configs, err := parse(&c.Dispenser, server.Root)
	if err != nil {
		return plugin.Error(directive, err)
	}
	g := generationOf(c)
	g.servers = append(g.servers, serversOf(c)...)
	var stanzas []*Forwarder
	for _, config := range configs {
		if err := g.wantPage(config.Status); err != nil {
			return plugin.Error(directive, err)
		}
		f := g.add(config)
		f.name, f.server = directive, strings.Join(c.ServerBlockKeys, " ")
		stanzas = append(stanzas, f)
	}
	c.OnStartup(func() error {
		for _, f := range stanzas {
			f.setTaps(server.Handler("dnstap"))
			f.warnOfOverlap(server.Handlers())
		}
		return nil
	})
	for i, f := range stanzas {
		server.AddPlugin(func(next plugin.Handler) plugin.Handler {
			f.Next = next
			if i+1 < len(stanzas) {
				f.Next = stanzas[i+1]
			}
			return f
		})
	}
	return nil
}

// warnOfOverlap says which of two plugins gets a query that both are there for.
func (f *Forwarder) warnOfOverlap(others []plugin.Handler) {
	for _, h := range others {
		if _, ours := h.(*Forwarder); ours || h.Name() != "forward" {
			continue
		}
		// forward does not say which zone it serves, but it is written there.
		from := reflect.Indirect(reflect.ValueOf(h)).FieldByName("from")
		if !from.IsValid() || from.Kind() != reflect.String {
			return
		}
		if dns.IsSubDomain(from.String(), f.From) || dns.IsSubDomain(f.From, from.String()) {
			log.Warningf("forward %s stands in front of %s %s in one server block, and takes the queries that both match", from, f.name, f.From)
		}
	}
}

// generationKey is where an instance of caddy keeps its generation.
type generationKey struct{}

// generationOf returns the generation of the Corefile that is being loaded. The
// first stanza makes it, with the hooks that stand for all.
func generationOf(c *caddy.Controller) *generation {
	if g, ok := c.Get(generationKey{}).(*generation); ok {
		return g
	}
	g := &generation{registry: process}
	c.Set(generationKey{}, g)
	c.OnStartup(g.acquire)
	c.OnRestart(func() error { g.mark(); return nil })
	c.OnRestartFailed(func() error { g.keep(); return nil })
	c.OnShutdown(func() error { g.shutdown(); return nil })
	c.OnFinalShutdown(func() error { g.registry.end(); return nil })
	return g
}
