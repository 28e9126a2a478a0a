// Package status serves what the plugins of this process know, as a page for people and
// as JSON for programs, and lets an operator who holds a token steer them. A plugin adds
// a [Section]; the package knows none. It is the whole of what the process shows, so it
// trusts nobody: see access.go for who may ask, and server.go for how much.
package status

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"html/template"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// Section is what one plugin shows, and what can be done to it.
type Section struct {
	// Name is its key in the JSON and its heading on the page.
	Name string
	// Report returns how things stand now. It is called for each request.
	Report func() Report
	// Actions are what an operator can do, in the order of the page's buttons. No two
	// sections have one of the same name.
	Actions []Action
}

// Report is how things stand at one moment.
type Report struct {
	Value  any // for the JSON
	Tables []Table
}

// Table is a part of a report on the page.
type Table struct {
	Caption string
	Columns []string
	Rows    []Row
}

// Row is a row of a table.
type Row struct {
	Cells  []string
	Alarm  bool   // it is to be seen at once
	Target string // what the section's actions are done to; empty: there is nothing
}

// Action is something that an operator can do to a target.
type Action struct {
	Name string
	// Do does it for who asked, and returns to how many things it was done. An error is
	// [ErrNoTarget], or says why it cannot be done now.
	Do func(who, target string) (int, error)
}

// ErrNoTarget is returned by an action where there is nothing of that name.
var ErrNoTarget = errors.New("there is no such target")

// Page is a list of sections. The zero value has none.
type Page struct {
	mu       sync.Mutex
	sections []Section
}

// Process is the page of the process, for plugins that know nothing of each other.
//
//nolint:gochecknoglobals // there is one
var Process = new(Page)

// Add adds a section.
func (p *Page) Add(s Section) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sections = append(p.sections, s)
}

func (p *Page) all() []Section {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.sections)
}

// action returns the action of that name, of whatever section.
func (p *Page) action(name string) (Action, bool) {
	for _, s := range p.all() {
		for _, a := range s.Actions {
			if a.Name == name {
				return a, true
			}
		}
	}
	return Action{}, false
}

//go:embed page.html
var pageText string

// pageHTML escapes all that it is given, for where it stands.
//
//nolint:gochecknoglobals // parsed once, and never written to
var pageHTML = template.Must(template.New("page").Parse(pageText))

// shown is what the template gets.
type shown struct {
	Steerable bool
	Sections  []shownSection
}

type shownSection struct {
	Section
	Tables []Table
}

// servePage answers with the page; steerable says that it has buttons.
func (p *Page) servePage(w http.ResponseWriter, steerable bool) {
	data := shown{Steerable: steerable}
	for _, s := range p.all() {
		data.Sections = append(data.Sections, shownSection{s, s.Report().Tables})
	}
	var out bytes.Buffer // so that an error is no half a page
	if err := pageHTML.Execute(&out, data); err != nil {
		http.Error(w, "the page cannot be written", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	out.WriteTo(w) //nolint:errcheck // who asked is gone
}

func (p *Page) serveJSON(w http.ResponseWriter) {
	values := make(map[string]any)
	for _, s := range p.all() {
		values[s.Name] = s.Report().Value
	}
	writeJSON(w, values)
}

func writeJSON(w http.ResponseWriter, value any) {
	out, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		http.Error(w, "the JSON cannot be written", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(append(out, '\n')) //nolint:errcheck // who asked is gone
}

// serveControl does what a POST asks for. Who may ask is settled before.
func (p *Page) serveControl(w http.ResponseWriter, r *http.Request) {
	name, target := r.Form.Get("action"), r.Form.Get("target")
	action, ok := p.action(name)
	if !ok {
		http.Error(w, "there is no such action", http.StatusBadRequest)
		return
	}
	n, err := action.Do(asker(r), target)
	switch {
	case errors.Is(err, ErrNoTarget):
		http.Error(w, err.Error(), http.StatusNotFound)
	case err != nil:
		http.Error(w, err.Error(), http.StatusConflict)
	case strings.Contains(r.Header.Get("Accept"), "text/html"): // a button of the page
		w.Header().Set("Location", "./")
		w.WriteHeader(http.StatusSeeOther)
		io.WriteString(w, "done\n") //nolint:errcheck // who asked is gone
	default:
		writeJSON(w, map[string]int{"done": n})
	}
}

// asker says who asks, for the log.
func asker(r *http.Request) string {
	if r.RemoteAddr == "" || r.RemoteAddr == "@" {
		return "the unix socket"
	}
	return r.RemoteAddr
}
