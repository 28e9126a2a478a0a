package healthforward

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"time"

	"steadfast.internal/plugin/healthforward/internal/transport"

	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
)

// model is an upstream in a synctest bubble: it has no socket, and takes exactly
// the time it is told to.
type model struct {
	addr string

	mu      sync.Mutex
	rtt     time.Duration
	silent  bool // drops queries
	deaf    bool // drops probes too
	refuses bool
	err     error         // instead of an answer, at once
	full    bool          // takes no connections: an error after a second
	busy    time.Duration // asks to be left alone so long

	rcode      int                                              // of its replies
	probeRcode int                                              // of its replies to probes
	probeRTT   time.Duration                                    // of probes, where it is another one
	probeLoss  float64                                          // the share of probes that get lost
	random     *rand.Rand                                       // decides which
	answers    func(name string) (rcode int, rtt time.Duration) // overrules both; a negative rcode is silence

	queries []time.Time // when each query, not probe, came
	probes  int         // how many of these came
	hinfos  []time.Time // when each question came that shows whether this leads back to us

	loops func(transport.Query) (*dns.Msg, error) // answers those
	back  func(transport.Query) (*dns.Msg, error) // answers queries
}

func (m *model) set(change func(*model)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(m)
}

// since returns how many queries came after t.
func (m *model) since(t time.Time) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, at := range m.queries {
		if !at.Before(t) {
			n++
		}
	}
	return n
}

// Exchange implements transport.Exchanger.
func (m *model) Exchange(ctx context.Context, q transport.Query) (*dns.Msg, error) {
	probe := q.Question.Name == "."
	// To see whether it leads back to us.
	if q.Question.Qtype == dns.TypeHINFO && strings.Contains("0123456789", q.Question.Name[:1]) {
		return m.hinfo(q)
	}
	m.mu.Lock()
	if !probe {
		m.queries = append(m.queries, time.Now())
	} else {
		m.probes++
	}
	back := m.back
	rtt, drop, refuses, full, busy, rcode, err := m.rtt, m.deaf || m.silent && !probe, m.refuses, m.full, m.busy, m.rcode, m.err
	if probe {
		rcode = m.probeRcode
		if m.probeRTT > 0 {
			rtt = m.probeRTT
		}
		drop = drop || m.random != nil && m.random.Float64() < m.probeLoss
	} else if m.answers != nil {
		rcode, rtt = m.answers(q.Question.Name)
		drop = drop || rcode < 0
	}
	m.mu.Unlock()
	if back != nil && !probe {
		return back(q)
	}
	if busy > 0 && !probe {
		return nil, transport.BusyError{Status: 429, After: busy}
	}
	if full {
		rtt = time.Second
	}
	if err != nil {
		return nil, err
	}
	if refuses {
		return nil, syscall.ECONNREFUSED
	}
	if drop {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	timer := time.NewTimer(rtt)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if full {
		return nil, transport.ErrNoConnection
	}
	reply := new(dns.Msg)
	reply.SetQuestion(q.Question.Name, q.Question.Qtype)
	reply.Response, reply.Id, reply.Rcode = true, q.ID, rcode
	if rcode != dns.RcodeSuccess {
		return reply, nil
	}
	reply.Answer = []dns.RR{test.A(q.Question.Name + " 60 IN A " + m.addr)}
	return reply, nil
}

// Close implements transport.Exchanger.
func (m *model) Close() {}

// hinfo answers at once that there is no such name, or as the model is told to.
func (m *model) hinfo(q transport.Query) (*dns.Msg, error) {
	m.mu.Lock()
	m.hinfos = append(m.hinfos, time.Now())
	loops := m.loops
	m.mu.Unlock()
	if loops != nil {
		return loops(q)
	}
	reply := new(dns.Msg).SetQuestion(q.Question.Name, q.Question.Qtype)
	reply.Response, reply.Id, reply.Rcode = true, q.ID, dns.RcodeNameError
	return reply, nil
}

// hinfoCount returns how many of those came.
func (m *model) hinfoCount() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.hinfos)
}
