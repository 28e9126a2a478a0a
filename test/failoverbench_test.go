package test

import (
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"
)

var longScenarios = flag.Bool("failover.long", false, "BenchmarkFailover plays the scenarios of many minutes too")

// BenchmarkFailover plays all scenarios against coredns with healthforward and
// with CoreDNS's forward, and prints a table: make failover. Its sub-benchmarks are
// called scenario/rate/variant.
func BenchmarkFailover(b *testing.B) {
	var plays []*summary
	for i := range scenarios {
		s := &scenarios[i]
		if s.long && !*longScenarios {
			continue
		}
		b.Run(s.name, func(b *testing.B) {
			for _, rate := range s.atRates() {
				b.Run(fmt.Sprint(rate), func(b *testing.B) { plays = append(plays, benchVariants(b, s, rate)...) })
			}
		})
	}
	if len(plays) > 0 {
		printPlays(os.Stdout, plays)
	}
}

func (s *scenario) atRates() []int {
	if len(s.rates) > 0 {
		return s.rates
	}
	return []int{500, 2}
}

// variants are those that the scenario is played with, ours last, so that what it
// is compared with is known then.
func (s *scenario) variants() []string {
	if _, ok := s.stanzas[unhedged]; ok {
		return []string{stock, unhedged, own}
	}
	return []string{stock, own}
}

func benchVariants(b *testing.B, s *scenario, rate int) []*summary {
	var plays []*summary
	beside := make(map[string]*summary)
	for _, variant := range s.variants() {
		b.Run(variant, func(b *testing.B) {
			for b.Loop() {
				played := runPlay(b, s, variant, rate)
				played.beside = beside
				beside[variant] = played
				for _, f := range columns {
					if word := f.show(played); word != "-" {
						b.ReportMetric(f.of(played), strings.ReplaceAll(f.name, " ", "-"))
					}
				}
				b.ReportMetric(0, "ns/op") // a play takes as long as it takes
			}
		})
		if played := beside[variant]; played != nil { // nil: -bench has left it out, or it has failed
			plays = append(plays, played)
		}
	}
	return plays
}

// printPlays prints one row for each play. What breaks a claim is marked, for ours.
func printPlays(out io.Writer, plays []*summary) {
	fmt.Fprintln(out, "\nFailed queries and slow ones are those that should have been answered. \"on bad\" counts clients'\n"+
		"queries on an upstream later than 1 s after it went bad; \"load\" is what upstreams got for each query;\n"+
		"\"own lag\" is how late the bench itself was, at most. (!) is not as it should be.")
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	head := []string{"scenario", "q/s", "plugin"}
	for _, f := range columns {
		head = append(head, f.name)
	}
	fmt.Fprintln(w, strings.Join(append(head, "besides"), "\t"))
	for _, s := range plays {
		row := []string{s.scenario.name, fmt.Sprint(s.rate), s.variant}
		for _, f := range columns {
			row = append(row, f.show(s)+s.mark(f))
		}
		var besides []string
		for _, c := range s.scenario.claims() {
			if !slices.Contains(columns, c.figure) {
				besides = append(besides, c.name+" "+c.show(s)+s.mark(c.figure))
			}
		}
		fmt.Fprintln(w, strings.Join(append(row, strings.Join(besides, ", ")), "\t"))
	}
	w.Flush()
}

func (s *scenario) claims() []claim { return slices.Concat(s.always, s.idle) }

// mark says whether a figure breaks a claim of the scenario.
func (s *summary) mark(f *figure) string {
	if s.variant != own {
		return ""
	}
	for _, c := range s.scenario.claims() {
		if c.figure == f && !c.keptBy(s) {
			return " (!)"
		}
	}
	return ""
}

// TestFailoverHidesFaultsAndTellsNoLies plays the scenarios in which answers and
// orders are at stake, and judges what does not depend on how fast the machine is.
func TestFailoverHidesFaultsAndTellsNoLies(t *testing.T) {
	// Slow enough for a race build of all the plays at once on two cores.
	const rate, lasts = 50, 5 * time.Second
	for _, s := range scenarios {
		if !s.inTest {
			continue
		}
		s.lasts = min(s.lasts, lasts)
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			played := runPlay(t, &s, own, rate)
			for _, c := range s.always {
				if !c.keptBy(played) {
					t.Errorf("%s, want %s", c.show(played), c)
				}
			}
			t.Logf("%d queries, %d failed as expected, load %s, max %s ms", played.queries, played.excused, traffic.show(played), slowest.show(played))
		})
	}
}
