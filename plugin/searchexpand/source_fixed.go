package searchexpand

import (
	"context"

	"github.com/coredns/coredns/request"
)

// fixed is a domain that the Corefile spells out. It holds that one.
type fixed []string

func parseFixed(arg string) (entry, error) {
	d, err := parseDomain(arg)
	if err != nil {
		return entry{}, err
	}
	return fixedEntry(d), nil
}

// fixedEntry returns the entry for a domain, lower case and fully qualified.
func fixedEntry(domain string) entry { return entry{text: domain, shared: true, source: fixed{domain}} }

func (f fixed) domains(context.Context, request.Request) []string { return f }

func (f fixed) firstWithin() string { return f[0] }
