package pool

import (
	"testing"
	"time"
)

func TestBudget(t *testing.T) {
	second := func(n float64) time.Time { return t0.Add(time.Duration(n * float64(time.Second))) }
	t.Run("begins with its cap", func(t *testing.T) {
		b := budget{perQuery: 0.2}
		if !b.spend(t0, budgetCap) || b.spend(t0, 1) {
			t.Error("want exactly the cap at the start")
		}
	})
	t.Run("a fifth of a token for each query", func(t *testing.T) {
		b := budget{perQuery: 0.2}
		b.spend(t0, budgetCap)
		for range 5 {
			if b.spend(t0, 1) {
				t.Error("a token before five queries")
			}
			b.earn(t0)
		}
		if !b.spend(t0, 1) {
			t.Error("no token after five queries")
		}
	})
	t.Run("ten a second without traffic", func(t *testing.T) {
		b := budget{perQuery: 0.2}
		b.spend(t0, budgetCap)
		if b.spend(second(0.09), 1) || !b.spend(second(0.11), 1) {
			t.Error("want one token after a tenth of a second")
		}
	})
	t.Run("saves up its cap and two seconds of traffic", func(t *testing.T) {
		b := budget{perQuery: 0.2}
		for i := range 3000 { // 1,000 a second
			b.earn(second(float64(i) / 1000))
		}
		if n := b.tokens; n < budgetCap || n > budgetCap+2000 {
			t.Errorf("tokens = %v, want at most the cap and two seconds of traffic", n)
		}
		b.earn(second(60))
		if n := b.tokens; n > budgetCap+1 {
			t.Errorf("tokens = %v after a minute of silence, want the cap", n)
		}
	})
	t.Run("a clock that runs backwards brings nothing", func(t *testing.T) {
		b := budget{perQuery: 0.2}
		b.spend(t0, budgetCap)
		if b.spend(second(-3600), 1) || b.tokens < 0 {
			t.Errorf("tokens = %v", b.tokens)
		}
	})
}
