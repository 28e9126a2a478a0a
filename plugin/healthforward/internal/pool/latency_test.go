package pool

import (
	"testing"
	"time"
)

func TestAQuantileIsAtMostAQuarterTooLarge(t *testing.T) {
	for _, took := range []time.Duration{
		time.Microsecond, 2 * time.Microsecond, 3 * time.Microsecond, 4 * time.Microsecond, 5 * time.Microsecond, 6 * time.Microsecond,
		7 * time.Microsecond, 8 * time.Microsecond, 99 * time.Microsecond, ms, 2 * ms, 3 * ms, 49 * ms, 250 * ms, 251 * ms, time.Second, 4 * time.Second,
	} {
		s := sketch{period: time.Second}
		s.add(t0, took)
		got, n := s.quantile(t0, 0.5)
		if n != 1 || got < took || got > took+took/4+1 {
			t.Errorf("median of one of %v = %v of %d, want up to a quarter more", took, got, n)
		}
	}
}
