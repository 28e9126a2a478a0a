package healthforward

import (
	"context"
	"crypto/tls"
	"errors"
	"sync/atomic"
	"time"

	"steadfast.internal/plugin/healthforward/internal/pool"
	"steadfast.internal/plugin/healthforward/internal/transport"

	"github.com/coredns/coredns/plugin/debug"
	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/miekg/dns"
)

// plainFor is how long a server that rejects OPT records is asked without one.
const plainFor = time.Hour

// upstreamKey tells upstreams apart: where they are, how they are reached, and
// what they are judged by. Two stanzas with the same key share the upstream.
type upstreamKey struct {
	proto      string // a transport's name
	addr       string // IP:port
	serverName string // for TLS; empty: the address is verified
	way        way
	rules      pool.Rules
}

// name is what logs call the upstream.
func (k upstreamKey) name() string {
	if k.serverName == "" {
		return k.proto + "://" + k.addr
	}
	return k.proto + "://" + k.addr + "%" + k.serverName
}

// keyFor returns the key of a target that a stanza forwards to, for queries that
// came over the client's transport: plain ones go on as they came.
func (c *Config) keyFor(t target, client string) upstreamKey {
	k := upstreamKey{proto: t.scheme, addr: t.addr, serverName: t.serverName, way: c.Way, rules: c.Rules}
	if k.serverName == "" {
		k.serverName = c.Way.tlsName
	}
	k.way.tlsName = ""
	if t.scheme == schemePlain {
		k.proto, k.serverName, k.way.tlsID, k.way.httpMethod = client, "", "", ""
		// Most stanzas never see a query over TCP: such upstreams are left alone until one comes.
		k.rules.OnDemand = client == protoTCP && !c.ForceTCP
	} else {
		k.rules.IntervalMax = max(k.rules.IntervalMax, encryptedInterval) // a probe is a handshake there
	}
	return k
}

// encryptedInterval is what the interval of probes grows to over TLS, HTTPS and QUIC.
const encryptedInterval = 15 * time.Second

// upstream is one server over one transport.
type upstream struct {
	upstreamKey
	id pool.ID

	// shared reuses sockets and connections, fresh never does: what a probe passes
	// over, or a query is sent over again, must not be what failed before.
	shared atomic.Pointer[transport.Exchanger]
	fresh  transport.Exchanger
	reopen func() (transport.Exchanger, error) // makes another shared one

	probe   query
	metrics upstreamMetrics
	proxy   proxySeries

	plainUntil atomic.Int64 // in Unix nanoseconds: no OPT before that
	busyUntil  atomic.Int64 // likewise: it asked to be left alone (HTTP's Retry-After)
	refs       int          // guarded by registry.mu
}

func newUpstream(key upstreamKey, conf *tls.Config, open opener) (*upstream, error) {
	u := &upstream{upstreamKey: key, metrics: newUpstreamMetrics(key.addr, key.proto)}
	opts := transport.Options{
		Mismatched: u.mismatched,
		Source:     key.way.source.AsSlice(),
		HTTPMethod: key.way.httpMethod,
		Expire:     key.way.expire,
		MaxAge:     key.way.maxAge,
		MaxIdle:    key.way.maxIdle,
	}
	if conf != nil {
		opts.TLS = conf.Clone()
	} else {
		opts.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	opts.TLS.ServerName = key.serverName
	reuse := opts
	u.reopen = func() (transport.Exchanger, error) { return open(key.proto, key.addr, reuse) }
	shared, err := u.reopen()
	if err != nil {
		return nil, err
	}
	u.shared.Store(&shared)
	opts.Fresh = true
	if u.fresh, err = open(key.proto, key.addr, opts); err != nil {
		return nil, err
	}
	ask := new(dns.Msg).SetQuestion(key.way.probeName, key.way.probeType)
	ask.RecursionDesired = !key.way.probeNoRD
	u.probe, err = prepare(ask)
	return u, err
}

// mismatched counts a message that was no reply to any query, and shows it where
// the debug plugin is there.
func (u *upstream) mismatched(packet []byte) {
	u.metrics.mismatches.Inc()
	if m := new(dns.Msg); clog.D.Value() && m.Unpack(packet) == nil {
		debug.Hexdumpf(m, "no reply to any query, from %s", u.name())
	}
}

// close lets go of what is idle. Whoever still asks the upstream is answered.
func (u *upstream) close() {
	(*u.shared.Load()).Close()
	u.fresh.Close()
}

// flush gives up all sockets and connections: what was pooled before an ejection
// must not be what meets the first query after it.
func (u *upstream) flush() {
	next, err := u.reopen()
	if err != nil {
		return // it went well with the same arguments before
	}
	(*u.shared.Swap(&next)).Close()
}

// exchange sends q to the upstream and returns its reply. A server that does not
// know OPT records is asked again without.
func (u *upstream) exchange(ctx context.Context, q query, fresh bool) (*dns.Msg, error) {
	via := *u.shared.Load()
	if fresh {
		via = u.fresh
	}
	reply, err := u.exchangeVia(ctx, via, q)
	if busy, ok := errors.AsType[transport.BusyError](err); ok {
		u.busyUntil.Store(time.Now().Add(busy.After).UnixNano())
	}
	return reply, err
}

// busy reports whether the upstream asked to be left alone for a while.
func (u *upstream) busy(now time.Time) bool { return now.UnixNano() < u.busyUntil.Load() }

func (u *upstream) exchangeVia(ctx context.Context, via transport.Exchanger, q query) (*dns.Msg, error) {
	if q.once || time.Now().UnixNano() < u.plainUntil.Load() {
		return via.Exchange(ctx, q.plain)
	}
	edns := q.wide
	if u.proto == protoUDP {
		edns = q.edns
	}
	reply, err := via.Exchange(ctx, edns)
	if err != nil || !rejectsOPT(reply) {
		return reply, err
	}
	if plain, err := via.Exchange(ctx, q.plain); err == nil {
		if !rejectsOPT(plain) {
			u.plainUntil.Store(time.Now().Add(plainFor).UnixNano())
		}
		return plain, nil
	}
	return reply, nil // as good an answer as there is
}
