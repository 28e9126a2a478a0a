package transport

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/miekg/dns"
)

// DNS over HTTPS (RFC 8484). The path is the one of its examples, which everybody uses.
const (
	dohPath = "/dns-query"
	dohType = "application/dns-message"
)

// Waits for a server that refuses a request unread: some tens of milliseconds in all.
const (
	refusedWait  = time.Millisecond
	refusedUntil = 32 * time.Millisecond
)

// maxRetryAfter bounds how long a server can ask to be left alone.
const maxRetryAfter = time.Minute

// StatusError is the status of an HTTP response that is not 200.
type StatusError struct {
	Status int
}

// Error implements error.
func (e StatusError) Error() string { return fmt.Sprintf("HTTP status %d", e.Status) }

// BusyError is an HTTP response by which the server asks to be left alone for a
// while: 429 or 503.
type BusyError struct {
	Status int
	After  time.Duration // from now; 0 where the server does not say
}

// Error implements error.
func (e BusyError) Error() string {
	return fmt.Sprintf("HTTP status %d, retry after %v", e.Status, e.After)
}

// https exchanges over HTTP/2, or HTTP/1.1 where the server has nothing newer.
// The connections are net/http's, but kept by connPool: http.Transport dials as
// many as there are queries when it has none, gives them no age, and waits on one
// that is dead.
type https struct {
	*connPool
	addr      string
	authority string // the URL's
	transport *http.Transport
}

func newHTTPS(addr string, opts Options) Exchanger {
	config := clientTLS(addr, opts, "h2", "http/1.1")
	d := dialer{addr, opts, config}
	h := &https{connPool: newConnPool(opts, false), addr: addr, authority: config.ServerName}
	if _, port, _ := net.SplitHostPort(addr); port != "443" {
		h.authority = net.JoinHostPort(config.ServerName, port)
	} else if ip := net.ParseIP(config.ServerName); ip != nil && ip.To4() == nil {
		h.authority = "[" + config.ServerName + "]"
	}
	h.transport = &http.Transport{ // no Proxy: the address is the server's
		DialTLSContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return d.dial(ctx) },
		ForceAttemptHTTP2:      true,
		DisableCompression:     true,
		DisableKeepAlives:      opts.Fresh,
		MaxResponseHeaderBytes: 64 << 10,
	}
	h.dial = h.open
	return h
}

func (h *https) open(ctx context.Context) (link, error) {
	conn, err := h.transport.NewClientConn(ctx, "https", h.addr)
	if err != nil {
		return nil, err
	}
	h.serial.Store(conn.Available() <= 1) // as HTTP/1.1 has it
	return &httpsLink{peer: h, conn: conn, progress: progress{born: time.Now()}}, nil
}

// request returns the HTTP request for q. Its ID is 0, so that HTTP caches see
// equal queries as equal (RFC 8484, section 4.1).
func (h *https) request(ctx context.Context, q Query) (*http.Request, error) {
	packet, err := q.wire(0, 0)
	if err != nil {
		return nil, err
	}
	url := "https://" + h.authority + dohPath
	var body io.Reader
	if h.opts.HTTPMethod == http.MethodGet {
		url += "?dns=" + base64.RawURLEncoding.EncodeToString(packet)
	} else {
		body = bytes.NewReader(packet) // of a type that net/http can send again
	}
	r, err := http.NewRequestWithContext(ctx, h.opts.HTTPMethod, url, body)
	if err != nil {
		return nil, fmt.Errorf("make HTTP request: %w", err)
	}
	r.Header.Set("Accept", dohType)
	if body != nil {
		r.Header.Set("Content-Type", dohType)
	}
	r.Header.Set("User-Agent", "") // none: it is nobody's business
	return r, nil
}

// httpsLink is one connection.
type httpsLink struct {
	peer *https
	conn *http.ClientConn
	progress
}

// exchange implements link.
func (l *httpsLink) exchange(ctx context.Context, q Query) (*dns.Msg, error) {
	r, err := l.peer.request(ctx, q)
	if err != nil {
		return nil, err
	}
	l.begin(time.Now())
	response, err := l.roundTrip(ctx, r)
	defer func() { l.end(time.Now(), err == nil) }()
	if err != nil {
		return nil, brokenLink(ctx, err, l.used())
	}
	defer response.Body.Close()
	packet, err := readResponse(response, time.Now())
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, err
	}
	m, mismatch := q.reply(packet)
	if mismatch != nil {
		l.peer.opts.mismatched(packet)
	}
	return m, mismatch
}

// roundTrip sends r until the server does not refuse it unread. knot-resolver
// does while it reads another request; it may be sent again (RFC 9113, section
// 8.7), and net/http does so in http.Transport.
func (l *httpsLink) roundTrip(ctx context.Context, r *http.Request) (*http.Response, error) {
	for wait := refusedWait; ; wait *= 2 {
		try := r.Clone(ctx)
		if r.GetBody != nil {
			try.Body, _ = r.GetBody() // of bytes.Reader: never fails
		}
		response, err := l.conn.RoundTrip(try)
		if err == nil || !isRefused(err) || wait > refusedUntil {
			return response, err
		}
		timer := time.NewTimer(rand.N(wait)) // spread, or all come together again
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		}
	}
}

// streamError is net/http's error of a stream, which it does not export: errors.As
// fills any type with these fields.
type streamError struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

// Error implements error.
func (e streamError) Error() string { return fmt.Sprintf("HTTP/2 stream error %d", e.Code) }

// isRefused reports whether err is a REFUSED_STREAM (RFC 9113, section 7).
func isRefused(err error) bool {
	e, ok := errors.AsType[streamError](err)
	return ok && e.Code == 0x7
}

// state implements link.
func (l *httpsLink) state(now time.Time) linkState {
	s := l.progress.state(now)
	if l.conn.Err() == nil {
		s.room = min(poolEach, l.conn.Available()+l.conn.InFlight())
	}
	return s
}

// close implements link.
func (l *httpsLink) close() { l.conn.Close() }

// readResponse returns the DNS message in r.
func readResponse(r *http.Response, now time.Time) ([]byte, error) {
	body := io.LimitReader(r.Body, dns.MaxMsgSize+1)
	switch r.StatusCode {
	case http.StatusOK:
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		_, _ = io.Copy(io.Discard, body) // so that the connection can go on
		return nil, BusyError{r.StatusCode, retryAfter(r.Header.Get("Retry-After"), now)}
	default:
		_, _ = io.Copy(io.Discard, body)
		return nil, StatusError{r.StatusCode}
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != dohType {
		return nil, fmt.Errorf("%w: content type %q", errMismatch, r.Header.Get("Content-Type"))
	}
	packet, err := io.ReadAll(body)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errBroken, err)
	case len(packet) > dns.MaxMsgSize:
		return nil, fmt.Errorf("%w: more than %d octets", errMismatch, dns.MaxMsgSize)
	}
	return packet, nil
}

// retryAfter parses the header of that name: seconds, or a date (RFC 9110, section
// 10.2.3). What is no such thing is 0.
func retryAfter(value string, now time.Time) time.Duration {
	var after time.Duration
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		after = time.Duration(seconds) * time.Second
	} else if date, err := http.ParseTime(value); err == nil {
		after = date.Sub(now)
	}
	return min(max(after, 0), maxRetryAfter)
}
