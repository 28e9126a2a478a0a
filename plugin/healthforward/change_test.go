package healthforward

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"steadfast.internal/plugin/healthforward/internal/pool"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

// TestTheSetChangesAHundredTimesUnderLoad: at 500 queries a second for a minute each
// set is replaced by another one, and who left is dead from that moment on.
func TestTheSetChangesAHundredTimesUnderLoad(t *testing.T) {
	sets := [][]string{{"192.0.2.1", "192.0.2.2"}, {"192.0.2.3"}, {"192.0.2.2", "192.0.2.3"}, {"192.0.2.4", "192.0.2.5"}}
	for _, policy := range []string{"random", "sequential", "race 2"} {
		t.Run(policy, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				for i := range 5 {
					w.at(fmt.Sprintf("192.0.2.%d", i+1)).rtt = 20 * ms // so that some are on the way in each moment
				}
				w.write(hostFile, "", sets[0]...)
				f := w.start(t, "healthforward . "+hostFile+" {\n policy "+policy+"\n}")
				p := &play{fw: f, period: 2 * ms}
				changes := 0
				go func() {
					time.Sleep(ms)
					for i := range 100 {
						set := sets[(i+1)%len(sets)]
						for _, ip := range set {
							w.at(ip).set(func(m *model) { m.deaf = false })
						}
						w.write(hostFile, "", set...)
						time.Sleep(485 * ms) // it is followed in 500 ms, and what is asked until then is lost
						for i := range 5 {
							ip := fmt.Sprintf("192.0.2.%d", i+1)
							w.at(ip).set(func(m *model) { m.deaf = !slices.Contains(set, ip) })
						}
						time.Sleep(115 * ms)
						if ups(f) != strings.Join(set, " ") {
							t.Errorf("the upstreams are %s, want %v", ups(f), set)
						}
						changes++
					}
				}()
				p.ask(t, 0, 61*time.Second)
				if changes != 100 || p.lost > 0 || p.over(100*ms) > 0 {
					t.Errorf("%d changes: %d of %d lost, %d over 100ms, the slowest %v", changes, p.lost, len(p.took), p.over(100*ms), slices.Max(p.took))
				}
			})
		})
	}
}

// TestWhatWaitsOnWhoLeftIsAskedOfTheNewOnes at once, and of nobody else.
func TestWhatWaitsOnWhoLeftIsAskedOfTheNewOnes(t *testing.T) {
	for name, tc := range map[string]struct {
		before, after []string
		deaf          string // in the first set
		options       string
		rtt           time.Duration // of the first set
		want          string        // who answers
		at            time.Duration // after the query
		asked         int           // of those that are new
	}{
		"all have left":               {[]string{"192.0.2.1"}, []string{"192.0.2.2"}, "192.0.2.1", "hedge off", 0, "192.0.2.2", 502 * ms, 1},
		"even if none may be asked":   {[]string{"192.0.2.1"}, []string{"192.0.2.2"}, "192.0.2.1", "hedge off\n max_connect_attempts 1", 0, "192.0.2.2", 502 * ms, 1},
		"even if it costs too much":   {[]string{"192.0.2.1"}, []string{"192.0.2.2"}, "192.0.2.1", "hedge off\n budget 0%%", 0, "192.0.2.2", 502 * ms, 1},
		"who is waited for stays":     {[]string{"192.0.2.1", "192.0.2.3"}, []string{"192.0.2.1", "192.0.2.2"}, "", "hedge off\n policy sequential", 700 * ms, "192.0.2.1", 700 * ms, 0},
		"who left answers all right":  {[]string{"192.0.2.1"}, []string{"192.0.2.9"}, "", "hedge off", 600 * ms, "192.0.2.1", 600 * ms, 1},
		"who left answers very late":  {[]string{"192.0.2.1"}, []string{"192.0.2.9"}, "", "hedge off", 2400 * ms, "192.0.2.1", 2400 * ms, -1},
		"it comes to nobody for ever": {[]string{"192.0.2.1"}, []string{"192.0.2.9"}, "192.0.2.1", "hedge off", 0, "", queryDeadline, -1},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.at("192.0.2.9").deaf = true
				w.write(hostFile, "", tc.before...)
				f := w.start(t, "healthforward . "+hostFile+" {\n"+tc.options+"\n}")
				for _, ip := range tc.before {
					w.at(ip).set(func(m *model) { m.silent = ip == tc.deaf; m.rtt = max(tc.rtt, 2*ms); m.probeRTT = 2 * ms })
				}
				w.write(hostFile, "", tc.after...) // known 500 ms later
				asked := time.Now()
				addr, took := resolve(t, f, "example.org.")
				if addr != tc.want || took != tc.at {
					t.Errorf("answered by %q after %v, want %q after %v", addr, took, tc.want, tc.at)
				}
				n := w.at("192.0.2.2").since(asked) + w.at("192.0.2.9").since(asked)
				if tc.asked >= 0 && n != tc.asked {
					t.Errorf("the new ones were asked %d times, want %d", n, tc.asked)
				}
			})
		})
	}
}

// TestARankingOutlivesAChange: what was asked of the old set is judged by the new one.
func TestARankingOutlivesAChange(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.write(hostFile, "", "192.0.2.1")
		f := w.start(t, "healthforward . "+hostFile+" {\n policy sequential\n}")
		w.at("192.0.2.1").set(func(m *model) { m.rcode, m.rtt = dns.RcodeNameError, 600*ms })
		w.at("192.0.2.2").set(func(m *model) { m.rtt = 300 * ms })
		w.write(hostFile, "", "192.0.2.2", "192.0.2.3")
		w.at("192.0.2.3").set(func(m *model) { m.rcode = dns.RcodeNameError })
		if addr, took := resolve(t, f, "example.org."); addr != "192.0.2.2" || took != 800*ms {
			t.Errorf("answered by %q after %v, want by the first of the new set, for 192.0.2.1 and 192.0.2.3 may not know the name", addr, took)
		}
	})
}

func TestTheHealthOfWhoStaysIsKept(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.write(hostFile, "", "192.0.2.1", "192.0.2.2", "192.0.2.3")
		w.at("192.0.2.1").deaf = true
		f := w.start(t, "healthforward . "+hostFile)
		time.Sleep(5 * time.Second)
		before := f.groupFor(protoUDP).upstreams
		w.write(hostFile, "", "192.0.2.4", "192.0.2.1", "192.0.2.2")
		time.Sleep(500*ms - 1)
		for f.groupFor(protoUDP).upstreams[0] == nil && ups(f) != "192.0.2.4 192.0.2.1 192.0.2.2" {
			time.Sleep(time.Nanosecond)
		}
		if a, b, c := stateOf(f, "192.0.2.1"), stateOf(f, "192.0.2.2"), stateOf(f, "192.0.2.4"); a != "ejected" || b != "up" || c != "suspect" {
			t.Errorf("right after the change: %s, %s, and the new one %s", a, b, c)
		}
		for id, u := range f.groupFor(protoUDP).upstreams {
			if u.addr != "192.0.2.4:53" && before[id] != u {
				t.Errorf("%s is another one", u.addr)
			}
		}
	})
}

// held brings two upstreams up, one of which is out for 5 s because it fell twice.
func held(t *testing.T, w *world, tos string) *Forwarder {
	t.Helper()
	f := w.start(t, "healthforward . "+tos)
	a := w.at("192.0.2.1")
	for _, deaf := range []bool{true, false, true} {
		a.set(func(m *model) { m.deaf = deaf })
		p := &play{fw: f, period: 10 * ms}
		p.ask(t, 0, 2*time.Second)
	}
	a.set(func(m *model) { m.deaf = false })
	if got := stateOf(f, "192.0.2.1"); got != "ejected" {
		t.Fatalf("it is %s", got)
	}
	return f
}

func TestANewNetworkVoidsHolds(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(w *world)
		back   bool // within 2 s
	}{
		"nothing has changed":                   {func(*world) {}, false},
		"the set has changed":                   {func(w *world) { w.write(hostFile, "", "192.0.2.1", "192.0.2.2", "192.0.2.3") }, true},
		"another stanza's set has changed":      {func(w *world) { w.write("/run/other", "", "198.51.100.1") }, true},
		"the file was only written":             {func(w *world) { w.write(hostFile, "# again\n", "192.0.2.1", "192.0.2.2") }, false},
		"this host has another address":         {func(w *world) { w.move("10.1.0.7") }, true},
		"this host has one more":                {func(w *world) { w.move("10.0.0.7", "10.1.0.7") }, true},
		"a container's interface has come":      {func(w *world) { w.move("10.0.0.7", "fe80::1%veth0") }, false},
		"the addresses stand in another order":  {func(w *world) { w.move("127.0.0.1", "10.0.0.7") }, false},
		"this host has lost its address":        {func(w *world) { w.move() }, true},
		"a resolver has failed":                 {func(w *world) { w.knows("dns.example.org", known{err: errNoSuchHost}) }, false},
		"a name has the same addresses":         {func(w *world) { w.knows("dns.example.org", known{addrs: "192.0.2.9", ttl: time.Second}) }, false},
		"a name has another address by its TTL": {func(w *world) { w.knows("dns.example.org", known{addrs: "192.0.2.8", ttl: time.Second}) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.move("10.0.0.7", "127.0.0.1")
				w.knows("dns.example.org", known{addrs: "192.0.2.9", ttl: 6800 * ms})
				w.write("/run/other", "", "198.51.100.2")
				w.write(hostFile, "", "192.0.2.1", "192.0.2.2")
				f := held(t, w, hostFile+"\nhealthforward . /run/other\nhealthforward . dns.example.org")
				tc.change(w)
				time.Sleep(1900 * ms)
				if got := stateOf(f, "192.0.2.1"); (got != "ejected") != tc.back {
					t.Errorf("it is %s", got)
				}
			})
		})
	}
}

func TestTheNetworkIsLookedAtWhileSomebodyIsEjected(t *testing.T) {
	at := func(s string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(s)} }
	type look struct {
		after   time.Duration
		ejected bool
		addrs   []netip.Addr
	}
	for name, tc := range map[string]struct {
		looks []look
		want  bool // of the last
	}{
		"the first look is what others are compared with": {[]look{{0, true, at("10.0.0.1")}}, false},
		"nothing has changed":                             {[]look{{0, true, at("10.0.0.1")}, {addressEvery, true, at("10.0.0.1")}}, false},
		"it has":                                          {[]look{{0, true, at("10.0.0.1")}, {addressEvery, true, at("10.0.0.2")}}, true},
		"it has, but it is too soon to look":              {[]look{{0, true, at("10.0.0.1")}, {addressEvery - 1, true, at("10.0.0.2")}}, false},
		"it had before somebody was ejected":              {[]look{{0, false, at("10.0.0.1")}, {addressEvery, true, at("10.0.0.2")}}, false},
		"it had while nobody was":                         {[]look{{0, true, at("10.0.0.1")}, {addressEvery, false, at("10.0.0.1")}, {addressEvery, true, at("10.0.0.2")}}, false},
		"each change counts once":                         {[]look{{0, true, at("10.0.0.1")}, {addressEvery, true, at("10.0.0.2")}, {addressEvery, true, at("10.0.0.2")}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var n network
			now, got := time.Date(2026, time.November, 30, 0, 0, 0, 0, time.UTC), false
			for _, l := range tc.looks {
				now = now.Add(l.after)
				got = n.changed(now, l.ejected, func() []netip.Addr { return slices.Clone(l.addrs) })
			}
			if got != tc.want {
				t.Errorf("changed = %v, want %v", got, tc.want)
			}
		})
	}
}

// series returns how many series there are of an address.
func series(t *testing.T, addr string) int {
	t.Helper()
	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, family := range families {
		for _, m := range family.Metric {
			for _, l := range m.Label {
				if l.GetName() == "to" && l.GetValue() == addr {
					n++
				}
			}
		}
	}
	return n
}

func TestTheSeriesOfWhoLeftGoAfterTwoSecondsAndStayAway(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.write(hostFile, "", "192.0.2.71")
		f := w.start(t, "healthforward . "+hostFile+" {\n hedge off\n read_timeout 3900ms\n}")
		resolve(t, f, "first.example.org.")
		old := w.at("192.0.2.71")
		old.set(func(m *model) {
			m.answers = func(name string) (rcode int, rtt time.Duration) {
				if name == "later.example.org." {
					return dns.RcodeYXDomain, 3800 * ms // whose series is not there yet
				}
				return dns.RcodeSuccess, 2400 * ms
			}
		})
		w.at("192.0.2.72").set(func(m *model) { m.silent = true })
		w.write(hostFile, "", "192.0.2.72")
		go resolve(t, f, "late.example.org.")
		go resolve(t, f, "later.example.org.")
		time.Sleep(2490 * ms) // it left 500 ms after the file was written
		if n := series(t, "192.0.2.71:53"); n == 0 {
			t.Error("no series within two seconds")
		}
		time.Sleep(20 * ms)
		if n := series(t, "192.0.2.71:53"); n != 0 {
			t.Errorf("%d series after two seconds, want none", n)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if n := series(t, "192.0.2.71:53"); n != 0 {
			t.Errorf("%d series after a late answer, want none", n)
		}
		if n := series(t, "192.0.2.72:53"); n == 0 {
			t.Error("the new one has no series")
		}
	})
}

func TestWhoComesBackWithinTwoSecondsIsTheSame(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.write(hostFile, "", "192.0.2.1")
		f := w.start(t, "healthforward . "+hostFile)
		var old []pool.ID
		for id := range f.groupFor(protoUDP).upstreams {
			old = append(old, id)
		}
		w.write(hostFile, "", "192.0.2.2")
		time.Sleep(time.Second)
		w.write(hostFile, "", "192.0.2.1")
		time.Sleep(10 * time.Second)
		if ups(f) != "192.0.2.1" || f.groupFor(protoUDP).upstreams[old[0]] == nil {
			t.Errorf("the upstreams are %s, and another one", ups(f))
		}
		if n, _ := w.registry.counts(); n != 2 || len(w.registry.leaving) != 0 {
			t.Errorf("%d upstreams are left, want one over two transports", n)
		}
	})
}

func TestEverybodyIsProbedWhenASetChanges(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.write(hostFile, "", "192.0.2.1")
		f := w.start(t, "healthforward . "+hostFile)
		resolve(t, f, "example.org.")
		time.Sleep(time.Second)
		w.at("192.0.2.1").set(func(m *model) { m.probes = 0 })
		w.write(hostFile, "", "192.0.2.1", "192.0.2.2")
		time.Sleep(510 * ms)
		if got := stateOf(f, "192.0.2.2"); got != "up" {
			t.Errorf("10ms after the change the new one is %s", got)
		}
		w.at("192.0.2.1").set(func(m *model) {
			if m.probes == 0 {
				t.Error("the one that stays is not probed")
			}
		})
	})
}
