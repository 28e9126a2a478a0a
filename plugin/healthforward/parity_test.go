package healthforward

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"steadfast.internal/plugin/internal/readmetest"

	"github.com/coredns/caddy"
)

// TestEveryPropertyOfForwardIsAccepted reads the source of the CoreDNS that go.mod
// requires: when forward learns a word, so must we.
func TestEveryPropertyOfForwardIsAccepted(t *testing.T) {
	c := newConfig()
	ours := c.properties("", make(map[string]bool)).Names()
	theirs := forwardProperties(t)
	if len(theirs) < 20 {
		t.Fatalf("found only %q in forward's setup: has it been rewritten?", theirs)
	}
	for _, name := range theirs {
		if !slices.Contains(ours, name) {
			t.Errorf("forward has the property %q, healthforward has not", name)
		}
	}
}

// forwardProperties returns the words that forward's parseBlock knows.
func forwardProperties(t *testing.T) []string {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/coredns/coredns").Output()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(strings.TrimSpace(string(dir)), "plugin", "forward", "setup.go")
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Name.Name != "parseBlock" {
			continue
		}
		for _, stmt := range f.Body.List {
			sw, ok := stmt.(*ast.SwitchStmt)
			if !ok {
				continue
			}
			for _, clause := range sw.Body.List {
				for _, expr := range clause.(*ast.CaseClause).List {
					name, err := strconv.Unquote(expr.(*ast.BasicLit).Value)
					if err != nil {
						t.Fatal(err)
					}
					names = append(names, name)
				}
			}
		}
	}
	return names
}

// sameVerdict are stanzas, without their first word, on which forward and
// healthforward agree. Both setups are really run.
var sameVerdict = []string{
	". 127.0.0.1",
	". 127.0.0.1:53",
	". 127.0.0.1:8080",
	". [::1]:53",
	". ::1",
	". [2003::1]:53",
	". fe80::1%lo",
	". dns://127.0.0.1 dns://127.0.0.2:54",
	". tls://127.0.0.1 tls://127.0.0.2:8853",
	". tls://127.0.0.1%example.net:854 tls://127.0.0.2%example.net tls://fe80::1%example.com",
	". tls://[2400:3200::1%dns.alidns.com]:853",
	". https://127.0.0.1",
	". https://127.0.0.1:8443",
	". quic://127.0.0.1",
	". quic://127.0.0.1%doq.example:853",
	". tls://127.0.0.1 quic://127.0.0.1 127.0.0.1",
	". https://127.0.0.1/",
	". https://127.0.0.1/dns-query",
	". grpc://127.0.0.1",
	". unix:///run/dns.sock",
	". resolv.conf",
	". comments.conf 127.0.0.1",
	". no/such/file",
	". 192.0.2.300",
	". x..y",
	".",
	"",
	"10.9.3.0/18 127.0.0.1",
	"example.org 127.0.0.1",
	"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx 127.0.0.1",
	". 127.0.0.1 {\n}",
	". 127.0.0.1 {\nblaatl\n}",
	". 127.0.0.1 {\nexcept miek.nl\n}", ". 127.0.0.1 {\nexcept\n}", ". 127.0.0.1 {\nexcept 10.0.0.0/8 a.example\n}",
	". 127.0.0.1 {\nmax_fails 3\n}", ". 127.0.0.1 {\nmax_fails 0\n}", ". 127.0.0.1 {\nmax_fails 4294967295\n}",
	". 127.0.0.1 {\nmax_fails 4294967296\n}", ". 127.0.0.1 {\nmax_fails -1\n}", ". 127.0.0.1 {\nmax_fails\n}",
	". 127.0.0.1 {\nmax_connect_attempts 0\n}", ". 127.0.0.1 {\nmax_connect_attempts 5\n}", ". 127.0.0.1 {\nmax_connect_attempts many\n}",
	". 127.0.0.1 {\nmax_idle_conns 10\n}", ". 127.0.0.1 {\nmax_idle_conns 0\n}", ". 127.0.0.1 {\nmax_idle_conns -1\n}",
	". 127.0.0.1 {\nforce_tcp\n}", ". 127.0.0.1 {\nforce_tcp\nprefer_udp\n}", ". 127.0.0.1 {\nforce_tcp yes\n}", ". 127.0.0.1 {\nprefer_udp yes\n}",
	". 127.0.0.1 {\nhealth_check 0.5s\n}", ". 127.0.0.1 {\nhealth_check 0s\n}", ". 127.0.0.1 {\nhealth_check -1s\n}",
	". 127.0.0.1 {\nhealth_check 0.5s no_rec domain example.org\n}", ". 127.0.0.1 {\nhealth_check 0.5s domain .\n}",
	". 127.0.0.1 {\nhealth_check 0.5s domain\n}", ". 127.0.0.1 {\nhealth_check no_rec\n}", ". 127.0.0.1 {\nhealth_check 0.5s rec\n}",
	". 127.0.0.1 {\nhealth_check 0.5s domain example..org\n}", ". 127.0.0.1 {\nhealth_check\n}",
	". 127.0.0.1 {\nexpire 10s\n}", ". 127.0.0.1 {\nexpire 0s\n}", ". 127.0.0.1 {\nexpire -1s\n}", ". 127.0.0.1 {\nexpire 5\n}",
	". 127.0.0.1 {\nmax_age 30s\n}", ". 127.0.0.1 {\nmax_age 0s\n}", ". 127.0.0.1 {\nmax_age 9s\n}", ". 127.0.0.1 {\nmax_age -1s\n}",
	". 127.0.0.1 {\nexpire 10s\nmax_age 10s\n}", ". 127.0.0.1 {\nexpire 30s\nmax_age 10s\n}", ". 127.0.0.1 {\nexpire 2s\nmax_age 3s\n}",
	". 127.0.0.1 {\nread_timeout 5s\n}", ". 127.0.0.1 {\nread_timeout 1ms\n}", ". 127.0.0.1 {\nread_timeout 10m\n}",
	". 127.0.0.1 {\nread_timeout 0s\n}", ". 127.0.0.1 {\nread_timeout -1s\n}", ". 127.0.0.1 {\nread_timeout\n}",
	". 127.0.0.1 {\ndoh_method GET\n}", ". 127.0.0.1 {\ndoh_method POST\n}", ". 127.0.0.1 {\ndoh_method PUT\n}", ". 127.0.0.1 {\ndoh_method\n}",
	". 127.0.0.1 {\npolicy random\n}", ". 127.0.0.1 {\npolicy round_robin\n}", ". 127.0.0.1 {\npolicy sequential\n}", ". 127.0.0.1 {\npolicy best\n}",
	". 127.0.0.1 {\nmax_concurrent 1000\n}", ". 127.0.0.1 {\nmax_concurrent 0\n}", ". 127.0.0.1 {\nmax_concurrent many\n}", ". 127.0.0.1 {\nmax_concurrent -4\n}",
	". 127.0.0.1 {\nnext NXDOMAIN servfail\n}", ". 127.0.0.1 {\nnext NOERROR\n}", ". 127.0.0.1 {\nnext\n}", ". 127.0.0.1 {\nnext NXDOMAIN INVALID\n}",
	". 127.0.0.1 {\nnext_on_nodata\n}", ". 127.0.0.1 {\nnext_on_nodata yes\n}",
	". 127.0.0.1 {\nfailfast_all_unhealthy_upstreams\n}", ". 127.0.0.1 {\nfailfast_all_unhealthy_upstreams false\n}",
	". 127.0.0.1 {\nfailover ServFail Refused\nfailover NOTIMP\n}", ". 127.0.0.1 {\nfailover NOERROR\n}", ". 127.0.0.1 {\nfailover BAD\n}", ". 127.0.0.1 {\nfailover\n}",
	". 127.0.0.1 {\nresolver 10.96.0.10 10.96.0.11:53\n}", ". 127.0.0.1 {\nresolver ::1\n}", ". 127.0.0.1 {\nresolver dns.example.com\n}", ". 127.0.0.1 {\nresolver\n}",
	". 127.0.0.1 {\nsource_address 192.0.2.1\n}", ". 127.0.0.1 {\nsource_address ::ffff:192.0.2.1\n}", ". 127.0.0.1 {\nsource_address not-an-ip\n}", ". 127.0.0.1 {\nsource_address\n}",
	". tls://127.0.0.1 {\ntls\n}", ". tls://127.0.0.1 {\ntls /no/such/ca.pem\n}", ". tls://127.0.0.1 {\ntls a b c d\n}",
	". tls://127.0.0.1 {\ntls_servername dns.example\n}", ". tls://127.0.0.1 {\ntls_servername\n}",
	". tls://127.0.0.1%example.net:854 {\ntls_servername foo\n}", ". quic://127.0.0.1%doq.example:853 {\ntls_servername foo\n}",
	". 127.0.0.1 {\ntls\ntls_servername dns\n}",
	". 127.0.0.1 {\nfall 2\nmax_fails 2\n}", ". 127.0.0.1 {\nprobe . NS\nhealth_check 1s\n}",
}

// differences are stanzas on which they do not agree, by the row of the README's
// table that says so.
var differences = map[string][]string{
	"More than 15 upstreams": {
		". 127.0.0.1 127.0.0.2 127.0.0.3 127.0.0.4 127.0.0.5 127.0.0.6 127.0.0.7 127.0.0.8 127.0.0.9 127.0.0.10 127.0.0.11 127.0.0.12 127.0.0.13 127.0.0.14 127.0.0.15 127.0.0.16",
	},
	"A host name that cannot be resolved":                      {". no-such-host.invalid", ". tls://no-such-host.invalid"},
	"A file that is missing or names no server":                {". /no/such/resolv.conf", ". comments.conf", ". empty.conf"},
	"`failover none`, and the properties that forward has not": {". 127.0.0.1 {\nfailover none\n}", ". 127.0.0.1 {\nhedge off\n}", ". 127.0.0.1 {\ndeadline 3s\n}", ". 127.0.0.1 {\nede on\n}", ". 127.0.0.1 {\nfall 3\nrise 3\nhold 10s\n}", ". 127.0.0.1 {\nprobe example.org A\nslow off\nslowstart off\nbudget 10%\nenforce off\n}"},
	"`policy p2c`, `fastest`, `hash` and `race`":               {". 127.0.0.1 {\npolicy p2c\n}", ". 127.0.0.1 {\npolicy race 2\n}"},
}

func TestForwardAndHealthforwardAgreeOnCorefiles(t *testing.T) {
	differencesTable := readmetest.Section(t, "Differences from forward")
	t.Chdir(t.TempDir())
	for name, content := range map[string]string{
		"resolv.conf":   "nameserver 10.10.255.252\nnameserver 10.10.255.253\n",
		"comments.conf": "# nameserver 1.1.1.1\n",
		"empty.conf":    "",
	} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, stanza := range sameVerdict {
		theirs, ours := setupError(t, "forward", stanza), setupError(t, pluginName, stanza)
		if (theirs == nil) != (ours == nil) {
			t.Errorf("%q\nforward says %v\nhealthforward says %v", stanza, theirs, ours)
		}
	}
	for row, stanzas := range differences {
		if !strings.Contains(differencesTable, "| "+row+" |") {
			t.Errorf("README's table of differences has no row %q", row)
		}
		for _, stanza := range stanzas {
			if err := setupError(t, "forward", stanza); err == nil {
				t.Errorf("%q is no difference: forward accepts it", stanza)
			}
			if err := setupError(t, pluginName, stanza); err != nil {
				t.Errorf("%q: %v", stanza, err)
			}
		}
	}
}

// setupError runs the setup of a directive on one stanza.
func setupError(t *testing.T, directive, stanza string) error {
	t.Helper()
	run, err := caddy.DirectiveAction("dns", directive)
	if err != nil {
		t.Fatal(err)
	}
	return run(caddy.NewTestController("dns", directive+" "+stanza))
}
