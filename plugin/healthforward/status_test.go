package healthforward

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"steadfast.internal/plugin/healthforward/internal/pool"
	"steadfast.internal/plugin/healthforward/internal/transport"
	"steadfast.internal/plugin/internal/status"

	"github.com/coredns/caddy"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// tokenFile returns a file with a token in it.
func tokenFile(t *testing.T, token string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestStatusInTheCorefile(t *testing.T) {
	token := tokenFile(t, "0123456789abcdef")
	for name, tc := range map[string]struct{ text, want string }{
		"loopback":               {block("status 127.0.0.1:8053"), "127.0.0.1:8053"},
		"loopback, and controls": {block("status [::1]:8053 " + token), "[::1]:8053 " + token},
		"a unix socket":          {block("status unix:/run/coredns.sock"), "unix:/run/coredns.sock"},
		"said twice":             {block("status 127.0.0.1:8053\n status 127.0.0.1:8053"), "127.0.0.1:8053"},
		"everywhere, with token": {block("status 0.0.0.0:8053 " + token), "0.0.0.0:8053 " + token},
	} {
		t.Run(name, func(t *testing.T) {
			configs, err := parseText(tc.text)
			if err != nil || configs[0].Status.String() != tc.want {
				t.Errorf("%+v, error %v, want %s", configs, err, tc.want)
			}
		})
	}
	wantErrors(t, map[string][]string{
		block("status"): {"status", "0 arguments"},
		block("status 127.0.0.1:8053 " + token + " x"):            {"status", "3 arguments"},
		block("status 8053"):                                      {"status", "8053", "IP:PORT", "unix:PATH"},
		block("status 127.0.0.1:0"):                               {"status", "port 0"},
		block("status 0.0.0.0:8053"):                              {"status", "0.0.0.0:8053", "token", "loopback"},
		block("status [::]:8053"):                                 {"status", "[::]:8053", "token"},
		block("status 192.0.2.1:8053"):                            {"status", "192.0.2.1:8053", "token"},
		block("status 192.0.2.1:8053 /no/such/token"):             {"status", "/no/such/token"},
		block("status 127.0.0.1:8053 " + tokenFile(t, "short")):   {"status", "less than 16"},
		block("status 127.0.0.1:8053\n status 127.0.0.1:8054"):    {"status", "127.0.0.1:8053", "127.0.0.1:8054"},
		block("status 127.0.0.1:1\n status 127.0.0.1:1 " + token): {"status", "one page", token},
	})
	configs, err := parseText(strings.Replace(block("status 127.0.0.1:8053"), "\n}", "\n}\n"+block("fall 2"), 1))
	if err != nil || len(configs) != 2 {
		t.Fatal(err)
	}
	c := caddy.NewTestController("dns", block("status 127.0.0.1:8053")+"\n"+block("status 127.0.0.1:8054"))
	if err := setup(c, pluginName); err == nil || !strings.Contains(err.Error(), "127.0.0.1:8054") {
		t.Errorf("two stanzas with two pages: error %v", err)
	}
	c = caddy.NewTestController("dns", block("status 127.0.0.1:8053")+"\n"+block("status 127.0.0.1:8053")+"\n"+block("fall 2"))
	if err := setup(c, pluginName); err != nil {
		t.Errorf("two stanzas with one page: %v", err)
	}
}

func TestWhatAnOperatorWantsIsDone(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		f := w.start(t, "healthforward . 192.0.2.1 192.0.2.2 {\n policy sequential\n}")
		asked := func(ip string) int {
			began := time.Now()
			for i := range 10 {
				resolve(t, f, distinct(i))
			}
			return w.at(ip).since(began)
		}
		for i, tc := range []struct {
			target string
			want   pool.Admin
			done   int
			asked  int // of ten queries over UDP
		}{
			{"192.0.2.1:53", pool.Drain, 2, 0}, // over both transports
			{"192.0.2.1:53", pool.Ready, 2, 10},
			{"tcp://192.0.2.1:53", pool.Maint, 1, 10},
			{"udp://192.0.2.1:53", pool.Maint, 1, 0},
			{"tcp://192.0.2.1:53", pool.Ready, 1, 0},
			{"192.0.2.1:53", pool.Ready, 2, 10},
		} {
			w.logged("")
			n, err := w.registry.steer("10.0.0.9:4711", tc.target, tc.want)
			if n != tc.done || err != nil {
				t.Errorf("step %d: done %d, error %v, want %d", i, n, err, tc.done)
			}
			if lines := w.logged("status:"); len(lines) != 1 || !strings.Contains(lines[0], "10.0.0.9:4711") || !strings.Contains(lines[0], tc.want.String()) || !strings.Contains(lines[0], "192.0.2.1:53") {
				t.Errorf("step %d: the log says %q", i, lines)
			}
			if got := asked("192.0.2.1"); got != tc.asked {
				t.Errorf("step %d: asked %d times, want %d", i, got, tc.asked)
			}
		}
		for _, target := range []string{"", "192.0.2.1", "192.0.2.9:53", "tls://192.0.2.1:53"} {
			if _, err := w.registry.steer("", target, pool.Drain); !errors.Is(err, status.ErrNoTarget) {
				t.Errorf("%q: error %v", target, err)
			}
			if _, err := w.registry.probeAt("", target); !errors.Is(err, status.ErrNoTarget) {
				t.Errorf("%q: error %v", target, err)
			}
		}
	})
}

// TestWhereAllAreInMaintNobodyIsAsked, and the client is told so at once or in time.
func TestWhereAllAreInMaintNobodyIsAsked(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		f := w.start(t, "healthforward . 192.0.2.1")
		if _, err := w.registry.steer("", "192.0.2.1:53", pool.Maint); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if addr, took := resolve(t, f, "a.example."); addr != "" || took > f.Deadline || w.at("192.0.2.1").since(began) != 0 {
			t.Errorf("%q after %v, asked %d times", addr, took, w.at("192.0.2.1").since(began))
		}
		if _, err := w.registry.steer("", "192.0.2.1:53", pool.Ready); err != nil {
			t.Fatal(err)
		}
		if addr, _ := resolve(t, f, "b.example."); addr != "192.0.2.1" {
			t.Errorf("after it %q", addr)
		}
	})
}

// TestWhatAnOperatorWantsOutlivesTheUpstream: a drained server that a host name does not lead
// to for a while is drained when it does again.
func TestWhatAnOperatorWantsOutlivesTheUpstream(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.write(hostFile, "", "192.0.2.1", "192.0.2.2")
		f := w.start(t, "healthforward . "+hostFile)
		if _, err := w.registry.steer("", "192.0.2.1:53", pool.Drain); err != nil {
			t.Fatal(err)
		}
		gauge := func(word string) float64 {
			return testutil.ToFloat64(upstreamAdmin.WithLabelValues("192.0.2.1:53", protoUDP, word))
		}
		if gauge("drain") != 1 || gauge("ready") != 0 {
			t.Errorf("drain %v, ready %v", gauge("drain"), gauge("ready"))
		}
		w.write(hostFile, "", "192.0.2.2")
		time.Sleep(10 * time.Second)
		if got := w.registry.overview(time.Now()); len(got.absent()) != 2 || got.Steered["udp://192.0.2.1:53"] != "drain" {
			t.Errorf("remembered: %+v", got.Steered)
		}
		w.write(hostFile, "", "192.0.2.1", "192.0.2.2")
		time.Sleep(time.Second)
		began := time.Now()
		for i := range 20 {
			resolve(t, f, distinct(i))
		}
		if n := w.at("192.0.2.1").since(began); n != 0 || gauge("drain") != 1 {
			t.Errorf("asked %d times, want as drained as before; the metric says %v", n, gauge("drain"))
		}
		w.write(hostFile, "", "192.0.2.2")
		time.Sleep(10 * time.Second)
		if n, err := w.registry.steer("", "192.0.2.1:53", pool.Ready); n != 2 || err != nil || len(w.registry.steered) != 0 {
			t.Errorf("one that is away cannot be made ready: %d, %v, %v", n, err, w.registry.steered)
		}
	})
}

func TestHowManyAreRememberedHasALimit(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.start(t, "healthforward . 192.0.2.1")
		for i := range maxSteered - 1 {
			w.registry.steered[place{protoUDP, fmt.Sprintf("198.51.100.1:%d", i+1)}] = pool.Drain
		}
		if _, err := w.registry.steer("", "192.0.2.1:53", pool.Drain); !errors.Is(err, errManySteered) {
			t.Errorf("two more: %v", err)
		}
		if _, err := w.registry.steer("", "udp://192.0.2.1:53", pool.Drain); err != nil {
			t.Errorf("one more: %v", err)
		}
		if _, err := w.registry.steer("", "udp://192.0.2.1:53", pool.Maint); err != nil {
			t.Errorf("the same again: %v", err)
		}
	})
}

func TestAProbeIsMadeAtOnce(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.start(t, "healthforward . 192.0.2.1 192.0.2.2")
		time.Sleep(5 * time.Second)
		probes := func() int {
			m := w.at("192.0.2.1")
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.probes
		}
		before := probes()
		if n, err := w.registry.probeAt("somebody", "192.0.2.1:53"); n != 1 || err != nil { // nobody has asked over TCP
			t.Errorf("%d, %v", n, err)
		}
		time.Sleep(10 * ms)
		if got := probes(); got != before+1 {
			t.Errorf("%d probes, before %d", got, before)
		}
		if _, err := w.registry.steer("", "192.0.2.1:53", pool.Maint); err != nil {
			t.Fatal(err)
		}
		if _, err := w.registry.probeAt("", "192.0.2.1:53"); !errors.Is(err, errNoProbe) {
			t.Errorf("one in maint: %v", err)
		}
	})
}

func TestTheOverviewSaysWhatAnOperatorAsks(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.write(hostFile, "", "192.0.2.1", "192.0.2.2", "127.0.0.1", "192.0.2.6")
		w.at("192.0.2.2").deaf = true
		notYet := func(transport.Query) (*dns.Msg, error) { return nil, errors.New("nobody listens yet") }
		w.at("192.0.2.6").loops = notYet
		w.registry.listeners = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:53")}
		fs := startAll(t, w.registry, "healthforward example.org "+hostFile+" {\n backup 192.0.2.3\n policy sequential\n}\nhealthforward . 192.0.2.4 tls://192.0.2.5 {\n enforce off\n policy race 2\n}")
		w.at("192.0.2.6").set(func(m *model) { m.loops = loopTo(t, fs[0]) })
		time.Sleep(10 * time.Second)
		resolve(t, fs[0], "a.example.org.")
		time.Sleep(time.Second)
		w.put(hostFile, content{text: "# nothing\n"})
		time.Sleep(time.Second)

		o := w.registry.overview(time.Now())
		if len(o.Stanzas) != 2 {
			t.Fatalf("%+v", o)
		}
		first, second := o.Stanzas[0], o.Stanzas[1]
		if first.From != "example.org." || first.Policy != "sequential" || !first.Enforced || first.Budget != 0.2 || first.Saved[protoUDP] < 100 || second.Saved[protoTCP] != 100 || second.Policy != "race 2" || second.Enforced {
			t.Errorf("%+v\n%+v", first, second)
		}
		var got []string
		for _, u := range append(first.Upstreams, second.Upstreams...) {
			got = append(got, fmt.Sprintf("%d %s %s %q %s %s %s", u.Tier, u.Proto, u.To, u.Source, u.State, u.Cause, u.Admin))
		}
		want := []string{
			`1 udp 192.0.2.1:53 "/etc/resolv.conf" up heard ready`,
			`1 udp 192.0.2.2:53 "/etc/resolv.conf" ejected silent ready`,
			`2 udp 192.0.2.3:53 "" up heard ready`,
			`1 tcp 192.0.2.1:53 "/etc/resolv.conf" suspect none ready`,
			`1 tcp 192.0.2.2:53 "/etc/resolv.conf" suspect none ready`,
			`2 tcp 192.0.2.3:53 "" suspect none ready`,
			`1 udp 192.0.2.4:53 "" up heard ready`,
			`1 tls 192.0.2.5:853 "" up heard ready`, // for clients of both transports
			`1 tcp 192.0.2.4:53 "" suspect none ready`,
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("upstreams:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		up, out := first.Upstreams[0], first.Upstreams[1]
		if up.Heard == nil || *up.Heard > 2.1 || up.Median < 0.002 || up.Median > 0.0025 || out.Heard != nil || out.Detail != "2 in a row" || out.Lasts < 10 {
			t.Errorf("%+v, heard %v\n%+v", up, up.Heard, out)
		}
		src := first.Sources[0]
		if src.Name != hostFile || !strings.Contains(src.Trouble, "no nameserver line") || !slices.Equal(src.LeftOut, []leftOutView{{"127.0.0.1:53", whyListens}, {"192.0.2.6:53", whyLoops}}) {
			t.Errorf("source %+v", src)
		}
		page := fmt.Sprintf("%+v", o.report().Tables)
		for _, part := range []string{"silent: 2 in a row", "never", "127.0.0.1:53", whyListens, "not enforced", "race 2", "saved 100 over tcp and 10", "no nameserver line"} {
			if !strings.Contains(page, part) {
				t.Errorf("the page has not %q:\n%s", part, page)
			}
		}
		if _, err := json.Marshal(o); err != nil {
			t.Error(err)
		}
	})
}
