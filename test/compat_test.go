package test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// TestCompatAnswersToTheWordForward starts one Corefile, without a word of ours, on
// the flavour compat and on the program in which forward is CoreDNS's: going over
// and back is an exchange of programs.
func TestCompatAnswersToTheWordForward(t *testing.T) {
	compat, err := compatProgram()
	if err != nil {
		t.Fatal(err)
	}
	a := startUpstream(t, loopbackAddr(freePort(t)), addressA)
	corefile := fmt.Sprintf(`.:{PORT1} {
		bind 127.0.0.1
		errors
		prometheus 127.0.0.1:{PORT2}
		forward lab.test 127.0.0.1:1 %s {
			policy sequential
			max_fails 3
			health_check 1s
			max_concurrent 1000
			expire 10s
			except except.lab.test
		}
		forward . %s
	}`, a.listen, a.listen)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, program := range map[string]string{"compat": compat, "stock": self} {
		t.Run(name, func(t *testing.T) {
			s := startServerOf(t, program, t.TempDir(), corefile)
			for i := range 20 {
				reply := ask(t, s.addr(), fmt.Sprintf("host%d.lab.test", i), dns.TypeA)
				if len(reply.Answer) != 1 {
					t.Errorf("reply %v", reply)
				}
			}
			metrics, err := httpGet("http://" + s.addrOf("PORT2") + "/metrics")
			if err != nil {
				t.Fatal(err)
			}
			if got, want := strings.Contains(metrics, "coredns_healthforward_upstream_state{"), name == "compat"; got != want {
				t.Errorf("healthforward answers to forward: %v, want %v", got, want)
			}
		})
	}
}
