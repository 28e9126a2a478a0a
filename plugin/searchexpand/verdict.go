package searchexpand

import (
	"errors"
	"fmt"
	"math"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metadata"

	"github.com/miekg/dns"
)

const (
	// maxNegativeTTL, in seconds, bounds how long a client may keep that a name
	// does not exist, unless the operator says otherwise. The suffixes' own figures
	// can be a day, and a host that was just made must not stay missing for longer
	// than a person waits.
	maxNegativeTTL = 30

	// degradedTTL, in seconds, bounds what was found past a suffix that failed. It
	// is about the time in which a client asks again after a failure.
	degradedTTL = 5
)

var (
	errTimeout  = errors.New("no answer in time")
	errDeadline = errors.New("the time of the whole walk is over")
	errOverload = errors.New("too many candidates are in flight")
)

// outcome is what the rest of the chain made of one question.
type outcome struct {
	msg    *dns.Msg // what was written; nil if nothing was
	rcode  int      // what was returned
	err    error
	values map[string]metadata.Func // the metadata it left behind; nil if it did not end in time
	crash  *crash                   // the panic that ended it; nil for any other end
}

// verdict is what an outcome says about the name it was asked for.
type verdict uint8

const (
	failed     verdict = iota // undecided
	answered                  // the name has records of the type
	weak                      // it has, but a wildcard record made them
	truncated                 // it has, and they did not fit
	owned                     // it has none of the type, but addresses: the name is this suffix's
	noData                    // it has none of the type
	nxDomain                  // it does not exist
	dropped                   // the rest of the chain wants no reply sent
	overloaded                // it could not be asked
	fatal                     // undecided, and the walk has to end with that
	gateOpen                  // it is no name to be found: what stands behind it may be asked for
	gateShut                  // it is none either: what stands behind it must not be asked for
)

var verdictNames = [...]string{
	"failed", "answered", "weak", "truncated", "owned", "nodata", "nxdomain", "dropped", "overloaded", "failed",
	"open", "shut",
}

// String returns the verdict as the metrics name it.
func (v verdict) String() string { return verdictNames[v] }

// final reports whether the walk ends with the verdict.
func (v verdict) final() bool {
	switch v {
	case answered, truncated, owned, dropped, overloaded, fatal, gateShut:
		return true
	}
	return false
}

// found reports whether the name is that of the candidate.
func (v verdict) found() bool { return v == answered || v == truncated || v == owned }

// judge returns what an outcome says about name and qtype, without regard to
// the name's other types.
func judge(o outcome, name string, qtype uint16) verdict {
	switch {
	case errors.Is(o.err, errOverload), o.msg == nil && errors.Is(o.err, errBudget):
		return overloaded
	case o.msg == nil && (o.err != nil || !plugin.ClientWrite(o.rcode)):
		return failed
	case o.msg == nil:
		return dropped
	case o.msg.Rcode == dns.RcodeNameError:
		return nxDomain // an alias in it dangles: the walk goes on, as in glibc, musl and Go
	case o.msg.Rcode != dns.RcodeSuccess:
		return failed
	case o.msg.Truncated:
		return truncated
	case referral(o.msg):
		return failed
	case len(o.msg.Answer) == 0:
		return noData
	}
	records, found := chain(o.msg.Answer, name, qtype)
	switch {
	case found && sendable(records):
		return answered
	case found:
		return failed // as the client would see it without us: CoreDNS answers SERVFAIL
	case len(records) > 0:
		return noData // an alias of a name that has no such type
	}
	return failed // the records answer something else
}

// referral reports whether m points to other servers instead of answering: NS
// records in the authority section without an SOA (RFC 2308, section 2.2).
func referral(m *dns.Msg) bool {
	ns := false
	for _, rr := range m.Ns {
		switch rr.(type) {
		case *dns.SOA:
			return false
		case *dns.NS:
			ns = true
		}
	}
	return ns && len(m.Answer) == 0
}

// siblings returns the types that show whether a name without records of qtype
// is a host all the same.
func siblings(qtype uint16) []uint16 {
	switch qtype {
	case dns.TypeA:
		return []uint16{dns.TypeAAAA}
	case dns.TypeAAAA:
		return []uint16{dns.TypeA}
	}
	return []uint16{dns.TypeA, dns.TypeAAAA}
}

// finding is what a walk learned about one candidate.
type finding struct {
	candidate
	outcome // the one that the verdict rests on
	verdict verdict
	ttl     uint32 // seconds for which it stands against what a later suffix says; not of what has records or failed
	host    uint16 // type of the address that makes the name this suffix's; of owned only
}

// newFinding judges the outcome of the candidate's own question.
func newFinding(c candidate, o outcome, qtype uint16) finding {
	f := finding{candidate: c, outcome: o, verdict: judge(o, c.name, qtype)}
	if f.verdict == noData || f.verdict == nxDomain {
		f.ttl = negativeTTL(o.msg)
	}
	return f
}

// failure is the finding for a candidate that nobody has heard of, and why.
func failure(c candidate, err error) finding {
	return finding{candidate: c, outcome: outcome{err: err, rcode: dns.RcodeServerFailure}, verdict: failed}
}

// withSibling returns the finding for a candidate without data, now that one of
// its siblings was asked. A sibling that exists decides: then A, AAAA and all
// other types of the name come from this suffix and no other. One that cannot be
// decided leaves the candidate so. See DESIGN.md, D5.
func (f finding) withSibling(o outcome, qtype uint16) finding {
	switch v := judge(o, f.name, qtype); v {
	case answered, truncated:
		f.verdict, f.host = owned, qtype
	case noData, nxDomain:
		f.ttl = min(f.ttl, negativeTTL(o.msg))
	case overloaded:
		f.verdict, f.outcome = v, o
	default:
		f.verdict, f.outcome = failed, o
	}
	return f
}

// ending returns the finding, which ends a strict walk if it is undecided.
func (f finding) ending(strict bool) finding {
	if strict && f.verdict == failed {
		f.verdict = fatal
	}
	return f
}

// failureRcode returns the rcode of a failure, written or not.
func failureRcode(o outcome) int {
	switch {
	case o.msg != nil:
		return o.msg.Rcode
	case plugin.ClientWrite(o.rcode):
		return dns.RcodeServerFailure // nothing was written and there is an error
	}
	return o.rcode
}

// negativeTTL returns for how many seconds a denial holds (RFC 2308, section 5).
// One that does not say so holds as long as we let any by default.
func negativeTTL(m *dns.Msg) uint32 {
	for _, rr := range m.Ns {
		if soa, ok := rr.(*dns.SOA); ok {
			return min(soa.Hdr.Ttl, soa.Minttl)
		}
	}
	return maxNegativeTTL
}

// soaAbove returns the SOA record of a denial that may stand in a reply about name.
func soaAbove(m *dns.Msg, name string) *dns.SOA {
	if m == nil {
		return nil
	}
	for _, rr := range m.Ns {
		if soa, ok := rr.(*dns.SOA); ok && dns.IsSubDomain(soa.Hdr.Name, name) {
			return soa
		}
	}
	return nil
}

// result is how a query ended, as metrics and metadata name it.
type result string

const (
	resultAnswer    result = "answer"
	resultTruncated result = "truncated"
	resultNoData    result = "nodata"
	resultNXDomain  result = "nxdomain"
	resultServFail  result = "servfail"  // a suffix is undecided, and no other has the name
	resultRefused   result = "refused"   // by every suffix
	resultDropped   result = "dropped"   // the rest of the chain wants no reply sent
	resultOverload  result = "overload"  // too many candidates are in flight
	resultBudget    result = "budget"    // too many candidates in too short a time
	resultBlocked   result = "blocked"   // wpad, isatap and what the operator names
	resultCancelled result = "cancelled" // the client is gone
)

// conclusion is the verdict on the name asked.
type conclusion struct {
	result result
	rcode  int      // of the reply
	last   finding  // the one that ended the walk; zero if none did
	ttl    uint32   // seconds for which what we add ourselves, alias or SOA, may be kept at most
	ede    uint16   // extended error of a reply that is one (RFC 8914, section 4)
	reason string   // text for it
	soa    *dns.SOA // of the zone of the name asked, for a denial; nil: none but the root is known to be above it
}

// conclude draws the conclusion from the findings in the order of the search
// list. When no suffix has the name, one that is undecided makes it SERVFAIL: an
// NXDOMAIN would be cached, and might be wrong. See DESIGN.md, D6.
func conclude(findings []finding) conclusion {
	c := conclusion{rcode: dns.RcodeSuccess, ttl: math.MaxUint32}
	failures, refusals, exists := 0, 0, false
	var fallback *finding
	for _, f := range findings {
		if f.asked && f.suffix != root {
			c.soa = soaAbove(f.msg, f.name)
		}
		switch f.verdict {
		case failed:
			if failures == 0 {
				c.ede, c.reason = extendedError(f), f.cause()
			}
			failures++
			if failureRcode(f.outcome) == dns.RcodeRefused {
				refusals++
			}
			c.ttl = min(c.ttl, degradedTTL)
		case weak:
			if fallback == nil {
				fallback = &f
			}
			c.ttl = min(c.ttl, f.ttl)
		case noData:
			exists = true
			c.ttl = min(c.ttl, f.ttl)
		case nxDomain, gateOpen, gateShut: // the latter is the last one
			c.ttl = min(c.ttl, f.ttl)
		default:
			return c.ended(f)
		}
	}
	if failures > 1 {
		c.reason += fmt.Sprintf(", and %d more", failures-1)
	}
	switch {
	case fallback != nil:
		return c.ended(*fallback)
	case failures > 0 && refusals == len(findings):
		c.result, c.rcode = resultRefused, dns.RcodeRefused
	case failures > 0:
		c.result, c.rcode = resultServFail, dns.RcodeServerFailure
	case exists:
		c.result = resultNoData
	default:
		c.result, c.rcode = resultNXDomain, dns.RcodeNameError
	}
	return c
}

// ended returns the conclusion of a walk that ended with f.
func (c conclusion) ended(f finding) conclusion {
	c.last = f
	switch f.verdict {
	case answered, weak:
		c.result = resultAnswer
	case truncated:
		c.result = resultTruncated
	case owned:
		c.result = resultNoData
		c.ttl = min(c.ttl, f.ttl)
	case dropped:
		c.result, c.rcode = resultDropped, f.rcode
	case overloaded:
		c.result, c.rcode = resultOverload, dns.RcodeServerFailure
		if errors.Is(f.err, errBudget) {
			c.result = resultBudget
		}
		c.ede, c.reason = extendedError(f), f.cause()
	case fatal: // SERVFAIL if it refused, too: musl waits for another answer after REFUSED
		c.result, c.rcode = resultServFail, dns.RcodeServerFailure
		c.ede, c.reason = extendedError(f), f.cause()
	}
	return c
}

// degraded reports whether a suffix that might have the name failed.
func (c conclusion) degraded() bool { return c.reason != "" }

// blocked is the conclusion for a name that is never completed. No zone says for
// how long it holds.
func blocked() conclusion {
	return conclusion{
		result: resultBlocked, rcode: dns.RcodeNameError, ttl: math.MaxUint32,
		ede: dns.ExtendedErrorCodeBlocked, reason: "a name that is not completed",
	}
}

// cancelled is the conclusion for a query whose context ended with err: whatever
// was found, nobody is there to read it.
func cancelled(err error) conclusion {
	o := outcome{rcode: dns.RcodeServerFailure, err: fmt.Errorf("completing a name: %w", err)}
	return conclusion{result: resultCancelled, last: finding{outcome: o}}
}
