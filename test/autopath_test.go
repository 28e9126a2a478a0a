package test

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	tap "github.com/dnstap/golang-dnstap"
	"github.com/miekg/dns"
	"google.golang.org/protobuf/proto"
)

// TestAFailingSuffixHidesNoOther: stock autopath, asked for the same host, ends at
// the suffix that fails, and tells the root what it did not find.
func TestAFailingSuffixHidesNoOther(t *testing.T) {
	t.Parallel()
	backend, stockBackend := startZoneSet(t), startZoneSet(t)
	dir := t.TempDir()
	failing := writeFile(t, dir, "failing.conf", "search a.test sf.test b.test\n")
	whole := writeFile(t, dir, "whole.conf", "search a.test b.test\n")
	s := startServer(t, fmt.Sprintf(`.:{PORT1} {
		bind 127.0.0.1
		searchexpand a.test sf.test b.test
		healthforward . %[1]s
	}
	.:{PORT2} {
		bind 127.0.0.1
		searchexpand a.test b.test
		healthforward . %[1]s
	}
	.:{PORT3} {
		bind 127.0.0.1
		autopath . %[3]s
		forward . %[2]s
	}
	.:{PORT4} {
		bind 127.0.0.1
		autopath . %[4]s
		forward . %[2]s
	}`, backend.addr(), stockBackend.addr(), failing, whole))
	ours, oursWhole, stock, stockWhole := s.addr(), s.addrOf("PORT2"), s.addrOf("PORT3"), s.addrOf("PORT4")

	reply := ask(t, ours, "bonly", dns.TypeA)
	wantAddressIn(t, reply, "bonly", "192.0.2.23")
	if ttl := reply.Answer[0].Header().Ttl; ttl > 5 {
		t.Errorf("the alias may be kept for %d s, though a nearer suffix is undecided", ttl)
	}
	wantAddressIn(t, ask(t, ours, "bonly", dns.TypeAAAA), "bonly", "")
	if reply := ask(t, stock, "bonly.a.test", dns.TypeA); reply.Rcode != dns.RcodeServerFailure {
		t.Errorf("stock autopath answers %v, and no longer fails for a suffix that does", reply)
	}

	withEDNS := func(m *dns.Msg) { m.SetEdns0(1232, false) }
	for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
		reply := ask(t, ours, "nope", qtype, withEDNS)
		if reply.Rcode != dns.RcodeServerFailure || len(extendedErrors(reply)) == 0 {
			t.Errorf("nope, while a suffix is undecided: %v, want SERVFAIL that says why", reply)
		}
		wantRootSOA(t, ask(t, oursWhole, "nope", qtype), dns.RcodeNameError, 20)
	}
	ask(t, stockWhole, "nope.a.test", dns.TypeA)
	waitFor(t, startLimit, "the bare name that stock autopath asks for", func() error {
		if asked := stockBackend.asked(); !slices.Contains(asked, "nope. A") {
			return fmt.Errorf("asked %v", asked)
		}
		return nil
	})
	backend.checkNothingLeaked()
}

// TestTriggerFirstBesideAutopath: what both answer is the same, but for what stock
// autopath gets wrong.
func TestTriggerFirstBesideAutopath(t *testing.T) {
	t.Parallel()
	backend, stockBackend := startZoneSet(t), startZoneSet(t)
	s := startServer(t, fmt.Sprintf(`.:{PORT1} {
		bind 127.0.0.1
		searchexpand a.test b.test {
			trigger first
		}
		healthforward . %s
	}
	.:{PORT2} {
		bind 127.0.0.1
		autopath . %s
		forward . %s
	}`, backend.addr(), writeFile(t, t.TempDir(), "ab.conf", "search a.test b.test\n"), stockBackend.addr()))
	const nx = "NXDOMAIN"
	for _, row := range []struct {
		name       string
		qtype      uint16
		both, ours string // ours where stock is wrong
	}{
		{name: "v4only.a.test", qtype: dns.TypeA, both: "v4only.a.test. A 192.0.2.10"},
		{name: "v4only.a.test", qtype: dns.TypeAAAA, both: "NOERROR"},
		{name: "bonly.a.test", qtype: dns.TypeA, both: "bonly.a.test. CNAME bonly.b.test. bonly.b.test. A 192.0.2.23"},
		{name: "bonly.a.test", qtype: dns.TypeAAAA, both: "NOERROR"},
		{name: "nope.a.test", qtype: dns.TypeA, both: nx},
		{name: "nope.more.a.test", qtype: dns.TypeA, both: nx},
		{name: "bonly.b.test", qtype: dns.TypeA, both: "bonly.b.test. A 192.0.2.23"},
		{name: "nope.b.test", qtype: dns.TypeA, both: nx},
		{name: "_sip._tcp.a.test", qtype: dns.TypeSRV, both: "_sip._tcp.a.test. SRV 0 5 5060 both.a.test."},
		{
			name: "chain.a.test", qtype: dns.TypeA, both: "chain.a.test. CNAME v4only.b.test. chain.a.test. CNAME v4only.b.test. v4only.b.test. A 192.0.2.20",
			ours: "chain.a.test. CNAME v4only.b.test. v4only.b.test. A 192.0.2.20",
		},
		{name: "ent.a.test", qtype: dns.TypeA, both: "NOERROR", ours: "ent.a.test. CNAME ent.b.test. ent.b.test. A 192.0.2.25"},
		{name: "a.test", qtype: dns.TypeTXT, both: "SERVFAIL", ours: "NOERROR"},
	} {
		ours := row.both
		if row.ours != "" {
			ours = row.ours
		}
		if got := answerText(ask(t, s.addr(), row.name, row.qtype)); got != ours {
			t.Errorf("%s %s: %s, want %s", row.name, dns.TypeToString[row.qtype], got, ours)
		}
		if got := answerText(ask(t, s.addrOf("PORT2"), row.name, row.qtype)); got != row.both {
			t.Errorf("stock autopath says of %s %s: %s, and no longer %s", row.name, dns.TypeToString[row.qtype], got, row.both)
		}
	}
	denial := ask(t, s.addr(), "gone.a.test", dns.TypeA)
	if len(denial.Ns) != 1 || denial.Ns[0].Header().Name != "a.test." || denial.Ns[0].Header().Ttl > 20 {
		t.Errorf("authority %v, want the SOA of a.test for at most 20 s, as b.test says", denial.Ns)
	}
	backend.checkNothingLeaked()
}

// TestAllTypesOfANameComeFromOneSuffix: the suffix that has a host's address
// answers for all its types; a type that needs no host comes from who has it.
func TestAllTypesOfANameComeFromOneSuffix(t *testing.T) {
	t.Parallel()
	backend := startZoneSet(t)
	s := startServer(t, fmt.Sprintf(".:{PORT1} {\n bind 127.0.0.1\n searchexpand a.test b.test {\n ndots 2\n }\n healthforward . %s\n}", backend.addr()))
	const noData = "NOERROR"
	// In this order: who has found a host keeps to its suffix for some seconds.
	for _, row := range []struct {
		name  string
		qtype uint16
		want  string
	}{
		{"v4only", dns.TypeA, "v4only. CNAME v4only.a.test. v4only.a.test. A 192.0.2.10"},
		{"v4only", dns.TypeAAAA, noData},
		{"v4only", dns.TypeHTTPS, noData},
		{"v4only", dns.TypeTXT, noData},
		{"v6only", dns.TypeA, noData},
		{"v6only", dns.TypeMX, noData},
		{"txtonly", dns.TypeTXT, `txtonly. CNAME txtonly.a.test. txtonly.a.test. TXT "here"`},
		{"txtonly", dns.TypeA, "txtonly. CNAME txtonly.b.test. txtonly.b.test. A 192.0.2.22"},
		{"txtonly", dns.TypeTXT, noData},
		{"_sip._tcp", dns.TypeSRV, "_sip._tcp. CNAME _sip._tcp.a.test. _sip._tcp.a.test. SRV 0 5 5060 both.a.test."},
		{"_sip._tcp", dns.TypeA, noData},
		{"x.ent", dns.TypeA, "x.ent. CNAME x.ent.a.test. x.ent.a.test. A 192.0.2.12"},
		{"x.ent", dns.TypeAAAA, noData},
		{"chain2", dns.TypeAAAA, "chain2. CNAME chain2.a.test. chain2.a.test. CNAME mid.a.test. mid.a.test. CNAME both.a.test. both.a.test. AAAA 2001:db8::11"},
		{"dangle", dns.TypeA, "dangle. CNAME dangle.b.test. dangle.b.test. A 192.0.2.24"},
		{"ChAiN", dns.TypeA, "ChAiN. CNAME chain.a.test. chain.a.test. CNAME v4only.b.test. v4only.b.test. A 192.0.2.20"},
	} {
		if got := answerText(ask(t, s.addr(), row.name, row.qtype)); got != row.want {
			t.Errorf("%s %s: %s, want %s", row.name, dns.TypeToString[row.qtype], got, row.want)
		}
	}
	if big := ask(t, s.addr(), "big", dns.TypeA); len(big.Answer) != 61 {
		t.Errorf("big has %d records, want 60 addresses and the alias", len(big.Answer))
	}
	backend.checkNothingLeaked()
}

// TestTheTapShowsBareNamesOnlyAtTheClientsSide reads what dnstap gets.
func TestTheTapShowsBareNamesOnlyAtTheClientsSide(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "tap.sock")
	input, err := tap.NewFrameStreamSockInputFromPath(socket)
	if err != nil {
		t.Fatal(err)
	}
	frames := make(chan []byte, 100)
	go input.ReadInto(frames)
	backend := startZoneSet(t)
	s := startServer(t, fmt.Sprintf(".:{PORT1} {\n bind 127.0.0.1\n dnstap %s full\n searchexpand a.test b.test\n healthforward . %s {\n hedge off\n }\n}", socket, backend.addr()))
	wantAddressIn(t, ask(t, s.addr(), "bonly", dns.TypeA), "bonly", "192.0.2.23")

	type seen struct {
		kind tap.Message_Type
		name string
	}
	got := make(map[seen]int)
	waitFor(t, startLimit, "the reply in the tap", func() error {
		for {
			select {
			case frame := <-frames:
				var d tap.Dnstap
				if err := proto.Unmarshal(frame, &d); err != nil {
					t.Fatal(err)
				}
				got[seen{d.Message.GetType(), tappedName(t, d.Message)}]++
				continue
			default:
			}
			if got[seen{tap.Message_CLIENT_RESPONSE, "bonly."}] == 0 {
				return fmt.Errorf("tapped so far: %v", got)
			}
			return nil
		}
	})
	for _, want := range []seen{
		{tap.Message_CLIENT_QUERY, "bonly."},
		{tap.Message_FORWARDER_QUERY, "bonly.a.test."},
		{tap.Message_FORWARDER_RESPONSE, "bonly.a.test."},
		{tap.Message_FORWARDER_QUERY, "bonly.b.test."},
		{tap.Message_FORWARDER_RESPONSE, "bonly.b.test."},
	} {
		if got[want] != 1 {
			t.Errorf("%v is tapped %d times, want once", want, got[want])
		}
	}
	if n := got[seen{tap.Message_FORWARDER_QUERY, "bonly."}]; n > 0 {
		t.Errorf("the bare name was forwarded %d times", n)
	}
}

// tappedName is the name that a tapped message asks for.
func tappedName(t *testing.T, m *tap.Message) string {
	t.Helper()
	wire := m.GetQueryMessage()
	if wire == nil {
		wire = m.GetResponseMessage()
	}
	tapped := new(dns.Msg)
	if err := tapped.Unpack(wire); err != nil || len(tapped.Question) != 1 {
		t.Fatalf("tapped %v: %v, %v", m.GetType(), tapped, err)
	}
	return tapped.Question[0].Name
}
