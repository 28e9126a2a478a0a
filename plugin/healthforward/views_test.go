package healthforward

import (
	"bytes"
	"strings"
	"testing"

	clog "github.com/coredns/coredns/plugin/pkg/log"
)

func TestAListOfPrivateAndGlobalAddressesIsWarnedOf(t *testing.T) {
	for name, tc := range map[string]struct {
		stanza string
		add    string // the line that the warning says to add; empty: there is no warning
	}{
		"private and global":           {"healthforward . 10.0.0.1 192.0.2.1", "backup 192.0.2.1"},
		"global in front":              {"healthforward . 192.0.2.1 192.168.1.1 192.0.2.2:5353", "backup 192.0.2.1 192.0.2.2:5353"},
		"ULA":                          {"healthforward . fd00::1 2001:db8::1", "backup 2001:db8::1"},
		"link-local":                   {"healthforward . fe80::1%%lo tls://192.0.2.1%%dns.example", "backup tls://192.0.2.1%dns.example"},
		"IPv4 link-local":              {"healthforward . 169.254.20.10 192.0.2.1", "backup 192.0.2.1"},
		"carrier-grade NAT":            {"healthforward . 100.64.0.1 192.0.2.1", "backup 192.0.2.1"},
		"beside carrier-grade NAT":     {"healthforward . 100.128.0.1 192.0.2.1", ""},
		"loopback":                     {"healthforward . 127.0.0.53 192.0.2.1", "backup 192.0.2.1"},
		"another policy":               {"healthforward . 10.0.0.1 192.0.2.1 {\n policy race 2\n}", "backup 192.0.2.1"},
		"only private":                 {"healthforward . 10.0.0.1 fd00::1", ""},
		"only global":                  {"healthforward . 192.0.2.1 2001:db8::1", ""},
		"a ranking":                    {"healthforward . 10.0.0.1 192.0.2.1 {\n policy sequential\n}", ""},
		"a backup":                     {"healthforward . 10.0.0.1 {\n backup 192.0.2.1\n}", ""},
		"the line that it says to add": {"healthforward . 10.0.0.1 192.0.2.1 {\n backup 192.0.2.1\n}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			clog.SetOutput(&out)
			defer clog.Discard()
			f := load(t, newRegistry(nil), tc.stanza).forwarders[0]
			f.places = f.registry.leads(f)
			f.warnOfMixedViews()
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			switch {
			case tc.add == "":
				if out.Len() != 0 {
					t.Errorf("warned: %s", out.String())
				}
			case len(lines) != 1 || !strings.Contains(lines[0], "healthforward . ") || !strings.HasSuffix(lines[0], "add the line: "+tc.add):
				t.Errorf("log = %q, want one line with %q", out.String(), tc.add)
			}
		})
	}
}
