package healthforward

import (
	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
)

func init() { plugin.Register(pluginName, setup) }

func setup(c *caddy.Controller) error {
	configs, err := parse(&c.Dispenser)
	if err != nil {
		return plugin.Error(pluginName, err)
	}
	g := generationOf(c)
	var stanzas []*Forwarder
	for _, config := range configs {
		stanzas = append(stanzas, g.add(config))
	}
	server := dnsserver.GetConfig(c)
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
	return g
}
