package pool

import (
	"fmt"
	"time"
)

// State is what the pool thinks of a member. See DESIGN.md, "States".
type State uint8

// The zero value is where a member starts: nobody has heard of it yet.
const (
	Suspect State = iota // asked last, not waited for long, probed until the verdict
	Up                   // asked by policy
	Ejected              // not asked while anybody else can be; probed until it is back
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
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// States lists every state, for those who must name them all.
func States() []State { return []State{Suspect, Up, Ejected} }

// Outcome is what one exchange with a member showed of it. An exchange may show
// more than one, in the order of time: first that it is late, then that it is
// lost, then an answer after all.
type Outcome uint8

// Outcomes of an exchange. The zero value shows nothing.
const (
	Abandoned  Outcome = iota // given up by us, or our own fault: says nothing of the member
	Answered                  // a valid message came, whatever its rcode
	Late                      // nothing came within Ticket.Patience of the sending
	Lost                      // nothing came within the attempt's time-out; for a probe, within Ticket.Timeout
	LostToPeer                // nothing came, though another member answered the same question long ago
	Refused                   // a hard error: port closed, connection reset, no connection in time
)

// Cause is why a member changed its state.
type Cause uint8

// Causes of a transition. Silent, RefusedProbes and Losses eject.
const (
	None          Cause = iota // it has not changed
	LateAnswer                 // an answer was late, and nothing else was heard meanwhile
	HardError                  // an exchange was refused
	LostQuery                  // an exchange was lost
	MissedProbe                // a probe was not answered
	Silent                     // Rules.Fall probes in a row were not answered
	RefusedProbes              // likewise, and the last one was refused
	Losses                     // Rules.Losses exchanges in a row were lost, though probes may pass
	Heard                      // a valid message came
	Probed                     // Rules.Rise probes in a row were answered, and the hold is over
	AloneAndHeard              // a valid message came while nobody was up
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
	Heard:         "heard",
	Probed:        "probed",
	AloneAndHeard: "nobody_up",
}

// String returns the word for logs and metrics.
func (c Cause) String() string {
	if int(c) < len(causes) {
		return causes[c]
	}
	return fmt.Sprintf("cause(%d)", uint8(c))
}

// Transition says that a member changed its state. The pool never calls
// anybody: it returns transitions, and the caller logs, counts and wakes.
type Transition struct {
	ID       ID
	Name     string
	From, To State
	Cause    Cause
	At       time.Time
	Lasted   time.Duration // how long it was in From
	Count    int           // of the misses, losses or passes that made the cause
	Hold     time.Duration // on ejection: how long it stays out though probes may pass
}
