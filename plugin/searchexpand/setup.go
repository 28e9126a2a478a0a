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
	conf, err := parse(&c.Dispenser)
	if err != nil {
		return plugin.Error(pluginName, err)
	}
	s := newSearchExpand(conf)
	block := dnsserver.GetConfig(c)
	c.OnStartup(func() error { // not before: hosts stands behind us, and is not set up yet
		s.hosts = hostTableOf(block.Handler("hosts"))
		return nil
	})
	block.AddPlugin(func(next plugin.Handler) plugin.Handler {
		s.Next = next
		return s
	})
	return nil
}
