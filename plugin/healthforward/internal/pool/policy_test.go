package pool

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// orders counts the orders of n picks.
func orders(g *Group, n int) map[string]int {
	got := make(map[string]int)
	for range n {
		got[order(g, t0, Query{})]++
	}
	return got
}

func TestPolicies(t *testing.T) {
	of := func(policy string, n int) map[string]int {
		_, g, _ := newTestPool(t, policy, 3, DefaultRules())
		return orders(g, n)
	}
	if got := of("sequential", 100); got["abc"] != 100 {
		t.Errorf("sequential = %v, want abc always", got)
	}
	if got := of("round_robin", 99); got["abc"] != 33 || got["bca"] != 33 || got["cab"] != 33 {
		t.Errorf("round_robin = %v, want each rotation a third of the time", got)
	}
	for _, policy := range []string{"random", "race"} {
		got := of(policy, 6000)
		for order, n := range got {
			if n < 900 || n > 1100 {
				t.Errorf("%s: order %s %d times of 6000, want about 1000", policy, order, n)
			}
		}
		if len(got) != 6 {
			t.Errorf("%s: %d orders, want 6", policy, len(got))
		}
	}
	if _, err := New(rand.NewPCG(1, 2)).Group(Plan{Policy: "best"}); err == nil {
		t.Error("Group takes an unknown policy")
	}
}

func TestEveryPolicyAsksEverybodyWhoIsUpOnce(t *testing.T) {
	for _, policy := range Policies() {
		for n := range 5 {
			_, g, _ := newTestPool(t, policy, n, DefaultRules())
			for range 20 {
				seen := make(map[int]bool)
				for _, ticket := range g.Pick(t0, Query{}, nil) {
					seen[ticket.Rank] = true
				}
				if len(seen) != n {
					t.Errorf("%s asks %v of %d", policy, seen, n)
				}
			}
		}
	}
}

func TestOfTwoTheOneOfLowerCostIsPreferred(t *testing.T) {
	for name, tc := range map[string]struct {
		means    [2]time.Duration
		inFlight [2]int
		want     string
	}{
		"the faster one":                         {[2]time.Duration{2 * ms, 3 * ms}, [2]int{}, "ab"},
		"the faster one, though busy":            {[2]time.Duration{2 * ms, 9 * ms}, [2]int{3, 0}, "ab"},
		"the slower one, where the other is":     {[2]time.Duration{2 * ms, 9 * ms}, [2]int{4, 0}, "ba"},
		"the idle one of equals":                 {[2]time.Duration{2 * ms, 2 * ms}, [2]int{1, 0}, "ba"},
		"one who is not known, to get known":     {[2]time.Duration{2 * ms, 0}, [2]int{0, 0}, "ba"},
		"one who is not known, though in flight": {[2]time.Duration{2 * ms, 0}, [2]int{0, 100}, "ba"},
	} {
		t.Run(name, func(t *testing.T) {
			p, g, ids := newTestPool(t, "p2c", 2, DefaultRules())
			for i, id := range ids {
				p.members[id].latency.mean, p.members[id].inFlight = tc.means[i], tc.inFlight[i]
			}
			if got := orders(g, 100); got[tc.want] != 100 {
				t.Errorf("orders = %v, want %s always", got, tc.want)
			}
		})
	}
	t.Run("the costliest of three is first only by no draw", func(t *testing.T) {
		p, g, ids := newTestPool(t, "p2c", 3, DefaultRules())
		for i, id := range ids {
			p.members[id].latency.mean = time.Duration(i+1) * ms
		}
		first := make(map[byte]int)
		for order, n := range orders(g, 3000) {
			first[order[0]] += n
		}
		if first['c'] != 0 || first['a'] < 1900 || first['a'] > 2100 {
			t.Errorf("first = %v, want a two thirds of the time and c never", first)
		}
	})
}

func TestFastest(t *testing.T) {
	for name, tc := range map[string]struct {
		before, after [2]time.Duration // means of a and b
		want          string           // after
	}{
		"the faster one":                           {[2]time.Duration{2 * ms, 3 * ms}, [2]time.Duration{2 * ms, 3 * ms}, "ab"},
		"b is a little faster now":                 {[2]time.Duration{10 * ms, 20 * ms}, [2]time.Duration{10 * ms, 9 * ms}, "ab"},
		"b is a fifth faster now":                  {[2]time.Duration{10 * ms, 20 * ms}, [2]time.Duration{10 * ms, 8 * ms}, "ab"},
		"b is more than a fifth faster now":        {[2]time.Duration{10 * ms, 20 * ms}, [2]time.Duration{10 * ms, 8*ms - 1}, "ba"},
		"a is a little faster than b, who was":     {[2]time.Duration{20 * ms, 10 * ms}, [2]time.Duration{9 * ms, 10 * ms}, "ba"},
		"one who is not known is asked to get so":  {[2]time.Duration{2 * ms, 0}, [2]time.Duration{2 * ms, 0}, "ba"},
		"of equals the first, and then whoever is": {[2]time.Duration{2 * ms, 2 * ms}, [2]time.Duration{2 * ms, 2 * ms}, "ab"},
	} {
		t.Run(name, func(t *testing.T) {
			p, g, ids := newTestPool(t, "fastest", 2, DefaultRules())
			for _, means := range [][2]time.Duration{tc.before, tc.after} {
				for i, id := range ids {
					p.members[id].latency.mean = means[i]
				}
				order(g, t0, Query{})
			}
			if got := order(g, t0, Query{}); got != tc.want {
				t.Errorf("order = %s, want %s", got, tc.want)
			}
		})
	}
	t.Run("who was suspect has no advantage at its return", func(t *testing.T) {
		p, g, ids := newTestPool(t, "fastest", 2, DefaultRules())
		p.members[ids[0]].latency.mean, p.members[ids[1]].latency.mean = 10*ms, 9*ms
		p.members[ids[1]].state = Suspect
		order(g, t0, Query{})
		p.members[ids[1]].state = Up
		if got := order(g, t0, Query{}); got != "ab" {
			t.Errorf("order = %s, want ab", got)
		}
	})
	t.Run("groups have their own favourites", func(t *testing.T) {
		p, g, ids := newTestPool(t, "fastest", 2, DefaultRules())
		p.members[ids[0]].latency.mean, p.members[ids[1]].latency.mean = 10*ms, 20*ms
		alone := newTestGroup(t, p, "fastest", ids[1:])
		order(g, t0, Query{})
		order(alone, t0, Query{})
		p.members[ids[1]].latency.mean = 9 * ms
		if got := order(g, t0, Query{}); got != "ab" {
			t.Errorf("order = %s, want ab", got)
		}
	})
}

func TestHash(t *testing.T) {
	const names = 10_000
	name := func(i int) Query { return NewQuery(fmt.Sprintf("host%d.example.", i)) }
	p, g, ids := newTestPool(t, "hash", 4, DefaultRules())
	share, first := make(map[byte]int), make([]byte, names)
	for i := range names {
		first[i] = order(g, t0, name(i))[0]
		share[first[i]]++
	}
	for member, n := range share {
		if n < names/4*9/10 || n > names/4*11/10 {
			t.Errorf("%c has %d names of %d, want a quarter within a tenth", member, n, names)
		}
	}
	p.members[ids[1]].eject(t0, Silent, "")
	moved := make(map[byte]int)
	for i := range names {
		now := order(g, t0, name(i))[0]
		if now != first[i] && first[i] != 'b' {
			t.Fatalf("%v moved from %c, which has not fallen", name(i), first[i])
		}
		if first[i] == 'b' {
			moved[now]++
		}
	}
	for member, n := range moved {
		if want := share['b'] / 3; n < want*8/10 || n > want*12/10 {
			t.Errorf("%c took over %d names, want about %d", member, n, want)
		}
	}
}

func TestWhatThePoolKnowsOfAQuery(t *testing.T) {
	for name, want := range map[string]string{
		".":                     ".",
		"":                      "",
		"com.":                  "com.",
		"example.com.":          "example.com.",
		"www.example.com.":      "example.com.",
		"a.b.c.d.example.com.":  "example.com.",
		"db01":                  "db01",
		"1.0.127.in-addr.arpa.": "in-addr.arpa.",
	} {
		if got := domainOf(name); got != want {
			t.Errorf("domainOf(%q) = %q, want %q", name, got, want)
		}
	}
	if NewQuery("a.example.com.") == NewQuery("b.example.com.") || NewQuery("a.example.com.").Domain != NewQuery("b.example.com.").Domain {
		t.Error("want two names of one domain")
	}
	// From the authors' list of test vectors: the hash is the same in each process.
	for s, want := range map[string]uint64{"": 0xcbf29ce484222325, "a": 0xaf63dc4c8601ec8c, "foobar": 0x85944171f73967e8} {
		if got := Hash(s); got != want {
			t.Errorf("Hash(%q) = %#x, want %#x", s, got, want)
		}
	}
}
