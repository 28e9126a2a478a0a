package healthforward

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/coredns/caddy/caddyfile"
	"github.com/miekg/dns"
)

func parseText(text string) ([]Config, error) {
	d := caddyfile.NewDispenser("Corefile", strings.NewReader(text))
	return parse(&d)
}

func TestParse(t *testing.T) {
	resolv := filepath.Join(t.TempDir(), "resolv.conf")
	content := "# comment\nnameserver 192.0.2.53\nnameserver fe80::1%lo\nnameserver 192.0.2.53\noptions timeout:1\n"
	if err := os.WriteFile(resolv, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		text string
		want func(*Config)
	}{
		"the two-line form": {"healthforward . 192.0.2.1", func(c *Config) { c.To = []string{"192.0.2.1:53"} }},
		"a zone": {"healthforward EXAMPLE.org 192.0.2.1", func(c *Config) {
			c.From, c.To = "example.org.", []string{"192.0.2.1:53"}
		}},
		"a network": {"healthforward 10.0.0.0/8 192.0.2.1", func(c *Config) {
			c.From, c.To = "10.in-addr.arpa.", []string{"192.0.2.1:53"}
		}},
		"all kinds of addresses": {"healthforward . 192.0.2.1:5353 2001:db8::1 [2001:db8::2] [2001:db8::3]:5353 dns://192.0.2.2 dns://192.0.2.3:54 fe80::1%eth0", func(c *Config) {
			c.To = []string{"192.0.2.1:5353", "[2001:db8::1]:53", "[2001:db8::2]:53", "[2001:db8::3]:5353", "192.0.2.2:53", "192.0.2.3:54", "[fe80::1%eth0]:53"}
		}},
		"twins are folded": {"healthforward . 192.0.2.1 192.0.2.1:53 dns://192.0.2.1", func(c *Config) { c.To = []string{"192.0.2.1:53"} }},
		"a file": {"healthforward . " + resolv + " 192.0.2.9", func(c *Config) {
			c.To = []string{"192.0.2.53:53", "[fe80::1%lo]:53", "192.0.2.9:53"}
		}},
		"every property": {`healthforward . 192.0.2.1 {
			policy sequential
			except a.example b.example
			except 10.0.0.0/8
			read_timeout 3s
			failover servfail REFUSED
			fall 3
			rise 4
			hold 10m
			hedge 75ms
			max_concurrent 1000
		}`, func(c *Config) {
			c.To, c.Policy, c.Except = []string{"192.0.2.1:53"}, "sequential", []string{"a.example.", "b.example.", "10.in-addr.arpa."}
			c.ReadTimeout, c.Hedge, c.MaxConcurrent = 3*time.Second, 75*time.Millisecond, 1000
			c.Failover = []int{dns.RcodeServerFailure, dns.RcodeRefused}
			c.Rules.Fall, c.Rules.Rise, c.Rules.Hold, c.Rules.HoldMax = 3, 4, 10*time.Minute, 10*time.Minute
		}},
		"words that turn things off": {"healthforward . 192.0.2.1 {\n hedge off\n failover none\n max_fails 0\n hold 0s\n}", func(c *Config) {
			c.To, c.Hedge, c.Failover, c.Rules.Fall, c.Rules.Hold = []string{"192.0.2.1:53"}, 0, nil, 0, 0
		}},
		"a property twice: the last counts": {"healthforward . 192.0.2.1 {\n rise 3\n rise 4\n}", func(c *Config) {
			c.To, c.Rules.Rise = []string{"192.0.2.1:53"}, 4
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseText(tc.text)
			if err != nil {
				t.Fatal(err)
			}
			want := newConfig()
			want.From = "."
			tc.want(&want)
			if len(got) != 1 || !reflect.DeepEqual(got[0], want) {
				t.Errorf("parse =\n%+v\nwant\n%+v", got, want)
			}
		})
	}
}

func TestSeveralStanzas(t *testing.T) {
	got, err := parseText("healthforward example.org 192.0.2.1\nhealthforward . 192.0.2.2 {\n policy round_robin\n}\nhealthforward . 192.0.2.3\n")
	if err != nil || len(got) != 3 || got[1].Policy != "round_robin" || got[2].To[0] != "192.0.2.3:53" {
		t.Errorf("parse = %+v, %v", got, err)
	}
}

// TestErrorsNameWhatIsWrong: the directive, the value and the bound.
func TestErrorsNameWhatIsWrong(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("search example.org\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string][]string{
		"healthforward":                         {"FROM", "TO", "0 arguments"},
		"healthforward .":                       {"TO", "1 arguments"},
		"healthforward a..b 192.0.2.1":          {"FROM", "a..b"},
		"healthforward . 192.0.2.300":           {"TO", "192.0.2.300"},
		"healthforward . 192.0.2.1:0":           {"TO", "port 0", "1"},
		"healthforward . 192.0.2.1:70000":       {"TO", "192.0.2.1:70000"},
		"healthforward . dns://x.example":       {"TO", "x.example"},
		"healthforward . tls://192.0.2.1":       {"TO", "tls", "dns"},
		"healthforward . /no/such/file":         {"TO", "/no/such/file"},
		"healthforward . " + empty:              {"TO", empty, "nameserver"},
		"healthforward . :53":                   {"TO", ":53"},
		block("polici random"):                  {"polici", "policy"},
		block("policy fastest"):                 {"policy", "fastest", "random, round_robin, sequential"},
		block("policy"):                         {"policy", "one argument", "0"},
		block("policy random random"):           {"policy", "one argument", "2"},
		block("except"):                         {"except"},
		block("except a..b"):                    {"except", "a..b"},
		block("read_timeout 5"):                 {"read_timeout", "5", "duration"},
		block("read_timeout 9ms"):               {"read_timeout", "9ms", "10ms"},
		block("read_timeout 61s"):               {"read_timeout", "61s", "1m0s"},
		block("failover"):                       {"failover"},
		block("failover NOERROR"):               {"failover", "NOERROR"},
		block("failover BAD"):                   {"failover", "BAD"},
		block("fall 0"):                         {"fall", "0", "1"},
		block("fall 101"):                       {"fall", "101", "100"},
		block("fall x"):                         {"fall", "x"},
		block("fall 2\n max_fails 3"):           {"fall", "max_fails"},
		block("max_fails -1"):                   {"max_fails", "-1", "0"},
		block("max_fails 99999999999999999999"): {"max_fails", "99999999999999999999"},
		block("rise 0"):                         {"rise", "0", "1"},
		block("hold -1s"):                       {"hold", "-1s", "0s"},
		block("hold 61m"):                       {"hold", "61m", "1h0m0s"},
		block("hedge 9ms"):                      {"hedge", "9ms", "10ms"},
		block("hedge 3s"):                       {"hedge", "3s", "2s"},
		block("hedge on"):                       {"hedge", "on"},
		block("max_concurrent -5"):              {"max_concurrent", "-5", "0"},
		block("hold 5s {\n x\n }"):              {"hold", "{"},
	} {
		_, err := parseText(text)
		if err == nil {
			t.Errorf("%s\nis accepted", text)
			continue
		}
		for _, part := range want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s\nerror %q does not name %q", text, err, part)
			}
		}
	}
}

func block(line string) string { return "healthforward . 192.0.2.1 {\n " + line + "\n}" }

// FuzzBlock: no Corefile makes the parser panic, and what it accepts is within bounds.
func FuzzBlock(f *testing.F) {
	f.Add("policy sequential\n hedge off\n failover none")
	f.Add("fall 2 {\n}\n")
	f.Add("except . example.org 10.0.0.0/8")
	f.Fuzz(func(t *testing.T, lines string) {
		configs, err := parseText(block(lines))
		if err != nil {
			return
		}
		for _, c := range configs {
			if c.From == "" || len(c.To) == 0 || c.Rules.Rise < 1 || c.Rules.Fall < 0 || c.ReadTimeout < 10*time.Millisecond || c.Hedge < 0 {
				t.Errorf("accepted %+v", c)
			}
		}
	})
}
