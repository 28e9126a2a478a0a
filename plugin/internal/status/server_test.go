package status

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestParseAddress(t *testing.T) {
	for name, tc := range map[string]struct {
		text    string
		want    string // as it is written then
		private bool
		err     string
	}{
		"loopback":                {text: "127.0.0.1:8053", want: "127.0.0.1:8053", private: true},
		"another of loopback's":   {text: "127.1.2.3:1", want: "127.1.2.3:1", private: true},
		"loopback, IPv6":          {text: "[::1]:8053", want: "[::1]:8053", private: true},
		"loopback, IPv4 in IPv6":  {text: "[::ffff:127.0.0.1]:8053", want: "[::ffff:127.0.0.1]:8053", private: true},
		"all addresses":           {text: "0.0.0.0:8053", want: "0.0.0.0:8053"},
		"all addresses, IPv6":     {text: "[::]:8053", want: "[::]:8053"},
		"a link-local one":        {text: "[fe80::1%eth0]:8053", want: "[fe80::1%eth0]:8053"},
		"a unix socket":           {text: "unix:/run/coredns/status", want: "unix:/run/coredns/status", private: true},
		"one with a winding path": {text: "unix:/run//coredns/../status", want: "unix:/run/status", private: true},
		"a relative path":         {text: "unix:status", err: "no absolute path"},
		"no path":                 {text: "unix:", err: "no absolute path"},
		"a port alone":            {text: ":8053", err: "neither IP:PORT nor unix:PATH"},
		"no port":                 {text: "127.0.0.1", err: "neither IP:PORT nor unix:PATH"},
		"a name":                  {text: "localhost:8053", err: "neither IP:PORT nor unix:PATH"},
		"port 0":                  {text: "127.0.0.1:0", err: "port 0 is less than 1"},
		"a port that is none":     {text: "127.0.0.1:65536", err: "neither IP:PORT nor unix:PATH"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseAddress(tc.text)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v, want %q", err, tc.err)
				}
				return
			}
			if err != nil || got.String() != tc.want || got.Private() != tc.private {
				t.Errorf("%s, private %v, error %v, want %s, %v", got, got.Private(), err, tc.want, tc.private)
			}
		})
	}
}

func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "s") //nolint:usetesting // the path of a socket is short, its are not
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "status")
}

func listen(t *testing.T, addr string) (*Server, error) {
	t.Helper()
	parsed, err := ParseAddress(addr)
	if err != nil {
		t.Fatal(err)
	}
	page, _ := newTestPage(Report{})
	s, err := Listen(parsed, page, "")
	if err == nil {
		t.Cleanup(s.Close)
	}
	return s, err
}

// get asks the server at a unix socket.
func get(path string) (int, error) {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	reply, err := (&http.Client{Transport: transport}).Get("http://localhost/status.json")
	if err != nil {
		return 0, err
	}
	defer reply.Body.Close()
	_, err = io.Copy(io.Discard, reply.Body)
	return reply.StatusCode, err
}

func TestAUnixSocketIsForItsOwnerOnly(t *testing.T) {
	path := socketPath(t)
	s, err := listen(t, "unix:"+path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, error %v", info.Mode(), err)
	}
	if code, err := get(path); code != 200 {
		t.Errorf("status %d, error %v", code, err)
	}
	if _, err := listen(t, "unix:"+path); err == nil || !strings.Contains(err.Error(), "somebody listens there") {
		t.Errorf("a second one: error %v", err)
	}
	if code, err := get(path); code != 200 {
		t.Errorf("after it the first answers with status %d, error %v", code, err)
	}
	s.Close()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after its end the socket is there: %v", err)
	}
}

func TestASocketThatWasLeftOverIsReplacedAndNothingElse(t *testing.T) {
	for name, tc := range map[string]struct {
		lay func(path string) error
		err string
	}{
		"of a process that was killed": {func(path string) error {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
			if err != nil {
				return err
			}
			l.SetUnlinkOnClose(false)
			return l.Close()
		}, ""},
		"a file":               {func(path string) error { return os.WriteFile(path, nil, 0o600) }, "no socket"},
		"a directory":          {func(path string) error { return os.Mkdir(path, 0o700) }, "no socket"},
		"a link":               {func(path string) error { return os.Symlink("/nowhere", path) }, "no socket"},
		"no directory for one": {func(path string) error { return os.Remove(filepath.Dir(path)) }, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			path := socketPath(t)
			if err := tc.lay(path); err != nil {
				t.Fatal(err)
			}
			_, err := listen(t, "unix:"+path)
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("error %v, want %q", err, tc.err)
			}
		})
	}
}

func TestWhatIsClosedCanBeOpenedAgainAtOnce(t *testing.T) {
	path := socketPath(t)
	for range 100 {
		s, err := listen(t, "unix:"+path)
		if err != nil {
			t.Fatal(err)
		}
		s.Close() // before it has begun, maybe
	}
}

func TestABusyPortIsAnError(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := listen(t, l.Addr().String()); err == nil {
		t.Error("two listen at one place")
	}
}

// pipes is a listener in a bubble.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { close(p.done); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{} }

// connect returns the client's end of a connection, or nil if nobody accepts it.
func (p *pipes) connect() net.Conn {
	client, server := net.Pipe()
	synctest.Wait()
	select {
	case p.conns <- server:
		return client
	default:
		return nil
	}
}

// inBubble runs f beside a server.
func inBubble(t *testing.T, f func(t *testing.T, p *pipes)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		page, _ := newTestPage(Report{})
		s, p := newTestServer(page, true, ""), newPipes()
		s.serve(p)
		f(t, p)
		s.Close()
		time.Sleep(time.Second) // a server takes its time to hang up
	})
}

func TestNoMoreConnectAtOnceThanTheLimit(t *testing.T) {
	inBubble(t, func(t *testing.T, p *pipes) {
		conns := make([]net.Conn, maxConnections)
		for i := range conns {
			if conns[i] = p.connect(); conns[i] == nil {
				t.Fatalf("connection %d is not accepted", i)
			}
		}
		if p.connect() != nil {
			t.Fatal("one too many is accepted")
		}
		conns[7].Close()
		if next := p.connect(); next == nil {
			t.Error("after the end of one the next is not accepted")
		} else {
			next.Close()
		}
		for _, c := range conns {
			c.Close()
		}
	})
}

func TestNobodyHoldsAConnectionForLong(t *testing.T) {
	const get = "GET /status.json HTTP/1.1\r\nHost: localhost\r\n"
	for name, tc := range map[string]struct {
		send string
		want time.Duration
	}{
		"who says nothing":             {"", headerTimeout},
		"who stops within the headers": {get, headerTimeout},
		"who asks no more":             {get + "\r\n", idleTimeout},
		"who stops within the body":    {"POST /status.json HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nx", requestTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, p *pipes) {
				conn, began := p.connect(), time.Now()
				defer conn.Close()
				go io.WriteString(conn, tc.send)
				io.Copy(io.Discard, conn)
				if took := time.Since(began); took > tc.want+time.Second || took == 0 {
					t.Errorf("the connection is closed after %v, want %v", took, tc.want)
				}
			})
		})
	}
}

func TestHeadersHaveALimit(t *testing.T) {
	for name, tc := range map[string]struct{ octets, want int }{
		"within": {maxHeader - 1024, 200},
		"beyond": {maxHeader + 8<<10, 431},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, p *pipes) {
				conn := p.connect()
				defer conn.Close()
				go io.WriteString(conn, "GET /status.json HTTP/1.1\r\nHost: localhost\r\nX: "+strings.Repeat("x", tc.octets)+"\r\n\r\n")
				reply, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil || reply.StatusCode != tc.want {
					t.Fatalf("%v, error %v, want status %d", reply, err, tc.want)
				}
				reply.Body.Close()
			})
		})
	}
}
