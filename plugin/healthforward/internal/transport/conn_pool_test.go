package transport

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// fakeLink is a connection whose exchanges end when release is closed, or at once
// where it is nil.
type fakeLink struct {
	mu      sync.Mutex
	release chan struct{}
	fail    error
	is      linkState
	used    int
	closed  bool
}

func (l *fakeLink) exchange(ctx context.Context, q Query) (*dns.Msg, error) {
	l.mu.Lock()
	l.used++
	release, err := l.release, l.fail
	l.mu.Unlock()
	if release != nil {
		select {
		case <-release:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return new(dns.Msg), err
}

func (l *fakeLink) state(time.Time) linkState {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.is
}

func (l *fakeLink) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		panic("closed twice")
	}
	l.closed = true
}

func (l *fakeLink) set(change func(*fakeLink)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l)
}

// fakePool is a pool whose dials take a while and make fakeLinks.
type fakePool struct {
	*connPool
	room    int
	delay   time.Duration
	fail    error
	release chan struct{} // of the links

	mu          sync.Mutex
	links       []*fakeLink
	dials, most int
	dialing     int
}

func newFakePool(opts Options, room int) *fakePool {
	p := &fakePool{connPool: newConnPool(opts.withDefaults(), room == 1), room: room, delay: 100 * time.Millisecond}
	p.dial = p.open
	return p
}

func (p *fakePool) open(context.Context) (link, error) {
	p.mu.Lock()
	p.dials++
	p.dialing++
	p.most = max(p.most, p.dialing)
	p.mu.Unlock()
	time.Sleep(p.delay) // in a bubble, and never changed after the first dial
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dialing--
	if p.fail != nil {
		return nil, p.fail
	}
	l := &fakeLink{is: linkState{room: p.room}, release: p.release}
	p.links = append(p.links, l)
	return l, nil
}

// set changes p under its lock.
func (p *fakePool) set(change func(*fakePool)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(p)
}

// tried returns how many dials there were, when everything waits.
func (p *fakePool) tried() int {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dials
}

// alive returns how many connections there are that are not closed.
func (p *fakePool) alive() int {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, l := range p.links {
		l.set(func(l *fakeLink) {
			if !l.closed {
				n++
			}
		})
	}
	return n
}

// start begins n exchanges, and returns what tells how many have ended, with the
// error of the last one, when everything waits.
func (p *fakePool) start(ctx context.Context, t *testing.T, n int) func() (int, error) {
	var mu sync.Mutex
	ended := 0
	var last error
	for range n {
		go func() {
			_, err := p.Exchange(ctx, newQuery(t, "example.org."))
			mu.Lock()
			defer mu.Unlock()
			ended++
			last = err
		}()
	}
	synctest.Wait()
	return func() (int, error) {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		return ended, last
	}
}

// mostAtOnce returns how many dials there were at the same time.
func (p *fakePool) mostAtOnce() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.most
}

// pass lets time pass in a bubble, and what happens by then happen.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestOneDialWhileTheServerIsNotKnownToAccept(t *testing.T) {
	for _, room := range []int{1, poolEach} {
		t.Run(fmt.Sprintf("%d queries on a connection", room), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newFakePool(Options{}, room)
				p.fail = errors.New("nobody there")
				ended := p.start(t.Context(), t, 50)
				if p.tried() != 1 {
					t.Errorf("%d dials, want 1", p.tried())
				}
				pass(p.delay)
				if n, err := ended(); n != 50 || !errors.Is(err, p.fail) {
					t.Errorf("after the dial failed %d have ended, the last with %v; want all", n, err)
				}
				if p.tried() != 1 {
					t.Errorf("%d dials, want 1", p.tried())
				}

				release := make(chan struct{})
				p.set(func(p *fakePool) { p.fail, p.release = nil, release })
				ended = p.start(t.Context(), t, 50)
				if p.tried() != 2 {
					t.Errorf("%d dials, want one more", p.tried())
				}
				pass(20 * p.delay)
				close(release)
				if n, err := ended(); n != 50 || err != nil {
					t.Errorf("%d have ended, the last with %v; want all, well", n, err)
				}
				if want := map[int]int{1: 51, poolEach: 2}[room]; p.tried() != want {
					t.Errorf("%d dials, want %d", p.tried(), want)
				}
				if p.mostAtOnce() > poolDials {
					t.Errorf("%d dials at once, want %d at most", p.mostAtOnce(), poolDials)
				}
				if n := p.alive(); n > defaultMaxIdle {
					t.Errorf("%d idle connections, want %d at most", n, defaultMaxIdle)
				}
				p.Close()
			})
		})
	}
}

func TestADialGoesOnForTheOthersWhenItsStarterGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFakePool(Options{}, 1)
		ctx, cancel := context.WithCancel(t.Context())
		first := p.start(ctx, t, 1)
		pass(p.delay / 2)
		others := p.start(t.Context(), t, 1)
		cancel()
		if n, err := first(); n != 1 || !errors.Is(err, context.Canceled) {
			t.Errorf("%d have ended with %v, want one, with its context's error", n, err)
		}
		pass(p.delay / 2)
		if n, err := others(); n != 1 || err != nil || p.tried() != 1 {
			t.Errorf("%d have ended with %v after %d dials; want one, well, after one", n, err, p.tried())
		}
		// One that nobody waits for any more is kept.
		p.Close()
		p = newFakePool(Options{}, 1)
		ctx, cancel = context.WithCancel(t.Context())
		p.start(ctx, t, 1)
		cancel()
		pass(p.delay)
		if n, _ := p.start(t.Context(), t, 1)(); n != 1 || p.tried() != 1 {
			t.Errorf("%d have ended after %d dials, want one after one", n, p.tried())
		}
		p.Close()
	})
}

func TestADialThatFailsAmongOthersIsTheErrorOfOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFakePool(Options{}, 1)
		p.release = make(chan struct{})
		p.start(t.Context(), t, 1)
		pass(p.delay)
		lost := errors.New("lost")
		p.set(func(p *fakePool) { p.fail = lost })
		first := p.start(t.Context(), t, 1)
		pass(p.delay / 2)
		second := p.start(t.Context(), t, 1)
		pass(p.delay / 2)
		if n, _ := first(); n != 1 {
			t.Error("the first does not know that its dial has failed")
		}
		if n, _ := second(); n != 0 {
			t.Error("the second was told of the first one's dial")
		}
		p.set(func(p *fakePool) { p.fail = nil })
		pass(p.delay / 2)
		close(p.release)
		if n, err := second(); n != 1 || err != nil {
			t.Errorf("the second ended with %v, want well", err)
		}
		p.Close()
	})
}

func TestAnIdleConnectionExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFakePool(Options{Expire: 3 * time.Second}, 1)
		one := func() { p.start(t.Context(), t, 1); pass(p.delay) }
		one()
		for range 5 { // each use puts it off
			pass(2500 * time.Millisecond)
			one()
		}
		if p.tried() != 1 || p.alive() != 1 {
			t.Errorf("%d dials, %d alive; want one connection, kept", p.tried(), p.alive())
		}
		pass(3 * time.Second)
		if p.alive() != 0 {
			t.Error("an idle connection does not expire")
		}
	})
}

func TestAConnectionGetsNoOlderThanItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFakePool(Options{MaxAge: 10 * time.Second}, 1)
		p.delay = 0
		q := newQuery(t, "example.org.")
		var ages []time.Duration
		began, dials := time.Now(), 0
		for ; len(ages) < 50; time.Sleep(50 * time.Millisecond) {
			if _, err := p.Exchange(t.Context(), q); err != nil {
				t.Fatal(err)
			}
			if n := p.tried(); n > dials {
				ages = append(ages, time.Since(began))
				began, dials = time.Now(), n
			}
		}
		young := 0
		for _, age := range ages[1:] {
			if age < 8*time.Second || age > 12*time.Second+100*time.Millisecond {
				t.Errorf("replaced after %v, want 8 to 12 s", age)
			}
			if age < 10*time.Second {
				young++
			}
		}
		if young == 0 || young == len(ages)-1 {
			t.Errorf("%d of %d were younger than 10 s, want some", young, len(ages)-1)
		}
		p.Close()
	})
}

func TestWhichConnectionIsPicked(t *testing.T) {
	now := time.Now()
	ago := func(s int) time.Time { return now.Add(-time.Duration(s) * time.Second) }
	type conn struct {
		room, pending, load int
		stalled             bool
		born, idle          time.Time
		until               time.Time
	}
	young, old := now.Add(time.Second), now.Add(-1)
	for name, tc := range map[string]struct {
		conns   []conn
		serial  bool
		after   time.Time
		want    int // -1 for none
		retired int
	}{
		"the one used last":                            {conns: []conn{{1, 0, 0, false, ago(9), ago(3), young}, {1, 0, 0, false, ago(9), ago(1), young}, {1, 0, 0, false, ago(9), ago(2), young}}, serial: true, want: 1},
		"none that is busy":                            {conns: []conn{{1, 1, 1, false, ago(9), ago(1), young}}, serial: true, want: -1},
		"none that still answers somebody who gave up": {conns: []conn{{1, 1, 0, false, ago(9), ago(1), young}}, serial: true, want: -1},
		"none that is stalled":                         {conns: []conn{{1, 1, 0, true, ago(9), ago(1), young}}, serial: true, want: -1, retired: 1},
		"none that has ended":                          {conns: []conn{{0, 0, 0, false, ago(9), ago(1), young}}, serial: true, want: -1, retired: 1},
		"none that is too old":                         {conns: []conn{{1, 0, 0, false, ago(9), ago(1), old}}, serial: true, want: -1, retired: 1},
		"none from before the loss":                    {conns: []conn{{1, 0, 0, false, ago(9), ago(1), young}, {1, 0, 0, false, ago(1), ago(1), young}}, serial: true, after: ago(2), want: 1},
		"the least loaded":                             {conns: []conn{{100, 7, 7, false, ago(9), ago(1), young}, {100, 3, 3, false, ago(9), ago(2), young}, {100, 5, 5, false, ago(9), ago(1), young}}, want: 1},
		"those given up are load as well":              {conns: []conn{{100, 7, 1, false, ago(9), ago(1), young}, {100, 3, 3, false, ago(9), ago(2), young}}, want: 1},
		"not the hundred and first":                    {conns: []conn{{100, 100, 100, false, ago(9), ago(1), young}}, want: -1},
		"stalled, another is not":                      {conns: []conn{{100, 1, 1, true, ago(9), ago(1), young}, {100, 9, 9, false, ago(9), ago(1), young}}, want: 1, retired: 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := newConnPool(Options{}.withDefaults(), tc.serial)
			var conns []*pooled
			for _, c := range tc.conns {
				l := &fakeLink{is: linkState{c.room, c.pending, c.stalled}}
				conns = append(conns, &pooled{link: l, born: c.born, until: c.until, load: c.load, idleSince: c.idle, expiry: time.NewTimer(0)})
			}
			p.conns = append(p.conns, conns...)
			got := p.pick(now, tc.after)
			switch {
			case tc.want < 0 && got != nil:
				t.Error("one is picked, want none")
			case tc.want >= 0 && got != conns[tc.want]:
				t.Errorf("want connection %d", tc.want)
			}
			if n := len(conns) - len(p.conns); n != tc.retired {
				t.Errorf("%d retired, want %d", n, tc.retired)
			}
		})
	}
	t.Run("beyond eight full ones, the least loaded", func(t *testing.T) {
		p := newConnPool(Options{}.withDefaults(), false)
		for i := range poolShared {
			l := &fakeLink{is: linkState{room: 100}}
			p.conns = append(p.conns, &pooled{link: l, until: young, load: 200 - i, expiry: time.NewTimer(0)})
		}
		if got := p.pick(now, time.Time{}); got != p.conns[poolShared-1] {
			t.Error("want the last one")
		}
	})
}

func TestAStalledConnectionIsTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFakePool(Options{}, poolEach)
		p.release = make(chan struct{})
		stuck := p.start(t.Context(), t, 10)
		pass(p.delay)
		synctest.Wait()
		p.links[0].set(func(l *fakeLink) { l.is.stalled = true })
		first := p.release
		p.set(func(p *fakePool) { p.release = nil })
		next := p.start(t.Context(), t, 10)
		pass(p.delay)
		if n, err := next(); n != 10 || err != nil {
			t.Errorf("%d of 10 have ended, with %v", n, err)
		}
		if n, _ := stuck(); n != 0 || p.alive() != 2 {
			t.Errorf("%d of those on the stalled connection have ended, %d connections are alive; want 0 and 2", n, p.alive())
		}
		close(first)
		if n, err := stuck(); n != 10 || err != nil {
			t.Errorf("%d of 10 have ended, with %v", n, err)
		}
		if n := p.alive(); n != 1 {
			t.Errorf("%d connections are alive, want the new one", n)
		}
		p.Close()
	})
}

func TestALossIsSeenByNobodyAndFlushesWhatIsIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFakePool(Options{}, 1)
		p.release = make(chan struct{})
		p.start(t.Context(), t, 5)
		pass(5 * p.delay)
		close(p.release)
		synctest.Wait()
		p.set(func(p *fakePool) {
			p.release = nil
			for _, l := range p.links {
				l.set(func(l *fakeLink) { l.release = nil })
			}
		})
		for _, l := range p.links {
			l.set(func(l *fakeLink) { l.fail = fmt.Errorf("%w: %w", errBroken, errLost) })
		}
		ended := p.start(t.Context(), t, 1)
		pass(p.delay)
		if n, err := ended(); n != 1 || err != nil {
			t.Errorf("%d have ended, with %v", n, err)
		}
		if p.tried() != 6 || p.alive() != 1 {
			t.Errorf("%d dials, %d alive; want one more than before, and only that", p.tried(), p.alive())
		}
		// What is lost again is an error: there is one retry.
		p.links[5].set(func(l *fakeLink) { l.fail = fmt.Errorf("%w: %w", errBroken, errLost) })
		p.set(func(p *fakePool) { p.fail = errors.New("nobody there") })
		ended = p.start(t.Context(), t, 1)
		pass(p.delay)
		if n, err := ended(); n != 1 || !errors.Is(err, p.fail) {
			t.Errorf("%d have ended, with %v", n, err)
		}
	})
}
