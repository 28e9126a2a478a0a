package test

import (
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// migrations says what is asked of the Corefiles in MIGRATING.md: part of a block,
// by which it is found → what it must answer. A block that is not named here is
// started all the same.
var migrations = map[string][]wildAsk{
	"# forward . /etc/resolv.conf {": {
		{"www.example.org.", dns.TypeA, "www.example.org. A 192.0.2.7"},
		{"broken.example.org.", dns.TypeA, "broken.example.org. A 192.0.2.7"},
		{"nosuch.example.org.", dns.TypeA, "NXDOMAIN"},
	},
	"# fanout . 192.0.2.53 198.51.100.53 {": {
		{"www.example.org.", dns.TypeA, "www.example.org. A 192.0.2.7"},
		{"www.corp.example.", dns.TypeA, "www.corp.example. A 192.0.2.7"},
	},
	"# alternate SERVFAIL,REFUSED": {
		{"www.example.org.", dns.TypeTXT, `www.example.org. TXT "192.0.2.53"`},
		{"broken.example.org.", dns.TypeTXT, `broken.example.org. TXT "203.0.113.53"`},
		{"nosuch.example.org.", dns.TypeA, "NXDOMAIN"},
	},
	"# alternate NXDOMAIN": {
		{"www.example.org.", dns.TypeTXT, `www.example.org. TXT "192.0.2.53"`},
		{"second.example.org.", dns.TypeTXT, `second.example.org. TXT "198.51.100.53"`},
		{"nosuch.example.org.", dns.TypeA, "NXDOMAIN"},
	},
	"# autopath @kubernetes": {
		{"www.example.org.prod.svc.cluster.local.", dns.TypeA, "www.example.org.prod.svc.cluster.local. CNAME www.example.org. www.example.org. A 192.0.2.7"},
		{"db.default.svc.cluster.local.", dns.TypeA, "db.default.svc.cluster.local. A 10.96.0.42"},
		{"no.default.svc.cluster.local.", dns.TypeA, "NXDOMAIN"},
	},
	"# autopath cluster.local @kubernetes": { // the test is a pod of the namespace default
		{"db.prod.default.svc.cluster.local.", dns.TypeA, "db.prod.default.svc.cluster.local. CNAME db.prod.svc.cluster.local. db.prod.svc.cluster.local. A 10.96.0.43"},
		{"db.default.svc.cluster.local.", dns.TypeA, "db.default.svc.cluster.local. A 10.96.0.42"},
	},
	"# autopath my-resolv.conf": {
		{"last.a.example.org.", dns.TypeA, "last.a.example.org. CNAME last.lab.example.org. last.lab.example.org. A 192.0.2.7"},
		{"last.", dns.TypeA, "last. CNAME last.lab.example.org. last.lab.example.org. A 192.0.2.7"},
		{"nosuch.", dns.TypeA, "NXDOMAIN"},
	},
	"# go-dnsmasq --listen": {
		{"db01.", dns.TypeA, "db01. CNAME db01.lab.example.org. db01.lab.example.org. A 192.0.2.7"},
		{"nas.", dns.TypeA, "nas. A 192.0.2.31"}, // in hosts
		{"any.wild.example.", dns.TypeA, "any.wild.example. A 192.0.2.32"},
		{"www.corp.example.", dns.TypeTXT, `www.corp.example. TXT "192.0.2.10"`},
		{"www.example.org.", dns.TypeTXT, `www.example.org. TXT "192.0.2.53"`},
		{"nosuch.", dns.TypeA, "NXDOMAIN"},
	},
	"# go-dnsmasq --ndots 1": {
		{"two.net.", dns.TypeA, "two.net. A 192.0.2.7"},
		{"db01.sub.", dns.TypeA, "db01.sub. CNAME db01.sub.lab.example.org. db01.sub.lab.example.org. A 192.0.2.7"},
	},
	"# no-resolv\n": {
		{"www.example.org.", dns.TypeA, "www.example.org. A 192.0.2.7"},
		{"www.corp.example.", dns.TypeTXT, `www.corp.example. TXT "192.0.2.10"`},
		{"7.0.20.10.in-addr.arpa.", dns.TypeTXT, `7.0.20.10.in-addr.arpa. TXT "192.0.2.10"`},
	},
	"# addn-hosts=": {
		{"nas.", dns.TypeA, "nas. CNAME nas.lan. nas.lan. A 192.168.1.20"},
		{"router.", dns.TypeA, "router. CNAME router.lan. router.lan. A 192.168.1.1"}, // in the block of lan alone
		{"printer.", dns.TypeA, "printer. A 192.168.1.21"},
		{"nosuch.", dns.TypeA, "NXDOMAIN"},
		{"nosuch.lan.", dns.TypeA, "NXDOMAIN"},
		{"20.1.168.192.in-addr.arpa.", dns.TypePTR, "20.1.168.192.in-addr.arpa. PTR nas.lan."},
		{"99.1.168.192.in-addr.arpa.", dns.TypePTR, "NXDOMAIN"},
		{"www.example.org.", dns.TypeA, "www.example.org. A 192.0.2.7"},
	},
	"# address=/app.example/": {
		{"any.app.example.", dns.TypeA, "any.app.example. A 192.0.2.80"},
		{"ads.example.", dns.TypeA, "NXDOMAIN"},
		{"any.ads.example.", dns.TypeAAAA, "NXDOMAIN"},
		{"tracker.example.", dns.TypeA, "tracker.example. A 0.0.0.0"},
		{"tracker.example.", dns.TypeAAAA, "tracker.example. AAAA ::"},
		{"nas.lan.", dns.TypeA, "nas.lan. A 192.0.2.20"},
		{"20.2.0.192.in-addr.arpa.", dns.TypePTR, "20.2.0.192.in-addr.arpa. PTR nas.lan."},
		{"files.lan.", dns.TypeA, "files.lan. A 192.0.2.20"},
	},
	"# strict-order": {
		{"www.example.org.", dns.TypeTXT, `www.example.org. TXT "192.0.2.53"`},
		{"www.example.org.", dns.TypeAAAA, "NOERROR"},
	},
	"# server=/corp.example/192.0.2.10\n# server=/www.corp.example/#": {
		{"db01.corp.example.", dns.TypeTXT, `db01.corp.example. TXT "192.0.2.10"`},
		{"www.corp.example.", dns.TypeTXT, "NXDOMAIN"}, // of the standard servers, who do not know it
		{"7.0.20.10.in-addr.arpa.", dns.TypeTXT, `7.0.20.10.in-addr.arpa. TXT "192.0.2.10"`},
	},
	"# stubDomains:": {
		{"www.corp.example.", dns.TypeA, "www.corp.example. A 192.0.2.7"},
		{"db.default.svc.cluster.local.", dns.TypeA, "db.default.svc.cluster.local. A 10.96.0.42"},
		{"www.example.org.", dns.TypeA, "www.example.org. A 192.0.2.7"},
	},
	"# the file as it is": {
		{"last.", dns.TypeA, "last. CNAME last.lab.example.org. last.lab.example.org. A 192.0.2.7"},
		{"www.example.org.", dns.TypeA, "www.example.org. A 192.0.2.7"},
	},
	"# forward-zone:": {
		{"www.corp.example.", dns.TypeA, "www.corp.example. A 192.0.2.7"},
	},
}

// migrationFiles are those that MIGRATING.md names, and a test may not write there.
var migrationFiles = map[string]string{
	"/etc/hosts.lan": "192.168.1.20 nas.lan\n192.168.1.21 printer.lan printer\n",
	"/etc/steadfast/resolv.conf": "search a.example.org b.example.org c.example.org d.example.org e.example.org " +
		"f.example.org lab.example.org\nnameserver " + onLoopback("192.0.2.53") + "\nnameserver " + onLoopback("198.51.100.53") +
		"\nnameserver " + onLoopback("192.0.2.54") + "\nnameserver " + onLoopback("198.51.100.54") + "\n",
	"/etc/hosts": "127.0.0.1 localhost\n192.0.2.31 nas\n192.0.2.32 *.wild.example\n",
}

func TestEveryCorefileInMIGRATINGAnswers(t *testing.T) {
	if !alone(t) {
		return
	}
	text, err := os.ReadFile("../MIGRATING.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := corefileBlocks(string(text))
	asks := make(map[int][]wildAsk)
	for part, rows := range migrations {
		var at []int
		for line, block := range blocks {
			if strings.Contains(block, part) {
				at = append(at, line)
			}
		}
		if len(at) != 1 {
			t.Errorf("%q is in the blocks %v, want one", part, at)
			continue
		}
		asks[at[0]] = rows
	}
	startWorld(t)
	t.Run("blocks", func(t *testing.T) { // it ends when all that is parallel has
		for line, block := range blocks {
			t.Run("MIGRATING.md:"+strconv.Itoa(line), func(t *testing.T) {
				t.Parallel()
				playMigration(t, block, asks[line])
			})
		}
	})
}

// playMigration starts a block, moved to loopback, and asks it.
func playMigration(t *testing.T, block string, asks []wildAsk) {
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{
		"resolv.conf": "nameserver " + onLoopback("192.0.2.53") + "\nnameserver " + onLoopback("198.51.100.53") + "\n",
		"db.empty": "@ 60 IN SOA localhost. nobody.invalid. 1 3600 600 86400 60\n@ 60 IN NS localhost.\n" +
			"router 60 IN A 192.168.1.1\n",
	})
	for path, content := range migrationFiles {
		writeFiles(t, dir, map[string]string{path: content})
		block = regexp.MustCompile(`(?m)`+regexp.QuoteMeta(path)+`( |$)`).ReplaceAllString(block, filepath.Join(dir, path)+"$1")
	}
	m := &move{t: t, resolvConf: filepath.Join(dir, "resolv.conf"), kubernetes: startKubeAPI(t)}
	startServerIn(t, dir, m.corefile(block))
	for _, a := range asks {
		if got := answerText(ask(t, m.addr("53"), a.name, a.qtype)); got != a.want {
			t.Errorf("%s %s = %q, want %q", a.name, dns.TypeToString[a.qtype], got, a.want)
		}
	}
}

// startWorld starts the name servers that MIGRATING.md speaks of, where a move has
// them on loopback.
func startWorld(t *testing.T) {
	t.Helper()
	for _, listen := range []string{
		"192.0.2.53:53", "198.51.100.53:53", "192.0.2.54:53", "198.51.100.54:53", "203.0.113.53:53",
		"192.0.2.10:53", "192.0.2.11:53", "192.0.2.11:5353",
	} {
		addr := netip.MustParseAddrPort(listen)
		for _, network := range []string{"udp", "tcp"} {
			started := make(chan struct{})
			srv := &dns.Server{
				Addr: onLoopback(addr.Addr().String()) + ":" + strconv.Itoa(int(addr.Port())), Net: network,
				Handler:           worldServer(addr.Addr().String()),
				NotifyStartedFunc: func() { close(started) },
			}
			ended := make(chan error, 1)
			go func() { ended <- srv.ListenAndServe() }()
			select {
			case <-started:
			case err := <-ended:
				t.Fatalf("%s/%s: %v", srv.Addr, network, err)
			}
			t.Cleanup(func() { srv.Shutdown() })
		}
	}
}

func onLoopback(addr string) string { return loopback(netip.MustParseAddr(addr)) }

// worldServer answers as the server at addr does. What it knows has one address,
// and a TXT record that says who answered.
func worldServer(addr string) dns.HandlerFunc {
	return func(w dns.ResponseWriter, r *dns.Msg) {
		m := new(dns.Msg).SetReply(r)
		m.RecursionAvailable = true
		q := r.Question[0]
		header := dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: dns.ClassINET, Ttl: 60}
		switch m.Rcode = worldRcode(addr, strings.ToLower(q.Name)); {
		case m.Rcode == dns.RcodeSuccess && q.Qtype == dns.TypeA:
			m.Answer = []dns.RR{&dns.A{Hdr: header, A: []byte{192, 0, 2, 7}}}
		case m.Rcode == dns.RcodeSuccess && q.Qtype == dns.TypeTXT:
			m.Answer = []dns.RR{&dns.TXT{Hdr: header, Txt: []string{addr}}}
		default:
			soa, _ := dns.NewRR(". 60 IN SOA a. b. 1 7200 900 1209600 60")
			m.Ns = []dns.RR{soa}
		}
		w.WriteMsg(m)
	}
}

// worldRcode says whether the server at addr knows name, in lower case. Those of a
// zone of its own know that, the others what is public.
func worldRcode(addr, name string) int {
	if name == "." {
		return dns.RcodeSuccess
	}
	label, parent, _ := strings.Cut(name, ".")
	known := strings.HasSuffix(name, ".example.org.") || parent == "net."
	if addr == "192.0.2.10" || addr == "192.0.2.11" {
		known = strings.HasSuffix(name, ".corp.example.") || strings.HasSuffix(name, ".20.10.in-addr.arpa.")
	}
	switch {
	case label == "broken" && addr == "192.0.2.53":
		return dns.RcodeServerFailure
	case !known, label == "nosuch", strings.HasPrefix(label, "_"),
		label == "second" && addr == "192.0.2.53",
		label == "web" && parent == "lab.example.org.",
		label == "last" && parent != "lab.example.org.":
		return dns.RcodeNameError
	}
	return dns.RcodeSuccess
}

// migratingWords is a Corefile of what the right columns of MIGRATING.md's tables say
// and no block shows.
const migratingWords = `. {
	import {DIR}/servers
	bind lo {
		except ::1
	}
	acl {
		allow net 192.0.2.0/24
		filter type SOA SRV
		block
	}
	cache 60 {
		success 1024 3600 30
		denial 1024 300 5
		disable denial
		prefetch 10
		serve_stale
	}
	loadbalance {
		prefer 192.0.2.0/24
	}
	rewrite edns0 subnet set 24 56
	log
	debug
	loop
	reload
	hosts /dev/null {
		ttl 30
		fallthrough
	}
	file db.dot other.example
	searchexpand lan . {
		ndots 2
		negttl 20s
	}
	healthforward b.example 192.0.2.10:5353 {
		force_tcp
		source_address 127.0.0.1
		max_connect_attempts 3
		read_timeout 3s
		next_on_nodata
		failover none
	}
	healthforward c.example tls://192.0.2.53%dns.example.org:853 {
		policy p2c
	}
	healthforward e.example tls://192.0.2.53 {
		tls_servername dns.example.org
	}
	healthforward d.example 192.0.2.10 {
		policy fastest
	}
	healthforward . /etc/resolv.conf 192.0.2.53 {
		policy round_robin
		deadline 30s
	}
}
one.example {
	template IN A . {
		answer "{{ .Name }} 60 IN A 192.0.2.80"
	}
}`

// TestWordsInTablesOfMIGRATINGAreAccepted starts them all.
func TestWordsInTablesOfMIGRATINGAreAccepted(t *testing.T) {
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{
		"servers": "healthforward a.example 192.0.2.10\n",
		"db.dot":  "@ 60 IN SOA localhost. nobody.invalid. 1 3600 600 86400 60\n@ 60 IN NS localhost.\n",
	})
	startMoved(t, dir, strings.ReplaceAll(migratingWords, "{DIR}", dir))
}

// TestSeriesInMIGRATINGAreReal looks each one up in the manual of whose it is.
func TestSeriesInMIGRATINGAreReal(t *testing.T) {
	text, err := os.ReadFile("../MIGRATING.md")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/coredns/coredns").Output()
	if err != nil {
		t.Fatal(err)
	}
	coredns := filepath.Join(strings.TrimSpace(string(dir)), "plugin")
	manuals := map[string]string{
		"healthforward": "../plugin/healthforward/README.md",
		"searchexpand":  "../plugin/searchexpand/README.md",
		"forward":       filepath.Join(coredns, "forward", "README.md"),
		"proxy":         filepath.Join(coredns, "forward", "README.md"),
		"autopath":      filepath.Join(coredns, "autopath", "README.md"),
		"fanout":        "", // in no module that we have
	}
	found := make(map[string]bool)
	for _, match := range regexp.MustCompile(`coredns_([a-z]+)_[a-z_]+`).FindAllStringSubmatch(string(text), -1) {
		found[match[1]] = true
		manual, ok := manuals[match[1]]
		if !ok || manual == "" {
			continue
		}
		text, err := os.ReadFile(manual)
		if err != nil {
			t.Fatal(err)
		}
		// A histogram is there three times.
		name := strings.TrimSuffix(match[0], "_count")
		if !strings.Contains(string(text), name) {
			t.Errorf("%s is not in %s", match[0], manual)
		}
	}
	if got, want := slices.Sorted(maps.Keys(found)), slices.Sorted(maps.Keys(manuals)); !slices.Equal(got, want) {
		t.Errorf("series of %q, want of %q", got, want)
	}
}
