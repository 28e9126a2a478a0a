package healthforward

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"steadfast.internal/plugin/internal/resolvconf"

	"github.com/miekg/dns"
)

const hostFile = "/etc/resolv.conf"

func TestAFileLeadsToItsNameservers(t *testing.T) {
	for content, tc := range map[string]struct {
		want    []string
		problem error
	}{
		"# comment\nnameserver 192.0.2.53\nnameserver fe80::1%lo\nnameserver 192.0.2.53\noptions timeout:1\n": {want: []string{"192.0.2.53", "fe80::1%lo"}},
		"nameserver 192.0.2.53\nnameserver dns.example.org\n":                                                 {want: []string{"192.0.2.53"}},
		"nameserver 192.0.2.53":                    {want: []string{"192.0.2.53"}},
		"nameserver 192.0.2.53\nnameserver 192.0.": {want: []string{"192.0.2.53"}, problem: errTorn},
		"search example.org\n":                     {problem: errNoNameserver},
		"nameserver dns.example.org\n":             {problem: errNoNameserver},
		"":                                         {problem: errNoNameserver},
	} {
		addrs, err := nameservers(resolvconf.Parse([]byte(content)))
		var got []string
		for _, addr := range addrs {
			got = append(got, addr.String())
		}
		if !slices.Equal(got, tc.want) || !errors.Is(err, tc.problem) {
			t.Errorf("%q leads to %q, %v; want %q, %v", content, got, err, tc.want, tc.problem)
		}
	}
}

func TestWhatIsNoGoodSetKeepsTheLastOneAndIsSaidOnce(t *testing.T) {
	for name, bad := range map[string]content{
		"emptied":           {text: ""},
		"comments only":     {text: "# nobody\n"},
		"torn":              {text: "nameserver 192.0.2.3\nnameserver 198.51.1"},
		"without an IP":     {text: "nameserver dns.example.org\n"},
		"deleted":           {err: fmt.Errorf("open %s: %w", hostFile, fs.ErrNotExist)},
		"unreadable":        {err: fmt.Errorf("open %s: %w", hostFile, fs.ErrPermission)},
		"a directory":       {err: errors.New("read /etc/resolv.conf: it is a directory")},
		"ourselves and all": {text: "nameserver 127.0.0.1\n"},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.registry.listeners = []netip.AddrPort{netip.MustParseAddrPort("[::]:53")}
				w.write(hostFile, "", "192.0.2.1", "192.0.2.2")
				f := w.start(t, "healthforward . "+hostFile)
				before := *f.groups.Load()
				for range 2 {
					w.logged("")
					w.put(hostFile, bad)
					time.Sleep(time.Minute)
					if lines := w.logged("WARNING"); len(lines) != 1 || !strings.Contains(lines[0], hostFile) || !strings.Contains(lines[0], "192.0.2.1 192.0.2.2") {
						t.Errorf("log = %q, want one warning with what stays", lines)
					}
					if addr, _ := resolve(t, f, "example.org."); addr == "" || f.groupFor(protoUDP) != before[protoUDP] {
						t.Errorf("answered by %q; the upstreams are %s", addr, ups(f))
					}
					w.write(hostFile, "", "192.0.2.1", "192.0.2.2") // well again, and the same
					time.Sleep(time.Second)
				}
				w.write(hostFile, "", "192.0.2.4")
				time.Sleep(time.Second)
				if got := ups(f); got != "192.0.2.4" {
					t.Errorf("a second after a good set the upstreams are %s", got)
				}
			})
		})
	}
}

// TestARealFileIsFollowed is the same with the kernel: what a process may find at a
// path, and the renames by which others change it.
func TestARealFileIsFollowed(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "resolv.conf")
	rename := func(text string) {
		next := path + ".new"
		if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, path); err != nil {
			t.Fatal(err)
		}
	}
	rename("nameserver 127.0.0.98\n")
	f := start(t, "healthforward . %s", path)
	trouble := func() string {
		f.registry.mu.Lock()
		defer f.registry.mu.Unlock()
		return f.sources[0].trouble
	}
	for _, bad := range []struct {
		what string
		make func() error
	}{
		{"no nameserver", func() error { return os.Truncate(path, 0) }},
		{"a directory", func() error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) }},
		{"a FIFO", func() error { return errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)) }},
		{"no such file", func() error { return os.Remove(path) }},
	} {
		if err := bad.make(); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "it is noticed that there is "+bad.what, func() bool { return strings.Contains(trouble(), bad.what) })
		if got := ups(f); got != "127.0.0.98" {
			t.Errorf("%s: the upstreams are %s", bad.what, got)
		}
	}
	rename("nameserver 127.0.0.99\n")
	waitFor(t, "the new set is in force", func() bool { return ups(f) == "127.0.0.99" })
}

func TestAStartWithoutUpstreamsIsAStart(t *testing.T) {
	for name, tc := range map[string]struct {
		to      string
		appears func(w *world)
		within  time.Duration
	}{
		"a file that is missing":   {hostFile, func(w *world) { w.write(hostFile, "", "192.0.2.1") }, 500*ms + 3*ms},
		"a name that nobody knows": {"dns.example.org", func(w *world) { w.knows("dns.example.org", known{addrs: "192.0.2.1", ttl: time.Minute}) }, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				f := w.start(t, "healthforward . "+tc.to)
				if lines := w.logged("WARNING"); len(lines) != 1 || !strings.Contains(lines[0], tc.to) {
					t.Errorf("log = %q, want one warning", lines)
				}
				for range 20 {
					if reply, rcode, err := ask(t, f, question("example.org.", dns.TypeA)); reply != nil || rcode != dns.RcodeServerFailure || err != nil {
						t.Errorf("without an upstream: wrote %v, ServeDNS = %d, %v", reply, rcode, err)
					}
					time.Sleep(31 * time.Second)
				}
				if lines := slices.DeleteFunc(w.logged("WARNING"), func(l string) bool { return !strings.Contains(l, tc.to) }); len(lines) != 0 {
					t.Errorf("said again: %q", lines)
				}
				appeared := time.Now()
				tc.appears(w)
				for addr := ""; addr == ""; time.Sleep(ms) {
					if addr, _ = resolve(t, f, "example.org."); time.Since(appeared) > tc.within {
						t.Fatalf("no answer %v after it is there", time.Since(appeared))
					}
				}
			})
		})
	}
}

func TestManyStanzasFollowOneSource(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.knows("dns.example.org", known{addrs: "192.0.2.1", ttl: 10 * time.Second})
		w.write(hostFile, "", "192.0.2.2")
		w.start(t, strings.Repeat("healthforward . dns.example.org "+hostFile+" {\n backup "+hostFile+" dns.example.org:53\n}\n", 5)+
			"healthforward . dns.example.org {\n resolver 192.0.2.53\n}")
		if n := len(w.registry.sources); n != 3 {
			t.Errorf("%d sources, want one for the file and two for the name, which others are asked for too", n)
		}
		time.Sleep(60 * time.Second)
		if n := w.lookedUp(); n != 2*7 {
			t.Errorf("%d look-ups, want two of each 10s", n)
		}
	})
}

func TestAHostNameIsLookedUpAgain(t *testing.T) {
	const host = "dns.example.org"
	for name, tc := range map[string]struct {
		first known
		then  known
		want  []time.Duration // when it's looked up, since the start
	}{
		"when its TTL is over":            {known{addrs: "192.0.2.1", ttl: 7 * time.Second}, known{addrs: "192.0.2.1", ttl: 20 * time.Second}, seconds(0, 7, 27, 47)},
		"not sooner than 5s":              {known{addrs: "192.0.2.1", ttl: time.Second}, known{addrs: "192.0.2.1"}, seconds(0, 5, 10, 15)},
		"not later than 1h":               {known{addrs: "192.0.2.1", ttl: 48 * time.Hour}, known{addrs: "192.0.2.1", ttl: time.Hour}, seconds(0, 3600, 7200)},
		"each second while it is unknown": {known{err: errNoSuchHost}, known{err: errNoSuchHost}, seconds(0, 1, 2, 3, 4, 5, 6, 7, 8)},
		"more and more rarely later":      {known{addrs: "192.0.2.1", ttl: 10 * time.Second}, known{err: errNoSuchHost}, seconds(0, 10, 11, 13, 17, 25, 41, 71, 101)},
		"each 3s while nobody answers":    {known{after: time.Hour}, known{after: time.Hour}, seconds(0, 3, 6, 9)},
		"soon where one family is unknown": {
			known{addrs: "192.0.2.1", ttl: time.Minute, err: errNoSuchHost}, known{addrs: "192.0.2.1", ttl: 10 * time.Second}, seconds(0, 1, 11),
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				began := time.Now()
				w.knows(host, tc.first)
				w.start(t, "healthforward . "+host)
				w.knows(host, tc.then)
				time.Sleep(time.Until(began.Add(tc.want[len(tc.want)-1] + ms)))
				w.mu.Lock()
				defer w.mu.Unlock()
				var got []time.Duration
				for _, at := range w.lookups {
					got = append(got, at.Sub(began).Round(ms))
				}
				if !slices.Equal(got, tc.want) {
					t.Errorf("looked up at %v, want %v", got, tc.want)
				}
			})
		})
	}
}

func seconds(ns ...int) []time.Duration {
	all := make([]time.Duration, len(ns))
	for i, n := range ns {
		all[i] = time.Duration(n) * time.Second
	}
	return all
}

func TestAHostNameThatFailsKeepsItsLastAddresses(t *testing.T) {
	const host = "dns.example.org"
	inWorld(t, func(t *testing.T, w *world) {
		w.knows(host, known{addrs: "192.0.2.1 192.0.2.2", ttl: 10 * time.Second})
		f := w.start(t, "healthforward . "+host)
		w.logged("")
		for _, fails := range []known{{err: errNoSuchHost}, {err: errNoSuchHost, addrs: "192.0.2.1"}, {after: time.Hour}} {
			w.knows(host, fails)
			time.Sleep(2 * time.Minute)
			if got := ups(f); got != "192.0.2.1 192.0.2.2" {
				t.Errorf("%+v: the upstreams are %s", fails, got)
			}
		}
		if lines := w.logged("resolve " + host); len(lines) != 2 {
			t.Errorf("log = %q, want one line for each reason", lines)
		}
		w.knows(host, known{addrs: "192.0.2.2", ttl: 10 * time.Second})
		time.Sleep(retryMax + lookupTimeout)
		if got := ups(f); got != "192.0.2.2" {
			t.Errorf("resolved again: the upstreams are %s", got)
		}
	})
}

func TestAReleasedSourceIsFollowedNoMore(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.knows("dns.example.org", known{addrs: "192.0.2.1", ttl: 10 * time.Second})
		g := load(t, w.registry, "healthforward . dns.example.org "+hostFile)
		if err := g.acquire(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		replace(g)
		n := w.lookedUp()
		time.Sleep(time.Minute)
		if w.lookedUp() != n || len(w.registry.sources) != 0 || len(w.registry.checks) != 0 || len(w.registry.held) != 0 {
			t.Errorf("%d look-ups after its end; left: %v, %v", w.lookedUp()-n, w.registry.sources, w.registry.checks)
		}
	})
}
