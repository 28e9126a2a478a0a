package healthforward

import (
	"context"
	"sync/atomic"
	"time"

	"steadfast.internal/plugin/healthforward/internal/pool"
	"steadfast.internal/plugin/healthforward/internal/transport"

	"github.com/miekg/dns"
)

// plainFor is how long a server that rejects OPT records is asked without one.
const plainFor = time.Hour

// upstreamKey tells upstreams apart: where they are, how they are reached, and
// what they are judged by. Two stanzas with the same key share the upstream.
type upstreamKey struct {
	proto string // udp or tcp
	addr  string // IP:port
	rules pool.Rules
}

// upstream is one server over one transport.
type upstream struct {
	upstreamKey
	id pool.ID

	// shared reuses sockets and connections, fresh never does: what a probe passes
	// over, or a query is sent over again, must not be what failed before.
	shared, fresh transport.Exchanger

	metrics upstreamMetrics

	plainUntil atomic.Int64 // in Unix nanoseconds: no OPT before that
	refs       int          // guarded by registry.mu
}

func newUpstream(key upstreamKey, open opener) (*upstream, error) {
	u := &upstream{upstreamKey: key, metrics: newUpstreamMetrics(key.addr, key.proto)}
	mismatched := u.metrics.mismatches.Inc
	var err error
	if u.shared, err = open(key.proto, key.addr, transport.Options{Mismatched: mismatched}); err != nil {
		return nil, err
	}
	u.fresh, err = open(key.proto, key.addr, transport.Options{Mismatched: mismatched, Fresh: true})
	return u, err
}

// close lets go of what is idle. Whoever still asks the upstream is answered.
func (u *upstream) close() {
	u.shared.Close()
	u.fresh.Close()
}

// exchange sends q to the upstream and returns its reply. A server that does not
// know OPT records is asked again without.
func (u *upstream) exchange(ctx context.Context, q query, fresh bool) (*dns.Msg, error) {
	via := u.shared
	if fresh {
		via = u.fresh
	}
	if q.once || time.Now().UnixNano() < u.plainUntil.Load() {
		return via.Exchange(ctx, q.plain)
	}
	reply, err := via.Exchange(ctx, q.edns)
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
