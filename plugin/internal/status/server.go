package status

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	stdlog "log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Limits on who connects. A page is a few hundred kilobytes at most, and made while it
// is asked for, so nobody needs more than this.
const (
	maxConnections = 32
	maxHeader      = 8 << 10 // octets
	maxBody        = 4 << 10 // likewise
	headerTimeout  = 5 * time.Second
	requestTimeout = 10 * time.Second
	idleTimeout    = 30 * time.Second
	dialTimeout    = time.Second
	socketMode     = 0o600 // who may connect to a unix socket: its owner, and root
)

// Address is where a page is served: an IP address and a port, or a unix socket.
type Address struct {
	tcp  netip.AddrPort
	unix string // path
}

// unixPrefix stands in front of the path of a unix socket.
const unixPrefix = "unix:"

// ParseAddress reads IP:PORT or unix:PATH.
func ParseAddress(s string) (Address, error) {
	if path, ok := strings.CutPrefix(s, unixPrefix); ok {
		if !filepath.IsAbs(path) {
			return Address{}, fmt.Errorf("%q is no absolute path", path)
		}
		return Address{unix: filepath.Clean(path)}, nil
	}
	addr, err := netip.ParseAddrPort(s)
	if err != nil {
		return Address{}, fmt.Errorf("%q is neither IP:PORT nor unix:PATH", s)
	}
	if addr.Port() == 0 {
		return Address{}, fmt.Errorf("%s: port 0 is less than 1", s)
	}
	return Address{tcp: addr}, nil
}

// String returns the address as it is written.
func (a Address) String() string {
	if a.unix != "" {
		return unixPrefix + a.unix
	}
	return a.tcp.String()
}

// Private reports whether only users of this host can get there.
func (a Address) Private() bool { return a.unix != "" || a.tcp.Addr().Unmap().IsLoopback() }

// Server serves a page at one address until it is closed.
type Server struct {
	page      *Page
	private   bool
	tokenFile atomic.Pointer[string]
	http      http.Server
	done      chan struct{} // closed when the address is given up
}

// Listen starts to serve the page. An empty tokenFile lets nobody steer.
func Listen(addr Address, page *Page, tokenFile string) (*Server, error) {
	l, err := addr.listen()
	if err != nil {
		return nil, err
	}
	s := &Server{page: page, private: addr.Private()}
	s.Use(tokenFile)
	s.serve(l)
	return s, nil
}

func (s *Server) serve(l net.Listener) {
	s.http = http.Server{
		Handler:           s,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       requestTimeout,
		WriteTimeout:      requestTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		// What strangers send is no news.
		ErrorLog: stdlog.New(io.Discard, "", 0),
	}
	limited := &limitedListener{Listener: l, slots: make(chan struct{}, maxConnections), done: make(chan struct{})}
	s.done = make(chan struct{})
	go func() {
		defer close(s.done)
		s.http.Serve(limited) //nolint:errcheck // it ends when it is closed, and never before
	}()
}

// Use takes another file for that of the token.
func (s *Server) Use(tokenFile string) { s.tokenFile.Store(&tokenFile) }

// Close gives up the address and all connections. It does not wait for requests that are
// being answered: their sections may wait for who closes.
func (s *Server) Close() {
	s.http.Close()
	<-s.done
}

// listen opens the address.
func (a Address) listen() (net.Listener, error) {
	var conf net.ListenConfig
	if a.unix == "" {
		return conf.Listen(context.Background(), "tcp", a.tcp.String())
	}
	if err := a.clear(); err != nil {
		return nil, err
	}
	l, err := conf.Listen(context.Background(), "unix", a.unix)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(a.unix, socketMode); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// clear removes the socket of a process that has ended without doing so. What is no
// socket, and one that somebody listens on, stay.
func (a Address) clear() error {
	info, err := os.Lstat(a.unix)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode()&fs.ModeSocket == 0:
		return fmt.Errorf("%s is there and no socket", a.unix)
	}
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(context.Background(), "unix", a.unix)
	if err == nil {
		conn.Close()
		return fmt.Errorf("%s: somebody listens there", a.unix)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(a.unix)
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
	header.Set("X-Frame-Options", "DENY")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "same-origin") // with none at all a browser's Origin is null
	header.Set("Cache-Control", "no-store")
	who := access{tokenFile: *s.tokenFile.Load(), private: s.private}
	if err := sameSite(r); err != nil {
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	steerable := who.tokenFile != ""
	switch path := r.URL.Path; {
	case path == "/" || path == "/status.json":
		s.look(w, r, who)
	case path == "/control" && steerable:
		s.steer(w, r, who)
	default:
		http.NotFound(w, r)
	}
}

func (s *Server) look(w http.ResponseWriter, r *http.Request, who access) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "only GET and HEAD", http.StatusMethodNotAllowed)
		return
	}
	if err := who.mayLook(r); err != nil {
		refuse(w, err, `Basic realm="status: the token is the password"`)
		return
	}
	if r.URL.Path == "/" {
		s.page.servePage(w, who.tokenFile != "")
	} else {
		s.page.serveJSON(w)
	}
}

func (s *Server) steer(w http.ResponseWriter, r *http.Request, who access) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "only POST", http.StatusMethodNotAllowed)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	if err := r.ParseForm(); err != nil {
		status := http.StatusBadRequest
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			status = http.StatusRequestEntityTooLarge
		}
		http.Error(w, "the form cannot be read", status)
		return
	}
	if err := who.maySteer(r); err != nil {
		refuse(w, err, `Bearer realm="status"`)
		return
	}
	s.page.serveControl(w, r)
}

// refuse answers one that has not shown the token; challenge says how it could.
func refuse(w http.ResponseWriter, err error, challenge string) {
	if errors.Is(err, errNoToken) {
		w.Header().Set("WWW-Authenticate", challenge)
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	http.Error(w, "the token file cannot be used", http.StatusServiceUnavailable)
}

// limitedListener keeps those waiting in the kernel's queue who are too many.
type limitedListener struct {
	net.Listener
	slots chan struct{}
	done  chan struct{}
	once  sync.Once
}

func (l *limitedListener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.done:
		return nil, net.ErrClosed
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &limitedConn{Conn: conn, leave: sync.OnceFunc(func() { <-l.slots })}, nil
}

func (l *limitedListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return l.Listener.Close()
}

// limitedConn gives its place to the next one when it is closed.
type limitedConn struct {
	net.Conn
	leave func()
}

func (c *limitedConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
