package healthforward

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
)

// generation is the stanzas of one load of the Corefile.
type generation struct {
	registry   *registry
	forwarders []*Forwarder

	// Guarded by registry.mu.
	page     statusPage // where it wants the page
	holds    bool       // its sources
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
	err := r.openPage(g.page)
	if err == nil {
		err = r.acquire(g)
	} else {
		r.drop(g)
	}
	r.turnPages()
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
		return
	}
	if err := r.openPage(g.page); err != nil {
		log.Errorf("it is served no more: %v", err)
	}
	r.turnPages()
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
	r.turnPages()
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
