package searchexpand

import (
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/coredns/coredns/plugin"

	"github.com/miekg/dns"
)

// table is a hosts plugin that never answers itself, so that what is passed on
// to it shows.
type table struct {
	plugin.Handler
	v4, v6 map[string]string
}

func (t table) LookupStaticHostV4(host string) []net.IP { return address(t.v4, host) }
func (t table) LookupStaticHostV6(host string) []net.IP { return address(t.v6, host) }

// address looks a name up as hosts does, without regard to case.
func address(of map[string]string, host string) []net.IP {
	if ip := net.ParseIP(of[strings.ToLower(host)]); ip != nil {
		return []net.IP{ip}
	}
	return nil
}

func TestANameInHostsIsNotSearched(t *testing.T) {
	hosts := table{
		v4: map[string]string{"db01.": "192.0.2.1", "wpad.": "192.0.2.2", "db01.lab.": "192.0.2.3"},
		v6: map[string]string{"v6only.": "2001:db8::1"},
	}
	tests := map[string]struct {
		ask   string
		qtype uint16
		want  string // the first question that the rest of the chain gets; none if it is empty
	}{
		"its address":                         {"db01.", dns.TypeA, "db01. A"},
		"in other case":                       {"DB01.", dns.TypeA, "DB01. A"},
		"the family that it has not":          {"db01.", dns.TypeAAAA, "db01. AAAA"},
		"the family that it has alone":        {"v6only.", dns.TypeAAAA, "v6only. AAAA"},
		"another type, which hosts denies":    {"db01.", dns.TypeTXT, "db01. TXT"},
		"a dotted one":                        {"db01.lab.", dns.TypeA, "db01.lab. A"},
		"one that would be blocked":           {"wpad.", dns.TypeA, "wpad. A"},
		"one that is blocked and not there":   {"isatap.", dns.TypeA, ""},
		"one that is not there":               {"db02.", dns.TypeA, "db02.a.test. A"},
		"one that only begins like one there": {"db01.la.", dns.TypeA, "db01.la.a.test. A"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			z := newZones(t)
			s := newTestPlugin(z, 2, "a.test.")
			s.hosts = hostTableOf(hosts)
			serve(t, s, query(tc.ask, tc.qtype))
			got := append(z.questions(), "")[0]
			if got != tc.want {
				t.Errorf("asked %q, want %q", got, tc.want)
			}
		})
	}
}

func TestOnlyAHostsPluginHasATable(t *testing.T) {
	if got := hostTableOf(nil); got != nil {
		t.Errorf("hostTableOf(nil) = %v", got)
	}
	if got := hostTableOf(newZones(t)); got != nil {
		t.Errorf("hostTableOf a plugin without a table = %v", got)
	}
	z := newZones(t)
	serve(t, newTestPlugin(z, 1, "a.test."), query("db01.", dns.TypeA)) // and none is no trouble
	if got := z.questions(); !slices.Equal(got, []string{"db01.a.test. A"}) {
		t.Errorf("asked %q, want the name under the suffix", got)
	}
}
