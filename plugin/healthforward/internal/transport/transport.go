// Package transport sends packed queries to one server and returns its replies.
// It knows nothing of health, policies or plugins: whether a reply is a good one
// and what an error means is decided elsewhere.
package transport

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"

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

// ErrNoConnection says that the server did not accept a connection in time.
var ErrNoConnection = errors.New("no connection in time")

// errMismatch ends a stream on which something came that is not the reply.
var errMismatch = errors.New("reply does not match the query")

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
	// Mismatched, if not nil, is called for each message that is no reply to
	// anything asked: late beyond use, forged or broken.
	Mismatched func()
}

func (o Options) mismatched() {
	if o.Mismatched != nil {
		o.Mismatched()
	}
}

// constructors maps the name of a transport to what makes an Exchanger of it.
var constructors = map[string]func(addr string, opts Options) Exchanger{
	"udp": newUDP,
	"tcp": newTCP,
}

// New returns an Exchanger for the server at addr, an IP address (with a zone
// where it needs one) and a port, over the named transport: udp or tcp. It opens
// nothing yet.
func New(network, addr string, opts Options) (Exchanger, error) {
	construct, ok := constructors[network]
	if !ok {
		return nil, fmt.Errorf("unknown transport %q", network)
	}
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return nil, fmt.Errorf("address of upstream: %w", err)
	}
	return construct(addr, opts), nil
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
