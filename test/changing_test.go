package test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

const (
	// perSet is how many resolvers a file names, and inTurn how many there are: each
	// is in the file for some changes, and out of it for the rest.
	perSet, inTurn = 2, 10
	// changeEvery is 100 changes a minute.
	changeEvery = 600 * time.Millisecond
	// forgotten is how long after it has left the file nobody should ask a resolver:
	// a second until it is seen, and a second of grace.
	forgotten = 2 * time.Second
)

// changing is a file whose resolvers change all the time.
type changing struct {
	t         testing.TB
	dir       string
	resolvers []*faulty

	mu    sync.Mutex
	left  map[int]time.Time // number → since when it is not in the file
	asked int               // how often one was asked that was forgotten
}

// outcome is what came of asking while the resolvers changed.
type outcome struct {
	queries, lost, wrong, over100ms int
	slowest                         time.Duration
	asked                           int           // queries to who had left
	lag                             time.Duration // how late the client itself was, at most
}

// playChanging asks so many times a second while the file changes so many times.
// Whoever leaves it falls silent when it should be forgotten.
func playChanging(t testing.TB, rate, changes int) outcome {
	t.Helper()
	c := &changing{t: t, dir: publicDir(t), left: make(map[int]time.Time)}
	for n := range inTurn {
		c.resolvers = append(c.resolvers, startFaulty(t, n+1, 53, c.serve(n+1), c.arrive))
	}
	c.write(0)
	server := startFollowers(t, map[string]string{"": filepath.Join(c.dir, fileName)})
	client := startOpenLoop(t, server.addr())
	client.ask(rate, warmUp, warming)
	var changer sync.WaitGroup
	changer.Go(func() { c.change(changes) })
	client.ask(rate, time.Duration(changes)*changeEvery, unique)
	changer.Wait()
	client.rest()
	client.end()

	c.mu.Lock()
	defer c.mu.Unlock()
	o := outcome{asked: c.asked, lag: client.lag}
	for i := range client.fates {
		o.count(&client.fates[i])
	}
	return o
}

func (o *outcome) count(f *fate) {
	o.queries++
	o.slowest = max(o.slowest, f.took)
	switch f.verdict() {
	case isWrong:
		o.wrong++
	case isFailed, isUnanswered:
		o.lost++
	}
	if f.took > 100*time.Millisecond {
		o.over100ms++
	}
}

func (o outcome) String() string {
	return fmt.Sprintf("%d queries, %d lost, %d wrong, %d over 100 ms, max %.0f ms, %d to who had left, own lag %.0f ms",
		o.queries, o.lost, o.wrong, o.over100ms, milliseconds(o.slowest), o.asked, milliseconds(o.lag))
}

// set returns the resolvers after so many changes: with each one leaves, and the next
// comes.
func (c *changing) set(change int) []int {
	var set []int
	for i := range perSet {
		set = append(set, (change+i)%inTurn+1)
	}
	return set
}

func (c *changing) change(times int) {
	ticker := time.NewTicker(changeEvery)
	defer ticker.Stop()
	for i := range times {
		<-ticker.C
		c.mu.Lock()
		c.left[i%inTurn+1] = time.Now()
		delete(c.left, (i+perSet)%inTurn+1)
		c.mu.Unlock()
		c.write(i + 1)
	}
}

// write renames a file with the resolvers after so many changes over the one before.
func (c *changing) write(change int) {
	path := filepath.Join(c.dir, fileName)
	err := os.WriteFile(path+".new", []byte(resolversAt(c.set(change)...)), 0o644)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		c.t.Error(err)
	}
}

// hasLeft reports whether nobody should ask a resolver any more.
func (c *changing) hasLeft(number int, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	left, isOut := c.left[number]
	return isOut && now.Sub(left) > forgotten
}

func (c *changing) serve(number int) behaviour {
	return func(a arrival) reaction {
		if c.hasLeft(number, time.Now()) {
			return silent(a)
		}
		return answers(a)
	}
}

func (c *changing) arrive(f *faulty, a arrival, now time.Time) {
	if a.isProbe() || !c.hasLeft(f.number, now) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
}

// TestNoQueryIsLostWhileTheResolversChange judges what does not depend on how fast the
// machine is; for the rest see BenchmarkFailoverWhileTheResolversChange.
func TestNoQueryIsLostWhileTheResolversChange(t *testing.T) {
	t.Parallel()
	if !alone(t) {
		return
	}
	o := playChanging(t, 100, 20)
	if o.lost > 0 || o.wrong > 0 {
		t.Errorf("%d lost and %d wrong, want none", o.lost, o.wrong)
	}
	t.Log(o)
}

// BenchmarkFailoverWhileTheResolversChange is part of make failover: one hundred
// changes in a minute, at 500 queries a second. None should be lost, none should
// take over 100 ms, and nobody should be asked that has left.
func BenchmarkFailoverWhileTheResolversChange(b *testing.B) {
	b.Run("500", func(b *testing.B) {
		b.ReportMetric(0, "ns/op") // it takes as long as it takes
		if !alone(b) {
			return
		}
		for b.Loop() {
			o := playChanging(b, 500, 100)
			if o.lost > 0 || o.wrong > 0 {
				b.Errorf("%d lost and %d wrong, want none", o.lost, o.wrong)
			}
			fmt.Println(o)
			b.ReportMetric(float64(o.lost), "lost")
			b.ReportMetric(float64(o.over100ms), ">100ms")
			b.ReportMetric(milliseconds(o.slowest), "max-ms")
		}
	})
}
