package searchexpand

import (
	"context"
	"strings"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/request"
)

// source is where domains of a search list come from. What it has may be another for
// each query.
type source interface {
	// domains returns what the source has now for the client of a query, in order, lower
	// case and fully qualified: nothing if it knows nothing of the client. Nobody changes
	// what is returned.
	domains(ctx context.Context, state request.Request) []string

	// firstWithin returns the smallest zone that is known to hold the first of them, if
	// there is one. It is fixed when the source has started.
	firstWithin() string
}

// starter is a source that needs something of where it is. It starts before any query.
type starter interface {
	start(on start) error
}

// start is where sources start.
type start struct {
	plugins func(name string) plugin.Handler // of the same server block; nil if there is none of that name
	load    *load
}

// entry is what one DOMAIN of the directive stands for.
type entry struct {
	text   string // as metrics name it: as in the Corefile, a domain in lower case and fully qualified
	shared bool   // it is the same for all clients
	source
}

// parseEntry reads a DOMAIN of the directive.
func parseEntry(arg string) (entry, error) {
	switch {
	case strings.HasPrefix(arg, "@"):
		return parseAutoPath(arg)
	case strings.ContainsAny(arg, "{}"):
		return parseTemplate(arg)
	case strings.Contains(arg, "/"):
		return parseFile(arg)
	}
	return parseFixed(arg)
}

// domain is an entry of a client's search list.
type domain struct {
	suffix string // lower case, fully qualified; root is the name as it is
	entry  string // the text of the entry that it comes from, of which there are as many as the Corefile has
	served bool   // its names are a cluster's own, and no wildcard record's
}

// list is a client's search list at the time of a query.
type list struct {
	domains []domain
	first   string // domain of the first entry, by which trigger first goes; empty: that one has none
	key     string // tells the lists of a stanza apart
	known   bool   // it is the only one of the stanza, so that the rules hold its domains
}

// newList puts together what entries have for the client of a query. Those that have
// nothing are left out.
func newList(ctx context.Context, state request.Request, entries []entry) list {
	var l list
	var key strings.Builder
	leading := true
	for _, e := range entries {
		domains := e.domains(ctx, state)
		if len(domains) == 0 {
			suffixCount.WithLabelValues(e.text, eventLeftOut).Inc()
			log.Debugf("%s is left out of the list of a client that it has nothing for", e.text)
		}
		for i, d := range domains {
			if leading && i == 0 && d != root {
				l.first = d
			}
			if !l.has(d) {
				l.domains = append(l.domains, domain{suffix: d, entry: e.text})
				key.WriteString(d)
			}
		}
		leading = leading && e.text == root
	}
	l.key = key.String()
	return l
}

// listOf returns the list that the entries make for every query, if they do.
func listOf(entries []entry) list {
	for _, e := range entries {
		if _, ok := e.source.(fixed); !ok {
			return list{}
		}
	}
	l := newList(context.Background(), request.Request{}, entries)
	l.key, l.known = "", true
	return l
}

// has reports whether the domain is in the list.
func (l list) has(suffix string) bool {
	for _, d := range l.domains {
		if d.suffix == suffix {
			return true
		}
	}
	return false
}

// completes reports whether name is in a domain of the list, and so complete as it is.
func (l list) completes(name string) bool {
	if l.known {
		return false // or the rules would have said so
	}
	for _, d := range l.domains {
		if d.suffix == root {
			continue
		}
		if _, ok := cutZone(name, d.suffix); ok || strings.EqualFold(name, d.suffix) {
			return true
		}
	}
	return false
}
