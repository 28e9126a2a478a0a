package pool

import (
	"testing"
	"time"
	"unsafe"
)

func TestAQuantileIsAtMostAQuarterTooLarge(t *testing.T) {
	for took := time.Microsecond; took < 16*time.Second; took += took/7 + time.Microsecond {
		s := sketch{period: time.Second}
		s.add(t0, took)
		took = took.Truncate(time.Microsecond)
		if got, n := s.quantile(t0, 0.5); n != 1 || got < took || got > took+took/4+1 {
			t.Errorf("median of one of %v = %v of %d, want up to a quarter more", took, got, n)
		}
	}
}

func TestQuantile(t *testing.T) {
	fast, slow := 2*ms, 800*ms
	for name, tc := range map[string]struct {
		fast, slow int
		share      float64
		want       time.Duration // at least, and at most a quarter more
	}{
		"nothing is known":                 {0, 0, 0.95, 0},
		"one":                              {1, 0, 0.95, fast},
		"the median of as many of each":    {10, 11, 0.5, slow},
		"the median where more are fast":   {11, 10, 0.5, fast},
		"p95 where one of 100 is slow":     {99, 1, 0.95, fast},
		"p95 where four of 100 are slow":   {96, 4, 0.95, fast},
		"p95 where six of 100 are slow":    {94, 6, 0.95, slow},
		"p95 where all are slow":           {0, 100, 0.95, slow},
		"the share of none is the fastest": {1, 99, 0, fast},
		"as much of a great many":          {96_000, 4_000, 0.95, fast},
		"more of a great many":             {94_000, 6_000, 0.95, slow},
	} {
		t.Run(name, func(t *testing.T) {
			s := sketch{period: time.Second}
			for range tc.fast {
				s.add(t0, fast)
			}
			for range tc.slow {
				s.add(t0, slow)
			}
			got, n := s.quantile(t0, tc.share)
			if n != tc.fast+tc.slow || got < tc.want || got > tc.want+tc.want/4 {
				t.Errorf("quantile = %v of %d, want %v of %d", got, n, tc.want, tc.fast+tc.slow)
			}
		})
	}
}

func TestASketchForgetsBetweenOneAndTwoPeriods(t *testing.T) {
	const period = 5 * time.Second
	for name, tc := range map[string]struct {
		later []time.Duration // after the first sample, of further ones
		at    time.Duration
		want  int
	}{
		"at once":                              {nil, 0, 1},
		"just within a period":                 {nil, period - 1, 1},
		"after a period":                       {nil, period, 1},
		"just within two":                      {nil, 2*period - 1, 1},
		"after two":                            {nil, 2 * period, 0},
		"long after":                           {nil, time.Hour, 0},
		"what came in the first period stays":  {[]time.Duration{4 * time.Second}, 6 * time.Second, 2},
		"the second period gives up the first": {[]time.Duration{4 * time.Second, 6 * time.Second}, 11 * time.Second, 1},
		"the third gives up the second":        {[]time.Duration{6 * time.Second, 11 * time.Second}, 16 * time.Second, 1},
		"one within each":                      {[]time.Duration{6 * time.Second, 12 * time.Second}, 12 * time.Second, 2},
		"a clock that runs back gives up none": {[]time.Duration{-time.Hour}, -time.Hour, 2},
		"and goes on where it was":             {[]time.Duration{-time.Hour, time.Second}, time.Second, 3},
	} {
		t.Run(name, func(t *testing.T) {
			s := sketch{period: period}
			s.add(t0, ms)
			for _, later := range tc.later {
				s.add(t0.Add(later), ms)
			}
			if _, n := s.quantile(t0.Add(tc.at), 0.5); n != tc.want {
				t.Errorf("%d samples, want %d", n, tc.want)
			}
		})
	}
}

// What is known of a member is a few values and arrays of fixed size, which grow with
// neither names nor traffic.
func TestAMemberIsOfConstantSize(t *testing.T) {
	for name, tc := range map[string]struct{ got, most uintptr }{
		"sketch":   {unsafe.Sizeof(sketch{}), 1 << 10},
		"latency":  {unsafe.Sizeof(latency{}), 2 << 10},
		"evidence": {unsafe.Sizeof(evidence{}), 1 << 10},
		"member":   {unsafe.Sizeof(member{}), 4 << 10},
	} {
		if tc.got > tc.most {
			t.Errorf("%s takes %d bytes, want at most %d", name, tc.got, tc.most)
		}
	}
}

func TestHedgeDelayIsLearned(t *testing.T) {
	cold, lowest, highest := 250*ms, 50*ms, 400*ms
	for name, tc := range map[string]struct {
		n       int
		took    time.Duration
		later   time.Duration
		want    time.Duration // at least, and at most a quarter more
		exactly bool
	}{
		"nothing is known":            {0, 0, 0, cold, true},
		"19 answers":                  {19, 100 * ms, 0, cold, true},
		"20 answers":                  {20, 100 * ms, 0, 100 * ms, false},
		"a LAN":                       {100, ms, 0, lowest, true},
		"just below the least":        {100, 39 * ms, 0, lowest, true},
		"just above the least":        {100, 51 * ms, 0, 51 * ms, false},
		"above the most":              {100, 401 * ms, 0, highest, true},
		"as slow as can be":           {100, 3 * time.Second, 0, highest, true},
		"half a minute later":         {100, 100 * ms, 59 * time.Second, 100 * ms, false},
		"nothing in the last minute":  {100, 100 * ms, time.Minute, cold, true},
		"the clock runs back an hour": {100, 100 * ms, -time.Hour, 100 * ms, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := &member{}
			for range tc.n {
				m.latency.add(t0, tc.took)
			}
			got := Hedge{Min: lowest, Max: highest, Cold: cold}.delay(t0.Add(tc.later), m)
			if tc.exactly && got != tc.want || got < tc.want || got > tc.want+tc.want/4 {
				t.Errorf("delay = %v, want %v", got, tc.want)
			}
		})
	}
}

func TestHedgeDelayIsLearnedAnewTenTimesASecond(t *testing.T) {
	var l latency
	if got := l.delay(t0, 250*ms); got != 250*ms {
		t.Errorf("delay = %v at the start, want 250ms", got)
	}
	for range learnedFrom {
		l.add(t0, 100*ms)
	}
	if got := l.delay(t0.Add(relearnEvery-1), 250*ms); got != 250*ms {
		t.Errorf("delay = %v just before a tenth of a second, want what it was", got)
	}
	if got := l.delay(t0.Add(relearnEvery), 250*ms); got < 100*ms || got > 125*ms {
		t.Errorf("delay = %v after a tenth of a second, want 100ms", got)
	}
}

func TestMeanFollowsTheAnswers(t *testing.T) {
	var l latency
	l.add(t0, 100*ms)
	if l.mean != 100*ms {
		t.Errorf("mean of one = %v", l.mean)
	}
	l.add(t0, 200*ms)
	if l.mean != 110*ms {
		t.Errorf("mean = %v, want a tenth of the way", l.mean)
	}
}
