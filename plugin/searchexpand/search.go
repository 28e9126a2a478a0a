package searchexpand

import (
	"context"
	"time"
)

// search returns the verdict on the name that f is about: by the suffix that the name
// is pinned to, or by one that a search for another of its types is about to find, or
// else by a walk.
func (s *SearchExpand) search(ctx context.Context, w walker, f *flight, start time.Time) conclusion {
	c, findings := s.atPin(ctx, w, f.about)
	if f.lead != nil {
		if findings == nil {
			f.follow(ctx)
			c, findings = s.atPin(ctx, w, f.about)
		}
		s.unfollow(f)
	}
	if findings == nil {
		findings = w.walk(ctx, time.Now(), w.tries)
		c = s.settle(f.about, w.request.Question[0].Qtype, findings)
	}
	observe(ctx, findings, time.Since(start))
	return c
}

// settle draws the conclusion from a walk, and pins the name to what it found.
func (s *SearchExpand) settle(about subject, qtype uint16, findings []finding) conclusion {
	c := conclude(findings)
	if p, ok := newPin(c, qtype, time.Now()); ok {
		s.pins.add(about, p)
	}
	return c
}

// atPin asks at the suffix that the name is pinned to, and elsewhere only if the pin
// does not hold. It finds nothing if the name is not pinned.
func (s *SearchExpand) atPin(ctx context.Context, w walker, about subject) (conclusion, []finding) {
	now, tries := time.Now(), w.tries
	p, ok := s.pins.get(about, now)
	at := p.among(tries)
	if !ok || at < 0 || !now.Before(w.end) {
		return conclusion{}, nil
	}
	qtype := w.request.Question[0].Qtype
	deadline := now.Add(w.pace.candidateTimeout())
	if w.end.Before(deadline) {
		deadline = w.end
	}
	f := newFinding(tries[at], w.ask(ctx, tries[at].name, qtype, deadline), qtype)
	if f.crash != nil {
		panic(f.crash) // as in a walk
	}
	if ctx.Err() == nil {
		w.suffixes.report(time.Now(), now, f)
	}
	f, holds := p.accepts(f.ending(w.strict), qtype)
	if holds {
		c := conclude([]finding{f})
		c.ttl, c.soa = min(c.ttl, p.left(time.Now())), p.soa
		return c, []finding{f}
	}
	if f.verdict != failed { // else the other family's address is there all the same
		s.pins.drop(about)
	}
	findings := w.walkPast(ctx, tries, at, f)
	return s.settle(about, qtype, findings), findings
}

// walkPast walks all candidates but the one at whose finding is there already, unless
// that one has other types to be asked for.
func (w walker) walkPast(ctx context.Context, tries []candidate, at int, f finding) []finding {
	if f.verdict == noData {
		return w.walk(ctx, time.Now(), tries)
	}
	findings := w.walk(ctx, time.Now(), tries[:at])
	if n := len(findings); n > 0 && findings[n-1].verdict.final() {
		return findings
	}
	findings = append(findings, f)
	return append(findings, w.walk(ctx, time.Now(), tries[at+1:])...)
}
