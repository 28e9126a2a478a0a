package resolvconf

import (
	"slices"
	"sync"

	"github.com/fsnotify/fsnotify"
)

// notifier wakes those who follow files when something happens to them. All share one
// inotify instance, of which a user has 128 as a rule; it exists while anybody follows.
type notifier struct {
	mu            sync.Mutex
	watcher       *fsnotify.Watcher // nil: nobody follows, or there is none to be had
	done          chan struct{}     // closed when the watcher's events are at an end
	subscriptions map[*subscription]struct{}
}

// process is the notifier of the process.
//
//nolint:gochecknoglobals // inotify instances are few
var process = &notifier{subscriptions: make(map[*subscription]struct{})}

// subscription is one who follows a file.
type subscription struct {
	notifier *notifier
	woken    chan struct{} // holds one: what is to come is known to come

	// Guarded by notifier.mu.
	places  []place
	watched []string // directories, and the file
}

// subscribe returns a subscription to nothing yet. It is to be closed.
func (n *notifier) subscribe() *subscription {
	s := &subscription{notifier: n, woken: make(chan struct{}, 1)}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.subscriptions[s] = struct{}{}
	return s
}

// start requires that mu is held.
func (n *notifier) start() error {
	if n.watcher != nil {
		return nil
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	n.watcher, n.done = w, make(chan struct{})
	go n.run(w, n.done)
	return nil
}

// run hands on the events of a watcher until it is closed.
func (n *notifier) run(w *fsnotify.Watcher, done chan<- struct{}) {
	defer close(done)
	for {
		select {
		case e, ok := <-w.Events:
			if !ok {
				return
			}
			n.wake(func(s *subscription) bool { return s.concerns(e.Name) })
		case _, ok := <-w.Errors:
			if !ok {
				return
			}
			n.wake(func(*subscription) bool { return true }) // events were lost
		}
	}
}

func (n *notifier) wake(whom func(*subscription) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for s := range n.subscriptions {
		if whom(s) {
			select {
			case s.woken <- struct{}{}:
			default:
			}
		}
	}
}

// concerns reports whether an event at path is about the file. It requires that
// notifier.mu is held.
func (s *subscription) concerns(path string) bool {
	return slices.Contains(s.watched, path) || slices.ContainsFunc(s.places, func(p place) bool { return p.path() == path })
}

// watch watches these places instead of those before, and reports whether it can. The
// same ones are watched anew, since another directory may have their name now.
func (s *subscription) watch(places []place) bool {
	n := s.notifier
	n.mu.Lock()
	defer n.mu.Unlock()
	before := s.watched
	s.places, s.watched = places, nil
	if n.start() != nil {
		return false
	}
	all := len(places) > 0
	for _, p := range places {
		if slices.Contains(s.watched, p.dir) {
			continue
		}
		if n.watcher.Add(p.dir) == nil {
			s.watched = append(s.watched, p.dir)
		} else {
			all = false
		}
	}
	if all {
		// The file too: if it is mounted by itself, what is written to it elsewhere is
		// no event of the directory here.
		if file := places[len(places)-1].path(); n.watcher.Add(file) == nil {
			s.watched = append(s.watched, file)
		}
	}
	n.unwatch(before)
	return all
}

// unwatch requires that mu is held.
func (n *notifier) unwatch(paths []string) {
	for _, path := range paths {
		needed := false
		for s := range n.subscriptions {
			needed = needed || slices.Contains(s.watched, path)
		}
		if !needed && n.watcher != nil {
			_ = n.watcher.Remove(path) // it is gone by itself where the directory is
		}
	}
}

// close ends the subscription, and the watcher with the last one.
func (s *subscription) close() {
	n := s.notifier
	n.mu.Lock()
	delete(n.subscriptions, s)
	n.unwatch(s.watched)
	w, done := n.watcher, n.done
	if len(n.subscriptions) > 0 || w == nil {
		n.mu.Unlock()
		return
	}
	n.watcher = nil
	n.mu.Unlock()
	_ = w.Close() // nothing is left to be done about it
	<-done
}
