package pool

import (
	"slices"
	"testing"
	"time"
)

func TestHoldGrowsOnlyForWhoFallsSoonAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		between []time.Duration // from each return to the next fall
		want    []time.Duration // holds
	}{
		"the first has none":                     {nil, []time.Duration{0}},
		"again within a minute":                  {[]time.Duration{30 * time.Second}, []time.Duration{0, 5 * time.Second}},
		"again after more than a minute":         {[]time.Duration{61 * time.Second}, []time.Duration{0, 0}},
		"it doubles":                             {repeat(time.Second, 4), []time.Duration{0, 5 * time.Second, 10 * time.Second, 20 * time.Second, 40 * time.Second}},
		"up to five minutes":                     {repeat(time.Second, 9), []time.Duration{0, 5e9, 10e9, 20e9, 40e9, 80e9, 160e9, 300e9, 300e9, 300e9}},
		"a quiet while keeps what it has grown":  {[]time.Duration{time.Second, time.Second, 5 * time.Minute}, []time.Duration{0, 5e9, 10e9, 10e9}},
		"ten quiet minutes forgive, and no less": {[]time.Duration{time.Second, 11 * time.Minute}, []time.Duration{0, 5e9, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			p, g, ids := newTestPool(t, "sequential", 2, DefaultRules())
			now := t0.Add(time.Second)
			var got []time.Duration
			for i := range tc.want {
				tr := eject(t, p, g, &now, ids[0])
				got = append(got, tr.Hold)
				if i < len(tc.between) {
					comeBack(t, p, &now, ids[0])
					if up := now; up.Before(tr.At.Add(tr.Hold)) {
						t.Errorf("back after %v, want a hold of %v", up.Sub(tr.At), tr.Hold)
					}
					now = now.Add(tc.between[i] - 450*ms) // the fall itself takes 250 + 2×100 ms
				}
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("holds = %v, want %v", got, tc.want)
			}
		})
	}
}

func repeat(d time.Duration, n int) []time.Duration { return slices.Repeat([]time.Duration{d}, n) }
