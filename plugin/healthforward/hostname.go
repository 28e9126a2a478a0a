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

	"github.com/miekg/dns"
)

// Numbers of following a host name. See DESIGN.md, D14.
const (
	// A name is looked up again when its TTL is over, within these bounds.
	ttlMin = 5 * time.Second
	ttlMax = time.Hour
	// ttlUnknown stands for the TTL of what has none, as the hosts file.
	ttlUnknown = 30 * time.Second
	// retryMin is when a look-up that failed is repeated. The pause doubles up to
	// retryMax, but not while nothing is known: then somebody waits for it.
	retryMin = time.Second
	retryMax = 30 * time.Second

	// askAgain is how long one resolver is waited for before another one is asked, or
	// the same once more.
	askAgain = 500 * time.Millisecond
	// askRounds is how often each is asked at most: packets get lost.
	askRounds = 6
	// maxAddresses bounds what an answer can make of us, as many as of a file.
	maxAddresses = 64

	systemResolvConf = "/etc/resolv.conf"
)

// lookUp follows a host name until ctx is over.
func (s *source) lookUp(ctx context.Context) {
	r := s.registry
	resolvers := strings.Fields(s.resolvers)
	for failures := 0; ; {
		began := time.Now()
		limited, cancel := context.WithTimeout(ctx, lookupTimeout)
		addrs, ttl, err := r.outside.lookup(limited, s.host, resolvers)
		cancel()
		if err != nil {
			failures++
			err = fmt.Errorf("resolve %s: %w", s.host, err)
		} else {
			failures, began = 0, time.Now() // the answer's time begins now
		}
		s.learn(ctx, addrs, err)
		select {
		case <-s.looked:
		default:
			close(s.looked)
		}
		r.mu.Lock()
		known := len(s.addrs) > 0
		r.mu.Unlock()
		timer := time.NewTimer(until(began.Add(lookAgainAfter(ttl, failures, known))))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// lookAgainAfter returns how long after an answer the next look-up is due, while it
// holds, or how long after the begin of one that failed, by the failures in a row. known
// says that there are upstreams to go on with.
func lookAgainAfter(ttl time.Duration, failures int, known bool) time.Duration {
	switch {
	case failures == 0:
		return min(max(ttl, ttlMin), ttlMax)
	case !known:
		return retryMin
	}
	return min(retryMin<<min(failures-1, 10), retryMax)
}

// lookupSystem returns the addresses of a host and how long they hold: from the hosts
// file, else from the resolvers in turn, else from those of the system. Of the latter
// those are passed over that ours says are this process: it would wait for itself. If
// nobody is left, Go's resolver knows what else there is.
func lookupSystem(ctx context.Context, host string, resolvers []string, ours func(netip.AddrPort) bool) ([]netip.Addr, time.Duration, error) {
	// With a dot at its end a name is not looked for in the file.
	if addrs, err := lookupWith(ctx, &hostsFile, strings.TrimSuffix(host, ".")); err == nil {
		return addrs, ttlUnknown, nil
	}
	if len(resolvers) == 0 {
		resolvers = systemResolvers(ours)
	}
	if len(resolvers) == 0 {
		addrs, err := lookupWith(ctx, net.DefaultResolver, dns.Fqdn(host)) // no search list
		return addrs, ttlUnknown, err
	}
	return lookupAt(ctx, host, resolvers)
}

var errNoDial = errors.New("the hosts file only")

// hostsFile is Go's resolver without a network: what it finds is in the hosts file.
//
//nolint:gochecknoglobals // a constant, which Go has not for this type
var hostsFile = net.Resolver{
	PreferGo: true,
	Dial:     func(context.Context, string, string) (net.Conn, error) { return nil, errNoDial },
}

func lookupWith(ctx context.Context, r *net.Resolver, host string) ([]netip.Addr, error) {
	addrs, err := r.LookupNetIP(ctx, "ip", host)
	return sorted(addrs), err
}

// sorted returns the addresses, each once and in the same order each time: it may be a
// ranking.
func sorted(addrs []netip.Addr) []netip.Addr {
	for i, addr := range addrs {
		addrs[i] = addr.Unmap()
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

// systemResolvers returns the nameservers of the system, but for those that are ours.
func systemResolvers(ours func(netip.AddrPort) bool) []string {
	content, err := resolvconf.Read(systemResolvConf)
	if err != nil {
		return nil
	}
	var resolvers []string
	for _, addr := range resolvconf.Parse(content).Nameservers {
		if at := netip.AddrPortFrom(addr, 53); !ours(at) {
			resolvers = append(resolvers, at.String())
		}
	}
	return resolvers
}

var errNoAddress = errors.New("it has no address")

// lookupAt asks resolvers for both families of addresses at once. If one of the two is
// not to be found out, its error comes with the other's addresses.
func lookupAt(ctx context.Context, host string, resolvers []string) ([]netip.Addr, time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	families := []uint16{dns.TypeA, dns.TypeAAAA}
	answers := make(chan looked, len(families))
	for _, family := range families {
		go func() { answers <- lookupFamily(ctx, host, family, resolvers) }()
	}
	var all looked
	for range families {
		a := <-answers
		all.addrs = append(all.addrs, a.addrs...)
		all.err = errors.Join(all.err, a.err)
		if len(a.addrs) > 0 && (all.ttl == 0 || a.ttl < all.ttl) {
			all.ttl = a.ttl
		}
	}
	if all.err == nil && len(all.addrs) == 0 {
		all.err = errNoAddress
	}
	all.addrs = sorted(all.addrs)
	return all.addrs[:min(len(all.addrs), maxAddresses)], max(all.ttl, 1), all.err
}

// looked is what one resolver says of one family.
type looked struct {
	addrs []netip.Addr
	ttl   time.Duration
	err   error
}

// lookupFamily asks the resolvers in turn until one of them knows. One that does not
// answer soon does not hold up the next, and is asked again.
func lookupFamily(ctx context.Context, host string, family uint16, resolvers []string) looked {
	asked := 0
	last := looked{err: errors.New("nobody was asked")}
	r := race[looked]{
		admit: func(why reason, _, _ int) (attempt[looked], bool) {
			if asked >= askRounds*len(resolvers) || why == failed && asked >= len(resolvers) {
				return attempt[looked]{}, false
			}
			at := resolvers[asked%len(resolvers)]
			asked++
			try := func() looked { return lookupOnce(ctx, host, family, at) }
			return attempt[looked]{patience: askAgain, timeout: lookupTimeout, try: try}, true
		},
		late: func(int, reason, time.Time) {},
		settle: func(now time.Time, results []looked, _ bool) (int, time.Time) {
			if len(results) > 0 {
				last = results[len(results)-1]
			}
			return slices.IndexFunc(results, func(l looked) bool { return l.err == nil }), now
		},
		spawn: func(f func()) { go f() },
	}
	won, ok := r.run(ctx)
	switch {
	case ok:
		return won
	case ctx.Err() != nil:
		return looked{err: ctx.Err()}
	}
	return last
}

// lookupOnce asks one resolver. That a name does not exist is an answer, as far as this
// family goes.
func lookupOnce(ctx context.Context, host string, family uint16, at string) looked {
	question := new(dns.Msg).SetQuestion(dns.Fqdn(host), family)
	question.SetEdns0(udpSize, false)
	reply, _, err := (&dns.Client{Timeout: lookupTimeout}).ExchangeContext(ctx, question, at)
	if err == nil && reply.Truncated {
		reply, _, err = (&dns.Client{Net: protoTCP, Timeout: lookupTimeout}).ExchangeContext(ctx, question, at)
	}
	switch {
	case err != nil:
		return looked{err: fmt.Errorf("ask %s: %w", at, err)}
	case reply.Rcode != dns.RcodeSuccess && reply.Rcode != dns.RcodeNameError:
		return looked{err: fmt.Errorf("ask %s: %s", at, dns.RcodeToString[reply.Rcode])}
	}
	return addressesIn(reply, family)
}

// addressesIn returns the addresses of a reply, and how long all that leads to them
// holds.
func addressesIn(reply *dns.Msg, family uint16) looked {
	var l looked
	ttl := uint32(ttlMax / time.Second)
	for _, rr := range reply.Answer {
		ttl = min(ttl, rr.Header().Ttl)
		var ip net.IP
		switch rr := rr.(type) {
		case *dns.A:
			ip = rr.A
		case *dns.AAAA:
			ip = rr.AAAA
		}
		if addr, ok := netip.AddrFromSlice(ip); ok && rr.Header().Rrtype == family {
			l.addrs = append(l.addrs, addr)
		}
	}
	l.ttl = time.Duration(ttl) * time.Second
	return l
}
