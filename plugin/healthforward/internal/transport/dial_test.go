package transport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"steadfast.internal/plugin/internal/dnsfake"
)

// fullListener returns the address of a listener that drops SYNs: its queue is full.
func fullListener(t *testing.T) string {
	t.Helper()
	fd := must(syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0))
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", must(syscall.Getsockname(fd)).(*syscall.SockaddrInet4).Port)
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		var d net.Dialer
		if c, err := d.DialContext(ctx, "tcp", addr); err == nil {
			t.Cleanup(func() { c.Close() })
		}
		cancel()
	}
	return addr
}

func TestNoConnectionInTime(t *testing.T) {
	mute := func(t *testing.T) string { return tcpServer(t, func(_ int, c net.Conn) { io.Copy(io.Discard, c) }) }
	for name, tc := range map[string]struct {
		network string
		addr    func(t *testing.T) string
	}{
		"tcp, SYNs are dropped":       {"tcp", fullListener},
		"tls, SYNs are dropped":       {"tls", fullListener},
		"https, SYNs are dropped":     {"https", fullListener},
		"tls, nobody shakes hands":    {"tls", mute},
		"https, nobody shakes hands":  {"https", mute},
		"quic, everything is dropped": {"quic", func(t *testing.T) string { return muteUDP(t) }},
	} {
		t.Run(name, func(t *testing.T) {
			x := newExchanger(t, tc.network, tc.addr(t), trusting())
			began := time.Now()
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(func() {
					if err := ask(t, x); !errors.Is(err, ErrNoConnection) || errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("error = %v, want %v", err, ErrNoConnection)
					}
				})
			}
			wg.Wait()
			// One time-out, or two where some came after the first, or were late.
			if took := time.Since(began); took < dialTimeout || took > 5*time.Second {
				t.Errorf("gave up after %v", took)
			}
		})
	}
}

// muteUDP returns the address of a socket that nobody reads.
func muteUDP(t *testing.T) string {
	pc := must(net.ListenPacket("udp", "127.0.0.1:0"))
	t.Cleanup(func() { pc.Close() })
	return pc.LocalAddr().String()
}

func TestADialNeverOutlastsTheContext(t *testing.T) {
	for name, network := range map[string]string{"pooled": "tls", "over HTTP": "https"} {
		for _, fresh := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, fresh %v", name, fresh), func(t *testing.T) {
				accepted := make(chan struct{}, 1)
				addr := tcpServer(t, func(_ int, c net.Conn) { accepted <- struct{}{}; io.Copy(io.Discard, c) })
				opts := trusting()
				opts.Fresh = fresh
				x := newExchanger(t, network, addr, opts)
				ctx, cancel := context.WithCancel(t.Context())
				go func() { <-accepted; cancel() }()
				if _, err := x.Exchange(ctx, newQuery(t, "example.org.")); !errors.Is(err, context.Canceled) {
					t.Errorf("error = %v, want the context's", err)
				}
			})
		}
	}
}

// secure are the networks that need a certificate.
var secure = []string{"tls", "https", "quic"}

func TestACertificateThatIsNotToBeTrustedIsRefused(t *testing.T) {
	other := func(c *x509.Certificate) {
		c.IPAddresses, c.DNSNames = []net.IP{{192, 0, 2, 1}}, []string{"other.example"}
	}
	expired := func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }
	for name, tc := range map[string]struct {
		cert       tls.Certificate
		serverName string
		refused    bool
	}{
		"good for the address":  {trusted().issue(nil), "", false},
		"good for the name":     {trusted().issue(nil), "dns.example", false},
		"of another address":    {trusted().issue(other), "", true},
		"of another name":       {trusted().issue(nil), "other.example", true},
		"expired":               {trusted().issue(expired), "", true},
		"of an unknown CA":      {newAuthority().issue(nil), "", true},
		"of an unknown CA, too": {newAuthority().issue(nil), "dns.example", true},
	} {
		for _, network := range secure {
			t.Run(network+", "+name, func(t *testing.T) {
				var asked atomic.Int32
				up := serveAs(t, network, func(r dnsfake.Request) dnsfake.Response {
					asked.Add(1)
					return dnsfake.Address("192.0.2.1")(r)
				}, tc.cert, nil)
				opts := trusting()
				opts.TLS.ServerName = tc.serverName
				for _, fresh := range []bool{false, true} {
					opts.Fresh = fresh
					x := newExchanger(t, network, up.addr, opts)
					if !tc.refused {
						exchange(t, x)
						continue
					}
					if err := ask(t, x); !errors.Is(err, ErrHandshake) || !IsBrokenStream(err) {
						t.Errorf("error = %v, want %v", err, ErrHandshake)
					}
					if asked.Load() > 0 {
						t.Error("the query was sent")
					}
				}
				if opts.TLS.ServerName != tc.serverName || opts.TLS.NextProtos != nil {
					t.Error("the configuration was changed")
				}
			})
		}
	}
}

func TestOldVersionsOfTLSAreRefused(t *testing.T) {
	up := serveAs(t, "tls", dnsfake.Silence, goodCertificate(), func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 })
	opts := trusting()
	opts.TLS.MinVersion = tls.VersionTLS10
	if err := ask(t, newExchanger(t, "tls", up.addr, opts)); !errors.Is(err, ErrHandshake) {
		t.Errorf("error = %v, want %v", err, ErrHandshake)
	}
}

func TestSessionsAreResumed(t *testing.T) {
	for _, network := range secure {
		t.Run(network, func(t *testing.T) {
			up := serve(t, network, dnsfake.Address("192.0.2.1"))
			x := newExchanger(t, network, up.addr, trusting())
			x.Close() // so that each connection is used once
			for range 5 {
				exchange(t, x)
			}
			if n, resumed := up.handshakes.Load(), up.resumed.Load(); n != 5 || resumed < 3 {
				t.Errorf("%d handshakes, %d resumed; want 5 and nearly all", n, resumed)
			}
		})
	}
}
