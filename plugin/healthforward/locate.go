package healthforward

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// Numbers of looking for upstreams. See DESIGN.md, D14.
const (
	// lookupTimeout bounds how long a host name may hold up the start.
	lookupTimeout = 3 * time.Second
	// seekInterval lies between the looks for what was not there before.
	seekInterval = time.Second
)

// locate finds out where the TOs lead, all at once, so that names nobody resolves
// hold up the start only once. One that leads nowhere now leads where it did before
// a reload, or else is no error: it is looked for while the stanza serves. locate
// must not be called while registry.mu is held.
func (f *Forwarder) locate() {
	var lookups sync.WaitGroup
	for i, t := range f.allTo() {
		lookups.Go(func() {
			ts, err := t.targets(f.lookup)
			f.registry.mu.Lock()
			defer f.registry.mu.Unlock()
			if err != nil {
				ts = f.registry.known(t)
				log.Warningf("%v; %d upstreams are known from before, and it is tried again", err, len(ts))
			}
			f.places[i] = ts
		})
	}
	lookups.Wait()
}

// known returns where a TO leads in a stanza that serves. It requires that mu is
// held.
func (r *registry) known(t to) []target {
	for _, g := range r.generations {
		for _, f := range g.forwarders {
			if i := slices.Index(f.allTo(), t); i >= 0 && len(f.places[i]) > 0 {
				return f.places[i]
			}
		}
	}
	return nil
}

// lost returns the places of the TOs that lead nowhere. It requires that
// registry.mu is held.
func (f *Forwarder) lost() []int {
	var lost []int
	for i, ts := range f.places {
		if len(ts) == 0 {
			lost = append(lost, i)
		}
	}
	return lost
}

// lookup returns the addresses of a host, from the stanza's resolvers in turn or
// from the system.
func (f *Forwarder) lookup(host string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	if len(f.Resolvers) == 0 {
		return lookupWith(ctx, net.DefaultResolver, host)
	}
	var (
		addrs []netip.Addr
		err   error
	)
	for _, resolver := range f.Resolvers {
		dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, resolver)
		}
		if addrs, err = lookupWith(ctx, &net.Resolver{PreferGo: true, Dial: dial}, host); err == nil {
			return addrs, nil
		}
	}
	return nil, err
}

func lookupWith(ctx context.Context, r *net.Resolver, host string) ([]netip.Addr, error) {
	addrs, err := r.LookupNetIP(ctx, "ip", dns.Fqdn(host))
	if err != nil {
		return nil, err
	}
	for i, addr := range addrs {
		addrs[i] = addr.Unmap()
	}
	slices.SortFunc(addrs, netip.Addr.Compare) // the same order each time: it may be a ranking
	return addrs, nil
}

// seek starts the look-out for the TOs that lead nowhere yet, if there are any. It
// requires that registry.mu is held.
func (g *generation) seek() {
	if !slices.ContainsFunc(g.forwarders, func(f *Forwarder) bool { return len(f.lost()) > 0 }) {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	g.seeking = cancel
	go g.lookOut(ctx)
}

// stopSeeking requires that registry.mu is held.
func (g *generation) stopSeeking() {
	if g.seeking != nil {
		g.seeking()
		g.seeking = nil
	}
}

// lookOut looks for lost TOs until all are found or ctx ends.
func (g *generation) lookOut(ctx context.Context) {
	tick := time.NewTicker(seekInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		left := 0
		for _, f := range g.forwarders {
			left += f.find(ctx)
		}
		if left == 0 {
			return
		}
	}
}

// find looks for the stanza's lost TOs and returns how many are still lost.
func (f *Forwarder) find(ctx context.Context) int {
	r := f.registry
	r.mu.Lock()
	lost := f.lost()
	r.mu.Unlock()
	left := 0
	for _, i := range lost {
		ts, err := f.allTo()[i].targets(f.lookup)
		if err != nil {
			left++
			continue
		}
		r.mu.Lock()
		f.places[i] = ts
		if ctx.Err() == nil { // else it was released meanwhile
			if err := r.connect(time.Now(), f); err != nil {
				log.Errorf("upstreams of %s: %v", f.From, err)
			}
			r.prober.wake()
		}
		r.mu.Unlock()
	}
	return left
}
