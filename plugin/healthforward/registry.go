package healthforward

import (
	"context"
	"crypto/tls"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"steadfast.internal/plugin/healthforward/internal/pool"
	"steadfast.internal/plugin/healthforward/internal/transport"
	"steadfast.internal/plugin/internal/resolvconf"

	"github.com/coredns/coredns/core/dnsserver"
)

// Transports of clients, and of upstreams without encryption: a query goes on as
// it came.
const (
	protoUDP = "udp"
	protoTCP = "tcp"

	schemePlain = "dns"
)

// registry holds what outlives a stanza: the upstreams of the process with their
// sockets and health, and the prober. Stanzas acquire and release them in
// generations, one for each time the Corefile is loaded, so that a reload loses
// neither a query nor what has been learned. See DESIGN.md, D2.
type registry struct {
	pool    *pool.Pool
	open    opener
	outside outside

	mu          sync.Mutex
	upstreams   map[upstreamKey]*upstream
	byID        map[pool.ID]*upstream
	generations []*generation // those that are acquired, the oldest first
	held        []*generation // those that hold sources, which is soon before and after
	sources     map[sourceKey]*source
	checks      map[checkKey]*check
	leaving     map[*groups]*time.Timer // those that were replaced a moment ago
	listeners   []netip.AddrPort        // of the servers that caddy has started

	questions questions

	prober prober

	waiting atomic.Int64 // queries of all stanzas that wait for an answer
}

// opener makes the way to an upstream: transport.New, or what stands in for it.
type opener func(proto, addr string, opts transport.Options) (transport.Exchanger, error)

func newRegistry(open opener) *registry {
	r := &registry{
		open:      open,
		pool:      pool.New(rand.NewPCG(rand.Uint64(), rand.Uint64())),
		upstreams: make(map[upstreamKey]*upstream),
		byID:      make(map[pool.ID]*upstream),
		sources:   make(map[sourceKey]*source),
		checks:    make(map[checkKey]*check),
		leaving:   make(map[*groups]*time.Timer),
	}
	r.outside = outside{read: resolvconf.Read, follow: resolvconf.Follow, local: localAddrs}
	r.outside.lookup = func(ctx context.Context, host string, resolvers []string) ([]netip.Addr, time.Duration, error) {
		return lookupSystem(ctx, host, resolvers, func(at netip.AddrPort) bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.ours(at)
		})
	}
	r.prober.init(r)
	return r
}

// process is the registry of the process.
//
//nolint:gochecknoglobals // what it holds outlives every instance of caddy (DESIGN.md, D2)
var process = newRegistry(transport.New)

// group is the upstreams of a stanza for the queries that came over one transport.
type group struct {
	*pool.Group
	client    string
	upstreams map[pool.ID]*upstream
}

// groups are the groups of a stanza by the client's transport.
type groups map[string]*group

// holds reports whether the upstream is in one of the groups.
func (gs groups) holds(id pool.ID) bool {
	for _, g := range gs {
		if g.upstreams[id] != nil {
			return true
		}
	}
	return false
}

// generation is the stanzas of one load of the Corefile.
type generation struct {
	registry   *registry
	forwarders []*Forwarder

	// Guarded by registry.mu.
	holds    bool // its sources
	acquired bool
	marked   bool                // its replacement is being started
	servers  []*dnsserver.Config // of the server blocks that have a stanza

	// abandoned says that the generation was taken for one that never went live.
	abandoned atomic.Bool
}

// add makes a stanza of the generation.
func (g *generation) add(c Config) *Forwarder {
	f := &Forwarder{
		Config: c, name: pluginName, registry: g.registry, generation: g,
		sources: make([]*source, len(c.allTo())), flights: make(map[*flight]struct{}),
		sharing: sharing{flights: make(map[shareKey]*shared)},
	}
	g.forwarders = append(g.forwarders, f)
	return f
}

// acquire takes what the stanzas need. It is called when the generation is about
// to serve, and waits until new files and host names have been looked for.
func (g *generation) acquire() error {
	r := g.registry
	r.mu.Lock()
	r.hold(g)
	r.mu.Unlock()
	g.await()
	r.mu.Lock()
	err := r.acquire(g)
	r.mu.Unlock()
	if err != nil {
		return err
	}
	for _, f := range g.forwarders {
		f.warnOfMixedViews()
	}
	return nil
}

// acquire requires that mu is held.
func (r *registry) acquire(g *generation) error {
	if g.acquired {
		return nil
	}
	r.hold(g)
	for _, f := range g.forwarders {
		if err := r.connect(time.Now(), f); err != nil {
			r.drop(g)
			return err
		}
	}
	g.acquired = true
	g.abandoned.Store(false)
	r.generations = append(r.generations, g)
	r.recheck()
	r.prober.start()
	return nil
}

// mark says that a replacement of the generation is about to be started. Whoever
// is older has no one to release it any more: where another plugin's shutdown
// fails, caddy skips ours.
func (g *generation) mark() {
	r := g.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	g.marked = true
	if i := slices.Index(r.generations, g); i > 0 {
		r.abandon(r.generations[:i])
	}
}

// keep says that the replacement failed: the generation goes on, and what came
// after it never went live.
func (g *generation) keep() {
	r := g.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	g.marked = false
	if i := slices.Index(r.generations, g); i >= 0 {
		r.abandon(r.generations[i+1:])
	}
}

// shutdown releases a generation that was replaced. At the end of the process it
// does nothing: queries are answered until the listeners close, which is later.
func (g *generation) shutdown() {
	r := g.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	if g.marked {
		r.release(g)
		g.abandoned.Store(false) // a query that comes later does not take it back
	}
}

// ensure takes back a generation that was abandoned and serves all the same. It
// costs a query one atomic load.
func (g *generation) ensure() {
	if !g.abandoned.Load() {
		return
	}
	r := g.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	if !g.abandoned.Load() { // somebody else was first, or it was shut down
		return
	}
	if err := r.acquire(g); err != nil {
		log.Errorf("upstreams are lost: %v", err)
	}
}

// connect makes the groups of f from where its TOs lead now. It requires that mu
// is held.
func (r *registry) connect(now time.Time, f *Forwarder) error {
	made, leads := make(groups), r.leads(f)
	for _, client := range f.clients() {
		g := &group{client: client, upstreams: make(map[pool.ID]*upstream)}
		made[client] = g
		plan := pool.Plan{Policy: f.Policy, Ranked: f.ranked(), Hedge: f.Hedge, Budget: f.Budget}
		for _, places := range f.byTier(leads) {
			ids, err := r.members(now, f, g, places, client)
			if err != nil {
				r.disconnect(made)
				return err
			}
			plan.Tiers = append(plan.Tiers, ids)
		}
		var err error
		if g.Group, err = r.pool.Group(plan); err != nil {
			r.disconnect(made)
			return err
		}
	}
	old := f.groups.Swap(&made)
	if f.connected {
		r.retire(*old)
	}
	f.connected, f.places = true, leads
	return nil
}

// clients returns the transports that a group is needed for.
func (c *Config) clients() []string {
	if c.ForceTCP {
		return []string{protoTCP}
	}
	return []string{protoUDP, protoTCP}
}

// disconnect gives back what groups hold. It requires that mu is held.
func (r *registry) disconnect(gs groups) {
	for _, g := range gs {
		r.pool.Disband(g.Group)
	}
	r.giveBack(gs)
}

// upstream returns the upstream of that key, a new one if need be. It requires
// that mu is held.
func (r *registry) upstream(now time.Time, key upstreamKey, conf *tls.Config) (*upstream, error) {
	if u, ok := r.upstreams[key]; ok {
		return u, nil
	}
	u, err := newUpstream(key, conf, r.open)
	if err != nil {
		return nil, err
	}
	u.id = r.pool.Add(now, key.name(), key.rules)
	r.upstreams[key] = u
	r.byID[u.id] = u
	setState(u, r.pool.State(u.id))
	return u, nil
}

// abandon releases generations of which we only believe that they are not live:
// the next query for one of them takes it back. It requires that mu is held.
func (r *registry) abandon(gs []*generation) {
	for _, g := range slices.Clone(gs) {
		r.release(g)
		g.abandoned.Store(true)
	}
}

// release requires that mu is held.
func (r *registry) release(g *generation) {
	if !g.acquired {
		return
	}
	g.acquired = false
	r.generations = slices.DeleteFunc(r.generations, func(o *generation) bool { return o == g })
	r.drop(g)
	r.recheck()
	if len(r.generations) == 0 {
		r.hurry()
		r.prober.stop()
	}
}

// drop gives back what the stanzas of g hold. The groups stay where queries find
// them: those that are still under way may ask whom they have picked. It requires
// that mu is held.
func (r *registry) drop(g *generation) {
	for _, f := range g.forwarders {
		if f.connected {
			f.connected = false
			r.disconnect(*f.groups.Load())
		}
	}
	r.letGo(g)
}

// remove requires that mu is held.
func (r *registry) remove(u *upstream) {
	delete(r.upstreams, u.upstreamKey)
	delete(r.byID, u.id)
	r.pool.Remove(u.id)
	u.close()
	sameAddr, sameProto := false, false // whose series go on
	for key := range r.upstreams {
		sameAddr = sameAddr || key.addr == u.addr
		sameProto = sameProto || key.addr == u.addr && key.proto == u.proto
	}
	u.forget(!sameProto, !sameAddr)
}

// report tells the pool what an exchange with u showed, and everybody else what
// follows from it.
func (r *registry) report(now time.Time, u *upstream, t pool.Ticket, o pool.Outcome) {
	if failed := u.metrics.failures[o]; failed != nil {
		failed.Inc()
	}
	if tr, said := r.pool.Report(now, t, o); said {
		r.announce(u, tr)
	}
}

// settle announces what follows from time alone.
func (r *registry) settle(now time.Time) {
	for {
		tr, said := r.pool.Settle(now)
		if !said {
			return
		}
		r.mu.Lock()
		u := r.byID[tr.ID]
		r.mu.Unlock()
		if u != nil {
			r.announce(u, tr)
		}
	}
}

// announce logs and counts a transition, wakes the prober, and tells the queries
// that wait.
func (r *registry) announce(u *upstream, tr pool.Transition) {
	logTransition(tr)
	if tr.Renew || tr.To == pool.Ejected && tr.From != pool.Ejected {
		u.flush()
	}
	r.prober.wake()

	if tr.WouldEject {
		u.metrics.wouldEject[tr.Cause].Inc()
	}
	r.mu.Lock()
	if r.byID[u.id] == u { // else its series are gone already
		if tr.From != tr.To {
			transitionsTotal.WithLabelValues(u.addr, u.proto, tr.To.String(), tr.Cause.String()).Inc()
		}
		setState(u, r.pool.State(u.id)) // which may be a newer one than tr.To
	}
	if tr.From == tr.To {
		r.mu.Unlock()
		return
	}
	var concerned []*Forwarder
	for _, g := range r.generations {
		for _, f := range g.forwarders {
			if f.groups.Load().holds(tr.ID) {
				concerned = append(concerned, f)
			}
		}
	}
	r.mu.Unlock()
	for _, f := range concerned {
		f.notify(tr)
	}
}

// notify tells the stanza's flights of a transition.
func (f *Forwarder) notify(tr pool.Transition) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for fl := range f.flights {
		fl.notify(tr)
	}
}

// logTransition writes one line for each verdict. Suspicions come and go with
// every lost packet, so they are for debugging.
func logTransition(tr pool.Transition) {
	lasted := tr.Lasted.Round(time.Millisecond)
	switch {
	case tr.WouldEject && tr.To != pool.Ejected:
		log.Warningf("%s would be ejected: %s, %s; it stays %s", tr.Name, tr.Cause, tr.Detail, tr.To)
	case tr.From == pool.Ejected && tr.To == pool.Ejected:
		log.Infof("%s is not silent but slow: %s", tr.Name, tr.Detail)
	case tr.To == pool.Ejected:
		log.Warningf("%s is ejected: %s, %s, after %s %s; held for %s", tr.Name, tr.Cause, tr.Detail, lasted, tr.From, tr.Hold)
	case tr.From == pool.Ejected:
		log.Infof("%s is back: %s, after %s ejected", tr.Name, tr.Cause, lasted)
	default:
		log.Debugf("%s is %s: %s, after %s %s", tr.Name, tr.To, tr.Cause, lasted, tr.From)
	}
}
