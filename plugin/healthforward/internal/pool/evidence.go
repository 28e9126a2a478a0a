package pool

import "time"

const (
	// minDomains: one zone's dead servers, or one tenant's, must not eject a resolver.
	minDomains = 3
	// evidenceWindow is how far back shares are counted.
	evidenceWindow = 10 * time.Second
	windowSlots    = 10

	// A member is ejected when so large a share of at least so many went wrong, and
	// others do at most half as bad. A fifth of few is what chance does on a bad link:
	// at 5 % loss and 10 queries a second, a fifth of 20 ejects falsely at once, a fifth
	// of 50 once in two hours, a quarter of 50 or a fifth of 80 in none that was played.
	halfOf, quarterOf, fifthOf = 10, 50, 80
	// peerSamples is from how many exchanges on a peer can be compared with.
	peerSamples = 5
)

// kind is what went wrong.
type kind uint8

// Kinds of evidence, which are counted apart.
const (
	loss     kind = iota // no answer
	badRcode             // a failing one, where a peer had a good one
	kinds
)

// evidence is what a member's exchanges have shown of late.
type evidence struct {
	rows   [kinds]row
	slots  [windowSlots]slot
	failed [kinds]domains
}

// row is what went wrong without anything good between.
type row struct {
	n       int
	first   time.Time // when the first one was sent
	last    time.Time // when the last one that counted was sent
	domains domains
}

// slot is a part of the window.
type slot struct {
	number int64 // of the slot since the epoch
	total  int
	wrong  [kinds]int
}

// share is a part of the whole.
type share struct{ wrong, total int }

// good notes an exchange that shows none of the kind.
func (e *evidence) good(k kind) {
	if e.rows[k].n > 0 { // as a rule there is nothing to forget
		e.rows[k] = row{}
	}
}

// count notes that an exchange has ended, however.
func (e *evidence) count(now time.Time) {
	e.slot(now).total++
}

// wrong notes what went wrong with t. Queries that were out at the same time are one
// observation in the row: one blip of the network must not count for each.
func (e *evidence) wrong(now time.Time, k kind, t Ticket) {
	e.slot(now).wrong[k]++
	e.failed[k].add(now, t.domain)
	r := &e.rows[k]
	r.domains.add(now, t.domain)
	if r.n == 0 {
		r.first = t.Sent
	}
	if r.n == 0 || t.Sent.Sub(r.last) >= t.Patience {
		r.n++
		r.last = t.Sent
	}
}

// share returns how much of the last ten seconds went wrong.
func (e *evidence) share(now time.Time, k kind) share {
	var s share
	for i := range e.slots {
		if slotNumber(now)-e.slots[i].number < windowSlots {
			s.wrong += e.slots[i].wrong[k]
			s.total += e.slots[i].total
		}
	}
	return s
}

// large reports whether too much went wrong, by itself.
func (s share) large() bool {
	return s.total >= halfOf && 2*s.wrong >= s.total ||
		s.total >= quarterOf && 4*s.wrong >= s.total ||
		s.total >= fifthOf && 5*s.wrong >= s.total
}

// twice reports whether the share is at least twice the other one.
func (s share) twice(other share) bool { return s.wrong*other.total >= 2*other.wrong*s.total }

func (e *evidence) slot(now time.Time) *slot {
	n := slotNumber(now)
	s := &e.slots[((n%windowSlots)+windowSlots)%windowSlots]
	if s.number != n {
		*s = slot{number: n}
	}
	return s
}

func slotNumber(now time.Time) int64 {
	return now.UnixNano() / int64(evidenceWindow/windowSlots)
}

// domains remembers the last few distinct domains, by a hash of each.
type domains [minDomains]struct {
	domain uint64
	at     time.Time
}

func (d *domains) add(now time.Time, domain uint64) {
	oldest := 0
	for i := range d {
		if d[i].domain == domain && !d[i].at.IsZero() {
			d[i].at = now
			return
		}
		if d[i].at.Before(d[oldest].at) {
			oldest = i
		}
	}
	d[oldest].domain, d[oldest].at = domain, now
}

// count returns how many domains were seen in the window, up to [minDomains].
func (d *domains) count(now time.Time) int {
	n := 0
	for i := range d {
		if !d[i].at.IsZero() && now.Sub(d[i].at) < evidenceWindow {
			n++
		}
	}
	return n
}
