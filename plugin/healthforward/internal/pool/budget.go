package pool

import "time"

// Numbers of the budget. See DESIGN.md, D6.
const (
	budgetFloor = 10  // tokens a second, for whom a fifth of the traffic would be nothing
	budgetCap   = 100 // tokens, besides two seconds of traffic
)

// budget pays for the packets that a query sends beyond its first. It is a token
// bucket that fills with the traffic, so that a failure cannot double the load.
// Its methods require that the pool's mu is held.
type budget struct {
	perQuery float64 // extra packets that each client query earns
	tokens   float64
	filled   time.Time // when the floor was last added

	// Queries in this second and in the one before, which bound what is saved up.
	second     time.Time
	this, last int
}

// earn adds what one client query brings.
func (b *budget) earn(now time.Time) {
	b.refill(now)
	switch age := now.Sub(b.second); {
	case age >= 2*time.Second:
		b.second, b.last, b.this = now, 0, 0
	case age >= time.Second:
		b.second, b.last, b.this = now, b.this, 0
	}
	b.this++
	b.add(b.perQuery)
}

// spend takes n tokens, or returns false and takes none.
func (b *budget) spend(now time.Time, n float64) bool {
	b.refill(now)
	if b.tokens < n {
		return false
	}
	b.tokens -= n
	return true
}

// refill adds the floor for the time since the last call. A clock that runs
// backwards adds nothing.
func (b *budget) refill(now time.Time) {
	if b.filled.IsZero() {
		b.filled, b.tokens = now, budgetCap
		return
	}
	if d := now.Sub(b.filled); d > 0 {
		b.filled = now
		b.add(d.Seconds() * budgetFloor)
	}
}

func (b *budget) add(n float64) {
	b.tokens = min(b.tokens+n, float64(budgetCap+b.last+b.this))
}
