package test

import (
	"testing"

	"github.com/miekg/dns"
)

// TestANameInHostsComesBeforeTheSearchList: with fallthrough, so that hosts would
// also let a bare name pass that it does not know.
func TestANameInHostsComesBeforeTheSearchList(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir, "hosts", "192.0.2.9 printer wpad\n")
	s := startServerIn(t, dir, `.:{PORT1} {
		bind 127.0.0.1
		searchexpand a.test
		cache 30
		hosts hosts {
			fallthrough
		}
		template IN ANY a.test {
			match ^printer|^db01
			answer "{{ .Name }} 60 IN A 192.0.2.1"
		}
	}`)
	for name, want := range map[string]string{
		"printer":        "printer. A 192.0.2.9",
		"wpad":           "wpad. A 192.0.2.9",
		"db01":           "db01. CNAME db01.a.test. db01.a.test. A 192.0.2.1",
		"printer.a.test": "printer.a.test. A 192.0.2.1",
	} {
		if got := answerText(ask(t, s.addr(), name, dns.TypeA)); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if reply := ask(t, s.addr(), "printer", dns.TypeAAAA); reply.Rcode != dns.RcodeSuccess || len(reply.Answer) != 0 {
		t.Errorf("AAAA of a name in hosts: %v, want no data: it is not another suffix's host", reply)
	}
}

// TestOneServerBlockPerZone: each domain of the list has a block of its own, and
// the block for the root has nothing but what forwards the rest.
func TestOneServerBlockPerZone(t *testing.T) {
	up := startUpstream(t, loopbackAddr(freePort(t)), addressA)
	dir := t.TempDir()
	writeFile(t, dir, "a.zone", "$ORIGIN a.lab.\n@ 60 IN SOA ns hostmaster 1 60 60 60 20\n@ 60 IN NS ns\nns 60 IN A 192.0.2.1\nonly-a 60 IN A 192.0.2.2\n"+
		"away 60 IN CNAME only-b.b.lab.\nshort 60 IN CNAME only-b.\n")
	writeFile(t, dir, "b.zone", "$ORIGIN b.lab.\n@ 60 IN SOA ns hostmaster 1 60 60 60 20\n@ 60 IN NS ns\nns 60 IN A 192.0.2.3\nonly-b 60 IN A 192.0.2.4\n")
	s := startServerIn(t, dir, `.:{PORT1} {
		bind 127.0.0.1
		log . "{name} {type} {rcode}"
		errors
		searchexpand a.lab b.lab {
			via server
		}
		cache 30
		healthforward . `+up.listen+`
	}
	a.lab:{PORT1} {
		bind 127.0.0.1
		file a.zone
	}
	b.lab:{PORT1} {
		bind 127.0.0.1
		cache 30
		file b.zone
	}`)
	for name, want := range map[string]string{
		"only-a":        "only-a. CNAME only-a.a.lab. only-a.a.lab. A 192.0.2.2",
		"only-b":        "only-b. CNAME only-b.b.lab. only-b.b.lab. A 192.0.2.4",
		"away":          "away. CNAME away.a.lab. away.a.lab. CNAME only-b.b.lab. only-b.b.lab. A 192.0.2.4",
		"nowhere":       "NXDOMAIN",
		"only-b.b.lab":  "only-b.b.lab. A 192.0.2.4",
		"host.lab.test": "host.lab.test. A " + addressA,
		// file looks its target up in the whole server: a bare name there is part of
		// a look-up already, and is not searched.
		"short": "NXDOMAIN",
	} {
		if got := answerText(ask(t, s.addr(), name, dns.TypeA)); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}
