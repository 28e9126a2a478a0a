package healthforward

import (
	"time"

	"github.com/miekg/dns"
)

const (
	// denialHold is how long a denial waits at most for an upstream that ranks before
	// and shows no life: as long as forward waits for it. See DESIGN.md, D8.
	denialHold = 2 * time.Second
	// One that does live is asked again so often, and so many times in all, for its
	// view: at a loss of 30 %, that misses the answer to six queries in a million.
	doubtEvery  = 100 * time.Millisecond
	doubtRounds = 10
)

// settle implements race.settle: which reply is the answer. See DESIGN.md, D8.
func (f *flight) settle(now time.Time, results []result, over bool) (int, time.Time) {
	if f.moved {
		f.rerank(results)
	}
	best, due := -1, time.Time{}
	for i, r := range results {
		f.replied = f.replied || r.grade != gradeNone
		at, ok := f.due(now, i, results, over)
		switch {
		case !ok:
		case best < 0, results[best].grade < r.grade, results[best].grade == r.grade && at.Before(due):
			best, due = i, at
		}
	}
	return best, due
}

// due returns when the reply may be delivered; ok is false where it may not, as
// things stand.
func (f *flight) due(now time.Time, i int, results []result, over bool) (at time.Time, ok bool) {
	switch r := results[i]; r.grade {
	case gradeFinal:
		return f.tierDue(now, r), true
	case gradeDenial:
		if r.tier > 0 && !f.group.TierOut(now, r.tier) {
			f.denied = r // those above may know the name
			return at, false
		}
		if f.fw.ranked() {
			return f.denialDue(now, r, results, over)
		}
		return now, true
	case gradeBad:
		return now, over || !f.tierBelow(r.tier) && confirmed(r, results[:i])
	}
	return at, false
}

// ranked reports whether the order of the upstreams ranks their views of the
// names, so that a later one cannot deny what an earlier one may know.
func (c *Config) ranked() bool { return c.Policy == policySequential }

// denialDue returns when the denial r may be delivered: at once when every upstream
// that ranks before has answered or is out; after a while where one shows no life.
// One that lives has only lost a packet, and is asked again for what it knows.
func (f *flight) denialDue(now time.Time, r result, results []result, over bool) (at time.Time, ok bool) {
	if vetoed(r, results) {
		return at, false
	}
	waits := false
	f.inDoubt = -1
	for rank := range r.rank {
		alive := f.group.HeardSince(rank, f.began)
		switch {
		case answered(rank, results), f.group.Ejected(rank), outOfReach(rank, results):
			continue
		case alive && f.times(now, rank) >= doubtRounds, !alive && now.Sub(r.at) >= denialHold:
			continue // it has had its chance
		}
		waits = true
		if alive && f.inDoubt < 0 {
			f.inDoubt = rank
		}
	}
	if !waits {
		return now, true
	}
	return now.Add(doubtEvery), !over
}

// times returns how often the upstream of that rank has been asked and has had time
// to answer.
func (f *flight) times(now time.Time, rank int) int {
	n := 0
	for _, t := range f.tries {
		if f.rank(t) == rank && now.Sub(t.ticket.Sent) >= doubtEvery {
			n++
		}
	}
	return n
}

func answered(rank int, results []result) bool {
	for _, r := range results {
		if r.rank == rank && r.grade != gradeNone {
			return true
		}
	}
	return false
}

// outOfReach reports whether this host has no way to the upstream of that rank, as
// to one behind a VPN that is down.
func outOfReach(rank int, results []result) bool {
	for _, r := range results {
		if r.rank == rank && r.noWay {
			return true
		}
	}
	return false
}

// vetoed reports whether an upstream that ranks before r's failed to decide what
// r denies. A REFUSED is no such failure: it says that the name is not its business.
func vetoed(r result, results []result) bool {
	for _, o := range results {
		if o.rank < r.rank && o.grade == gradeBad && o.reply.Rcode == dns.RcodeServerFailure {
			return true
		}
	}
	return false
}

// confirmed reports whether two upstreams that were up say the same bad rcode: it
// is the name that is bad, not they.
func confirmed(r result, before []result) bool {
	for _, o := range before {
		if r.wasUp && o.wasUp && o.up != r.up && o.grade == gradeBad && o.reply.Rcode == r.reply.Rcode {
			return true
		}
	}
	return false
}
