package searchexpand

import (
	"strings"
	"time"

	"steadfast.internal/plugin/internal/status"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	clog "github.com/coredns/coredns/plugin/pkg/log"
)

const pluginName = "searchexpand"

var log = clog.NewWithPlugin(pluginName)

func init() {
	plugin.Register(pluginName, setup)
	status.Process.Add(status.Section{Name: pluginName, Report: func() status.Report { return files.overview(time.Now()).report() }})
}

func setup(c *caddy.Controller) error {
	configs, err := parse(&c.Dispenser)
	if err != nil {
		return plugin.Error(pluginName, err)
	}
	s := newStanzas(configs)
	block := dnsserver.GetConfig(c)
	l := loadOf(c)
	l.blocks = append(l.blocks, servedBlock{strings.Join(c.ServerBlockKeys, " "), s})
	c.OnStartup(func() error { return s.start(start{block.Handler, l}) }) // not before: some plugins stand behind us
	block.AddPlugin(func(next plugin.Handler) plugin.Handler {
		s.follow(next)
		return s
	})
	return nil
}

// loadKey is where an instance of caddy keeps its load.
type loadKey struct{}

// loadOf returns the load of the Corefile that is being set up. The first server block
// makes it, with the hooks that stand for all.
func loadOf(c *caddy.Controller) *load {
	if l, ok := c.Get(loadKey{}).(*load); ok {
		return l
	}
	l := &load{}
	c.Set(loadKey{}, l)
	c.OnStartup(func() error { files.begin(l); return nil })
	c.OnRestart(func() error { files.replace(l); return nil })
	c.OnRestartFailed(func() error { files.revive(l); return nil })
	c.OnShutdown(func() error { files.end(l); return nil })
	return l
}
