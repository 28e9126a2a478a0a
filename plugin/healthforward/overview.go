package healthforward

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"steadfast.internal/plugin/healthforward/internal/pool"
	"steadfast.internal/plugin/internal/status"
)

// overview is what the page shows, at one moment. Its JSON is an interface: what is
// there keeps its name and its unit, and times are in seconds.
type overview struct {
	Stanzas []stanzaView `json:"stanzas"`
	// Steered are the upstreams that an operator wants drained or in maint, whether they
	// are there or not.
	Steered map[string]string `json:"steered"`
}

// stanzaView is one stanza of the Corefile that is in force.
type stanzaView struct {
	Server   string `json:"server"` // the keys of its server block
	From     string `json:"from"`
	Policy   string `json:"policy"`
	Enforced bool   `json:"enforced"`
	// Budget is what part of a packet each query earns for further ones, and Saved how
	// many of these are paid for now, by the client's transport.
	Budget    float64            `json:"budget"`
	Saved     map[string]float64 `json:"saved"`
	Upstreams []upstreamView     `json:"upstreams"`
	Sources   []sourceView       `json:"sources"`
}

// upstreamView is an upstream of a stanza.
type upstreamView struct {
	To         string `json:"to"`
	Proto      string `json:"proto"`
	ServerName string `json:"server_name,omitempty"`
	Tier       int    `json:"tier"`   // from 1
	Source     string `json:"source"` // the file or host name; empty: the Corefile

	State    string   `json:"state"`
	Cause    string   `json:"cause"`
	Detail   string   `json:"detail,omitempty"`
	Lasts    float64  `json:"state_seconds"`
	Hold     float64  `json:"hold_seconds"` // what is left of it
	Heard    *float64 `json:"heard_seconds_ago"`
	Admin    string   `json:"admin"`
	InFlight int      `json:"in_flight"`
	Median   float64  `json:"median_seconds"`
	P95      float64  `json:"p95_seconds"`
	Loss     float64  `json:"loss"` // from 0 to 1
}

// sourceView is a file or a host name of a stanza.
type sourceView struct {
	Name    string        `json:"name"`
	Trouble string        `json:"trouble,omitempty"` // why what is there now is not used
	LeftOut []leftOutView `json:"left_out"`
}

// leftOutView is an address that a source leads to and that is not used.
type leftOutView struct {
	To  string `json:"to"`
	Why string `json:"why"`
}

// Why an address is left out.
const (
	whyListens = "this process listens there"
	whyLoops   = "it leads back to this process"
)

// overview returns how the stanzas of the newest generation stand at now.
func (r *registry) overview(now time.Time) overview {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := overview{Stanzas: []stanzaView{}, Steered: make(map[string]string)}
	for p, want := range r.steered {
		all.Steered[p.String()] = want.String()
	}
	if len(r.generations) == 0 {
		return all
	}
	standings := make(map[pool.ID]pool.Standing)
	for _, s := range r.pool.Snapshot(now) {
		standings[s.ID] = s
	}
	for _, f := range r.generations[len(r.generations)-1].forwarders {
		all.Stanzas = append(all.Stanzas, r.stanzaView(now, f, standings))
	}
	return all
}

// stanzaView requires that mu is held.
func (r *registry) stanzaView(now time.Time, f *Forwarder, standings map[pool.ID]pool.Standing) stanzaView {
	v := stanzaView{
		Server: f.server, From: f.From, Policy: f.Policy, Enforced: !f.Rules.DryRun, Budget: f.Budget,
		Saved: make(map[string]float64), Upstreams: []upstreamView{}, Sources: r.sourceViews(f),
	}
	if f.Race > 0 {
		v.Policy = fmt.Sprintf("%s %d", f.Policy, f.Race)
	}
	seen := make(map[pool.ID]bool)
	for _, client := range f.clients() {
		g := (*f.groups.Load())[client]
		v.Saved[client] = g.Saved(now)
		origin := r.origins(f, client)
		byRank := slices.SortedFunc(maps.Values(g.upstreams), func(a, b *upstream) int {
			rankA, _, _ := g.Place(a.id)
			rankB, _, _ := g.Place(b.id)
			return rankA - rankB
		})
		for _, u := range byRank {
			if seen[u.id] { // over TLS and the like one is for clients of both transports
				continue
			}
			seen[u.id] = true
			_, tier, _ := g.Place(u.id)
			v.Upstreams = append(v.Upstreams, u.view(now, tier, origin[u.id], standings[u.id]))
		}
	}
	return v
}

// origins returns which file or host name leads to each upstream. It requires that mu is
// held.
func (r *registry) origins(f *Forwarder, client string) map[pool.ID]string {
	from := make(map[pool.ID]string)
	for i, t := range f.allTo() {
		for _, at := range f.places[i] {
			if u := r.upstreams[f.keyFor(at, client)]; u != nil {
				from[u.id] = t.file + t.host
			}
		}
	}
	return from
}

func (u *upstream) view(now time.Time, tier int, source string, s pool.Standing) upstreamView {
	v := upstreamView{
		To: u.addr, Proto: u.proto, ServerName: u.serverName, Tier: tier + 1, Source: source,
		State: s.State.String(), Cause: s.Cause.String(), Detail: s.Detail, Lasts: now.Sub(s.Since).Seconds(),
		Hold: s.Hold.Seconds(), Admin: s.Admin.String(), InFlight: s.InFlight,
		Median: s.Median.Seconds(), P95: s.P95.Seconds(), Loss: s.Loss,
	}
	if !s.Heard.IsZero() {
		ago := now.Sub(s.Heard).Seconds()
		v.Heard = &ago
	}
	return v
}

// sourceViews requires that mu is held.
func (r *registry) sourceViews(f *Forwarder) []sourceView {
	views := []sourceView{}
	for i, t := range f.allTo() {
		s := f.sources[i]
		if s == nil {
			continue
		}
		v := sourceView{Name: s.name(), Trouble: s.trouble, LeftOut: []leftOutView{}}
		foreign := r.foreign(s.sourceKey, s.addrs)
		for _, addr := range s.addrs {
			at := t.target(addr)
			if !slices.Contains(foreign, addr) {
				v.LeftOut = append(v.LeftOut, leftOutView{at.addr, whyListens})
			} else if c := r.checks[checkKey{at, f.From}]; c != nil && c.looped {
				v.LeftOut = append(v.LeftOut, leftOutView{at.addr, whyLoops})
			}
		}
		views = append(views, v)
	}
	return views
}

// columns are those of the table of a stanza's upstreams.
var columns = [...]string{"tier", "upstream", "from", "state", "since", "because", "hold", "wanted", "in flight", "median", "p95", "loss", "heard"}

// report returns the overview for the page.
func (o overview) report() status.Report {
	report := status.Report{Value: o}
	for _, s := range o.Stanzas {
		t := status.Table{Caption: s.caption(), Columns: columns[:]}
		for _, u := range s.Upstreams {
			t.Rows = append(t.Rows, u.row())
		}
		report.Tables = append(report.Tables, t)
		if rows := s.sourceRows(); len(rows) > 0 {
			report.Tables = append(report.Tables, status.Table{Caption: "What is not used", Columns: []string{"source", "address", "why"}, Rows: rows})
		}
	}
	if absent := o.absent(); len(absent) > 0 {
		report.Tables = append(report.Tables, status.Table{Caption: "Remembered for when they come back", Columns: []string{"upstream", "wanted"}, Rows: absent})
	}
	return report
}

func (s stanzaView) caption() string {
	saved := make([]string, 0, len(s.Saved))
	for _, client := range slices.Sorted(maps.Keys(s.Saved)) {
		saved = append(saved, fmt.Sprintf("%.0f over %s", s.Saved[client], client))
	}
	text := fmt.Sprintf("%s from %s: policy %s, budget %.3g%%, saved %s", s.From, s.Server, s.Policy, 100*s.Budget, strings.Join(saved, " and "))
	if !s.Enforced {
		text += "; not enforced"
	}
	return text
}

func (u upstreamView) row() status.Row {
	at := place{u.Proto, u.To}.String()
	name := at
	if u.ServerName != "" {
		name += " as " + u.ServerName
	}
	because := u.Cause
	if u.Detail != "" {
		because += ": " + u.Detail
	}
	heard := "never"
	if u.Heard != nil {
		heard = lasting(*u.Heard) + " ago"
	}
	return status.Row{
		Target: at,
		Alarm:  u.State == pool.Ejected.String() || u.Admin != pool.Ready.String(),
		Cells: []string{
			strconv.Itoa(u.Tier), name, u.Source, u.State, lasting(u.Lasts), because, lasting(u.Hold), u.Admin, strconv.Itoa(u.InFlight),
			lasting(u.Median), lasting(u.P95), fmt.Sprintf("%.1f%%", 100*u.Loss), heard,
		},
	}
}

// sourceRows are what the sources lead to that is not used.
func (s stanzaView) sourceRows() []status.Row {
	var rows []status.Row
	for _, from := range s.Sources {
		if from.Trouble != "" {
			rows = append(rows, status.Row{Cells: []string{from.Name, "", from.Trouble}, Alarm: true})
		}
		for _, out := range from.LeftOut {
			rows = append(rows, status.Row{Cells: []string{from.Name, out.To, out.Why}})
		}
	}
	return rows
}

// absent are the upstreams that an operator has steered and that no stanza has now.
func (o overview) absent() []status.Row {
	there := make(map[string]bool)
	for _, s := range o.Stanzas {
		for _, u := range s.Upstreams {
			there[place{u.Proto, u.To}.String()] = true
		}
	}
	var rows []status.Row
	for _, at := range slices.Sorted(maps.Keys(o.Steered)) {
		if !there[at] {
			rows = append(rows, status.Row{Cells: []string{at, o.Steered[at]}, Target: at})
		}
	}
	return rows
}

// lasting writes a time for people: 1h2m3s, 1.5s, 12ms.
func lasting(s float64) string {
	d := time.Duration(s * float64(time.Second))
	switch {
	case d == 0:
		return "–"
	case d < time.Second:
		return d.Round(10 * time.Microsecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
