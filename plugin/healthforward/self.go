package healthforward

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/miekg/dns"
)

// Numbers of finding out whether a server is ourselves. See DESIGN.md, D14.
const (
	// checkPatience is how long the question may take that would come back.
	checkPatience = 2 * time.Second
	// checkAgain is when a server that was left out is asked again, and the longest
	// pause before one is that does not answer.
	checkAgain = time.Minute
)

// foreign returns those of a source's addresses that are not a listener of this
// process. It requires that mu is held.
func (r *registry) foreign(key sourceKey, addrs []netip.Addr) []netip.Addr {
	port, err := strconv.ParseUint(key.port, 10, 16)
	if err != nil {
		return addrs // it is a port since the Corefile was read
	}
	return slices.DeleteFunc(slices.Clone(addrs), func(addr netip.Addr) bool {
		return r.ours(netip.AddrPortFrom(addr, uint16(port)))
	})
}

// ours reports whether a server of this process listens there. It requires that mu is
// held.
func (r *registry) ours(at netip.AddrPort) bool {
	listeners := r.listeners
	for _, g := range r.held {
		listeners = append(slices.Clip(listeners), g.listeners()...)
	}
	return slices.ContainsFunc(listeners, func(l netip.AddrPort) bool { return l.Port() == at.Port() }) &&
		listenedOn(at, listeners, r.outside.local())
}

// listenedOn reports whether packets for at reach one of the listeners, local being the
// addresses of this host. One that listens on a certain address gets what is for it and
// no more: systemd-resolved at 127.0.0.53 is another than we at 127.0.0.1.
func listenedOn(at netip.AddrPort, listeners []netip.AddrPort, local []netip.Addr) bool {
	addr := at.Addr().Unmap()
	if addr == netip.IPv4Unspecified() { // a packet for it goes to loopback
		addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	} else if addr == netip.IPv6Unspecified() {
		addr = netip.IPv6Loopback()
	}
	here := addr.IsLoopback() || slices.ContainsFunc(local, func(l netip.Addr) bool { return l.Unmap().WithZone("") == addr.WithZone("") })
	return slices.ContainsFunc(listeners, func(l netip.AddrPort) bool {
		switch bound := l.Addr().Unmap(); {
		case l.Port() != at.Port():
			return false
		case bound == netip.IPv4Unspecified():
			return here && addr.Is4()
		case bound.IsUnspecified():
			return here
		default:
			return bound.WithZone("") == addr.WithZone("")
		}
	})
}

// localAddrs returns the addresses of this host.
func localAddrs() []netip.Addr {
	found, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var addrs []netip.Addr
	for _, a := range found {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			addrs = append(addrs, prefix.Addr())
		}
	}
	return addrs
}

// listeners returns where the server blocks of the generation are to listen, as far as
// they have a stanza of ours. Those of all are known when they do listen: see
// heardOfServers.
func (g *generation) listeners() []netip.AddrPort {
	var all []netip.AddrPort
	for _, server := range g.servers {
		for _, host := range server.ListenHosts {
			if host == "" {
				host = "::"
			}
			if at, err := netip.ParseAddrPort(net.JoinHostPort(host, server.Port)); err == nil {
				all = append(all, at)
			}
		}
	}
	return all
}

// heardOfServers takes from caddy where an instance that has just started listens.
func heardOfServers(event caddy.EventName, info any) error {
	instance, ok := info.(*caddy.Instance)
	if event != caddy.InstanceStartupEvent || !ok {
		return nil
	}
	var all []netip.AddrPort
	for _, server := range instance.Servers() {
		for _, addr := range []net.Addr{server.Addr(), server.LocalAddr()} {
			if addr == nil {
				continue
			}
			if at, err := netip.ParseAddrPort(addr.String()); err == nil {
				all = append(all, at)
			}
		}
	}
	process.mu.Lock()
	process.listeners = all
	process.mu.Unlock()
	process.reconcile(time.Now())
	return nil
}

// serversOf returns the servers of the controller's server block, one for each key.
func serversOf(c *caddy.Controller) []*dnsserver.Config {
	index := c.ServerBlockKeyIndex
	defer func() { c.ServerBlockKeyIndex = index }()
	servers := []*dnsserver.Config{dnsserver.GetConfig(c)}
	for i := range c.ServerBlockKeys {
		if i != index {
			c.ServerBlockKeyIndex = i
			servers = append(servers, dnsserver.GetConfig(c))
		}
	}
	return servers
}

// checkKey is a server, and the zone of the names that it is asked for: it may be that
// only those come back to us.
type checkKey struct {
	target target
	from   string
}

// check finds out whether what a server is asked comes back to us. It is for servers of
// files and host names: of an address that is written in the Corefile, which may be
// another server block of ours, the plugin loop says so.
type check struct {
	checkKey
	registry *registry
	up       *upstream
	cancel   context.CancelFunc

	// looped, guarded by registry.mu, says that it does: the server is left out.
	looped bool
}

// recheck begins the checks of servers that are new, and ends those of servers that
// left. It requires that mu is held.
func (r *registry) recheck() {
	wanted := make(map[checkKey]bool)
	for _, g := range r.generations {
		for _, f := range g.forwarders {
			for i, t := range f.allTo() {
				if s := f.sources[i]; s != nil {
					for _, addr := range r.foreign(s.sourceKey, s.addrs) {
						key := checkKey{t.target(addr), f.From}
						wanted[key] = true
						r.check(key, r.upstreams[f.keyFor(key.target, f.clients()[0])])
					}
				}
			}
		}
	}
	for key, c := range r.checks {
		if !wanted[key] {
			c.cancel()
			delete(r.checks, key)
		}
	}
}

// check begins to check a server, unless that is done. It requires that mu is held.
func (r *registry) check(key checkKey, up *upstream) {
	if r.checks[key] != nil || up == nil {
		return
	}
	c := &check{checkKey: key, registry: r, up: up}
	var ctx context.Context
	ctx, c.cancel = context.WithCancel(context.Background())
	r.checks[key] = c
	go c.run(ctx)
}

// run asks until there is an answer that did not come from us. The server is used
// meanwhile: nobody waits for this.
func (c *check) run(ctx context.Context) {
	for pause := retryMin; ; pause = min(2*pause, checkAgain) {
		answered, looped := c.ask(ctx)
		switch {
		case looped:
			c.found(ctx, true)
			pause = checkAgain
		case answered:
			c.found(ctx, false)
			return
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// ask asks the server for a name that nobody else can know of, and reports whether it
// has answered, and whether the question has come back to us. A failure is no answer: who
// forwards to us fails as long as we do not listen yet.
func (c *check) ask(ctx context.Context) (answered, looped bool) {
	question := new(dns.Msg).SetQuestion(unheardOf(c.from), dns.TypeHINFO) // as the plugin loop asks
	q, err := prepare(question)
	if err != nil {
		return false, false // it has one question
	}
	ctx, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	back := c.registry.questions.add(question.Question[0].Name, cancel)
	reply, err := c.up.exchange(ctx, q, true)
	answered = err == nil && (reply.Rcode == dns.RcodeSuccess || reply.Rcode == dns.RcodeNameError)
	return answered, back()
}

// unheardOf returns a name in the zone that exists nowhere.
func unheardOf(zone string) string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	name := fmt.Sprintf("%d.%d.", binary.BigEndian.Uint64(b[:8])>>1, binary.BigEndian.Uint64(b[8:])>>1)
	if zone == "." {
		return name
	}
	return name + zone
}

// found takes whether the server leads back to us.
func (c *check) found(ctx context.Context, looped bool) {
	r := c.registry
	r.mu.Lock()
	news := ctx.Err() == nil && c.looped != looped
	if news {
		c.looped = looped
	}
	r.mu.Unlock()
	switch {
	case !news:
		return
	case looped:
		log.Errorf("%s leads back to this process for names in %s, so it is left out; it is asked again every %s", c.target, c.from, checkAgain)
	default:
		log.Infof("%s leads back to this process no more", c.target)
	}
	r.reconcile(time.Now())
}

// questions are the names that are asked for to see whether they come back.
type questions struct {
	mu    sync.Mutex
	asked map[string]*asked
}

// asked is one of them.
type asked struct {
	back bool
	stop func()
}

// add remembers a name. stop is called when it comes back. The function returned forgets
// it and reports whether it has.
func (q *questions) add(name string, stop func()) (end func() bool) {
	a := &asked{stop: stop}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.asked == nil {
		q.asked = make(map[string]*asked)
	}
	q.asked[name] = a
	return func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		delete(q.asked, name)
		return a.back
	}
}

// comesBack reports whether a question for name, in lower case, is one of ours.
func (q *questions) comesBack(name string) bool {
	q.mu.Lock()
	a := q.asked[name]
	if a != nil {
		a.back = true
	}
	q.mu.Unlock()
	if a == nil {
		return false
	}
	a.stop()
	return true
}
