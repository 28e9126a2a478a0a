package healthforward

import (
	"fmt"
	"slices"
	"strings"

	"steadfast.internal/plugin/healthforward/internal/pool"
	"steadfast.internal/plugin/healthforward/internal/transport"

	"github.com/miekg/dns"
)

const (
	// udpSize is the largest reply over UDP that we invite: it crosses every path
	// without fragments (DNS flag day 2020).
	udpSize = 1232
	// streamSize is what we say where the transport has no such limit: there are
	// servers that cut replies over QUIC by it.
	streamSize = dns.MaxMsgSize - 1
)

// query is a client's request as it goes upstream, packed once for all attempts.
// It is not changed after prepare.
type query struct {
	edns  transport.Query // with our OPT, over UDP
	wide  transport.Query // with our OPT, over everything else
	plain transport.Query // without, for servers that do not know it
	bare  bool            // the client itself sent no OPT
	once  bool            // to be delivered at most once, as it was received
	about pool.Query      // what the pool may know of it
}

// prepare makes the query of r, which it does not change.
func prepare(r *dns.Msg) (query, error) {
	about := pool.NewQuery(strings.ToLower(r.Question[0].Name))
	if sentOnce(r) {
		as, err := transport.NewQuery(r)
		if err != nil {
			return query{}, err
		}
		return query{edns: as, wide: as, plain: as, bare: r.IsEdns0() == nil, once: true, about: about}, nil
	}
	// A shallow copy: only the additional section is ours.
	out := *r
	theirs := r.IsEdns0()
	out.Extra = make([]dns.RR, 0, len(r.Extra))
	for _, rr := range r.Extra {
		if rr.Header().Rrtype != dns.TypeOPT {
			out.Extra = append(out.Extra, rr)
		}
	}
	plain, err := transport.NewQuery(&out)
	if err != nil {
		return query{}, err
	}
	q := query{plain: plain, bare: theirs == nil, about: about}
	opt := ourOPT(theirs)
	if q.edns, err = plain.WithAdditional(opt); err == nil {
		opt.SetUDPSize(streamSize)
		q.wide, err = plain.WithAdditional(opt)
	}
	if err != nil {
		return query{}, fmt.Errorf("with OPT: %w", err)
	}
	return q, nil
}

// ourOPT is the OPT record of this hop (RFC 6891, section 6.2.1 makes it one):
// with the client's DO bit and options, but for those of its own hop. Without an
// OPT no upstream could say that a SERVFAIL is DNSSEC's.
func ourOPT(theirs *dns.OPT) *dns.OPT {
	opt := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
	opt.SetUDPSize(udpSize)
	if theirs == nil {
		return opt
	}
	if theirs.Do() {
		opt.SetDo()
	}
	for _, o := range theirs.Option {
		if !ofOneHop(o) {
			opt.Option = append(opt.Option, o)
		}
	}
	return opt
}

// ofOneHop reports whether the option is between two neighbours: a cookie (RFC
// 7873), what one wants of its connection (RFC 7828, which a server over QUIC has to
// take for an error: RFC 9250, section 5.5.2), and padding (RFC 7830), which would
// make a reply over TLS too large for a client over UDP.
func ofOneHop(o dns.EDNS0) bool {
	switch o.Option() {
	case dns.EDNS0COOKIE, dns.EDNS0TCPKEEPALIVE, dns.EDNS0PADDING:
		return true
	}
	return false
}

// sentOnce reports whether r must reach an upstream at most once and as it is:
// it changes something there, is signed, is a transfer, or is the HINFO query by
// which the loop plugin finds out that it forwards to itself.
func sentOnce(r *dns.Msg) bool {
	if r.Opcode != dns.OpcodeQuery {
		return true
	}
	switch r.Question[0].Qtype {
	case dns.TypeAXFR, dns.TypeIXFR, dns.TypeHINFO:
		return true
	}
	if len(r.Extra) == 0 {
		return false
	}
	switch r.Extra[len(r.Extra)-1].Header().Rrtype {
	case dns.TypeTSIG, dns.TypeSIG:
		return true
	}
	return false
}

// rejectsOPT reports whether the reply says that its server cannot read an OPT
// record (RFC 6891, section 7).
func rejectsOPT(reply *dns.Msg) bool {
	switch reply.Rcode {
	case dns.RcodeFormatError, dns.RcodeNotImplemented, dns.RcodeBadVers:
		return true
	}
	return false
}

// restore turns the reply of an upstream into the one to r: its ID, its question
// to the letter, and an OPT only for who sent one (RFC 6891, section 6.1.1).
func (q query) restore(reply, r *dns.Msg) {
	reply.Id = r.Id
	reply.Question = r.Question
	if opt := reply.IsEdns0(); opt != nil {
		opt.Option = slices.DeleteFunc(opt.Option, ofOneHop)
	}
	if !q.bare {
		return
	}
	extra := reply.Extra[:0]
	for _, rr := range reply.Extra {
		if rr.Header().Rrtype != dns.TypeOPT {
			extra = append(extra, rr)
		}
	}
	reply.Extra = extra
	if reply.Rcode > 0xF { // its upper bits were in the OPT
		reply.Rcode = dns.RcodeServerFailure
	}
}
