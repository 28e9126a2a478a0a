package transport

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"steadfast.internal/plugin/internal/dnsfake"

	"github.com/miekg/dns"
	"github.com/quic-go/quic-go"
)

// authority is a throw-away certificate authority.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// trusted is the authority that clients of these tests trust.
var trusted = sync.OnceValue(newAuthority)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func newAuthority() *authority {
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "throw-away"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	der := must(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))
	return &authority{must(x509.ParseCertificate(der)), key}
}

// issue returns a certificate for 127.0.0.1, ::1 and dns.example, changed by change.
func (a *authority) issue(change func(*x509.Certificate)) tls.Certificate {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		DNSNames:     []string{"dns.example"},
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if change != nil {
		change(template)
	}
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	der := must(x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

var goodCertificate = sync.OnceValue(func() tls.Certificate { return trusted().issue(nil) })

// trusting are options of a client that trusts trusted.
func trusting() Options {
	roots := x509.NewCertPool()
	roots.AddCert(trusted().cert)
	return Options{TLS: &tls.Config{RootCAs: roots}}
}

// server is one upstream over one network.
type server struct {
	network string
	ip      string // "" for 127.0.0.1
	addr    string
	tls     *tls.Config

	handshakes, resumed atomic.Int32 // of TLS

	gone     chan struct{} // closed when it stops
	stop     func()
	stopOnce sync.Once
}

// serve starts a server that answers by handler until the test ends.
func serve(tb testing.TB, network string, handler dnsfake.Handler) *server {
	return serveAs(tb, network, handler, goodCertificate(), nil)
}

// serveAs is serve with a certificate, and with TLS changed by change.
func serveAs(tb testing.TB, network string, handler dnsfake.Handler, cert tls.Certificate, change func(*tls.Config)) *server {
	tb.Helper()
	s := &server{network: network}
	s.start(tb, handler, cert, change)
	return s
}

func (s *server) start(tb testing.TB, handler dnsfake.Handler, cert tls.Certificate, change func(*tls.Config)) {
	tb.Helper()
	s.gone = make(chan struct{})
	s.tls = &tls.Config{
		Certificates: []tls.Certificate{cert},
		VerifyConnection: func(state tls.ConnectionState) error {
			s.handshakes.Add(1)
			if state.DidResume {
				s.resumed.Add(1)
			}
			return nil
		},
	}
	if change != nil {
		change(s.tls)
	}
	switch s.network {
	case "udp", "tcp":
		up := dnsfake.NewAt(tb, s.host(), handler)
		s.addr, s.stop = up.Addr(), up.Stop
	case "tls":
		s.serveTLS(handler)
	case "https":
		s.serveHTTPS(dohHandler(s, handler))
	case "quic":
		s.serveQUIC(func(conn *quic.Conn, stream *quic.Stream) { answerQUIC(s, handler, conn, stream) })
	}
	tb.Cleanup(s.Stop)
}

func (s *server) Stop() { s.stopOnce.Do(func() { close(s.gone); s.stop() }) }

func (s *server) host() string { return cmp.Or(s.ip, "127.0.0.1") }

// listen opens a port of the host, and sets the address.
func (s *server) listen() net.Listener {
	l := must(net.Listen("tcp", net.JoinHostPort(s.host(), "0")))
	s.addr = l.Addr().String()
	return l
}

// reply is what handler says to m, after its delay; nil for silence.
func (s *server) reply(handler dnsfake.Handler, m *dns.Msg, from net.Addr) *dns.Msg {
	response := handler(dnsfake.Request{Msg: m, Proto: s.network, From: from})
	if response.Delay > 0 {
		timer := time.NewTimer(response.Delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-s.gone:
			return nil
		}
	}
	return response.Msg
}

func (s *server) serveTLS(handler dnsfake.Handler) {
	srv := &dns.Server{
		Listener: tls.NewListener(s.listen(), s.tls),
		Handler: dns.HandlerFunc(func(w dns.ResponseWriter, m *dns.Msg) {
			if reply := s.reply(handler, m, w.RemoteAddr()); reply != nil {
				w.WriteMsg(reply)
			}
		}),
	}
	started := make(chan struct{})
	srv.NotifyStartedFunc = func() { close(started) }
	go srv.ActivateAndServe()
	<-started
	s.stop = func() { srv.Shutdown() }
}

func (s *server) serveHTTPS(handler http.HandlerFunc) {
	srv := &http.Server{TLSConfig: s.tls, Handler: handler, ErrorLog: quiet}
	if len(s.tls.NextProtos) > 0 && s.tls.NextProtos[0] == "http/1.1" {
		srv.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){}
	}
	l := s.listen()
	var wg sync.WaitGroup
	wg.Go(func() { srv.ServeTLS(l, "", "") })
	s.stop = func() { srv.Close(); wg.Wait() }
}

// dohHandler answers as RFC 8484 says, and refuses what does not ask so.
func dohHandler(s *server, handler dnsfake.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var packet []byte
		var err error
		switch {
		case r.URL.Path != "/dns-query" || r.Header.Get("Accept") != dohType:
			err = fmt.Errorf("request %v", r)
		case r.Method == http.MethodGet:
			packet, err = base64.RawURLEncoding.DecodeString(r.URL.Query().Get("dns"))
		case r.Header.Get("Content-Type") == dohType:
			packet, err = io.ReadAll(r.Body)
		}
		m := new(dns.Msg)
		if err != nil || m.Unpack(packet) != nil || m.Id != 0 {
			http.Error(w, "bad request", http.StatusBadRequest)
			return
		}
		from := must(net.ResolveTCPAddr("tcp", r.RemoteAddr))
		reply := s.reply(handler, m, from)
		if reply == nil {
			select {
			case <-r.Context().Done():
			case <-s.gone:
			}
			return
		}
		w.Header().Set("Content-Type", dohType+"; charset=binary")
		w.Write(pack(reply))
	}
}

func (s *server) serveQUIC(handle func(*quic.Conn, *quic.Stream)) {
	config := s.tls.Clone()
	config.NextProtos = []string{"doq"}
	l := must(quic.ListenAddr(net.JoinHostPort(s.host(), "0"), config, nil))
	s.addr = l.Addr().String()
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept(context.Background())
			if err != nil {
				return
			}
			wg.Go(func() {
				stop := make(chan struct{})
				defer close(stop)
				wg.Go(func() {
					select {
					case <-s.gone:
						conn.CloseWithError(0, "")
					case <-stop:
					}
				})
				for {
					stream, err := conn.AcceptStream(context.Background())
					if err != nil {
						return
					}
					wg.Go(func() { handle(conn, stream) })
				}
			})
		}
	})
	s.stop = func() { l.Close(); wg.Wait() }
}

// readQUIC returns the query on the stream, which must be one, with the ID 0, and
// the end; nil if it is not.
func readQUIC(stream *quic.Stream) *dns.Msg {
	all, err := io.ReadAll(stream)
	m := new(dns.Msg)
	if err != nil || len(all) < 2 || int(binary.BigEndian.Uint16(all)) != len(all)-2 || m.Unpack(all[2:]) != nil || m.Id != 0 {
		return nil
	}
	return m
}

func answerQUIC(s *server, handler dnsfake.Handler, conn *quic.Conn, stream *quic.Stream) {
	m := readQUIC(stream)
	if m == nil {
		stream.CancelWrite(2)
		return
	}
	if reply := s.reply(handler, m, conn.RemoteAddr()); reply != nil {
		stream.Write(framed(reply))
		stream.Close()
	}
}

// framed packs m with its length in front.
func framed(m *dns.Msg) []byte {
	packet := pack(m)
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(packet))), packet...)
}

// tcpServer serves each connection, by its number, with handle.
func tcpServer(t testing.TB, handle func(n int, c net.Conn)) string {
	t.Helper()
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { defer c.Close(); handle(n, c) })
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String()
}
