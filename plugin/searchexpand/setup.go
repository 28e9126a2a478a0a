package searchexpand

import (
	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	clog "github.com/coredns/coredns/plugin/pkg/log"
)

const pluginName = "searchexpand"

var log = clog.NewWithPlugin(pluginName)

func init() { plugin.Register(pluginName, setup) }

func setup(c *caddy.Controller) error {
	configs, err := parse(&c.Dispenser)
	if err != nil {
		return plugin.Error(pluginName, err)
	}
	s := newStanzas(configs)
	block := dnsserver.GetConfig(c)
	c.OnStartup(func() error { return s.start(block.Handler) }) // not before: some stand behind us
	block.AddPlugin(func(next plugin.Handler) plugin.Handler {
		s.follow(next)
		return s
	})
	return nil
}
