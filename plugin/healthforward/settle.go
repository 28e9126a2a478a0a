package healthforward

import (
	"time"

	"github.com/miekg/dns"
)

// denialHold is how long a denial waits for the upstreams that rank before. See DESIGN.md, D8.
const denialHold = 500 * time.Millisecond

// settle implements race.settle: which reply is the answer. See DESIGN.md, D8.
func (f *flight) settle(now time.Time, results []result, over bool) (int, time.Time) {
	best, heldUntil := -1, time.Time{}
	for i, r := range results {
		f.replied = f.replied || r.grade != gradeNone
		switch r.grade {
		case gradeFinal:
			return i, now
		case gradeDenial:
			if vetoed(r, results) && f.ranked() {
				continue
			}
			until := now
			if f.ranked() {
				until = f.denialDue(now, r, results)
			}
			if best < 0 || results[best].grade == gradeBad || until.Before(heldUntil) {
				best, heldUntil = i, until
			}
		case gradeBad:
			if confirmed(r, results[:i]) {
				return i, now
			}
			if best < 0 && over {
				best, heldUntil = i, now
			}
		}
	}
	return best, heldUntil
}

// ranked reports whether the order of the upstreams ranks their views of the
// names, so that a later one cannot deny what an earlier one may know.
func (f *flight) ranked() bool { return f.fw.Policy == "sequential" }

// denialDue returns when the denial r may be delivered: at once when every
// upstream that ranks before has answered or is ejected, else after a while.
func (f *flight) denialDue(now time.Time, r result, results []result) time.Time {
	for rank := range r.rank {
		if !answered(rank, results) && !f.group.Ejected(rank) {
			return r.at.Add(denialHold)
		}
	}
	return now
}

func answered(rank int, results []result) bool {
	for _, r := range results {
		if r.rank == rank && r.grade != gradeNone {
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
