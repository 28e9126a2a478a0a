package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"
)

// dialTimeout is the time for a connection, and the same again for its TLS
// handshake: more than any round trip, and less than a client's patience.
const dialTimeout = time.Second

// dialer opens connections to one server.
type dialer struct {
	addr string
	opts Options
	tls  *tls.Config // nil: none
}

// dial opens a connection. It takes two time-outs at most, and ends with ctx.
func (d dialer) dial(ctx context.Context) (net.Conn, error) {
	conn, err := d.dialTCP(ctx)
	if err != nil || d.tls == nil {
		return conn, err
	}
	shake, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	secure := tls.Client(conn, d.tls)
	if err := secure.HandshakeContext(shake); err != nil {
		conn.Close()
		if timedOut := dialError(ctx, d.addr, err); timedOut != nil {
			return nil, timedOut
		}
		return nil, fmt.Errorf("%w with %s: %w", ErrHandshake, d.addr, err)
	}
	return secure, nil
}

func (d dialer) dialTCP(ctx context.Context) (net.Conn, error) {
	nd := net.Dialer{Timeout: dialTimeout, KeepAlive: -1} // idle connections do not live that long
	if d.opts.Source != nil {
		nd.LocalAddr = &net.TCPAddr{IP: d.opts.Source}
	}
	conn, err := nd.DialContext(ctx, "tcp", d.addr)
	if err == nil {
		return conn, nil
	}
	if timedOut := dialError(ctx, d.addr, err); timedOut != nil {
		return nil, timedOut
	}
	return nil, err
}

// dialError returns ctx's error if err comes of ctx's end, ErrNoConnection if it
// comes of a time-out of ours, and nil if it has another cause.
func dialError(ctx context.Context, addr string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if e, ok := errors.AsType[net.Error](err); !ok || !e.Timeout() {
		return nil
	}
	// The dialer's clock may strike before the context's.
	if until, ok := ctx.Deadline(); ok && !time.Now().Before(until) {
		return context.DeadlineExceeded
	}
	return fmt.Errorf("dial %s: %w", addr, ErrNoConnection)
}

// clientTLS returns the configuration for connections to addr. protos are what is
// offered by ALPN; none leaves what opts have.
func clientTLS(addr string, opts Options, protos ...string) *tls.Config {
	config := new(tls.Config)
	if opts.TLS != nil {
		config = opts.TLS.Clone()
	}
	if config.ServerName == "" {
		config.ServerName = hostOf(addr)
	}
	config.MinVersion = max(config.MinVersion, tls.VersionTLS12) // RFC 8310, section 9
	if protos != nil {
		config.NextProtos = protos
	}
	if opts.Fresh {
		config.ClientSessionCache = nil // a new client has nothing to resume
	} else {
		// One's own: a ticket of another server's would only be refused.
		config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	}
	return config
}

// hostOf returns the IP address in addr, without its zone: that is ours, and no
// certificate knows it.
func hostOf(addr string) string {
	host, _, _ := net.SplitHostPort(addr) // New has looked at it
	if ip := net.ParseIP(host); ip == nil {
		for i := range host {
			if host[i] == '%' {
				return host[:i]
			}
		}
	}
	return host
}
