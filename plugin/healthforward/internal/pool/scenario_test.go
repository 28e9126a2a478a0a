package pool

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
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
//	member NAME [fall=N] [rise=N] [losses=N] [slow=D] [hold=D] [ramp=D] [on_demand] [no_probe] [dry_run]
//	group POLICY HEDGE MEMBER... [/ MEMBER...]
//	                      HEDGE is a delay, or two with a dash between for a learned
//	                      one; a slash begins the next tier
//	pick                  the order in which a query would ask
//	ask TICKET MEMBER [DOMAIN]
//	                      a query goes to MEMBER
//	probe TICKET          the next probe, if one is due
//	shadow TICKET         a copy of a query, if one is wanted
//	report TICKET OUTCOME
//	end TICKET
//	settle                what follows from time alone
//	forgive               another network: what was concluded before is void
//	admin MEMBER STATE
//	served N MEMBER LATENCY [OUTCOME=NTH] [domain=NAME]
//	                      N queries of ten domains in turn go to MEMBER, one after
//	                      the other, each answered after LATENCY, but for each NTH,
//	                      which is for NAME, if there is one, and ends as OUTCOME
//	live D N/s [MEMBER=WHAT...]
//	                      for D, N queries a second come and are hedged, of ten domains
//	                      in turn, and probes and copies are sent as the pool wants;
//	                      MEMBER answers after WHAT, or is dead, grey (answers probes
//	                      alone), refused, blocked, unreachable or failed (SERVFAIL).
//	                      Others answer after 2 ms.
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
	life    *life // of the command live; nil before the first
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
		s.makeGroup(words[1], words[2], words[3:])
	case "pick":
		return []string{s.pick()}
	case "ask":
		return s.ask(words[1], words[2], words[3:])
	case "probe":
		return s.probe(words[1])
	case "shadow":
		return s.shadow(words[1])
	case "report":
		return s.report(s.tickets[words[1]], parseOutcome(s.t, words[2]))
	case "settle":
		if tr, changed := s.pool.Settle(s.now); changed {
			return []string{describe(tr)}
		}
	case "forgive":
		s.pool.Forgive(s.now)
	case "admin":
		s.pool.SetAdmin(s.now, s.ids[words[1]], parseAdmin(s.t, words[2]))
	case "served":
		return s.served(words[1], words[2], words[3], words[4:])
	case "live":
		return s.live(words[1], words[2], words[3:])
	case "end":
		s.pool.End(s.tickets[words[1]])
	default:
		s.t.Fatalf("unknown command %v", words)
	}
	return nil
}

func (s *stage) pick() string {
	var order []string
	for _, ticket := range s.group.Pick(s.now, NewQuery(""), nil) {
		order = append(order, fmt.Sprintf("%s(%s)", s.names[ticket.ID], ticket.State))
	}
	if len(order) == 0 {
		return "nobody"
	}
	return strings.Join(order, " ")
}

func (s *stage) makeGroup(policy, delay string, names []string) {
	low, high, learned := strings.Cut(delay, "-")
	if !learned {
		high = low
	}
	lowest, err1 := time.ParseDuration(low)
	highest, err2 := time.ParseDuration(high)
	if err1 != nil || err2 != nil {
		s.t.Fatalf("hedge %q", delay)
	}
	tiers := [][]ID{nil}
	for _, name := range names {
		if name == "/" {
			tiers = append(tiers, nil)
			continue
		}
		tiers[len(tiers)-1] = append(tiers[len(tiers)-1], s.ids[name])
	}
	var err error
	plan := Plan{Tiers: tiers, Policy: policy, Hedge: Hedge{lowest, highest, 250 * ms}, Budget: 0.2}
	if s.group, err = s.pool.Group(plan); err != nil {
		s.t.Fatal(err)
	}
}

// start returns the started ticket of a query for a domain, if it may go to member.
func (s *stage) start(member string, q Query) (Ticket, string) {
	for _, ticket := range s.group.Pick(s.now, q, nil) {
		if ticket.ID != s.ids[member] {
			continue
		}
		started, what := s.pool.Start(s.now, ticket)
		if what != Started {
			return Ticket{}, "not started"
		}
		return started, ""
	}
	return Ticket{}, "not to be asked"
}

func (s *stage) ask(name, member string, domain []string) []string {
	ticket, why := s.start(member, NewQuery(strings.Join(domain, "")))
	if why != "" {
		return []string{why}
	}
	s.tickets[name] = ticket
	return []string{"patience " + ticket.Patience.String()}
}

func (s *stage) served(count, member, latency string, options []string) []string {
	var said []string
	n, err1 := strconv.Atoi(count)
	took, err2 := time.ParseDuration(latency)
	if err1 != nil || err2 != nil {
		s.t.Fatalf("served %s %s %s", count, member, latency)
	}
	domain, nth, wrong := "", n+1, Answered
	for _, option := range options {
		name, value, _ := strings.Cut(option, "=")
		if name == "domain" {
			domain = value
			continue
		}
		wrong = parseOutcome(s.t, name)
		nth, _ = strconv.Atoi(value)
	}
	for i := range n {
		q, outcome := Query{Domain: uint64(i % 10)}, Answered
		if (i+1)%nth == 0 {
			outcome = wrong
			if domain != "" {
				q = NewQuery(domain)
			}
		}
		ticket, why := s.start(member, q)
		if why != "" {
			return append(short(said), fmt.Sprintf("%s, after %d", why, i))
		}
		s.now = s.now.Add(took)
		said = append(said, s.report(ticket, outcome)...)
		s.pool.End(ticket)
	}
	return short(said)
}

// short leaves out the middle of what is long.
func short(said []string) []string {
	if len(said) <= 6 {
		return said
	}
	middle := fmt.Sprintf("... %d more", len(said)-4)
	return slices.Concat(said[:2], []string{middle}, said[len(said)-2:])
}

func (s *stage) report(t Ticket, o Outcome) []string {
	if tr, changed := s.pool.Report(s.now, t, o); changed {
		return []string{describe(tr)}
	}
	return nil
}

func (s *stage) shadow(name string) []string {
	ticket, ok := s.group.Shadow(s.now, Query{})
	if !ok {
		return []string{"none"}
	}
	s.tickets[name] = ticket
	return []string{"to " + s.names[ticket.ID]}
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
	text := fmt.Sprintf("%s: %s -> %s (%s) after %s", tr.Name, tr.From, tr.To, tr.Cause, tr.Lasted)
	if tr.Detail != "" {
		text += ", " + tr.Detail
	}
	switch {
	case tr.WouldEject && tr.To == Ejected:
		text += ", hold " + tr.Hold.String()
	case tr.WouldEject:
		text += ", would be ejected"
	}
	if tr.Renew {
		text += ", sockets to be replaced"
	}
	return text
}

func parseAdmin(t *testing.T, word string) Admin {
	admin, ok := map[string]Admin{"ready": Ready, "drain": Drain, "maint": Maint, "force-up": ForceUp}[word]
	if !ok {
		t.Fatalf("unknown admin state %q", word)
	}
	return admin
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
		case "slow":
			rules.Slow, err = time.ParseDuration(value)
		case "hold":
			rules.Hold, err = time.ParseDuration(value)
		case "ramp":
			rules.Ramp, err = time.ParseDuration(value)
		case "on_demand":
			rules.OnDemand = true
		case "no_probe":
			rules.NoProbe = true
		case "dry_run":
			rules.DryRun = true
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
		"abandoned": Abandoned, "answered": Answered, "failed": Failed, "outdone": Outdone,
		"late": Late, "lost": Lost, "lost_to_peer": LostToPeer,
		"refused": Refused, "blocked": Blocked, "unreachable": Unreachable,
	}[word]
	if !ok {
		t.Fatalf("unknown outcome %q", word)
	}
	return outcome
}
