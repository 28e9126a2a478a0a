package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"steadfast.internal/plugin/internal/dnsfake"

	"github.com/miekg/dns"
)

// serveHTTP starts a server that answers by handler.
func serveHTTP(t testing.TB, handler http.HandlerFunc) *server {
	s := &server{network: "https", gone: make(chan struct{})}
	s.tls = &tls.Config{Certificates: []tls.Certificate{goodCertificate()}}
	s.serveHTTPS(handler)
	t.Cleanup(s.Stop)
	return s
}

// posted returns the query in the request's body.
func posted(r *http.Request) *dns.Msg {
	m := new(dns.Msg)
	if m.Unpack(must(io.ReadAll(r.Body))) != nil {
		panic("no query")
	}
	return m
}

func TestHTTPMethodAndVersion(t *testing.T) {
	for name, tc := range map[string]struct {
		method  string
		version string
		protos  []string
	}{
		"POST by default":  {"", "HTTP/2.0", nil},
		"POST":             {"POST", "HTTP/2.0", nil},
		"GET":              {"GET", "HTTP/2.0", nil},
		"GET, the old way": {"GET", "HTTP/1.1", []string{"http/1.1"}},
		"the old way":      {"", "HTTP/1.1", []string{"http/1.1"}},
	} {
		t.Run(name, func(t *testing.T) {
			var seen atomic.Pointer[http.Request]
			s := &server{network: "https", gone: make(chan struct{})}
			s.tls = &tls.Config{Certificates: []tls.Certificate{goodCertificate()}, NextProtos: tc.protos}
			answer := dohHandler(s, dnsfake.Address("192.0.2.1"))
			s.serveHTTPS(func(w http.ResponseWriter, r *http.Request) { seen.Store(r); answer(w, r) })
			t.Cleanup(s.Stop)
			opts := trusting()
			opts.HTTPMethod = tc.method
			x := newExchanger(t, "https", s.addr, opts)
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(func() { exchange(t, x) })
			}
			wg.Wait()
			r := seen.Load()
			want := tc.method
			if want == "" {
				want = "POST"
			}
			if r.Method != want || r.Proto != tc.version || r.Host != s.addr || r.UserAgent() != "" {
				t.Errorf("asked by %s %s of host %s as %q; want %s %s of %s", r.Method, r.Proto, r.Host, r.UserAgent(), want, tc.version, s.addr)
			}
		})
	}
}

func TestTheHostIsTheServersName(t *testing.T) {
	for name, tc := range map[string]struct{ addr, serverName, want string }{
		"an address":                  {"192.0.2.1:443", "", "192.0.2.1"},
		"an address and a port":       {"192.0.2.1:8443", "", "192.0.2.1:8443"},
		"a name":                      {"192.0.2.1:443", "dns.example", "dns.example"},
		"a name and a port":           {"192.0.2.1:8443", "dns.example", "dns.example:8443"},
		"an IPv6 address":             {"[2001:db8::1]:443", "", "[2001:db8::1]"},
		"an IPv6 address and a port":  {"[2001:db8::1]:8443", "", "[2001:db8::1]:8443"},
		"an IPv6 address with a zone": {"[fe80::1%eth0]:443", "", "[fe80::1]"},
	} {
		t.Run(name, func(t *testing.T) {
			x := newExchanger(t, "https", tc.addr, Options{TLS: &tls.Config{ServerName: tc.serverName}}).(*https)
			r, err := x.request(t.Context(), newQuery(t, "example.org."))
			if err != nil {
				t.Fatal(err)
			}
			if r.URL.Host != tc.want {
				t.Errorf("host %s, want %s", r.URL.Host, tc.want)
			}
		})
	}
}

func TestAnHTTPResponseThatIsNoReplyIsAnError(t *testing.T) {
	good := func(w http.ResponseWriter, r *http.Request, change func(*dns.Msg)) {
		m := new(dns.Msg).SetReply(posted(r))
		change(m)
		w.Write(pack(m))
	}
	for name, tc := range map[string]struct {
		kind   string
		answer func(w http.ResponseWriter, r *http.Request)
	}{
		"another content type": {"text/html", func(w http.ResponseWriter, r *http.Request) { good(w, r, func(*dns.Msg) {}) }},
		"no content type":      {"", func(w http.ResponseWriter, r *http.Request) { good(w, r, func(*dns.Msg) {}) }},
		"garbage":              {dohType, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }},
		"nothing":              {dohType, func(http.ResponseWriter, *http.Request) {}},
		"too much":             {dohType, func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, 70000)) }},
		"another question": {dohType, func(w http.ResponseWriter, r *http.Request) {
			good(w, r, func(m *dns.Msg) { m.Question[0].Name = "x." })
		}},
		"another ID": {dohType, func(w http.ResponseWriter, r *http.Request) { good(w, r, func(m *dns.Msg) { m.Id = 7 }) }},
		"a query":    {dohType, func(w http.ResponseWriter, r *http.Request) { good(w, r, func(m *dns.Msg) { m.Response = false }) }},
		"an end too soon": {dohType, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			w.Write(make([]byte, 50))
			panic(http.ErrAbortHandler)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			up := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header()["Content-Type"] = []string{tc.kind}
				tc.answer(w, r)
			})
			x := newExchanger(t, "https", up.addr, trusting())
			for range 2 {
				if err := ask(t, x); !IsBrokenStream(err) {
					t.Errorf("error = %v, want one of the server's", err)
				}
			}
		})
	}
}

func TestAnHTTPStatusIsAnError(t *testing.T) {
	date := time.Now().Add(20 * time.Second).UTC().Format(http.TimeFormat)
	for name, tc := range map[string]struct {
		status int
		after  string
		want   error
	}{
		"not found":                 {404, "7", StatusError{404}},
		"a redirection":             {302, "", StatusError{302}},
		"no content":                {204, "", StatusError{204}},
		"too many, for 7 s":         {429, "7", BusyError{429, 7 * time.Second}},
		"unavailable, for 7 s":      {503, "7", BusyError{503, 7 * time.Second}},
		"unavailable":               {503, "", BusyError{503, 0}},
		"for too long":              {503, "86400", BusyError{503, time.Minute}},
		"for a minute":              {503, "60", BusyError{503, time.Minute}},
		"for less than nothing":     {503, "-5", BusyError{503, 0}},
		"until a date that is over": {503, "Sun, 06 Nov 1994 08:49:37 GMT", BusyError{503, 0}},
		"nonsense":                  {503, "soon", BusyError{503, 0}},
		"until a date":              {503, date, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int32
			up := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				w.Header().Set("Location", "/dns-query")
				if tc.after != "" {
					w.Header().Set("Retry-After", tc.after)
				}
				w.WriteHeader(tc.status)
			})
			err := ask(t, newExchanger(t, "https", up.addr, trusting()))
			if tc.want == nil {
				if busy, ok := errors.AsType[BusyError](err); !ok || busy.After < time.Second || busy.After > 20*time.Second {
					t.Errorf("error = %v, want to wait for some 20 s", err)
				}
			} else if !errors.Is(err, tc.want) {
				t.Errorf("error = %v, want %v", err, tc.want)
			}
			if n := asked.Load(); n != 1 {
				t.Errorf("asked %d times, want once", n)
			}
		})
	}
}

func TestAnHTTPBodyThatDoesNotEndIsLeftWithTheContext(t *testing.T) {
	began := make(chan struct{})
	up := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", dohType)
		w.Write(make([]byte, 20))
		w.(http.Flusher).Flush()
		close(began)
		<-r.Context().Done() // which is how a cancelled stream is seen
	})
	x := newExchanger(t, "https", up.addr, trusting())
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-began; cancel() }()
	if _, err := x.Exchange(ctx, newQuery(t, "example.org.")); !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v, want the context's", err)
	}
}

func TestProxiesOfTheEnvironmentAreNotUsed(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://192.0.2.1:1")
	up := serve(t, "https", dnsfake.Address("192.0.2.1"))
	exchange(t, newExchanger(t, "https", up.addr, trusting()))
}

func TestAnHTTPConnectionThatTheServerEndsIsReplacedUnseen(t *testing.T) {
	for name, protos := range map[string][]string{"HTTP/2": nil, "HTTP/1.1": {"http/1.1"}} {
		t.Run(name, func(t *testing.T) {
			s := &server{network: "https", gone: make(chan struct{})}
			s.tls = &tls.Config{Certificates: []tls.Certificate{goodCertificate()}, NextProtos: protos}
			answer := dohHandler(s, dnsfake.Address("192.0.2.1"))
			var used sync.Map // connections that have answered
			var ended atomic.Int32
			s.serveHTTPS(func(w http.ResponseWriter, r *http.Request) {
				if _, known := used.LoadOrStore(r.RemoteAddr, true); known {
					if n := ended.Add(1); n%2 == 0 {
						w.Header().Set("Connection", "close") // GOAWAY
					} else {
						panic(http.ErrAbortHandler) // a stream that is reset, or EOF
					}
				}
				answer(w, r)
			})
			t.Cleanup(s.Stop)
			x := newExchanger(t, "https", s.addr, trusting())
			for range 20 {
				exchange(t, x)
			}
			if n := ended.Load(); n < 5 {
				t.Errorf("%d connections were ended, want many", n)
			}
		})
	}
}

// The server speaks just enough HTTP/2.
func TestARequestThatIsRefusedUnreadIsSentAgain(t *testing.T) {
	var refusals atomic.Int32
	addr := tcpServer(t, func(_ int, c net.Conn) {
		secure := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{goodCertificate()}, NextProtos: []string{"h2"}})
		io.ReadFull(secure, make([]byte, len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")))
		secure.Write([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0}) // SETTINGS, none
		for {
			header := make([]byte, 9)
			if _, err := io.ReadFull(secure, header); err != nil {
				return
			}
			size := int(header[0])<<16 | int(header[1])<<8 | int(header[2])
			if _, err := io.CopyN(io.Discard, secure, int64(size)); err != nil {
				return
			}
			if header[3] != 1 { // HEADERS
				continue
			}
			stream := header[5:9]
			if refusals.Add(1) <= 4 {
				reset := append([]byte{0, 0, 4, 3, 0}, stream...) // RST_STREAM
				secure.Write(append(reset, 0, 0, 0, 7))           // REFUSED_STREAM
				continue
			}
			answer := append([]byte{0, 0, 1, 1, 5}, stream...) // HEADERS, and the end
			secure.Write(append(answer, 0x80|13))              // :status 404
		}
	})
	if err := ask(t, newExchanger(t, "https", addr, trusting())); !errors.Is(err, StatusError{404}) {
		t.Errorf("error = %v, want that of the fifth request", err)
	}
	if n := refusals.Load(); n != 5 {
		t.Errorf("%d requests, want 5", n)
	}
}
