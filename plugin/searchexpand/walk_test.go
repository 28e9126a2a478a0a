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
	return walker{next: next, limit: &limit{max: 16}, client: newClient(&test.ResponseWriter{}), request: query("db01.", dns.TypeA)}
}

// bySuffix is a chain that answers after a delay, which it takes whatever its
// context says. A name under no suffix does not exist.
type bySuffix map[string]struct {
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

func TestTheWalkTakesNoLongerThanItMay(t *testing.T) {
	const ms = time.Millisecond
	found := msg(t, 0, "db01.c.test. 300 IN A 192.0.2.1")
	tests := map[string]struct {
		a, b    time.Duration // until a.test and b.test say that there is no such name
		c       time.Duration // until c.test has it
		want    []verdict
		elapsed time.Duration
	}{
		"all at once":                       {0, 0, 0, []verdict{nxDomain, nxDomain, answered}, 0},
		"each takes its time":               {300 * ms, 200 * ms, 100 * ms, []verdict{nxDomain, nxDomain, answered}, 600 * ms},
		"one just in time":                  {999 * ms, 0, 0, []verdict{nxDomain, nxDomain, answered}, 999 * ms},
		"one just too late":                 {1001 * ms, 0, 0, []verdict{failed, nxDomain, answered}, 1000 * ms},
		"the last one in what is left":      {1001 * ms, 500 * ms, 499 * ms, []verdict{failed, nxDomain, answered}, 1999 * ms},
		"the last one past what is left":    {1001 * ms, 500 * ms, 501 * ms, []verdict{failed, nxDomain, failed}, 2000 * ms},
		"no time for the last one":          {1001 * ms, 1001 * ms, 0, []verdict{failed, failed, failed}, 2000 * ms},
		"one that does not end for an hour": {time.Hour, 0, 0, []verdict{failed, nxDomain, answered}, 1000 * ms},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWalker(bySuffix{"a.test.": {delay: tc.a}, "b.test.": {delay: tc.b}, "c.test.": {delay: tc.c, m: found}})
				defer untilAllHaveEnded()
				start := time.Now()
				got := w.walk(t.Context(), start, candidates("db01.", []string{"a.test.", "b.test.", "c.test."}))
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

func TestASiblingSharesTheCandidatesTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer untilAllHaveEnded()
		w := newWalker(bySuffix{"a.test.": {delay: 600 * time.Millisecond, m: msg(t, 0)}})
		start := time.Now()
		got := w.walk(t.Context(), start, candidates("db01.", []string{"a.test."}))
		if elapsed := time.Since(start); elapsed != time.Second || got[0].verdict != failed {
			t.Errorf("walk = %v after %v, want %v after 1s", verdicts(got), elapsed, failed)
		}
	})
}

func TestAListOfAHundredSilentSuffixesEndsInTwoSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer untilAllHaveEnded()
		w := newWalker(bySuffix{"example.": {delay: time.Hour}})
		start := time.Now()
		got := w.walk(t.Context(), start, candidates("db01.", longList(100)))
		if elapsed := time.Since(start); elapsed != walkTimeout || len(got) != 3 {
			t.Errorf("%d findings after %v, want 3 after %v", len(got), elapsed, walkTimeout)
		}
		if !errors.Is(got[2].err, errDeadline) {
			t.Errorf("the third suffix: %v, want %v", got[2].err, errDeadline)
		}
	})
}

func TestAWalkEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		defer untilAllHaveEnded()
		w := newWalker(bySuffix{"a.test.": {delay: time.Hour}})
		start := time.Now()
		got := w.walk(ctx, start, candidates("db01.", []string{"a.test.", "b.test."}))
		if elapsed := time.Since(start); elapsed != 300*time.Millisecond || len(got) != 1 {
			t.Errorf("%d findings after %v, want 1 after 300ms", len(got), elapsed)
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
		got := w.walk(ctx, time.Now(), candidates("db01.", []string{"a.test."}))
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
		w.walk(t.Context(), time.Now(), candidates("db01.", []string{"a.test."}))
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
		w.limit = &limit{max: 3}
		// The first walk leaves two candidates behind, the second one, and then
		// there is room for no more.
		for i, want := range [][]verdict{{failed, failed, failed}, {failed, overloaded}, {overloaded}} {
			got := w.walk(t.Context(), time.Now(), candidates("db01.", []string{"a.test.", "b.test.", "c.test."}))
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
	w.walk(t.Context(), time.Now(), candidates("db01.", []string{"a.test."}))
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
		got := w.walk(t.Context(), time.Now(), candidates("db01.", []string{"a.test."}))
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

	got := w.walk(ctx, time.Now(), candidates("db01.", []string{"a.test.", "b.test."}))
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
			tries := candidates("db01.", longList(n))
			b.ReportAllocs()
			for b.Loop() {
				w.walk(b.Context(), time.Now(), tries)
			}
		})
	}
}
