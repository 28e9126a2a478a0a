package healthforward

import (
	"time"

	"steadfast.internal/plugin/healthforward/internal/pool"

	"github.com/miekg/dns"
)

// listenOn is how long the answer to a query is waited for that another upstream has
// answered. It counts as lost before, but what comes still tells how slow the upstream
// is: cut off by what others do, it would look as fast as they are. See DESIGN.md, D7.
const listenOn = time.Second

// leave gives those who lost the time to show whether they are merely slower, and
// tells of those who failed what another one has answered well.
func (f *flight) leave(won result, ok bool) {
	for _, t := range f.tries {
		if f.outdoes(won, ok, t) {
			f.fw.registry.report(time.Now(), t.up, t.ticket, pool.Outdone)
		}
		if t.ended.Load() {
			continue
		}
		if !ok || won.grade < gradeDenial || won.up == t.up {
			t.cancel()
			continue
		}
		lost := t.ticket.Sent.Add(t.ticket.Linger)
		time.AfterFunc(until(lost), func() {
			f.outpaced(t, lost)
			time.AfterFunc(until(t.ticket.Sent.Add(listenOn)), t.cancel)
		})
	}
}

// outpaced reports that t was not over when it was due, long after a peer's answer,
// unless we come late ourselves.
func (f *flight) outpaced(t *try, due time.Time) {
	now := time.Now()
	if !t.ended.Load() && now.Sub(due) <= maxLag {
		f.fw.registry.report(now, t.up, t.ticket, pool.LostToPeer)
	}
}

// outdoes notes that the winner has answered well what t's upstream is asked too, and
// reports whether that one has failed it already. Under a ranking of views they are
// not asked the same: a server that refuses all names but its own is the first choice
// for these.
func (f *flight) outdoes(won result, ok bool, t *try) bool {
	if !ok || f.fw.ranked() || won.up == t.up || won.tier != t.ticket.Tier || !answeredWell(won) {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	t.outdone = true
	return t.failed
}

// answeredWell reports whether the reply is one that another upstream's failure can be
// held against: a failed validation is final, but nothing to be proud of.
func answeredWell(r result) bool {
	return r.grade >= gradeDenial && r.reply.Rcode != dns.RcodeServerFailure
}
