package healthforward

import (
	"context"
	"errors"
	"slices"
	"syscall"

	"steadfast.internal/plugin/healthforward/internal/pool"
	"steadfast.internal/plugin/healthforward/internal/transport"

	"github.com/miekg/dns"
)

// grade is what a reply is worth to the query.
type grade uint8

// Grades, the best last.
const (
	gradeNone   grade = iota // there is no reply
	gradeBad                 // a failing rcode: another upstream may do better
	gradeDenial              // NXDOMAIN or NODATA: final where upstreams are equals
	gradeFinal               // to be delivered
)

// classify says what the end of an exchange shows of the upstream, and what the
// reply is worth to the query. failover are the rcodes that count as bad.
func classify(reply *dns.Msg, err error, failover []int) (pool.Outcome, grade) {
	if err != nil {
		return classifyError(err), gradeNone
	}
	switch {
	case reply.Rcode == dns.RcodeServerFailure && failedValidation(reply):
		return pool.Answered, gradeFinal
	case slices.Contains(failover, reply.Rcode):
		return pool.Failed, gradeBad
	case reply.Rcode == dns.RcodeNameError, reply.Rcode == dns.RcodeSuccess && len(reply.Answer) == 0 && !reply.Truncated:
		return pool.Answered, gradeDenial
	}
	return pool.Answered, gradeFinal
}

// given are the errors of an exchange that we gave up, which says nothing.
var given = []error{context.Canceled, context.DeadlineExceeded}

// noWay are the errors of a host that cannot get there, whoever is there.
var noWay = []error{
	syscall.ENETUNREACH, syscall.EADDRNOTAVAIL, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EAFNOSUPPORT,
}

// blocked are the errors of a host that lets nothing out: a firewall's rule, or a
// full queue.
var blocked = []error{syscall.EPERM, syscall.EACCES, syscall.ENOBUFS}

// theirs are the errors by which a server, or the way to it, refuses.
var theirs = []error{
	transport.ErrNoConnection,
	syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EPIPE, syscall.EHOSTUNREACH, syscall.EHOSTDOWN,
	syscall.ETIMEDOUT,
}

// classifyError says what an error shows of the upstream. One that is asked too
// much (HTTP 429 or 503) is alive and at work: its query goes elsewhere, and that is
// all. Any other HTTP status is a refusal, which a probe has to confirm.
func classifyError(err error) pool.Outcome {
	is := func(target error) bool { return errors.Is(err, target) }
	_, refused := errors.AsType[transport.StatusError](err)
	switch {
	case slices.ContainsFunc(given, is):
		return pool.Abandoned
	case slices.ContainsFunc(noWay, is):
		return pool.Unreachable
	case slices.ContainsFunc(blocked, is):
		return pool.Blocked
	case refused, slices.ContainsFunc(theirs, is), transport.IsBrokenStream(err):
		return pool.Refused
	}
	return pool.Abandoned
}

// failedValidation reports whether the reply says by an extended error (RFC 8914,
// sections 4.7 to 4.13: codes 6 to 12) that DNSSEC validation failed. Such a
// SERVFAIL is the answer: another upstream that does not validate would hand out
// what this one protects from.
func failedValidation(reply *dns.Msg) bool {
	opt := reply.IsEdns0()
	if opt == nil {
		return false
	}
	return slices.ContainsFunc(opt.Option, func(o dns.EDNS0) bool {
		ede, ok := o.(*dns.EDNS0_EDE)
		return ok && ede.InfoCode >= dns.ExtendedErrorCodeDNSBogus && ede.InfoCode <= dns.ExtendedErrorCodeNSECMissing
	})
}
