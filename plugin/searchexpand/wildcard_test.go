package searchexpand

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metadata"
	"github.com/coredns/coredns/plugin/metrics/vars"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// wild is a chain in which some zones have a wildcard record: names that zones does not
// have resolve to what the function of their zone says. It answers after delay.
type wild struct {
	*zones
	made  map[string]func(name string) string // type and data by zone
	tells bool                                // as the file plugin does
	delay func(name string) time.Duration
}

func (w *wild) ServeDNS(ctx context.Context, rw dns.ResponseWriter, r *dns.Msg) (int, error) {
	name, qtype := strings.ToLower(r.Question[0].Name), r.Question[0].Qtype
	if w.delay != nil {
		time.Sleep(w.delay(name)) // in a bubble
	}
	for zone, made := range w.made {
		if !dns.IsSubDomain(zone, name) || w.exists(name) {
			continue
		}
		w.mu.Lock()
		w.asked = append(w.asked, r.Question[0].Name+" "+dns.Type(qtype).String())
		w.mu.Unlock()
		if w.tells {
			metadata.SetValueFunc(ctx, "zone/wildcard", func() string { return "*." + zone })
		}
		rr, err := dns.NewRR(name + " 60 IN " + made(name))
		if err != nil {
			return dns.RcodeServerFailure, err
		}
		m := new(dns.Msg).SetReply(r)
		if alias, ok := rr.(*dns.CNAME); ok {
			m.Answer = []dns.RR{rr}
			w.lookup(m, alias.Target, qtype)
		} else if rr.Header().Rrtype == qtype {
			m.Answer = []dns.RR{rr}
		}
		return m.Rcode, rw.WriteMsg(m)
	}
	return w.zones.ServeDNS(ctx, rw, r)
}

func always(data string) func(string) string { return func(string) string { return data } }

// perName makes another address for each name.
func perName(name string) string {
	return fmt.Sprintf("A 203.0.113.%d", len(name))
}

func newWildPlugin(next plugin.Handler, policy string, ndots int, list ...string) *SearchExpand {
	c := newConfig()
	c.entries, c.ndots, c.wildcard = entriesOf(list...), ndots, policy
	s := newSearchExpand(c)
	s.Next = next
	s.limit = &limit{max: 256}
	s.budget = newBudget(c.rates, &credit{})
	return s
}

func TestAWildcardSuffixDoesNotSwallowNames(t *testing.T) {
	onlyA, onlyAAAA := always("A 203.0.113.66"), always("AAAA 2001:db8::66")
	alias := always("CNAME lb.w.test.")
	bonly := []string{"bonly. CNAME bonly.b.test.", "bonly.b.test. A 192.0.2.23"}
	nopeW := []string{"nope. CNAME nope.w.test.", "nope.w.test. A 203.0.113.66"}
	tests := map[string]struct {
		policy string // default last
		ndots  int    // default 1
		list   []string
		made   func(string) string // by names under w.test
		ask    string
		qtype  uint16
		rcode  int
		answer []string
	}{
		"a host behind it is found":              {made: onlyA, ask: "bonly.", qtype: dns.TypeA, answer: bonly},
		"its AAAA is that host's":                {made: onlyA, ask: "bonly.", qtype: dns.TypeAAAA},
		"a wildcard of AAAA owns no name":        {made: onlyAAAA, ask: "bonly.", qtype: dns.TypeA, answer: bonly},
		"a wildcard of aliases":                  {made: alias, ask: "bonly.", qtype: dns.TypeA, answer: bonly},
		"a wildcard of another address per name": {made: perName, ask: "bonly.", qtype: dns.TypeA, answer: bonly},
		"a wildcard of TXT":                      {made: always("TXT any"), ask: "bonly.", qtype: dns.TypeTXT},
		"a host of the suffix itself":            {made: onlyA, ask: "host1.", qtype: dns.TypeA, answer: []string{"host1. CNAME host1.w.test.", "host1.w.test. A 192.0.2.30"}},
		"and its AAAA":                           {made: onlyA, ask: "host1.", qtype: dns.TypeAAAA},
		"nobody else has it":                     {made: onlyA, ask: "nope.", qtype: dns.TypeA, answer: nopeW},
		"nobody else has it, alias":              {made: alias, ask: "nope.", qtype: dns.TypeA, answer: []string{"nope. CNAME nope.w.test.", "nope.w.test. CNAME lb.w.test.", "lb.w.test. A 203.0.113.67"}},
		"nobody else has it, AAAA":               {made: onlyA, ask: "nope.", qtype: dns.TypeAAAA},
		"others fail":                            {made: onlyA, list: []string{"w.test.", "sf.test."}, ask: "nope.", qtype: dns.TypeA, answer: nopeW},
		"the first of two":                       {made: onlyA, list: []string{"w.test.", "v.w.test."}, ask: "nope.", qtype: dns.TypeA, answer: nopeW},
		"it is the last anyway":                  {made: onlyA, list: []string{"b.test.", "w.test."}, ask: "bonly.", qtype: dns.TypeA, answer: bonly},
		"a dotted name is no match at all":       {made: onlyA, ndots: 2, ask: "ext.example.", qtype: dns.TypeA, answer: []string{"ext.example. A 192.0.2.99"}},
		"not even if there is no other":          {made: onlyA, ndots: 2, ask: "no.example.", qtype: dns.TypeA, rcode: dns.RcodeNameError},
		"nor for the other family":               {made: onlyA, ndots: 2, ask: "no.example.", qtype: dns.TypeAAAA, rcode: dns.RcodeNameError},
		"allow takes it":                         {policy: wildcardAllow, made: onlyA, ask: "bonly.", qtype: dns.TypeA, answer: []string{"bonly. CNAME bonly.w.test.", "bonly.w.test. A 203.0.113.66"}},
		"allow lets it own the name":             {policy: wildcardAllow, made: onlyAAAA, ask: "bonly.", qtype: dns.TypeA},
		"ignore finds what is behind it":         {policy: wildcardIgnore, made: onlyA, ask: "bonly.", qtype: dns.TypeA, answer: bonly},
		"ignore uses it never":                   {policy: wildcardIgnore, made: onlyA, ask: "nope.", qtype: dns.TypeA, rcode: dns.RcodeNameError},
		"ignore, and the other family":           {policy: wildcardIgnore, made: onlyA, ask: "nope.", qtype: dns.TypeAAAA, rcode: dns.RcodeNameError},
		"ignore, and another type":               {policy: wildcardIgnore, made: onlyA, ask: "nope.", qtype: dns.TypeTXT, rcode: dns.RcodeNameError},
		"ignore, others fail":                    {policy: wildcardIgnore, made: onlyA, list: []string{"w.test.", "sf.test."}, ask: "nope.", qtype: dns.TypeA, rcode: dns.RcodeServerFailure},
	}
	for name, tc := range tests {
		for _, tells := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/told=%v", name, tells), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					if tc.policy == "" {
						tc.policy = wildcardLast
					}
					if tc.list == nil {
						tc.list = []string{"w.test.", "b.test."}
					}
					z := newZones(t)
					z.add(t, "w.test.", 60, "host1 A 192.0.2.30", "lb A 203.0.113.67")
					w := &wild{zones: z, made: map[string]func(string) string{"w.test.": tc.made}, tells: tells}
					m := serve(t, newWildPlugin(w, tc.policy, max(1, tc.ndots), tc.list...), query(tc.ask, tc.qtype))
					synctest.Wait()
					if m.Rcode != tc.rcode || !slices.Equal(short(m.Answer), tc.answer) {
						t.Errorf("rcode %d, answer %q; want %d, %q", m.Rcode, short(m.Answer), tc.rcode, tc.answer)
					}
				})
			})
		}
	}
}

// probes returns the probes among what was asked, sorted.
func probes(z *zones) []string {
	asked := slices.DeleteFunc(z.questions(), func(q string) bool { return !strings.HasPrefix(q, "_searchexpand-probe") })
	slices.Sort(asked)
	return asked
}

// probeStep is a query, and the probes that it brings about.
type probeStep struct {
	after time.Duration // the one before
	ask   string
	qtype uint16
	want  []string
}

func TestASuffixIsProbedOnceAnHourAtMost(t *testing.T) {
	const a = "_searchexpand-probe.b.test. A"
	tests := map[string]struct {
		list  []string
		steps []probeStep
	}{
		"at the first match, for its type": {[]string{"b.test."}, []probeStep{
			{0, "nope.", dns.TypeA, nil},
			{0, "bonly.", dns.TypeA, []string{a}},
			{time.Minute, "bonly.", dns.TypeA, nil},
			{time.Minute, "bonly.", dns.TypeAAAA, nil},
			{sampleEvery - 2*time.Minute - 1, "bonly.", dns.TypeA, nil},
			{sampleJitter + 1, "bonly.", dns.TypeA, []string{a}},
			{sampleEvery - 1, "bonly.", dns.TypeA, nil},
		}},
		"of its sibling, whose match makes it own the name": {[]string{"b.test."}, []probeStep{
			{0, "bonly.", dns.TypeAAAA, []string{a}},
		}},
		"not the name as it is": {[]string{"."}, []probeStep{
			{0, "bonly.", dns.TypeA, nil},
		}},
		"not for odd types": {[]string{"b.test."}, []probeStep{
			{0, "v4only.", dns.TypeLOC, []string{a}},
		}},
		"one too long for a probe": {[]string{strings.Repeat(strings.Repeat("x", 59)+".", 4)}, []probeStep{
			{0, "x.", dns.TypeTXT, nil},
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				z := newZones(t)
				s := newWildPlugin(z, wildcardLast, 1, tc.list...)
				for i, st := range tc.steps {
					time.Sleep(st.after)
					serve(t, s, query(st.ask, st.qtype))
					synctest.Wait()
					if got := probes(z); !slices.Equal(got, st.want) {
						t.Errorf("step %d: probes %q, want %q", i, got, st.want)
					}
				}
			})
		})
	}
}

func TestAProbeCostsTheFirstMatchARoundTrip(t *testing.T) {
	const ms = time.Millisecond
	tests := map[string]struct {
		candidate, probe, second time.Duration // how long each takes
		made                     func(string) string
		ask                      string
		elapsed                  time.Duration
		answer                   string // the last of it
	}{
		"it is as fast as the name":             {50 * ms, 50 * ms, 0, nil, "bonly.", 100 * ms, "bonly.b.test. A 192.0.2.23"},
		"it is slower than the name":            {20 * ms, 50 * ms, 0, nil, "bonly.", 70 * ms, "bonly.b.test. A 192.0.2.23"},
		"it is much slower than the name":       {20 * ms, 500 * ms, 0, nil, "bonly.", 120 * ms, "bonly.b.test. A 192.0.2.23"},
		"it is silent":                          {0, time.Hour, 0, nil, "bonly.", 100 * ms, "bonly.b.test. A 192.0.2.23"},
		"nobody has the name":                   {20 * ms, time.Hour, 0, nil, "nope.", 20 * ms, ""},
		"it has found something, and goes on":   {20 * ms, 50 * ms, 300 * ms, perName, "nope.", 370 * ms, "nope.b.test. A 203.0.113.12"},
		"it has found something too late":       {20 * ms, 121 * ms, 0, perName, "nope.", 120 * ms, "nope.b.test. A 203.0.113.12"},
		"it has found something, and no second": {20 * ms, 50 * ms, time.Hour, perName, "nope.", 1000 * ms, "nope.b.test. A 203.0.113.12"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &wild{zones: newZones(t), delay: func(name string) time.Duration {
					switch {
					case strings.HasPrefix(name, probeLabel):
						return tc.probe
					case strings.HasPrefix(name, otherProbeLabel):
						return tc.second
					}
					return tc.candidate
				}}
				if tc.made != nil {
					w.made = map[string]func(string) string{"b.test.": tc.made}
				}
				start := time.Now()
				m := serve(t, newWildPlugin(w, wildcardLast, 1, "b.test."), query(tc.ask, dns.TypeA))
				if elapsed := time.Since(start); elapsed != tc.elapsed {
					t.Errorf("it took %v, want %v", elapsed, tc.elapsed)
				}
				got := ""
				if n := len(m.Answer); n > 0 {
					got = short(m.Answer)[n-1]
				}
				if got != tc.answer {
					t.Errorf("answer ends in %q, want %q", got, tc.answer)
				}
				untilAllHaveEnded()
			})
		})
	}
}

func TestAStaleProbeIsUsedWhileTheNextOneRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := newZones(t)
		var slow atomic.Int64
		w := &wild{zones: z, made: map[string]func(string) string{"w.test.": always("A 203.0.113.66")}, delay: func(name string) time.Duration {
			if strings.HasPrefix(name, "_") {
				return time.Duration(slow.Load())
			}
			return 0
		}}
		s := newWildPlugin(w, wildcardLast, 1, "w.test.", "b.test.")
		for i := range 2 {
			start := time.Now()
			m := serve(t, s, query("bonly.", dns.TypeA))
			if elapsed := time.Since(start); elapsed != 0 || short(m.Answer)[1] != "bonly.b.test. A 192.0.2.23" {
				t.Errorf("look-up %d: %q after %v, want that of b.test at once", i, short(m.Answer), elapsed)
			}
			slow.Store(int64(500 * time.Millisecond))
			time.Sleep(sampleEvery + sampleJitter)
		}
		untilAllHaveEnded()
	})
}

func TestAWeakMatchIsNotPinned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := newZones(t)
		w := &wild{zones: z, made: map[string]func(string) string{"w.test.": always("A 203.0.113.66")}}
		s := newWildPlugin(w, wildcardLast, 1, "w.test.", "b.test.")
		serve(t, s, query("new.", dns.TypeA))
		synctest.Wait()
		if n := s.pins.lru.Len(); n != 0 {
			t.Fatalf("%d pins, want none", n)
		}
		z.add(t, "b.test.", 60, "new A 192.0.2.77")
		m := serve(t, s, query("new.", dns.TypeA))
		if want := []string{"new. CNAME new.b.test.", "new.b.test. A 192.0.2.77"}; !slices.Equal(short(m.Answer), want) {
			t.Errorf("answer = %q, want %q", short(m.Answer), want)
		}
	})
}

func TestAWeakMatchIsKeptNoLongerThanWhatWasPassedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for list, want := range map[string]uint32{"w.test. a.test.": 30, "w.test. sf.test.": degradedTTL, "w.test. host1.w.test.": 60} {
			z := newZones(t)
			w := &wild{zones: z, made: map[string]func(string) string{"w.test.": always("A 203.0.113.66")}}
			m := serve(t, newWildPlugin(w, wildcardLast, 1, strings.Fields(list)...), query("nope.", dns.TypeA))
			if got := m.Answer[0].Header().Ttl; got != want {
				t.Errorf("list %s: TTL of the alias = %d, want %d", list, got, want)
			}
		}
	})
}

func TestWhatAProbeTeaches(t *testing.T) {
	tests := map[string]struct {
		before, seen probed
		match        []string
		weak, news   bool
		again        time.Duration
	}{
		"no wildcard":                {seen: probed{verdict: nxDomain}, match: []string{"192.0.2.1"}, again: sampleEvery},
		"a wildcard of another":      {seen: probed{verdict: answered, data: []string{"192.0.2.2"}}, match: []string{"192.0.2.1"}, news: true, again: sampleEvery},
		"one address in common":      {seen: probed{verdict: answered, data: []string{"192.0.2.1", "192.0.2.2"}}, match: []string{"192.0.2.2", "192.0.2.3"}, weak: true, news: true, again: sampleEvery},
		"it varies":                  {seen: probed{verdict: answered, data: []string{"192.0.2.2"}, varies: true}, match: []string{"192.0.2.1"}, weak: true, news: true, again: sampleEvery},
		"a failure leaves it":        {before: probed{verdict: answered, data: []string{"192.0.2.1"}}, seen: probed{verdict: failed}, match: []string{"192.0.2.1"}, weak: true, again: sampleAgain},
		"the wildcard is gone":       {before: probed{verdict: answered, data: []string{"192.0.2.1"}}, seen: probed{verdict: noData}, match: []string{"192.0.2.1"}, again: sampleEvery},
		"the wildcard is no news":    {before: probed{verdict: answered, data: []string{"192.0.2.1"}}, seen: probed{verdict: answered, data: []string{"192.0.2.2"}}, match: []string{"192.0.2.2"}, weak: true, again: sampleEvery},
		"nothing was asked, no room": {seen: probed{verdict: overloaded}, match: []string{"192.0.2.1"}, again: sampleAgain},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			wc, now := newWildcards(wildcardLast), time.Now()
			s, _ := wc.sample(sampleKey{"w.test.", dns.TypeA}, now)
			if tc.before.verdict == answered {
				wc.learn(s, tc.before, now)
			}
			if news := wc.learn(s, tc.seen, now); news != tc.news {
				t.Errorf("learn = %v, want %v", news, tc.news)
			}
			if got := wc.covers(s, tc.match); got != tc.weak {
				t.Errorf("covers = %v, want %v", got, tc.weak)
			}
			if d := s.next.Sub(now); d < tc.again || d > tc.again+sampleJitter {
				t.Errorf("next probe in %v, want %v", d, tc.again)
			}
		})
	}
}

func TestSamplesAreBounded(t *testing.T) {
	wc := newWildcards(wildcardLast)
	for i := range maxSamples + 10 {
		wc.sample(sampleKey{fmt.Sprintf("d%d.example.", i), dns.TypeA}, time.Now())
	}
	if n := wc.samples.Len(); n != maxSamples {
		t.Errorf("%d samples, want %d", n, maxSamples)
	}
}

func TestAProbeThatPanicsEndsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := newZones(t)
		panics := testutil.ToFloat64(vars.Panic)
		m := serve(t, newWildPlugin(handler(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			if strings.HasPrefix(r.Question[0].Name, "_") {
				panic("boom")
			}
			return z.ServeDNS(ctx, w, r)
		}), wildcardLast, 1, "b.test."), query("bonly.", dns.TypeA))
		if n := testutil.ToFloat64(vars.Panic) - panics; n != 1 || len(m.Answer) != 2 {
			t.Errorf("panics counted = %v, %d records, want 1 and 2", n, len(m.Answer))
		}
	})
}

func TestOnlyAWildcardAboveTheNameMakesIt(t *testing.T) {
	tests := map[string]struct {
		value string
		want  bool
	}{
		"of its suffix":        {"*.b.test.", true},
		"of a zone above":      {"*.test.", true},
		"of an alias's target": {"*.other.test.", false},
		"of a name below":      {"*.db01.b.test.x.", false},
		"no wildcard":          {"db01.b.test.", false},
		"nothing":              {"", false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o := outcome{values: map[string]metadata.Func{"zone/wildcard": func() string { return tc.value }}}
			if got := synthesised(o, "db01.b.test."); got != tc.want {
				t.Errorf("synthesised = %v, want %v", got, tc.want)
			}
		})
	}
}
