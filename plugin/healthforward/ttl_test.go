package healthforward

import (
	"context"
	"testing"
	"time"

	"github.com/coredns/coredns/plugin/metadata"
	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
)

const (
	soaLong  = "org. 3600 IN SOA a.example. b.example. 1 7200 900 1209600 600"
	soaShort = "org. 3 IN SOA a.example. b.example. 1 7200 900 1209600 2"
	soaCut   = "org. 5 IN SOA a.example. b.example. 1 7200 900 1209600 5"
	soaKept  = "org. 5 IN SOA a.example. b.example. 1 7200 900 1209600 600"
	rrsig    = "IN RRSIG SOA 13 1 3600 20300101000000 20200101000000 1 org. c2ln"
)

func TestTTLsOfALowerTierAreCapped(t *testing.T) {
	type sections struct{ answer, ns, extra []string }
	for name, tc := range map[string]struct {
		rcode    int
		qtype    uint16
		in, want sections
	}{
		"an answer": {
			0, dns.TypeA,
			sections{answer: []string{"a.org. 31 IN CNAME b.org.", "b.org. 30 IN A 192.0.2.1", "b.org. 29 IN A 192.0.2.2"}, ns: []string{"org. 3600 IN NS ns.org."}, extra: []string{"ns.org. 3600 IN A 192.0.2.3"}},
			sections{answer: []string{"a.org. 30 IN CNAME b.org.", "b.org. 30 IN A 192.0.2.1", "b.org. 29 IN A 192.0.2.2"}, ns: []string{"org. 30 IN NS ns.org."}, extra: []string{"ns.org. 30 IN A 192.0.2.3"}},
		},
		"NXDOMAIN": {
			dns.RcodeNameError, dns.TypeA,
			sections{ns: []string{soaLong}},
			sections{ns: []string{soaCut}},
		},
		"NXDOMAIN that is short-lived": {
			dns.RcodeNameError, dns.TypeA,
			sections{ns: []string{soaShort}},
			sections{ns: []string{soaShort}},
		},
		"NODATA behind a chain": {
			0, dns.TypeA,
			sections{answer: []string{"a.org. 3600 IN CNAME b.org."}, ns: []string{soaLong}},
			sections{answer: []string{"a.org. 5 IN CNAME b.org."}, ns: []string{soaCut}},
		},
		"NXDOMAIN that is signed": {
			dns.RcodeNameError, dns.TypeA,
			sections{ns: []string{soaLong, "org. 3600 " + rrsig}},
			sections{ns: []string{soaKept, "org. 5 " + rrsig}},
		},
		"an SOA that was asked for": {
			0, dns.TypeSOA,
			sections{answer: []string{soaLong}},
			sections{answer: []string{"org. 30 IN SOA a.example. b.example. 1 7200 900 1209600 600"}},
		},
		"ANY": {
			0, dns.TypeANY,
			sections{answer: []string{"a.org. 3600 IN A 192.0.2.1"}},
			sections{answer: []string{"a.org. 30 IN A 192.0.2.1"}},
		},
		"SERVFAIL": {dns.RcodeServerFailure, dns.TypeA, sections{}, sections{}},
	} {
		msg := func(s sections) *dns.Msg {
			m := question("a.org.", tc.qtype)
			m.Rcode = tc.rcode
			m.SetEdns0(1232, true)
			for dst, lines := range map[*[]dns.RR][]string{&m.Answer: s.answer, &m.Ns: s.ns, &m.Extra: s.extra} {
				for _, line := range lines {
					*dst = append(*dst, record(line))
				}
			}
			m.Id = 1
			return m
		}
		got := msg(tc.in)
		capTTL(got)
		if want := msg(tc.want); got.String() != want.String() {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
		}
	}
}

func TestTheTierIsInTheMetadataAndCapsTTLs(t *testing.T) {
	for dead, want := range map[string]struct {
		tier string
		ttl  uint32
	}{"": {"1", 60}, primary: {"2", 30}} {
		tiered(t, oneEach, []string{dead}, func(t *testing.T, fw *Forwarder, up map[string]*view) {
			time.Sleep(time.Second)
			for proto, w := range map[string]*test.ResponseWriter{"UDP": {}, "TCP": {TCP: true}} {
				ctx := metadata.ContextWithMetadata(context.Background())
				rec := dnstest.NewRecorder(w)
				if _, err := fw.ServeDNS(ctx, rec, question("example.org.", dns.TypeA)); err != nil {
					t.Fatal(err)
				}
				if value := metadata.ValueFunc(ctx, "healthforward/tier"); value == nil || value() != want.tier {
					t.Errorf("%s: metadata healthforward/tier is not %s", proto, want.tier)
				}
				if got := rec.Msg.Answer[0].Header().Ttl; got != want.ttl {
					t.Errorf("%s: TTL %d from tier %s, want %d", proto, got, want.tier, want.ttl)
				}
			}
		})
	}
}

func TestWhatIsSentOnceKeepsItsTTLs(t *testing.T) {
	tiered(t, oneEach, []string{primary}, func(t *testing.T, fw *Forwarder, up map[string]*view) {
		time.Sleep(time.Second)
		m := question("example.org.", dns.TypeA)
		m.SetTsig("key.", dns.HmacSHA256, 300, time.Now().Unix()) // the reply's MAC covers them
		ctx := metadata.ContextWithMetadata(context.Background())
		rec := dnstest.NewRecorder(&test.ResponseWriter{})
		if _, err := fw.ServeDNS(ctx, rec, m); err != nil {
			t.Fatal(err)
		}
		if got := rec.Msg.Answer[0].Header().Ttl; got != 60 {
			t.Errorf("TTL %d, want as it came", got)
		}
		if value := metadata.ValueFunc(ctx, "healthforward/tier"); value == nil || value() != "2" {
			t.Error("metadata healthforward/tier is not 2")
		}
	})
}
