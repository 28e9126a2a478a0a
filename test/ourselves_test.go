package test

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// TestWhoWouldAskItselfAsksOthers: a file names this server, or one that forwards
// to it, beside one that answers.
func TestWhoWouldAskItselfAsksOthers(t *testing.T) {
	t.Parallel()
	if !alone(t) {
		return
	}
	startResolvers(t, 1)
	for i, tc := range []struct {
		name    string
		between func(t *testing.T, at, to string) // starts who forwards, if somebody does
	}{
		{name: "this server itself"},
		{name: "dnsmasq, which forwards to this server", between: startDnsmasqForwarder},
		{name: "CoreDNS, which forwards to this server", between: func(t *testing.T, at, to string) {
			startServer(t, fmt.Sprintf(".:53 {\n bind %s\n forward . %s\n}", at, to))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			own := fmt.Sprintf("127.53.0.%d", i+1)
			other := own
			if tc.between != nil {
				other = fmt.Sprintf("127.54.0.%d", i+1)
				tc.between(t, other, own)
			}
			path := layFile(t, publicDir(t), "nameserver "+other+"\n"+resolversAt(1))
			server := startServerAsNobody(t, fmt.Sprintf(".:53 {\n bind %s\n log . \"asked {name} {type}\"\n healthforward . %s\n}", own, path))
			if tc.between != nil {
				waitFor(t, startLimit, "an error about "+other, func() error {
					if countErrors(server, other) == 0 {
						return errors.New("none")
					}
					return nil
				})
			}
			const count = 100
			for i := range count {
				name := fmt.Sprintf("host%d.lab.test.", i)
				if got := answerText(ask(t, own+":53", name, dns.TypeA)); got != name+" A "+address(1) {
					t.Errorf("%s, want an answer by %s", got, address(1))
				}
			}
			asked := func() int { return strings.Count(server.Log(), "asked host") }
			waitFor(t, startLimit, "all of them in the log, which follows the answer", func() error {
				if got := asked(); got < count {
					return fmt.Errorf("%d", got)
				}
				return nil
			})
			if got := asked(); got > count {
				t.Errorf("asked %d times for %d names: some came back", got, count)
			}
			want := 0
			if tc.between != nil {
				want = 1
			}
			if got := countErrors(server, other); got != want {
				t.Errorf("%d errors about %s, want %d", got, other, want)
			}
		})
	}
}

// countErrors returns how many errors the server has written about an address.
func countErrors(s *server, addr string) int {
	return len(regexp.MustCompile(`(?m)^.*\[ERROR\].*\b`+regexp.QuoteMeta(addr)+`\b.*$`).FindAllString(s.Log(), -1))
}

func startDnsmasqForwarder(t *testing.T, at, to string) {
	t.Helper()
	p := startProgram(t, publicDir(t), "dnsmasq", "--conf-file=/dev/null", "--keep-in-foreground", "--log-facility=-", "--pid-file=",
		"--no-resolv", "--no-hosts", "--no-poll", "--bind-interfaces", "--listen-address="+at, "--server="+to)
	p.waitForLog("started", startLimit)
}
