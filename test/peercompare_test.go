package test

import (
	"fmt"
	"slices"
	"strings"

	"github.com/coredns/coredns/plugin/test"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
)

// upstreamSize is the EDNS size that healthforward sends upstream over UDP.
const upstreamSize = 1232

// asHealthforward returns the query as healthforward sends it: with an OPT record
// of its own.
func asHealthforward(q *dns.Msg, transport string) *dns.Msg {
	size := uint16(upstreamSize)
	if transport != "udp" {
		size = dns.MaxMsgSize - 1
	}
	out := q.Copy()
	if opt := out.IsEdns0(); opt != nil {
		opt.SetUDPSize(size)
	} else {
		out.SetEdns0(size, false)
	}
	return out
}

// asServed returns what is to reach a client from a peer's reply: no OPT if it
// sent none, no padding, and over UDP cut to its size, as CoreDNS's server cuts all
// replies.
func asServed(reply, q *dns.Msg, network string) *dns.Msg {
	out := reply.Copy()
	if opt := out.IsEdns0(); opt != nil {
		opt.Option = slices.DeleteFunc(opt.Option, func(o dns.EDNS0) bool { return o.Option() == dns.EDNS0PADDING })
	}
	if q.IsEdns0() == nil {
		out.Extra = slices.DeleteFunc(out.Extra, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeOPT })
	}
	writer := &test.ResponseWriter{TCP: network == "tcp", RemoteIP: "127.0.0.1"}
	state := request.Request{W: writer, Req: q.Copy()}
	state.SizeAndDo(out)
	return state.Scrub(out)
}

// section is one of a message's sections as a set: each record, but for its TTL,
// and its TTL.
type section map[string]uint32

func sectionOf(records []dns.RR) section {
	set := make(section, len(records))
	for _, rr := range records {
		if rr.Header().Rrtype == dns.TypeOPT { // that hop's own; see hasOPT
			continue
		}
		bare := dns.Copy(rr)
		bare.Header().Ttl = 0
		// Names are the same in any case, and all text of the zone is lower case.
		set[strings.ToLower(bare.String())] = rr.Header().Ttl
	}
	return set
}

// messageSections are a message's three, by their names.
func messageSections(m *dns.Msg) map[string]section {
	return map[string]section{"answer": sectionOf(m.Answer), "authority": sectionOf(m.Ns), "additional": sectionOf(m.Extra)}
}

// differences says in which way got is not want: rcode, flags, sections as sets,
// and whether there is an OPT record. The content of two truncated messages is
// not compared: it is for nobody (RFC 2181, section 9).
func differences(got, want *dns.Msg) []string {
	var diffs []string
	differ := func(what string, got, want any) {
		if got != want {
			diffs = append(diffs, fmt.Sprintf("%s %v, want %v", what, got, want))
		}
	}
	differ("rcode", dns.RcodeToString[got.Rcode], dns.RcodeToString[want.Rcode])
	differ("TC", got.Truncated, want.Truncated)
	differ("AA", got.Authoritative, want.Authoritative)
	differ("RA", got.RecursionAvailable, want.RecursionAvailable)
	differ("CD", got.CheckingDisabled, want.CheckingDisabled)
	differ("RD", got.RecursionDesired, want.RecursionDesired)
	differ("an OPT", got.IsEdns0() != nil, want.IsEdns0() != nil)
	differ("extended errors", fmt.Sprint(extendedErrors(got)), fmt.Sprint(extendedErrors(want)))
	if got.Truncated && want.Truncated {
		return diffs
	}
	differ("AD", got.AuthenticatedData, want.AuthenticatedData) // which speaks of the content
	wants := messageSections(want)
	for name, records := range messageSections(got) {
		for record := range records {
			if _, ok := wants[name][record]; !ok {
				diffs = append(diffs, fmt.Sprintf("%s has %.90q", name, record))
			}
		}
		for record := range wants[name] {
			if _, ok := records[record]; !ok {
				diffs = append(diffs, fmt.Sprintf("%s lacks %.90q", name, record))
			}
		}
	}
	slices.Sort(diffs)
	return diffs
}

// extendedErrors are the codes by which a server says why (RFC 8914).
func extendedErrors(m *dns.Msg) []uint16 {
	var codes []uint16
	if opt := m.IsEdns0(); opt != nil {
		for _, option := range opt.Option {
			if ede, ok := option.(*dns.EDNS0_EDE); ok {
				codes = append(codes, ede.InfoCode)
			}
		}
	}
	return codes
}

// outliving says which records of got live longer than in want, by more than slack
// seconds.
func outliving(got, want *dns.Msg, slack uint32) []string {
	var longer []string
	wants := messageSections(want)
	for name, records := range messageSections(got) {
		for record, ttl := range records {
			if limit, ok := wants[name][record]; ok && ttl > limit+slack {
				longer = append(longer, fmt.Sprintf("%s: TTL %d, and %d directly: %.90q", name, ttl, limit, record))
			}
		}
	}
	return longer
}

// unrelated says in which way reply is none to q.
func unrelated(reply, q *dns.Msg) []string {
	var diffs []string
	if reply.Id != q.Id || !reply.Response || reply.Opcode != q.Opcode {
		diffs = append(diffs, "no reply to that query")
	}
	if len(reply.Question) != 1 || reply.Question[0] != q.Question[0] {
		diffs = append(diffs, fmt.Sprintf("question %v, and asked was %v", reply.Question, q.Question))
	}
	return diffs
}

// comparison is one query and what became of it.
type comparison struct {
	peerQuery
	transport              string   // over which the peer was asked
	network                string   // over which the client asked
	direct                 *dns.Msg // asked as healthforward asks, over the transport
	forward, healthforward *dns.Msg // nil: not asked
}

// clientSize is the largest reply that the client takes.
func (c comparison) clientSize() int {
	switch opt := c.msg.IsEdns0(); {
	case c.network == "tcp":
		return dns.MaxMsgSize
	case opt == nil:
		return dns.MinMsgSize
	default:
		return int(opt.UDPSize())
	}
}

// deliberate are the differences between a reply by healthforward and one by
// forward that are meant. All others are errors. The first row that fits counts.
var deliberate = []struct {
	name, why string
	is        func(c comparison, diffs []string) bool
}{
	{
		name: "1232",
		why: "healthforward invites 1232 octets over UDP, which cross every path whole, forward as many as its client; " +
			"a client that invites more gets TC and asks again over TCP",
		is: func(c comparison, _ []string) bool {
			return c.transport == "udp" && c.clientSize() > upstreamSize && c.healthforward.Truncated && !c.forward.Truncated
		},
	},
	{
		name: "size on a stream",
		why: "CoreDNS's server (1.15.0) takes QUIC for UDP and cuts replies to the EDNS size; forward sends its client's, or none, " +
			"even for a client over TCP, and healthforward one that cuts nothing",
		is: func(c comparison, _ []string) bool {
			return c.transport == "quic" && c.forward.Truncated && !c.healthforward.Truncated
		},
	},
	{
		name: "padding",
		why: "kresd pads its replies over TLS and HTTPS; forward hands the padding on to clients over UDP, who get TC for it, and " +
			"healthforward takes it out, because it is for one hop",
		is: func(c comparison, _ []string) bool {
			return (c.transport == "tls" || c.transport == "https") && c.forward.Truncated && !c.healthforward.Truncated
		},
	},
	{
		name: "no OPT for who sent none",
		why: "dnsmasq adds one over TCP, with an extended error where it refuses; forward hands it on, and healthforward " +
			"takes it out (RFC 6891, section 6.1.1)",
		is: func(c comparison, diffs []string) bool {
			return c.msg.IsEdns0() == nil && c.forward.IsEdns0() != nil && !slices.ContainsFunc(diffs, func(diff string) bool {
				return diff != "an OPT false, want true" && !strings.HasPrefix(diff, "extended errors [], ")
			})
		},
	},
}

// deliberateRow returns the name of the row that explains the differences.
func deliberateRow(c comparison, diffs []string) (string, bool) {
	for _, row := range deliberate {
		if row.is(c, diffs) {
			return row.name, true
		}
	}
	return "", false
}
