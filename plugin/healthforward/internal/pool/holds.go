package pool

import "time"

// Numbers of the hold. See DESIGN.md, D3.
const (
	// streakWindow: who falls again so soon after its return has not really returned.
	streakWindow = 60 * time.Second
	// forgiveAfter: an ejection so long ago does not lengthen the next hold.
	forgiveAfter = 10 * time.Minute
)

// holds is how long a member stays out though it may answer.
type holds struct {
	ejectedAt  time.Time
	returnedAt time.Time
	streak     int // ejections that each came soon after a return
	until      time.Time
}

// eject sets the hold of an ejection.
func (h *holds) eject(now time.Time, rules Rules) {
	switch {
	case h.ejectedAt.IsZero() || now.Sub(h.ejectedAt) >= forgiveAfter:
		h.streak = 0
	case now.Sub(h.returnedAt) <= streakWindow:
		h.streak++
	}
	h.ejectedAt = now
	h.until = now.Add(h.length(rules))
}

// length returns how long an ejection lasts at least, which is nothing for the
// first of a streak: return is tested, so an early one costs no client.
func (h *holds) length(rules Rules) time.Duration {
	if h.streak == 0 {
		return 0
	}
	d := rules.Hold
	for i := 1; i < h.streak && d < rules.HoldMax; i++ {
		d *= 2
	}
	return min(d, rules.HoldMax)
}

// over reports whether the hold is.
func (h *holds) over(now time.Time) bool { return !now.Before(h.until) }
