package searchexpand

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"steadfast.internal/plugin/internal/resolvconf"
)

// maxFileDomains bounds what a DHCP server can make of a list: an option of its protocol
// has room for more.
const maxFileDomains = 1000

// fileList is what a file in the format of resolv.conf(5) says about searching.
type fileList struct {
	domains []string // as of a source; root where the file has it among others
	ndots   int      // names with as many dots or more are complete; at least 1
}

// followedFile is such a file while stanzas use it.
type followedFile struct {
	path string
	now  atomic.Pointer[fileList] // what it says, or said when it was last good
	why  atomic.Pointer[error]    // why what is there now is not used; nil: it is
	end  context.CancelFunc
	done chan struct{} // closed when nobody follows it any more
}

// load is one load of the Corefile.
type load struct {
	paths  []string // of the files that it uses; guarded by followedFiles.mu
	blocks []servedBlock
}

// followedFiles are those of the process. A file is followed once, whoever uses it, and
// what it said last survives a reload. See DESIGN.md, D29.
type followedFiles struct {
	mu     sync.Mutex
	byPath map[string]*followedFile
	loads  []*load // those that serve or are about to, the oldest first
}

//nolint:gochecknoglobals // what it holds outlives every instance of caddy
var files = followedFiles{byPath: make(map[string]*followedFile)}

// begin says that l is about to serve.
func (fs *followedFiles) begin(l *load) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.loads = append(fs.loads, l)
}

// use returns the file at path, which is followed until l is over.
func (fs *followedFiles) use(l *load, path string) *followedFile {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	l.paths = append(l.paths, path)
	f := fs.byPath[path]
	if f == nil {
		f = follow(path)
		fs.byPath[path] = f
	}
	return f
}

// end says that l is over.
func (fs *followedFiles) end(l *load) {
	fs.keep(func(at, of int) bool { return at != of }, l)
}

// replace says that what was loaded before l is over, whether or not anybody has said
// so: where the shutdown of another plugin fails, caddy skips ours.
func (fs *followedFiles) replace(l *load) {
	fs.keep(func(at, of int) bool { return at >= of }, l)
}

// revive says that what was loaded after l has never served.
func (fs *followedFiles) revive(l *load) {
	fs.keep(func(at, of int) bool { return at <= of }, l)
}

// keep drops the loads that are not kept by their place and that of l, with the files
// that nobody else uses. What these said stays where queries find it.
func (fs *followedFiles) keep(kept func(at, of int) bool, l *load) {
	var unused []*followedFile
	fs.mu.Lock()
	if of := slices.Index(fs.loads, l); of >= 0 {
		var left []*load
		for at, other := range fs.loads {
			if kept(at, of) {
				left = append(left, other)
			}
		}
		fs.loads = left
		for path, f := range fs.byPath {
			if !slices.ContainsFunc(left, func(l *load) bool { return slices.Contains(l.paths, path) }) {
				unused = append(unused, f)
				delete(fs.byPath, path)
			}
		}
	}
	fs.mu.Unlock()
	for _, f := range unused {
		f.end()
		<-f.done
	}
}

// follow reads the file and follows it until it is ended.
func follow(path string) *followedFile {
	f := &followedFile{path: path, done: make(chan struct{})}
	f.now.Store(&fileList{ndots: defaultNdots})
	content, err := resolvconf.Read(path)
	f.learn(content, err)
	var ctx context.Context
	ctx, f.end = context.WithCancel(context.Background())
	go func() {
		defer close(f.done)
		resolvconf.Follow(ctx, path, content, err, f.learn)
	}()
	return f
}

// learn takes what the file says from now on. What does not tell what the list is leaves
// it as it was.
func (f *followedFile) learn(content []byte, err error) {
	l, problems, err := listIn(content, err)
	for _, problem := range problems {
		log.Warningf("search list of %s: %s", f.path, problem)
	}
	was := f.now.Load()
	if err != nil {
		f.why.Store(&err)
		log.Warningf("search list of %s stays %q: %v", f.path, was.domains, err)
		return
	}
	f.why.Store(nil)
	f.now.Store(&l)
	if !slices.Equal(was.domains, l.domains) || was.ndots != l.ndots {
		log.Infof("search list of %s is %q, ndots %d", f.path, l.domains, l.ndots)
	}
}

var (
	errEmptyFile = errors.New("the file says nothing")
	errTornFile  = errors.New("the last line of the file is cut off")
)

// listIn returns what a file says that was read with that result, and which of its
// lines and domains make no sense. A file that says nothing, or is just being written, is
// an error: it does not mean that there are no domains. One without a search line does.
func listIn(content []byte, err error) (l fileList, problems []string, _ error) {
	if err != nil {
		return fileList{}, nil, err
	}
	conf := resolvconf.Parse(content)
	switch {
	case conf.Empty:
		return fileList{}, nil, errEmptyFile
	case conf.Torn:
		return fileList{}, nil, errTornFile
	}
	problems = conf.Skipped
	l.ndots = max(conf.Ndots, defaultNdots) // with less, no name would be completed
	for _, word := range conf.Search {
		domain, err := parseDomain(word)
		switch {
		case err != nil:
			problems = append(problems, err.Error())
		case slices.Contains(l.domains, domain):
		case len(l.domains) == maxFileDomains:
			return l, append(problems, fmt.Sprintf("it has more than %d domains", maxFileDomains)), nil
		default:
			l.domains = append(l.domains, domain)
		}
	}
	if slices.Equal(l.domains, []string{root}) {
		l.domains = nil // by "search ." systemd says that there is no list
	}
	return l, problems, nil
}
