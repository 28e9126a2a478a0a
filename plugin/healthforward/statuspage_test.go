package healthforward

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"steadfast.internal/plugin/healthforward/internal/transport"
)

// pageAt asks a page at a unix socket over one connection.
type pageAt struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

func dialPage(t *testing.T, path string) *pageAt {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &pageAt{t, conn, bufio.NewReader(conn)}
}

// do returns the status of the answer, 0 if there is none.
func (p *pageAt) do(method, target, token string) int {
	p.t.Helper()
	r, err := http.NewRequestWithContext(context.Background(), method, "http://localhost"+target, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	if err := r.Write(p.conn); err != nil {
		return 0
	}
	reply, err := http.ReadResponse(p.in, r)
	if err != nil {
		return 0
	}
	var all any
	if json.NewDecoder(reply.Body).Decode(&all); reply.StatusCode == 200 && all == nil {
		p.t.Errorf("%s %s: no JSON", method, target)
	}
	reply.Body.Close()
	return reply.StatusCode
}

// withPage loads a generation whose stanza has a page.
func withPage(t *testing.T, r *registry, path, token string) *generation {
	t.Helper()
	g := load(t, r, block(strings.TrimSpace("status unix:"+path+" "+token)))
	if err := g.wantPage(g.forwarders[0].Status); err != nil {
		t.Fatal(err)
	}
	return g
}

func TestAReloadKeepsThePageAndItsConnections(t *testing.T) {
	const tokenA, tokenB = "a-token-of-enough-characters", "b-token-of-enough-characters"
	fileA, fileB := tokenFile(t, tokenA), tokenFile(t, tokenB)
	dir := shortDir(t)
	path := filepath.Join(dir, "status")
	r := newRegistry(transport.New)
	whole := t // what is live outlives a subtest
	old := live(whole, withPage(t, r, path, fileA))
	page := dialPage(t, path)
	const look, drain = "/status.json", "/control?action=drain&target=192.0.2.1:53"
	if got := page.do("GET", look, ""); got != 200 {
		t.Fatalf("status %d", got)
	}

	t.Run("the same address, another token", func(t *testing.T) {
		old.mark()
		next := live(whole, withPage(t, r, path, fileB))
		old.shutdown()
		old = next
		if a, b := page.do("POST", drain, tokenA), page.do("POST", drain, tokenB); a != 401 || b != 200 {
			t.Errorf("over the old connection: the old token %d, the new one %d", a, b)
		}
	})
	t.Run("one that fails gives the token back", func(t *testing.T) {
		old.mark()
		if err := withPage(t, r, path, fileA).acquire(); err != nil {
			t.Fatal(err)
		}
		old.keep()
		if a, b := page.do("POST", drain, tokenA), page.do("POST", drain, tokenB); a != 401 || b != 200 {
			t.Errorf("the token of the failed one %d, ours %d", a, b)
		}
	})
	t.Run("a busy address fails, and the old page stays", func(t *testing.T) {
		busy := filepath.Join(dir, "busy")
		l, err := net.Listen("unix", busy)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		old.mark()
		failed := withPage(t, r, busy, "")
		if err := failed.acquire(); err == nil || !strings.Contains(err.Error(), "status: ") || !strings.Contains(err.Error(), busy) {
			t.Errorf("error %v", err)
		}
		old.keep()
		if n, gens := r.counts(); page.do("GET", look, "") != 200 || gens != 1 || n != 2 || len(r.held) != 1 {
			t.Errorf("%d upstreams in %d generations", n, gens)
		}
	})
	t.Run("another address, and the old one is closed", func(t *testing.T) {
		other := filepath.Join(dir, "other")
		old.mark()
		next := live(whole, withPage(t, r, other, ""))
		if page.do("GET", look, "") != 200 {
			t.Error("before the old one is shut down its page is closed")
		}
		old.shutdown()
		old = next
		if got := page.do("GET", look, ""); got != 0 {
			t.Errorf("the old page answers with status %d", got)
		}
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the old socket is there: %v", err)
		}
		page = dialPage(whole, other)
		if a, b := page.do("GET", look, ""), page.do("POST", drain, tokenB); a != 200 || b != 404 {
			t.Errorf("the new page: status %d, and a control where there are none %d", a, b)
		}
	})
	t.Run("none any more", func(t *testing.T) {
		old.mark()
		next := live(whole, load(t, r, block("fall 2")))
		old.shutdown()
		old = next
		if got := page.do("GET", look, ""); got != 0 || len(r.served) != 0 {
			t.Errorf("status %d, %d pages", got, len(r.served))
		}
	})
}

func TestAtTheEndThePageGoesLast(t *testing.T) {
	path := filepath.Join(shortDir(t), "status")
	r := newRegistry(transport.New)
	g := live(t, withPage(t, r, path, ""))
	page := dialPage(t, path)
	g.shutdown() // SIGTERM: not marked
	if got := page.do("GET", "/status.json", ""); got != 200 {
		t.Errorf("in the lameduck time: status %d", got)
	}
	r.end()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) || page.do("GET", "/status.json", "") != 0 {
		t.Errorf("the page is there: %v", err)
	}
}

// shortDir returns a directory with a path that is short enough for a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "s") //nolint:usetesting // its directories have long names
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// TestAGenerationThatIsTakenBackHasItsPage, and its upstreams also where somebody else
// has taken the address meanwhile.
func TestAGenerationThatIsTakenBackHasItsPage(t *testing.T) {
	for name, busy := range map[string]bool{"the address is free": false, "somebody else has it": true} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(shortDir(t), "status")
			r := newRegistry(transport.New)
			old := live(t, load(t, r, block("fall 2")))
			old.mark()
			next := live(t, withPage(t, r, path, ""))
			old.keep() // another plugin's shutdown failed: next serves all the same
			if len(r.served) != 0 {
				t.Fatal("the page of one that is taken for dead is there")
			}
			if busy {
				l, err := net.Listen("unix", path)
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
			}
			next.ensure()
			if _, gens := r.counts(); gens != 2 {
				t.Errorf("%d generations, want 2", gens)
			}
			if served := len(r.served) == 1; served == busy {
				t.Errorf("the page is served: %v", served)
			}
			if !busy {
				if got := dialPage(t, path).do("GET", "/status.json", ""); got != 200 {
					t.Errorf("status %d", got)
				}
			}
		})
	}
}
