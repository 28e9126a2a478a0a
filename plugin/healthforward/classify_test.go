package healthforward

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"

	"steadfast.internal/plugin/healthforward/internal/pool"
	"steadfast.internal/plugin/healthforward/internal/transport"

	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
)

func TestClassify(t *testing.T) {
	failover := newConfig().Failover
	reply := func(rcode int, change ...func(*dns.Msg)) *dns.Msg {
		m := new(dns.Msg).SetRcode(question("example.org.", dns.TypeA), rcode)
		for _, f := range change {
			f(m)
		}
		return m
	}
	ede := func(code uint16) func(*dns.Msg) {
		return func(m *dns.Msg) {
			m.SetEdns0(1232, false)
			m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_EDE{InfoCode: code}}
		}
	}
	address := func(m *dns.Msg) { m.Answer = []dns.RR{test.A("example.org. 60 IN A 192.0.2.1")} }
	opErr := func(errno syscall.Errno) error {
		return &net.OpError{Op: "read", Err: os.NewSyscallError("recvfrom", errno)}
	}
	for name, tc := range map[string]struct {
		reply     *dns.Msg
		err       error
		outcome   pool.Outcome
		wantGrade grade
	}{
		"an address":                         {reply(dns.RcodeSuccess, address), nil, pool.Answered, gradeFinal},
		"no data":                            {reply(dns.RcodeSuccess), nil, pool.Answered, gradeDenial},
		"no such name":                       {reply(dns.RcodeNameError), nil, pool.Answered, gradeDenial},
		"truncated":                          {reply(dns.RcodeSuccess, func(m *dns.Msg) { m.Truncated = true }), nil, pool.Answered, gradeFinal},
		"SERVFAIL":                           {reply(dns.RcodeServerFailure), nil, pool.Failed, gradeBad},
		"REFUSED":                            {reply(dns.RcodeRefused), nil, pool.Failed, gradeBad},
		"NOTIMP":                             {reply(dns.RcodeNotImplemented), nil, pool.Failed, gradeBad},
		"FORMERR is not on the list":         {reply(dns.RcodeFormatError), nil, pool.Answered, gradeFinal},
		"SERVFAIL, EDE 5 (indeterminate)":    {reply(dns.RcodeServerFailure, ede(5)), nil, pool.Failed, gradeBad},
		"SERVFAIL, EDE 6 (bogus)":            {reply(dns.RcodeServerFailure, ede(6)), nil, pool.Answered, gradeFinal},
		"SERVFAIL, EDE 12 (NSEC is missing)": {reply(dns.RcodeServerFailure, ede(12)), nil, pool.Answered, gradeFinal},
		"SERVFAIL, EDE 13 (cached error)":    {reply(dns.RcodeServerFailure, ede(13)), nil, pool.Failed, gradeBad},
		"REFUSED, EDE 6":                     {reply(dns.RcodeRefused, ede(6)), nil, pool.Failed, gradeBad},

		"port closed":         {nil, opErr(syscall.ECONNREFUSED), pool.Refused, gradeNone},
		"host unreachable":    {nil, opErr(syscall.EHOSTUNREACH), pool.Refused, gradeNone},
		"connection reset":    {nil, opErr(syscall.ECONNRESET), pool.Refused, gradeNone},
		"handshake failed":    {nil, fmt.Errorf("dial: %w", transport.ErrHandshake), pool.Refused, gradeNone},
		"HTTP 404":            {nil, transport.StatusError{Status: 404}, pool.Refused, gradeNone},
		"HTTP 503":            {nil, fmt.Errorf("ask: %w", transport.BusyError{Status: 503}), pool.Abandoned, gradeNone},
		"no connection":       {nil, fmt.Errorf("dial: %w", transport.ErrNoConnection), pool.Refused, gradeNone},
		"local firewall":      {nil, opErr(syscall.EPERM), pool.Blocked, gradeNone},
		"local queue is full": {nil, opErr(syscall.ENOBUFS), pool.Blocked, gradeNone},
		"no route from here":  {nil, opErr(syscall.ENETUNREACH), pool.Unreachable, gradeNone},
		"no local address":    {nil, opErr(syscall.EADDRNOTAVAIL), pool.Unreachable, gradeNone},
		"too many files open": {nil, opErr(syscall.EMFILE), pool.Unreachable, gradeNone},
		"we gave up":          {nil, context.Canceled, pool.Abandoned, gradeNone},
		"our deadline":        {nil, context.DeadlineExceeded, pool.Abandoned, gradeNone},
		"something else":      {nil, errors.New("odd"), pool.Abandoned, gradeNone},
	} {
		t.Run(name, func(t *testing.T) {
			outcome, g := classify(tc.reply, tc.err, failover)
			if outcome != tc.outcome || g != tc.wantGrade {
				t.Errorf("classify = %v, %v; want %v, %v", outcomes[outcome], g, outcomes[tc.outcome], tc.wantGrade)
			}
		})
	}
}

func TestRestore(t *testing.T) {
	request := question("ExAmple.org.", dns.TypeA)
	q, err := prepare(request)
	if err != nil {
		t.Fatal(err)
	}
	reply := new(dns.Msg).SetRcode(question("example.org.", dns.TypeA), dns.RcodeBadVers)
	reply.SetEdns0(1232, false)
	q.restore(reply, request)
	if reply.Id != request.Id || reply.Question[0].Name != "ExAmple.org." || reply.IsEdns0() != nil {
		t.Errorf("restored to\n%v", reply)
	}
	if _, err := reply.Pack(); err != nil {
		t.Errorf("an extended rcode without its OPT cannot be packed: %v", err)
	}
}
