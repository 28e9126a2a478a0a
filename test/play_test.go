package test

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

const (
	// warmUp is how long, and perUpstream how often, a play asks before its faults,
	// so that answer times are known by then.
	warmUp      = 3 * time.Second
	perUpstream = 50
	// settled is from when on after its fault an upstream should be left alone.
	settled = time.Second
	// reacted is from when on the load of a play counts for loadAfter2s.
	reacted = 2 * time.Second
)

// play is one run of a scenario against one coredns. Time 0 is that of the first
// fault; what comes before is the warm-up and counts nowhere.
type play struct {
	scenario  *scenario
	variant   string // the plugin, or what the scenario varies besides
	rate      int    // queries a second
	upstreams []*faulty
	server    *server
	client    *openLoop

	mu       sync.Mutex
	began    time.Time           // time 0, zero before
	seen     map[string]sighting // by name
	badSince map[int]time.Time   // upstream → since when it misbehaves
	cameBack map[int]time.Time   // upstream → when it stopped misbehaving
	counts   tally
	attempts float64 // on upstream 1 until settled, if it cannot count itself
}

// sighting is when a name came to an upstream first.
type sighting struct {
	at    time.Time
	onBad bool // it was counted as such
}

// tally is what the upstreams saw.
type tally struct {
	arrived     int // queries but for probes
	arrivedLate int // of these, after reacted
	onBad       int // on an upstream that is bad since settled, and nobody else was asked before
	copies      int // the same, but of a name that somebody else was asked for before
	inUseAfter  time.Duration
}

// runPlay plays a scenario.
func runPlay(t testing.TB, s *scenario, variant string, rate int) *summary {
	t.Helper()
	p := &play{
		scenario: s, variant: variant, rate: rate,
		seen: make(map[string]sighting), badSince: make(map[int]time.Time), cameBack: make(map[int]time.Time),
	}
	p.counts.inUseAfter = math.MaxInt64
	port := freePort(t)
	for i, does := range s.upstreams {
		p.upstreams = append(p.upstreams, startFaulty(t, i+1, port, does, p.arrive))
	}
	p.server = startServer(t, s.corefile(t, variant, p.upstreams))
	p.client = startOpenLoop(t, p.server.addr())
	if !s.cold {
		p.client.ask(max(rate, perUpstream*len(p.upstreams)), warmUp, warming)
	}

	p.mu.Lock()
	p.began = time.Now()
	p.mu.Unlock()
	var faults sync.WaitGroup
	faults.Go(p.happen)
	ask := s.asks
	if ask == nil {
		ask = unique
	}
	p.client.ask(rate, s.lasts, ask)
	faults.Wait()
	p.client.rest()
	sum := p.sum()
	if variant != stock {
		sum.ejections = p.metric("transitions_total", `state="ejected"`)
		if s.unseen {
			sum.onBad = int(p.metric("attempts_total", p.upstreams[0].addr) - p.attempts)
		}
	}
	return sum
}

const warmUpKind = "warm"

func warming(i int, _ time.Duration) demand { return demand{name: nameOf(warmUpKind, i)} }

// happen lets the faults happen at their times.
func (p *play) happen() {
	for _, f := range p.scenario.faults {
		if f.at >= p.scenario.lasts {
			return
		}
		p.waitUntil(f.at)
		p.mu.Lock()
		if f.well {
			delete(p.badSince, f.upstream)
			p.cameBack[f.upstream] = time.Now()
		} else {
			p.badSince[f.upstream] = time.Now()
			delete(p.cameBack, f.upstream)
		}
		p.mu.Unlock()
		p.upstreams[f.upstream-1].set(f.does)
	}
	if p.scenario.unseen && p.variant != stock {
		p.waitUntil(settled)
		p.attempts = p.metric("attempts_total", p.upstreams[0].addr)
	}
}

func (p *play) waitUntil(at time.Duration) {
	timer := time.NewTimer(time.Until(p.began.Add(at)))
	defer timer.Stop()
	<-timer.C
}

// arrive counts a query that came to an upstream.
func (p *play) arrive(f *faulty, a arrival, now time.Time) {
	if !dns.IsSubDomain("test.", a.name) || strings.HasPrefix(a.name, warmUpKind) {
		return // a probe of some kind, as clients ask for nothing else, or before time 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c := &p.counts
	c.arrived++
	if now.Sub(p.began) >= reacted {
		c.arrivedLate++
	}
	since, isBad := p.badSince[f.number]
	isBad = isBad && now.Sub(since) > settled
	first, isCopy := p.seen[a.name]
	if !isCopy {
		p.seen[a.name] = sighting{now, isBad}
	}
	switch {
	case isBad && isCopy:
		c.copies++
	case isBad:
		c.onBad++
	case first.onBad && now.Sub(first.at) < lan:
		// It was a copy that overtook what it is a copy of: nobody is rescued so
		// soon from an upstream that takes as long to fail.
		c.onBad--
		c.copies++
		p.seen[a.name] = sighting{at: first.at}
	}
	if at, ok := p.cameBack[f.number]; ok && !isCopy {
		c.inUseAfter = now.Sub(at)
		delete(p.cameBack, f.number)
	}
}

// metric adds up the series of a metric of healthforward that have a label.
func (p *play) metric(name, label string) float64 {
	text, err := httpGet("http://" + p.server.addrOf("PORT2") + "/metrics")
	if err != nil {
		p.server.t.Errorf("metrics: %v", err)
		return math.NaN()
	}
	sum := 0.0
	for line := range strings.Lines(text) {
		series, value, _ := strings.Cut(line, "} ")
		if !strings.HasPrefix(series, "coredns_healthforward_"+name+"{") || !strings.Contains(series, label) {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil {
			p.server.t.Errorf("metrics: %q: %v", line, err)
		}
		sum += v
	}
	return sum
}

// summary is what came of a play.
type summary struct {
	scenario *scenario
	variant  string
	rate     int
	tally

	queries     int // after the warm-up
	queriesLate int // of these, after reacted
	inTime      int // were answered rightly before the last query was sent
	lost        int // failed or were never answered, and should not
	excused     int // the same, but it was to be expected
	wrong       int // were told what is not so
	over100ms   int // of those that should be answered soon
	over1s      int
	slowLate    int             // over 100 ms, and sent later than failOver
	took        []time.Duration // sorted, of those that should be answered soon
	firstGood   time.Duration   // from the scenario's return to the first good answer; MaxInt64 if none
	lastFailure time.Duration   // the longest that a failure took
	ejections   float64         // NaN if it is not known
	clientLag   time.Duration   // how late the bench was itself

	beside map[string]*summary // the plays of the other variants, by their names
}

// failOver is how long it may take until a lower tier answers.
const failOver = 600 * time.Millisecond

func (p *play) sum() *summary {
	p.client.end()
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &summary{
		scenario: p.scenario, variant: p.variant, rate: p.rate, tally: p.counts,
		ejections: math.NaN(), clientLag: p.client.lag, firstGood: math.MaxInt64,
	}
	back := p.began.Add(p.scenario.returns)
	for i := range p.client.fates {
		f := &p.client.fates[i]
		if f.sent.Before(p.began) {
			continue
		}
		s.count(f, f.sent.Sub(p.began))
		if f.verdict() == isGood && f.sent.Add(f.took).After(back) {
			s.firstGood = min(s.firstGood, f.sent.Add(f.took).Sub(back))
		}
	}
	slices.Sort(s.took)
	return s
}

// count adds a query that was sent at some time.
func (s *summary) count(f *fate, at time.Duration) {
	s.queries++
	if at >= reacted {
		s.queriesLate++
	}
	took := f.took
	switch f.verdict() {
	case isGood:
		if at+took < s.scenario.lasts {
			s.inTime++
		}
	case isWrong:
		s.wrong++
	case isUnanswered:
		took = patience
		fallthrough
	case isFailed:
		s.lastFailure = max(s.lastFailure, took)
		if f.fails {
			s.excused++
		} else {
			s.lost++
		}
	}
	if f.fails || f.slow {
		return
	}
	s.took = append(s.took, took)
	if took > 100*time.Millisecond {
		s.over100ms++
		if at > failOver {
			s.slowLate++
		}
	}
	if took > time.Second {
		s.over1s++
	}
}

// verdict is what a reply is worth.
type verdict int

const (
	isGood verdict = iota
	isWrong
	isFailed
	isUnanswered
)

func (f *fate) verdict() verdict {
	switch {
	case f.took == 0 || f.took > patience:
		return isUnanswered
	case f.rcode == dns.RcodeNameError || f.rcode == dns.RcodeSuccess && f.address == "":
		return isWrong // every name that is asked for exists
	case f.rcode != dns.RcodeSuccess:
		return isFailed
	case f.by != 0 && f.address != address(f.by):
		return isWrong
	}
	return isGood
}

// quantile returns the time in which a share of the queries was done, in
// milliseconds.
func (s *summary) quantile(share float64) float64 {
	if len(s.took) == 0 {
		return math.NaN()
	}
	return milliseconds(s.took[min(int(share*float64(len(s.took))), len(s.took)-1)])
}

func milliseconds(d time.Duration) float64 {
	if d == math.MaxInt64 {
		return math.Inf(1)
	}
	return float64(d) / float64(time.Millisecond)
}

// corefile is what a variant of the scenario runs on.
func (s *scenario) corefile(t testing.TB, variant string, upstreams []*faulty) string {
	t.Helper()
	rest, ok := s.stanzas[variant]
	if !ok && (variant == stock || variant == own) {
		rest, ok = s.both, true
	}
	if !ok {
		t.Fatalf("scenario %s has no stanza for %s", s.name, variant)
	}
	var to []string
	for i, u := range upstreams {
		rest = strings.ReplaceAll(rest, fmt.Sprintf("{U%d}", i+1), u.addr)
		to = append(to, u.addr)
	}
	if !strings.HasPrefix(rest, ". ") { // only a block, or nothing
		rest = ". " + strings.Join(to, " ") + " " + rest
	}
	directive, _, _ := strings.Cut(variant, " ")
	return fmt.Sprintf(".:{PORT1} {\n bind 127.0.0.1\n prometheus 127.0.0.1:{PORT2}\n %s\n %s %s\n}", s.before, directive, rest)
}
