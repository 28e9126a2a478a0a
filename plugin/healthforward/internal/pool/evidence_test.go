package pool

import (
	"fmt"
	"testing"
	"time"
)

// exchanges lets n queries go wrong and as many good as are left of total, on a
// member of its own evidence, each from one of so many domains.
func exchanges(e *evidence, now time.Time, wrong, total, domains int) {
	for i := range total {
		e.count(now)
		if i < wrong {
			e.wrong(now, loss, Ticket{Sent: now, Patience: time.Hour, domain: uint64(i % domains)})
		}
	}
}

func TestShareThatIsTooLarge(t *testing.T) {
	for name, tc := range map[string]struct {
		wrong, total int
		want         bool
	}{
		"half of one too few":        {5, 9, false},
		"all of one too few":         {9, 9, false},
		"half of just enough":        {5, 10, true},
		"less than half of enough":   {4, 10, false},
		"half of one more, rounded":  {5, 11, false},
		"over half of one more":      {6, 11, true},
		"a quarter of one too few":   {13, 49, false},
		"a quarter of just enough":   {13, 50, true},
		"less than that":             {12, 50, false},
		"a fifth of one too few":     {16, 79, false},
		"a fifth of just enough":     {16, 80, true},
		"less than a fifth of many":  {15, 80, false},
		"a fifth of one more":        {16, 81, false},
		"over a fifth of one more":   {17, 81, true},
		"none of many":               {0, 1000, false},
		"nothing was asked":          {0, 0, false},
		"a third, but of too few":    {16, 48, false},
		"a third of what is enough":  {17, 51, true},
		"a twentieth is a bad link":  {50, 1000, false},
		"a fifth of very many":       {200, 1000, true},
		"just below a fifth of many": {199, 1000, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := (share{tc.wrong, tc.total}).large(); got != tc.want {
				t.Errorf("%d of %d = %v, want %v", tc.wrong, tc.total, got, tc.want)
			}
		})
	}
}

func TestTwiceTheOtherShare(t *testing.T) {
	for name, tc := range map[string]struct {
		own, other share
		want       bool
	}{
		"just below twice":            {share{39, 100}, share{20, 100}, false},
		"twice":                       {share{40, 100}, share{20, 100}, true},
		"just above":                  {share{41, 100}, share{20, 100}, true},
		"twice of different totals":   {share{4, 10}, share{10, 50}, true},
		"any against none":            {share{1, 100}, share{0, 5}, true},
		"all against half":            {share{10, 10}, share{5, 10}, true},
		"all against more than half":  {share{10, 10}, share{6, 10}, false},
		"none is twice none, but few": {share{0, 10}, share{0, 10}, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.own.twice(tc.other); got != tc.want {
				t.Errorf("%v twice %v = %v, want %v", tc.own, tc.other, got, tc.want)
			}
		})
	}
}

func TestShareIsOfTheLastTenSeconds(t *testing.T) {
	for name, tc := range map[string]struct {
		later time.Duration
		want  share
	}{
		"at once":                {0, share{3, 8}},
		"in the last slot":       {9 * time.Second, share{3, 8}},
		"just before its end":    {10*time.Second - 1, share{3, 8}},
		"after ten seconds":      {10 * time.Second, share{}},
		"long after":             {time.Hour, share{}},
		"a second back in time":  {-time.Second, share{3, 8}},
		"an hour back, for once": {-time.Hour, share{3, 8}},
	} {
		t.Run(name, func(t *testing.T) {
			var e evidence
			exchanges(&e, t0, 3, 8, 1)
			if got := e.share(t0.Add(tc.later), loss); got != tc.want {
				t.Errorf("share = %v, want %v", got, tc.want)
			}
		})
	}
	t.Run("a slot is used again for what is ten seconds later", func(t *testing.T) {
		var e evidence
		exchanges(&e, t0, 3, 8, 1)
		exchanges(&e, t0.Add(10*time.Second), 1, 2, 1)
		if got, want := e.share(t0.Add(10*time.Second), loss), (share{1, 2}); got != want {
			t.Errorf("share = %v, want %v", got, want)
		}
	})
	t.Run("kinds are counted apart", func(t *testing.T) {
		var e evidence
		exchanges(&e, t0, 3, 8, 1)
		if got, want := e.share(t0, badRcode), (share{0, 8}); got != want {
			t.Errorf("share of rcodes = %v, want %v", got, want)
		}
	})
}

func TestQueriesThatWereOutTogetherAreOneInTheRow(t *testing.T) {
	patience := 100 * ms
	for name, tc := range map[string]struct {
		sent []time.Duration // after the first
		want int
	}{
		"one":                             {nil, 1},
		"another at once":                 {[]time.Duration{0}, 1},
		"just within the patience":        {[]time.Duration{patience - 1}, 1},
		"the patience later":              {[]time.Duration{patience}, 2},
		"many within it":                  {[]time.Duration{10 * ms, 20 * ms, 99 * ms}, 1},
		"it is counted from who counts":   {[]time.Duration{60 * ms, 120 * ms, 180 * ms}, 2},
		"what was sent before is no more": {[]time.Duration{patience, 0}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var e evidence
			for _, after := range append([]time.Duration{0}, tc.sent...) {
				e.wrong(t0, loss, Ticket{Sent: t0.Add(after), Patience: patience})
			}
			if got := e.rows[loss].n; got != tc.want {
				t.Errorf("row = %d, want %d", got, tc.want)
			}
			if got := e.share(t0, loss).wrong; got != 1+len(tc.sent) {
				t.Errorf("%d wrong in the share, want each of %d", got, 1+len(tc.sent))
			}
		})
	}
}

func TestLossesHaveToBeOfSeveralDomains(t *testing.T) {
	for name, tc := range map[string]struct {
		failed, all int           // domains
		later       time.Duration // when it is looked at
		want        bool
	}{
		"two of many":                    {2, 20, 0, false},
		"three of many":                  {3, 20, 0, true},
		"four of many":                   {4, 20, 0, true},
		"one, and the traffic has one":   {1, 1, 0, true},
		"one, and the traffic has two":   {1, 2, 0, false},
		"two, and the traffic has two":   {2, 2, 0, true},
		"two, and the traffic has three": {2, 3, 0, false},
		"three, just within the window":  {3, 20, evidenceWindow - 1, true},
		"three, but all are old":         {3, 20, evidenceWindow, false},
	} {
		t.Run(name, func(t *testing.T) {
			p, g, ids := newTestPool(t, "sequential", 2, DefaultRules())
			m := p.members[ids[0]]
			for i := range 5 {
				m.evidence.count(t0)
				m.evidence.wrong(t0, loss, Ticket{Sent: t0.Add(time.Duration(i) * time.Second), domain: uint64(i % tc.failed)})
			}
			for i := range tc.all { // whoever is asked: a suspect is asked last
				g.Pick(t0.Add(tc.later), Query{Domain: uint64(i)}, nil)
			}
			if _, got := m.tooBad(t0.Add(tc.later), loss, peers{p, m, t0.Add(tc.later)}); got != tc.want {
				t.Errorf("too bad = %v, want %v", got, tc.want)
			}
		})
	}
}

func TestDomainsKeepTheLatest(t *testing.T) {
	var d domains
	for i := range 100 {
		d.add(t0.Add(time.Duration(i)*time.Second), uint64(i%2))
	}
	if got := d.count(t0.Add(99 * time.Second)); got != 2 {
		t.Errorf("two that alternate count as %d", got)
	}
	for i := range 100 {
		d.add(t0.Add(99*time.Second), uint64(i))
	}
	if got := d.count(t0.Add(99 * time.Second)); got != minDomains {
		t.Errorf("a hundred count as %d, want %d", got, minDomains)
	}
	d.add(t0.Add(109*time.Second), 7)
	if got := d.count(t0.Add(109 * time.Second)); got != 1 {
		t.Errorf("one after ten seconds counts as %d", got)
	}
}

// A fresh socket that is answered while pooled ones lose has these replaced, once in a
// while, and only what the new ones lose counts.
func TestFiveLossesInARowEject(t *testing.T) {
	for name, tc := range map[string]struct {
		results string // l: lost to a peer, a: answered, t: timed out, p: a probe passes
		want    State
	}{
		"four lost":                            {"llll", Suspect},
		"five lost":                            {"lllll", Ejected},
		"an answer between starts afresh":      {"llllall", Suspect},
		"a fresh socket is answered between":   {"llllpl", Suspect},
		"the new ones lose as well":            {"llllplllll", Ejected},
		"it is answered again between":         {"lpllllpl", Ejected},
		"time-outs count like those to a peer": {"ttttt", Ejected},
	} {
		t.Run(name, func(t *testing.T) {
			p, g, ids := newTestPool(t, "sequential", 2, DefaultRules())
			now := t0.Add(time.Second)
			for _, r := range tc.results {
				if r == 'p' {
					p.Report(now, nextProbeOf(t, p, &now, ids[0]), Answered)
					continue
				}
				ticket := ask(t, p, g, now, ids[0])
				now = now.Add(time.Second)
				p.Report(now, ticket, map[rune]Outcome{'l': LostToPeer, 'a': Answered, 't': Lost}[r])
				p.End(ticket)
			}
			if got := p.State(ids[0]); got != tc.want {
				t.Errorf("state = %v, want %v", got, tc.want)
			}
		})
	}
}

func TestTooLargeAShareEjects(t *testing.T) {
	for name, tc := range map[string]struct {
		own, peer share
		domains   int
		want      State
	}{
		"half of nine":                                {share{5, 9}, share{0, 20}, 3, Up},
		"half of ten":                                 {share{5, 10}, share{0, 20}, 3, Ejected},
		"less than half of ten":                       {share{4, 10}, share{0, 20}, 3, Up},
		"a quarter of 49":                             {share{13, 49}, share{0, 20}, 3, Up},
		"a quarter of 50":                             {share{13, 50}, share{0, 20}, 3, Ejected},
		"less than a quarter of 50":                   {share{12, 50}, share{0, 20}, 3, Up},
		"a fifth of 79":                               {share{16, 79}, share{0, 20}, 3, Up},
		"a fifth of 80":                               {share{16, 80}, share{0, 20}, 3, Ejected},
		"half of ten of two domains":                  {share{5, 10}, share{0, 20}, 2, Up},
		"twice what the peer loses":                   {share{8, 16}, share{5, 20}, 3, Ejected},
		"less than twice":                             {share{8, 16}, share{6, 20}, 3, Up},
		"the peer has too few to be compared with":    {share{8, 16}, share{0, 4}, 3, Up},
		"the peer has just enough to be compared":     {share{8, 16}, share{0, 5}, 3, Ejected},
		"all lose, and nobody is worse than the rest": {share{20, 20}, share{20, 20}, 3, Up},
	} {
		t.Run(name, func(t *testing.T) {
			p, g, ids := newTestPool(t, "sequential", 2, DefaultRules())
			now := t0.Add(time.Second)
			exchanges(&p.members[ids[1]].evidence, now, tc.peer.wrong, tc.peer.total, 3)
			// All but the last are counted by hand: no row, and other domains in the traffic.
			e := &p.members[ids[0]].evidence
			exchanges(e, now, tc.own.wrong-1, tc.own.wrong-1, tc.domains)
			exchanges(e, now, 0, tc.own.total-tc.own.wrong, minDomains)
			e.good(loss)
			p.members[ids[0]].heard = now.Add(time.Minute)
			for i := range minDomains {
				g.Pick(now, Query{Domain: uint64(i)}, nil)
			}
			last := Query{Domain: uint64(tc.domains - 1)}
			tr, _ := endAs(t, p, g, &now, ids[0], last, 300*ms, LostToPeer)
			if got := p.State(ids[0]); got != tc.want {
				t.Errorf("state = %v, want %v", got, tc.want)
			}
			if want := fmt.Sprintf("%d of %d in 10s, %d of %d at the best peer", tc.own.wrong, tc.own.total, tc.peer.wrong, tc.peer.total); tr.WouldEject && tr.Detail != want {
				t.Errorf("detail = %q, want %q", tr.Detail, want)
			}
		})
	}
}
