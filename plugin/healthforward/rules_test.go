package healthforward

import (
	"fmt"
	"testing"
	"time"

	"steadfast.internal/plugin/internal/dnsfake"

	"github.com/miekg/dns"
)

func TestProbesAskForWhatTheStanzaSays(t *testing.T) {
	up := dnsfake.New(t, dnsfake.Address("192.0.2.1"))
	start(t, "healthforward . %s {\n probe Probe.example.org aaaa\n}", up.Addr())
	waitFor(t, "it is probed", func() bool { return up.Count("probe.example.org.") > 0 })
	if r := up.Seen()[0]; !r.RecursionDesired || r.Question[0].Qtype != dns.TypeAAAA {
		t.Errorf("probe is %v", r.Msg)
	}
}

func TestWithoutProbesQueriesAloneTell(t *testing.T) {
	bubble(t, "policy sequential\nprobe off", func(t *testing.T, fw *Forwarder, a, b *model) {
		if !fw.Ready() {
			t.Error("not ready, though no verdict is to come")
		}
		if n := countState(fw, "suspect"); n != 2 {
			t.Errorf("%d upstreams are suspect at the start, want both", n)
		}
		if addr, took := resolve(t, fw, "first.example.org."); addr != "192.0.2.1" || took != 2*ms {
			t.Errorf("the first query: %q in %v", addr, took)
		}
		a.set(func(m *model) { m.silent = true })
		if addr, took := resolve(t, fw, "late.example.org."); addr != "192.0.2.2" || took != 252*ms {
			t.Errorf("when it dies: %q in %v", addr, took)
		}
		for i := range 30 {
			if addr, took := resolve(t, fw, fmt.Sprintf("n%d.example.org.", i)); addr != "192.0.2.2" || took != 2*ms {
				t.Errorf("after that: %q in %v", addr, took)
			}
			time.Sleep(100 * ms)
		}
		a.set(func(m *model) { m.silent = false })
		back := time.Now()
		for time.Since(back) < 5*time.Second {
			addr, took := resolve(t, fw, "again.example.org.")
			if took != 2*ms {
				t.Errorf("a client waits %v for the test of its return", took)
			}
			if addr == "192.0.2.1" {
				break
			}
			time.Sleep(10 * ms)
		}
		if took := time.Since(back); took > 1100*ms {
			t.Errorf("used again after %v, want with the next copy of a query", took)
		}
		if n := a.probes + b.probes; n != 0 {
			t.Errorf("%d probes", n)
		}
	})
}

func TestWithoutProbesTheWayBackIsByCopiesOfQueries(t *testing.T) {
	bubble(t, "policy round_robin\nprobe off", func(t *testing.T, fw *Forwarder, a, _ *model) {
		for countState(fw, "up") < 2 {
			resolve(t, fw, "first.example.org.")
			time.Sleep(100 * ms)
		}
		a.set(func(m *model) { m.silent = true })
		staggered(t, fw, 40, 5*ms, func(int, string) {})
		time.Sleep(1500 * ms) // by then all that it owes is lost
		if n := countState(fw, "ejected"); n != 1 {
			t.Fatalf("%d are ejected, want the one that loses", n)
		}
		a.set(func(m *model) { m.silent = false })
		back := time.Now()
		for countState(fw, "slowstart") == 0 && time.Since(back) < 10*time.Second {
			if _, took := resolve(t, fw, "again.example.org."); took != 2*ms {
				t.Errorf("a client waits %v for the test of its return", took)
			}
			time.Sleep(10 * ms)
		}
		if took := time.Since(back); took > 3200*ms {
			t.Errorf("back after %v, want after three copies, one a second", took)
		}
	})
}

func TestWhatIsNotEnforcedEjectsNobody(t *testing.T) {
	bubble(t, "policy sequential\nenforce off", func(t *testing.T, fw *Forwarder, a, _ *model) {
		a.set(func(m *model) { m.deaf = true })
		for i := range 50 {
			if addr, _ := resolve(t, fw, fmt.Sprintf("n%d.example.org.", i)); addr != "192.0.2.2" {
				t.Errorf("query %d: %q", i, addr)
			}
			time.Sleep(100 * ms)
		}
		if n := countState(fw, "suspect"); n != 1 {
			t.Errorf("%d are suspect, want the dead one: asked last, not ejected", n)
		}
	})
}

func TestWithoutASlowStartTheWholeShareIsThereAtOnce(t *testing.T) {
	for property, want := range map[string]string{"slowstart off": "up", "slowstart 10m": "slowstart"} {
		bubble(t, "policy sequential\n"+property, func(t *testing.T, fw *Forwarder, a, _ *model) {
			a.set(func(m *model) { m.deaf = true })
			resolve(t, fw, "first.example.org.")
			time.Sleep(4 * time.Second)
			a.set(func(m *model) { m.deaf = false })
			time.Sleep(5 * time.Second)
			if countState(fw, "ejected") != 0 || want == "slowstart" && countState(fw, want) != 1 || want == "up" && countState(fw, want) != 2 {
				t.Errorf("%s: it is not %s after its return", property, want)
			}
		})
	}
}

func TestSlowSaysFromWhereOnSlownessEjects(t *testing.T) {
	for property, want := range map[string]int{"slow 50ms": 1, "slow 500ms": 0, "slow off": 0} {
		bubble(t, "policy round_robin\n"+property, func(t *testing.T, fw *Forwarder, a, _ *model) {
			a.set(func(m *model) { m.rtt = 150 * ms })
			for i := range 100 {
				resolve(t, fw, fmt.Sprintf("n%d.example.org.", i))
			}
			if n := countState(fw, "ejected"); n != want {
				t.Errorf("%s: %d are ejected, want %d", property, n, want)
			}
		})
	}
}

func TestErrorsNameTheRuleAndItsBound(t *testing.T) {
	wantErrors(t, map[string][]string{
		block("probe"):                                        {"probe", "name", "type", "off", "0 arguments"},
		block("probe on"):                                     {"probe", "name", "type", "1 arguments"},
		block("probe a..b A"):                                 {"probe", "a..b"},
		block("probe example.org IPV4"):                       {"probe", "IPV4", "type"},
		block("probe example.org ANY"):                        {"probe", "ANY", "type"},
		block("probe example.org AXFR"):                       {"probe", "AXFR", "type"},
		block("probe example.org OPT"):                        {"probe", "OPT", "type"},
		block("probe example.org A\n health_check 1s"):        {"probe", "health_check"},
		block("health_check 1s domain a.example\n probe off"): {"probe", "health_check"},
		block("slow 9ms"):                                     {"slow", "9ms", "10ms"},
		block("slow 10001ms"):                                 {"slow", "10001ms", "10s"},
		block("slow fast"):                                    {"slow", "fast", "duration"},
		block("slow"):                                         {"slow", "one argument", "0"},
		block("slowstart -1s"):                                {"slowstart", "-1s", "0s"},
		block("slowstart 601s"):                               {"slowstart", "601s", "10m0s"},
		block("budget"):                                       {"budget", "one argument", "0"},
		block("budget 20"):                                    {"budget", "20", "percentage"},
		block("budget x%"):                                    {"budget", "x%", "percentage"},
		block("budget NaN%"):                                  {"budget", "NaN%", "percentage"},
		block("budget -1%"):                                   {"budget", "-1%", "0%"},
		block("budget 101%"):                                  {"budget", "101%", "100%"},
		block("enforce"):                                      {"enforce", "one argument", "0"},
		block("enforce yes"):                                  {"enforce", "yes", "on, off"},
	})
}
