package pool

import (
	"math/rand/v2"
	"strings"
	"testing"
)

func TestPolicies(t *testing.T) {
	orders := func(policy string, n int) map[string]int {
		_, g, _ := newTestPool(t, policy, 3, DefaultRules())
		got := make(map[string]int)
		for range n {
			var order strings.Builder
			for _, ticket := range g.Pick(t0, Query{}, nil) {
				order.WriteByte(byte('a' + ticket.Rank))
			}
			got[order.String()]++
		}
		return got
	}
	if got := orders("sequential", 100); got["abc"] != 100 {
		t.Errorf("sequential = %v, want abc always", got)
	}
	if got := orders("round_robin", 99); got["abc"] != 33 || got["bca"] != 33 || got["cab"] != 33 {
		t.Errorf("round_robin = %v, want each rotation a third of the time", got)
	}
	got := orders("random", 6000)
	for order, n := range got {
		if n < 900 || n > 1100 {
			t.Errorf("random: order %s %d times of 6000, want about 1000", order, n)
		}
	}
	if len(got) != 6 {
		t.Errorf("random: %d orders, want 6", len(got))
	}
	if _, err := New(rand.NewPCG(1, 2)).Group(Plan{Policy: "best"}); err == nil {
		t.Error("Group takes an unknown policy")
	}
}
