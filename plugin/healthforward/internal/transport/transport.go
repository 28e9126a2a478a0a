// Package transport sends packed queries to one server and returns its replies.
// It knows nothing of health, policies or plugins: whether a reply is a good one
// and what an error means is decided elsewhere.
package transport

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// Exchanger sends queries to one server over one transport. It is safe for
// concurrent use.
type Exchanger interface {
	// Exchange sends q and returns the reply to it, with q's ID: the first message
	// that carries the ID sent and q's question, or no question and a bad rcode.
	// Everything else is passed over. It returns soon after ctx ends, with ctx's error.
	Exchange(ctx context.Context, q Query) (*dns.Msg, error)
	// Close lets go of what is idle. An Exchanger that is closed still works, but
	// keeps nothing: whoever still holds it during a reload loses no query.
	Close()
}

// Errors by which a server refuses. What is wrong is in the error that wraps them.
var (
	// ErrNoConnection says that the server did not accept a connection in time.
	ErrNoConnection = errors.New("no connection in time")
	// ErrHandshake says that the server was there, and that no secure connection to
	// it came about: its certificate is not to be trusted, or one side gave up.
	ErrHandshake = errors.New("handshake failed")
)

// Errors of an exchange that had a connection.
var (
	// errBroken says that the connection ended, or could not be used any more.
	errBroken = errors.New("connection broken")
	// errMismatch says that something came which is no reply to the query.
	errMismatch = errors.New("reply does not match the query")
	// errLost says, besides errBroken, that the connection had been used before and
	// that no part of the reply had come: another one may do.
	errLost = errors.New("reused connection lost")
)

// IsBrokenStream reports whether err says that a connection ended in the middle of
// an exchange, carried something that is no reply to it, or did not get past its
// handshake: in each case the server is there, and at fault.
func IsBrokenStream(err error) bool {
	return errors.Is(err, errBroken) || errors.Is(err, errMismatch) || errors.Is(err, ErrHandshake)
}

// Query is a request, packed once for all attempts.
type Query struct {
	Question dns.Question
	Opcode   int
	ID       uint16 // of the request; what goes on the wire is random
	packed   []byte
}

// NewQuery packs m, which is not changed. It fails where m has not exactly one question.
func NewQuery(m *dns.Msg) (Query, error) {
	if len(m.Question) != 1 {
		return Query{}, fmt.Errorf("pack query: %d questions", len(m.Question))
	}
	packed, err := m.Pack()
	if err != nil {
		return Query{}, fmt.Errorf("pack query: %w", err)
	}
	return Query{Question: m.Question[0], Opcode: m.Opcode, ID: m.Id, packed: packed}, nil
}

// WithAdditional returns q with one more record at its end, in the additional
// section. q itself is not changed.
func (q Query) WithAdditional(rr dns.RR) (Query, error) {
	packed := make([]byte, len(q.packed)+dns.Len(rr)+1)
	copy(packed, q.packed)
	end, err := dns.PackRR(rr, packed, len(q.packed), nil, false)
	if err != nil {
		return Query{}, fmt.Errorf("pack record: %w", err)
	}
	count := packed[10:12] // ARCOUNT (RFC 1035, section 4.1.1)
	binary.BigEndian.PutUint16(count, binary.BigEndian.Uint16(count)+1)
	q.packed = packed[:end]
	return q, nil
}

// Options are what all transports have in common.
type Options struct {
	// Fresh uses each socket and connection for one exchange only, as a probe must
	// that asks whether a new client would be served.
	Fresh bool
	// Source is the local address to send from; nil lets the kernel choose.
	Source net.IP
	// TLS is for tls, https and quic; nil trusts the system's roots. Without a
	// ServerName the certificate must be for the server's IP address. It is cloned,
	// and never changed.
	TLS *tls.Config
	// HTTPMethod is GET or POST, for https; empty is POST.
	HTTPMethod string
	// Expire is how long a connection is kept that nobody uses; 0 is 8 s.
	Expire time.Duration
	// MaxAge is how old a connection may get, by ± 20 % for each; 0 is 30 s.
	MaxAge time.Duration
	// MaxIdle is how many connections are kept that nobody uses; 0 is 8.
	MaxIdle int
	// Mismatched, if not nil, is called with each message that is no reply to
	// anything asked: late beyond use, forged or broken. It must not keep it.
	Mismatched func(packet []byte)
}

// Defaults of the options. See DESIGN.md, D11.
const (
	defaultExpire  = 8 * time.Second // below the 10 s that resolvers grant
	defaultMaxAge  = 30 * time.Second
	defaultMaxIdle = 8
)

// withDefaults returns o with a value for everything that has a default.
func (o Options) withDefaults() Options {
	if o.HTTPMethod == "" {
		o.HTTPMethod = http.MethodPost
	}
	if o.Expire == 0 {
		o.Expire = defaultExpire
	}
	if o.MaxAge == 0 {
		o.MaxAge = defaultMaxAge
	}
	if o.MaxIdle == 0 {
		o.MaxIdle = defaultMaxIdle
	}
	return o
}

// age returns how old one connection may get: spread, so that not all go at once.
func (o Options) age() time.Duration {
	return time.Duration(float64(o.MaxAge) * (0.8 + 0.4*mathrand.Float64()))
}

func (o Options) mismatched(packet []byte) {
	if o.Mismatched != nil {
		o.Mismatched(packet)
	}
}

// constructors maps the name of a transport to what makes an Exchanger of it.
var constructors = map[string]func(addr string, opts Options) Exchanger{
	"udp":   newUDP,
	"tcp":   newTCP,
	"tls":   newTLS,
	"https": newHTTPS,
	"quic":  newQUIC,
}

// New returns an Exchanger for the server at addr, an IP address (with a zone
// where it needs one) and a port, over the named transport: udp, tcp, tls (RFC
// 7858), https (RFC 8484) or quic (RFC 9250). It opens nothing yet.
func New(network, addr string, opts Options) (Exchanger, error) {
	construct, ok := constructors[network]
	if !ok {
		return nil, fmt.Errorf("unknown transport %q", network)
	}
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return nil, fmt.Errorf("address of upstream: %w", err)
	}
	if m := opts.HTTPMethod; m != "" && m != http.MethodGet && m != http.MethodPost {
		return nil, fmt.Errorf("unknown HTTP method %q", m)
	}
	return construct(addr, opts.withDefaults()), nil
}

// Key returns what goes on the wire but for the ID, by which identical queries are
// known.
func (q Query) Key() string { return string(q.packed[2:]) }

// wire returns a copy of the packed query that carries id, with room bytes in front.
func (q Query) wire(room int, id uint16) ([]byte, error) {
	if len(q.packed) > dns.MaxMsgSize {
		return nil, fmt.Errorf("send query: %d octets", len(q.packed))
	}
	b := make([]byte, room+len(q.packed))
	copy(b[room:], q.packed)
	binary.BigEndian.PutUint16(b[room:], id)
	return b, nil
}

// frame returns the query as a stream carries it: its length first (RFC 1035,
// section 4.2.2), all in one piece, so that it leaves in one packet.
func (q Query) frame(id uint16) ([]byte, error) {
	b, err := q.wire(2, id)
	if err != nil {
		return nil, err
	}
	binary.BigEndian.PutUint16(b, uint16(len(q.packed)))
	return b, nil
}

// reply unpacks what came back on a stream of its own, where the ID is 0 (RFC
// 8484, section 4.1, and RFC 9250, section 4.2.1), and gives it q's ID.
func (q Query) reply(packet []byte) (*dns.Msg, error) {
	m, err := unpack(packet, false)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errMismatch, err)
	}
	if m.Id != 0 || !matches(m, q) {
		return nil, errMismatch
	}
	m.Id = q.ID
	return m, nil
}

// matches reports whether m is a reply to q. The ID has been compared already.
// A reply without a question is taken for what it says only if it says that
// something went wrong: some servers answer so what they cannot parse.
func matches(m *dns.Msg, q Query) bool {
	if !m.Response || m.Opcode != q.Opcode {
		return false
	}
	if len(m.Question) == 0 {
		return m.Rcode != dns.RcodeSuccess
	}
	got := m.Question[0]
	return len(m.Question) == 1 && got.Qtype == q.Question.Qtype && got.Qclass == q.Question.Qclass &&
		strings.EqualFold(got.Name, q.Question.Name)
}

// unpack parses a message. One whose TC bit is set, or that the kernel cut, may
// be cut anywhere: it stands as an empty truncated reply.
func unpack(packet []byte, cut bool) (*dns.Msg, error) {
	m := new(dns.Msg)
	err := m.Unpack(packet)
	if err == nil && !cut {
		return m, nil
	}
	if len(m.Question) == 1 && (cut || m.Truncated) {
		m.Truncated = true
		m.Answer, m.Ns, m.Extra = nil, nil, nil
		return m, nil
	}
	return nil, fmt.Errorf("unpack reply: %w", err)
}

// randomID returns an ID that nobody can guess (RFC 5452, section 9.2).
func randomID() uint16 {
	var b [2]byte
	rand.Read(b[:]) // never fails: it ends the process where the kernel gives none
	return binary.BigEndian.Uint16(b[:])
}
