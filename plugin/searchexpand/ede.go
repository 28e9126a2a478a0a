package searchexpand

import (
	"errors"
	"fmt"

	"github.com/coredns/coredns/plugin/pkg/rcode"

	"github.com/miekg/dns"
)

const (
	// maxReason, in octets, bounds the text of an extended error, so that it and a
	// question of any length fit into 512 octets.
	maxReason = 200

	// maxSuffixShown is how much of a suffix there is room for, beside its cause.
	maxSuffixShown = 100
)

// explain adds to m, a failure or a denial, why it is one. That is for who sent
// OPT (RFC 8914, section 2).
func explain(m *dns.Msg, opt *dns.OPT, c conclusion) {
	if opt == nil || c.reason == "" {
		return
	}
	text := "searchexpand: " + c.reason
	m.SetEdns0(opt.UDPSize(), opt.Do())
	m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_EDE{InfoCode: c.ede, ExtraText: text[:min(len(text), maxReason)]}}
}

// cause says in a few words which suffix is undecided, and why. It goes to
// clients, so it holds no address of ours and no text from below.
func (f finding) cause() string {
	suffix := f.suffix
	if len(suffix) > maxSuffixShown {
		suffix = suffix[:maxSuffixShown] + "..."
	}
	switch code, ok := errorBelow(f.msg); {
	case isOurs(f.err):
		return fmt.Sprintf("%s: %v", suffix, f.err)
	case f.msg != nil && f.msg.Rcode == dns.RcodeSuccess:
		return suffix + ": the answer is of no use"
	case ok && dns.ExtendedErrorCodeToString[code] != "":
		return fmt.Sprintf("%s: %s, %s", suffix, rcode.ToString(failureRcode(f.outcome)), dns.ExtendedErrorCodeToString[code])
	default:
		return fmt.Sprintf("%s: %s", suffix, rcode.ToString(failureRcode(f.outcome)))
	}
}

// isOurs reports whether err is our own, and fit to be shown.
func isOurs(err error) bool {
	return errors.Is(err, errTimeout) || errors.Is(err, errDeadline) || errors.Is(err, errOverload) ||
		errors.Is(err, errSkipped) || errors.Is(err, errBudget)
}

// extendedError returns the code that fits a failure: 22 where nobody answered, 13
// where nobody was asked because of earlier failures, else that of the message below,
// such as a signature that does not hold, else 0, and the text has to say it.
func extendedError(f finding) uint16 {
	switch {
	case errors.Is(f.err, errTimeout), errors.Is(f.err, errDeadline):
		return dns.ExtendedErrorCodeNoReachableAuthority
	case errors.Is(f.err, errSkipped):
		return dns.ExtendedErrorCodeCachedError
	}
	code, _ := errorBelow(f.msg)
	return code // 0 is that of any other error
}

// errorBelow returns the extended error that m carries, if it is a failure that
// does. Its text is left where it is: it may hold addresses.
func errorBelow(m *dns.Msg) (code uint16, ok bool) {
	if m == nil || m.Rcode == dns.RcodeSuccess {
		return 0, false
	}
	for _, rr := range m.Extra {
		opt, isOPT := rr.(*dns.OPT)
		if !isOPT {
			continue
		}
		for _, o := range opt.Option {
			if ede, isEDE := o.(*dns.EDNS0_EDE); isEDE {
				return ede.InfoCode, true
			}
		}
	}
	return 0, false
}
