package healthforward

import (
	"net/netip"
	"slices"
	"time"

	"steadfast.internal/plugin/healthforward/internal/pool"
)

const (
	// leaveAfter is how long an upstream that left goes on being known, for what it
	// still answers to be counted. See DESIGN.md, D14.
	leaveAfter = 2 * time.Second
	// addressEvery is how often this host's addresses are looked at while somebody is
	// ejected.
	addressEvery = time.Second
)

// reconcile goes over to where the TOs lead now, in each stanza where that is another
// place. What was concluded of the upstreams in another network is void then.
func (r *registry) reconcile(now time.Time) {
	r.mu.Lock()
	var moved []*Forwarder
	for _, g := range r.generations {
		for _, f := range g.forwarders {
			if slices.EqualFunc(r.leads(f), f.places, slices.Equal) {
				continue
			}
			if err := r.connect(now, f); err != nil {
				log.Errorf("upstreams of %s: %v", f.From, err)
				continue
			}
			moved = append(moved, f)
		}
	}
	r.recheck()
	if len(moved) > 0 {
		r.pool.Forgive(now)
	}
	r.mu.Unlock()
	for _, f := range moved {
		f.warnOfMixedViews()
		f.moveOn()
	}
	if len(moved) > 0 {
		r.prober.wake()
	}
}

// moveOn tells the stanza's flights that it has other upstreams.
func (f *Forwarder) moveOn() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for fl := range f.flights {
		fl.nudge(nudge{why: moved, about: -1})
	}
}

// retire gives back what groups hold that were replaced, after a while: what is under
// way may be answered by upstreams that left, and that is to be counted. It requires
// that mu is held.
func (r *registry) retire(gs groups) {
	for _, g := range gs {
		r.pool.Disband(g.Group)
	}
	key := &gs
	r.leaving[key] = time.AfterFunc(leaveAfter, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.leaving[key] != nil {
			delete(r.leaving, key)
			r.giveBack(gs)
		}
	})
}

// hurry gives back what waits for that. It requires that mu is held.
func (r *registry) hurry() {
	for key, timer := range r.leaving {
		timer.Stop()
		delete(r.leaving, key)
		r.giveBack(*key)
	}
}

// giveBack requires that mu is held.
func (r *registry) giveBack(gs groups) {
	for _, g := range gs {
		for _, u := range g.upstreams {
			if u.refs--; u.refs == 0 {
				r.remove(u)
			}
		}
	}
}

// network notices that this host has come to another network, while somebody is
// ejected: that may be the old network's fault. It belongs to the prober's loop.
type network struct {
	looked time.Time // zero: nobody was ejected
	addrs  []netip.Addr
}

// changed reports whether the addresses are others than at the last look, which was
// addressEvery ago at least and found somebody ejected too.
func (n *network) changed(now time.Time, ejected bool, local func() []netip.Addr) bool {
	switch {
	case !ejected:
		*n = network{}
		return false
	case !n.looked.IsZero() && now.Sub(n.looked) < addressEvery:
		return false
	}
	addrs := slices.DeleteFunc(local(), fleeting)
	slices.SortFunc(addrs, netip.Addr.Compare)
	changed := !n.looked.IsZero() && !slices.Equal(addrs, n.addrs)
	n.looked, n.addrs = now, addrs
	return changed
}

// fleeting reports whether an address says nothing of the network: each interface to a
// container has a link-local one, and containers come and go.
func fleeting(addr netip.Addr) bool { return addr.IsLinkLocalUnicast() || addr.IsLoopback() }

// lookAtNetwork voids what was concluded in another network.
func (r *registry) lookAtNetwork(now time.Time, n *network) {
	if !n.changed(now, r.pool.AnyEjected(), r.outside.local) {
		return
	}
	log.Infof("this host has other addresses: who is ejected is probed at once")
	r.pool.Forgive(now)
	r.reconcile(now) // an address may be ours now
}

// move goes over to the upstreams that the stanza has now, if they are others than when
// the query came: whoever is asked next is one of them.
func (f *flight) move() {
	g := (*f.fw.groups.Load())[f.group.client]
	if g == f.group {
		return
	}
	f.group, f.moved = g, true
	f.next, f.round, f.crowded = 0, 0, nil
	f.tickets = g.PickAgain(time.Now(), f.query.about, f.tickets[:0])
	f.mu.Lock()
	f.parked = len(f.tickets) > 0 && f.tickets[0].State == pool.Ejected
	f.mu.Unlock()
}

// stays reports whether somebody is still being waited for who has not left.
func (f *flight) stays() bool {
	return slices.ContainsFunc(f.tries, func(t *try) bool {
		return !t.ended.Load() && f.group.upstreams[t.ticket.ID] != nil
	})
}

// rank returns the place of an attempt's upstream in the group. Who left comes last:
// nobody waits for what it knows.
func (f *flight) rank(t *try) int {
	if !f.moved {
		return t.ticket.Rank
	}
	if rank, _, ok := f.group.Place(t.ticket.ID); ok {
		return rank
	}
	return len(f.group.upstreams)
}

// rerank gives results the places that their upstreams have by now.
func (f *flight) rerank(results []result) {
	for i := range results {
		r := &results[i]
		if rank, tier, ok := f.group.Place(r.up.id); ok {
			r.rank, r.tier = rank, tier
		} else {
			r.rank = len(f.group.upstreams)
		}
	}
}
