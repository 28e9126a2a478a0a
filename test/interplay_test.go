package test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// interplay is a server block in which searchexpand stands among stock plugins,
// and what must be so there.
type interplay struct {
	list   string // default "a.test b.test"
	block  string // the plugins around searchexpand
	before string // another server block, in front of this one
	up     string // what healthforward forwards to, default {UP}
	check  func(t *testing.T, b *interplayBed)
}

// interplayBed is what a check sees.
type interplayBed struct {
	server  *server
	addr    string // of the block
	backend *zoneServer
	dir     string
}

// interplays are the blocks, by the claim. In the text {UP} is the address of the
// zone set, {DIR} a directory that has the files of interplayFiles, {DEAD} an
// address that nobody listens on, and {ME} this block's port.
var interplays = map[string]interplay{
	"cache keeps full names, once for everybody": {
		block: "cache 30",
		up:    hedgesOff,
		check: func(t *testing.T, b *interplayBed) {
			for _, name := range []string{"cached", "CaChEd", "cached.b.test", "cached"} {
				b.wantAddress(t, name, dns.TypeA, "192.0.2.27")
			}
			b.wantCount(t, "cached.a.test. A", 1)
			b.wantCount(t, "cached.b.test. A", 1)
		},
	},
	"cache fetches popular names anew before they end": {
		block: "cache {\n success 1000 10 1\n prefetch 1 1m 90%\n }",
		check: func(t *testing.T, b *interplayBed) {
			waitFor(t, startLimit, "a prefetch", func() error {
				b.wantAddress(t, "fetched", dns.TypeA, "192.0.2.28")
				if t.Failed() {
					t.FailNow()
				}
				if n := b.backend.count("fetched.b.test. A"); n < 2 {
					return fmt.Errorf("asked upstream %d times", n)
				}
				return nil
			})
		},
	},
	"rewrite in front of us may make a name bare": {
		block: "rewrite name exact short.old.test bonly answer auto",
		check: func(t *testing.T, b *interplayBed) {
			b.wantAddress(t, "short.old.test", dns.TypeA, "192.0.2.23")
		},
	},
	"template answers for a domain of the list": {
		list:  "a.test t.test b.test",
		block: "template IN A t.test {\n answer \"{{ .Name }} 60 IN A 192.0.2.80\"\n }",
		check: func(t *testing.T, b *interplayBed) {
			b.wantAddress(t, "made", dns.TypeA, "192.0.2.80")
		},
	},
	"hosts has full names": {
		block: "hosts {DIR}/hosts {\n fallthrough\n }",
		check: func(t *testing.T, b *interplayBed) {
			b.wantAddress(t, "printer", dns.TypeA, "192.0.2.77")
			b.wantAddress(t, "printer", dns.TypeAAAA, "")
		},
	},
	"hosts has bare names, and goes first": {
		block: "hosts {DIR}/hosts {\n fallthrough\n }",
		check: func(t *testing.T, b *interplayBed) {
			b.wantAddress(t, "router", dns.TypeA, "192.0.2.78")
		},
	},
	"file follows an alias into a zone that is forwarded": {
		list:  "c.test b.test",
		block: "file {DIR}/c.zone c.test",
		check: func(t *testing.T, b *interplayBed) {
			b.wantAddress(t, "inzone", dns.TypeA, "192.0.2.81")
			reply := ask(t, b.addr, "away", dns.TypeA)
			if got, want := answerText(reply), "away. CNAME away.c.test. away.c.test. CNAME bonly.b.test. bonly.b.test. A 192.0.2.23"; got != want {
				t.Errorf("away: %s, want %s", got, want)
			}
		},
	},
	"auto finds zones in a directory": {
		list:  "a.test c.test",
		block: "auto c.test {\n directory {DIR}/auto db\\.(.*) {1}\n }",
		check: func(t *testing.T, b *interplayBed) {
			b.wantAddress(t, "inzone", dns.TypeA, "192.0.2.81")
		},
	},
	"dns64 above us makes an address of the completed name": {
		block: "dns64 {\n allow_ipv4\n }",
		check: func(t *testing.T, b *interplayBed) {
			b.wantAddress(t, "v4only", dns.TypeAAAA, "64:ff9b::c000:20a")
			b.wantAddress(t, "both", dns.TypeAAAA, "2001:db8::11")
		},
	},
	"acl that drops a candidate ends the walk without a reply": {
		block: "acl a.test {\n drop\n }",
		check: func(t *testing.T, b *interplayBed) { b.wantNoReply(t, "bonly.") },
	},
	"acl that refuses a candidate hides no other": {
		block: "acl a.test {\n block\n }",
		check: func(t *testing.T, b *interplayBed) {
			b.wantAddress(t, "bonly", dns.TypeA, "192.0.2.23")
		},
	},
	"acl that empties a candidate hides no other": {
		block: "acl a.test {\n filter\n }",
		check: func(t *testing.T, b *interplayBed) {
			b.wantAddress(t, "bonly", dns.TypeA, "192.0.2.23")
			b.wantAddress(t, "bonly", dns.TypeAAAA, "")
		},
	},
	"autopath in the same block sends no bare name out": {
		block: "autopath . {DIR}/ab.conf",
		check: func(t *testing.T, b *interplayBed) {
			b.wantAddress(t, "bonly.a.test", dns.TypeA, "192.0.2.23")
			b.wantRcode(t, "nope.a.test", dns.RcodeNameError)
			b.wantAddress(t, "bonly", dns.TypeA, "192.0.2.23")
		},
	},
	"log has one line for a query, with the name that was asked": {
		block: `log . "front {name} {type} {rcode}."`,
		check: checkLogged,
	},
	"loadbalance leaves the aliases in front, in order": {
		block: "loadbalance",
		check: func(t *testing.T, b *interplayBed) {
			const want = "chain2. CNAME chain2.a.test. chain2.a.test. CNAME mid.a.test. mid.a.test. CNAME both.a.test. both.a.test. A 192.0.2.11"
			for range 20 {
				if got := answerText(ask(t, b.addr, "chain2", dns.TypeA)); got != want {
					t.Fatalf("chain2: %s, want %s", got, want)
				}
			}
		},
	},
	"minimal below us takes no denial's SOA": {
		block: "minimal",
		check: func(t *testing.T, b *interplayBed) {
			wantRootSOA(t, ask(t, b.addr, "nope", dns.TypeA), dns.RcodeNameError, 20)
			if reply := ask(t, b.addr, "bonly", dns.TypeA); len(reply.Ns) > 0 {
				t.Errorf("bonly has an authority section:\n%v", reply)
			}
		},
	},
	"view gives each client the list of its block": {
		list:   "b.test",
		before: ".:{ME} {\n bind 127.0.0.1\n view nine {\n expr incidr(client_ip(), '127.0.0.9/32')\n }\n searchexpand a.test\n cache 30\n healthforward . {UP}\n}",
		block:  "cache 30",
		check: func(t *testing.T, b *interplayBed) {
			for range 2 { // the second time from the caches
				b.wantAddress(t, "v4only", dns.TypeA, "192.0.2.20")
				wantAddressIn(t, askFrom(t, "127.0.0.9", b.addr, "v4only", dns.TypeA), "v4only", "192.0.2.10")
			}
		},
	},
	"one cache below the lists of several clients keeps them apart": {
		list:  "a.test {\n client 127.0.0.9 127.0.0.10\n except_client 127.0.0.10\n }\n searchexpand b.test {\n except_client 127.0.0.11\n }",
		block: "cache 30",
		check: func(t *testing.T, b *interplayBed) {
			for range 2 { // the second time from the cache
				for client, want := range map[string]string{"127.0.0.1": "192.0.2.20", "127.0.0.9": "192.0.2.10", "127.0.0.10": "192.0.2.20"} {
					wantAddressIn(t, askFrom(t, client, b.addr, "v4only", dns.TypeA), "v4only", want)
				}
				if reply := askFrom(t, "127.0.0.11", b.addr, "local", dns.TypeA); reply.Rcode != dns.RcodeNameError {
					t.Errorf("who has no list: %v", reply)
				}
			}
		},
	},
	"acl that refuses a completed name hides no other": {
		list:  "a.test b.test {\n trigger first\n }",
		block: "acl a.test {\n block\n }",
		check: func(t *testing.T, b *interplayBed) {
			b.wantAddress(t, "bonly.a.test", dns.TypeA, "192.0.2.23")
			b.wantRcode(t, "nope.a.test", dns.RcodeServerFailure)
		},
	},
	"acl that drops a completed name ends the walk without a reply": {
		list:  "a.test b.test {\n trigger first\n }",
		block: "acl a.test {\n drop\n }",
		check: func(t *testing.T, b *interplayBed) { b.wantNoReply(t, "bonly.a.test.") },
	},
	"errors hears of no candidate, and nobody gets a second reply": {
		list:  "a.test sf.test b.test",
		block: "errors",
		check: checkOneReply,
	},
	"prometheus counts queries, not candidates": {
		block: "prometheus 127.0.0.1:{PORT99}",
		check: checkCounted,
	},
	"healthforward below us hides a dead upstream from bare names": {
		up: "{DEAD} {UP} {\n policy sequential\n }",
		check: func(t *testing.T, b *interplayBed) {
			b.wantAddress(t, "bonly", dns.TypeA, "192.0.2.23")
			b.wantAddress(t, "bonly", dns.TypeAAAA, "")
			wantRootSOA(t, ask(t, b.addr, "nope", dns.TypeA), dns.RcodeNameError, 20)
		},
	},
	"two of us in a row ask no more than one": {
		before: ".:{PORT98} {\n bind 127.0.0.1\n searchexpand a.test b.test {\n ndots 5\n }\n healthforward . " + hedgesOff + "\n}",
		up:     "127.0.0.1:{PORT98} {\n hedge off\n }",
		check: func(t *testing.T, b *interplayBed) {
			b.wantAddress(t, "chained", dns.TypeA, "192.0.2.29")
			b.wantCount(t, "chained.a.test. A", 1)
			b.wantCount(t, "chained.b.test. A", 1)
		},
	},
	"what means the same everywhere is completed nowhere": {
		block: "local",
		check: checkSpecialNames,
	},
}

// hedgesOff is for who counts questions: healthforward asks nobody twice because
// this machine is slow.
const hedgesOff = "{UP} {\n hedge off\n }"

// interplayFiles are in {DIR}.
var interplayFiles = map[string]string{
	"hosts":          "192.0.2.77 printer.b.test\n192.0.2.78 router\n",
	"ab.conf":        "search a.test b.test\n",
	"a-sf-b":         "search a.test sf.test b.test\n",
	"c.zone":         interplayZone,
	"auto/db.c.test": interplayZone,
}

const interplayZone = "$ORIGIN c.test.\n$TTL 60\n@ SOA ns host 1 1800 900 604800 60\n@ NS ns\nns A 192.0.2.1\n" +
	"inzone A 192.0.2.81\naway CNAME bonly.b.test.\n"

func TestSearchexpandAmongTheStockPlugins(t *testing.T) {
	backend := startZoneSet(t)
	dir := t.TempDir()
	for name, content := range interplayFiles {
		writeFile(t, makeDir(t, filepath.Join(dir, filepath.Dir(name))), filepath.Base(name), content)
	}
	s, ports := startInterplays(t, strings.NewReplacer("{UP}", backend.addr(), "{DIR}", dir, "{DEAD}", loopbackAddr(freePort(t))))
	t.Run("claims", func(t *testing.T) { // it ends when all that is parallel has
		for claim, row := range interplays {
			t.Run(claim, func(t *testing.T) {
				t.Parallel()
				row.check(t, &interplayBed{server: s, addr: s.addrOf(ports[claim]), backend: backend, dir: dir})
			})
		}
	})
	backend.checkNothingLeaked()
}

// startInterplays starts one server with all the blocks, and returns the
// placeholders of their ports by the claim.
func startInterplays(t *testing.T, places *strings.Replacer) (*server, map[string]string) {
	t.Helper()
	ports := make(map[string]string)
	var corefile strings.Builder
	for claim, row := range interplays {
		port := fmt.Sprintf("PORT%d", len(ports)+1)
		ports[claim] = port
		list, up := row.list, row.up
		if list == "" {
			list = "a.test b.test"
		}
		if up == "" {
			up = "{UP}"
		}
		text := fmt.Sprintf("%s\n.:{ME} {\n bind 127.0.0.1\n %s\n searchexpand %s\n healthforward . %s\n}\n", row.before, row.block, list, up)
		corefile.WriteString(strings.ReplaceAll(text, "{ME}", "{"+port+"}"))
	}
	return startServer(t, places.Replace(corefile.String())), ports
}
