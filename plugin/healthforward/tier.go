package healthforward

import (
	"context"
	"slices"
	"time"

	"steadfast.internal/plugin/healthforward/internal/pool"
)

// tierHold is how long the upstreams of a tier have a query to themselves, and how
// long the answer of a lower one waits for them. See DESIGN.md, D24.
const tierHold = 500 * time.Millisecond

// verdictHold is how long a denial of a lower tier waits for the verdict on those above
// who have failed without a reply. Refusals come at once, but who has been heard within
// the last half second is not ejected for them.
const verdictHold = tierHold + 100*time.Millisecond

// lowerTier reports whether there is a tier below the first that can be asked.
func (f *flight) lowerTier() bool {
	return len(f.tickets) > 0 && f.tierBelow(f.tickets[0].Tier)
}

// tierBelow reports whether there is a tier below that one that can be asked.
func (f *flight) tierBelow(tier int) bool {
	n := len(f.tickets)
	return n > 0 && f.tickets[n-1].Tier > tier
}

// tierOpen reports whether the tier of that ticket may be asked by now: while nobody
// above is up, or if those above have had their time, or have all failed.
func (f *flight) tierOpen(t pool.Ticket) bool {
	return t.Tier == f.tickets[0].Tier || !f.group.TierServes(t.Tier) ||
		time.Since(f.began) >= tierHold || f.allEnded(t.Tier)
}

// allEnded reports whether whoever could be asked above the tier has been, in vain, or
// has too many waiting already.
func (f *flight) allEnded(tier int) bool {
	for _, t := range f.tickets {
		if t.Tier >= tier {
			continue
		}
		ended := slices.Contains(f.crowded, t.ID)
		for _, tried := range f.tries {
			ended = ended || tried.ticket.ID == t.ID && tried.ended.Load()
		}
		if !ended {
			return false
		}
	}
	return true
}

// tierDue returns when the answer of a lower tier may be delivered: when those above
// are out or have failed, else when they have had their time.
func (f *flight) tierDue(now time.Time, r result) time.Time {
	if r.tier == 0 || f.group.TierOut(now, r.tier) || f.allEnded(r.tier) {
		return now
	}
	return f.began.Add(tierHold)
}

// judged returns the denial of a lower tier, with which the race has ended, once those
// above are out.
func (f *flight) judged(ctx context.Context) (result, bool) {
	if f.denied.reply == nil {
		return result{}, false
	}
	timer := time.NewTimer(verdictHold)
	defer timer.Stop()
	for {
		if f.group.TierOut(time.Now(), f.denied.tier) {
			return f.denied, true
		}
		select {
		case <-f.nudges: // of an ejection, maybe
		case <-timer.C:
			return result{}, false
		case <-ctx.Done():
			return result{}, false
		}
	}
}
