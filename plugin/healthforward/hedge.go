package healthforward

import (
	"context"
	"time"
)

// reason is why a further attempt is wanted.
type reason uint8

// Reasons for an attempt.
const (
	first     reason = iota
	overdue          // the newest attempt has not ended within its patience
	expired          // an attempt has not ended within its time-out
	failed           // an attempt ended, but not with what ends the race
	suspected        // one that is under way is less likely to end than it was
	ejected          // one that is under way will hardly end
	returned         // one that had been given up can be made again
	doubted          // what is in hand is doubtful until another one has said the same
	opened           // more may be asked by now
	moved            // those that are under way ask who has left
)

// reasons maps each reason to its word for metrics.
var reasons = [...]string{
	first: "first", overdue: "overdue", expired: "expired", failed: "failed",
	suspected: "suspected", ejected: "ejected", returned: "returned",
	doubted: "doubted", opened: "opened", moved: "moved",
}

// String returns the word for metrics.
func (r reason) String() string { return reasons[r] }

// attempt is one try at what the race is for.
type attempt[T any] struct {
	// patience is how long to wait for the attempt before another one is wanted.
	patience time.Duration
	// timeout is how long until the attempt counts as lost. It goes on all the same.
	timeout time.Duration
	// try makes the attempt, in a goroutine of its own. Its end may come after the race's.
	try func() T
}

// nudge tells a race what it should know of its attempt about.
type nudge struct {
	why   reason
	about int
}

// race makes staggered attempts at one thing until one of them settles it: the
// next attempt starts when the newest one is overdue, or has failed, or is not
// likely to end any more. It knows neither what the attempts do nor what makes a
// result good. See DESIGN.md, D7.
type race[T any] struct {
	// admit returns the next attempt, or false where there is none or it may not be
	// made now. pending is how many attempts are under way.
	admit func(why reason, about, pending int) (attempt[T], bool)
	// late is told that attempt i was not over when it was due: overdue or expired.
	late func(i int, why reason, due time.Time)
	// settle picks the result that ends the race from those so far, -1 where none
	// does; a time in the future says when it will unless something better comes.
	// over says that nothing more will come.
	settle func(now time.Time, results []T, over bool) (i int, at time.Time)
	// nudges bring news from outside about an attempt.
	nudges <-chan nudge
	// spawn runs a function in a goroutine.
	spawn func(func())
	// width is how many attempts to begin with. 0 is one.
	width int
	// openAt is when another attempt is to be made if nothing has settled it; zero:
	// there is no such time.
	openAt time.Time
}

// lane is the course of one attempt.
type lane struct {
	pending   bool
	overdueAt time.Time // zero once it is reported
	expiresAt time.Time // likewise
}

// finish is the end of an attempt.
type finish[T any] struct {
	i      int
	result T
}

// run returns the result that settled the race, or false where there is none
// before ctx ends or before nothing is left to try.
func (r *race[T]) run(ctx context.Context) (won T, ok bool) {
	course := &course[T]{race: r, finishes: make(chan finish[T]), over: make(chan struct{})}
	defer close(course.over)
	if !course.start(first, -1) {
		return won, false
	}
	for range r.width - 1 {
		course.start(first, -1)
	}
	timer := time.NewTimer(until(course.nextDue()))
	defer timer.Stop()
	for {
		var over bool
		select {
		case f := <-course.finishes:
			won, ok, over = course.finished(f)
		case n := <-r.nudges:
			won, ok = course.nudged(n)
		case <-timer.C:
			won, ok = course.woken()
		case <-ctx.Done():
			return course.settle(true)
		}
		if ok || over {
			return won, ok
		}
		timer.Reset(until(course.nextDue()))
	}
}

// course is how far a race has come. It belongs to the goroutine of run.
type course[T any] struct {
	*race[T]
	lanes     []lane
	pending   int
	results   []T
	heldUntil time.Time // when the result in hand is good enough; zero: there is none

	finishes chan finish[T]
	over     chan struct{} // closed when nobody reads finishes any more
}

// finished takes the end of an attempt. over says that there is nothing left to try.
func (c *course[T]) finished(f finish[T]) (won T, ok, over bool) {
	c.lanes[f.i].pending = false
	c.pending--
	c.results = append(c.results, f.result)
	if won, ok = c.settle(false); ok {
		return won, true, true
	}
	if c.start(failed, f.i) || c.pending > 0 {
		return won, false, false
	}
	won, ok = c.settle(true)
	return won, ok, true
}

// nudged takes news from outside.
func (c *course[T]) nudged(n nudge) (won T, ok bool) {
	if won, ok = c.settle(false); ok {
		return won, true
	}
	if n.why == returned || n.why == moved || c.lanes[n.about].pending {
		c.start(n.why, n.about)
	}
	return won, false
}

// woken does what is due.
func (c *course[T]) woken() (won T, ok bool) {
	doubtful := !c.heldUntil.IsZero() && !c.heldUntil.After(time.Now())
	if won, ok = c.settle(false); ok {
		return won, true
	}
	if doubtful {
		c.start(doubted, -1)
	}
	c.tick(time.Now())
	return won, false
}

// start makes another attempt, if admit allows.
func (c *course[T]) start(why reason, about int) bool {
	a, ok := c.admit(why, about, c.pending)
	if !ok {
		return false
	}
	i, now := len(c.lanes), time.Now()
	c.lanes = append(c.lanes, lane{pending: true, overdueAt: now.Add(a.patience), expiresAt: now.Add(a.timeout)})
	c.pending++
	c.spawn(func() {
		f := finish[T]{i, a.try()}
		select {
		case c.finishes <- f:
		case <-c.over:
		}
	})
	return true
}

// settle returns the result that ends the race, if there is one by now.
func (c *course[T]) settle(over bool) (won T, ok bool) {
	now := time.Now()
	i, at := c.race.settle(now, c.results, over)
	switch {
	case i < 0:
		c.heldUntil = time.Time{}
		return won, false
	case at.After(now) && !over:
		c.heldUntil = at
		return won, false
	}
	return c.results[i], true
}

// tick reports what is due by now and starts what follows from it.
func (c *course[T]) tick(now time.Time) {
	if !c.openAt.IsZero() && !c.openAt.After(now) {
		c.openAt = time.Time{}
		c.start(opened, -1)
	}
	for i := range c.lanes {
		if c.due(i, now, func(l *lane) *time.Time { return &l.overdueAt }, overdue) && i == len(c.lanes)-1 {
			c.start(overdue, i)
		}
		if c.due(i, now, func(l *lane) *time.Time { return &l.expiresAt }, expired) {
			c.start(expired, i)
		}
	}
}

// due reports whether that time of attempt i has come, once, and tells late.
func (c *course[T]) due(i int, now time.Time, of func(*lane) *time.Time, why reason) bool {
	at := of(&c.lanes[i])
	if !c.lanes[i].pending || at.IsZero() || at.After(now) {
		return false
	}
	due := *at
	*at = time.Time{}
	c.late(i, why, due)
	return true
}

// nextDue returns when the next thing is due, in an hour at the latest.
func (c *course[T]) nextDue() time.Time {
	next := time.Now().Add(time.Hour)
	earlier := func(t time.Time) {
		if !t.IsZero() && t.Before(next) {
			next = t
		}
	}
	earlier(c.heldUntil)
	earlier(c.openAt)
	for _, l := range c.lanes {
		if l.pending {
			earlier(l.overdueAt)
			earlier(l.expiresAt)
		}
	}
	return next
}

// until returns the time until then, and never nothing: the race detector of Go 1.26
// does not survive that a timer which is due when it is set runs in a bubble of
// testing/synctest.
func until(then time.Time) time.Duration { return max(time.Until(then), 1) }
