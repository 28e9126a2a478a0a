package searchexpand

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestARecordSaysWhoIsSkipped(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	type step struct {
		at   time.Duration
		name string // of a failure; "" is a success
	}
	fails := []step{{0, "a."}, {0, "b."}, {0, "c."}}
	tests := map[string]struct {
		steps []step
		at    time.Duration
		want  admission
	}{
		"nothing known":                            {nil, 0, admission{patience: patience}},
		"two names failed":                         {fails[:2], 0, admission{patience: patience}},
		"three did, so the first is a probe":       {fails, 0, admission{probe: true, patience: hedgeDelay}},
		"almost ten seconds ago":                   {fails, 10*s - 1, admission{probe: true, patience: hedgeDelay}},
		"ten seconds ago":                          {fails, 10 * s, admission{patience: patience}},
		"and a fourth one just now":                {append(slices.Clip(fails), step{9 * s, "d."}), 18 * s, admission{probe: true, patience: hedgeDelay}},
		"one name failed three times":              {[]step{{0, "a."}, {0, "A."}, {0, "a."}}, 0, admission{patience: patience}},
		"a success in between":                     {[]step{{0, "a."}, {0, "b."}, {0, ""}, {0, "c."}}, 0, admission{patience: patience}},
		"a success after":                          {append(slices.Clip(fails), step{0, ""}), 0, admission{patience: patience}},
		"one failure after ten seconds of rest":    {append(slices.Clip(fails), step{15 * s, "d."}), 15 * s, admission{probe: true, patience: hedgeDelay}},
		"the clock runs backwards":                 {[]step{{9 * s, "a."}, {9 * s, "b."}, {9 * s, "c."}}, 0, admission{probe: true, patience: hedgeDelay}},
		"failures an hour apart are still in turn": {[]step{{0, "a."}, {time.Hour, "b."}, {2 * time.Hour, "c."}}, 2 * time.Hour, admission{probe: true, patience: hedgeDelay}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			start := time.Unix(1e9, 0)
			var r record
			for _, step := range tc.steps {
				if step.name == "" {
					r.decided(start.Add(step.at), ms)
				} else {
					r.failed(start.Add(step.at), start.Add(step.at), step.name)
				}
			}
			if got := r.admit(start.Add(tc.at)); got != tc.want {
				t.Errorf("admit = %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestAFailureOfAQuestionFromBeforeTheLastSuccessSaysNothing(t *testing.T) {
	start := time.Unix(1e9, 0)
	var r record
	r.decided(start.Add(1), 0)
	for _, name := range []string{"a.", "b.", "c."} {
		if r.failed(start.Add(time.Second), start, name) {
			t.Error("skipped for questions that went out before it was back")
		}
	}
	opened := 0
	for _, name := range []string{"a.", "b.", "c.", "d."} {
		if r.failed(start.Add(time.Second), start.Add(1), name) {
			opened++
		}
	}
	if opened != 1 || !r.open(start.Add(time.Second)) {
		t.Errorf("skipping began %d times, want once", opened)
	}
}

func TestASkippedSuffixIsProbedOnceASecond(t *testing.T) {
	start := time.Unix(1e9, 0)
	var r record
	for _, name := range []string{"a.", "b.", "c."} {
		r.failed(start, start, name)
	}
	var probes []time.Duration
	for at := time.Duration(0); at <= 2*time.Second; at += 100 * time.Millisecond {
		if !r.admit(start.Add(at)).skip {
			probes = append(probes, at)
		}
	}
	if want := []time.Duration{0, time.Second, 2 * time.Second}; !slices.Equal(probes, want) {
		t.Errorf("probes at %v, want %v", probes, want)
	}
}

func TestASuffixIsWaitedForTwiceAsLongAsItsSlowestAnswerOfLate(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	tests := map[string]struct {
		took, ago time.Duration
		want      time.Duration
	}{
		"a quick one":            {10 * ms, 0, patience},
		"just quick enough":      {125 * ms, 0, patience},
		"slower":                 {126 * ms, 0, 252 * ms},
		"slow":                   {700 * ms, 0, 1400 * ms},
		"slow, 59 s ago":         {700 * ms, 59 * s, 1400 * ms},
		"slow, a minute ago":     {700 * ms, 60 * s, patience},
		"slow, long ago":         {700 * ms, time.Hour, patience},
		"the clock ran backward": {700 * ms, -s, 1400 * ms},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			start := time.Unix(1e9, 0)
			var r record
			r.decided(start, tc.took)
			r.decided(start, 0)
			if got := r.admit(start.Add(tc.ago)).patience; got != tc.want {
				t.Errorf("patience = %v, want %v", got, tc.want)
			}
		})
	}
}

func TestWhatIsNoEvidenceChangesNothing(t *testing.T) {
	tests := map[string]finding{
		"no room":           {candidate: tried("", "a.test."), verdict: overloaded},
		"no reply wanted":   {candidate: tried("", "a.test."), verdict: dropped},
		"a panic":           {candidate: tried("", "a.test."), verdict: failed, outcome: outcome{crash: &crash{}}},
		"the name as it is": {candidate: tried("", root), verdict: failed},
	}
	for name, f := range tests {
		t.Run(name, func(t *testing.T) {
			s, now := newSuffixes(), time.Unix(1e9, 0)
			for i := range 2 * skipAfter {
				f.name = fmt.Sprintf("n%d.", i)
				s.report(now, now, f)
			}
			if got := s.admit(now, f.suffix, newConfig().pace); got.skip || got.patience == 0 {
				t.Errorf("admit = %+v, want it asked as ever", got)
			}
		})
	}
}

func TestSuffixesAreBounded(t *testing.T) {
	s, now := newSuffixes(), time.Unix(1e9, 0)
	for i := range 2 * maxSuffixes {
		f := finding{candidate: tried("x.", "s.test."), verdict: nxDomain}
		f.suffix = fmt.Sprintf("s%d.test.", i)
		if a := s.admit(now, f.suffix, pace{}); a.skip || a.patience != patience {
			t.Fatalf("admit = %+v, want it asked", a)
		}
		s.report(now, now, f)
	}
	if s.records.Len() != maxSuffixes {
		t.Errorf("%d records, want %d", s.records.Len(), maxSuffixes)
	}
}

// asker lets a test ask one name after the other in a bubble and measures.
type asker struct {
	*testing.T
	s *SearchExpand
}

// check asks for the A record of name.
func (a asker) check(name string, rcode int, elapsed time.Duration) *dns.Msg {
	a.Helper()
	start := time.Now()
	r := query(name, dns.TypeA)
	r.SetEdns0(1232, false)
	m := serve(a.T, a.s, r)
	if took := time.Since(start); m.Rcode != rcode || took != elapsed {
		a.Errorf("%s: rcode %d after %v, want %d after %v", name, m.Rcode, took, rcode, elapsed)
	}
	return m
}

func TestASilentSuffixIsSkippedAfterThreeNamesAndBackWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ms = time.Millisecond
		defer untilAllHaveEnded()
		suffixCount.Reset()
		z := newZones(t)
		z.add(t, "b.test.", 300, "h1 A 192.0.2.1", "h2 A 192.0.2.2", "h3 A 192.0.2.3", "h4 A 192.0.2.4", "h5 A 192.0.2.5")
		var up atomic.Bool
		a := asker{t, newTestPlugin(handler(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			if dns.IsSubDomain("slow.test.", r.Question[0].Name) && up.Load() {
				m := new(dns.Msg).SetRcode(r, dns.RcodeNameError)
				return m.Rcode, w.WriteMsg(m)
			}
			return z.ServeDNS(ctx, w, r)
		}), 1, "a.test.", "slow.test.", "b.test.")}

		a.check("h1.", 0, 250*ms)
		a.check("h2.", 0, 250*ms)
		a.check("h3.", 0, 250*ms)
		time.Sleep(time.Second) // until all three have failed
		z.questions()
		if m := a.check("h4.", 0, 50*ms); m.Answer[0].Header().Ttl != degradedTTL {
			t.Errorf("TTL = %d, want that of an answer past a failure, %d", m.Answer[0].Header().Ttl, degradedTTL)
		}
		a.check("h5.", 0, 0)
		synctest.Wait()
		got, want := z.questions(), []string{"h4.a.test. A", "h4.b.test. A", "h4.slow.test. A", "h5.a.test. A", "h5.b.test. A"}
		slices.Sort(got) // the probe is beside the others
		if !slices.Equal(got, want) {
			t.Errorf("asked %q, want %q: a probe once in a second", got, want)
		}
		m := a.check("nope.", dns.RcodeServerFailure, 0)
		ede, ok := m.IsEdns0().Option[0].(*dns.EDNS0_EDE)
		if !ok || ede.InfoCode != dns.ExtendedErrorCodeCachedError || !strings.Contains(ede.ExtraText, "slow.test.: skipped") {
			t.Errorf("option = %v, want an EDE that says what was skipped", m.IsEdns0().Option)
		}

		time.Sleep(probeEvery + ms)
		a.check("nope.", dns.RcodeServerFailure, 250*ms) // whose candidate is a probe

		up.Store(true)
		time.Sleep(probeEvery + ms)
		a.check("nope.", dns.RcodeNameError, 0) // the probe is back
		a.check("nope2.", dns.RcodeNameError, 0)
		for event, want := range map[string]float64{eventFailed: 5, eventSkipped: 2, eventOpened: 1, eventClosed: 1, eventOutrun: 4} {
			if got := testutil.ToFloat64(suffixCount.WithLabelValues("slow.test.", event)); got != want {
				t.Errorf("%s = %v, want %v", event, got, want)
			}
		}
	})
}

func TestASuffixThatIsSkippedByMistakeLosesNoName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ms = time.Millisecond
		defer untilAllHaveEnded()
		a := asker{t, newTestPlugin(bySuffix{
			"a.test.": {40 * ms, msg(t, 0, "db01.a.test. 300 IN A 192.0.2.1")},
			"b.test.": {0, msg(t, 0, "db01.b.test. 300 IN A 192.0.2.2")},
		}, 1, "a.test.", "b.test.")}
		for i := range skipAfter {
			now := time.Now()
			a.s.suffixes.report(now, now, failure(tried(fmt.Sprintf("bad%d.a.test.", i), "a.test."), errTimeout))
		}
		for range 2 {
			if m := a.check("db01.", 0, 40*ms); short(m.Answer)[0] != "db01. CNAME db01.a.test." {
				t.Errorf("answer = %v, want that of the first suffix", short(m.Answer))
			}
		}
	})
}

func TestASuffixThatIsLateOnceIsWaitedForTheNextTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ms = time.Millisecond
		defer untilAllHaveEnded()
		s := newTestPlugin(bySuffix{
			"a.test.": {400 * ms, msg(t, 0, "db01.a.test. 300 IN A 192.0.2.1")},
			"b.test.": {0, msg(t, 0, "db01.b.test. 300 IN A 192.0.2.2")},
		}, 1, "a.test.", "b.test.")
		a := asker{t, s}
		if m := a.check("db01.", 0, 250*ms); short(m.Answer)[0] != "db01. CNAME db01.b.test." {
			t.Errorf("answer = %v, want the one past who was silent", short(m.Answer))
		}
		time.Sleep(5 * time.Second) // as long as that may be kept
		for range 3 {
			if m := a.check("db01.", 0, 400*ms); short(m.Answer)[0] != "db01. CNAME db01.a.test." {
				t.Errorf("answer = %v, want that of the first suffix, however late", short(m.Answer))
			}
		}
	})
}

func TestAClientThatLeavesIsNoEvidence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestPlugin(newZones(t), 1, "slow.test.")
		for i := range 2 * skipAfter {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			_, err := s.ServeDNS(ctx, &recorder{}, query(fmt.Sprintf("h%d.", i), dns.TypeA))
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("ServeDNS = %v, want %v", err, context.DeadlineExceeded)
			}
		}
		synctest.Wait()
		if got := s.suffixes.admit(time.Now(), "slow.test.", s.pace); got.skip || got.patience != patience {
			t.Errorf("admit = %+v, want it asked as ever", got)
		}
	})
}
