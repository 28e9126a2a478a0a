package searchexpand

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metadata"
	"github.com/coredns/coredns/plugin/metrics/vars"
	"github.com/coredns/coredns/plugin/test"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

type handler = plugin.HandlerFunc

// newWalker returns a walker for a query of type A.
func newWalker(next plugin.Handler) walker {
	c := newClient(&test.ResponseWriter{})
	return walker{
		next: next, limit: &limit{max: 64}, pace: newConfig().pace, suffixes: newSuffixes(),
		bill: newBudget(newConfig().rates, &credit{}).of(c.remote), client: c, request: query("db01.", dns.TypeA),
	}
}

// bySuffix is a chain that answers after a delay, which it takes whatever its
// context says. A name under no suffix does not exist.
type bySuffix map[string]takesAndSays

type takesAndSays struct {
	delay time.Duration
	m     *dns.Msg
}

func (b bySuffix) Name() string { return "bysuffix" }

func (b bySuffix) ServeDNS(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	m := new(dns.Msg).SetRcode(r, dns.RcodeNameError)
	for suffix, does := range b {
		if dns.IsSubDomain(suffix, r.Question[0].Name) {
			time.Sleep(does.delay) // in a bubble
			if does.m != nil {
				m = does.m
			}
		}
	}
	_ = w.WriteMsg(m)
	return m.Rcode, nil
}

// untilAllHaveEnded lets the time of a bubble go on until the candidates that
// nobody waits for have ended.
func untilAllHaveEnded() { time.Sleep(2 * time.Hour) }

func verdicts(findings []finding) []verdict {
	var out []verdict
	for _, f := range findings {
		out = append(out, f.verdict)
	}
	return out
}

func TestAWalkTakesWhatItsSlowestNeededCandidateTakes(t *testing.T) {
	const ms = time.Millisecond
	tests := map[string]struct {
		takes   []time.Duration // of each suffix in turn; the last one has the name, others deny it
		want    []verdict
		elapsed time.Duration
	}{
		"all at once": {[]time.Duration{0, 0, 0}, []verdict{nxDomain, nxDomain, answered}, 0},
		"one after the other within the hedge delay":     {[]time.Duration{49 * ms, 49 * ms, 49 * ms}, []verdict{nxDomain, nxDomain, answered}, 147 * ms},
		"beside each other past it":                      {[]time.Duration{200 * ms, 100 * ms, 60 * ms}, []verdict{nxDomain, nxDomain, answered}, 200 * ms},
		"silent for almost as long as it may":            {[]time.Duration{249 * ms, 0, 0}, []verdict{nxDomain, nxDomain, answered}, 249 * ms},
		"silent for longer":                              {[]time.Duration{251 * ms, 0, 0}, []verdict{failed, nxDomain, answered}, 250 * ms},
		"silent for an hour, at first":                   {[]time.Duration{time.Hour, 0, 0}, []verdict{failed, nxDomain, answered}, 250 * ms},
		"silent for an hour, in the middle":              {[]time.Duration{2 * ms, time.Hour, 2 * ms}, []verdict{nxDomain, failed, answered}, 252 * ms},
		"two of them":                                    {[]time.Duration{time.Hour, time.Hour, 0}, []verdict{failed, failed, answered}, 300 * ms},
		"five of them":                                   {[]time.Duration{time.Hour, time.Hour, time.Hour, time.Hour, time.Hour, 0}, []verdict{failed, failed, failed, failed, failed, answered}, 450 * ms},
		"past a silent one all others at their own pace": {[]time.Duration{time.Hour, ms, ms, ms, ms, ms}, []verdict{failed, nxDomain, nxDomain, nxDomain, nxDomain, answered}, 250 * ms},
		"the one with the name is slower than that":      {[]time.Duration{0, time.Hour, 400 * ms}, []verdict{nxDomain, failed, answered}, 450 * ms},
		"the one with the name is just in time":          {[]time.Duration{0, time.Hour, 999 * ms}, []verdict{nxDomain, failed, answered}, 1049 * ms},
		"the one with the name is just too late":         {[]time.Duration{0, time.Hour, 1001 * ms}, []verdict{nxDomain, failed, failed}, 1050 * ms},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				list, chain := longList(len(tc.takes)), bySuffix{}
				for i, takes := range tc.takes {
					chain[list[i]] = takesAndSays{takes, nil}
				}
				last := list[len(list)-1]
				chain[last] = takesAndSays{tc.takes[len(list)-1], msg(t, 0, "db01."+last+" 300 IN A 192.0.2.1")}
				defer untilAllHaveEnded()
				start := time.Now()
				got := newWalker(chain).walk(t.Context(), start, candidates("db01.", domainsOf(list...)))
				if elapsed := time.Since(start); elapsed != tc.elapsed {
					t.Errorf("the walk took %v, want %v", elapsed, tc.elapsed)
				}
				if !slices.Equal(verdicts(got), tc.want) {
					t.Errorf("verdicts = %v, want %v", verdicts(got), tc.want)
				}
			})
		})
	}
}

func TestALaterAnswerNeverWinsOverAnEarlierOneThatComes(t *testing.T) {
	for _, takes := range []time.Duration{0, 51 * time.Millisecond, 249 * time.Millisecond} {
		for _, parallel := range []int{1, 2, maxParallel} {
			synctest.Test(t, func(t *testing.T) {
				w := newWalker(bySuffix{
					"a.test.": {takes, msg(t, 0, "db01.a.test. 300 IN A 192.0.2.1")},
					"b.test.": {0, msg(t, 0, "db01.b.test. 300 IN A 192.0.2.2")},
				})
				w.pace.parallel = parallel
				defer untilAllHaveEnded()
				got := w.walk(t.Context(), time.Now(), candidates("db01.", domainsOf("a.test.", "b.test.")))
				if len(got) != 1 || got[0].suffix != "a.test." || got[0].verdict != answered {
					t.Errorf("parallel %d: a.test. after %v lost: %v", parallel, takes, verdicts(got))
				}
			})
		}
	}
}

func TestWhoIsSilentIsUndecidedWhereNobodyHasTheName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer untilAllHaveEnded()
		w := newWalker(bySuffix{"a.test.": {delay: time.Hour}})
		start := time.Now()
		got := w.walk(t.Context(), start, candidates("db01.", domainsOf("a.test.", "b.test.")))
		if elapsed := time.Since(start); elapsed != time.Second || !slices.Equal(verdicts(got), []verdict{failed, nxDomain}) {
			t.Errorf("walk = %v after %v, want %v after 1s", verdicts(got), elapsed, []verdict{failed, nxDomain})
		}
	})
}

func TestTheNameAsItIsWaitsForTheDomainsInFrontOfIt(t *testing.T) {
	const ms = time.Millisecond
	tests := map[string]struct {
		takes   time.Duration // the domain, which has the name if has
		has     bool
		elapsed time.Duration
		asked   int
	}{
		"the domain has the name, late":  {200 * ms, true, 200 * ms, 1},
		"the domain denies it, late":     {200 * ms, false, 200 * ms, 2},
		"the domain is silent":           {time.Hour, false, 250 * ms, 2},
		"the domain denies it at once":   {0, false, 0, 2},
		"the domain is silent too long":  {251 * ms, true, 250 * ms, 2},
		"the domain is silent but comes": {249 * ms, true, 249 * ms, 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var says *dns.Msg
				if tc.has {
					says = msg(t, 0, "db01.lab.a.test. 300 IN A 192.0.2.1")
				}
				w := newWalker(bySuffix{"a.test.": {tc.takes, says}, "lab.": {0, msg(t, 0, "db01.lab. 300 IN A 192.0.2.2")}})
				w.pace.parallel = maxParallel
				defer untilAllHaveEnded()
				start := time.Now()
				got := w.walk(t.Context(), start, candidates("db01.lab.", domainsOf("a.test.", ".")))
				if elapsed := time.Since(start); elapsed != tc.elapsed || len(got) != tc.asked {
					t.Errorf("%v after %v, want %d findings after %v", verdicts(got), elapsed, tc.asked, tc.elapsed)
				}
			})
		})
	}
}

func TestAsManyAreAskedAtOnceAsParallelSays(t *testing.T) {
	const ms = time.Millisecond
	tests := map[string]struct {
		parallel int
		takes    time.Duration
		elapsed  time.Duration // for 64 suffixes of which the last has the name
		most     int64         // questions in flight
	}{
		"one":                        {1, 2 * ms, 128 * ms, 1},
		"two":                        {2, 2 * ms, 64 * ms, 2},
		"sixteen":                    {16, 2 * ms, 8 * ms, 16},
		"all":                        {64, 2 * ms, 2 * ms, 64},
		"what is slow gives up room": {16, 60 * ms, 210 * ms, 32},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				list, most := longList(64), int64(0)
				var w walker
				var mu sync.Mutex
				w = newWalker(handler(func(_ context.Context, rw dns.ResponseWriter, r *dns.Msg) (int, error) {
					mu.Lock()
					most = max(most, w.limit.n.Load())
					mu.Unlock()
					time.Sleep(tc.takes) // in a bubble
					m := new(dns.Msg).SetRcode(r, dns.RcodeNameError)
					if r.Question[0].Name == "db01.d63.example." {
						m = msg(t, 0, "db01.d63.example. 300 IN A 192.0.2.1")
					}
					return m.Rcode, rw.WriteMsg(m)
				}))
				w.pace.parallel = tc.parallel
				start := time.Now()
				got := w.walk(t.Context(), start, candidates("db01.", domainsOf(list...)))
				if elapsed := time.Since(start); elapsed != tc.elapsed || most != tc.most || len(got) != 64 {
					t.Errorf("%d findings after %v with %d at once, want 64 after %v with %d", len(got), elapsed, most, tc.elapsed, tc.most)
				}
			})
		})
	}
}

func TestASiblingSharesTheCandidatesTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer untilAllHaveEnded()
		w := newWalker(bySuffix{"a.test.": {delay: 600 * time.Millisecond, m: msg(t, 0)}})
		start := time.Now()
		got := w.walk(t.Context(), start, candidates("db01.", domainsOf("a.test.")))
		if elapsed := time.Since(start); elapsed != time.Second || got[0].verdict != failed {
			t.Errorf("walk = %v after %v, want %v after 1s", verdicts(got), elapsed, failed)
		}
	})
}

func TestAListOfAHundredSilentSuffixesEndsInTime(t *testing.T) {
	for _, timeout := range []time.Duration{minTimeout, defaultTimeout, maxTimeout} {
		synctest.Test(t, func(t *testing.T) {
			defer untilAllHaveEnded()
			w := newWalker(bySuffix{"example.": {delay: time.Hour}})
			w.limit, w.pace.timeout = &limit{max: 100}, timeout
			start := time.Now()
			got := w.walk(t.Context(), start, candidates("db01.", domainsOf(longList(100)...)))
			// All have been asked at 5 s, and the last one has its half of ten.
			wantAsked := min(100, int(timeout/hedgeDelay))
			wantElapsed := min(timeout, 99*hedgeDelay+timeout/2)
			if elapsed := time.Since(start); elapsed != wantElapsed || len(got) != min(100, wantAsked+1) {
				t.Errorf("%v: %d findings after %v, want %d after %v", timeout, len(got), elapsed, min(100, wantAsked+1), wantElapsed)
			}
			if last := got[len(got)-1].err; wantAsked < 100 && !errors.Is(last, errDeadline) {
				t.Errorf("the first suffix that was not asked: %v, want %v", last, errDeadline)
			}
		})
	}
}

func TestAWalkEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		var cause error
		w := newWalker(handler(func(ctx context.Context, _ dns.ResponseWriter, _ *dns.Msg) (int, error) {
			<-ctx.Done()
			cause = context.Cause(ctx)
			return dns.RcodeServerFailure, ctx.Err()
		}))
		start := time.Now()
		got := w.walk(ctx, start, candidates("db01.", domainsOf("a.test.")))
		synctest.Wait()
		if elapsed := time.Since(start); elapsed != 300*time.Millisecond || len(got) != 1 || !errors.Is(cause, context.DeadlineExceeded) {
			t.Errorf("%d findings after %v, and the candidate saw %v; want 1 after 300ms and %v", len(got), elapsed, cause, context.DeadlineExceeded)
		}
	})
}

func TestACandidateEndsWhenAnEarlierOneHasTheName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var causes []error
		w := newWalker(handler(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			if r.Question[0].Name == "db01.b.test." {
				time.Sleep(100 * time.Millisecond) // in a bubble
				return dns.RcodeSuccess, w.WriteMsg(msg(t, 0, "db01.b.test. 300 IN A 192.0.2.1"))
			}
			<-ctx.Done()
			mu.Lock()
			defer mu.Unlock()
			causes = append(causes, context.Cause(ctx))
			return dns.RcodeServerFailure, ctx.Err()
		}))
		ended := func() []error {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(causes)
		}
		w.walk(t.Context(), time.Now(), candidates("db01.", domainsOf("a.test.", "b.test.", "c.test.")))
		if got := ended(); len(got) != 1 || !errors.Is(got[0], errOutrun) {
			t.Errorf("when the name was found, ended: %v, want the last one for %v", got, errOutrun)
		}
		time.Sleep(2 * time.Second) // in a bubble
		if got := ended(); len(got) != 2 || !errors.Is(got[1], errTimeout) {
			t.Errorf("ended: %v, want the first one by its own deadline", got)
		}
	})
}

func TestAnAbandonedCandidateIsToldAndHarmless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var cause, late error
		w := newWalker(handler(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			<-ctx.Done()
			cause = context.Cause(ctx)
			<-release // and does not care
			late = w.WriteMsg(r)
			metadata.SetValueFunc(ctx, "test/late", func() string { return "x" })
			return dns.RcodeSuccess, nil
		}))
		ctx := metadata.ContextWithMetadata(t.Context())
		got := w.walk(ctx, time.Now(), candidates("db01.", domainsOf("a.test.")))
		if got[0].verdict != failed || !errors.Is(got[0].err, errTimeout) {
			t.Errorf("finding = %+v, want failed for %v", got[0], errTimeout)
		}
		if n := w.limit.n.Load(); n != 1 {
			t.Errorf("in flight = %d, want 1: it is still there", n)
		}
		close(release)
		synctest.Wait()
		if n := w.limit.n.Load(); n != 0 {
			t.Errorf("in flight = %d, want 0", n)
		}
		if !errors.Is(cause, errTimeout) || !errors.Is(late, errLate) {
			t.Errorf("the candidate saw %v and %v, want %v and %v", cause, late, errTimeout, errLate)
		}
		if metadata.ValueFunc(ctx, "test/late") != nil {
			t.Error("the candidate's metadata got into the query's")
		}
	})
}

func TestAnAnswerInTimeDoesNotEndWhatGoesOnInTheBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refreshed := make(chan error, 1)
		w := newWalker(handler(func(ctx context.Context, w dns.ResponseWriter, _ *dns.Msg) (int, error) {
			go func() { // as cache does for prefetch
				select {
				case <-ctx.Done():
					refreshed <- ctx.Err()
				case <-time.After(5 * time.Second):
					refreshed <- nil
				}
			}()
			return dns.RcodeSuccess, w.WriteMsg(msg(t, 0, "db01.a.test. 300 IN A 192.0.2.1"))
		}))
		w.walk(t.Context(), time.Now(), candidates("db01.", domainsOf("a.test.")))
		if err := <-refreshed; err != nil {
			t.Errorf("the refresh ended with %v", err)
		}
	})
}

func TestNoMoreCandidatesThanTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		w := newWalker(handler(func(context.Context, dns.ResponseWriter, *dns.Msg) (int, error) {
			<-release
			return dns.RcodeServerFailure, nil
		}))
		w.limit = &limit{max: 4}
		// The first walk leaves three candidates behind, the second one, and then
		// there is room for no more.
		for i, want := range [][]verdict{{failed, failed, failed}, {failed, overloaded}, {overloaded}} {
			got := w.walk(t.Context(), time.Now(), candidates("db01.", domainsOf("a.test.", "b.test.", "c.test.")))
			if !slices.Equal(verdicts(got), want) {
				t.Errorf("walk %d = %v, want %v", i, verdicts(got), want)
			}
		}
		close(release)
		synctest.Wait()
		if n := w.limit.n.Load(); n != 0 {
			t.Errorf("in flight = %d, want 0", n)
		}
	})
}

func TestAPanicBelowComesUpInTheQuerysGoroutine(t *testing.T) {
	w := newWalker(handler(func(context.Context, dns.ResponseWriter, *dns.Msg) (int, error) { panic("boom") }))
	defer func() {
		c, ok := recover().(*crash)
		if !ok || !strings.HasPrefix(c.Error(), "boom\n") || !strings.Contains(c.Error(), "walk_test.go") {
			t.Errorf("recovered %v, want boom and where it happened", c)
		}
		if n := w.limit.n.Load(); n != 0 {
			t.Errorf("in flight = %d, want 0", n)
		}
	}()
	w.walk(t.Context(), time.Now(), candidates("db01.", domainsOf("a.test.")))
	t.Error("the panic was lost")
}

func TestALatePanicEndsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		w := newWalker(handler(func(context.Context, dns.ResponseWriter, *dns.Msg) (int, error) {
			<-release
			panic("boom")
		}))
		panics := testutil.ToFloat64(vars.Panic)
		got := w.walk(t.Context(), time.Now(), candidates("db01.", domainsOf("a.test.")))
		close(release)
		synctest.Wait()
		if got[0].verdict != failed || w.limit.n.Load() != 0 {
			t.Errorf("verdict %v, in flight %d, want %v and 0", got[0].verdict, w.limit.n.Load(), failed)
		}
		if n := testutil.ToFloat64(vars.Panic) - panics; n != 1 {
			t.Errorf("panics counted = %v, want 1", n)
		}
	})
}

func TestEachQuestionHasItsOwnRequestAndMetadata(t *testing.T) {
	var mu sync.Mutex
	var requests []*dns.Msg
	w := newWalker(handler(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		requests = append(requests, r)
		for _, label := range metadata.Labels(ctx) {
			if label == "test/mine" {
				t.Error("the metadata of another candidate is there")
			}
		}
		if f := metadata.ValueFunc(ctx, "test/client"); f == nil || f() != "x" {
			t.Error("the query's metadata is not there")
		}
		metadata.SetValueFunc(ctx, "test/mine", func() string { return r.Question[0].Name })
		r.IsEdns0().SetUDPSize(99)
		r.IsEdns0().Option = nil
		r.Question[0].Qtype = dns.TypeNULL
		m := new(dns.Msg).SetRcode(r, dns.RcodeNameError)
		return m.Rcode, w.WriteMsg(m)
	}))
	w.request.SetEdns0(1232, true)
	w.request.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_NSID{Code: dns.EDNS0NSID}}
	before := w.request.String()
	ctx := metadata.ContextWithMetadata(t.Context())
	metadata.SetValueFunc(ctx, "test/client", func() string { return "x" })

	got := w.walk(ctx, time.Now(), candidates("db01.", domainsOf("a.test.", "b.test.")))
	if len(requests) != 2 || requests[0] == requests[1] || w.request.String() != before {
		t.Errorf("%d requests below, and the query became %v", len(requests), w.request)
	}
	for i, f := range got {
		if want := requests[i].Question[0].Name; f.values["test/mine"]() != want {
			t.Errorf("metadata of candidate %d = %q, want %q", i, f.values["test/mine"](), want)
		}
	}
	if len(metadata.Labels(ctx)) != 1 {
		t.Errorf("metadata of the query = %v, want only its own", metadata.Labels(ctx))
	}
}

func BenchmarkWalk(b *testing.B) {
	next := handler(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		m := new(dns.Msg).SetRcode(r, dns.RcodeNameError)
		return m.Rcode, w.WriteMsg(m)
	})
	for _, n := range []int{1, 3, 100} {
		b.Run(fmt.Sprintf("suffixes%d", n), func(b *testing.B) {
			w := newWalker(next)
			tries := candidates("db01.", domainsOf(longList(n)...))
			b.ReportAllocs()
			for b.Loop() {
				w.walk(b.Context(), time.Now(), tries)
			}
		})
	}
}
