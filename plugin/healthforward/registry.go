package healthforward

import (
	"context"
	"crypto/tls"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"steadfast.internal/plugin/healthforward/internal/pool"
	"steadfast.internal/plugin/healthforward/internal/transport"
	"steadfast.internal/plugin/internal/resolvconf"
	"steadfast.internal/plugin/internal/status"
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

	steered map[place]pool.Admin              // what an operator wants; who is not here is to be ready
	served  map[status.Address]*status.Server // the page, mostly at one place

	questions questions

	page   *status.Page
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
		steered:   make(map[place]pool.Admin),
		served:    make(map[status.Address]*status.Server),
		page:      new(status.Page),
	}
	r.page.Add(r.section())
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
	want := r.steered[u.place()]
	if want != pool.Ready {
		r.pool.SetAdmin(now, u.id, want)
	}
	setAdmin(u, want)
	return u, nil
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
