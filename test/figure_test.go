package test

import (
	"fmt"
	"math"
)

// figure is a number that a play comes to.
type figure struct {
	name   string
	digits int // behind the point
	of     func(*summary) float64
}

// What the table shows of every play.
var (
	queries   = &figure{"queries", 0, func(s *summary) float64 { return float64(s.queries) }}
	failed    = &figure{"lost/failed", 0, func(s *summary) float64 { return float64(s.lost) }}
	over100ms = &figure{">100ms", 0, func(s *summary) float64 { return float64(s.over100ms) }}
	over1s    = &figure{">1s", 0, func(s *summary) float64 { return float64(s.over1s) }}
	slowest   = &figure{"max ms", 0, func(s *summary) float64 { return s.quantile(1) }}
	onBad     = &figure{"on bad", 0, func(s *summary) float64 {
		if s.scenario.unseen && s.variant == stock {
			return math.NaN() // its metrics do not say
		}
		return float64(s.onBad)
	}}
	traffic   = &figure{"load", 3, func(s *summary) float64 { return ratio(s.arrived, s.queries) }}
	ejections = &figure{"ejections", 0, func(s *summary) float64 { return s.ejections }}
	wrong     = &figure{"wrong", 0, func(s *summary) float64 { return float64(s.wrong) }}
	clientLag = &figure{"own lag ms", 0, func(s *summary) float64 { return milliseconds(s.clientLag) }}

	columns = []*figure{queries, failed, over100ms, over1s, slowest, onBad, traffic, ejections, wrong, clientLag}
)

// What it shows where a scenario asks for it.
var (
	excused     = &figure{"failed as expected", 0, func(s *summary) float64 { return float64(s.excused) }}
	copies      = &figure{"copies on bad", 0, func(s *summary) float64 { return float64(s.copies) }}
	trafficLate = &figure{"load after 2 s", 3, func(s *summary) float64 { return ratio(s.arrivedLate, s.queriesLate) }}
	slowLate    = &figure{">100ms after 600 ms", 0, func(s *summary) float64 { return float64(s.slowLate) }}
	firstGood   = &figure{"first good answer ms", 0, func(s *summary) float64 { return milliseconds(s.firstGood) }}
	lastFailure = &figure{"slowest failure ms", 0, func(s *summary) float64 { return milliseconds(s.lastFailure) }}
	median      = &figure{"p50 ms", 0, func(s *summary) float64 { return s.quantile(0.5) }}
	p99         = &figure{"p99 ms", 0, func(s *summary) float64 { return s.quantile(0.99) }}
	// inUse is known at a rate at which every upstream is asked all the time.
	inUse = &figure{"in use after ms", 0, func(s *summary) float64 {
		if s.rate < perUpstream {
			return math.NaN()
		}
		return milliseconds(s.inUseAfter)
	}}
	goodput = &figure{"answered, of stock's", 3, func(s *summary) float64 {
		if other := s.beside[stock]; other != nil {
			return ratio(s.inTime, other.inTime)
		}
		return math.NaN()
	}}
	p99OfUnhedged = &figure{"p99 of unhedged", 2, func(s *summary) float64 {
		if other := s.beside[unhedged]; other != nil {
			return s.quantile(0.99) / other.quantile(0.99)
		}
		return math.NaN()
	}}
)

func ratio(a, b int) float64 {
	if b == 0 {
		return math.NaN()
	}
	return float64(a) / float64(b)
}

// show writes the figure's value.
func (f *figure) show(s *summary) string {
	switch v := f.of(s); {
	case math.IsNaN(v):
		return "-"
	case math.IsInf(v, 0):
		return "never"
	default:
		return fmt.Sprintf("%.*f", f.digits, v)
	}
}

// claim is what must hold for a figure.
type claim struct {
	*figure
	text  string // how the limit is written
	holds func(s *summary, value float64) bool
}

// String is how the claim is written in a test's message.
func (c claim) String() string { return c.name + " " + c.text }

// keptBy reports whether the claim holds. A figure that is not known breaks none.
func (c claim) keptBy(s *summary) bool {
	v := c.of(s)
	return math.IsNaN(v) || c.holds(s, v)
}

func atMost(f *figure, limit float64) claim {
	return claim{f, fmt.Sprintf("<= %v", limit), func(_ *summary, v float64) bool { return v <= limit }}
}

func atLeast(f *figure, limit float64) claim {
	return claim{f, fmt.Sprintf(">= %v", limit), func(_ *summary, v float64) bool { return v >= limit }}
}

func none(f *figure) claim { return atMost(f, 0) }

// shown claims nothing.
func shown(f *figure) claim {
	return claim{f, "is anything", func(*summary, float64) bool { return true }}
}

// loadAtMost bounds what upstreams get for each query. Two packets are free.
func loadAtMost(f *figure, limit float64) claim {
	return atLoad(claim{f, fmt.Sprintf("<= %v", limit), func(s *summary, v float64) bool {
		return v <= limit+2/float64(s.queries)
	}})
}

// atLoad makes the claim where there are many queries. At 2 a second it takes seconds
// to see five go wrong, and a single hedge is 8 % of a play.
func atLoad(c claim) claim {
	holds := c.holds
	c.holds = func(s *summary, v float64) bool { return s.rate < perUpstream || holds(s, v) }
	return c
}

// noneSlow is what must hold where a fault is hidden. Two may meet a hiccup of the
// machine's scheduler.
var noneSlow = atMost(over100ms, 2)
