package test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// zoneSet are the zones that the tests of searchexpand complete names in. Each
// line is an owner and its data; TTLs are 60 s.
var zoneSet = map[string][]string{
	"a.test.": {
		"v4only A 192.0.2.10",
		"v6only AAAA 2001:db8::13",
		"both A 192.0.2.11", "both AAAA 2001:db8::11",
		"txtonly TXT here", "deadtxt TXT here",
		"chain CNAME v4only.b.test.",
		"chain2 CNAME mid.a.test.", "mid CNAME both.a.test.",
		"dangle CNAME gone.a.test.",
		"x.ent A 192.0.2.12", "x.hollow A 192.0.2.12",
		"_sip._tcp SRV 0 5 5060 both.a.test.",
	},
	"b.test.": {
		"v4only A 192.0.2.20", "v4only AAAA 2001:db8::20",
		"v6only A 192.0.2.21",
		"txtonly A 192.0.2.22",
		"bonly A 192.0.2.23",
		"dangle A 192.0.2.24", "dangle AAAA 2001:db8::24",
		"ent A 192.0.2.25",
		"host1 A 192.0.2.26",
		// Each of these belongs to one test that counts questions.
		"cached A 192.0.2.27", "fetched A 192.0.2.28", "chained A 192.0.2.29", "beyond A 192.0.2.31",
		"_sip._tcp SRV 0 5 5061 v4only.b.test.",
	},
	"w.test.":   {"* A 203.0.113.66", "host1 A 192.0.2.30"},
	"w6.test.":  {"* AAAA 2001:db8::66", "host1 AAAA 2001:db8::30"},
	"own.test.": {"client A 192.0.2.70"}, // what clients have in a search line of their own
}

// zoneMinimum is for how long a denial of a zone may be kept.
var zoneMinimum = map[string]int{"a.test.": 30, "b.test.": 20}

// Zones that do not answer as they should; nx6.test denies the existence of
// a name that has an address when it is asked for one of the other family.
const oddZones = `acl silent.test {
		drop
	}
	template ANY ANY sf.test {
		rcode SERVFAIL
	}
	template ANY ANY refused.test {
		rcode REFUSED
	}
	template IN A nx6.test {
		match ^four\.
		answer "{{ .Name }} 60 IN A 192.0.2.60"
		fallthrough
	}
	template ANY ANY nx6.test {
		rcode NXDOMAIN
		authority "nx6.test. 60 IN SOA ns.nx6.test. host.nx6.test. 1 1800 900 604800 25"
	}`

// The rest of the world: like the root, nothing exists, for a day.
const restOfWorld = `template ANY ANY . {
		rcode NXDOMAIN
		authority ". 86400 IN SOA a.root.test. host.root.test. 1 1800 900 604800 86400"
	}`

// zoneServer is a stock CoreDNS that serves zoneSet, and remembers who was asked
// for.
type zoneServer struct{ *server }

func startZoneSet(t testing.TB) *zoneServer {
	t.Helper()
	dir := t.TempDir()
	zones := []string{"sf.test.", "refused.test.", "silent.test.", "nx6.test."}
	var files strings.Builder
	for _, zone := range slices.Sorted(maps.Keys(zoneSet)) {
		zones = append(zones, zone)
		fmt.Fprintf(&files, "\tfile %s %s\n", writeFile(t, dir, zone+"zone", zoneText(zone)), zone)
	}
	keys := strings.ReplaceAll(strings.Join(zones, ":{PORT1} "), "test.:", "test:") + ":{PORT1}"
	const seen = "bind 127.0.0.1\n\tlog . \"asked {name} {type}\""
	return &zoneServer{startServer(t, fmt.Sprintf("%s {\n\t%s\n\t%s\n%s}\n.:{PORT1} {\n\t%s\n\t%s\n}\n",
		keys, seen, oddZones, files.String(), seen, restOfWorld))}
}

// zoneText is a zone of zoneSet as a file.
func zoneText(zone string) string {
	minimum := 60
	if m, ok := zoneMinimum[zone]; ok {
		minimum = m
	}
	var text strings.Builder
	fmt.Fprintf(&text, "$ORIGIN %s\n$TTL 60\n@ SOA ns host 1 1800 900 604800 %d\n@ NS ns\nns A 192.0.2.1\n", zone, minimum)
	for _, line := range zoneSet[zone] {
		text.WriteString(line + "\n")
	}
	if zone == "b.test." {
		for i := range 60 {
			fmt.Fprintf(&text, "big A 198.51.100.%d\n", i)
		}
	}
	return text.String()
}

var askedLine = regexp.MustCompile(`(?m)\basked (\S+) (\S+)$`)

// asked returns the questions that came so far, as name and type, in lower case
// but for the type.
func (z *zoneServer) asked() []string {
	var questions []string
	for _, match := range askedLine.FindAllStringSubmatch(z.Log(), -1) {
		questions = append(questions, strings.ToLower(match[1])+" "+match[2])
	}
	return questions
}

// checkNothingLeaked fails the test if the server was asked for a bare name that
// should have been completed, or for a name that nobody may complete in one of
// the zones of a list.
func (z *zoneServer) checkNothingLeaked() {
	z.t.Helper()
	asked := z.asked()
	if len(asked) == 0 {
		z.t.Errorf("no question seen: the log of %s is not as expected", z.name)
	}
	for _, question := range asked {
		name, qtype, _ := strings.Cut(question, " ")
		labels := dns.SplitDomainName(name)
		if len(labels) == 1 && !slices.Contains(specialNames, labels[0]) && !slices.Contains(neverCompleted, qtype) {
			z.t.Errorf("asked for %s, a bare name", question)
		}
		if n := len(labels); n >= 3 && labels[n-1] == "test" && labels[n-2] != "own" && slices.Contains(specialNames, labels[n-3]) {
			z.t.Errorf("asked for %s, where %s was completed", question, labels[n-3])
		}
	}
}

// specialNames are top-level domains and hosts that mean the same everywhere, or
// nothing at all, and the end of a number.
var specialNames = []string{"alt", "arpa", "internal", "invalid", "local", "localhost", "onion", "test", "wpad", "isatap", "4"}

// neverCompleted are types that tests ask for. Go with cgo asks for CNAME, too.
var neverCompleted = []string{"CNAME", "DNSKEY", "NS", "SOA"}
