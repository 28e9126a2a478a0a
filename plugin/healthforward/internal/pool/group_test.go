package pool

import (
	"testing"
	"time"
)

// set gives each member, in the order of joining, a state and what an operator wants:
//
//	u up, s suspect, e ejected, w in slow start
//	d drained while up, D drained while ejected, m in maint, f forced up while ejected
func set(p *Pool, now time.Time, ids []ID, what string) {
	for i, c := range what {
		m := p.members[ids[i]]
		switch c {
		case 'u', 'd', 'm':
			m.state = Up
		case 's':
			m.state = Suspect
		case 'e', 'D', 'f':
			m.state = Ejected
		case 'w':
			m.state, m.rampFrom = SlowStart, now.Add(-m.rules.Ramp+1) // all but over
		}
		m.admin = map[rune]Admin{'d': Drain, 'D': Drain, 'm': Maint, 'f': ForceUp}[c]
	}
}

func TestOrder(t *testing.T) {
	for name, tc := range map[string]struct {
		members string // see set; a slash begins the next tier
		private bool
		want    string // by rank
	}{
		"all are up":                                  {"uuu", false, "abc"},
		"suspects last":                               {"suu", false, "bca"},
		"who starts slowly has its place":             {"suw", false, "bca"},
		"never who is ejected":                        {"euu", false, "bc"},
		"never who is drained":                        {"duu", false, "bc"},
		"never who is in maint":                       {"muu", false, "bc"},
		"who is forced up as if it were":              {"fuu", false, "abc"},
		"a suspect alone":                             {"ese", false, "b"},
		"all are ejected: everybody, in turn":         {"eee", false, "bca"},
		"but who is in maint":                         {"eme", false, "ca"},
		"all are drained: everybody":                  {"ddd", false, "bca"},
		"ejected or drained: everybody":               {"eDd", false, "bca"},
		"all are in maint: nobody":                    {"mmm", false, ""},
		"tier by tier":                                {"u/uu", false, "abc"},
		"the suspects of the first before the second": {"su/u", false, "bac"},
		"the first is ejected":                        {"ee/u", false, "c"},
		"the first is drained":                        {"dd/u", false, "c"},
		"both are ejected":                            {"ee/e", false, "bca"},
		"private: the first alone":                    {"us/u", true, "ab"},
		"private, and the first is ejected":           {"ee/u", true, "ba"},
		"private, and the first is drained":           {"dd/u", true, "ba"},
		"private, and the first is in maint":          {"mm/u", true, ""},
		"three tiers":                                 {"e/s/u", false, "bc"},
		"three tiers, the first back":                 {"u/s/e", false, "ab"},
	} {
		t.Run(name, func(t *testing.T) {
			p, _, ids := newTestPool(t, "sequential", 3, DefaultRules())
			tiers, members, at := [][]ID{nil}, "", 0
			for _, c := range tc.members {
				if c == '/' {
					tiers = append(tiers, nil)
					continue
				}
				tiers[len(tiers)-1] = append(tiers[len(tiers)-1], ids[at])
				members += string(c)
				at++
			}
			set(p, t0, ids, members)
			if got := order(newTestGroup(t, p, "sequential", tiers...), t0, Query{Private: tc.private}); got != tc.want {
				t.Errorf("order = %q, want %q", got, tc.want)
			}
		})
	}
}

func TestTiersAsTheHandlerSeesThem(t *testing.T) {
	for name, tc := range map[string]struct {
		members     string // a and b are the first tier, c the second
		serves, out bool   // the first
	}{
		"all are up":                    {"uuu", true, false},
		"one is up":                     {"euu", true, false},
		"one starts slowly":             {"ewu", true, false},
		"one is suspect":                {"esu", false, false},
		"all are suspect":               {"ssu", false, false},
		"all are ejected":               {"eeu", false, true},
		"one is drained, one in maint":  {"dmu", false, true},
		"one is forced up":              {"efu", true, false},
		"nobody is up, the second also": {"eee", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			p, _, ids := newTestPool(t, "sequential", 3, DefaultRules())
			g := newTestGroup(t, p, "sequential", ids[:2], ids[2:])
			set(p, t0, ids, tc.members)
			if got := g.TierServes(1); got != tc.serves {
				t.Errorf("TierServes = %v, want %v", got, tc.serves)
			}
			if got := g.TierOut(t0, 1); got != tc.out {
				t.Errorf("TierOut = %v, want %v", got, tc.out)
			}
			if g.TierServes(0) || !g.TierOut(t0, 0) {
				t.Error("above the first tier there is somebody")
			}
		})
	}
}

func TestWhoIsNamedTwiceIsWhereItIsNamedLast(t *testing.T) {
	p, _, ids := newTestPool(t, "sequential", 3, DefaultRules())
	g := newTestGroup(t, p, "sequential", ids, ids[:1])
	for i, want := range []int{1, 0, 0} {
		if got := g.tierOf(ids[i]); got != want {
			t.Errorf("tier of %c = %d, want %d", 'a'+i, got, want)
		}
	}
}

// A backup may know fewer names, so the last one of a tier above one is given half a
// second of silence.
func TestTheLastOneAboveALowerTierIsGivenTime(t *testing.T) {
	for name, tc := range map[string]struct {
		tiers   func(ids []ID) [][]ID
		silence time.Duration // before the second miss
		want    State
	}{
		"a peer is up":                {func(ids []ID) [][]ID { return [][]ID{ids} }, 10 * ms, Ejected},
		"just less than half":         {func(ids []ID) [][]ID { return [][]ID{ids[:1], ids[1:]} }, lastOfTier - 1, Suspect},
		"half a second":               {func(ids []ID) [][]ID { return [][]ID{ids[:1], ids[1:]} }, lastOfTier, Ejected},
		"last, and of the last tier":  {func(ids []ID) [][]ID { return [][]ID{ids[1:], ids[:1]} }, 10 * ms, Ejected},
		"a peer is up, above a lower": {func(ids []ID) [][]ID { return [][]ID{ids[:2], ids[2:]} }, 10 * ms, Ejected},
	} {
		t.Run(name, func(t *testing.T) {
			p, _, ids := newTestPool(t, "sequential", 3, DefaultRules())
			p.groups = nil
			newTestGroup(t, p, "sequential", tc.tiers(ids)...)
			m := p.members[ids[0]]
			m.suspect(t0, LateAnswer)
			now := t0
			p.Report(now, nextProbeOf(t, p, &now, ids[0]), Lost)
			ticket := nextProbeOf(t, p, &now, ids[0])
			p.Report(t0.Add(tc.silence), ticket, Lost)
			if got := p.State(ids[0]); got != tc.want {
				t.Errorf("state = %v, want %v", got, tc.want)
			}
		})
	}
}

func TestWhatAnOperatorWants(t *testing.T) {
	for name, tc := range map[string]struct {
		admin  Admin
		probed bool
		want   State // after two missed probes, where there are any
	}{
		"ready":                          {Ready, true, Ejected},
		"drained: probed and judged":     {Drain, true, Ejected},
		"in maint: neither":              {Maint, false, Suspect},
		"forced up: probed, not ejected": {ForceUp, true, Suspect},
	} {
		t.Run(name, func(t *testing.T) {
			p, _, ids := newTestPool(t, "sequential", 2, DefaultRules())
			p.members[ids[0]].suspect(t0, LateAnswer)
			p.SetAdmin(t0, ids[0], tc.admin)
			now, probed := t0, false
			for range 2 {
				if ticket, _, ok := p.NextProbe(now); ok && ticket.ID == ids[0] {
					probed = true
					p.Report(now, ticket, Lost)
				}
			}
			if got := p.State(ids[0]); probed != tc.probed || got != tc.want {
				t.Errorf("probed = %v, state = %v, want %v, %v", probed, got, tc.probed, tc.want)
			}
		})
	}
	t.Run("back from maint it is looked at, at once", func(t *testing.T) {
		p, _, ids := newTestPool(t, "sequential", 2, DefaultRules())
		p.members[ids[0]].suspect(t0, LateAnswer)
		p.SetAdmin(t0, ids[0], Maint)
		p.SetAdmin(t0.Add(time.Second), ids[0], Ready)
		if ticket, _, ok := p.NextProbe(t0.Add(time.Second)); !ok || ticket.ID != ids[0] {
			t.Errorf("NextProbe = %v, %v, want one of a", ticket, ok)
		}
	})
}
