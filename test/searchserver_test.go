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
