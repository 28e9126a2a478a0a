package resolvconf

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"steadfast.internal/plugin/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m, "steadfast.internal/plugin/internal/resolvconf") }

// news is what a follower said.
type news struct {
	content string
	failed  bool
}

// scripted is a file whose content is told, and a follower of it.
type scripted struct {
	follower
	wake chan struct{}

	mu      sync.Mutex
	content string
	err     error
	looks   int

	said []news
	at   []time.Duration // when it was said, since the start
}

func (s *scripted) set(content string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.content, s.err = content, err
}

func (s *scripted) look() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks++
	return []byte(s.content), s.err
}

func follow(t *testing.T, content string, watched bool) *scripted {
	s := &scripted{content: content, wake: make(chan struct{}, 1)}
	s.follower = follower{
		pace:  usual,
		last:  []byte(content),
		woken: s.wake,
		watch: func() bool { return watched },
		read:  s.look,
	}
	ctx, cancel := context.WithCancel(t.Context())
	start, done := time.Now(), make(chan struct{})
	go func() {
		defer close(done)
		s.run(ctx, func(content []byte, err error) {
			s.said = append(s.said, news{string(content), err != nil})
			s.at = append(s.at, time.Since(start))
		})
	}()
	t.Cleanup(func() { cancel(); <-done })
	synctest.Wait()
	return s
}

// event lets something happen after a while.
func (s *scripted) event(after time.Duration) {
	time.Sleep(after)
	s.wake <- struct{}{}
	synctest.Wait()
}

func TestAFileIsLookedAtWhenItHasBeenQuiet(t *testing.T) {
	for claim, c := range map[string]struct {
		watched bool
		play    func(s *scripted)
		said    []news
		at      []time.Duration
		looks   int // the first one included
	}{
		"100 ms after an event": {
			watched: true, play: func(s *scripted) { s.set("b", nil); s.event(0) },
			said: []news{{"b", false}}, at: []time.Duration{100 * time.Millisecond}, looks: 2,
		},
		"not while the parts of one change come": {
			watched: true, play: func(s *scripted) {
				s.set("", nil)
				s.event(0)
				s.set("b", nil)
				s.event(90 * time.Millisecond)
			},
			said: []news{{"b", false}}, at: []time.Duration{190 * time.Millisecond}, looks: 2,
		},
		"400 ms after the first event, though others come": {
			watched: true, play: func(s *scripted) {
				s.set("b", nil)
				for range 8 {
					s.event(90 * time.Millisecond) // from 90 to 720 ms
				}
			},
			// The first event of the second run is at 540 ms.
			said: []news{{"b", false}}, at: []time.Duration{490 * time.Millisecond}, looks: 3,
		},
		"after five seconds without an event": {
			watched: true, play: func(s *scripted) { s.set("b", nil); time.Sleep(5 * time.Second) },
			said: []news{{"b", false}}, at: []time.Duration{5 * time.Second}, looks: 2,
		},
		"after half a second where it cannot be watched": {
			play: func(s *scripted) { s.set("b", nil); time.Sleep(500 * time.Millisecond) },
			said: []news{{"b", false}}, at: []time.Duration{500 * time.Millisecond}, looks: 2,
		},
		"and nothing is said if it is as it was": {
			watched: true, play: func(s *scripted) { s.event(0) }, looks: 2,
		},
		"a failure is said once, and its end": {
			watched: true, play: func(s *scripted) {
				s.set("", errors.New("gone"))
				s.event(0)
				s.event(time.Second) // and the file is still gone
				time.Sleep(200 * time.Millisecond)
				s.set("a", nil)
				s.event(800 * time.Millisecond)
			},
			said:  []news{{"", true}, {"a", false}},
			at:    []time.Duration{100 * time.Millisecond, 2100 * time.Millisecond},
			looks: 4,
		},
	} {
		t.Run(claim, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := follow(t, "a", c.watched)
				c.play(s)
				time.Sleep(200 * time.Millisecond)
				synctest.Wait()
				if !slices.Equal(s.said, c.said) || !slices.Equal(s.at, c.at) || s.looks != c.looks {
					t.Errorf("said %+v at %v after %d looks, want %+v at %v after %d", s.said, s.at, s.looks, c.said, c.at, c.looks)
				}
			})
		})
	}
}

func TestAChangeBeforeTheFirstLookIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{content: "b"}
		s.follower = follower{pace: usual, last: []byte("a"), watch: func() bool { return true }, read: s.look}
		ctx, cancel := context.WithCancel(t.Context())
		go s.run(ctx, func(content []byte, _ error) { s.said = append(s.said, news{string(content), false}); cancel() })
		synctest.Wait()
		if !slices.Equal(s.said, []news{{"b", false}}) {
			t.Errorf("said %+v", s.said)
		}
	})
}

// must stops the test if a step of its preparation fails.
func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600))
}

// TestEveryWayToChangeAFileIsAnEvent follows real files without the slow look, so
// that nothing but an event can tell of the change.
func TestEveryWayToChangeAFileIsAnEvent(t *testing.T) {
	for claim, c := range map[string]struct {
		prepare func(t *testing.T, dir string) // makes dir/conf with the content a, or none
		change  func(t *testing.T, dir string) // makes it b, or a failure
		fails   bool
	}{
		"written in place": {
			change: func(t *testing.T, dir string) { write(t, dir+"/conf", "b") },
		},
		"renamed into place": {
			change: func(t *testing.T, dir string) {
				write(t, dir+"/conf.new", "b")
				must(t, os.Rename(dir+"/conf.new", dir+"/conf"))
			},
		},
		"deleted": {
			change: func(t *testing.T, dir string) { must(t, os.Remove(dir+"/conf")) }, fails: true,
		},
		"made where there was none": {
			prepare: func(*testing.T, string) {},
			change:  func(t *testing.T, dir string) { write(t, dir+"/conf", "b") },
		},
		"made in a directory that is made with it": {
			prepare: func(t *testing.T, dir string) { must(t, os.Symlink("x/y/conf", dir+"/conf")) },
			change: func(t *testing.T, dir string) {
				write(t, dir+"/new/y/conf", "b")
				must(t, os.Rename(dir+"/new", dir+"/x"))
			},
		},
		"a link to another file": {
			prepare: func(t *testing.T, dir string) {
				write(t, dir+"/one", "a")
				write(t, dir+"/two", "b")
				must(t, os.Symlink("one", dir+"/conf"))
			},
			change: func(t *testing.T, dir string) {
				must(t, os.Symlink("two", dir+"/link"), os.Rename(dir+"/link", dir+"/conf"))
			},
		},
		"a file that a link leads to": {
			prepare: func(t *testing.T, dir string) {
				write(t, dir+"/x/one", "a")
				must(t, os.Symlink(dir+"/x/one", dir+"/conf"))
			},
			change: func(t *testing.T, dir string) { write(t, dir+"/x/one", "b") },
		},
		"a volume of Kubernetes": {
			prepare: func(t *testing.T, dir string) {
				write(t, dir+"/..one/conf", "a")
				must(t, os.Symlink("..one", dir+"/..data"), os.Symlink("..data/conf", dir+"/conf"))
			},
			change: func(t *testing.T, dir string) {
				write(t, dir+"/..two/conf", "b")
				must(t, os.Symlink("..two", dir+"/..data_tmp"), os.Rename(dir+"/..data_tmp", dir+"/..data"), os.RemoveAll(dir+"/..one"))
			},
		},
		"replaced by a directory": {
			change: func(t *testing.T, dir string) { must(t, os.Remove(dir+"/conf"), os.Mkdir(dir+"/conf", 0o755)) }, fails: true,
		},
		"replaced by a FIFO": {
			change: func(t *testing.T, dir string) { must(t, os.Remove(dir+"/conf"), syscall.Mkfifo(dir+"/conf", 0o600)) }, fails: true,
		},
		"grown beyond all measure": {
			change: func(t *testing.T, dir string) { write(t, dir+"/conf", strings.Repeat("#", maxSize+1)) }, fails: true,
		},
		"a link that leads to itself": {
			change: func(t *testing.T, dir string) { must(t, os.Remove(dir+"/conf"), os.Symlink("conf", dir+"/conf")) }, fails: true,
		},
		"its directory renamed, and another in its place": {
			prepare: func(t *testing.T, dir string) {
				write(t, dir+"/x/conf", "a")
				must(t, os.Symlink("x/conf", dir+"/conf"))
			},
			change: func(t *testing.T, dir string) {
				write(t, dir+"/y/conf", "b")
				must(t, os.Rename(dir+"/x", dir+"/z"), os.Rename(dir+"/y", dir+"/x"))
			},
		},
	} {
		t.Run(claim, func(t *testing.T) {
			dir := t.TempDir()
			if c.prepare == nil {
				write(t, dir+"/conf", "a")
			} else {
				c.prepare(t, dir)
			}
			said, changed := observe(t, dir+"/conf")
			c.change(t, dir)
			<-changed
			for last := said(); last.failed != c.fails || !c.fails && last.content != "b"; last = said() {
				<-changed // a step in between was seen
			}
		})
	}
}

// observe follows the file without the slow look. It returns a function for what was
// said last and a channel that receives when something was.
func observe(t *testing.T, path string) (func() news, <-chan struct{}) {
	t.Helper()
	s := process.subscribe()
	watching := make(chan struct{}, 1)
	f := follower{
		pace:  pace{quiet: time.Millisecond, most: 10 * time.Millisecond, slow: time.Hour, unaided: time.Hour},
		read:  func() ([]byte, error) { return Read(path) },
		woken: s.woken,
		watch: func() bool {
			defer func() {
				select {
				case watching <- struct{}{}:
				default:
				}
			}()
			return s.watch(places(path))
		},
	}
	content, err := Read(path)
	f.last, f.failure = content, reason(err)
	all, changed := make(chan news, 100), make(chan struct{}, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.run(ctx, func(content []byte, err error) {
			all <- news{string(content), err != nil}
			changed <- struct{}{}
		})
	}()
	t.Cleanup(func() { cancel(); <-done; s.close() })
	<-watching
	return func() news { return <-all }, changed
}

func TestTheLastFollowerClosesTheWatcher(t *testing.T) {
	path := filepath.Join(t.TempDir(), "conf")
	write(t, path, "a")
	one, other := process.subscribe(), process.subscribe()
	if !one.watch(places(path)) || !other.watch(places(path)) {
		t.Fatal("a directory cannot be watched")
	}
	one.close()
	if process.watcher == nil || len(process.watcher.WatchList()) != 2 {
		t.Error("what the other one follows is not watched any more")
	}
	other.close()
	if process.watcher != nil {
		t.Error("nobody follows, and the watcher is there")
	}
}

func TestADirectoryThatCannotBeWatchedIsSaid(t *testing.T) {
	s := process.subscribe()
	defer s.close()
	if s.watch([]place{{dir: filepath.Join(t.TempDir(), "missing"), name: "conf"}}) {
		t.Error("a directory that is not there is watched")
	}
	if s.watch(nil) {
		t.Error("nothing is watched")
	}
}
