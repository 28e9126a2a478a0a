package searchexpand

import (
	"slices"
	"strings"
	"time"

	"steadfast.internal/plugin/internal/status"
)

// servedBlock is the plugin of a server block, and the keys of that.
type servedBlock struct {
	keys    string
	stanzas *stanzas
}

// overview is what the status page shows, at one moment. Its JSON is an interface.
type overview struct {
	Stanzas []stanzaView `json:"stanzas"`
}

// stanzaView is one stanza of the Corefile that is in force.
type stanzaView struct {
	Server  string      `json:"server"` // the keys of its server block
	List    []entryView `json:"list"`
	Skipped []string    `json:"skipped"` // the suffixes that fail, and are not asked for a while
}

// entryView is an entry of a search list.
type entryView struct {
	Entry     string   `json:"entry"` // as in the Corefile
	PerClient bool     `json:"per_client"`
	Domains   []string `json:"domains"`           // what it stands for now; none where that depends on the client
	Trouble   string   `json:"trouble,omitempty"` // why what its file says now is not used
}

// overview returns how the stanzas of the newest load stand at now.
func (fs *followedFiles) overview(now time.Time) overview {
	all := overview{Stanzas: []stanzaView{}}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if len(fs.loads) == 0 {
		return all
	}
	for _, b := range fs.loads[len(fs.loads)-1].blocks {
		for _, s := range b.stanzas.list {
			v := stanzaView{Server: b.keys, Skipped: s.suffixes.skipped(now)}
			for _, e := range s.entries {
				v.List = append(v.List, fs.entryView(e))
			}
			all.Stanzas = append(all.Stanzas, v)
		}
	}
	return all
}

// entryView requires that mu is held.
func (fs *followedFiles) entryView(e entry) entryView {
	v := entryView{Entry: e.text, PerClient: !e.shared, Domains: []string{}}
	switch source := e.source.(type) {
	case fixed:
		v.Domains = slices.Clone(source)
	case *fromFile:
		f := fs.byPath[source.path]
		if f == nil {
			break // it is about to start
		}
		v.Domains = append(v.Domains, f.now.Load().domains...)
		if why := f.why.Load(); why != nil {
			v.Trouble = (*why).Error()
		}
	}
	return v
}

// columns are those of the table of a stanza's list.
var columns = [...]string{"entry", "stands for", "not used"}

// report returns the overview for the page.
func (o overview) report() status.Report {
	report := status.Report{Value: o}
	for _, s := range o.Stanzas {
		t := status.Table{Caption: "Search list in " + s.Server, Columns: columns[:]}
		for _, e := range s.List {
			stands, not := strings.Join(e.Domains, " "), e.Trouble
			if e.PerClient {
				stands = "depends on the client"
			}
			t.Rows = append(t.Rows, status.Row{Cells: []string{e.Entry, stands, not}, Alarm: not != ""})
		}
		for _, suffix := range s.Skipped {
			t.Rows = append(t.Rows, status.Row{Cells: []string{"", suffix, "skipped, because it fails"}, Alarm: true})
		}
		report.Tables = append(report.Tables, t)
	}
	return report
}
