package healthforward

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"steadfast.internal/plugin/internal/resolvconf"
)

// lookupTimeout bounds how long a look for upstreams may take, and so how long a host
// name may hold up the start. See DESIGN.md, D14.
const lookupTimeout = 3 * time.Second

// outside is where sources and the registry learn of the world: the system, or what
// stands for it in tests.
type outside struct {
	// read returns the content of a file, and follow tells of each other one.
	read   func(path string) ([]byte, error)
	follow func(ctx context.Context, path string, content []byte, err error, changed func(content []byte, err error))
	// lookup returns the addresses of a host name and for how long they hold. With an
	// error there may be addresses too: not all could be found out.
	lookup func(ctx context.Context, host string, resolvers []string) ([]netip.Addr, time.Duration, error)
	// local returns the addresses of this host.
	local func() []netip.Addr
}

// sourceKey is what makes two TOs lead to the same servers: the file or the name, and
// who is asked for it. The port tells whether these are ourselves.
type sourceKey struct {
	file, host, port, resolvers string
}

// source is a file or a host name that TOs consist of. It belongs to the registry, is
// followed while a generation that serves holds it, and keeps the last good set.
type source struct {
	sourceKey
	registry *registry
	cancel   context.CancelFunc
	looked   chan struct{} // closed after the first look

	// Guarded by registry.mu.
	refs    int
	addrs   []netip.Addr // the last good set; empty: there was none yet
	trouble string       // why what is there now is not used; empty: it is
}

// sourceKey returns that of a TO, and whether it has one: an address leads nowhere else.
func (c *Config) sourceKey(t to) (sourceKey, bool) {
	switch {
	case t.file != "":
		return sourceKey{file: t.file, port: schemes[schemePlain]}, true
	case t.host != "":
		return sourceKey{host: t.host, port: t.port, resolvers: strings.Join(c.Resolvers, " ")}, true
	}
	return sourceKey{}, false
}

// hold takes the sources of a generation. New ones begin to be followed. It requires
// that mu is held.
func (r *registry) hold(g *generation) {
	if g.holds {
		return
	}
	g.holds = true
	r.held = append(r.held, g)
	for _, f := range g.forwarders {
		for i, t := range f.allTo() {
			if key, ok := f.sourceKey(t); ok {
				f.sources[i] = r.source(key, f.sources[i])
			}
		}
	}
}

// source returns the source of that key with one more reference. earlier, if not nil,
// is what it was when it was last held. It requires that mu is held.
func (r *registry) source(key sourceKey, earlier *source) *source {
	s := r.sources[key]
	if s == nil {
		s = &source{sourceKey: key, registry: r, looked: make(chan struct{})}
		if earlier != nil {
			s.addrs, s.trouble = earlier.addrs, earlier.trouble
		}
		r.sources[key] = s
		var ctx context.Context
		ctx, s.cancel = context.WithCancel(context.Background())
		go s.run(ctx)
	}
	s.refs++
	return s
}

// letGo gives back the sources of a generation. It requires that mu is held.
func (r *registry) letGo(g *generation) {
	if !g.holds {
		return
	}
	g.holds = false
	r.held = slices.DeleteFunc(r.held, func(o *generation) bool { return o == g })
	for _, f := range g.forwarders {
		for _, s := range f.sources {
			if s == nil {
				continue
			}
			if s.refs--; s.refs == 0 {
				s.cancel()
				delete(r.sources, s.sourceKey)
			}
		}
	}
}

// await waits until each source of the generation has been looked for once, as long as
// that may take.
func (g *generation) await() {
	timeout := time.NewTimer(lookupTimeout + time.Second) // a look ends before
	defer timeout.Stop()
	for _, f := range g.forwarders {
		for _, s := range f.sources {
			if s == nil {
				continue
			}
			select {
			case <-s.looked:
			case <-timeout.C:
				return
			}
		}
	}
}

// run follows the source until ctx is over.
func (s *source) run(ctx context.Context) {
	if s.host != "" {
		s.lookUp(ctx)
		return
	}
	content, err := s.registry.outside.read(s.file)
	s.take(ctx, content, err)
	close(s.looked)
	s.registry.outside.follow(ctx, s.file, content, err, func(content []byte, err error) { s.take(ctx, content, err) })
}

// take takes what the file holds now.
func (s *source) take(ctx context.Context, content []byte, err error) {
	if err != nil {
		s.learn(ctx, nil, err)
		return
	}
	conf := resolvconf.Parse(content)
	addrs, err := nameservers(conf)
	if err != nil {
		s.learn(ctx, addrs, fmt.Errorf("%s: %w", s.file, err))
		return
	}
	if len(conf.Skipped) > 0 {
		log.Warningf("%s: not understood, and skipped: %s", s.file, strings.Join(conf.Skipped, "; "))
	}
	s.learn(ctx, addrs, nil)
}

// Errors of a file that is there.
var (
	errNoNameserver = errors.New("no nameserver line")
	errTorn         = errors.New("its last line is torn")
)

// nameservers returns the servers that a file names. Those of one that is not written
// to its end come with an error: there may be more.
func nameservers(conf resolvconf.Conf) ([]netip.Addr, error) {
	switch {
	case conf.Torn:
		return conf.Nameservers, fmt.Errorf("%w: %s", errTorn, conf.Skipped[len(conf.Skipped)-1])
	case len(conf.Nameservers) == 0 && len(conf.Skipped) > 0:
		return nil, fmt.Errorf("%w: %s", errNoNameserver, conf.Skipped[0])
	case len(conf.Nameservers) == 0:
		return nil, errNoNameserver
	}
	return conf.Nameservers, nil
}

// errOnlyUs says that a source leads to nobody else than this process.
var errOnlyUs = errors.New("leads to this process only")

// learn takes a new set, or why there is none: then the last good one stays, and it is
// said once. Where there was none, what was found in spite of the error is better than
// nothing.
func (s *source) learn(ctx context.Context, addrs []netip.Addr, err error) {
	r := s.registry
	first := false
	select {
	case <-s.looked:
	default:
		first = true
	}
	r.mu.Lock()
	if ctx.Err() != nil { // released meanwhile
		r.mu.Unlock()
		return
	}
	before := s.addrs
	if err == nil && len(r.foreign(s.sourceKey, addrs)) == 0 {
		err = fmt.Errorf("%s %w", s.name(), errOnlyUs)
		addrs = nil
	}
	if len(addrs) > 0 && (err == nil || len(before) == 0) {
		s.addrs = addrs
	}
	trouble := ""
	if err != nil {
		trouble = err.Error()
	}
	complain := trouble != "" && trouble != s.trouble
	s.trouble = trouble
	after := s.addrs
	r.mu.Unlock()

	switch {
	case complain && len(after) == 0:
		log.Warningf("%s: nothing is known from before; it is looked for on and on", trouble)
	case complain:
		log.Warningf("%s: what was known before stays: %s", trouble, joined(after))
	}
	if !first && !slices.Equal(before, after) {
		log.Infof("%s leads to %s now, before to %s", s.name(), joined(after), joined(before))
	}
	r.reconcile(time.Now())
}

// name is what logs call the source.
func (s *source) name() string { return s.file + s.host }

func joined(addrs []netip.Addr) string {
	if len(addrs) == 0 {
		return "nobody"
	}
	words := make([]string, len(addrs))
	for i, addr := range addrs {
		words[i] = addr.String()
	}
	return strings.Join(words, " ")
}

// leads returns where each TO of the stanza leads now, but for what is left out because
// it would lead back to us. It requires that mu is held.
func (r *registry) leads(f *Forwarder) [][]target {
	places := make([][]target, len(f.sources))
	for i, t := range f.allTo() {
		s := f.sources[i]
		if s == nil {
			if t.addr != "" {
				places[i] = []target{{t.scheme, t.addr, t.serverName}}
			}
			continue
		}
		for _, addr := range r.foreign(s.sourceKey, s.addrs) {
			at := t.target(addr)
			if c := r.checks[checkKey{at, f.From}]; c == nil || !c.looped {
				places[i] = append(places[i], at)
			}
		}
	}
	return places
}

// target returns where the TO leads by an address of its file or name.
func (t to) target(addr netip.Addr) target {
	port := t.port
	if t.file != "" {
		port = schemes[schemePlain]
	}
	return target{t.scheme, net.JoinHostPort(addr.String(), port), t.serverName}
}
