package healthforward

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/coredns/coredns/plugin/dnstap"
	"github.com/coredns/coredns/plugin/dnstap/msg"
	"github.com/coredns/coredns/request"
	tap "github.com/dnstap/golang-dnstap"
	"github.com/miekg/dns"
	ot "github.com/opentracing/opentracing-go"
	otext "github.com/opentracing/opentracing-go/ext"
)

// sent is one attempt as dnstap shows it.
type sent struct {
	up    *upstream
	at    time.Time
	reply *dns.Msg // nil: none yet
	ended time.Time
}

// tapAttempt tells the dnstap plugins of an attempt: that it was made, and its
// reply, if there is one by now. It is called from the goroutine of ServeDNS.
func (f *Forwarder) tapAttempt(ctx context.Context, state request.Request, s sent) {
	for _, t := range f.taps {
		// dnstap's FORWARDER messages are from our point of view: we are who asks.
		q := new(tap.Message)
		msg.SetQueryTime(q, s.at)
		_ = msg.SetResponseAddress(q, s.up.netAddr()) // fails for neither UDP nor TCP
		if t.IncludeRawMessage {
			q.QueryMessage, _ = state.Req.Pack()
		}
		msg.SetType(q, tap.Message_FORWARDER_QUERY)
		t.TapMessageWithMetadata(ctx, q, state)

		if s.reply == nil {
			continue
		}
		r := new(tap.Message)
		msg.SetQueryTime(r, s.at)
		msg.SetResponseTime(r, s.ended)
		_ = msg.SetResponseAddress(r, s.up.netAddr())
		if t.IncludeRawMessage {
			r.ResponseMessage, _ = s.reply.Pack()
		}
		msg.SetType(r, tap.Message_FORWARDER_RESPONSE)
		t.TapMessageWithMetadata(ctx, r, state)
	}
}

// netAddr returns the upstream's address in the form that tells its transport.
func (u *upstream) netAddr() net.Addr {
	addr, err := netip.ParseAddrPort(u.addr)
	if err != nil {
		return nil // it is an address since the Corefile was read
	}
	switch u.proto {
	case protoUDP, "quic":
		return net.UDPAddrFromAddrPort(addr)
	}
	return net.TCPAddrFromAddrPort(addr)
}

// setTaps finds the dnstap plugins of the server block: each may have another one
// behind it.
func (f *Forwarder) setTaps(first any) {
	for {
		t, ok := first.(*dnstap.Dnstap)
		if !ok {
			return
		}
		f.taps = append(f.taps, t)
		first = t.Next
	}
}

// span begins a span for an attempt, or returns nil where the query is not traced.
func span(ctx context.Context, u *upstream) ot.Span {
	parent := ot.SpanFromContext(ctx)
	if parent == nil {
		return nil
	}
	s := parent.Tracer().StartSpan("connect", ot.ChildOf(parent.Context()))
	otext.PeerAddress.Set(s, u.addr)
	return s
}
