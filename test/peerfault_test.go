package test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
)

const (
	// peerLoadRate is how many queries a second go over each transport.
	peerLoadRate = 25
	// peerLoadLimit ends a load that nobody ends.
	peerLoadLimit = 3 * time.Minute
)

func TestNoQueryIsLostWhenAPeerIsRestartedKilledOrStopped(t *testing.T) {
	site := newPeerSite(t)
	for name, p := range peers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := site.start(t, name, p)
			loads := startPeerLoads(t, site, server.addr, p.transports)
			for _, fault := range []struct {
				name      string
				die, back func()
			}{
				{"restarted", func() { server.signal(syscall.SIGTERM); server.Wait(endLimit) }, server.run},
				{"killed", func() { server.signal(syscall.SIGKILL); server.Wait(endLimit) }, server.run},
				{"stopped", func() { server.signal(syscall.SIGSTOP) }, func() { server.signal(syscall.SIGCONT) }},
			} {
				fault.die()
				loads.waitForQueries(2 * peerLoadRate)
				fault.back()
				up := time.Now()
				loads.waitUntilPeerAnswers()
				t.Logf("%s, and in use %v after its return", fault.name, time.Since(up).Round(10*time.Millisecond))
			}
			loads.judge()
		})
	}
}

func TestNoQueryIsLostAndNobodyEjectedWhenAPeerDropsItsConnections(t *testing.T) {
	const drops, queriesBetween = 10, 5
	site := newPeerSite(t)
	for name, p := range peers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := site.start(t, name, p)
			relays := make(map[string]*relay)
			for _, transport := range p.transports {
				if transport != "udp" && transport != "quic" { // they have no connection that could be reset
					relays[transport] = startRelay(t, server.addr(transport))
				}
			}
			transports := slices.DeleteFunc(slices.Clone(p.transports), func(s string) bool { return relays[s] == nil })
			loads := startPeerLoads(t, site, func(transport string) string { return relays[transport].addr() }, transports)
			dropped := make(map[string]int)
			for i := range drops {
				loads.waitForQueries(queriesBetween)
				for transport, relay := range relays {
					if i%2 == 0 {
						dropped[transport] += relay.drop()
					} else {
						relay.dropAtReply()
					}
				}
			}
			loads.waitUntilPeerAnswers()
			loads.judge()
			for transport := range loads.loads {
				if dropped[transport] == 0 {
					t.Errorf("no connection over %s was there to be dropped", transport)
				}
				if relays[transport].repliesLost() == 0 {
					t.Errorf("no connection over %s was dropped in the place of a reply", transport)
				}
				if strings.Contains(loads.blocks.Log(), transport+"://"+relays[transport].addr()+" is ejected") {
					t.Errorf("the upstream over %s was ejected, and its server is well", transport)
				}
				t.Logf("over %s %d connections dropped, and %d in the place of a reply", transport, dropped[transport], relays[transport].repliesLost())
			}
		})
	}
}

// peerLoads are a healthforward with a peer and another server for each transport,
// and a steady load on each.
type peerLoads struct {
	t      testing.TB
	blocks *peerBlocks
	loads  map[string]*load // transport → its load
}

// startPeerLoads starts them and returns once both servers answer over each of the
// transports.
func startPeerLoads(t testing.TB, site *peerSite, addr func(transport string) string, transports []string) *peerLoads {
	t.Helper()
	l := &peerLoads{t: t, loads: make(map[string]*load)}
	forwarders := make(map[string]string)
	for _, transport := range transports {
		// Without a hold, so that the faults can follow each other.
		forwarders[transport] = site.forwarderLines("healthforward", transport, "hold 0s", addr(transport), site.other.addr(transport))
	}
	l.blocks = startBlocks(t, forwarders)
	for transport := range forwarders {
		network := "udp"
		if transport == "tcp" {
			network = "tcp"
		}
		l.loads[transport] = startPeerLoad(t, network, l.blocks.at(transport))
	}
	for _, load := range l.loads {
		load.waitUntilAnsweredBy(otherWho, startLimit)
	}
	l.waitUntilPeerAnswers()
	return l
}

// startPeerLoad is a load over UDP or TCP that asks for names under who.
func startPeerLoad(t testing.TB, network, addr string) *load {
	l := &load{t: t, addr: addr, zone: "who." + peerOrigin, stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(l.done)
		var queries sync.WaitGroup
		defer queries.Wait()
		ticker := time.NewTicker(time.Second / peerLoadRate)
		defer ticker.Stop()
		for i := range int(peerLoadLimit/time.Second) * peerLoadRate {
			select {
			case <-l.stop:
				return
			case <-ticker.C:
			}
			queries.Go(func() {
				a := askWho(network, addr, fmt.Sprintf("host%d.%s", i, l.zone))
				l.mu.Lock()
				defer l.mu.Unlock()
				l.answers = append(l.answers, a)
			})
		}
	}()
	t.Cleanup(func() { l.end() })
	return l
}

// askWho asks who answers.
func askWho(network, addr, name string) answer {
	client := &dns.Client{Net: network, Timeout: peerAskLimit}
	a := answer{sent: time.Now()}
	reply, _, err := client.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeA), addr)
	a.took, a.err = time.Since(a.sent), err
	if err != nil {
		return a
	}
	if len(reply.Answer) == 1 {
		if record, ok := reply.Answer[0].(*dns.A); ok && record.Hdr.Name == name {
			a.address = record.A.String()
		}
	}
	if a.address != peerWho && a.address != otherWho {
		a.err = fmt.Errorf("%s: %s, %v", name, dns.RcodeToString[reply.Rcode], reply.Answer)
	}
	return a
}

// waitForQueries waits until n more queries of each load have been answered.
func (l *peerLoads) waitForQueries(n int) {
	l.t.Helper()
	began := time.Now()
	for transport, load := range l.loads {
		waitFor(l.t, startLimit, fmt.Sprintf("%d queries over %s", n, transport), func() error {
			if got := len(load.since(began)); got < n {
				return fmt.Errorf("%d", got)
			}
			return nil
		})
	}
}

// waitUntilPeerAnswers waits until the peer answers queries of each load.
func (l *peerLoads) waitUntilPeerAnswers() {
	l.t.Helper()
	for _, load := range l.loads {
		load.waitUntilAnsweredBy(peerWho, startLimit)
	}
}

// judge ends the loads, and fails if any of their queries was not answered.
func (l *peerLoads) judge() {
	l.t.Helper()
	for transport, load := range l.loads {
		answers := load.end()
		if errs := lost(answers); len(errs) > 0 {
			l.t.Errorf("over %s %d of %d queries lost, the first %v", transport, len(errs), len(answers), errs[0])
		}
		l.t.Logf("over %s %d queries: p99 %v, max %v", transport, len(answers),
			quantile(answers, 0.99).Round(time.Millisecond), quantile(answers, 1).Round(time.Millisecond))
	}
}
