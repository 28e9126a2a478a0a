package healthforward

import (
	"errors"
	"sync"

	"steadfast.internal/plugin/healthforward/internal/pool"

	"github.com/coredns/coredns/plugin"
	_ "github.com/coredns/coredns/plugin/pkg/proxy" // see proxyDuration
	"github.com/coredns/coredns/plugin/pkg/rcode"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

const subsystem = "healthforward"

// The labels to and proto name an upstream: its address, and udp or tcp. All
// other labels come from closed sets. None ever holds a query's name.
var (
	upstreamState = promauto.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: plugin.Namespace, Subsystem: subsystem, Name: "upstream_state",
		Help: "1 for the state that the upstream is in, 0 for the others.",
	}, []string{"to", "proto", "state"})

	upstreamAdmin = promauto.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: plugin.Namespace, Subsystem: subsystem, Name: "upstream_admin",
		Help: "1 for what an operator wants of the upstream, 0 for the others.",
	}, []string{"to", "proto", "admin"})

	transitionsTotal = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: plugin.Namespace, Subsystem: subsystem, Name: "transitions_total",
		Help: "Counter of changes to a state, by cause.",
	}, []string{"to", "proto", "state", "cause"})

	attemptsTotal = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: plugin.Namespace, Subsystem: subsystem, Name: "attempts_total",
		Help: "Counter of queries sent to the upstream, by the reason for sending.",
	}, []string{"to", "proto", "reason"})

	attemptDuration = promauto.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: plugin.Namespace, Subsystem: subsystem, Name: "attempt_duration_seconds",
		Help:                        "Histogram of the time from sending a query to its answer.",
		Buckets:                     plugin.TimeBuckets,
		NativeHistogramBucketFactor: plugin.NativeHistogramBucketFactor,
	}, []string{"to", "proto"})

	attemptFailuresTotal = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: plugin.Namespace, Subsystem: subsystem, Name: "attempt_failures_total",
		Help: "Counter of attempts that failed or were late, by what was seen of them.",
	}, []string{"to", "proto", "outcome"})

	mismatchesTotal = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: plugin.Namespace, Subsystem: subsystem, Name: "mismatches_total",
		Help: "Counter of messages from the upstream that were no reply to any query: forged, broken or far too late.",
	}, []string{"to", "proto"})

	wouldEjectTotal = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: plugin.Namespace, Subsystem: subsystem, Name: "would_eject_total",
		Help: "Counter of times that the rules would eject the upstream, whether they are enforced or not, by cause.",
	}, []string{"to", "proto", "cause"})

	shadowsTotal = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: plugin.Namespace, Subsystem: subsystem, Name: "shadows_total",
		Help: "Counter of copies of queries by which the upstream was tested, by outcome.",
	}, []string{"to", "proto", "outcome"})

	probesTotal = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: plugin.Namespace, Subsystem: subsystem, Name: "probes_total",
		Help: "Counter of probes, by outcome.",
	}, []string{"to", "proto", "outcome"})

	hedgesDeniedTotal = promauto.NewCounter(prometheus.CounterOpts{
		Namespace: plugin.Namespace, Subsystem: subsystem, Name: "hedges_denied_total",
		Help: "Counter of further attempts that the budget did not pay for.",
	})

	unansweredTotal = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: plugin.Namespace, Subsystem: subsystem, Name: "unanswered_total",
		Help: "Counter of queries that no upstream answered, by reason.",
	}, []string{"reason"})
)

// proxyDuration is the histogram that forward feeds, for dashboards that know it.
// Its owner is imported so that it is there before we look for it.
var proxyDuration = registered(prometheus.NewHistogramVec(prometheus.HistogramOpts{
	Namespace: plugin.Namespace, Subsystem: "proxy", Name: "request_duration_seconds",
	Help:                        "Histogram of the time each request took.",
	Buckets:                     plugin.TimeBuckets,
	NativeHistogramBucketFactor: plugin.NativeHistogramBucketFactor,
}, []string{"proxy_name", "to", "rcode"}))

// registered returns the collector that is registered as c is, or c.
func registered[C prometheus.Collector](c C) C {
	err := prometheus.Register(c)
	if there, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		return there.ExistingCollector.(C)
	}
	if err != nil {
		panic(err) // another CoreDNS: the test of the metrics says so first
	}
	return c
}

// perUpstream are the vectors whose series go when their upstream does.
var perUpstream = []interface {
	DeletePartialMatch(prometheus.Labels) int
}{upstreamState, upstreamAdmin, transitionsTotal, attemptsTotal, attemptDuration, attemptFailuresTotal, mismatchesTotal, probesTotal, shadowsTotal, wouldEjectTotal}

// outcomes maps each outcome to its word for metrics.
var outcomes = [...]string{
	pool.Abandoned:   "abandoned",
	pool.Answered:    "answered",
	pool.Failed:      "failed",
	pool.Outdone:     "outdone",
	pool.Late:        "late",
	pool.Lost:        "lost",
	pool.LostToPeer:  "lost_to_peer",
	pool.Refused:     "refused",
	pool.Blocked:     "blocked",
	pool.Unreachable: "unreachable",
}

// upstreamMetrics are the series of an upstream, looked up once: that is cheaper,
// and what is still under way when the upstream leaves does not make them again.
type upstreamMetrics struct {
	attempts   [len(reasons)]prometheus.Counter
	failures   [len(outcomes)]prometheus.Counter
	probes     [len(outcomes)]prometheus.Counter
	shadows    [len(outcomes)]prometheus.Counter
	wouldEject map[pool.Cause]prometheus.Counter
	duration   prometheus.Observer
	mismatches prometheus.Counter
}

func newUpstreamMetrics(addr, proto string) upstreamMetrics {
	m := upstreamMetrics{
		duration:   attemptDuration.WithLabelValues(addr, proto),
		mismatches: mismatchesTotal.WithLabelValues(addr, proto),
		wouldEject: make(map[pool.Cause]prometheus.Counter),
	}
	for _, cause := range pool.Ejections() {
		m.wouldEject[cause] = wouldEjectTotal.WithLabelValues(addr, proto, cause.String())
	}
	for why, word := range reasons {
		m.attempts[why] = attemptsTotal.WithLabelValues(addr, proto, word)
	}
	for outcome, word := range outcomes {
		m.probes[outcome] = probesTotal.WithLabelValues(addr, proto, word)
		m.shadows[outcome] = shadowsTotal.WithLabelValues(addr, proto, word)
		if o := pool.Outcome(outcome); o != pool.Answered && o != pool.Abandoned {
			m.failures[outcome] = attemptFailuresTotal.WithLabelValues(addr, proto, word)
		}
	}
	return m
}

// setState shows s as the state of u.
func setState(u *upstream, s pool.State) {
	for _, each := range pool.States() {
		value := 0.0
		if each == s {
			value = 1
		}
		upstreamState.WithLabelValues(u.addr, u.proto, each.String()).Set(value)
	}
}

// setAdmin shows a as what an operator wants of u.
func setAdmin(u *upstream, a pool.Admin) {
	for _, each := range steerable {
		value := 0.0
		if each == a {
			value = 1
		}
		upstreamAdmin.WithLabelValues(u.addr, u.proto, each.String()).Set(value)
	}
}

// proxySeries are the series of an upstream in forward's histogram. They are made when
// they are needed, for most rcodes never come, but no more once it has left.
type proxySeries struct {
	mu    sync.RWMutex
	gone  bool
	known map[proxyKey]prometheus.Observer
}

type proxyKey struct {
	directive string
	rcode     int
}

// observe adds how many seconds an answer with that rcode took.
func (s *proxySeries) observe(directive, to string, code int, seconds float64) {
	key := proxyKey{directive, code}
	s.mu.RLock()
	series := s.known[key]
	s.mu.RUnlock()
	if series == nil {
		series = s.make(key, to)
	}
	if series != nil {
		series.Observe(seconds)
	}
}

func (s *proxySeries) make(key proxyKey, to string) prometheus.Observer {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return nil
	}
	if s.known == nil {
		s.known = make(map[proxyKey]prometheus.Observer)
	}
	s.known[key] = proxyDuration.WithLabelValues(key.directive, to, rcode.ToString(key.rcode))
	return s.known[key]
}

// forget deletes the series of an upstream that left: those of its address and
// transport, and those of its address, unless they go on for another one. What it still
// answers makes no new ones.
func (u *upstream) forget(proto, addr bool) {
	u.proxy.mu.Lock()
	defer u.proxy.mu.Unlock()
	u.proxy.gone = true
	if proto {
		for _, vector := range perUpstream {
			vector.DeletePartialMatch(prometheus.Labels{"to": u.addr, "proto": u.proto})
		}
	}
	if addr {
		for _, directive := range directives {
			proxyDuration.DeletePartialMatch(prometheus.Labels{"to": u.addr, "proxy_name": directive})
		}
	}
}
