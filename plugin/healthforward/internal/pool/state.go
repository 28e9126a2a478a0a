package pool

import (
	"fmt"
	"time"
)

// State is what the pool thinks of a member. See DESIGN.md, "States".
type State uint8

// The zero value is where a member starts: nobody has heard of it yet.
const (
	Suspect   State = iota // asked last, not waited for long, probed until the verdict
	Up                     // asked by policy
	Ejected                // not asked while anybody else can be; probed until it is back
	SlowStart              // back, and asked for a share of its share that grows
)

// String returns the word for logs and metrics.
func (s State) String() string {
	switch s {
	case Suspect:
		return "suspect"
	case Up:
		return "up"
	case Ejected:
		return "ejected"
	case SlowStart:
		return "slowstart"
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// States lists every state, for those who must name them all.
func States() []State { return []State{Suspect, Up, Ejected, SlowStart} }

// Admin is what an operator wants of a member, whatever its state. The words are
// HAProxy's.
type Admin uint8

// Admin states.
const (
	Ready   Admin = iota // as its state says
	Drain                // no new queries while anybody else can be asked; probed and judged
	Maint                // neither queries nor probes
	ForceUp              // as if up; never ejected
)

// admins maps what an operator wants to its word for logs and metrics.
var admins = [...]string{Ready: "ready", Drain: "drain", Maint: "maint", ForceUp: "force-up"}

// String returns the word for logs and metrics.
func (a Admin) String() string {
	if int(a) < len(admins) {
		return admins[a]
	}
	return fmt.Sprintf("admin(%d)", uint8(a))
}

// Outcome is what one exchange with a member showed of it. An exchange may show
// more than one, in the order of time: first that it is late, then that it is
// lost, then an answer after all.
type Outcome uint8

// Outcomes of an exchange. The zero value shows nothing.
const (
	Abandoned   Outcome = iota // given up by us: says nothing of the member
	Answered                   // a valid message came
	Failed                     // a valid message with a failing rcode: alive, but no good
	Outdone                    // after Failed: a peer answered the same question well
	Late                       // nothing came within Ticket.Patience of the sending
	Lost                       // nothing came within the attempt's time-out; for a probe, within Ticket.Timeout
	LostToPeer                 // nothing came within Ticket.Linger, though another member answered the same question
	Refused                    // a hard error: port closed, connection reset, no connection in time
	Blocked                    // this host did not let it out: a firewall's rule, a full queue
	Unreachable                // this host has no way there, or no means to go it
)

// Cause is why a member changed its state.
type Cause uint8

// Causes of a transition. Silent, RefusedProbes, Losses, Slow and BadRcodes eject.
const (
	None          Cause = iota // it has not changed
	LateAnswer                 // an answer was late, and nothing else was heard meanwhile
	HardError                  // an exchange was refused
	LostQuery                  // an exchange was lost
	MissedProbe                // a probe was not answered
	Silent                     // Rules.Fall probes in a row were not answered
	RefusedProbes              // likewise, and the last one was refused
	Losses                     // too many exchanges were lost, though probes may pass
	Slow                       // it answers, but far later than its best peer
	BadRcodes                  // it fails what its peers answer
	Heard                      // a valid message came
	Probed                     // Rules.Rise probes in a row were answered, and the hold is over
	Shadowed                   // likewise, and copies of live queries were answered well
	AloneAndHeard              // a valid message came while nobody was up
	Ramped                     // its slow start is over
)

// causes maps each cause to its word for logs and metrics.
var causes = [...]string{
	None:          "none",
	LateAnswer:    "late",
	HardError:     "hard_error",
	LostQuery:     "lost",
	MissedProbe:   "missed_probe",
	Silent:        "silent",
	RefusedProbes: "refused",
	Losses:        "grey",
	Slow:          "slow",
	BadRcodes:     "rcode",
	Heard:         "heard",
	Probed:        "probed",
	Shadowed:      "shadowed",
	AloneAndHeard: "nobody_up",
	Ramped:        "ramped",
}

// String returns the word for logs and metrics.
func (c Cause) String() string {
	if int(c) < len(causes) {
		return causes[c]
	}
	return fmt.Sprintf("cause(%d)", uint8(c))
}

// Ejections lists the causes that eject.
func Ejections() []Cause { return []Cause{Silent, RefusedProbes, Losses, Slow, BadRcodes} }

// Transition says that a member changed its state, or what else follows from an
// exchange. The pool never calls anybody: it returns transitions, and the caller
// logs, counts and wakes.
type Transition struct {
	ID       ID
	Name     string
	From, To State // equal: the state is what it was
	Cause    Cause
	At       time.Time
	Lasted   time.Duration // how long it was in From
	Detail   string        // the numbers behind the cause
	Hold     time.Duration // on ejection: how long it stays out though probes may pass

	// WouldEject says that the cause ejects, by rules that are enforced or not: To
	// tells.
	WouldEject bool
	// Renew says that a fresh socket is answered while pooled ones lose: they are to
	// be replaced, and only what newer ones lose is held against the member.
	Renew bool
}
