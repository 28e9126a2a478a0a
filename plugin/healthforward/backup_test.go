package healthforward

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"steadfast.internal/plugin/internal/dnsfake"

	"github.com/miekg/dns"
)

func TestTheBackupIsNotAskedWhileThePrimaryIsUp(t *testing.T) {
	tiered(t, oneEach, nil, func(t *testing.T, fw *Forwarder, up map[string]*view) {
		for i := range 100 {
			if addr, took := resolve(t, fw, fmt.Sprintf("n%d.example.org.", i)); addr != primary || took != 2*ms {
				t.Fatalf("query %d: %q in %v", i, addr, took)
			}
			time.Sleep(100 * ms)
		}
		if n := len(up[spare].queries); n != 0 {
			t.Errorf("the backup was asked %d times", n)
		}
	})
}

func TestAPrivateNameIsNeverAskedOfTheBackup(t *testing.T) {
	stanza := "healthforward . " + primary + " {\n backup " + spare + "\n private corp.example\n}"
	private := []string{"db.corp.example.", "nas.", "printer.local.", "1.0.0.10.in-addr.arpa."}
	tiered(t, stanza, nil, func(t *testing.T, fw *Forwarder, up map[string]*view) {
		for _, name := range private {
			if addr, took := resolve(t, fw, name); addr != primary || took != 2*ms {
				t.Errorf("%s: %q in %v", name, addr, took)
			}
		}
		died := time.Now()
		up[primary].alive(false)
		for _, name := range private { // from the first, which finds out, on
			if rcode, took := rcodeOf(t, fw, name); rcode != -1 || took > queryDeadline {
				t.Errorf("%s: rcode %d in %v while the primary is dead", name, rcode, took)
			}
		}
		if n := up[spare].since(died); n != 0 {
			t.Errorf("the backup was asked %d private names", n)
		}
		if addr, _ := resolve(t, fw, "example.org."); addr != spare {
			t.Errorf("a public name: %q", addr)
		}
	})
}

func TestAPrivateNameThatWaitsIsAnsweredWhenThePrimaryIsBack(t *testing.T) {
	tiered(t, oneEach, nil, func(t *testing.T, fw *Forwarder, up map[string]*view) {
		up[primary].alive(false)
		resolve(t, fw, "first.example.org.")
		time.Sleep(10 * time.Second)
		answered := make(chan time.Time, 1)
		go func() {
			if addr, _ := resolve(t, fw, "nas."); addr != primary {
				t.Errorf("what waits is answered by %q", addr)
			}
			answered <- time.Now()
		}()
		time.Sleep(1500 * ms)
		up[primary].alive(true)
		for countState(fw, "ejected") > 0 {
			time.Sleep(ms)
		}
		back := time.Now()
		if took := (<-answered).Sub(back); took > 3*ms {
			t.Errorf("what waited is answered %v after the return", took)
		}
	})
}

func TestWhoIsNamedOnABackupLineIsNoPrimary(t *testing.T) {
	stanza := fmt.Sprintf("healthforward . %s %s {\n backup %s\n policy round_robin\n}", primary, spare, spare)
	tiered(t, stanza, nil, func(t *testing.T, fw *Forwarder, up map[string]*view) {
		for i := range 20 {
			if addr, _ := resolve(t, fw, fmt.Sprintf("n%d.example.org.", i)); addr != primary {
				t.Errorf("answered by %q", addr)
			}
		}
		if n := len((*fw.groups.Load())[protoUDP].upstreams); n != 2 {
			t.Errorf("%d upstreams, want 2", n)
		}
	})
}

func TestWithoutProbesLossesShowThatTheBackupIsToTakeOver(t *testing.T) {
	stanza := fmt.Sprintf("healthforward . %s {\n backup %s\n probe off\n}", primary, spare)
	tiered(t, stanza, nil, func(t *testing.T, fw *Forwarder, up map[string]*view) {
		ask := func(i int) (string, time.Duration) { return resolve(t, fw, fmt.Sprintf("n%d.example%d.org.", i, i%5)) }
		ask(0)
		up[primary].alive(false)
		died := time.Now()
		for i := 0; countState(fw, "ejected") == 0 && time.Since(died) < 10*time.Second; i++ {
			if addr, took := ask(i); addr != spare || took > 500*ms {
				t.Errorf("%q in %v", addr, took)
			}
		}
		if took := time.Since(died); took > 5*time.Second {
			t.Errorf("ejected after %v", took)
		}
		if addr, took := ask(1); addr != spare || took != 2*ms {
			t.Errorf("after that: %q in %v", addr, took)
		}
		up[primary].alive(true)
		back := time.Now()
		for i := 0; ; i++ {
			addr, took := ask(i)
			if took != 2*ms {
				t.Errorf("a client waits %v for the test of its return", took)
			}
			if addr == primary || time.Since(back) > 10*time.Second {
				break
			}
			time.Sleep(10 * ms)
		}
		if took := time.Since(back); took > 4*time.Second {
			t.Errorf("used again after %v", took)
		}
	})
}

func TestTheBackupIsNotExploredWhileThePrimaryIsUp(t *testing.T) {
	tiered(t, "healthforward . "+primary+" "+second+" {\n backup "+spare+"\n policy fastest\n}", nil, func(t *testing.T, fw *Forwarder, up map[string]*view) {
		for i := range 100 {
			resolve(t, fw, fmt.Sprintf("n%d.example.org.", i))
			time.Sleep(100 * ms)
		}
		if n := len(up[spare].queries); n != 0 {
			t.Errorf("the backup got %d copies of queries", n)
		}
		if len(up[primary].queries) == 0 || len(up[second].queries) == 0 {
			t.Error("one of the primaries was not explored")
		}
	})
}

func TestFilesAndNamesOnABackupLine(t *testing.T) {
	dir := t.TempDir()
	write := func(name, lines string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(lines), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	host := write("host.conf", "nameserver "+primary+"\nnameserver "+spare+"\n")
	missing := filepath.Join(dir, "missing.conf")
	stanza := fmt.Sprintf("healthforward . %s {\n backup %s %s\n policy round_robin\n}", host, spare, missing)
	tiered(t, stanza, nil, func(t *testing.T, fw *Forwarder, up map[string]*view) {
		for i := range 20 {
			if addr, _ := resolve(t, fw, fmt.Sprintf("n%d.example.org.", i)); addr != primary {
				t.Errorf("%q, though its address is on a backup line", addr)
			}
		}
		write("missing.conf", "nameserver "+third+"\n")
		time.Sleep(2 * time.Second)
		if n := len(fw.groupFor(protoUDP).upstreams); n != 3 {
			t.Fatalf("%d upstreams, want 3 when the file is there", n)
		}
		up[primary].alive(false)
		resolve(t, fw, "first.example.org.")
		time.Sleep(time.Second)
		got := make(map[string]bool)
		for i := range 20 {
			addr, _ := resolve(t, fw, fmt.Sprintf("b%d.example.org.", i))
			got[addr] = true
		}
		if len(got) != 2 || !got[spare] || !got[third] {
			t.Errorf("answered by %v, want by both of the backup line", got)
		}
	})
	tiered(t, fmt.Sprintf("healthforward . %s {\n backup %s\n}", filepath.Join(dir, "never.conf"), spare), nil, func(t *testing.T, fw *Forwarder, up map[string]*view) {
		up[spare].says("none.example.org.", said{rcode: dns.RcodeNameError, after: 2 * ms})
		if addr, took := resolve(t, fw, "example.org."); addr != spare || took != 2*ms {
			t.Errorf("without a primary: %q in %v", addr, took)
		}
		if rcode, took := rcodeOf(t, fw, "none.example.org."); rcode != dns.RcodeNameError || took != 2*ms {
			t.Errorf("without a primary, a denial: rcode %d in %v", rcode, took)
		}
		if rcode, took := rcodeOf(t, fw, "nas."); rcode != -1 || took != 0 {
			t.Errorf("without a primary, a private name: rcode %d in %v", rcode, took)
		}
	})
}

func TestAHostNameOnABackupLineIsResolvedByTheResolver(t *testing.T) {
	dead, up := dnsfake.New(t, dnsfake.Silence), dnsfake.New(t, dnsfake.Address("192.0.2.1"))
	_, port, _ := net.SplitHostPort(up.Addr())
	resolver := dnsfake.New(t, func(r dnsfake.Request) dnsfake.Response {
		if r.Question[0].Qtype == dns.TypeA {
			return dnsfake.Address("127.0.0.1")(r)
		}
		return dnsfake.Answer()(r)
	})
	f := start(t, "healthforward . %s {\n backup upstream.example.org:"+port+"\n resolver %s\n}", dead.Addr(), resolver.Addr())
	if reply, rcode, err := ask(t, f, question("example.org.", dns.TypeA)); addressIn(reply) != "192.0.2.1" {
		t.Errorf("reply %v, ServeDNS = %d, %v", reply, rcode, err)
	}
}
