package test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/miekg/dns"
)

// TestNodeLocalAddressesComeAndGo runs the script of node-local/iptables on a node, and
// an update of its pods: one beside the other, in the node's network.
func TestNodeLocalAddressesComeAndGo(t *testing.T) {
	if !alone(t) {
		return
	}
	t.Setenv("KUBE_DNS_SERVICE_HOST", kubeDNS)
	t.Setenv("KUBE_DNS_UPSTREAM_SERVICE_HOST", wildCluster)
	script, err := filepath.Abs(manifests + "/node-local/addresses/addresses.sh")
	if err != nil {
		t.Fatal(err)
	}
	rules := func() []string {
		return strings.Split(mustRun(t, "iptables", "-t", "raw", "-S")+mustRun(t, "iptables", "-t", "filter", "-S"), "\n")
	}
	before := rules()

	for range 2 { // a second pod, beside the first or after it
		mustRun(t, "sh", script, "add")
	}
	added := slices.DeleteFunc(rules(), func(rule string) bool { return slices.Contains(before, rule) })
	slices.Sort(added)
	// In and out, by UDP and TCP: three rules that keep a packet untracked for each
	// address and two that let it through.
	if unique := slices.Compact(slices.Clone(added)); len(added) != 20 || len(unique) != 20 {
		t.Errorf("%d rules, %d different ones, want 20:\n%s", len(added), len(unique), strings.Join(added, "\n"))
	}
	for _, address := range []string{nodeLocalAddress, kubeDNS} {
		rule := "-A PREROUTING -d " + address + "/32 -p udp -m udp --dport 53 -j "
		if !slices.ContainsFunc(added, func(r string) bool { return strings.HasPrefix(r, rule) }) {
			t.Errorf("no rule begins with %q:\n%s", rule, strings.Join(added, "\n"))
		}
	}
	playNodeLocalUpdate(t)

	for range 2 {
		mustRun(t, "sh", script, "remove")
	}
	if got := rules(); !slices.Equal(got, before) {
		t.Errorf("taken away, the rules are\n%s\nand were\n%s", strings.Join(got, "\n"), strings.Join(before, "\n"))
	}
	if links := mustRun(t, "ip", "address"); strings.Contains(links, kubeDNS) || strings.Contains(links, nodeLocalAddress) {
		t.Errorf("addresses are left:\n%s", links)
	}
}

// playNodeLocalUpdate starts a cache, a second one beside it, and ends the first.
func playNodeLocalUpdate(t *testing.T) {
	t.Helper()
	startNeighbour(t, wildCluster)
	startNeighbour(t, wildFirst)
	text, err := os.ReadFile(manifests + "/node-local/iptables/Corefile")
	if err != nil {
		t.Fatal(err)
	}
	node := t.TempDir()
	writeFile(t, node, "resolv.conf", "nameserver "+wildFirst+"\n")
	corefile := changed(t, string(text), map[string]string{"/node/resolv.conf": node + "/resolv.conf"})

	check := func(word string) {
		t.Helper()
		for _, address := range []string{nodeLocalAddress, kubeDNS} {
			for name, want := range map[string]string{
				word + ".example.org.":               `TXT "udp"`,
				word + ".default.svc.cluster.local.": `TXT "tcp"`, // force_tcp
			} {
				if got := answerText(ask(t, address+":53", name, dns.TypeTXT)); got != name+" "+want {
					t.Errorf("%s: %q, want %q", address, got, want)
				}
			}
		}
		for _, url := range []string{":8080/health", ":8181/ready", ":9253/metrics"} {
			if err := httpOK("http://" + nodeLocalAddress + url); err != nil {
				t.Errorf("%s: %v", word, err)
			}
		}
	}
	first := startServer(t, corefile)
	waitFor(t, startLimit, "the first", func() error { return httpOK("http://" + nodeLocalAddress + ":8181/ready") })
	check("first")
	second := startServer(t, corefile)
	check("both")
	first.Signal(syscall.SIGTERM)
	if err := first.Wait(endLimit); err != nil {
		t.Errorf("the first: %v", err)
	}
	check("second")
	if err := second.cmd.Process.Signal(syscall.Signal(0)); err != nil {
		t.Error(fmt.Errorf("the second: %w", err))
	}
}
