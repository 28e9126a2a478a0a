package searchexpand

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/coredns/coredns/request"

	"steadfast.internal/plugin/internal/resolvconf"
)

// fromFile is the search list of a file in the format of resolv.conf(5), which is
// followed while it changes.
type fromFile struct {
	path string
	file *followedFile // set when it starts
}

// parseFile reads the path of a file. One that is missing is no error, since what writes
// it may start later; a relative path that leads nowhere is a slip of the pen.
func parseFile(arg string) (entry, error) {
	if !filepath.IsAbs(arg) {
		if _, err := resolvconf.Read(arg); err != nil {
			return entry{}, fmt.Errorf("%q is no domain name, and as a file: %w", arg, err)
		}
	}
	return entry{text: arg, shared: true, source: &fromFile{path: arg}}, nil
}

func (f *fromFile) domains(context.Context, request.Request) []string {
	return f.file.now.Load().domains
}

// ndots returns what the file says of when a name is complete.
func (f *fromFile) ndots() int { return f.file.now.Load().ndots }

// firstWithin returns root, since any domain may be the first tomorrow.
func (f *fromFile) firstWithin() string { return root }

//nolint:unparam // it is a starter, and these can fail
func (f *fromFile) start(on start) error {
	f.file = files.use(on.load, f.path)
	return nil
}
