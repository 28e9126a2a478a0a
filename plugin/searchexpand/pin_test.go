package searchexpand

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coredns/coredns/plugin/test"

	"github.com/miekg/dns"
)

// hostOnly is a chain of servers that know addresses of one family and say NXDOMAIN
// when asked for the other, as some load balancers do.
type hostOnly struct{ *zones }

func (h hostOnly) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	rec := &recorder{}
	rcode, err := h.zones.ServeDNS(ctx, rec, r)
	if len(rec.replies) == 0 {
		return rcode, err
	}
	m := rec.replies[0]
	if m.Rcode == dns.RcodeSuccess && len(m.Answer) == 0 {
		m.Rcode = dns.RcodeNameError
	}
	return m.Rcode, w.WriteMsg(m)
}

// from is a client with an address of its own.
func from(address string) *recorder {
	return &recorder{ResponseWriter: test.ResponseWriter{RemoteIP: address}}
}

// step is a query in a story about one plugin.
type step struct {
	after  time.Duration // the one before
	change func(*zones)  // what becomes of the zones before that; may be nil
	client string        // default 192.0.2.200
	name   string
	qtype  uint16
	rcode  int
	answer []string // as by short
	ttl    uint32   // of the first record of the answer or else the authority section; 0: any
	asked  []string
}

// play asks what the steps say, in a bubble, and checks what comes.
func play(t *testing.T, s *SearchExpand, z *zones, steps []step) {
	t.Helper()
	for i, st := range steps {
		time.Sleep(st.after)
		if st.change != nil {
			st.change(z)
		}
		if st.client == "" {
			st.client = "192.0.2.200"
		}
		w := from(st.client)
		if _, err := s.ServeDNS(t.Context(), w, query(st.name, st.qtype)); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		synctest.Wait()
		m := w.replies[0]
		if m.Rcode != st.rcode || !slices.Equal(short(m.Answer), st.answer) {
			t.Errorf("step %d: rcode %d, answer %q; want %d, %q", i, m.Rcode, short(m.Answer), st.rcode, st.answer)
		}
		if rrs := slices.Concat(m.Answer, m.Ns); st.ttl != 0 && (len(rrs) == 0 || rrs[0].Header().Ttl != st.ttl) {
			t.Errorf("step %d: %v, want a TTL of %d first", i, rrs, st.ttl)
		}
		if got := z.questions(); !slices.Equal(got, st.asked) {
			t.Errorf("step %d: asked %q, want %q", i, got, st.asked)
		}
	}
}

func TestTheOtherFamilyIsAskedWhereTheNameIsPinned(t *testing.T) {
	const ms = time.Millisecond
	alias := []string{"bonly. CNAME bonly.b.test.", "bonly.b.test. A 192.0.2.23"}
	remove := func(names ...string) func(*zones) {
		return func(z *zones) {
			for _, name := range names {
				delete(z.records, name)
			}
		}
	}
	add := func(zone string, ttl int, line string) func(*zones) {
		return func(z *zones) { z.add(t, zone, ttl, line) }
	}
	walkA := []string{"bonly.a.test. A", "bonly.b.test. A"}
	walkAAAA := []string{"bonly.a.test. AAAA", "bonly.b.test. AAAA"}
	first := step{name: "bonly.", qtype: dns.TypeA, answer: alias, asked: walkA}
	tests := map[string]struct {
		list  []string
		steps []step
	}{
		"T1c: NXDOMAIN for AAAA is NODATA": {steps: []step{
			first,
			{after: ms, name: "bonly.", qtype: dns.TypeAAAA, ttl: 20, asked: []string{"bonly.b.test. AAAA"}},
		}},
		"NXDOMAIN for HTTPS is NODATA": {steps: []step{
			first,
			{after: ms, name: "BONLY.", qtype: dns.TypeHTTPS, asked: []string{"BONLY.b.test. HTTPS"}},
		}},
		"the alias ages with the denials before it": {steps: []step{
			{name: "bonly.", qtype: dns.TypeA, answer: alias, ttl: 30, asked: walkA},
			{after: 3 * time.Second, name: "bonly.", qtype: dns.TypeA, answer: alias, ttl: 27, asked: []string{"bonly.b.test. A"}},
		}},
		"just before five seconds are over": {steps: []step{
			first,
			{after: maxPinTime - 1, name: "bonly.", qtype: dns.TypeAAAA, asked: []string{"bonly.b.test. AAAA"}},
		}},
		"after five seconds all is as if new": {steps: []step{
			first,
			{after: maxPinTime, name: "bonly.", qtype: dns.TypeAAAA, rcode: dns.RcodeNameError, asked: walkAAAA},
		}},
		"use does not make a pin last": {steps: []step{
			first,
			{after: 4 * time.Second, name: "bonly.", qtype: dns.TypeA, answer: alias, asked: []string{"bonly.b.test. A"}},
			{after: time.Second, name: "bonly.", qtype: dns.TypeA, answer: alias, asked: walkA},
		}},
		"no longer than the records": {steps: []step{
			{change: func(z *zones) { remove("bonly.b.test.")(z); add("b.test.", 2, "bonly A 192.0.2.23")(z) }, name: "bonly.", qtype: dns.TypeA, answer: alias, asked: walkA},
			{after: 1999 * ms, name: "bonly.", qtype: dns.TypeAAAA, asked: []string{"bonly.b.test. AAAA"}},
			{after: ms, name: "bonly.", qtype: dns.TypeAAAA, rcode: dns.RcodeNameError, asked: walkAAAA},
		}},
		"a second where nothing may be kept": {steps: []step{
			{change: func(z *zones) { remove("bonly.b.test.")(z); add("b.test.", 0, "bonly A 192.0.2.23")(z) }, name: "bonly.", qtype: dns.TypeA, answer: alias, asked: walkA},
			{after: 999 * ms, name: "bonly.", qtype: dns.TypeAAAA, asked: []string{"bonly.b.test. AAAA"}},
			{after: ms, name: "bonly.", qtype: dns.TypeAAAA, rcode: dns.RcodeNameError, asked: walkAAAA},
		}},
		"a second past a failure": {list: []string{"sf.test.", "b.test."}, steps: []step{
			{name: "bonly.", qtype: dns.TypeA, answer: alias, ttl: 5, asked: []string{"bonly.sf.test. A", "bonly.b.test. A"}},
			{after: 999 * ms, name: "bonly.", qtype: dns.TypeAAAA, ttl: 5, asked: []string{"bonly.b.test. AAAA"}},
			{after: ms, name: "bonly.", qtype: dns.TypeAAAA, rcode: dns.RcodeServerFailure, asked: []string{"bonly.sf.test. AAAA", "bonly.b.test. AAAA"}},
		}},
		"an address that is gone, of a host that has another": {steps: []step{
			{name: "both.", qtype: dns.TypeA, answer: []string{"both. CNAME both.a.test.", "both.a.test. A 192.0.2.11"}, asked: []string{"both.a.test. A"}},
			{
				change: func(z *zones) { z.records["both.a.test."] = z.records["both.a.test."][1:] }, name: "both.", qtype: dns.TypeA,
				rcode: dns.RcodeNameError, asked: []string{"both.a.test. A", "both.b.test. A"},
			},
			{name: "both.", qtype: dns.TypeAAAA, answer: []string{"both. CNAME both.a.test.", "both.a.test. AAAA 2001:db8::11"}, asked: []string{"both.a.test. AAAA"}},
		}},
		"what is owned is pinned by its address": {steps: []step{
			{name: "v4only.", qtype: dns.TypeA, answer: []string{"v4only. CNAME v4only.a.test.", "v4only.a.test. A 192.0.2.10"}, asked: []string{"v4only.a.test. A"}},
			{after: ms, name: "v4only.", qtype: dns.TypeAAAA, asked: []string{"v4only.a.test. AAAA"}},
			{after: ms, name: "v4only.", qtype: dns.TypeTXT, asked: []string{"v4only.a.test. TXT"}},
		}},
		"another record makes no host": {steps: []step{
			{name: "txtonly.", qtype: dns.TypeTXT, answer: []string{"txtonly. CNAME txtonly.a.test.", `txtonly.a.test. TXT "here"`}, asked: []string{"txtonly.a.test. TXT"}},
			{after: ms, name: "txtonly.", qtype: dns.TypeA, answer: []string{"txtonly. CNAME txtonly.b.test.", "txtonly.b.test. A 192.0.2.22"}, asked: []string{"txtonly.a.test. A", "txtonly.b.test. A"}},
		}},
		"an address that is gone ends the pin": {steps: []step{
			first,
			{change: remove("bonly.b.test."), name: "bonly.", qtype: dns.TypeA, rcode: dns.RcodeNameError, asked: []string{"bonly.b.test. A", "bonly.a.test. A"}},
			{name: "bonly.", qtype: dns.TypeAAAA, rcode: dns.RcodeNameError, asked: walkAAAA},
		}},
		"a host that moved is found where it is": {steps: []step{
			first,
			{
				change: func(z *zones) { remove("bonly.b.test.")(z); add("a.test.", 60, "bonly A 192.0.2.99")(z) }, name: "bonly.", qtype: dns.TypeA,
				answer: []string{"bonly. CNAME bonly.a.test.", "bonly.a.test. A 192.0.2.99"}, asked: []string{"bonly.b.test. A", "bonly.a.test. A"},
			},
			{name: "bonly.", qtype: dns.TypeAAAA, asked: []string{"bonly.a.test. AAAA"}},
		}},
		"another client is another subject": {steps: []step{
			first,
			{client: "192.0.2.201", name: "bonly.", qtype: dns.TypeAAAA, rcode: dns.RcodeNameError, asked: walkAAAA},
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if tc.list == nil {
					tc.list = []string{"a.test.", "b.test."}
				}
				z := newZones(t)
				play(t, newTestPlugin(hostOnly{z}, 1, tc.list...), z, tc.steps)
			})
		})
	}
}

// A and AAAA come from one host even where the domain that has it fails for a while.
func TestAPinnedSuffixThatFailsKeepsThePin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := newZones(t)
		z.add(t, "c.test.", 60, "bonly AAAA 2001:db8::66")
		failing := false
		s := newTestPlugin(handler(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			if failing && dns.IsSubDomain("b.test.", r.Question[0].Name) {
				return dns.RcodeServerFailure, nil
			}
			return z.ServeDNS(ctx, w, r)
		}), 1, "b.test.", "c.test.")
		host := []string{"bonly. CNAME bonly.b.test.", "bonly.b.test. A 192.0.2.23"}
		play(t, s, z, []step{
			{name: "bonly.", qtype: dns.TypeA, answer: host, asked: []string{"bonly.b.test. A"}},
			{
				change: func(*zones) { failing = true }, name: "bonly.", qtype: dns.TypeAAAA,
				answer: []string{"bonly. CNAME bonly.c.test.", "bonly.c.test. AAAA 2001:db8::66"}, ttl: 5, asked: []string{"bonly.c.test. AAAA"},
			},
			{change: func(*zones) { failing = false }, name: "bonly.", qtype: dns.TypeA, answer: host, asked: []string{"bonly.b.test. A"}},
			{name: "bonly.", qtype: dns.TypeAAAA, asked: []string{"bonly.b.test. AAAA"}},
		})
	})
}

func TestASilentPinnedSuffixIsAskedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := newZones(t)
		z.add(t, "c.test.", 60, "bonly AAAA 2001:db8::66")
		s := newTestPlugin(handler(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			if r.Question[0].Qtype == dns.TypeAAAA && dns.IsSubDomain("b.test.", r.Question[0].Name) {
				<-ctx.Done()
				return dns.RcodeServerFailure, ctx.Err()
			}
			return z.ServeDNS(ctx, w, r)
		}), 1, "b.test.", "c.test.")
		serve(t, s, query("bonly.", dns.TypeA))
		start := time.Now()
		m := serve(t, s, query("bonly.", dns.TypeAAAA))
		if elapsed := time.Since(start); elapsed != s.pace.candidateTimeout() || len(m.Answer) != 2 {
			t.Errorf("%d records after %v, want those of c.test after %v", len(m.Answer), elapsed, s.pace.candidateTimeout())
		}
	})
}

func TestPinsAreBounded(t *testing.T) {
	p, now := newPins(3), time.Now()
	about := func(i int) subject { return subject{name: fmt.Sprintf("n%d.", i)} }
	held := func() []int {
		var out []int
		for i := range 5 {
			if _, ok := p.lru.Peek(about(i)); ok {
				out = append(out, i)
			}
		}
		return out
	}
	for i := range 3 {
		p.add(about(i), pin{made: now, until: now.Add(time.Second)})
	}
	p.get(about(0), now)
	for i := 3; i < 5; i++ {
		p.add(about(i), pin{made: now, until: now.Add(time.Second)})
	}
	if got := held(); !slices.Equal(got, []int{0, 3, 4}) {
		t.Errorf("held: %v, want 0, which was asked for, and 3 and 4, the newest", got)
	}
	if _, ok := p.get(about(0), now.Add(time.Second)); ok || len(held()) != 2 {
		t.Errorf("a pin whose time is over was returned (%v) or kept (%v)", ok, held())
	}
}

func TestASubjectIsANameOfAClient(t *testing.T) {
	w := from("192.0.2.200")
	first := newSubject(w.RemoteAddr(), "list", "DB01.")
	if want := (subject{"192.0.2.200", "list", "db01."}); first != want {
		t.Errorf("subject = %v, want %v", first, want)
	}
	w.TCP = true
	if got := newSubject(w.RemoteAddr(), "list", "db01."); got != first {
		t.Errorf("over TCP the subject is %v, want %v", got, first)
	}
}

func BenchmarkPinned(b *testing.B) {
	for name, types := range map[string][]uint16{"pinned": {dns.TypeA, dns.TypeA}, "walked": {dns.TypeTXT, dns.TypeTXT}} {
		b.Run(name, func(b *testing.B) {
			z := newZones(b)
			z.add(b, "d15.example.", 60, "db01 A 192.0.2.7", "db01 TXT here")
			s := newTestPlugin(z, 1, longList(16)...)
			b.ReportAllocs()
			for b.Loop() {
				for _, qtype := range types {
					_, _ = s.ServeDNS(b.Context(), &recorder{}, query("db01.", qtype))
				}
			}
		})
	}
}
