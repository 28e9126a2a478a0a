package healthforward

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"steadfast.internal/plugin/healthforward/internal/transport"
	"steadfast.internal/plugin/internal/corefile"

	"github.com/coredns/coredns/plugin/pkg/rcode"
	"github.com/miekg/dns"
)

const (
	// maxTried is how many upstreams an extended error names: more help nobody.
	maxTried = 8
	// maxEDEText is how long its text may be: what 512 octets leave beside a header,
	// the longest question, an OPT record and the option's head. A longer reply would
	// be truncated, and asked for again over TCP.
	maxEDEText = 512 - 12 - (255 + 4) - 11 - 6
)

// timedOut is the word for an upstream that was silent.
const timedOut = "timeout"

// errorWords say what came of an attempt, the first that fits. An error's own text
// would show clients the addresses and files of this host.
var errorWords = []struct {
	err  error
	word string
}{
	{context.DeadlineExceeded, timedOut},
	{context.Canceled, timedOut}, // by us, at the deadline or for a peer's sake
	{transport.ErrHandshake, "handshake failed"},
	{transport.ErrNoConnection, "no connection"},
	{syscall.ECONNREFUSED, "refused"},
	{syscall.EHOSTUNREACH, "unreachable"},
	{syscall.EHOSTDOWN, "unreachable"},
	{syscall.ENETUNREACH, "unreachable"},
}

// ede reads on or off.
func (c *Config) ede(args []string) error {
	var word string
	if err := corefile.Enum(&word, "on", "off")(args); err != nil {
		return err
	}
	c.EDE = word == "on"
	return nil
}

// failure returns the SERVFAIL for r, with an extended error (RFC 8914) for who sent
// an OPT record: which upstreams were asked, and what came of each. fl is nil where
// nobody was asked.
func failure(r *dns.Msg, fl *flight) *dns.Msg {
	m := new(dns.Msg).SetRcode(r, dns.RcodeServerFailure)
	theirs := r.IsEdns0()
	if theirs == nil {
		return m
	}
	m.SetEdns0(udpSize, theirs.Do())
	opt := m.IsEdns0()
	opt.Option = append(opt.Option, explain(fl.outcomes()))
	return m
}

// tried is what came of asking one upstream.
type tried struct {
	addr string
	word string
}

// outcomes returns what came of each upstream that was asked, in that order. Where
// one was asked several times, silence is not what it is known by.
func (f *flight) outcomes() []tried {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []tried
	at := make(map[*upstream]int)
	for _, t := range f.tries {
		word := t.outcome()
		if i, ok := at[t.up]; !ok {
			at[t.up] = len(all)
			all = append(all, tried{t.up.addr, word})
		} else if word != timedOut {
			all[i].word = word
		}
	}
	return all
}

// outcome returns the word for what came of the attempt. It requires that the
// flight's mu is held.
func (t *try) outcome() string {
	switch {
	case t.reply != nil:
		return rcode.ToString(t.reply.Rcode)
	case t.err == nil:
		return timedOut
	}
	for _, w := range errorWords {
		if errors.Is(t.err, w.err) {
			return w.word
		}
	}
	return "error"
}

// explain returns the extended error: Network Error where an upstream did more than
// be silent, No Reachable Authority otherwise.
func explain(outcomes []tried) *dns.EDNS0_EDE {
	e := &dns.EDNS0_EDE{InfoCode: dns.ExtendedErrorCodeNoReachableAuthority}
	var text strings.Builder
	text.WriteString(pluginName + ":")
	if len(outcomes) == 0 {
		text.WriteString(" no upstream was asked")
	}
	more := ""
	for i, o := range outcomes {
		if o.word != timedOut {
			e.InfoCode = dns.ExtendedErrorCodeNetworkError
		}
		if more != "" {
			continue
		}
		rest := fmt.Sprintf(" and %d more", len(outcomes)-i)
		part := fmt.Sprintf(" %s %s", o.addr, o.word)
		if i > 0 {
			part = "," + part
		}
		if i == maxTried || text.Len()+len(part)+len(rest) > maxEDEText {
			more = rest
			continue
		}
		text.WriteString(part)
	}
	e.ExtraText = text.String() + more
	return e
}
