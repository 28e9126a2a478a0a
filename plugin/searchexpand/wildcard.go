package searchexpand

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/miekg/dns"
)

// What becomes of a match that a wildcard record made.
const (
	wildcardLast   = "last"   // it is used if nothing else is found, for a name without a dot
	wildcardAllow  = "allow"  // it is a match like any other
	wildcardIgnore = "ignore" // it is none
)

const (
	// The names that nobody made. They are always the same, so that caches hold them
	// and who reads the logs of a name server does not take us for malware.
	probeLabel      = "_searchexpand-probe."
	otherProbeLabel = "_searchexpand-probe2."

	// A wildcard record is made and removed by people. The jitter keeps the suffixes of
	// a list, and the servers that were started together, from asking together.
	sampleEvery  = time.Hour
	sampleJitter = 12 * time.Minute

	// sampleAgain is for a suffix that fails, which says nothing.
	sampleAgain = time.Minute

	// sampleWait is how long a match waits for a probe that began with its question: once
	// for a suffix, and not longer than a person notices, for some networks drop such
	// names. One that has found something is waited for as long as there is time.
	sampleWait = 100 * time.Millisecond

	// maxSamples bounds the memory where suffixes are made from what clients are; those
	// of any list fit.
	maxSamples = 1024
)

// wildcards is what is known of the suffixes' wildcard records.
type wildcards struct {
	policy string // wildcardLast or wildcardIgnore

	mu      sync.Mutex
	samples *simplelru.LRU[sampleKey, *sample]
}

type sampleKey struct {
	suffix string
	qtype  uint16
}

// sample is what names under a suffix resolve to that nobody made.
type sample struct {
	hinted chan struct{} // closed when the first probe has found something
	known  chan struct{} // closed after the first probe

	// Guarded by wildcards.mu.
	hint   bool      // hinted is closed
	probed bool      // known is closed
	next   time.Time // no probe before
	data   []string  // as by dataOf; empty: it has no wildcard
	varies bool      // two names resolve to different data, so data says nothing
}

func newWildcards(policy string) *wildcards {
	lru, err := simplelru.NewLRU[sampleKey, *sample](maxSamples, nil)
	if err != nil {
		panic(err) // the size is a constant
	}
	return &wildcards{policy: policy, samples: lru}
}

// sampled reports whether suffixes are probed for the type: for those that clients
// ask for in pairs with names, and not for any of 65536.
func sampled(qtype uint16) bool {
	switch qtype {
	case dns.TypeA, dns.TypeAAAA, dns.TypeHTTPS, dns.TypeSVCB, dns.TypeSRV, dns.TypeTXT, dns.TypeMX:
		return true
	}
	return false
}

// look asks for a candidate and says whether a wildcard record made the answer. Only a
// match has its suffix probed, if that is due: a list of many suffixes has few that match
// at all, and one round trip in an hour is cheap beside a probe of each.
func (w walker) look(ctx context.Context, c candidate, qtype uint16, deadline time.Time) (o outcome, weak bool) {
	if w.wildcards == nil || c.suffix == root || c.served {
		return w.ask(ctx, c.name, qtype, deadline), false
	}
	o = w.ask(ctx, c.name, qtype, deadline)
	if v := judge(o, c.name, qtype); v != answered && v != truncated {
		return o, false
	}
	if synthesised(o, c.name) {
		return o, true
	}
	s := w.sample(ctx, c.suffix, qtype, time.Now())
	if s == nil || !s.wait(ctx, deadline) {
		return o, false
	}
	return o, w.wildcards.covers(s, dataOf(o.msg.Answer, c.name, qtype))
}

// weakens reports whether a weak match is of use at all: for a name with a dot, which
// may be complete, a wildcard says nothing. The very name that was asked does exist.
func (w walker) weakens(c candidate) bool {
	return c.asked || w.wildcards.policy == wildcardLast && dots(w.base) == 0
}

// weakened returns the finding for what a wildcard record made.
func (w walker) weakened(f finding, qtype uint16) finding {
	records, _ := chain(f.msg.Answer, f.name, qtype)
	f.verdict, f.ttl = nxDomain, lowestTTL(records)
	if w.weakens(f.candidate) {
		f.verdict = weak
	}
	return f
}

// unowned returns the finding for a candidate without data, whose sibling a wildcard
// record made. That makes nobody own the name; where weak matches are of no use, the
// name does not even exist.
func (w walker) unowned(f finding) finding {
	if f.verdict == noData && !w.weakens(f.candidate) {
		f.verdict = nxDomain
	}
	return f
}

// synthesised reports whether a zone of this server says that it made the answer from
// a wildcard above name. The file plugin does, and cache repeats it.
func synthesised(o outcome, name string) bool {
	value := o.values["zone/wildcard"]
	if value == nil {
		return false
	}
	parent, ok := strings.CutPrefix(value(), "*.")
	return ok && dns.IsSubDomain(parent, name)
}

// dataOf returns what name resolves to: aliases and records, without owners and TTLs.
func dataOf(answer []dns.RR, name string, qtype uint16) []string {
	records, _ := chain(answer, name, qtype)
	data := make([]string, 0, len(records))
	for _, rr := range records {
		if rr.Header().Rrtype != dns.TypeRRSIG {
			data = append(data, strings.ToLower(strings.TrimPrefix(rr.String(), rr.Header().String())))
		}
	}
	slices.Sort(data)
	return data
}

// covers reports whether a match with the data is what the wildcard would make.
func (wc *wildcards) covers(s *sample, data []string) bool {
	wc.mu.Lock()
	defer wc.mu.Unlock()
	if s.varies {
		return true
	}
	return slices.ContainsFunc(data, func(d string) bool { return slices.Contains(s.data, d) })
}

// wait waits until something is known of the suffix, for sampleWait or, if there is a
// hint, until the deadline, and reports whether it is.
func (s *sample) wait(ctx context.Context, deadline time.Time) bool {
	if within(ctx, min(sampleWait, time.Until(deadline)), s.known, s.hinted) {
		return within(ctx, time.Until(deadline), s.known, nil)
	}
	return false
}

// within waits until one of the channels is closed, for the time at most. It reports
// whether one is.
func within(ctx context.Context, most time.Duration, one, other <-chan struct{}) bool {
	select {
	case <-one:
		return true
	default:
	}
	if most <= 0 {
		return false
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-one:
		return true
	case <-other:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// sample returns what is known of the suffix, and has it probed if that is due. It is
// nil for what cannot be probed.
func (w walker) sample(ctx context.Context, suffix string, qtype uint16, now time.Time) *sample {
	if !sampled(qtype) || len(otherProbeLabel)+wireOctets(suffix) > maxNameOctets {
		return nil
	}
	s, due := w.wildcards.sample(sampleKey{suffix, qtype}, now)
	if due {
		// The probe is nobody's: it goes on after the walk.
		go w.probe(context.WithoutCancel(ctx), s, sampleKey{suffix, qtype}, now)
	}
	return s
}

// sample returns what is known, and whether the caller is to probe now.
func (wc *wildcards) sample(key sampleKey, now time.Time) (s *sample, due bool) {
	wc.mu.Lock()
	defer wc.mu.Unlock()
	s, ok := wc.samples.Get(key)
	if !ok {
		s = &sample{hinted: make(chan struct{}), known: make(chan struct{})}
		wc.samples.Add(key, s)
	}
	if now.Before(s.next) {
		return s, false
	}
	s.next = now.Add(sampleEvery) // nobody else until this one has ended
	return s, true
}

// probe asks for names that nobody made. A panic of a plugin below must not end the
// process: it is counted, and counts as a failure.
func (w walker) probe(ctx context.Context, s *sample, key sampleKey, now time.Time) {
	w.request = new(dns.Msg).SetQuestion(probeLabel+key.suffix, key.qtype)
	deadline := now.Add(w.pace.candidateTimeout())
	seen := probed{verdict: failed}
	defer func() {
		if w.wildcards.learn(s, seen, time.Now()) {
			log.Infof("%s has a wildcard record of type %s: policy %s", key.suffix, dns.Type(key.qtype), w.wildcards.policy)
		}
	}()
	name := probeLabel + key.suffix
	o := w.ask(ctx, name, key.qtype, deadline)
	if o.crash != nil {
		late(o.crash)
		return
	}
	seen.verdict = judge(o, name, key.qtype)
	if seen.verdict == truncated {
		seen.varies = true // what was cut off may be what matters
	}
	if seen.verdict != answered {
		return
	}
	seen.data = dataOf(o.msg.Answer, name, key.qtype)
	w.wildcards.hint(s)
	if !time.Now().Before(deadline) {
		return
	}
	name = otherProbeLabel + key.suffix
	o = w.ask(ctx, name, key.qtype, deadline)
	if o.crash != nil {
		late(o.crash)
	}
	switch judge(o, name, key.qtype) {
	case answered:
		seen.varies = !slices.Equal(seen.data, dataOf(o.msg.Answer, name, key.qtype))
	case noData, nxDomain:
		seen.data = nil // somebody has made the first one
	}
}

// probed is what came of a probe.
type probed struct {
	verdict verdict
	data    []string
	varies  bool
}

// hint notes that a probe has found something.
func (wc *wildcards) hint(s *sample) {
	wc.mu.Lock()
	defer wc.mu.Unlock()
	if !s.hint {
		s.hint = true
		close(s.hinted)
	}
}

// learn notes what came of a probe. It reports whether the suffix turns out to have a
// wildcard record.
func (wc *wildcards) learn(s *sample, seen probed, now time.Time) (news bool) {
	wc.mu.Lock()
	defer wc.mu.Unlock()
	if !s.probed {
		s.probed = true
		close(s.known)
	}
	switch seen.verdict {
	case answered, truncated, noData, nxDomain:
		s.next = now.Add(sampleEvery + rand.N(sampleJitter))
	default:
		s.next = now.Add(sampleAgain)
		return false // what was known stands
	}
	had := s.varies || len(s.data) > 0
	s.data, s.varies = seen.data, seen.varies
	return !had && (s.varies || len(s.data) > 0)
}
