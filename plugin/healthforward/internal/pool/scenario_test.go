package pool

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// update rewrites the scenarios. Commit what it writes only if you understand
// why it differs.
var update = flag.Bool("update", false, "rewrite the output in testdata/*.txt")

// t0 is when tests begin.
var t0 = time.Date(2026, time.November, 29, 12, 0, 0, 0, time.UTC)

// TestScenarios plays testdata/*.txt. A line at the left edge is a command, with
// the time since the one before it:
//
//	member NAME [fall=N] [rise=N] [losses=N] [hold=D] [on_demand]
//	group POLICY HEDGE MEMBER...
//	pick                  the order in which a query would ask
//	ask TICKET MEMBER     a query goes to MEMBER
//	probe TICKET          the next probe, if one is due
//	report TICKET OUTCOME
//	end TICKET
//
// The indented lines below it are what the pool said to that.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, want)
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if !bytes.Equal(got, want) {
				t.Errorf("the pool says otherwise; got\n%s", got)
			}
		})
	}
}

// stage is the state of a scenario that is being played.
type stage struct {
	t       *testing.T
	now     time.Time
	pool    *Pool
	group   *Group
	ids     map[string]ID
	names   map[ID]string
	tickets map[string]Ticket
}

// play runs the commands of a script and returns it with the output they have now.
func play(t *testing.T, script []byte) []byte {
	s := &stage{
		t: t, now: t0, pool: New(rand.NewPCG(1, 2)),
		ids: make(map[string]ID), names: make(map[ID]string), tickets: make(map[string]Ticket),
	}
	var out bytes.Buffer
	lines := bufio.NewScanner(bytes.NewReader(script))
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, "    ") {
			continue // output of the last time
		}
		fmt.Fprintln(&out, line)
		command, _, _ := strings.Cut(line, "#")
		if words := strings.Fields(command); len(words) > 0 {
			for _, said := range s.do(words) {
				fmt.Fprintln(&out, "    "+said)
			}
		}
	}
	return out.Bytes()
}

func (s *stage) do(words []string) []string {
	if offset, ok := strings.CutPrefix(words[0], "+"); ok {
		d, err := time.ParseDuration(offset)
		if err != nil {
			s.t.Fatalf("%v: %v", words, err)
		}
		s.now = s.now.Add(d)
		words = words[1:]
	}
	switch words[0] {
	case "member":
		id := s.pool.Add(s.now, words[1], parseRules(s.t, words[2:]))
		s.ids[words[1]], s.names[id] = id, words[1]
	case "group":
		hedge, err := time.ParseDuration(words[2])
		if err != nil {
			s.t.Fatal(err)
		}
		var ids []ID
		for _, name := range words[3:] {
			ids = append(ids, s.ids[name])
		}
		if s.group, err = s.pool.Group(words[1], hedge, ids); err != nil {
			s.t.Fatal(err)
		}
	case "pick":
		return []string{s.pick()}
	case "ask":
		return s.ask(words[1], words[2])
	case "probe":
		return s.probe(words[1])
	case "report":
		if tr, changed := s.pool.Report(s.now, s.tickets[words[1]], parseOutcome(s.t, words[2])); changed {
			return []string{describe(tr)}
		}
	case "end":
		s.pool.End(s.tickets[words[1]])
	default:
		s.t.Fatalf("unknown command %v", words)
	}
	return nil
}

func (s *stage) pick() string {
	var order []string
	for _, ticket := range s.group.Pick(s.now, nil) {
		order = append(order, fmt.Sprintf("%s(%s)", s.names[ticket.ID], ticket.State))
	}
	return strings.Join(order, " ")
}

func (s *stage) ask(name, member string) []string {
	for _, ticket := range s.group.Pick(s.now, nil) {
		if ticket.ID != s.ids[member] {
			continue
		}
		started, what := s.pool.Start(s.now, ticket)
		if what != Started {
			return []string{"not started"}
		}
		s.tickets[name] = started
		return []string{"patience " + started.Patience.String()}
	}
	return []string{"not to be asked"}
}

func (s *stage) probe(name string) []string {
	ticket, at, ok := s.pool.NextProbe(s.now)
	switch {
	case ok:
		s.tickets[name] = ticket
		return []string{fmt.Sprintf("to %s, time-out %s", s.names[ticket.ID], ticket.Timeout)}
	case at.IsZero():
		return []string{"none in sight"}
	}
	return []string{"none for " + at.Sub(s.now).Round(time.Millisecond).String()}
}

func describe(tr Transition) string {
	text := fmt.Sprintf("%s: %s -> %s (%s, %d) after %s", tr.Name, tr.From, tr.To, tr.Cause, tr.Count, tr.Lasted)
	if tr.To == Ejected {
		text += ", hold " + tr.Hold.String()
	}
	return text
}

func parseRules(t *testing.T, words []string) Rules {
	rules := DefaultRules()
	for _, word := range words {
		name, value, _ := strings.Cut(word, "=")
		var err error
		switch name {
		case "fall":
			_, err = fmt.Sscan(value, &rules.Fall)
		case "rise":
			_, err = fmt.Sscan(value, &rules.Rise)
		case "losses":
			_, err = fmt.Sscan(value, &rules.Losses)
		case "hold":
			rules.Hold, err = time.ParseDuration(value)
		case "on_demand":
			rules.OnDemand = true
		default:
			err = fmt.Errorf("unknown rule %q", name)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return rules
}

func parseOutcome(t *testing.T, word string) Outcome {
	outcome, ok := map[string]Outcome{
		"abandoned": Abandoned, "answered": Answered, "late": Late,
		"lost": Lost, "lost_to_peer": LostToPeer, "refused": Refused,
	}[word]
	if !ok {
		t.Fatalf("unknown outcome %q", word)
	}
	return outcome
}
