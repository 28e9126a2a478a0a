package pool

import "time"

// Rules are the thresholds that a member is judged by.
type Rules struct {
	// Fall is how many probes in a row must miss to eject a suspect.
	// 0 never ejects. Default 2.
	Fall int
	// Rise is how many probes in a row must be answered for the return. Default 2.
	Rise int
	// Losses is how many exchanges in a row must go wrong to eject a member whose
	// probes may pass, if another one is up. Default 5.
	Losses int
	// Slow is the 95th percentile of the answers' latencies from which a member may
	// be ejected for being slow, if it is five times its best peer's as well. 0 never
	// does. Default 250 ms.
	Slow time.Duration
	// Hold is how long a member stays out that was ejected again within 60 s of
	// its return; it doubles each time up to HoldMax. Default 5 s and 300 s.
	Hold, HoldMax time.Duration
	// Ramp is how long the slow start takes after a return. 0 is none. Default 10 s.
	Ramp time.Duration
	// Interval is how long lies between the probes of an ejected member, and
	// IntervalMax what it grows to after half a minute. Default 1 s and 5 s.
	Interval, IntervalMax time.Duration
	// InFlight is how many exchanges may wait on the member at once. Default 1,024.
	InFlight int
	// OnDemand leaves the member unprobed until it has been picked, and again when
	// it has not been picked for a minute.
	OnDemand bool
	// NoProbe never probes: only queries tell.
	NoProbe bool
	// DryRun ejects nobody, and says whom it would.
	DryRun bool
}

// DefaultRules returns the rules that DESIGN.md, D3 gives the reasons for.
func DefaultRules() Rules {
	return Rules{
		Fall: 2, Rise: 2, Losses: 5,
		Slow: 250 * time.Millisecond,
		Hold: 5 * time.Second, HoldMax: 300 * time.Second,
		Ramp:     10 * time.Second,
		Interval: time.Second, IntervalMax: 5 * time.Second,
		InFlight: 1024,
	}
}
