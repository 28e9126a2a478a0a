package pool

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	attemptTimeout = time.Second // as the handler's
	wellLatency    = 2 * ms      // of members of which nothing else is said
)

// life is what happens to a stage while queries come at a rate and probes are sent as
// the pool wants them: a handler and a prober in a few lines.
type life struct {
	*stage
	began  time.Time
	are    map[string]string // what the members named are
	events []event
	said   []string
	asked  map[ID]int
	slow   int // queries that had no good answer within 100 ms
}

type event struct {
	at time.Time
	do func()
}

// query is one of a client.
type query struct {
	sent     time.Time
	left     []Ticket
	answered bool
}

// live plays for a while; what says what members are, as NAME=WHAT.
func (s *stage) live(last, rate string, what []string) []string {
	d, err1 := time.ParseDuration(last)
	n, err2 := strconv.Atoi(strings.TrimSuffix(rate, "/s"))
	if err1 != nil || err2 != nil {
		s.t.Fatalf("live %s %s", last, rate)
	}
	l := s.life
	if l == nil {
		l = &life{stage: s}
		s.life = l
		l.after(0, l.probe)
	}
	l.began, l.said, l.slow = s.now, nil, 0
	l.are, l.asked = make(map[string]string), make(map[ID]int)
	for _, word := range what {
		name, is, _ := strings.Cut(word, "=")
		l.are[name] = is
	}
	for i := range n * int(d/time.Second) {
		l.after(time.Second/time.Duration(n)*time.Duration(i), func() { l.query(i) })
	}
	l.run(s.now.Add(d))
	counts := ""
	for _, name := range slices.Sorted(maps.Keys(s.ids)) {
		counts += fmt.Sprintf(" %s %d,", name, l.asked[s.ids[name]])
	}
	if n == 0 {
		return l.said
	}
	return append(l.said, fmt.Sprintf("asked:%s no good answer in 100ms: %d", counts, l.slow))
}

// run lets happen what does until the end. What is left happens in the next live.
func (l *life) run(end time.Time) {
	for len(l.events) > 0 && l.events[0].at.Before(end) {
		next := l.events[0]
		l.events = l.events[1:]
		if next.at.After(l.now) {
			l.now = next.at
		}
		next.do()
	}
	l.now = end
}

// after lets something happen in a while, behind what is to happen at the same time.
func (l *life) after(d time.Duration, do func()) {
	at := l.now.Add(d)
	i, _ := slices.BinarySearchFunc(l.events, at, func(e event, at time.Time) int {
		if e.at.After(at) {
			return 1
		}
		return -1
	})
	l.events = slices.Insert(l.events, i, event{at, do})
}

// say reports an outcome and keeps what follows, with the time since the beginning.
func (l *life) say(t Ticket, o Outcome) {
	for _, text := range l.report(t, o) {
		l.said = append(l.said, fmt.Sprintf("%s %s", l.now.Sub(l.began), text))
	}
}

// probe looks for probes, and again every 10 ms, as a loop that is woken would.
func (l *life) probe() {
	if tr, changed := l.pool.Settle(l.now); changed {
		l.said = append(l.said, fmt.Sprintf("%s %s", l.now.Sub(l.began), describe(tr)))
	}
	for {
		ticket, _, ok := l.pool.NextProbe(l.now)
		if !ok {
			break
		}
		l.exchange(ticket, ticket.Timeout, Lost, func(o Outcome) { l.say(ticket, o) })
	}
	l.after(10*ms, l.probe)
}

// exchange calls end with the outcome, and before that with late if it is not there by then.
func (l *life) exchange(t Ticket, timeout time.Duration, late Outcome, end func(Outcome)) {
	switch is := cmp.Or(l.are[l.names[t.ID]], wellLatency.String()); is {
	case "dead":
		l.after(timeout, func() { end(late) })
	case "grey": // answers probes and nothing else
		if t.probe != 0 {
			l.after(wellLatency, func() { end(Answered) })
			return
		}
		l.after(timeout, func() { end(late) })
	case "refused", "blocked", "unreachable", "failed":
		l.after(ms, func() { end(parseOutcome(l.t, is)) })
	default:
		took, err := time.ParseDuration(is)
		if err != nil {
			l.t.Fatalf("%s=%s", l.names[t.ID], is)
		}
		if took > timeout {
			l.after(timeout, func() { end(late) })
		}
		l.after(took, func() { end(Answered) })
	}
}

func (l *life) query(i int) {
	q := &query{sent: l.now, left: l.group.Pick(l.now, Query{Domain: uint64(i % 10)}, nil)}
	l.ask(q)
	l.after(100*ms+1, func() {
		if !q.answered {
			l.slow++
		}
	})
}

// ask asks the next one, and at its patience the one after it.
func (l *life) ask(q *query) {
	if len(q.left) == 0 || q.answered {
		return
	}
	ticket, what := l.pool.Start(l.now, q.left[0])
	q.left = q.left[1:]
	if what != Started {
		l.ask(q)
		return
	}
	l.asked[ticket.ID]++
	ended := false
	l.exchange(ticket, attemptTimeout, Lost, func(o Outcome) {
		if ended = ended || o != Lost; o == Lost && q.answered {
			return // it was lost to a peer before
		}
		l.say(ticket, o)
		if o == Answered && !q.answered {
			q.answered = true
			l.copy()
		} else if o != Answered {
			l.ask(q)
		}
		if o == Failed {
			l.after(10*ms, func() { l.outdo(q, ticket) })
		}
		if o != Lost {
			l.pool.End(ticket)
		}
	})
	l.after(ticket.Patience, func() {
		if !ended {
			l.say(ticket, Late)
			l.ask(q)
		}
	})
	l.after(max(ticket.Linger, ticket.Patience+10*ms), func() {
		if !ended && q.answered {
			l.say(ticket, LostToPeer)
		}
	})
}

// outdo tells that a peer had a good answer to what failed.
func (l *life) outdo(q *query, t Ticket) {
	if q.answered {
		l.say(t, Outdone)
	}
}

// copy sends the copy of a query that was answered well.
func (l *life) copy() {
	copied, ok := l.group.Shadow(l.now, Query{})
	if !ok {
		return
	}
	l.exchange(copied, copied.Timeout, Lost, func(o Outcome) {
		l.say(copied, o)
		l.pool.End(copied)
	})
}
