package test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

const peerOrigin = "peers.test."

// Who answers says so under who.peers.test, which is a wildcard, so that each
// query can be for another name and no cache answers in the place of its server.
const peerWho, otherWho = "192.0.2.1", "192.0.2.2"

// peerRecords is the zone that every peer serves, each in its own format. One
// RRset is over 512 octets, one over 1232 (the size that healthforward invites),
// one over 4096 (the largest that the clients of the test invite) and one of
// a single record over 1232. All TTLs are long beside a run of the test.
func peerRecords(who string) string {
	var b strings.Builder
	b.WriteString(`$ORIGIN peers.test.
$TTL 300
@	SOA	ns hostmaster 1 7200 900 1209600 60
@	NS	ns
@	MX	10 mail
@	MX	20 mail2
ns	A	192.0.2.53
mail	A	192.0.2.25
mail	AAAA	2001:db8::25
mail2	A	192.0.2.26
host	A	192.0.2.10
host	AAAA	2001:db8::10
many	A	192.0.2.11
many	A	192.0.2.12
many	A	192.0.2.13
many	A	192.0.2.14
many	AAAA	2001:db8::11
many	AAAA	2001:db8::12
only4	A	192.0.2.40
only6	AAAA	2001:db8::60
text	TXT	"v=spf1 -all"
text	TXT	"two" "strings"
alias	CNAME	host
chain1	CNAME	chain2
chain2	CNAME	chain3
chain3	CNAME	many
dangling	CNAME	nowhere
leaf.empty	A	192.0.2.50
_sip._udp	SRV	10 20 5060 host
web	HTTPS	1 . alpn=h2,h3
@	CAA	0 issue "ca.peers.test"
*.wild	A	192.0.2.77
`)
	fmt.Fprintf(&b, "*.who\tA\t%s\n", who)
	// Powers of two, because file of CoreDNS 1.15.0 appends signatures to the very
	// RRset that others read: a data race wherever that has room for one more.
	for name, records := range map[string]int{"text900": 4, "text1900": 8, "text7000": 32} {
		for i := range records {
			fmt.Fprintf(&b, "%s\tTXT\t\"%02d %s\"\n", name, i, strings.Repeat("x", 220))
		}
	}
	// One record of six strings.
	b.WriteString("text1300\tTXT" + strings.Repeat(` "`+strings.Repeat("y", 220)+`"`, 6) + "\n")
	return b.String()
}

// parseRecords returns the records of a master file.
func parseRecords(t testing.TB, text string) []dns.RR {
	t.Helper()
	var records []dns.RR
	parser := dns.NewZoneParser(strings.NewReader(text), "", "")
	for rr, ok := parser.Next(); ok; rr, ok = parser.Next() {
		records = append(records, rr)
	}
	if err := parser.Err(); err != nil {
		t.Fatal(err)
	}
	return records
}

// signZone signs the zone file in dir by BIND's tools, with one ECDSA key (which
// keeps most signed answers below 1232 octets), and returns the signed file's path
// and the DS record of the key.
func signZone(t testing.TB, dir, zone string) (signed, ds string) {
	t.Helper()
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %v\n%s%s", cmd.Args, err, out, stderr.String())
		}
		return strings.TrimSpace(string(out))
	}
	key := run("dnssec-keygen", "-q", "-a", "ECDSAP256SHA256", "-f", "KSK", peerOrigin)
	signed = filepath.Join(dir, "signed.zone")
	run("dnssec-signzone", "-q", "-z", "-S", "-K", dir, "-o", peerOrigin, "-f", signed, zone)
	return signed, run("dnssec-dsfromkey", "-2", filepath.Join(dir, key+".key"))
}

// writeFile writes a file that any user may read, and returns its path.
func writeFile(t testing.TB, dir, name, content string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// peerQuestions are what the peers are asked. A %d makes a name of which no cache
// knows yet.
var peerQuestions = map[string][]struct {
	name  string
	qtype uint16
}{
	"A": {
		{"host", dns.TypeA},
		{"many", dns.TypeA},
		{"mail", dns.TypeA},
		{"only4", dns.TypeA},
		{"new%d.wild", dns.TypeA},
		{"new%d.who", dns.TypeA},
	},
	"AAAA":        {{"host", dns.TypeAAAA}, {"many", dns.TypeAAAA}, {"only6", dns.TypeAAAA}},
	"MX":          {{"@", dns.TypeMX}},
	"TXT":         {{"text", dns.TypeTXT}, {"text900", dns.TypeTXT}},
	"TXT > 1232":  {{"text1300", dns.TypeTXT}, {"text1900", dns.TypeTXT}},
	"TXT > 4096":  {{"text7000", dns.TypeTXT}},
	"NXDOMAIN":    {{"no%d", dns.TypeA}, {"no%d", dns.TypeAAAA}, {"below%d.host", dns.TypeMX}},
	"NODATA":      {{"only4", dns.TypeAAAA}, {"only6", dns.TypeA}, {"host", dns.TypeMX}, {"empty", dns.TypeA}, {"new%d.wild", dns.TypeTXT}},
	"CNAME chain": {{"alias", dns.TypeA}, {"chain1", dns.TypeAAAA}, {"chain2", dns.TypeA}, {"alias", dns.TypeCNAME}, {"dangling", dns.TypeA}, {"alias", dns.TypeMX}},
	"infrastructure": {
		{"@", dns.TypeSOA},
		{"@", dns.TypeNS},
		{"@", dns.TypeDNSKEY},
		{"@", dns.TypeCAA},
		{"_sip._udp", dns.TypeSRV},
		{"web", dns.TypeHTTPS},
	},
	"another zone": {{"other%d.example.", dns.TypeA}},
}

// peerOptions are the ways in which a client may ask.
var peerOptions = map[string]func(q *dns.Msg){
	"no OPT":       func(*dns.Msg) {},
	"no OPT, AD":   func(q *dns.Msg) { q.AuthenticatedData = true },
	"1232":         func(q *dns.Msg) { q.SetEdns0(1232, false) },
	"4096":         func(q *dns.Msg) { q.SetEdns0(4096, false) },
	"1232, DO":     func(q *dns.Msg) { q.SetEdns0(1232, true) },
	"4096, DO":     func(q *dns.Msg) { q.SetEdns0(4096, true) },
	"4096, DO, CD": func(q *dns.Msg) { q.SetEdns0(4096, true); q.CheckingDisabled = true },
}

// peerQuery is one query of the mix.
type peerQuery struct {
	kind, option string
	msg          *dns.Msg
}

// mixedQueries returns count queries: every kind in every way, shuffled, again and
// again with the letters in another case.
func mixedQueries(count int, seed uint64) []peerQuery {
	chance := rand.New(rand.NewPCG(seed, 1))
	var all []peerQuery
	for len(all) < count {
		// Sorted, so that a seed stands for the same queries each time.
		for _, kind := range slices.Sorted(maps.Keys(peerQuestions)) {
			for _, option := range slices.Sorted(maps.Keys(peerOptions)) {
				question := peerQuestions[kind][chance.IntN(len(peerQuestions[kind]))]
				name := question.name
				switch {
				case name == "@":
					name = peerOrigin
				case !dns.IsFqdn(name):
					name += "." + peerOrigin
				}
				name = strings.ReplaceAll(name, "%d", fmt.Sprint(len(all)))
				if chance.IntN(3) == 0 { // as resolvers do that hide bits in the case
					name = mixCase(name, chance)
				}
				msg := new(dns.Msg).SetQuestion(name, question.qtype)
				peerOptions[option](msg)
				all = append(all, peerQuery{kind, option, msg})
			}
		}
	}
	chance.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:count]
}

func mixCase(name string, chance *rand.Rand) string {
	return strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' && chance.IntN(2) == 0 {
			return r - 'a' + 'A'
		}
		return r
	}, name)
}
