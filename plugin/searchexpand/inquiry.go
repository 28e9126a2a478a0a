package searchexpand

import (
	"errors"
	"net"
	"sync"

	"github.com/miekg/dns"
)

// errLate is what a plugin below gets for a reply that nobody waits for.
var errLate = errors.New("reply comes after its time")

// client is what a plugin below may want to know of the connection. It is taken
// once, because a candidate may outlive the query and its connection.
type client struct {
	local, remote net.Addr
	tsig          error
}

func newClient(w dns.ResponseWriter) client {
	return client{local: w.LocalAddr(), remote: w.RemoteAddr(), tsig: w.TsigStatus()}
}

// inquiry is one question on its way through the rest of the chain, which runs
// in a goroutine of its own: the response writer that plugins below get, and the
// meeting point of the two goroutines. Either the question is finished or the
// walk abandons it, whichever comes first; nothing changes it afterwards.
type inquiry struct {
	client
	done chan struct{} // closed when the question is finished

	mu   sync.Mutex
	over bool // finished or abandoned
	res  outcome
}

var _ dns.ResponseWriter = (*inquiry)(nil)

func newInquiry(c client) *inquiry { return &inquiry{client: c, done: make(chan struct{})} }

// finish records what the chain returned and reports whether the walk will see
// it.
func (q *inquiry) finish(o outcome) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.over {
		return false
	}
	q.over = true
	o.msg = q.res.msg
	q.res = o
	close(q.done)
	return true
}

// abandon makes err the outcome, unless the question was finished just before.
func (q *inquiry) abandon(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.over {
		q.over = true
		q.res = outcome{err: err, rcode: dns.RcodeServerFailure}
	}
}

// outcome returns what became of a question that is finished or abandoned.
func (q *inquiry) outcome() outcome {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.res
}

// WriteMsg keeps m. Of several messages the last one counts, as for nonwriter.
func (q *inquiry) WriteMsg(m *dns.Msg) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.over {
		return errLate
	}
	q.res.msg = m
	return nil
}

// Write keeps the message that b holds. A plugin may write its reply as octets;
// they must not get to the client, who asked for another name.
func (q *inquiry) Write(b []byte) (int, error) {
	m := new(dns.Msg)
	if err := m.Unpack(b); err != nil {
		return 0, err
	}
	if err := q.WriteMsg(m); err != nil {
		return 0, err
	}
	return len(b), nil
}

// LocalAddr returns our address on the client's connection.
func (q *inquiry) LocalAddr() net.Addr { return q.local }

// RemoteAddr returns the client's address.
func (q *inquiry) RemoteAddr() net.Addr { return q.remote }

// TsigStatus returns that of the client's request.
func (q *inquiry) TsigStatus() error { return q.tsig }

// TsigTimersOnly does nothing: no candidate is signed.
func (q *inquiry) TsigTimersOnly(bool) {}

// Close does nothing: the connection is not the candidate's to close.
func (q *inquiry) Close() error { return nil }

// Hijack does nothing, for the same reason.
func (q *inquiry) Hijack() {}
