package healthforward

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"steadfast.internal/plugin/internal/dnsfake"

	"github.com/coredns/coredns/plugin/metadata"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestAnswersAsTheUpstreamDoes(t *testing.T) {
	up := dnsfake.New(t, dnsfake.Address("192.0.2.1"))
	f := start(t, "healthforward . %s", up.Addr())
	for name, w := range map[string]*test.ResponseWriter{"over UDP": {}, "over TCP": {TCP: true}} {
		t.Run(name, func(t *testing.T) {
			m := question("ExAmPlE.org.", dns.TypeA)
			reply, rcode, err := askOver(t, f, m, w)
			if rcode != dns.RcodeSuccess || err != nil {
				t.Fatalf("ServeDNS = %d, %v", rcode, err)
			}
			if got := addressIn(reply); got != "192.0.2.1" {
				t.Errorf("address = %q", got)
			}
			if reply.Id != m.Id || reply.Question[0].Name != "ExAmPlE.org." || !reply.Response {
				t.Errorf("reply is none to the request: %v", reply)
			}
			want := "udp"
			if w.TCP {
				want = "tcp"
			}
			seen := up.Seen()
			if got := seen[len(seen)-1].Proto; got != want {
				t.Errorf("forwarded over %s, want %s", got, want)
			}
		})
	}
}

func TestSentOnceAndAsReceived(t *testing.T) {
	update := new(dns.Msg).SetUpdate("example.org.")
	update.Insert([]dns.RR{test.A("new.example.org. 60 IN A 192.0.2.7")})
	signed := question("example.org.", dns.TypeA)
	signed.Extra = append(signed.Extra, &dns.TSIG{
		Hdr: dns.RR_Header{Name: "key.", Rrtype: dns.TypeTSIG, Class: dns.ClassANY}, Algorithm: dns.HmacSHA256,
		MACSize: 2, MAC: "abcd", OrigId: signed.Id,
	})
	for name, m := range map[string]*dns.Msg{
		"UPDATE": update,
		"NOTIFY": new(dns.Msg).SetNotify("example.org."),
		"AXFR":   new(dns.Msg).SetAxfr("example.org."),
		"IXFR":   new(dns.Msg).SetIxfr("example.org.", 1, "ns.example.org.", "host.example.org."),
		"HINFO":  question("123.456.", dns.TypeHINFO),
		"TSIG":   signed,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			slow := dnsfake.Probes(dnsfake.Address("192.0.2.9"), dnsfake.After(600*time.Millisecond, dnsfake.Rcode(dns.RcodeServerFailure)))
			a, b := dnsfake.New(t, slow), dnsfake.New(t, slow)
			f := start(t, "healthforward . %s %s {\n policy sequential\n}", a.Addr(), b.Addr())
			reply, _, err := ask(t, f, m.Copy())
			if reply == nil || reply.Rcode != dns.RcodeServerFailure || err != nil {
				t.Fatalf("reply %v, error %v", reply, err)
			}
			var got []dnsfake.Request
			for _, up := range []*dnsfake.Server{a, b} {
				got = append(got, slices.DeleteFunc(up.Seen(), func(r dnsfake.Request) bool { return r.Name() == "." })...)
			}
			if len(got) != 1 {
				t.Fatalf("the upstreams were asked %d times, want once", len(got))
			}
			if seen := got[0].Msg; seen.IsEdns0() != nil || len(seen.Extra) != len(m.Extra) || len(seen.Ns) != len(m.Ns) || seen.Opcode != m.Opcode {
				t.Errorf("sent as\n%v\nwant\n%v", seen, m)
			}
		})
	}
}

func TestEDNSIsOurs(t *testing.T) {
	up := dnsfake.New(t, dnsfake.Probes(dnsfake.Address("192.0.2.9"), func(r dnsfake.Request) dnsfake.Response {
		response := dnsfake.Address("192.0.2.1")(r)
		response.Msg.SetEdns0(4096, true)
		response.Msg.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_PADDING{Padding: make([]byte, 100)}}
		return response
	}))
	f := start(t, "healthforward . %s", up.Addr())
	waitFor(t, "it is up", func() bool { return countState(f, "up") == 1 })
	lastOPT := func() *dns.OPT {
		seen := up.Seen()
		return seen[len(seen)-1].IsEdns0()
	}
	client := question("example.org.", dns.TypeA).SetEdns0(4096, true)
	client.IsEdns0().Option = []dns.EDNS0{
		&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0123456789abcdef"},
		&dns.EDNS0_TCP_KEEPALIVE{Code: dns.EDNS0TCPKEEPALIVE},
		&dns.EDNS0_PADDING{Padding: make([]byte, 100)},
		&dns.EDNS0_NSID{Code: dns.EDNS0NSID},
	}
	reply, _, _ := ask(t, f, client)
	if opt := reply.IsEdns0(); opt == nil || len(opt.Option) != 0 {
		t.Errorf("OPT in the reply to who sent one is %v, want one without the upstream's padding", opt)
	}
	opt := lastOPT()
	if opt == nil || opt.UDPSize() != udpSize || !opt.Do() {
		t.Fatalf("OPT upstream = %v, want size %d and the client's DO", opt, udpSize)
	}
	if len(opt.Option) != 1 || opt.Option[0].Option() != dns.EDNS0NSID {
		t.Errorf("options upstream = %v, want all but those of the client's hop", opt.Option)
	}
	askOver(t, f, client, &test.ResponseWriter{TCP: true})
	if opt := lastOPT(); opt == nil || opt.UDPSize() != streamSize {
		t.Errorf("OPT upstream over TCP = %v, want size %d", opt, streamSize)
	}
	reply, _, _ = ask(t, f, question("example.org.", dns.TypeA))
	if opt := lastOPT(); opt == nil || opt.Do() {
		t.Errorf("OPT upstream = %v, want one without DO", opt)
	}
	if reply.IsEdns0() != nil {
		t.Error("OPT in the reply to who sent none")
	}
}

func TestAServerThatRejectsOPTIsAskedWithout(t *testing.T) {
	for name, rcode := range map[string]int{"FORMERR": dns.RcodeFormatError, "NOTIMP": dns.RcodeNotImplemented} {
		t.Run(name, func(t *testing.T) {
			old := dnsfake.New(t, func(r dnsfake.Request) dnsfake.Response {
				if r.IsEdns0() != nil {
					return dnsfake.Rcode(rcode)(r)
				}
				return dnsfake.Address("192.0.2.1")(r)
			})
			f := start(t, "healthforward . %s", old.Addr())
			waitFor(t, "it is up", func() bool { return countState(f, "up") == 1 })
			for range 3 {
				reply, _, _ := ask(t, f, question("example.org.", dns.TypeA))
				if got := addressIn(reply); got != "192.0.2.1" {
					t.Errorf("address = %q", got)
				}
			}
			if n := old.Count("example.org."); n != 3 {
				t.Errorf("asked %d times for 3 queries, want it remembered since the probe", n)
			}
		})
	}
}

func TestExceptAndOtherZonesPass(t *testing.T) {
	up := dnsfake.New(t, dnsfake.Address("192.0.2.1"))
	f := start(t, "healthforward example.org %s {\n except sub.example.org a.b.example.org\n}", up.Addr())
	f.Next = test.NextHandler(dns.RcodeNameError, nil)
	for name, forwarded := range map[string]bool{
		"example.org.":         true,
		"EXAMPLE.org.":         true,
		"www.example.org.":     true,
		"xsub.example.org.":    true,
		"sub.example.org.":     false,
		"www.SUB.example.org.": false,
		"b.example.org.":       true,
		"a.b.example.org.":     false,
		"example.com.":         false,
		"notexample.org.":      false,
	} {
		_, rcode, _ := ask(t, f, question(name, dns.TypeA))
		if got := rcode == dns.RcodeSuccess; got != forwarded {
			t.Errorf("%s forwarded: %v, want %v", name, got, forwarded)
		}
	}
}

func TestTooManyAtOnceAreRefused(t *testing.T) {
	release := make(chan struct{})
	up := dnsfake.New(t, dnsfake.Probes(dnsfake.Address("192.0.2.9"), func(r dnsfake.Request) dnsfake.Response {
		<-release
		return dnsfake.Address("192.0.2.1")(r)
	}))
	f := start(t, "healthforward . %s {\n max_concurrent 2\n read_timeout 20s\n}", up.Addr())
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() { ask(t, f, question(fmt.Sprintf("n%d.example.org.", i), dns.TypeA)) })
	}
	waitFor(t, "two are under way", func() bool { return f.concurrent.Load() == 2 })
	reply, rcode, err := ask(t, f, question("third.example.org.", dns.TypeA))
	if reply != nil || rcode != dns.RcodeRefused || !errors.Is(err, errFull) {
		t.Errorf("wrote %v, ServeDNS = %d, %v; want nothing, REFUSED", reply, rcode, err)
	}
	close(release)
	wg.Wait()
}

func TestTheProcessHasALimitOfQueriesThatWait(t *testing.T) {
	for name, tc := range map[string]struct {
		waiting int64
		refused bool
	}{
		"below the limit": {maxWaiting - 2, false},
		"up to the limit": {maxWaiting - 1, false},
		"above the limit": {maxWaiting, true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, "", func(t *testing.T, fw *Forwarder, _, _ *model) {
				fw.registry.waiting.Add(tc.waiting) // of other stanzas
				before := testutil.ToFloat64(unansweredTotal.WithLabelValues("full"))
				reply, rcode, err := ask(t, fw, question("example.org.", dns.TypeA))
				if refused := reply == nil && rcode == dns.RcodeRefused && errors.Is(err, errFull); refused != tc.refused {
					t.Errorf("wrote %v, ServeDNS = %d, %v; want REFUSED: %v", reply, rcode, err, tc.refused)
				}
				if counted := testutil.ToFloat64(unansweredTotal.WithLabelValues("full")) > before; counted != tc.refused {
					t.Errorf("counted as full: %v, want %v", counted, tc.refused)
				}
				if n := fw.registry.waiting.Load(); n != tc.waiting {
					t.Errorf("%d are taken to wait after that, want %d", n, tc.waiting)
				}
			})
		})
	}
}

func TestTruncatedIsPassedOn(t *testing.T) {
	truncated := func(r dnsfake.Request) dnsfake.Response {
		m := new(dns.Msg).SetReply(r.Msg)
		m.Truncated = true
		return dnsfake.Response{Msg: m}
	}
	a, b := dnsfake.New(t, truncated), dnsfake.New(t, dnsfake.Address("192.0.2.2"))
	f := start(t, "healthforward . %s %s {\n policy sequential\n}", a.Addr(), b.Addr())
	waitFor(t, "both are up", func() bool { return countState(f, "up") == 2 })
	if reply, _, _ := ask(t, f, question("example.org.", dns.TypeA)); reply == nil || !reply.Truncated {
		t.Errorf("reply = %v, want the truncated one", reply)
	}
}

func TestTheRequestIsNotChanged(t *testing.T) {
	up := dnsfake.New(t, dnsfake.Address("192.0.2.1"))
	f := start(t, "healthforward . %s", up.Addr())
	m := question("example.org.", dns.TypeA).SetEdns0(4096, true)
	before := m.Copy()
	ask(t, f, m)
	if m.String() != before.String() {
		t.Errorf("request is now\n%v\nwas\n%v", m, before)
	}
}

func TestMetadataNamesTheUpstream(t *testing.T) {
	up := dnsfake.New(t, dnsfake.Address("192.0.2.1"))
	f := start(t, "healthforward . %s", up.Addr())
	ctx := metadata.ContextWithMetadata(context.Background())
	if _, err := f.ServeDNS(ctx, &test.ResponseWriter{}, question("example.org.", dns.TypeA)); err != nil {
		t.Fatal(err)
	}
	for _, label := range []string{"healthforward/upstream", "forward/upstream"} {
		if value := metadata.ValueFunc(ctx, label); value == nil || value() != up.Addr() {
			t.Errorf("metadata %s does not name %s", label, up.Addr())
		}
	}
}
