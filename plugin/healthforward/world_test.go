package healthforward

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"steadfast.internal/plugin/healthforward/internal/transport"
	"steadfast.internal/plugin/internal/resolvconf"

	clog "github.com/coredns/coredns/plugin/pkg/log"
)

// polled follows a real file in a bubble, where nothing may wait for the kernel.
func polled(ctx context.Context, path string, content []byte, _ error, changed func([]byte, error)) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if now, err := resolvconf.Read(path); !bytes.Equal(now, content) {
			content = now
			changed(now, err)
		}
	}
}

// world is what is outside, in a bubble: files, names, addresses, and a model behind
// each address.
type world struct {
	registry *registry

	mu      sync.Mutex
	files   map[string]content
	news    chan struct{} // closed with each change of a file
	names   map[string]known
	lookups []time.Time
	local   []netip.Addr
	models  map[string]*model // by IP
	lines   bytes.Buffer      // of the log
}

// content is that of a file.
type content struct {
	text string
	err  error
}

// known is what resolvers know of a name.
type known struct {
	addrs string // with spaces between
	ttl   time.Duration
	err   error
	after time.Duration
}

// inWorld runs f in a bubble. There is nothing but an empty world.
func inWorld(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			files: make(map[string]content), news: make(chan struct{}),
			names: make(map[string]known), models: make(map[string]*model),
		}
		w.registry = newRegistry(func(_, addr string, _ transport.Options) (transport.Exchanger, error) {
			host, _, err := net.SplitHostPort(addr)
			return w.at(host), err
		})
		w.registry.outside = outside{read: w.read, follow: w.follow, lookup: w.lookup, local: w.addresses}
		clog.SetOutput(w)
		defer clog.Discard()
		f(t, w)
	})
}

// Write implements io.Writer, for the log.
func (w *world) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lines.Write(line)
}

// logged returns the lines with that in them since the last call.
func (w *world) logged(part string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var found []string
	for line := range strings.Lines(w.lines.String()) {
		if strings.Contains(line, part) {
			found = append(found, line)
		}
	}
	w.lines.Reset()
	return found
}

// at returns the model at an IP.
func (w *world) at(ip string) *model {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := w.models[ip]
	if m == nil {
		m = &model{addr: ip, rtt: 2 * ms}
		w.models[ip] = m
	}
	return m
}

// write makes the file hold that, and nameserver lines of the addresses.
func (w *world) write(path, text string, addrs ...string) {
	for _, addr := range addrs {
		text += "nameserver " + addr + "\n"
	}
	w.put(path, content{text: text})
}

func (w *world) put(path string, c content) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.files[path] = c
	close(w.news)
	w.news = make(chan struct{})
}

// knows makes resolvers know that of a name.
func (w *world) knows(name string, k known) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.names[name] = k
}

func (w *world) look(path string) (content, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c, ok := w.files[path]
	if !ok {
		c.err = fmt.Errorf("open %s: %w", path, fs.ErrNotExist)
	}
	return c, w.news
}

func (w *world) read(path string) ([]byte, error) {
	c, _ := w.look(path)
	return []byte(c.text), c.err
}

// follow is as resolvconf.Follow, and tells half a second late.
func (w *world) follow(ctx context.Context, path string, text []byte, err error, changed func([]byte, error)) {
	last := content{string(text), err}
	for {
		c, news := w.look(path)
		if c.text != last.text || fmt.Sprint(c.err) != fmt.Sprint(last.err) {
			last = c
			changed([]byte(c.text), c.err)
		}
		select {
		case <-news:
		case <-ctx.Done():
			return
		}
		time.Sleep(500 * ms)
	}
}

var errNoSuchHost = errors.New("no such host")

func (w *world) lookup(ctx context.Context, host string, _ []string) ([]netip.Addr, time.Duration, error) {
	w.mu.Lock()
	k, ok := w.names[host]
	w.lookups = append(w.lookups, time.Now())
	w.mu.Unlock()
	if !ok {
		return nil, 0, errNoSuchHost
	}
	if k.after > 0 {
		timer := time.NewTimer(k.after)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
	}
	var addrs []netip.Addr
	for word := range strings.FieldsSeq(k.addrs) {
		addrs = append(addrs, netip.MustParseAddr(word))
	}
	return addrs, k.ttl, k.err
}

// lookedUp returns how many look-ups there were.
func (w *world) lookedUp() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.lookups)
}

func (w *world) addresses() []netip.Addr {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]netip.Addr(nil), w.local...)
}

// move gives this host these addresses and no others.
func (w *world) move(addrs ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.local = nil
	for _, addr := range addrs {
		w.local = append(w.local, netip.MustParseAddr(addr))
	}
}

// start starts stanzas and waits until new upstreams have answered their first probes.
func (w *world) start(t *testing.T, stanzas string) *Forwarder {
	t.Helper()
	f := startAll(t, w.registry, stanzas)[0]
	time.Sleep(10 * ms)
	return f
}

// ups returns the addresses of the stanza's upstreams over UDP, by rank.
func ups(f *Forwarder) string {
	g := f.groupFor(protoUDP)
	words := make([]string, len(g.upstreams))
	for _, u := range g.upstreams {
		rank, _, _ := g.Place(u.id)
		words[rank], _, _ = net.SplitHostPort(u.addr)
	}
	return strings.Join(words, " ")
}

// stateOf returns the state of the stanza's upstream at an IP.
func stateOf(f *Forwarder, ip string) string {
	for id, u := range f.groupFor(protoUDP).upstreams {
		if strings.HasPrefix(u.addr, ip+":") {
			return f.registry.pool.State(id).String()
		}
	}
	return "none"
}
