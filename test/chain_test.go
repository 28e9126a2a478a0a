package test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	tap "github.com/dnstap/golang-dnstap"
	"github.com/miekg/dns"
	"google.golang.org/protobuf/proto"
)

// around are the stock plugins that stand around healthforward in these tests.
const around = `errors
	log
	loadbalance
	rewrite name exact alias.lab.test host.lab.test answer auto
	minimal
	cache 30 {
		servfail 5s
	}`

// TestAShortOutageIsNotKeptByCache: cache keeps for 5 s whatever failure it is
// told of, so it is told of none. With forward the name would fail for as long.
func TestAShortOutageIsNotKeptByCache(t *testing.T) {
	up := startUpstream(t, loopbackAddr(freePort(t)), addressA)
	s := startServer(t, fmt.Sprintf(".:{PORT1} {\n bind 127.0.0.1\n%s\n healthforward . %s\n}", around, up.listen))
	if reply := ask(t, s.addr(), "alias.lab.test", dns.TypeA); len(reply.Answer) != 1 {
		t.Fatalf("before the outage: %v", reply)
	}
	up.Signal(syscall.SIGSTOP)
	if reply := ask(t, s.addr(), "other.lab.test", dns.TypeA); reply.Rcode != dns.RcodeServerFailure {
		t.Fatalf("in the outage: %v", reply)
	}
	up.Signal(syscall.SIGCONT)
	back := time.Now()
	waitFor(t, startLimit, "an answer after the outage", func() error {
		if reply := ask(t, s.addr(), "other.lab.test", dns.TypeA); len(reply.Answer) != 1 {
			return fmt.Errorf("%s", dns.RcodeToString[reply.Rcode])
		}
		return nil
	})
	if took := time.Since(back); took > 4*time.Second {
		t.Errorf("the name answers %v after the outage: somebody kept the failure", took)
	}
}

// TestAViewChoosesTheBlock: a query that one block's view lets pass goes to that
// block's upstream.
func TestAViewChoosesTheBlock(t *testing.T) {
	a := startUpstream(t, loopbackAddr(freePort(t)), addressA)
	b := startUpstream(t, loopbackAddr(freePort(t)), addressB)
	s := startServer(t, fmt.Sprintf(`.:{PORT1} {
		bind 127.0.0.1
		view aaaa {
			expr name() startsWith 'viewed.'
		}
		%s
		healthforward . %s
	}
	.:{PORT1} {
		bind 127.0.0.1
		%s
		healthforward . %s
	}`, around, a.listen, around, b.listen))
	for name, want := range map[string]string{"viewed.lab.test": addressA, "plain.lab.test": addressB} {
		if got := answerText(ask(t, s.addr(), name, dns.TypeA)); got != name+". A "+want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// TestEveryAttemptIsTapped reads what dnstap gets: a query for each attempt, and a
// response for each that was answered.
func TestEveryAttemptIsTapped(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "tap.sock")
	input, err := tap.NewFrameStreamSockInputFromPath(socket)
	if err != nil {
		t.Fatal(err)
	}
	frames := make(chan []byte, 100)
	go input.ReadInto(frames)

	refusing := startServer(t, ".:{PORT1} {\n bind 127.0.0.1\n template ANY ANY {\n rcode REFUSED\n }\n}")
	up := startUpstream(t, loopbackAddr(freePort(t)), addressA)
	s := startServer(t, fmt.Sprintf(`.:{PORT1} {
		bind 127.0.0.1
		dnstap %s full
		healthforward . %s %s {
			policy sequential
		}
	}`, socket, refusing.addr(), up.listen))
	if reply := ask(t, s.addr(), "host.lab.test", dns.TypeA); len(reply.Answer) != 1 {
		t.Fatalf("reply %v", reply)
	}

	type seen struct {
		kind tap.Message_Type
		port uint32
	}
	want := map[seen]bool{
		{tap.Message_FORWARDER_QUERY, portOf(t, refusing.addr())}:    true,
		{tap.Message_FORWARDER_RESPONSE, portOf(t, refusing.addr())}: true,
		{tap.Message_FORWARDER_QUERY, portOf(t, up.listen)}:          true,
		{tap.Message_FORWARDER_RESPONSE, portOf(t, up.listen)}:       true,
	}
	timeout := time.NewTimer(startLimit)
	defer timeout.Stop()
	for len(want) > 0 {
		select {
		case frame := <-frames:
			var d tap.Dnstap
			if err := proto.Unmarshal(frame, &d); err != nil {
				t.Fatal(err)
			}
			delete(want, seen{d.Message.GetType(), d.Message.GetResponsePort()})
			if d.Message.GetType() == tap.Message_FORWARDER_RESPONSE && new(dns.Msg).Unpack(d.Message.GetResponseMessage()) != nil {
				t.Error("a tapped response is no message")
			}
		case <-timeout.C:
			t.Fatalf("never tapped: %v", want)
		}
	}
}

func portOf(t *testing.T, addr string) uint32 {
	t.Helper()
	var a, b, c, d, port uint32
	if _, err := fmt.Sscanf(addr, "%d.%d.%d.%d:%d", &a, &b, &c, &d, &port); err != nil {
		t.Fatal(err)
	}
	return port
}

// TestALoopEndsTheProcess: the loop plugin finds out at start that we forward to
// ourselves, because its query comes back as it left.
func TestALoopEndsTheProcess(t *testing.T) {
	text, _ := withPorts(t, ".:{PORT1} {\n bind 127.0.0.1\n loop\n healthforward . 127.0.0.1:{PORT1}\n}")
	path := filepath.Join(t.TempDir(), "Corefile")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, "coredns", t.TempDir(), "-conf", path)
	if err := p.Wait(startLimit); err == nil || !strings.Contains(p.Log(), "Loop (") {
		t.Errorf("the process ended with %v, want by the loop plugin", err)
	}
}

// TestClassCHIsForwarded: CoreDNS itself refuses it, unless a plugin is there for it.
func TestClassCHIsForwarded(t *testing.T) {
	up := startUpstream(t, loopbackAddr(freePort(t)), addressA)
	s := startServer(t, fmt.Sprintf(".:{PORT1} {\n bind 127.0.0.1\n healthforward . %s\n}", up.listen))
	reply := ask(t, s.addr(), "version.bind", dns.TypeTXT, func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS })
	if reply.Rcode != dns.RcodeNameError {
		t.Errorf("reply %s, want the upstream's NXDOMAIN", dns.RcodeToString[reply.Rcode])
	}
}

// TestDnssecSignsWhatComes: the dnssec plugin stands above us and signs answers and
// denials on the fly.
func TestDnssecSignsWhatComes(t *testing.T) {
	key := &dns.DNSKEY{
		Hdr:   dns.RR_Header{Name: "lab.test.", Rrtype: dns.TypeDNSKEY, Class: dns.ClassINET, Ttl: 3600},
		Flags: 257, Protocol: 3, Algorithm: dns.ECDSAP256SHA256,
	}
	private, err := key.Generate(256)
	if err != nil {
		t.Fatal(err)
	}
	base := filepath.Join(t.TempDir(), "Klab.test.+013+00001")
	for name, content := range map[string]string{base + ".key": key.String() + "\n", base + ".private": key.PrivateKeyString(private)} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	up := startUpstream(t, loopbackAddr(freePort(t)), addressA)
	s := startServer(t, fmt.Sprintf(".:{PORT1} {\n bind 127.0.0.1\n cache 30\n dnssec lab.test {\n key file %s\n }\n healthforward . %s\n}", base, up.listen))
	reply := ask(t, s.addr(), "host.lab.test", dns.TypeA, func(m *dns.Msg) { m.SetEdns0(4096, true) })
	var signed bool
	for _, rr := range reply.Answer {
		if sig, ok := rr.(*dns.RRSIG); ok && sig.TypeCovered == dns.TypeA {
			signed = sig.Verify(key, reply.Answer[:1]) == nil
		}
	}
	if !signed {
		t.Errorf("no valid signature in\n%v", reply)
	}
}
