package searchexpand

import (
	"github.com/coredns/coredns/plugin"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// What befalls a suffix.
const (
	eventFailed  = "failed"   // a name under it is undecided
	eventOutrun  = "outrun"   // a later one's answer was given because it was silent
	eventOpened  = "opened"   // it failed too often in a row, and is skipped from now on
	eventSkipped = "skipped"  // a name under it was not asked for
	eventClosed  = "closed"   // a name under it was decided, so it is asked again
	eventLeftOut = "left_out" // its entry has no domain for the client of a query
)

// Whose budget is empty.
const (
	payerClient  = "client"
	payerProcess = "process"
)

// Label values are from closed sets: results, verdicts, events, budgets, suffixes of
// the configuration and our own listeners.
var (
	requestCount = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: plugin.Namespace,
		Subsystem: pluginName,
		Name:      "requests_total",
		Help:      "Counter of queries that were not passed on, by how they ended.",
	}, []string{"server", "result"})

	candidateCount = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: plugin.Namespace,
		Subsystem: pluginName,
		Name:      "candidates_total",
		Help:      "Counter of names asked for in place of the name of a query, by what was found.",
	}, []string{"server", "verdict"})

	walkDuration = promauto.NewHistogramVec(prometheus.HistogramOpts{
		Namespace:                   plugin.Namespace,
		Subsystem:                   pluginName,
		Name:                        "walk_duration_seconds",
		Buckets:                     plugin.TimeBuckets,
		NativeHistogramBucketFactor: plugin.NativeHistogramBucketFactor,
		Help:                        "Histogram of the time from a query to the verdict on its name.",
	}, []string{"server"})

	suffixCount = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: plugin.Namespace,
		Subsystem: pluginName,
		Name:      "suffix_events_total",
		Help:      "Counter of what befell the domains of a search list, by domain and event.",
	}, []string{"suffix", "event"})

	unpaidCount = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: plugin.Namespace,
		Subsystem: pluginName,
		Name:      "unpaid_questions_total",
		Help:      "Counter of questions that could be answered from memory only, by whose budget was empty.",
	}, []string{"budget"})

	_ = promauto.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: plugin.Namespace,
		Subsystem: pluginName,
		Name:      "questions_in_flight",
		Help:      "Questions of this process that the rest of the plugin chain has not finished, those that nobody waits for included.",
	}, func() float64 { return float64(inFlight.n.Load()) })
)
