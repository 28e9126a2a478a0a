package healthforward

import (
	"crypto/tls"
	"math"
	"net/netip"
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
	return parse(&d, "")
}

// tos parses TOs that are known to be right.
func tos(t *testing.T, args ...string) []to {
	t.Helper()
	var all []to
	for _, arg := range args {
		parsed, err := parseTo(arg)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, parsed)
	}
	return all
}

func TestParse(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		want func(*Config)
	}{
		"the two-line form": {"healthforward . 192.0.2.1", func(*Config) {}},
		"a zone":            {"healthforward EXAMPLE.org 192.0.2.1", func(c *Config) { c.From = "example.org." }},
		"a network":         {"healthforward 10.0.0.0/8 192.0.2.1", func(c *Config) { c.From = "10.in-addr.arpa." }},
		"every property": {`healthforward . 192.0.2.1 {
			backup 198.51.100.1 tls://192.0.2.2
			backup dns.example.net
			private corp.example 10.1.0.0/16
			private none
			policy sequential
			except a.example b.example
			except 10.0.0.0/8
			read_timeout 3s
			deadline 5s
			ede on
			failover servfail REFUSED
			failover NOTIMP
			next NXDOMAIN
			next SERVFAIL
			next_on_nodata
			fall 3
			rise 4
			hold 10m
			hedge 75ms
			slow 10s
			slowstart 10m
			budget 100%
			enforce on
			max_concurrent 1000
			max_connect_attempts 7
			max_idle_conns 5
			expire 20s
			max_age 1m
			health_check 2s no_rec domain example.org
			force_tcp
			prefer_udp
			doh_method GET
			failfast_all_unhealthy_upstreams
			resolver 10.96.0.10 10.96.0.11:54 ::1
			source_address ::ffff:192.0.2.9
			tls_servername dns.example
		}`, func(c *Config) {
			c.Policy, c.Except = "sequential", []string{"a.example.", "b.example.", "10.in-addr.arpa."}
			c.Backups = [][]to{tos(t, "198.51.100.1", "tls://192.0.2.2"), tos(t, "dns.example.net")}
			c.Private = private{zones: []string{"corp.example.", "1.10.in-addr.arpa."}, none: true}
			c.ReadTimeout, c.Deadline, c.MaxConcurrent, c.MaxAttempts = 3*time.Second, 5*time.Second, 1000, 7
			c.Hedge.Min, c.Hedge.Max = 75*time.Millisecond, 75*time.Millisecond
			c.Failover = []int{dns.RcodeServerFailure, dns.RcodeRefused, dns.RcodeNotImplemented}
			c.NextRcodes, c.NextOnNodata = []int{dns.RcodeNameError, dns.RcodeServerFailure}, true
			c.Rules.Fall, c.Rules.Rise, c.Rules.Hold, c.Rules.HoldMax = 3, 4, 10*time.Minute, 10*time.Minute
			c.Rules.Interval = 2 * time.Second
			c.Rules.Slow, c.Rules.Ramp, c.Budget = 10*time.Second, 10*time.Minute, 1
			c.ForceTCP, c.PreferUDP, c.Failfast, c.EDE = true, true, true, true
			c.Resolvers = []string{"10.96.0.10:53", "10.96.0.11:54", "[::1]:53"}
			c.Way = way{
				tlsName: "dns.example", httpMethod: "GET", source: netip.MustParseAddr("192.0.2.9"),
				expire: 20 * time.Second, maxAge: time.Minute, maxIdle: 5, probeName: "example.org.", probeType: dns.TypeNS, probeNoRD: true,
			}
		}},
		"words that turn things off": {"healthforward . 192.0.2.1 {\n hedge off\n failover none\n max_fails 0\n hold 0s\n probe off\n slow off\n slowstart off\n budget 0%\n enforce off\n}", func(c *Config) {
			c.NoHedge, c.Failover, c.Rules.Fall, c.Rules.Hold = true, nil, 0, 0
			c.Rules.NoProbe, c.Rules.Slow, c.Rules.Ramp, c.Budget, c.Rules.DryRun = true, 0, 0, 0, true
		}},
		"a probe of another name": {"healthforward . 192.0.2.1 {\n probe off\n probe Example.ORG a\n}", func(c *Config) {
			c.Way.probeName, c.Way.probeType = "example.org.", dns.TypeA
		}},
		"the least": {"healthforward . 192.0.2.1 {\n slow 10ms\n slowstart 0s\n budget 12.5%\n}", func(c *Config) {
			c.Rules.Slow, c.Rules.Ramp, c.Budget = 10*time.Millisecond, 0, 0.125
		}},
		"a learned delay within bounds": {"healthforward . 192.0.2.1 {\n hedge off\n hedge 20ms 1s\n}", func(c *Config) {
			c.Hedge.Min, c.Hedge.Max = 20*time.Millisecond, time.Second
		}},
		"a race": {"healthforward . 192.0.2.1 {\n policy race 2\n}", func(c *Config) { c.Policy, c.Race = "race", 2 }},
		"zeros that mean no limit": {"healthforward . 192.0.2.1 {\n max_age 0s\n max_idle_conns 0\n expire 0s\n max_connect_attempts 0\n}", func(c *Config) {
			c.Way.maxAge, c.Way.maxIdle, c.Way.expire = forever, math.MaxInt, 1
		}},
		"health_check 0 is no busy loop": {"healthforward . 192.0.2.1 {\n health_check 0s\n}", func(c *Config) {
			c.Rules.Interval = minProbeInterval
		}},
		"an attempt below the deadline":             {block("read_timeout 3999ms"), func(c *Config) { c.ReadTimeout = 3999 * time.Millisecond }},
		"an attempt above the deadline raises it":   {block("read_timeout 4001ms"), func(c *Config) { c.ReadTimeout, c.Deadline = 4001*time.Millisecond, 4001*time.Millisecond }},
		"an attempt above a deadline that is given": {block("deadline 1s\n read_timeout 2s"), func(c *Config) { c.ReadTimeout, c.Deadline = 2*time.Second, 2*time.Second }},
		"what is off by default":                    {block("ede on\n ede off"), func(*Config) {}},
		"the shortest deadline":                     {block("deadline 1s"), func(c *Config) { c.Deadline = time.Second }},
		"the longest deadline":                      {block("deadline 30s"), func(c *Config) { c.Deadline = 30 * time.Second }},
		"tls without files": {"healthforward . 192.0.2.1 {\n tls\n}", func(c *Config) {
			c.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
		}},
		"a property twice: the last counts": {"healthforward . 192.0.2.1 {\n rise 3\n rise 4\n}", func(c *Config) { c.Rules.Rise = 4 }},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseText(tc.text)
			if err != nil {
				t.Fatal(err)
			}
			want := newConfig()
			want.From, want.To = ".", tos(t, "192.0.2.1")
			tc.want(&want)
			if want.TLS != nil { // what CoreDNS makes of no file: compare that it is there
				if got[0].TLS == nil {
					t.Fatal("no TLS configuration")
				}
				got[0].TLS = want.TLS
			}
			if len(got) != 1 || !reflect.DeepEqual(got[0], want) {
				t.Errorf("parse =\n%+v\nwant\n%+v", got, want)
			}
		})
	}
}

func TestParseTo(t *testing.T) {
	resolv := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(resolv, []byte("nameserver 192.0.2.53\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for arg, want := range map[string]to{
		"192.0.2.1":                            {scheme: "dns", addr: "192.0.2.1:53"},
		"192.0.2.1:5353":                       {scheme: "dns", addr: "192.0.2.1:5353"},
		"2001:db8::1":                          {scheme: "dns", addr: "[2001:db8::1]:53"},
		"[2001:db8::2]":                        {scheme: "dns", addr: "[2001:db8::2]:53"},
		"[2001:db8::3]:5353":                   {scheme: "dns", addr: "[2001:db8::3]:5353"},
		"fe80::1%eth0":                         {scheme: "dns", addr: "[fe80::1%eth0]:53"},
		"[fe80::1%eth0]:54":                    {scheme: "dns", addr: "[fe80::1%eth0]:54"},
		"dns://192.0.2.2":                      {scheme: "dns", addr: "192.0.2.2:53"},
		"tls://192.0.2.1":                      {scheme: "tls", addr: "192.0.2.1:853"},
		"tls://192.0.2.1:8853":                 {scheme: "tls", addr: "192.0.2.1:8853"},
		"tls://127.0.0.1%example.net:854":      {scheme: "tls", addr: "127.0.0.1:854", serverName: "example.net"},
		"tls://127.0.0.1%example.net":          {scheme: "tls", addr: "127.0.0.1:853", serverName: "example.net"},
		"tls://[::1%example.net]:853":          {scheme: "tls", addr: "[::1]:853", serverName: "example.net"},
		"tls://fe80::1%example.com":            {scheme: "tls", addr: "[fe80::1]:853", serverName: "example.com"},
		"quic://127.0.0.1%doq.example:8853":    {scheme: "quic", addr: "127.0.0.1:8853", serverName: "doq.example"},
		"https://127.0.0.1":                    {scheme: "https", addr: "127.0.0.1:443"},
		"https://127.0.0.1%example.net:8443":   {scheme: "https", addr: "127.0.0.1:8443", serverName: "example.net"},
		"dns.example.com":                      {scheme: "dns", host: "dns.example.com", port: "53"},
		"dns.example.com.:5353":                {scheme: "dns", host: "dns.example.com.", port: "5353"},
		"tls://dns.example.com":                {scheme: "tls", host: "dns.example.com", port: "853"},
		"tls://dns.example.com%other.example":  {scheme: "tls", host: "dns.example.com", port: "853", serverName: "other.example"},
		"rbldnsd.rbldnsd.svc.cluster.local:53": {scheme: "dns", host: "rbldnsd.rbldnsd.svc.cluster.local", port: "53"},
		resolv:                                 {scheme: "dns", file: resolv},
		"/run/missing/resolv.conf":             {scheme: "dns", file: "/run/missing/resolv.conf"},
	} {
		if got, err := parseTo(arg); err != nil || got != want {
			t.Errorf("parseTo(%q) = %+v, %v; want %+v", arg, got, err, want)
		}
	}
}

func TestATOIsShownAsItCanBeWritten(t *testing.T) {
	for arg, want := range map[string]string{
		"192.0.2.1:53":                        "192.0.2.1",
		"dns://192.0.2.1:5353":                "192.0.2.1:5353",
		"[2001:db8::1]:53":                    "2001:db8::1",
		"[2001:db8::1]:54":                    "[2001:db8::1]:54",
		"fe80::1%eth0":                        "fe80::1%eth0",
		"tls://192.0.2.1%a.example:853":       "tls://192.0.2.1%a.example",
		"tls://[2001:db8::1%a.example]:854":   "tls://[2001:db8::1%a.example]:854",
		"https://192.0.2.1":                   "https://192.0.2.1",
		"dns.example.org":                     "dns.example.org",
		"tls://dns.example.org%a.example:854": "tls://dns.example.org%a.example:854",
		"/run/resolv.conf":                    "/run/resolv.conf",
	} {
		parsed := tos(t, arg)[0]
		if got := parsed.String(); got != want || tos(t, got)[0] != parsed {
			t.Errorf("%s is shown as %s, want %s", arg, got, want)
		}
	}
}

func TestSeveralStanzas(t *testing.T) {
	got, err := parseText("healthforward example.org 192.0.2.1\nhealthforward . 192.0.2.2 {\n policy round_robin\n}\nhealthforward . 192.0.2.3\n")
	if err != nil || len(got) != 3 || got[1].Policy != "round_robin" || got[2].To[0].addr != "192.0.2.3:53" {
		t.Errorf("parse = %+v, %v", got, err)
	}
}

// TestErrorsNameWhatIsWrong: the directive, the value and the bound.
func TestErrorsNameWhatIsWrong(t *testing.T) {
	wantErrors(t, map[string][]string{
		"healthforward":                         {"FROM", "TO", "0 arguments"},
		"healthforward .":                       {"TO", "1 arguments"},
		"healthforward a..b 192.0.2.1":          {"FROM", "a..b"},
		"healthforward . 192.0.2.300":           {"TO", "192.0.2.300"},
		"healthforward . 192.0.2.1:0":           {"TO", "port 0", "1"},
		"healthforward . 192.0.2.1:70000":       {"TO", "192.0.2.1:70000", "65535"},
		"healthforward . dns.example.org:0":     {"TO", "port", "1", "65535"},
		"healthforward . grpc://192.0.2.1":      {"TO", "grpc", "dns, tls, https, quic"},
		"healthforward . tls://":                {"TO", "tls://"},
		"healthforward . https://192.0.2.1/dns": {"TO", "https://192.0.2.1/dns", "path"},
		"healthforward . no/such/file":          {"TO", "no/such/file"},
		"healthforward . :53":                   {"TO", ":53"},
		"healthforward . a..b":                  {"TO", "a..b"},
		"healthforward . tls://192.0.2.1%a.example {\n tls_servername b.example\n}":  {"TO", "192.0.2.1%a.example", "tls_servername", "b.example"},
		"healthforward . quic://192.0.2.1%a.example {\n tls_servername b.example\n}": {"TO", "192.0.2.1%a.example", "tls_servername", "b.example"},
		block("polici random"):                       {"polici", "policy"},
		block("policy best"):                         {"policy", "best", "fastest, hash, p2c, race, random, round_robin, sequential"},
		block("policy race"):                         {"policy", "one argument", "0"},
		block("policy race 1"):                       {"policy", "1", "2"},
		block("policy race 9"):                       {"policy", "9", "8"},
		block("policy"):                              {"policy", "one argument", "0"},
		block("policy random random"):                {"policy", "one argument", "2"},
		block("except"):                              {"except"},
		block("except a..b"):                         {"except", "a..b"},
		block("read_timeout 5"):                      {"read_timeout", "5", "duration"},
		block("read_timeout 0s"):                     {"read_timeout", "0s", "1ns"},
		block("deadline 999ms"):                      {"deadline", "999ms", "1s"},
		block("deadline 31s"):                        {"deadline", "31s", "30s"},
		block("deadline off"):                        {"deadline", "off", "duration"},
		block("ede"):                                 {"ede", "one argument"},
		block("ede yes"):                             {"ede", "yes", "on, off"},
		block("failover"):                            {"failover"},
		block("failover NOERROR"):                    {"failover", "NOERROR"},
		block("failover BAD"):                        {"failover", "BAD"},
		block("next"):                                {"next"},
		block("next NXDOMAIN BAD"):                   {"next", "BAD"},
		block("next_on_nodata yes"):                  {"next_on_nodata", "yes"},
		block("fall 0"):                              {"fall", "0", "1"},
		block("fall 101"):                            {"fall", "101", "100"},
		block("fall x"):                              {"fall", "x"},
		block("fall 2\n max_fails 3"):                {"fall", "max_fails"},
		block("max_fails -1"):                        {"max_fails", "-1", "0"},
		block("max_fails 99999999999999999999"):      {"max_fails", "99999999999999999999"},
		block("max_connect_attempts -4"):             {"max_connect_attempts", "-4", "0"},
		block("max_idle_conns many"):                 {"max_idle_conns", "many"},
		block("max_idle_conns -1"):                   {"max_idle_conns", "-1", "0"},
		block("expire -1s"):                          {"expire", "-1s", "0s"},
		block("max_age -1s"):                         {"max_age", "-1s", "0s"},
		block("max_age 9s"):                          {"max_age", "9s", "expire", "10s"},
		block("expire 30s\n max_age 10s"):            {"max_age", "10s", "expire", "30s"},
		block("health_check"):                        {"health_check", "duration"},
		block("health_check no_rec"):                 {"health_check", "no_rec"},
		block("health_check -1s"):                    {"health_check", "-1s", "0s"},
		block("health_check 1s rec"):                 {"health_check", "rec", "no_rec, domain"},
		block("health_check 1s domain"):              {"health_check", "domain"},
		block("health_check 1s domain a..b"):         {"health_check", "a..b"},
		block("doh_method PUT"):                      {"doh_method", "PUT", "GET, POST"},
		block("force_tcp yes"):                       {"force_tcp", "yes"},
		block("prefer_udp yes"):                      {"prefer_udp", "yes"},
		block("failfast_all_unhealthy_upstreams no"): {"failfast_all_unhealthy_upstreams", "no"},
		block("resolver"):                            {"resolver"},
		block("resolver dns.example"):                {"resolver", "dns.example"},
		block("source_address"):                      {"source_address", "one argument"},
		block("source_address here"):                 {"source_address", "here"},
		block("tls a b c d"):                         {"tls", "a"},
		block("tls /no/such/ca.pem"):                 {"tls", "/no/such/ca.pem"},
		block("tls_servername"):                      {"tls_servername", "one argument"},
		block("rise 0"):                              {"rise", "0", "1"},
		block("hold -1s"):                            {"hold", "-1s", "0s"},
		block("hold 61m"):                            {"hold", "61m", "1h0m0s"},
		block("hedge 9ms"):                           {"hedge", "9ms", "10ms"},
		block("hedge 3s"):                            {"hedge", "3s", "2s"},
		block("hedge on"):                            {"hedge", "on"},
		block("hedge"):                               {"hedge", "durations", "0"},
		block("hedge 1s 20ms"):                       {"hedge", "1s", "20ms"},
		block("hedge 20ms 3s"):                       {"hedge", "3s", "2s"},
		block("hedge 20ms 1s 2s"):                    {"hedge", "3 arguments"},
		block("max_concurrent -5"):                   {"max_concurrent", "-5", "0"},
		block("hold 5s {\n x\n }"):                   {"hold", "{"},
	})
}

// wantErrors checks that a Corefile is refused with an error that names these things.
func wantErrors(t *testing.T, table map[string][]string) {
	t.Helper()
	for text, want := range table {
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
			if c.From == "" || len(c.To) == 0 || c.Rules.Rise < 1 || c.Rules.Fall < 0 || c.ReadTimeout < 1 || c.Deadline < max(time.Second, c.ReadTimeout) || c.Hedge.Min > c.Hedge.Max || c.Budget < 0 || c.Budget > 1 {
				t.Errorf("accepted %+v", c)
			}
		}
	})
}
