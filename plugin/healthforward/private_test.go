package healthforward

import (
	"strings"
	"testing"

	"github.com/miekg/dns"
)

func TestWhatIsPrivateWithoutASayingSo(t *testing.T) {
	for name, want := range map[string]bool{
		"nas.":                                        true,
		"com.":                                        true, // nobody asks for its address
		"example.org.":                                false,
		".":                                           false,
		"db01.internal.":                              true,
		"internal.example.org.":                       false,
		"printer.local.":                              true,
		"x.home.arpa.":                                true,
		"arpa.example.":                               false,
		"router.lan.":                                 true,
		"vlan.example.":                               false,
		"1.0.0.10.in-addr.arpa.":                      true,
		"10.in-addr.arpa.":                            true,
		"1.0.0.110.in-addr.arpa.":                     false,
		"in-addr.arpa.":                               false,
		"1.0.15.172.in-addr.arpa.":                    false,
		"1.0.16.172.in-addr.arpa.":                    true,
		"1.0.31.172.in-addr.arpa.":                    true,
		"1.0.32.172.in-addr.arpa.":                    false,
		"1.1.168.192.in-addr.arpa.":                   true,
		"1.1.167.192.in-addr.arpa.":                   false,
		"1.0.63.100.in-addr.arpa.":                    false,
		"1.0.64.100.in-addr.arpa.":                    true,
		"1.0.127.100.in-addr.arpa.":                   true,
		"1.0.128.100.in-addr.arpa.":                   false,
		"0.0.0.0.in-addr.arpa.":                       true,
		"1.0.0.127.in-addr.arpa.":                     true,
		"1.1.254.169.in-addr.arpa.":                   true,
		"1.2.0.192.in-addr.arpa.":                     true,
		"1.3.0.192.in-addr.arpa.":                     false,
		"1.100.51.198.in-addr.arpa.":                  true,
		"1.113.0.203.in-addr.arpa.":                   true,
		"255.255.255.255.in-addr.arpa.":               true,
		"254.255.255.255.in-addr.arpa.":               false,
		strings.Repeat("0.", 32) + "ip6.arpa.":        true,
		"1." + strings.Repeat("0.", 31) + "ip6.arpa.": true,
		"2." + strings.Repeat("0.", 31) + "ip6.arpa.": false,
		"1.d.f.ip6.arpa.":                             true,
		"1.c.f.ip6.arpa.":                             false,
		"7.e.f.ip6.arpa.":                             false,
		"8.e.f.ip6.arpa.":                             true,
		"9.e.f.ip6.arpa.":                             true,
		"a.e.f.ip6.arpa.":                             true,
		"b.e.f.ip6.arpa.":                             true,
		"c.e.f.ip6.arpa.":                             false,
		"1.8.b.d.0.1.0.0.2.ip6.arpa.":                 true,
		"1.9.b.d.0.1.0.0.2.ip6.arpa.":                 false,
		`a\.internal.`:                                true,  // one label
		`a\.internal.example.`:                        false, // its dot is no label's end
	} {
		if got := (private{}).holds(name, dns.TypeA); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

func TestTheKeysOfTopLevelDomainsAreEverybodys(t *testing.T) {
	for qtype, want := range map[uint16]bool{dns.TypeDS: false, dns.TypeDNSKEY: false, dns.TypeA: true, dns.TypeNS: true} {
		if got := (private{}).holds("org.", qtype); got != want {
			t.Errorf("%s: %v, want %v", dns.TypeToString[qtype], got, want)
		}
	}
	if !(private{}).holds("internal.", dns.TypeDS) {
		t.Error("DS of a private zone is not private")
	}
}

func TestPrivateZonesAreAddedOrStandAlone(t *testing.T) {
	for lines, want := range map[string]map[string]bool{
		"private corp.example 10.9.0.0/16": {"a.corp.example.": true, "corp.example.": true, "notcorp.example.": false, "1.1.9.10.in-addr.arpa.": true, "a.local.": true, "nas.": true},
		"private none":                     {"a.local.": false, "nas.": false, "1.0.0.10.in-addr.arpa.": false},
		"private none\n private b.example": {"a.local.": false, "a.b.example.": true},
		"private b.example\n private none": {"a.local.": false, "a.b.example.": true},
		"private none b.example":           {"a.local.": false, "a.b.example.": true},
		"private .":                        {"example.org.": true, ".": true},
	} {
		configs, err := parseText(block(lines))
		if err != nil {
			t.Fatal(err)
		}
		for name, private := range want {
			if got := configs[0].Private.holds(name, dns.TypeA); got != private {
				t.Errorf("%s: %s: %v, want %v", lines, name, got, private)
			}
		}
	}
}

func TestErrorsNameTheTierAndTheZone(t *testing.T) {
	wantErrors(t, map[string][]string{
		block("backup"):              {"backup", "TO"},
		block("backup 192.0.2.300"):  {"backup", "192.0.2.300"},
		block("backup no/such/file"): {"backup", "no/such/file"},
		block("tls_servername b.example\n backup tls://192.0.2.1%a.example"): {"backup", "192.0.2.1%a.example", "tls_servername", "b.example"},
		block("private"):      {"private", "zone", "none"},
		block("private a..b"): {"private", "a..b"},
	})
}
