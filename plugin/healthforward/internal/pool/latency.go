package pool

import (
	"math"
	"time"
)

// Buckets of a sketch: four to each doubling, so a quantile is at most a quarter too
// large, from a microsecond to more than any query may take.
const (
	bucketsPerDoubling = 4
	buckets            = 24 * bucketsPerDoubling
)

// sketch knows the quantiles of the latencies of between one and two periods, in
// constant memory: two histograms, of which the older one is given up when the
// newer has lasted a period.
type sketch struct {
	period    time.Duration
	began     time.Time
	now, last [buckets]uint32
	n         uint32 // in both
}

// add notes a latency.
func (s *sketch) add(now time.Time, latency time.Duration) {
	s.rotate(now)
	s.now[bucket(latency)]++
	s.n++
}

// rotate gives up what is too old. A clock that runs backwards gives up nothing.
func (s *sketch) rotate(now time.Time) {
	age := now.Sub(s.began)
	switch {
	case age < s.period:
		return
	case age >= 2*s.period:
		s.last = [buckets]uint32{}
	default:
		s.last = s.now
	}
	s.now = [buckets]uint32{}
	s.began = now
	s.n = 0
	for _, n := range s.last {
		s.n += n
	}
}

// quantile returns the latency that a share of the samples did not exceed, and how
// many samples there are: 0 and 0 without any.
func (s *sketch) quantile(now time.Time, share float64) (time.Duration, int) {
	s.rotate(now)
	if s.n == 0 {
		return 0, 0
	}
	rest := uint32(share * float64(s.n))
	for i := range s.now {
		n := s.now[i] + s.last[i]
		if n > rest {
			return ceiling(i), int(s.n)
		}
		rest -= n
	}
	return ceiling(buckets - 1), int(s.n)
}

// bucket returns the index of the bucket that holds d.
func bucket(d time.Duration) int {
	us := uint64(max(d/time.Microsecond, 1))
	doubling := math.Ilogb(float64(us))
	rest := us << 2 >> doubling & (bucketsPerDoubling - 1) // the two bits below the first
	return min(doubling*bucketsPerDoubling+int(rest), buckets-1)
}

// ceiling returns what the latencies in the bucket are below.
func ceiling(i int) time.Duration {
	doubling, rest := i/bucketsPerDoubling, i%bucketsPerDoubling
	return time.Duration(bucketsPerDoubling+rest+1) << doubling * time.Microsecond / bucketsPerDoubling
}

// Numbers of the learned delay and of the judgement of speed. See DESIGN.md, D19.
const (
	// delayShare: to ask another upstream when so many answers would have come costs a
	// twentieth of load.
	delayShare = 0.95
	// delayPeriod: what is learned is from 30 to 60 s old.
	delayPeriod = 30 * time.Second
	// learnedFrom is how many answers teach something.
	learnedFrom = 20
	// relearnEvery spares the hot path the sum over all buckets.
	relearnEvery = 100 * time.Millisecond

	// recentPeriod: who is slow is so by answers that are no older than 10 s.
	recentPeriod = 5 * time.Second
	// slowFactor is how many times its best peer's p95 makes a member slow.
	slowFactor = 5
	// smoothing is the weight of one answer in the mean that policies compare.
	smoothing = 0.1
)

// latency is what is known of how fast a member answers queries.
type latency struct {
	learned, recently sketch

	p95       time.Duration // of learned, as of at; 0: too few
	at        time.Time
	mean      time.Duration // moving; 0 before the first answer
	checkedAt time.Time     // when recently was last looked at
	last      time.Time     // when the last answer came
}

func (l *latency) add(now time.Time, took time.Duration) {
	l.learned.period, l.recently.period = delayPeriod, recentPeriod
	l.learned.add(now, took)
	l.recently.add(now, took)
	l.last = now
	if l.mean == 0 {
		l.mean = took
	}
	l.mean += time.Duration(smoothing * float64(took-l.mean))
}

// delay returns the 95th percentile of the last half minute or so, or the other
// delay while too little is known.
func (l *latency) delay(now time.Time, otherwise time.Duration) time.Duration {
	if age := now.Sub(l.at); age < 0 || age >= relearnEvery {
		p95, n := l.learned.quantile(now, delayShare)
		if n < learnedFrom {
			p95 = 0
		}
		l.p95, l.at = p95, now
	}
	if l.p95 == 0 {
		return otherwise
	}
	return l.p95
}

// recent returns quantiles of the last ten seconds; enough is false where they say
// too little, or were looked at just now.
func (l *latency) recent(now time.Time) (p95, median time.Duration, enough bool) {
	if age := now.Sub(l.checkedAt); age >= 0 && age < relearnEvery {
		return 0, 0, false
	}
	l.checkedAt = now
	p95, n := l.recently.quantile(now, delayShare)
	median, _ = l.recently.quantile(now, 0.5)
	return p95, median, n >= learnedFrom
}

// forgetRecent makes the judgement of speed start afresh.
func (l *latency) forgetRecent() { l.recently = sketch{period: recentPeriod} }
