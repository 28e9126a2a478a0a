package test

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/coredns/caddy"
)

// TestAThousandReloadsLeaveNothingBehind reloads in this process, a hundred times
// in vain, under load: neither sockets nor goroutines nor memory grow, and no
// query is lost.
func TestAThousandReloadsLeaveNothingBehind(t *testing.T) {
	a := startUpstream(t, loopbackAddr(freePort(t)), addressA)
	b := startUpstream(t, loopbackAddr(freePort(t)), addressB)
	text, ports := withPorts(t, fmt.Sprintf(`.:{PORT1} {
		bind 127.0.0.1
		searchexpand lab.test {
			budget 10000 10000
			wildcard allow
		}
		healthforward . %s %s
	}`, a.listen, b.listen))
	taken, err := net.ListenPacket("udp", loopbackAddr(freePort(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, takenPort, _ := net.SplitHostPort(taken.LocalAddr().String())
	bad := []string{
		strings.Replace(text, "searchexpand lab.test", "searchexpand", 1),
		text + "\nbad.test:" + takenPort + " {\n bind 127.0.0.1\n healthforward . 127.0.0.9\n}\n",
	}

	instance, err := caddy.Start(corefileInput(text))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		instance.ShutdownCallbacks()
		instance.Stop()
	}()
	l := startLoad(t, loopbackAddr(ports["PORT1"]), "", 500)
	l.waitUntilAnsweredBy(addressA, startLimit)
	var early footprint
	for i := range 1000 {
		if i == 100 {
			early = takeFootprint(t)
		}
		if i%10 == 0 {
			if _, err := instance.Restart(corefileInput(bad[i/10%2])); err == nil {
				t.Fatal("a bad Corefile is accepted")
			}
			continue
		}
		if instance, err = instance.Restart(corefileInput(text)); err != nil {
			t.Fatal(err)
		}
	}
	late := takeFootprint(t)
	answers := l.end()
	if errs := lost(answers); len(errs) > 0 {
		t.Errorf("%d of %d queries lost, the first %v", len(errs), len(answers), errs[0])
	}
	// What is open moves with the load, by a few sockets and goroutines; what leaks
	// comes nine hundred times.
	if late.sockets > early.sockets+100 || late.goroutines > early.goroutines+100 || late.heap > early.heap+32<<20 {
		t.Errorf("after 100 reloads %+v, after 1000 %+v", early, late)
	}
	t.Logf("%d queries, none lost; after 100 reloads %+v, after 1000 %+v", len(answers), early, late)
}

// footprint is what the process holds.
type footprint struct {
	sockets, goroutines int
	heap                uint64 // octets in use
}

func takeFootprint(t *testing.T) footprint {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return footprint{sockets: len(fds), goroutines: runtime.NumGoroutine(), heap: m.HeapInuse}
}

func corefileInput(text string) caddy.Input {
	return caddy.CaddyfileInput{Filepath: "Corefile", Contents: []byte(text), ServerTypeName: "dns"}
}
