package searchexpand

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coredns/coredns/plugin/metadata"
	"github.com/coredns/coredns/plugin/test"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestACreditPaysItsRateAndWhatWasSavedUp(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	const cost, burst = 5 * ms, 2 * s // 200 a second, and 400 saved up
	tests := map[string]struct {
		at   []time.Duration // when it is asked for all there is
		want []int           // what it pays then
	}{
		"a full one":                         {[]time.Duration{0}, []int{400}},
		"one more when it is earned":         {[]time.Duration{0, 5*ms - 1, 5 * ms}, []int{400, 0, 1}},
		"a second later":                     {[]time.Duration{0, s}, []int{400, 200}},
		"no more than is saved up":           {[]time.Duration{0, time.Hour}, []int{400, 400}},
		"who read the clock a second early":  {[]time.Duration{0, -s, 0}, []int{400, 0, 0}},
		"and was not the only one":           {[]time.Duration{0, -5 * ms, 0, -5 * ms, 5 * ms}, []int{400, 0, 0, 0, 1}},
		"a bit at a time, in all no more":    {[]time.Duration{0, 12 * ms, 24 * ms, 36 * ms}, []int{400, 2, 2, 3}},
		"nothing is owed before it is asked": {[]time.Duration{time.Hour}, []int{400}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			start := time.Unix(1e9, 0)
			var c credit
			var got []int
			for _, at := range tc.at {
				n := 0
				for c.pay(start.Add(at), cost, burst) {
					n++
				}
				got = append(got, n)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("paid %v, want %v", got, tc.want)
			}
		})
	}
}

func TestListsOfDifferentRatesShareOneCredit(t *testing.T) {
	var c credit
	now := time.Unix(1e9, 0)
	for range 1000 { // half of what it has at 2,000 a second
		if !c.pay(now, time.Second/2000, time.Second) {
			t.Fatal("did not pay")
		}
	}
	n := 0
	for c.pay(now, time.Second/100, time.Second) {
		n++
	}
	if n != 50 {
		t.Errorf("paid %d at 100 a second, want the other half, 50", n)
	}
}

func TestWhoPaysIsANetwork(t *testing.T) {
	addr := func(s string) net.Addr { return net.UDPAddrFromAddrPort(netip.MustParseAddrPort(s)) }
	tests := map[string]struct {
		addr net.Addr
		want string
	}{
		"IPv4":                {addr("192.0.2.7:53"), "192.0.2.0/24"},
		"IPv6":                {addr("[2001:db8::7]:53"), "2001:db8::/64"},
		"IPv4 in IPv6":        {addr("[::ffff:192.0.2.7]:53"), "192.0.2.0/24"},
		"IPv6 with a zone":    {addr("[fe80::7%eth0]:53"), "fe80::/64"},
		"TCP":                 {&net.TCPAddr{IP: net.IP{192, 0, 2, 9}, Port: 1}, "192.0.2.0/24"},
		"a path":              {&net.UnixAddr{Name: "/run/dns"}, "invalid Prefix"},
		"no address":          {nil, "invalid Prefix"},
		"a UDP address of it": {&net.UDPAddr{}, "invalid Prefix"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := network(tc.addr).String(); got != tc.want {
				t.Errorf("network = %s, want %s", got, tc.want)
			}
		})
	}
}

func TestOnlyWhatLeavesTheProcessIsPaidFor(t *testing.T) {
	const ms = time.Millisecond
	tests := map[string]struct {
		takes time.Duration
		label string
		err   error
		want  time.Duration // what is spent afterwards
	}{
		"from memory":                           {0, "", nil, 0},
		"from memory, on a busy machine":        {ms, "", nil, 0},
		"longer than that":                      {ms + 1, "", nil, 5 * ms},
		"by forward, at once":                   {0, "forward/upstream", nil, 5 * ms},
		"by healthforward, at once":             {0, "healthforward/upstream", nil, 5 * ms},
		"with metadata of another kind":         {0, "test/zone", nil, 0},
		"a failure that may have left, at once": {0, "", errDeaf, 5 * ms},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWalker(handler(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
					time.Sleep(tc.takes) // in a bubble
					if tc.label != "" {
						metadata.SetValueFunc(ctx, tc.label, func() string { return "x" })
					}
					if tc.err != nil {
						return dns.RcodeServerFailure, tc.err
					}
					return dns.RcodeSuccess, w.WriteMsg(msg(t, 0, r.Question[0].Name+" 300 IN A 192.0.2.1"))
				}))
				start := time.Now()
				w.walk(t.Context(), start, candidates("db01.", domainsOf("a.test.")))
				full := start.Add(-clientBurst)
				if got := w.bill.client.spent.Sub(full); got != tc.want {
					t.Errorf("spent %v, want %v", got, tc.want)
				}
			})
		})
	}
}

// crowd is what a flood test has below and above the plugin: a resolver that takes
// 2 ms for each name, and clients with addresses.
type crowd struct {
	t *testing.T
	s *SearchExpand

	mu   sync.Mutex
	sent map[string]int // questions that left, by the client's network
}

func newCrowd(t *testing.T, r rates) *crowd {
	c := &crowd{t: t, sent: make(map[string]int)}
	conf := newConfig()
	conf.entries, conf.rates, conf.wildcard = entriesOf(longList(64)...), r, wildcardAllow
	c.s = newSearchExpand(conf)
	c.s.limit, c.s.budget, c.s.Next = &limit{max: maxInFlight}, newBudget(r, &credit{}), c
	return c
}

func (c *crowd) Name() string { return "crowd" }

// ServeDNS knows known.d0.example. by heart, asks others about other names, and
// finds those that begin with host under d3.example.
func (c *crowd) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	name := r.Question[0].Name
	m := new(dns.Msg).SetRcode(r, dns.RcodeNameError)
	if name == "known.d0.example." {
		return dns.RcodeSuccess, w.WriteMsg(msg(c.t, 0, name+" 300 IN A 192.0.2.1"))
	}
	if err := ctx.Err(); err != nil {
		return dns.RcodeServerFailure, err
	}
	c.mu.Lock()
	c.sent[network(w.RemoteAddr()).String()]++
	c.mu.Unlock()
	time.Sleep(2 * time.Millisecond) // in a bubble
	metadata.SetValueFunc(ctx, "forward/upstream", func() string { return "192.0.2.53" })
	if strings.HasPrefix(name, "host") && dns.IsSubDomain("d3.example.", name) {
		m = msg(c.t, 0, name+" 300 IN A 192.0.2.1")
	}
	return m.Rcode, w.WriteMsg(m)
}

// ask sends a query from ip and returns the reply.
func (c *crowd) ask(ip, name string) *dns.Msg {
	r := query(name, dns.TypeA)
	r.SetEdns0(1232, false)
	w := &recorder{ResponseWriter: test.ResponseWriter{RemoteIP: ip}}
	if _, err := c.s.ServeDNS(c.t.Context(), w, r); err != nil || len(w.replies) != 1 {
		c.t.Errorf("%s of %s: %d replies and %v", name, ip, len(w.replies), err)
		return r
	}
	return w.replies[0]
}

// apart returns the address of a client who does not share a bucket with ip.
func (c *crowd) apart(ip string) string {
	of := func(ip string) *credit {
		return c.s.budget.of(&net.UDPAddr{IP: net.ParseIP(ip)}).client
	}
	for i := range 256 {
		if other := fmt.Sprintf("192.0.%d.1", i); of(other) != of(ip) {
			return other
		}
	}
	c.t.Fatal("one bucket for all")
	return ""
}

func TestAFloodFromOneNetworkStaysWithinItsBudgetAndHurtsNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const seconds = 5
		requestCount.Reset()
		unpaidCount.Reset()
		c := newCrowd(t, newConfig().rates)
		other := c.apart("198.51.100.1")
		var wg sync.WaitGroup
		for i := range seconds * 1000 {
			wg.Go(func() {
				c.ask(fmt.Sprintf("198.51.100.%d", i%256), fmt.Sprintf("random%d.", i))
			})
			if i%100 == 0 { // ten of ours a second
				wg.Go(func() {
					start := time.Now()
					m := c.ask(other, fmt.Sprintf("host%d.", i))
					if took := time.Since(start); m.Rcode != dns.RcodeSuccess || len(m.Answer) != 2 || took != 8*time.Millisecond {
						t.Errorf("another client: rcode %d after %v, want an answer after 8ms", m.Rcode, took)
					}
				})
				wg.Go(func() {
					if m := c.ask("198.51.100.9", "known."); m.Rcode != dns.RcodeSuccess {
						t.Errorf("what the process knows: rcode %d, want an answer with no budget at all", m.Rcode)
					}
				})
			}
			time.Sleep(time.Millisecond) // in a bubble
		}
		wg.Wait()
		if got, most := c.sent["198.51.100.0/24"], defaultClientRate*(seconds+2); got > most || got < most-defaultClientRate/10 {
			t.Errorf("%d questions left for the flood, want %d", got, most)
		}
		if got := testutil.ToFloat64(requestCount.WithLabelValues("", string(resultBudget))); got < seconds*1000-100 {
			t.Errorf("%v queries ended for want of budget, want nearly all", got)
		}
		if testutil.ToFloat64(unpaidCount.WithLabelValues(payerClient)) == 0 || testutil.ToFloat64(unpaidCount.WithLabelValues(payerProcess)) != 0 {
			t.Error("it was not the client's budget alone that ended it")
		}
	})
}

func TestAFloodFromEverywhereStaysWithinTheBudgetOfTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const seconds = 3
		c, start := newCrowd(t, newConfig().rates), time.Now()
		var wg sync.WaitGroup
		for i := range seconds * 1000 {
			wg.Go(func() { c.ask(fmt.Sprintf("10.%d.%d.1", i/256, i%256), fmt.Sprintf("random%d.", i)) })
			time.Sleep(time.Millisecond) // in a bubble
		}
		wg.Wait()
		got := 0
		for _, n := range c.sent {
			got += n
		}
		most := int(defaultProcessRate * (time.Since(start) + processBurst).Seconds())
		if got > most || got < most-defaultProcessRate/10 {
			t.Errorf("%d questions left, want %d", got, most)
		}
		if m := c.ask("10.99.0.1", "known."); m.Rcode != dns.RcodeSuccess {
			t.Errorf("what the process knows: rcode %d, want an answer with no budget at all", m.Rcode)
		}
	})
}

func TestAnEmptyBudgetSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, rates{1, 1})
		c.ask("192.0.2.1", "a.") // takes all there is
		start := time.Now()
		m := c.ask("192.0.2.1", "b.")
		ede, ok := m.IsEdns0().Option[0].(*dns.EDNS0_EDE)
		if m.Rcode != dns.RcodeServerFailure || !ok || !strings.Contains(ede.ExtraText, errBudget.Error()) || time.Since(start) != 0 {
			t.Errorf("reply = %v after %v, want SERVFAIL that says why, at once", m, time.Since(start))
		}
		for i := range 2 * skipAfter {
			c.ask("192.0.2.1", fmt.Sprintf("c%d.", i))
		}
		if a := c.s.suffixes.admit(time.Now(), "d0.example.", c.s.pace); a.skip || a.probe {
			t.Error("a client without budget made a suffix look dead")
		}
	})
}

func TestAPluginThatHeedsNoContextIsNotWaitedForWithoutBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer untilAllHaveEnded()
		w := newWalker(bySuffix{"a.test.": {delay: time.Minute}})
		w.bill.client.spent = time.Now()
		start := time.Now()
		got := w.walk(t.Context(), start, candidates("db01.", domainsOf("a.test.")))
		if took := time.Since(start); took != recallTime || got[0].verdict != overloaded || conclude(got).result != resultBudget {
			t.Errorf("%v after %v, want %v after %v", verdicts(got), took, overloaded, recallTime)
		}
	})
}
