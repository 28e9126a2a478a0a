package test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// leastTTL is how long the addresses of a host name are believed at least.
const leastTTL = 5 * time.Second

// hostAt says that a host is where resolver number n is, for one second, which is
// less than is believed.
func hostAt(n int) behaviour {
	return func(arrival) reaction { return reaction{at: resolverAt(n)} }
}

// TestAHostNameIsFollowed: to where its host has moved, while nobody is left where it
// was; and it stays there when its name cannot be resolved any more.
func TestAHostNameIsFollowed(t *testing.T) {
	t.Parallel()
	if !alone(t) {
		return
	}
	endings := map[string]behaviour{
		"then the name is denied":     fails(dns.RcodeNameError),
		"then the name fails":         fails(dns.RcodeServerFailure),
		"then its resolver is silent": silent,
	}
	resolvers := startResolvers(t, 2*len(endings))
	first := make(map[string]behaviour)
	for i, name := range slices.Sorted(maps.Keys(endings)) {
		first[name] = hostAt(2*i + 1)
	}
	hosts := startHosts(t, first)
	t.Run("endings", func(t *testing.T) {
		for i, name := range hosts.order {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				from, to := 2*i+1, 2*i+2
				names := hosts.names[name]
				l := startLoad(t, hosts.of(name), "lab.test.", 25)
				l.waitUntilAnsweredBy(address(from), startLimit)
				began, before := time.Now(), int(names.asked.Load())
				names.set(hostAt(to))
				took := l.checkFollows(to)
				resolvers[from-1].set(closed)
				l.waitForQueries(25)

				names.set(endings[name])
				asked := int(names.asked.Load())
				waitFor(t, startLimit, "a look-up in vain", func() error {
					if int(names.asked.Load()) == asked {
						return errors.New("none yet")
					}
					return nil
				})
				failed := time.Now()
				l.waitForQueries(25)
				l.checkAnsweredBy(failed, to)
				l.checkNoneLost()
				lasted, asked := time.Since(began), int(names.asked.Load())-before
				t.Logf("the new address answers %v after the change; %d questions for the name in %v",
					took.Round(time.Millisecond), asked, lasted.Round(time.Millisecond))
				// For A and AAAA each time, and some again where no answer came.
				if limit := 6 * (int(lasted/leastTTL) + 2); asked > limit {
					t.Errorf("asked %d times for the name in %v, want %d at most", asked, lasted, limit)
				}
			})
		}
	})
}

const hostName = "resolver.test."

// nameServer knows where a host is.
type nameServer struct {
	*faulty
	asked atomic.Int64 // for hostName
}

// startNameServer starts number i, from 0, at an address of its own. The test must
// be alone.
func startNameServer(t testing.TB, i int, does behaviour) *nameServer {
	t.Helper()
	s := new(nameServer)
	s.faulty = startFaulty(t, 100+i, 53, does, func(_ *faulty, a arrival, _ time.Time) {
		if a.name == hostName {
			s.asked.Add(1)
		}
	})
	return s
}

// hosts is a coredns, run by nobody, with a server block for each of some servers of
// names, which forwards to the host that it says hostName is.
type hosts struct {
	*server
	order []string
	names map[string]*nameServer
}

func startHosts(t *testing.T, answers map[string]behaviour) *hosts {
	t.Helper()
	h := &hosts{order: slices.Sorted(maps.Keys(answers)), names: make(map[string]*nameServer)}
	var corefile strings.Builder
	for i, name := range h.order {
		h.names[name] = startNameServer(t, i, answers[name])
		fmt.Fprintf(&corefile, ".:{PORT%d} {\n bind 127.0.0.1\n healthforward . %s {\n resolver %s\n }\n}\n", i+1, hostName, h.names[name].addr)
	}
	h.server = startServerAsNobody(t, corefile.String())
	return h
}

// of is where the block of a kind answers.
func (h *hosts) of(name string) string {
	return h.addrOf(fmt.Sprintf("PORT%d", slices.Index(h.order, name)+1))
}

// TestAHostNameWithoutAnAddressIsNoErrorAtTheStart: whatever the reason, queries
// fail until it has one, and only until then.
func TestAHostNameWithoutAnAddressIsNoErrorAtTheStart(t *testing.T) {
	t.Parallel()
	if !alone(t) {
		return
	}
	const goneResolver, slowResolver = "its resolver is gone", "its resolver is slow"
	reasons := map[string]behaviour{
		"it does not exist":    fails(dns.RcodeNameError),
		"it has no address":    func(arrival) reaction { return reaction{at: nowhere} },
		"its zone fails":       fails(dns.RcodeServerFailure),
		"its resolver is mute": silent,
		goneResolver:           silent,
		slowResolver:           func(arrival) reaction { return reaction{at: resolverAt(1), delay: 3 * time.Second} },
	}
	startResolvers(t, 1)
	hosts := startHosts(t, reasons)
	hosts.names[goneResolver].set(closed)
	t.Run("reasons", func(t *testing.T) {
		for name := range reasons {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				addr, names := hosts.of(name), hosts.names[name]
				if got := answerText(ask(t, addr, "host.lab.test", dns.TypeA)); got != "SERVFAIL" && name != slowResolver {
					t.Errorf("without an address: %s, want SERVFAIL", got)
				}
				names.set(hostAt(1))
				checkAnswersSoon(t, addr, 1)
				l := startLoad(t, addr, "lab.test.", 25)
				l.waitForQueries(50)
				l.checkNoneLost()
			})
		}
	})
}
