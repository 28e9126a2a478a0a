package searchexpand

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

const (
	// skipAfter is how many names in a row have to fail under a suffix before it is
	// skipped. They are different ones: the A, AAAA and HTTPS of a single name that
	// is broken say nothing about the others.
	skipAfter = 3

	// skipFor is how long a suffix is skipped after its last failure: about as long
	// as a server takes to restart, and twice as long as what was found past it is
	// kept.
	skipFor = 10 * time.Second

	// probeEvery is how often a candidate under a suffix that is skipped is asked
	// all the same, so that clients do without it for a second after it is back.
	probeEvery = time.Second

	// lateFactor times its slowest answer of late is what a suffix is waited for, if
	// that is more than patience: an answer twice as late as the latest is none.
	lateFactor = 2

	// slownessWindow is how long a slow answer is remembered, once to twice.
	slownessWindow = 30 * time.Second

	// maxSuffixes bounds how many suffixes are watched, where lists can be anything: those
	// that names were asked for last.
	maxSuffixes = 1024
)

// errSkipped is the failure of a candidate that was not asked.
var errSkipped = errors.New("skipped after failures in a row")

// record is what is known about a suffix from the candidates under it.
type record struct {
	failing    []string  // the different names that failed since the last success, skipAfter at most
	lastFailed time.Time // the last failure
	lastGood   time.Time // the last time that a candidate was decided
	lastProbe  time.Time // the last time that a candidate was asked while skipped

	// The slowest answer of this window and of the one before.
	window     time.Time
	this, last time.Duration
}

// admission says how a candidate is treated.
type admission struct {
	skip     bool          // it counts as failed and is not asked
	probe    bool          // it would be skipped, but is asked to see whether the suffix is back
	patience time.Duration // how long it may be silent while a later candidate has the name
}

// admit decides about a candidate, which is asked at now unless it is skipped. One
// of those that would be skipped is a probe: who has another answer waits for it
// just as long as a suffix needs that was skipped by mistake.
func (r *record) admit(now time.Time) admission {
	if !r.open(now) {
		r.turn(now)
		return admission{patience: max(patience, lateFactor*max(r.this, r.last))}
	}
	if now.Sub(r.lastProbe) < probeEvery {
		return admission{skip: true}
	}
	r.lastProbe = now
	return admission{probe: true, patience: hedgeDelay}
}

// open reports whether the suffix is skipped.
func (r *record) open(now time.Time) bool {
	return len(r.failing) == skipAfter && now.Sub(r.lastFailed) < skipFor
}

// failed notes that name, asked for at since, is undecided, and reports whether the
// suffix is skipped from now on. If another name was decided meanwhile, it is this
// name that is broken, or the question went out before the suffix came back.
func (r *record) failed(now, since time.Time, name string) bool {
	if r.lastGood.After(since) {
		return false
	}
	before := r.open(now)
	r.lastFailed = now
	if len(r.failing) < skipAfter && !slices.ContainsFunc(r.failing, func(n string) bool { return strings.EqualFold(n, name) }) {
		r.failing = append(r.failing, name)
	}
	return !before && r.open(now)
}

// decided notes that a candidate was decided in the time that it took, and reports
// whether that ends the skipping.
func (r *record) decided(now time.Time, took time.Duration) bool {
	r.turn(now)
	r.this = max(r.this, took)
	before := r.open(now)
	r.failing, r.lastGood = nil, now
	return before
}

// turn begins a new window when the current one is over.
func (r *record) turn(now time.Time) {
	switch age := now.Sub(r.window); {
	case age >= 2*slownessWindow:
		r.window, r.last, r.this = now, 0, 0
	case age >= slownessWindow:
		r.window, r.last, r.this = now, r.this, 0
	}
}

// suffixes watches the suffixes of a list: one that fails name after name is
// skipped for a while. See DESIGN.md, D13.
type suffixes struct {
	mu      sync.Mutex
	records *simplelru.LRU[string, *record]
}

func newSuffixes() *suffixes {
	lru, err := simplelru.NewLRU[string, *record](maxSuffixes, nil)
	if err != nil {
		panic(err) // the size is a constant
	}
	return &suffixes{records: lru}
}

// admit decides about a candidate of a walk with that pace. The name as it is may be
// anybody's, so it is never skipped, and has all its time.
func (s *suffixes) admit(now time.Time, suffix string, p pace) admission {
	if suffix == root {
		return admission{patience: p.timeout}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record(suffix).admit(now)
}

// report notes what was found about a candidate that was asked at since, with the
// questions about its siblings. What ended for reasons of our own is no evidence.
func (s *suffixes) report(now, since time.Time, f finding) {
	if f.suffix == root || f.verdict == overloaded || f.verdict == dropped || f.crash != nil {
		return
	}
	opened, closed := s.note(now, since, f)
	if f.verdict == failed {
		suffixCount.WithLabelValues(f.entry, eventFailed).Inc()
	}
	if opened {
		suffixCount.WithLabelValues(f.entry, eventOpened).Inc()
		log.Warningf("%s is skipped for %v: %d names in a row failed under it, the last one with %s", f.suffix, skipFor, skipAfter, f.cause())
	}
	if closed {
		suffixCount.WithLabelValues(f.entry, eventClosed).Inc()
		log.Infof("%s is no longer skipped: a name under it was decided within %v", f.suffix, now.Sub(since).Round(time.Microsecond))
	}
}

func (s *suffixes) note(now, since time.Time, f finding) (opened, closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.record(f.suffix)
	if f.verdict == failed {
		return r.failed(now, since, f.name), false
	}
	return false, r.decided(now, now.Sub(since))
}

// skipped returns the suffixes that are skipped at now, sorted.
func (s *suffixes) skipped(now time.Time) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []string{}
	for _, suffix := range s.records.Keys() {
		if r, ok := s.records.Peek(suffix); ok && r.open(now) { // to look is no use
			all = append(all, suffix)
		}
	}
	slices.Sort(all)
	return all
}

// record returns that of the suffix. The caller holds mu.
func (s *suffixes) record(suffix string) *record {
	r, ok := s.records.Get(suffix)
	if !ok {
		r = &record{}
		s.records.Add(suffix, r)
	}
	return r
}
