package searchexpand

import (
	"context"

	"github.com/coredns/coredns/plugin"

	"github.com/miekg/dns"
)

// stanzas is the plugin of one server block: what its directives say, each for the
// clients that none in front of it is for.
type stanzas struct {
	next plugin.Handler
	list []*SearchExpand
}

var _ plugin.Handler = (*stanzas)(nil)

func newStanzas(configs []config) *stanzas {
	s := &stanzas{}
	for _, c := range configs {
		s.list = append(s.list, newSearchExpand(c))
	}
	return s
}

// Name implements plugin.Handler.
func (s *stanzas) Name() string { return pluginName }

// ServeDNS implements plugin.Handler. A client has one list: what its stanza leaves
// alone is left alone.
func (s *stanzas) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	client := ipOf(w.RemoteAddr())
	for _, each := range s.list {
		if each.clients.has(client) {
			return each.ServeDNS(ctx, w, r)
		}
	}
	return plugin.NextOrFailure(pluginName, s.next, ctx, w, r)
}

// follow makes next the plugin behind all stanzas.
func (s *stanzas) follow(next plugin.Handler) {
	s.next = next
	for _, each := range s.list {
		each.Next = next
	}
}

// start connects the stanzas with where they are. The other plugins of the server block
// are all set up.
func (s *stanzas) start(on start) error {
	for _, each := range s.list {
		if err := each.connect(on); err != nil {
			return plugin.Error(pluginName, err)
		}
	}
	return nil
}

// connect is start for one of them.
func (s *SearchExpand) connect(on start) error {
	s.hosts = hostTableOf(on.plugins("hosts"))
	for _, e := range s.entries {
		if source, ok := e.source.(starter); ok {
			if err := source.start(on); err != nil {
				return err
			}
		}
	}
	if s.rules.first != "" {
		s.rules.first = leader(s.entries).firstWithin()
	}
	return nil
}
