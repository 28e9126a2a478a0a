package pool

import (
	"testing"
	"time"
)

func TestTheLastUpOfATier(t *testing.T) {
	for name, tc := range map[string]struct {
		tiers       []string // of members a, b, c; another group after a bar
		up          string
		last, lower bool // a is the last one up; a lower tier could take over
	}{
		"alone":                                     {[]string{"a"}, "a", true, false},
		"two are up":                                {[]string{"ab"}, "ab", false, false},
		"the other one is not":                      {[]string{"ab"}, "a", true, false},
		"it is not up itself":                       {[]string{"ab"}, "b", false, false},
		"nobody is up":                              {[]string{"ab"}, "", true, false},
		"a lower tier is there":                     {[]string{"a", "b"}, "ab", true, true},
		"a lower tier is there and not up":          {[]string{"a", "b"}, "a", true, true},
		"in the lower tier":                         {[]string{"b", "a"}, "ab", true, false},
		"two are up above a lower tier":             {[]string{"ab", "c"}, "ab", false, false},
		"last in another group":                     {[]string{"ab", "|", "ac"}, "ab", true, false},
		"last in one with and one without a lower":  {[]string{"a", "b", "|", "a"}, "ab", true, false},
		"last in one with a lower, not in another":  {[]string{"a", "b", "|", "ac"}, "abc", true, true},
		"other groups are none of its business":     {[]string{"ab", "|", "c"}, "ab", false, false},
		"last in two groups that have a lower tier": {[]string{"a", "b", "|", "a", "c"}, "a", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			p, _, ids := newTestPool(t, "random", 3, DefaultRules())
			p.groups = nil
			var tiers [][]ID
			for _, tier := range append(tc.tiers, "|") {
				if tier == "|" {
					newTestGroup(t, p, "random", tiers...)
					tiers = nil
					continue
				}
				var members []ID
				for _, c := range tier {
					members = append(members, ids[c-'a'])
				}
				tiers = append(tiers, members)
			}
			for i, id := range ids {
				p.members[id].state = Suspect
				for _, c := range tc.up {
					if int(c-'a') == i {
						p.members[id].state = Up
					}
				}
			}
			last, lower := peers{p, p.members[ids[0]], t0}.lastUp()
			if last != tc.last || lower != tc.lower {
				t.Errorf("lastUp = %v, %v, want %v, %v", last, lower, tc.last, tc.lower)
			}
		})
	}
}

func TestOnlyPeersOfTheTierThatServeAreComparedWith(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(m *member)
		lower  bool // the peer is in a lower tier
		want   bool
	}{
		"it is up":              {nil, false, true},
		"it starts slowly":      {func(m *member) { m.state = SlowStart }, false, true},
		"it is suspect":         {func(m *member) { m.state = Suspect }, false, false},
		"it is ejected":         {func(m *member) { m.state = Ejected }, false, false},
		"it is drained":         {func(m *member) { m.admin = Drain }, false, false},
		"it is of a lower tier": {nil, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			p, _, ids := newTestPool(t, "random", 2, DefaultRules())
			p.groups = nil
			if tc.lower {
				newTestGroup(t, p, "random", ids[:1], ids[1:])
			} else {
				newTestGroup(t, p, "random", ids)
			}
			m := p.members[ids[1]]
			answer(p, t0, ids[1], 5, 2*ms)
			exchanges(&m.evidence, t0, 0, 5, 1)
			if tc.change != nil {
				tc.change(m)
			}
			s := peers{p, p.members[ids[0]], t0}
			if _, got := s.share(loss); got != tc.want {
				t.Errorf("its share is compared with: %v, want %v", got, tc.want)
			}
			if got := s.best() > 0; got != tc.want {
				t.Errorf("its latency is compared with: %v, want %v", got, tc.want)
			}
		})
	}
}

func TestTheBestPeerIsTheOneWithTheLowestShare(t *testing.T) {
	p, _, ids := newTestPool(t, "random", 4, DefaultRules())
	for i, sh := range []share{{0, 100}, {3, 10}, {2, 10}, {0, 4}} { // its own; the last says too little
		exchanges(&p.members[ids[i]].evidence, t0, sh.wrong, sh.total, 1)
		answer(p, t0, ids[i], 1, []time.Duration{ms, 40 * ms, 20 * ms, 80 * ms}[i])
	}
	s := peers{p, p.members[ids[0]], t0}
	if got, ok := s.share(loss); got != (share{2, 10}) || !ok {
		t.Errorf("share = %v, %v, want 2 of 10", got, ok)
	}
	if got := s.best(); got < 20*ms || got > 25*ms {
		t.Errorf("best = %v, want 20ms", got)
	}
}
