package healthforward

import (
	"bytes"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"steadfast.internal/plugin/healthforward/internal/transport"
	"steadfast.internal/plugin/internal/dnsfake"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
	"github.com/opentracing/opentracing-go"
	"github.com/opentracing/opentracing-go/mocktracer"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// chain starts several stanzas, each with the next behind it.
func chain(t *testing.T, stanzas string, addrs ...string) *Forwarder {
	t.Helper()
	fs := startAll(t, newRegistry(transport.New), stanzas, addrs...)
	for i := range fs[:len(fs)-1] {
		fs[i].Next = fs[i+1]
	}
	return fs[0]
}

func TestNextAsksTheNextStanza(t *testing.T) {
	for name, tc := range map[string]struct {
		property string
		first    dnsfake.Handler
		want     string // address; "" is the first one's reply
	}{
		"its rcode is listed":            {"next NXDOMAIN", dnsfake.Rcode(dns.RcodeNameError), "192.0.2.2"},
		"its rcode is another":           {"next REFUSED", dnsfake.Rcode(dns.RcodeNameError), ""},
		"it fails with what fails over":  {"next SERVFAIL", dnsfake.Rcode(dns.RcodeServerFailure), "192.0.2.2"},
		"NODATA":                         {"next_on_nodata", dnsfake.Answer(), "192.0.2.2"},
		"NODATA is no rcode":             {"next NXDOMAIN", dnsfake.Answer(), ""},
		"NXDOMAIN is no NODATA":          {"next_on_nodata", dnsfake.Rcode(dns.RcodeNameError), ""},
		"an answer is an answer":         {"next_on_nodata", dnsfake.Address("192.0.2.1"), "192.0.2.1"},
		"also an answer, if it is named": {"next NOERROR", dnsfake.Address("192.0.2.1"), "192.0.2.2"},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := dnsfake.New(t, tc.first), dnsfake.New(t, dnsfake.Address("192.0.2.2"))
			f := chain(t, "healthforward . %s {\n "+tc.property+"\n}\nhealthforward . %s", a.Addr(), b.Addr())
			reply, _, err := ask(t, f, question("example.org.", dns.TypeA))
			if got := addressIn(reply); reply == nil || got != tc.want || err != nil {
				t.Errorf("reply %v, error %v; want %q", reply, err, tc.want)
			}
		})
	}
}

func TestNextWithoutANextStanzaDelivers(t *testing.T) {
	up := dnsfake.New(t, dnsfake.Rcode(dns.RcodeNameError))
	f := start(t, "healthforward . %s {\n next NXDOMAIN\n}", up.Addr())
	f.Next = test.NextHandler(dns.RcodeRefused, nil) // some other plugin
	if reply, _, _ := ask(t, f, question("example.org.", dns.TypeA)); reply == nil || reply.Rcode != dns.RcodeNameError {
		t.Errorf("reply %v, want the upstream's", reply)
	}
}

func TestTheTransportIsTheClientsUnlessToldOtherwise(t *testing.T) {
	udp, tcp := &test.ResponseWriter{}, &test.ResponseWriter{TCP: true}
	for name, tc := range map[string]struct {
		property string
		client   *test.ResponseWriter
		want     string
	}{
		"UDP":                               {"", udp, "udp"},
		"TCP":                               {"", tcp, "tcp"},
		"UDP, force_tcp":                    {"force_tcp", udp, "tcp"},
		"TCP, prefer_udp":                   {"prefer_udp", tcp, "udp"},
		"UDP, both: force_tcp wins":         {"force_tcp\n prefer_udp", udp, "tcp"},
		"TCP, both: force_tcp wins as well": {"force_tcp\n prefer_udp", tcp, "tcp"},
	} {
		t.Run(name, func(t *testing.T) {
			up := dnsfake.New(t, dnsfake.Address("192.0.2.1"))
			f := start(t, "healthforward . %s {\n "+tc.property+"\n}", up.Addr())
			reply, _, _ := askOver(t, f, question("example.org.", dns.TypeA), tc.client)
			if addressIn(reply) != "192.0.2.1" {
				t.Fatalf("reply %v", reply)
			}
			for _, r := range up.Seen() {
				if r.Name() == "example.org." && r.Proto != tc.want {
					t.Errorf("asked over %s, want %s", r.Proto, tc.want)
				}
			}
			waitFor(t, "it is ready", f.Ready)
		})
	}
}

// overUDP truncates what is asked over UDP and answers the rest.
func overUDP(r dnsfake.Request) dnsfake.Response {
	response := dnsfake.Address("192.0.2.1")(r)
	if r.Proto == "udp" {
		response.Msg.Truncated, response.Msg.Answer = true, nil
	}
	return response
}

func TestPreferUDPAsksAgainOverTCPWhenTruncated(t *testing.T) {
	up := dnsfake.New(t, overUDP)
	for name, w := range map[string]*test.ResponseWriter{"a client over UDP": {}, "a client over TCP": {TCP: true}} {
		f := start(t, "healthforward . %s {\n prefer_udp\n}", up.Addr())
		if reply, _, _ := askOver(t, f, question("example.org.", dns.TypeA), w); addressIn(reply) != "192.0.2.1" || reply.Truncated {
			t.Errorf("%s: reply %v, want the whole one", name, reply)
		}
	}
	t.Run("nobody serves TCP", func(t *testing.T) {
		truncated := dnsfake.New(t, func(r dnsfake.Request) dnsfake.Response {
			if r.Proto == "tcp" {
				return dnsfake.Response{Close: true}
			}
			return overUDP(r)
		})
		f := start(t, "healthforward . %s {\n prefer_udp\n}", truncated.Addr())
		if reply, _, _ := ask(t, f, question("example.org.", dns.TypeA)); reply == nil || !reply.Truncated {
			t.Errorf("reply %v, want the truncated one", reply)
		}
	})
}

func TestMaxConnectAttempts(t *testing.T) {
	refused := dnsfake.Rcode(dns.RcodeRefused)
	for attempts, want := range map[int]string{1: "", 2: "", 3: "192.0.2.3", 0: "192.0.2.3"} {
		a, b, c := dnsfake.New(t, refused), dnsfake.New(t, dnsfake.Rcode(dns.RcodeServerFailure)), dnsfake.New(t, dnsfake.Address("192.0.2.3"))
		f := start(t, fmt.Sprintf("healthforward . %%s %%s %%s {\n policy sequential\n max_connect_attempts %d\n}", attempts), a.Addr(), b.Addr(), c.Addr())
		waitFor(t, "all are up", func() bool { return countState(f, "up") == 3 })
		if reply, _, _ := ask(t, f, question("example.org.", dns.TypeA)); reply == nil || addressIn(reply) != want {
			t.Errorf("%d attempts: reply %v, want %q", attempts, reply, want)
		}
	}
}

func TestFailfastWhileNobodyIsUp(t *testing.T) {
	up := dnsfake.New(t, dnsfake.Silence)
	f := start(t, "healthforward . %s {\n failfast_all_unhealthy_upstreams\n}", up.Addr())
	waitFor(t, "it is ejected", func() bool { return countState(f, "ejected") == 1 })
	f.canary.takes(time.Now()) // the canary of this tenth of a second is away
	failed := 0
	for i := range 50 {
		began := time.Now()
		if reply, rcode, err := ask(t, f, question(fmt.Sprintf("n%d.example.org.", i), dns.TypeA)); reply != nil || rcode != dns.RcodeServerFailure || err != nil {
			t.Fatalf("reply %v, ServeDNS = %d, %v; want SERVFAIL, unwritten", reply, rcode, err)
		}
		if time.Since(began) > time.Second {
			break // a canary: it has waited
		}
		failed++
	}
	if failed == 0 {
		t.Error("the first query after a canary waited")
	}
	if n := len(up.Seen()); n > 10 {
		t.Errorf("the upstream was asked %d times, probes included", n)
	}
	up.Set(dnsfake.Address("192.0.2.1"))
	waitFor(t, "it answers again", func() bool {
		reply, _, _ := ask(t, f, question("example.org.", dns.TypeA))
		return addressIn(reply) == "192.0.2.1"
	})
}

func TestHealthCheckSaysWhatProbesAskFor(t *testing.T) {
	up := dnsfake.New(t, dnsfake.Address("192.0.2.1"))
	start(t, "healthforward . %s {\n health_check 1s no_rec domain probe.example.org\n}", up.Addr())
	waitFor(t, "it is probed", func() bool { return up.Count("probe.example.org.") > 0 })
	if r := up.Seen()[0]; r.RecursionDesired || r.Question[0].Qtype != dns.TypeNS {
		t.Errorf("probe is %v", r.Msg)
	}
}

func TestSourceAddress(t *testing.T) {
	up := dnsfake.New(t, dnsfake.Address("192.0.2.1"))
	f := start(t, "healthforward . %s {\n source_address 127.0.0.77\n}", up.Addr())
	for _, w := range []*test.ResponseWriter{{}, {TCP: true}} {
		if reply, _, _ := askOver(t, f, question("example.org.", dns.TypeA), w); addressIn(reply) != "192.0.2.1" {
			t.Fatalf("reply %v", reply)
		}
	}
	for _, r := range up.Seen() {
		if host, _, _ := net.SplitHostPort(r.From.String()); host != "127.0.0.77" {
			t.Errorf("asked from %s over %s", host, r.Proto)
		}
	}
}

func TestAFileThatAppearsIsFound(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	f := start(t, "healthforward . %s", path)
	if reply, rcode, err := ask(t, f, question("example.org.", dns.TypeA)); reply != nil || rcode != dns.RcodeServerFailure || err != nil {
		t.Errorf("without an upstream: wrote %v, ServeDNS = %d, %v; want SERVFAIL, unwritten", reply, rcode, err)
	}
	// resolv.conf knows no ports, so the fake cannot stand in it: one that nobody
	// serves does.
	if err := os.WriteFile(path, []byte("nameserver 127.0.0.99\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "its nameserver is an upstream", func() bool { return len(f.groupFor(protoUDP).upstreams) == 1 })
}

func TestAHostNameIsResolvedByTheResolver(t *testing.T) {
	up := dnsfake.New(t, dnsfake.Address("192.0.2.1"))
	_, port, _ := net.SplitHostPort(up.Addr())
	resolver := dnsfake.New(t, dnsfake.Rcode(dns.RcodeServerFailure))
	f := start(t, "healthforward . upstream.example.org:"+port+" {\n resolver %s\n}", resolver.Addr())
	if reply, rcode, err := ask(t, f, question("example.org.", dns.TypeA)); reply != nil || rcode != dns.RcodeServerFailure || err != nil {
		t.Errorf("unresolved: wrote %v, ServeDNS = %d, %v; want SERVFAIL, unwritten", reply, rcode, err)
	}
	resolver.Set(func(r dnsfake.Request) dnsfake.Response {
		if r.Question[0].Qtype == dns.TypeA {
			return dnsfake.Address("127.0.0.1")(r)
		}
		return dnsfake.Answer()(r)
	})
	waitFor(t, "it is resolved and answers", func() bool {
		reply, _, _ := ask(t, f, question("example.org.", dns.TypeA))
		return addressIn(reply) == "192.0.2.1"
	})
}

func TestAReloadKeepsWhatWasKnownOfAName(t *testing.T) {
	up := dnsfake.New(t, dnsfake.Address("192.0.2.1"))
	_, port, _ := net.SplitHostPort(up.Addr())
	resolver := dnsfake.New(t, func(r dnsfake.Request) dnsfake.Response {
		if r.Question[0].Qtype == dns.TypeA {
			return dnsfake.Address("127.0.0.1")(r)
		}
		return dnsfake.Answer()(r)
	})
	r := newRegistry(transport.New)
	stanza := "healthforward . upstream.example.org:" + port + " {\n resolver %s\n}"
	before := live(t, load(t, r, stanza, resolver.Addr()))
	resolver.Set(dnsfake.Rcode(dns.RcodeServerFailure))
	before.mark()
	after := live(t, load(t, r, stanza, resolver.Addr()))
	before.shutdown()
	if reply, rcode, err := ask(t, after.forwarders[0], question("example.org.", dns.TypeA)); addressIn(reply) != "192.0.2.1" {
		t.Errorf("reply %v, ServeDNS = %d, %v", reply, rcode, err)
	}
}

func TestTwinsAreOneUpstream(t *testing.T) {
	up := dnsfake.New(t, dnsfake.Address("192.0.2.1"))
	f := start(t, "healthforward . %s %s dns://%s", up.Addr(), up.Addr(), up.Addr())
	if n := len(f.groupFor(protoUDP).upstreams); n != 1 {
		t.Errorf("%d upstreams, want 1", n)
	}
}

func TestAllStanzasShareOneReady(t *testing.T) {
	up, silent := dnsfake.New(t, dnsfake.Address("192.0.2.1")), dnsfake.New(t, dnsfake.Silence)
	f := chain(t, "healthforward example.org %s\nhealthforward . %s", up.Addr(), silent.Addr())
	waitFor(t, "the first is ready", func() bool { return f.groupFor(protoUDP).Ready() })
	second := f.Next.(*Forwarder)
	if f.Ready() && !second.groupFor(protoUDP).Ready() {
		t.Error("ready before the second stanza is")
	}
	waitFor(t, "all are ready", f.Ready)
}

func TestEveryAttemptHasASpan(t *testing.T) {
	a, b := dnsfake.New(t, dnsfake.Rcode(dns.RcodeRefused)), dnsfake.New(t, dnsfake.Address("192.0.2.2"))
	f := start(t, "healthforward . %s %s {\n policy sequential\n}", a.Addr(), b.Addr())
	waitFor(t, "both are up", func() bool { return countState(f, "up") == 2 })
	tracer := mocktracer.New()
	root := tracer.StartSpan("query")
	ctx := opentracing.ContextWithSpan(t.Context(), root)
	if _, err := f.ServeDNS(ctx, &test.ResponseWriter{}, question("example.org.", dns.TypeA)); err != nil {
		t.Fatal(err)
	}
	var peers []any
	for _, span := range tracer.FinishedSpans() {
		if span.ParentID != root.(*mocktracer.MockSpan).SpanContext.SpanID {
			t.Errorf("span %v is not the query's", span)
		}
		peers = append(peers, span.Tag("peer.address"))
	}
	if len(peers) != 2 || peers[0] != a.Addr() || peers[1] != b.Addr() {
		t.Errorf("spans for %v, want %s and %s", peers, a.Addr(), b.Addr())
	}
}

func TestAttemptsFeedTheHistogramOfForward(t *testing.T) {
	up := dnsfake.New(t, dnsfake.Rcode(dns.RcodeNameError))
	f := start(t, "healthforward . %s", up.Addr())
	for range 3 {
		ask(t, f, question("example.org.", dns.TypeA))
	}
	want := fmt.Sprintf(`coredns_proxy_request_duration_seconds_count{proxy_name="healthforward",rcode="NXDOMAIN",to=%q} 3`, up.Addr())
	recorder := httptest.NewRecorder()
	promhttp.Handler().ServeHTTP(recorder, httptest.NewRequest("GET", "/metrics", nil))
	if text := recorder.Body.String(); !strings.Contains(text, want) {
		t.Errorf("no %s", want)
	}
}

func TestDebugShowsWhatIsNoReply(t *testing.T) {
	var out lockedBuffer
	clog.SetOutput(&out)
	clog.D.Set()
	defer clog.Discard()
	defer clog.D.Clear()
	up := dnsfake.New(t, func(r dnsfake.Request) dnsfake.Response {
		response := dnsfake.Address("192.0.2.1")(r)
		if forged, err := wrongQuestion(r).Msg.Pack(); err == nil {
			response.Raw = [][]byte{forged}
		}
		return response
	})
	f := start(t, "healthforward . %s", up.Addr())
	if reply, _, _ := ask(t, f, question("example.org.", dns.TypeA)); addressIn(reply) != "192.0.2.1" {
		t.Fatalf("reply %v", reply)
	}
	waitFor(t, "the forged one is shown", func() bool { return strings.Contains(out.String(), "no reply to any query, from udp://"+up.Addr()) })
}

// lockedBuffer is a buffer that one goroutine reads while others write.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func TestOverlapWithForwardIsWarnedOf(t *testing.T) {
	for name, tc := range map[string]struct {
		forward, ours string
		want          bool
	}{
		"the same zone":   {"example.org", "example.org", true},
		"forward's above": {".", "example.org", true},
		"forward's below": {"sub.example.org", "example.org", true},
		"apart":           {"example.net", "example.org", false},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			clog.SetOutput(&out)
			defer clog.Discard()
			c := caddy.NewTestController("dns", "forward "+tc.forward+" 127.0.0.1")
			setupForward, err := caddy.DirectiveAction("dns", "forward")
			if err != nil {
				t.Fatal(err)
			}
			if err := setupForward(c); err != nil {
				t.Fatal(err)
			}
			stock := dnsserver.GetConfig(c).Plugin[0](nil)
			f := load(t, newRegistry(transport.New), "healthforward "+tc.ours+" 127.0.0.1").forwarders[0]
			f.warnOfOverlap([]plugin.Handler{f, stock})
			if got := strings.Contains(out.String(), "forward"); got != tc.want {
				t.Errorf("warned: %v, want %v: %s", got, tc.want, out.String())
			}
		})
	}
}
