package test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/quic-go/quic-go"
)

// peerAskLimit is how long a client waits for an answer: glibc's time-out.
const peerAskLimit = 5 * time.Second

// asker asks one server over one transport, and keeps its connection.
type asker interface {
	ask(q *dns.Msg) (*dns.Msg, error)
	close()
}

// newAsker returns an asker over a transport: udp, tcp, tls, https or quic. It is
// for one goroutine.
func newAsker(transport, addr string, tlsConfig *tls.Config) asker {
	tlsConfig = tlsConfig.Clone() // http.Transport adds h2 to its NextProtos, which a DoT server may refuse
	switch transport {
	case "https":
		return &httpsAsker{addr, &http.Client{
			Timeout:   peerAskLimit,
			Transport: &http.Transport{TLSClientConfig: tlsConfig, ForceAttemptHTTP2: true},
		}}
	case "quic":
		tlsConfig.NextProtos = []string{"doq"}
		return &quicAsker{addr: addr, tls: tlsConfig}
	case "tls":
		return &connAsker{addr: addr, client: &dns.Client{Net: "tcp-tls", TLSConfig: tlsConfig, Timeout: peerAskLimit}}
	}
	return &connAsker{addr: addr, client: &dns.Client{Net: transport, Timeout: peerAskLimit}}
}

// connAsker asks over UDP, TCP or TLS.
type connAsker struct {
	addr   string
	client *dns.Client
	conn   *dns.Conn
}

func (a *connAsker) ask(q *dns.Msg) (*dns.Msg, error) {
	reused := a.conn != nil
	if !reused {
		conn, err := a.client.Dial(a.addr)
		if err != nil {
			return nil, err
		}
		a.conn = conn
	}
	// The buffer is of the largest size that any query here invites.
	a.conn.UDPSize = dns.MaxMsgSize - 1
	reply, _, err := a.client.ExchangeWithConn(q, a.conn)
	if err == nil {
		return reply, nil
	}
	a.close()
	if reused { // servers close connections when they like (RFC 7766, section 6.2.3)
		return a.ask(q)
	}
	return nil, err
}

func (a *connAsker) close() {
	if a.conn != nil {
		a.conn.Close()
		a.conn = nil
	}
}

// httpsAsker asks by POST over HTTP/2 (RFC 8484).
type httpsAsker struct {
	addr   string
	client *http.Client
}

func (a *httpsAsker) ask(q *dns.Msg) (*dns.Msg, error) {
	packed, err := q.Pack()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), peerAskLimit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+a.addr+"/dns-query", bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/dns-message")
	request.Header.Set("Accept", "application/dns-message")
	response, err := a.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, dns.MaxMsgSize+1))
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK || response.ProtoMajor != 2 {
		return nil, fmt.Errorf("%s %s: %.100q", response.Proto, response.Status, body)
	}
	reply := new(dns.Msg)
	return reply, reply.Unpack(body)
}

func (a *httpsAsker) close() { a.client.CloseIdleConnections() }

// quicAsker asks over QUIC, a stream for each query (RFC 9250).
type quicAsker struct {
	addr string
	tls  *tls.Config
	conn *quic.Conn
}

func (a *quicAsker) ask(q *dns.Msg) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(context.Background(), peerAskLimit)
	defer cancel()
	if a.conn == nil {
		conn, err := quic.DialAddr(ctx, a.addr, a.tls, nil)
		if err != nil {
			return nil, err
		}
		a.conn = conn
	}
	reply, err := a.exchange(ctx, q)
	if err != nil {
		a.close()
	}
	return reply, err
}

func (a *quicAsker) exchange(ctx context.Context, q *dns.Msg) (*dns.Msg, error) {
	stream, err := a.conn.OpenStreamSync(ctx)
	if err != nil {
		return nil, err
	}
	deadline, _ := ctx.Deadline()
	if err := stream.SetDeadline(deadline); err != nil {
		return nil, err
	}
	zero := *q // RFC 9250, section 4.2.1: the ID is 0
	zero.Id = 0
	packed, err := zero.Pack()
	if err != nil {
		return nil, err
	}
	if _, err := stream.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(packed))), packed...)); err != nil {
		return nil, err
	}
	if err := stream.Close(); err != nil { // the end of what we send
		return nil, err
	}
	answer, err := io.ReadAll(io.LimitReader(stream, 2+dns.MaxMsgSize))
	if err != nil {
		return nil, err
	}
	if len(answer) < 2 || int(binary.BigEndian.Uint16(answer)) != len(answer)-2 {
		return nil, fmt.Errorf("a stream of %d octets is no message", len(answer))
	}
	reply := new(dns.Msg)
	if err := reply.Unpack(answer[2:]); err != nil {
		return nil, err
	}
	reply.Id = q.Id
	return reply, nil
}

func (a *quicAsker) close() {
	if a.conn != nil {
		a.conn.CloseWithError(0, "")
		a.conn = nil
	}
}

// peerCertName is whom the peers' certificate is for.
const peerCertName = "dns.peers.test"

// certificates are a throw-away authority and what it issued.
type certificates struct {
	ca, cert, key string // paths of PEM files
	client        *tls.Config
}

// newCertificates makes them in dir, where any user can read them.
func newCertificates(t testing.TB, dir string) certificates {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "peers test CA"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: peerCertName},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		DNSNames: []string{peerCertName}, KeyUsage: x509.KeyUsageDigitalSignature,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	must(err)
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), caKey)
	must(err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	must(err)
	asPEM := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(asPEM("CERTIFICATE", caDER)))
	return certificates{
		ca:     writeFile(t, dir, "ca.pem", asPEM("CERTIFICATE", caDER)),
		cert:   writeFile(t, dir, "cert.pem", asPEM("CERTIFICATE", leafDER)),
		key:    writeFile(t, dir, "key.pem", asPEM("PRIVATE KEY", keyDER)),
		client: &tls.Config{RootCAs: pool, ServerName: peerCertName, MinVersion: tls.VersionTLS12},
	}
}
