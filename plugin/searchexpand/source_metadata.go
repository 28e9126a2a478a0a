package searchexpand

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/coredns/coredns/plugin/metadata"
	"github.com/coredns/coredns/request"

	"github.com/miekg/dns"
)

// errNoMetadata is a Corefile that lets nobody set the value of a placeholder.
var errNoMetadata = errors.New("needs the metadata plugin in the same server block")

// template is a domain with placeholders for metadata of the query. A value may be
// whatever a client makes it, so it is one label or a part of one and nothing else.
type template struct {
	text   string
	parts  []string // what stands in front of the first label, the label, what stands behind it, and so on
	parent string   // what is fixed at its end
}

// parseTemplate reads a domain such as {kubernetes/client-namespace}.svc.cluster.local.
func parseTemplate(arg string) (entry, error) {
	t := &template{}
	rest := arg
	for {
		literal, after, more := strings.Cut(rest, "{")
		t.parts = append(t.parts, strings.ToLower(literal))
		if !more {
			break
		}
		label, tail, closed := strings.Cut(after, "}")
		if !closed || !metadata.IsLabel(label) || strings.Contains(label, "{") {
			return entry{}, fmt.Errorf("%q has a placeholder that is not like {plugin/label}", arg)
		}
		t.parts = append(t.parts, label)
		rest = tail
	}
	// The values of a client choose in which zone its names are looked for: never one of
	// the first level.
	_, parent, dotted := strings.Cut(t.parts[len(t.parts)-1], ".")
	if !dotted || parent == "" {
		return entry{}, fmt.Errorf("%q ends in a placeholder, want a domain behind it", arg)
	}
	if _, err := t.fill(func(string) string { return "x" }); err != nil {
		return entry{}, fmt.Errorf("%q: %w", arg, err)
	}
	t.parent, t.text = dns.Fqdn(parent), t.spelled()
	return entry{text: t.text, source: t}, nil
}

// spelled returns the template as metrics name it.
func (t *template) spelled() string {
	var b strings.Builder
	for i, part := range t.parts {
		if i%2 == 1 {
			part = "{" + part + "}"
		}
		b.WriteString(part)
	}
	return dns.Fqdn(b.String())
}

// fill returns the domain that the values of the labels make.
func (t *template) fill(value func(label string) string) (string, error) {
	var b strings.Builder
	for i, part := range t.parts {
		if i%2 == 1 {
			label := part
			part = value(label)
			if err := checkLabel(part); err != nil {
				return "", fmt.Errorf("value of {%s}: %w", label, err)
			}
		}
		b.WriteString(part)
	}
	return parseDomain(b.String())
}

func (t *template) domains(ctx context.Context, _ request.Request) []string {
	domain, err := t.fill(func(label string) string {
		if value := metadata.ValueFunc(ctx, label); value != nil {
			return value()
		}
		return ""
	})
	if err != nil {
		log.Debugf("%s: %v", t.text, err)
		return nil
	}
	return []string{domain}
}

func (t *template) firstWithin() string { return t.parent }

func (t *template) start(on start) error {
	if on.plugins("metadata") == nil {
		return fmt.Errorf("%s %w", t.text, errNoMetadata)
	}
	for i := 1; i < len(t.parts); i += 2 {
		name, _, _ := strings.Cut(t.parts[i], "/")
		if on.plugins(name) == nil {
			log.Warningf("%s is left out of every list unless something sets {%s}: the server block has no plugin %s", t.text, t.parts[i], name)
		}
	}
	return nil
}
