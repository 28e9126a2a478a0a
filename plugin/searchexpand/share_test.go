package searchexpand

import (
	"context"
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

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// far is less than hedgeDelay, so that candidates are asked one after the other.
const far = 40 * time.Millisecond

// distant is a chain that takes far for each question, whatever its context says, and
// then does what next does.
func distant(next plugin.Handler) plugin.Handler {
	return handler(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		time.Sleep(far) // in a bubble
		return next.ServeDNS(ctx, w, r)
	})
}

// caller is a client's query in a story about several at once.
type caller struct {
	at     time.Duration // when it comes
	leaves time.Duration // how long its client waits; 0: as long as it takes
	client string        // default 192.0.2.200
	tcp    bool
	name   string
	qtype  uint16
	do     bool

	rcode   int // -1: none, its client is gone
	records int // in the answer section
	elapsed time.Duration
}

// meet lets the callers ask and checks what each gets, and when.
func meet(t *testing.T, s *SearchExpand, callers []caller) {
	t.Helper()
	var wg sync.WaitGroup
	for i, c := range callers {
		wg.Go(func() {
			time.Sleep(c.at)
			ctx := t.Context()
			if c.leaves > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, c.leaves)
				defer cancel()
			}
			if c.client == "" {
				c.client = "192.0.2.200"
			}
			w, r := from(c.client), query(c.name, c.qtype)
			w.TCP = c.tcp
			r.SetEdns0(1232, c.do)
			start := time.Now()
			_, err := s.ServeDNS(ctx, w, r)
			if elapsed := time.Since(start); elapsed != c.elapsed {
				t.Errorf("query %d took %v, want %v", i, elapsed, c.elapsed)
			}
			if c.rcode == -1 {
				if err == nil || len(w.replies) != 0 {
					t.Errorf("query %d: %v and %d replies, want an error and none", i, err, len(w.replies))
				}
				return
			}
			if len(w.replies) != 1 || w.replies[0].Id != r.Id || w.replies[0].Rcode != c.rcode || len(w.replies[0].Answer) != c.records {
				t.Errorf("query %d: replies = %v, want rcode %d and %d records", i, w.replies, c.rcode, c.records)
			}
		})
	}
	wg.Wait()
}

// inTheAir returns about how many names there is a search.
func inTheAir(s *SearchExpand) int {
	s.flights.mu.Lock()
	defer s.flights.mu.Unlock()
	return len(s.flights.by)
}

func TestSearchesForOneNameAreJoined(t *testing.T) {
	const ms = far / 100
	onceA := []string{"bonly.a.test. A", "bonly.b.test. A"}
	twiceA := []string{"bonly.a.test. A", "bonly.a.test. A", "bonly.b.test. A", "bonly.b.test. A"}
	tests := map[string]struct {
		list    []string
		callers []caller
		asked   []string // sorted
	}{
		"the same question, at once": {callers: []caller{
			{name: "bonly.", qtype: dns.TypeA, records: 2, elapsed: 200 * ms},
			{name: "bonly.", qtype: dns.TypeA, records: 2, elapsed: 200 * ms},
		}, asked: onceA},
		"the same question, later": {callers: []caller{
			{name: "bonly.", qtype: dns.TypeA, records: 2, elapsed: 200 * ms},
			{at: 150 * ms, name: "bonly.", qtype: dns.TypeA, records: 2, elapsed: 50 * ms},
		}, asked: onceA},
		"the other family is asked at the winner": {callers: []caller{
			{name: "bonly.", qtype: dns.TypeA, records: 2, elapsed: 200 * ms},
			{at: 1 * ms, name: "bonly.", qtype: dns.TypeAAAA, elapsed: 299 * ms},
			{at: 2 * ms, name: "bonly.", qtype: dns.TypeHTTPS, elapsed: 298 * ms},
		}, asked: []string{"bonly.a.test. A", "bonly.b.test. A", "bonly.b.test. AAAA", "bonly.b.test. HTTPS"}},
		"it does not matter which family is first": {callers: []caller{
			{name: "v4only.", qtype: dns.TypeAAAA, elapsed: 200 * ms},
			{at: 1 * ms, name: "v4only.", qtype: dns.TypeA, records: 2, elapsed: 299 * ms},
		}, asked: []string{"v4only.a.test. A", "v4only.a.test. A", "v4only.a.test. AAAA", "v4only.b.test. AAAA"}}, // the last by the hedge
		"what the first did not find is searched for": {callers: []caller{
			{name: "nope.", qtype: dns.TypeA, rcode: dns.RcodeNameError, elapsed: 400 * ms},
			{at: 1 * ms, name: "nope.", qtype: dns.TypeAAAA, rcode: dns.RcodeNameError, elapsed: 399 * ms},
		}, asked: []string{"nope.a.test. A", "nope.a.test. AAAA", "nope.b.test. A", "nope.b.test. AAAA"}},
		"in the time that is left": {list: []string{"slow.test.", "slow2.slow.test."}, callers: []caller{
			{name: "nope.", qtype: dns.TypeA, rcode: dns.RcodeServerFailure, elapsed: time.Second + hedgeDelay},
			{at: 500 * time.Millisecond, name: "nope.", qtype: dns.TypeAAAA, rcode: dns.RcodeServerFailure, elapsed: 1500*time.Millisecond + 2*hedgeDelay},
		}, asked: []string{"nope.slow.test. A", "nope.slow.test. AAAA", "nope.slow2.slow.test. A", "nope.slow2.slow.test. AAAA"}},
		"signatures make it another question": {callers: []caller{
			{name: "bonly.", qtype: dns.TypeA, records: 2, elapsed: 200 * ms},
			{at: 1 * ms, name: "bonly.", qtype: dns.TypeA, do: true, records: 2, elapsed: 299 * ms},
		}, asked: []string{"bonly.a.test. A", "bonly.b.test. A", "bonly.b.test. A"}},
		"TCP makes it another question": {callers: []caller{
			{name: "bonly.", qtype: dns.TypeA, records: 2, elapsed: 200 * ms},
			{at: 1 * ms, name: "bonly.", qtype: dns.TypeA, tcp: true, records: 2, elapsed: 299 * ms},
		}, asked: []string{"bonly.a.test. A", "bonly.b.test. A", "bonly.b.test. A"}},
		"another client's is another search": {callers: []caller{
			{name: "bonly.", qtype: dns.TypeA, records: 2, elapsed: 200 * ms},
			{name: "bonly.", client: "192.0.2.201", qtype: dns.TypeA, records: 2, elapsed: 200 * ms},
		}, asked: twiceA},
		"who began it leaves": {callers: []caller{
			{leaves: 50 * ms, name: "bonly.", qtype: dns.TypeA, rcode: -1, elapsed: 50 * ms},
			{at: 10 * ms, name: "bonly.", qtype: dns.TypeA, records: 2, elapsed: 190 * ms},
		}, asked: onceA},
		"who began it leaves, and the other family stays": {callers: []caller{
			{leaves: 50 * ms, name: "bonly.", qtype: dns.TypeA, rcode: -1, elapsed: 50 * ms},
			{at: 10 * ms, name: "bonly.", qtype: dns.TypeAAAA, elapsed: 290 * ms},
		}, asked: []string{"bonly.a.test. A", "bonly.b.test. A", "bonly.b.test. AAAA"}},
		"a search that nobody waits for ends": {callers: []caller{
			{leaves: 50 * ms, name: "bonly.", qtype: dns.TypeA, rcode: -1, elapsed: 50 * ms},
			{at: 10 * ms, leaves: 20 * ms, name: "bonly.", qtype: dns.TypeA, rcode: -1, elapsed: 20 * ms},
			{at: 20 * ms, leaves: 60 * ms, name: "bonly.", qtype: dns.TypeAAAA, rcode: -1, elapsed: 60 * ms},
		}, asked: []string{"bonly.a.test. A"}},
		"nobody joins a search that ended": {callers: []caller{
			{leaves: 50 * ms, name: "bonly.", qtype: dns.TypeA, rcode: -1, elapsed: 50 * ms},
			{at: 50*ms + 1, name: "bonly.", qtype: dns.TypeA, records: 2, elapsed: 200 * ms},
		}, asked: []string{"bonly.a.test. A", "bonly.a.test. A", "bonly.b.test. A"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if tc.list == nil {
					tc.list = []string{"a.test.", "b.test."}
				}
				z := newZones(t)
				s := newTestPlugin(distant(z), 1, tc.list...)
				meet(t, s, tc.callers)
				untilAllHaveEnded()
				got := z.questions()
				slices.Sort(got)
				if !slices.Equal(got, tc.asked) {
					t.Errorf("asked %q, want %q", got, tc.asked)
				}
				if n := inTheAir(s); n != 0 || s.limit.n.Load() != 0 {
					t.Errorf("%d flights and %d questions are left", n, s.limit.n.Load())
				}
			})
		})
	}
}

// Which of a client's two questions gets here first is a matter of chance.
func TestADenialWaitsForWhatTheOtherFamilyFinds(t *testing.T) {
	const ms = far / 100
	tests := map[string]struct {
		list    []string
		callers []caller
	}{
		"the host is found": {callers: []caller{
			{name: "bonly.", qtype: dns.TypeAAAA, elapsed: 400 * ms},
			{at: 1 * ms, name: "bonly.", qtype: dns.TypeA, records: 2, elapsed: 399 * ms},
		}},
		"by the third": {callers: []caller{
			{name: "bonly.", qtype: dns.TypeHTTPS, elapsed: 400 * ms},
			{at: 1 * ms, name: "bonly.", qtype: dns.TypeAAAA, elapsed: 399 * ms},
			{at: 2 * ms, name: "bonly.", qtype: dns.TypeA, records: 2, elapsed: 398 * ms},
		}},
		"the host comes too late": {callers: []caller{
			{name: "bonly.", qtype: dns.TypeAAAA, rcode: dns.RcodeNameError, elapsed: 200 * ms},
			{at: 200*ms + 1, name: "bonly.", qtype: dns.TypeA, records: 2, elapsed: 200 * ms},
		}},
		"it is nowhere": {callers: []caller{
			{name: "nope.", qtype: dns.TypeAAAA, rcode: dns.RcodeNameError, elapsed: 400 * ms},
			{at: 1 * ms, name: "nope.", qtype: dns.TypeA, rcode: dns.RcodeNameError, elapsed: 399 * ms},
		}},
		"the other one leaves": {callers: []caller{
			{name: "bonly.", qtype: dns.TypeAAAA, rcode: dns.RcodeNameError, elapsed: 251 * ms},
			{at: 1 * ms, leaves: 250 * ms, name: "bonly.", qtype: dns.TypeA, rcode: -1, elapsed: 250 * ms},
		}},
		"the one that waits leaves": {callers: []caller{
			{leaves: 250 * ms, name: "bonly.", qtype: dns.TypeAAAA, rcode: -1, elapsed: 250 * ms},
			{at: 1 * ms, name: "bonly.", qtype: dns.TypeA, records: 2, elapsed: 399 * ms},
		}},
		"not past its time": {list: longList(40), callers: []caller{
			{name: "nope.", qtype: dns.TypeAAAA, rcode: dns.RcodeNameError, elapsed: defaultTimeout},
			{at: 1 * ms, name: "nope.", qtype: dns.TypeA, rcode: dns.RcodeServerFailure, elapsed: defaultTimeout},
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if tc.list == nil {
					tc.list = []string{"a.test.", "b.test."}
				}
				s := newTestPlugin(distant(hostOnly{newZones(t)}), 1, tc.list...)
				meet(t, s, tc.callers)
				untilAllHaveEnded()
				if n := inTheAir(s); n != 0 {
					t.Errorf("%d flights are left", n)
				}
			})
		})
	}
}

func TestAThousandQueriesForOneNameAreOneSearch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := newZones(t)
		var callers []caller
		for i := range 1000 {
			callers = append(callers, caller{
				at: time.Duration(i) * time.Microsecond, name: "both.", qtype: dns.TypeA,
				records: 2, elapsed: far - time.Duration(i)*time.Microsecond,
			})
		}
		meet(t, newTestPlugin(distant(z), 1, "a.test."), callers)
		if got := z.questions(); len(got) != 1 {
			t.Errorf("%d questions, want 1", len(got))
		}
	})
}

func TestWhoJoinsGetsACopyOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestPlugin(distant(newZones(t)), 1, "a.test.")
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				w, r := &spoiler{}, query("both.", dns.TypeA)
				ctx := metadata.ContextWithMetadata(t.Context())
				_, err := s.ServeDNS(ctx, w, r)
				if err != nil || w.answer != "both.a.test. A 192.0.2.11" {
					t.Errorf("answer = %q, %v", w.answer, err)
				}
				metadata.SetValueFunc(ctx, labelName, func() string { return "" })
			})
		}
		wg.Wait()
	})
}

// spoiler writes into the reply that it gets, as plugins above us do.
type spoiler struct {
	recorder
	answer string
}

func (s *spoiler) WriteMsg(m *dns.Msg) error {
	s.answer = short(m.Answer)[1]
	for _, rr := range m.Answer {
		rr.Header().Name, rr.Header().Ttl = "spoiled.", 0
	}
	m.Answer[1].(*dns.A).A[3]++
	m.Question[0].Name = "spoiled."
	return nil
}

// A plugin above may put the query back to what it was, and its metadata too, while
// the search that others have joined goes on.
func TestASearchOwnsItsRequestAndMetadata(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := newZones(t)
		s := newTestPlugin(distant(z), 1, "a.test.", "b.test.")
		var wg sync.WaitGroup
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(metadata.ContextWithMetadata(t.Context()), far/2)
			defer cancel()
			r := query("bonly.", dns.TypeA)
			_, _ = s.ServeDNS(ctx, &recorder{}, r)
			r.Question[0].Name = "other."
			for i := range 100 {
				metadata.SetValueFunc(ctx, fmt.Sprintf("test/%d", i), func() string { return "" })
			}
		})
		wg.Go(func() { serve(t, s, query("bonly.", dns.TypeA)) })
		wg.Wait()
		if got, want := z.questions(), []string{"bonly.a.test. A", "bonly.b.test. A"}; !slices.Equal(got, want) {
			t.Errorf("asked %q, want %q", got, want)
		}
	})
}

func TestAPanicBelowComesUpInEachQueryThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestPlugin(distant(handler(func(context.Context, dns.ResponseWriter, *dns.Msg) (int, error) { panic("boom") })), 1, "a.test.")
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				defer func() {
					if c, ok := recover().(*crash); !ok || !strings.HasPrefix(c.Error(), "boom\n") || !strings.Contains(c.Error(), "share_test.go") {
						t.Errorf("recovered %v, want boom and where it happened", c)
					}
				}()
				_, _ = s.ServeDNS(t.Context(), &recorder{}, query("db01.", dns.TypeA))
			})
		}
		wg.Wait()
		if n := inTheAir(s); n != 0 {
			t.Errorf("%d flights are left", n)
		}
	})
}

func TestAPanicThatNobodyWaitsForIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestPlugin(nil, 1, "a.test.")
		f, _ := s.flights.board(subject{name: "db01."}, "x")
		f.waiting = 0
		panics := testutil.ToFloat64(vars.Panic)
		s.start(t.Context(), f, walker{}, time.Now()) // without a request it panics by itself
		synctest.Wait()
		if n := testutil.ToFloat64(vars.Panic) - panics; n != 1 {
			t.Errorf("panics counted = %v, want 1", n)
		}
		if f.crash == nil || !strings.Contains(f.crash.Error(), "search.go") {
			t.Errorf("crash = %v, want one that says where", f.crash)
		}
	})
}

func TestARequestThatCannotBePackedIsJoinedByNobody(t *testing.T) {
	r := query("db01.", dns.TypeA)
	r.Extra = []dns.RR{&dns.TXT{Hdr: dns.RR_Header{Name: "no name..", Rrtype: dns.TypeTXT, Class: dns.ClassINET}}}
	exact := exactly(&recorder{}, r)
	if exact != "" {
		t.Fatalf("exactly = %q, want nothing", exact)
	}
	fs := newFlights()
	for range 2 {
		if _, start := fs.board(subject{}, exact); !start {
			t.Error("it was joined")
		}
	}
}

func TestTheIDMakesNoOtherQuestion(t *testing.T) {
	a, b := query("db01.", dns.TypeA), query("db01.", dns.TypeA)
	b.Id = a.Id + 1
	if w := (&recorder{}); exactly(w, a) != exactly(w, b) {
		t.Errorf("%q and %q differ", exactly(w, a), exactly(w, b))
	}
}

func TestADenialThatIsNoneNamesTheHostThatWasFound(t *testing.T) {
	for asked, want := range map[string]string{
		"bonly.":       "bonly.b.test.",
		"ext.example.": "ext.example.", // as it is
	} {
		t.Run(asked, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newTestPlugin(distant(hostOnly{newZones(t)}), 2, ".", "b.test.")
				ctx := metadata.ContextWithMetadata(t.Context())
				var wg sync.WaitGroup
				wg.Go(func() {
					if rcode, err := s.ServeDNS(ctx, &recorder{}, query(asked, dns.TypeAAAA)); rcode != dns.RcodeSuccess || err != nil {
						t.Errorf("ServeDNS = %d, %v", rcode, err)
					}
				})
				time.Sleep(time.Millisecond)
				serve(t, s, query(asked, dns.TypeA))
				wg.Wait()
				got := "not set"
				if name := metadata.ValueFunc(ctx, labelName); name != nil {
					got = name()
				}
				if got != want {
					t.Errorf("the name is %s, want %s", got, want)
				}
			})
		})
	}
}
