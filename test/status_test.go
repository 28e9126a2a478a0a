package test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// TestAnOperatorDrainsAnUpstream: from the page, in the whole process, over a reload that
// keeps the page's socket.
func TestAnOperatorDrainsAnUpstream(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	quiet := func(*faulty, arrival, time.Time) {}
	first, second := startFaulty(t, 1, port, answers, quiet), startFaulty(t, 2, port, answers, quiet)
	const token = "an-operator-has-this-token"
	file := writeFile(t, publicDir(t), "token", token+"\n")
	server := startServer(t, fmt.Sprintf(`.:{PORT1} {
		bind 127.0.0.1
		searchexpand a.lab.test
		healthforward . %[1]s %[2]s {
			policy sequential
			status 127.0.0.1:{PORT2} %[3]s
		}
	}
	other.test:{PORT1} {
		bind 127.0.0.1
		healthforward . %[1]s {
			status 127.0.0.1:{PORT2} %[3]s
		}
	}`, first.addr, second.addr, file))
	client := &http.Client{} // one connection, as long as it stays open
	page := "http://" + server.addrOf("PORT2")

	form := url.Values{"action": {"drain"}, "target": {first.addr}, "token": {token}}
	reply, err := client.PostForm(page+"/control", form)
	if err != nil {
		t.Fatal(err)
	}
	var done struct{ Done int }
	if err := json.NewDecoder(reply.Body).Decode(&done); err != nil || done.Done != 2 {
		t.Errorf("done to %d, error %v, want 2: over both transports", done.Done, err)
	}
	reply.Body.Close()
	server.waitForLog("sets udp://"+first.addr+" tcp://"+first.addr+" to drain", startLimit)
	server.reload()
	for i := range 5 {
		if got := ask(t, server.addr(), fmt.Sprintf("n%d.lab.test.", i), dns.TypeA); len(got.Answer) != 1 || !strings.Contains(got.Answer[0].String(), address(2)) {
			t.Errorf("answer %v, want of the one that is not drained", got.Answer)
		}
	}

	reply, err = client.Get(page + "/status.json")
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	var all struct {
		Healthforward struct {
			Stanzas []struct {
				Server    string
				Upstreams []struct{ To, Admin string }
			}
		}
		Searchexpand struct {
			Stanzas []struct{ List []struct{ Domains []string } }
		}
	}
	if err := json.NewDecoder(reply.Body).Decode(&all); err != nil {
		t.Fatal(err)
	}
	if lists := all.Searchexpand.Stanzas; len(lists) != 1 || len(lists[0].List) != 1 || lists[0].List[0].Domains[0] != "a.lab.test." {
		t.Errorf("searchexpand shows %+v", lists)
	}
	stanzas := all.Healthforward.Stanzas
	if len(stanzas) != 2 || !strings.Contains(stanzas[0].Server, ".:") || !strings.Contains(stanzas[1].Server, "other.test") {
		t.Fatalf("stanzas %+v", stanzas)
	}
	for _, s := range stanzas {
		for _, u := range s.Upstreams {
			if drained := u.Admin == "drain"; drained != (u.To == first.addr) {
				t.Errorf("%s: %s is to be %s", s.Server, u.To, u.Admin)
			}
		}
	}
}
