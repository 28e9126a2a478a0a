package test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// wantAddress fails the test unless the block answers name with an alias and this
// one address, or with NODATA if that is "".
func (b *interplayBed) wantAddress(t *testing.T, name string, qtype uint16, address string) {
	t.Helper()
	wantAddressIn(t, ask(t, b.addr, name, qtype), name, address)
}

func wantAddressIn(t *testing.T, reply *dns.Msg, name, address string) {
	t.Helper()
	var got []string
	next := dns.Fqdn(name)
	for _, rr := range reply.Answer {
		if !strings.EqualFold(rr.Header().Name, next) {
			t.Errorf("%s: the answer goes on with %s, want %s:\n%v", name, rr.Header().Name, next, reply)
		}
		switch rr := rr.(type) {
		case *dns.CNAME:
			next = rr.Target
		case *dns.A:
			got = append(got, rr.A.String())
		case *dns.AAAA:
			got = append(got, rr.AAAA.String())
		}
	}
	if reply.Rcode != dns.RcodeSuccess || strings.Join(got, " ") != address || reply.Question[0].Name != dns.Fqdn(name) {
		t.Errorf("%s: want %q, get\n%v", name, address, reply)
	}
}

func (b *interplayBed) wantRcode(t *testing.T, name string, rcode int) {
	t.Helper()
	if reply := ask(t, b.addr, name, dns.TypeA); reply.Rcode != rcode {
		t.Errorf("%s: %s, want %s", name, dns.RcodeToString[reply.Rcode], dns.RcodeToString[rcode])
	}
}

// count returns how often a question came.
func (z *zoneServer) count(question string) int {
	n := 0
	for _, each := range z.asked() {
		if each == question {
			n++
		}
	}
	return n
}

// wantCount fails the test unless the upstream was asked a question so often. The
// upstream says it a little after it has answered.
func (b *interplayBed) wantCount(t *testing.T, question string, n int) {
	t.Helper()
	waitFor(t, startLimit, question+" at the upstream", func() error {
		if got := b.backend.count(question); got < n {
			return fmt.Errorf("asked %d times, want %d", got, n)
		}
		return nil
	})
	if got := b.backend.count(question); got > n {
		t.Errorf("asked upstream for %s %d times, want %d", question, got, n)
	}
}

// wantRootSOA fails the test unless reply is a denial with one SOA of the root
// that may be kept for ttl seconds at most.
func wantRootSOA(t *testing.T, reply *dns.Msg, rcode int, ttl uint32) {
	t.Helper()
	if reply.Rcode != rcode || len(reply.Answer) > 0 || len(reply.Ns) != 1 {
		t.Fatalf("want %s with one record of authority, get\n%v", dns.RcodeToString[rcode], reply)
	}
	soa, ok := reply.Ns[0].(*dns.SOA)
	if !ok || soa.Hdr.Name != "." || soa.Hdr.Ttl > ttl || soa.Minttl > ttl || soa.Hdr.Ttl == 0 {
		t.Errorf("authority %v, want an SOA of the root for at most %d s", reply.Ns[0], ttl)
	}
}

// noReplyFor is how long a reply must not come. A reply takes less than a tenth.
const noReplyFor = 500 * time.Millisecond

func (b *interplayBed) wantNoReply(t *testing.T, name string) {
	t.Helper()
	client := &dns.Client{Timeout: noReplyFor}
	reply, _, err := client.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeA), b.addr)
	var netError net.Error
	if !errors.As(err, &netError) || !netError.Timeout() {
		t.Errorf("get %v, %v, want no reply, though b.test has the name", reply, err)
	}
}

func checkLogged(t *testing.T, b *interplayBed) {
	b.wantRcode(t, "logged", dns.RcodeNameError)
	b.server.waitForLog("front logged. A NXDOMAIN.", startLimit)
	lines := strings.Count(b.server.Log(), "front logged.")
	if lines != 1 {
		t.Errorf("%d lines of one query", lines)
	}
}

func checkOneReply(t *testing.T, b *interplayBed) {
	conn, err := net.Dial("udp", b.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	query, _ := new(dns.Msg).SetQuestion("nope.", dns.TypeA).Pack()
	if _, err := conn.Write(query); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, dns.MinMsgSize)
	conn.SetReadDeadline(time.Now().Add(patience))
	n, err := conn.Read(buf)
	reply := new(dns.Msg)
	if err != nil || reply.Unpack(buf[:n]) != nil || reply.Rcode != dns.RcodeServerFailure {
		t.Errorf("get %v, %v, want SERVFAIL", reply, err)
	}
	conn.SetReadDeadline(time.Now().Add(noReplyFor))
	if _, err := conn.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a second reply, or %v", err)
	}
	if log := b.server.Log(); strings.Contains(log, "[ERROR] plugin/errors") {
		t.Errorf("errors says something")
	}
}

func checkCounted(t *testing.T, b *interplayBed) {
	b.wantAddress(t, "bonly", dns.TypeA, "192.0.2.23")
	b.wantRcode(t, "nope", dns.RcodeNameError)
	where := fmt.Sprintf(`server="dns://%s"`, b.addr)
	// CoreDNS counts a query after it has answered.
	waitFor(t, endLimit, "the counters", func() error {
		page, err := httpGet("http://" + b.server.addrOf("PORT99") + "/metrics")
		if err != nil {
			return err
		}
		for metric, want := range map[string]float64{
			"coredns_dns_requests_total":                            2,
			"coredns_dns_responses_total":                           2,
			`coredns_searchexpand_requests_total{result="answer"`:   1,
			`coredns_searchexpand_requests_total{result="nxdomain"`: 1,
			"coredns_searchexpand_candidates_total":                 4,
		} {
			if got := sumOf(t, page, metric, where); got != want {
				return fmt.Errorf("%s of this block is %v, want %v", metric, got, want)
			}
		}
		return nil
	})
}

// sumOf adds the samples of a metrics page that begin with prefix and hold where.
func sumOf(t *testing.T, page, prefix, where string) float64 {
	t.Helper()
	sum := 0.0
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, prefix) && strings.Contains(line, where) {
			var value float64
			if _, err := fmt.Sscan(line[strings.LastIndex(line, " "):], &value); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			sum += value
		}
	}
	return sum
}

func checkSpecialNames(t *testing.T, b *interplayBed) {
	for _, name := range []string{"wpad", "isatap", "WPAD"} {
		b.wantRcode(t, name, dns.RcodeNameError)
	}
	b.wantAddress(t, "localhost", dns.TypeA, "127.0.0.1")
	for question, qtype := range map[string]uint16{
		"org.": dns.TypeDNSKEY, "com.": dns.TypeNS, "nope.": dns.TypeSOA, "bonly.": dns.TypeCNAME,
		"1.2.0.192.in-addr.arpa.": dns.TypePTR, "printer.local.": dns.TypeA, "1.2.3.4.": dns.TypeA, "host.onion.": dns.TypeA,
	} {
		reply := ask(t, b.addr, question, qtype)
		if reply.Rcode != dns.RcodeNameError || len(reply.Answer) > 0 {
			t.Errorf("%s %s: %v, want the upstream's NXDOMAIN", question, dns.TypeToString[qtype], reply)
		}
	}
	for _, question := range b.backend.asked() {
		name, qtype, _ := strings.Cut(question, " ")
		if slices.Contains(neverCompleted, qtype) && dns.CountLabel(name) > 1 {
			t.Errorf("asked upstream for %s, which nobody asked for", question)
		}
	}
}

// TestCacheServesStaleNamesWhenTheUpstreamIsSilent: a bare name keeps its answer
// as long as cache keeps the full name's.
func TestCacheServesStaleNamesWhenTheUpstreamIsSilent(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, loopbackAddr(freePort(t)), addressA)
	s := startServer(t, fmt.Sprintf(`.:{PORT1} {
		bind 127.0.0.1
		searchexpand lab.test
		cache {
			success 1000 1 1
			serve_stale
		}
		healthforward . %s
	}`, up.listen))
	wantAddressIn(t, ask(t, s.addr(), "host", dns.TypeA), "host", addressA)
	up.Signal(syscall.SIGSTOP)
	defer up.Signal(syscall.SIGCONT)
	waitFor(t, startLimit, "a stale answer", func() error {
		reply := ask(t, s.addr(), "host", dns.TypeA)
		wantAddressIn(t, reply, "host", addressA)
		if t.Failed() {
			t.FailNow()
		}
		if slices.ContainsFunc(reply.Answer, func(rr dns.RR) bool { return rr.Header().Ttl > 0 }) {
			return errors.New("not stale yet")
		}
		return nil
	})
}

func makeDir(t *testing.T, dir string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}
