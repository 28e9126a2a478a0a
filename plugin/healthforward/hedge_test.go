package healthforward

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const ms = time.Millisecond

// step is what one attempt of a scripted race does.
type step struct {
	takes time.Duration
	value string // "": a failure
	bad   bool   // not what ends the race, but better than nothing
}

// script is a race whose attempts do what is written, and what was seen of it.
type script struct {
	steps  []step
	deny   map[reason]bool
	held   map[string]time.Duration // a value that is good enough only so long after it came
	nudges chan nudge

	wg      *sync.WaitGroup
	began   time.Time
	started []string // "reason@offset"
	late    []string // "i reason@offset"
}

func (s *script) race() *race[step] {
	s.wg, s.began = new(sync.WaitGroup), time.Now()
	came := make(map[string]time.Time)
	return &race[step]{
		admit: func(why reason, _, _ int) (attempt[step], bool) {
			if len(s.started) == len(s.steps) || s.deny[why] {
				return attempt[step]{}, false
			}
			this := s.steps[len(s.started)]
			s.started = append(s.started, fmt.Sprintf("%s@%s", why, time.Since(s.began)))
			return attempt[step]{patience: 100 * ms, timeout: time.Second, try: func() step {
				time.Sleep(this.takes) // in a bubble: it takes no time
				return this
			}}, true
		},
		late: func(i int, why reason, due time.Time) {
			s.late = append(s.late, fmt.Sprintf("%d %s@%s", i, why, due.Sub(s.began)))
		},
		settle: func(now time.Time, results []step, over bool) (int, time.Time) {
			for i, r := range results {
				if r.value == "" || r.bad && !over {
					continue
				}
				if _, ok := came[r.value]; !ok {
					came[r.value] = now
				}
				return i, came[r.value].Add(s.held[r.value])
			}
			return -1, now
		},
		nudges: s.nudges,
		spawn:  s.wg.Go,
	}
}

func TestRace(t *testing.T) {
	for name, tc := range map[string]struct {
		script
		want    string // "": nothing
		elapsed time.Duration
		started []string
		late    []string
	}{
		"the first answers in time: nobody else is asked": {
			script:  script{steps: []step{{takes: 99 * ms, value: "a"}, {value: "b"}}},
			want:    "a",
			elapsed: 99 * ms,
			started: []string{"first@0s"},
		},
		"the first is overdue: the second answers": {
			script:  script{steps: []step{{takes: time.Hour, value: "a"}, {takes: 5 * ms, value: "b"}}},
			want:    "b",
			elapsed: 105 * ms,
			started: []string{"first@0s", "overdue@100ms"},
			late:    []string{"0 overdue@100ms"},
		},
		"the first is overdue, and yet faster than the second": {
			script:  script{steps: []step{{takes: 120 * ms, value: "a"}, {takes: 50 * ms, value: "b"}}},
			want:    "a",
			elapsed: 120 * ms,
			started: []string{"first@0s", "overdue@100ms"},
			late:    []string{"0 overdue@100ms"},
		},
		"a failure does not wait to be overdue": {
			script:  script{steps: []step{{takes: 3 * ms}, {takes: 4 * ms}, {takes: 5 * ms, value: "c"}}},
			want:    "c",
			elapsed: 12 * ms,
			started: []string{"first@0s", "failed@3ms", "failed@7ms"},
		},
		"all fail": {
			script:  script{steps: []step{{takes: 3 * ms}, {takes: 4 * ms}}},
			elapsed: 7 * ms,
			started: []string{"first@0s", "failed@3ms"},
		},
		"a bad result is delivered only when nothing better comes": {
			script:  script{steps: []step{{takes: 3 * ms, value: "bad", bad: true}, {takes: 50 * ms}}},
			want:    "bad",
			elapsed: 53 * ms,
			started: []string{"first@0s", "failed@3ms"},
		},
		"something better comes": {
			script:  script{steps: []step{{takes: 3 * ms, value: "bad", bad: true}, {takes: 50 * ms, value: "good"}}},
			want:    "good",
			elapsed: 53 * ms,
			started: []string{"first@0s", "failed@3ms"},
		},
		"a hedge that is denied comes with the time-out": {
			script:  script{steps: []step{{takes: time.Hour, value: "a"}, {takes: 5 * ms, value: "b"}}, deny: map[reason]bool{overdue: true}},
			want:    "b",
			elapsed: 1005 * ms,
			started: []string{"first@0s", "expired@1s"},
			late:    []string{"0 overdue@100ms", "0 expired@1s"},
		},
		"nobody answers before the deadline": {
			script:  script{steps: []step{{takes: time.Hour}, {takes: time.Hour}}},
			elapsed: 4 * time.Second,
			started: []string{"first@0s", "overdue@100ms"},
			late:    []string{"0 overdue@100ms", "1 overdue@200ms", "0 expired@1s", "1 expired@1.1s"},
		},
		"at the deadline a bad result is better than none": {
			script:  script{steps: []step{{takes: 10 * ms, value: "bad", bad: true}, {takes: time.Hour}}},
			want:    "bad",
			elapsed: 4 * time.Second,
			started: []string{"first@0s", "failed@10ms"},
			late:    []string{"1 overdue@110ms", "1 expired@1.01s"},
		},
		"a result that is held wins when its time has come": {
			script:  script{steps: []step{{takes: time.Hour}, {takes: 5 * ms, value: "held"}}, held: map[string]time.Duration{"held": 500 * ms}},
			want:    "held",
			elapsed: 605 * ms,
			started: []string{"first@0s", "overdue@100ms"},
			late:    []string{"0 overdue@100ms"},
		},
		"a held result wins at once when nothing else is left": {
			script:  script{steps: []step{{takes: 150 * ms}, {takes: 5 * ms, value: "held"}}, held: map[string]time.Duration{"held": 500 * ms}},
			want:    "held",
			elapsed: 150 * ms,
			started: []string{"first@0s", "overdue@100ms"},
			late:    []string{"0 overdue@100ms"},
		},
		"not even a first attempt": {
			script: script{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := tc.script
				ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
				defer cancel()
				got, ok := s.race().run(ctx)
				defer s.wg.Wait()
				if elapsed := time.Since(s.began); elapsed != tc.elapsed {
					t.Errorf("took %v, want %v", elapsed, tc.elapsed)
				}
				if got.value != tc.want || ok != (tc.want != "") {
					t.Errorf("run = %q, %v; want %q", got.value, ok, tc.want)
				}
				if !slices.Equal(s.started, tc.started) {
					t.Errorf("started %q, want %q", s.started, tc.started)
				}
				if !slices.Equal(s.late, tc.late) {
					t.Errorf("late %q, want %q", s.late, tc.late)
				}
			})
		})
	}
}

func TestANudgeStartsAnotherAttemptAtOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		nudge   nudge
		started []string
		elapsed time.Duration
	}{
		"its upstream is ejected":            {nudge{ejected, 0}, []string{"first@0s", "ejected@30ms"}, 35 * ms},
		"an upstream is back":                {nudge{returned, -1}, []string{"first@0s", "returned@30ms"}, 35 * ms},
		"one that is over is of no interest": {nudge{ejected, 1}, []string{"first@0s", "failed@10ms", "overdue@110ms"}, 115 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := script{
					steps:  []step{{takes: time.Hour}, {takes: 5 * ms, value: "b"}},
					nudges: make(chan nudge),
				}
				if tc.nudge.about == 1 {
					s.steps = []step{{takes: 10 * ms}, {takes: time.Hour}, {takes: 5 * ms, value: "b"}}
					tc.nudge.about = 0
				}
				time.AfterFunc(30*ms, func() { s.nudges <- tc.nudge })
				got, ok := s.race().run(t.Context())
				defer s.wg.Wait()
				if !ok || got.value != "b" {
					t.Errorf("run = %q, %v", got.value, ok)
				}
				if elapsed := time.Since(s.began); elapsed != tc.elapsed {
					t.Errorf("took %v, want %v", elapsed, tc.elapsed)
				}
				if !slices.Equal(s.started, tc.started) {
					t.Errorf("started %q, want %q", s.started, tc.started)
				}
			})
		})
	}
}

func TestARaceEndsWithItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := script{steps: []step{{takes: time.Hour}}}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(30*ms, cancel)
		if _, ok := s.race().run(ctx); ok {
			t.Error("run has a result")
		}
		defer s.wg.Wait()
		if elapsed := time.Since(s.began); elapsed != 30*ms {
			t.Errorf("took %v, want %v", elapsed, 30*ms)
		}
	})
}
