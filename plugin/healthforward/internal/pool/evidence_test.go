package pool

import (
	"testing"
	"time"
)

// A fresh socket that is answered while pooled ones lose has these replaced, once in a
// while, and only what the new ones lose counts.
func TestFiveLossesInARowEject(t *testing.T) {
	for name, tc := range map[string]struct {
		results string // l: lost to a peer, a: answered, t: timed out, p: a probe passes
		want    State
	}{
		"four lost":                            {"llll", Suspect},
		"five lost":                            {"lllll", Ejected},
		"an answer between starts afresh":      {"llllall", Suspect},
		"a fresh socket is answered between":   {"llllpl", Suspect},
		"the new ones lose as well":            {"llllplllll", Ejected},
		"it is answered again between":         {"lpllllpl", Ejected},
		"time-outs count like those to a peer": {"ttttt", Ejected},
	} {
		t.Run(name, func(t *testing.T) {
			p, g, ids := newTestPool(t, "sequential", 2, DefaultRules())
			now := t0.Add(time.Second)
			for _, r := range tc.results {
				if r == 'p' {
					p.Report(now, nextProbeOf(t, p, &now, ids[0]), Answered)
					continue
				}
				ticket := ask(t, p, g, now, ids[0])
				now = now.Add(time.Second)
				p.Report(now, ticket, map[rune]Outcome{'l': LostToPeer, 'a': Answered, 't': Lost}[r])
				p.End(ticket)
			}
			if got := p.State(ids[0]); got != tc.want {
				t.Errorf("state = %v, want %v", got, tc.want)
			}
		})
	}
}
