package test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coredns/caddy"
)

// TestAThousandReloadsLeaveNothingBehind reloads in this process, a hundred times
// in vain, under load and while a file that is followed changes: neither sockets nor
// goroutines nor memory grow, and no query is lost.
func TestAThousandReloadsLeaveNothingBehind(t *testing.T) {
	if !alone(t) {
		return
	}
	startUpstream(t, "127.0.0.2:53", addressA)
	startUpstream(t, "127.0.0.3:53", addressA)
	startUpstream(t, "127.0.0.4:53", addressB)
	names := startNameServer(t, 0, hostAt(3))
	dir := t.TempDir()
	files := []string{"search lab.test\n" + resolversAt(1), "search other.lab.test lab.test\n" + resolversAt(1, 2)}
	text, ports := withPorts(t, fmt.Sprintf(`.:{PORT1} {
		bind 127.0.0.1
		searchexpand %[1]s {
			budget 10000 10000
			wildcard allow
		}
		healthforward . %[1]s resolver.test {
			resolver %[2]s
		}
	}`, layFile(t, dir, files[0]), names.addr))
	taken, err := net.ListenPacket("udp", loopbackAddr(freePort(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, takenPort, _ := net.SplitHostPort(taken.LocalAddr().String())
	bad := []string{
		strings.Replace(text, "searchexpand "+dir, "searchexpand", 1),
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
		if i%50 == 0 {
			renameOver(t, dir, files[i/50%2])
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

// TestWhoIsOutStaysOutOverAReload: no client pays once more for what is known, and a
// reload does not shorten how long one is held out that has failed again.
func TestWhoIsOutStaysOutOverAReload(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64 // what clients asked of the first upstream
	tell := func(f *faulty, a arrival, _ time.Time) {
		if f.number == 1 && !a.isProbe() {
			asked.Add(1)
		}
	}
	port := freePort(t)
	bad := startFaulty(t, 1, port, answers, tell)
	good := startFaulty(t, 2, port, answers, tell)
	server := startServer(t, fmt.Sprintf(".:{PORT1} {\n bind 127.0.0.1\n healthforward . %s %s\n}", bad.addr, good.addr))
	l := startLoad(t, server.addr(), "lab.test.", 100)
	ejections := 0
	eject := func() (at time.Time) {
		t.Helper()
		l.waitUntilAnsweredBy(address(1), startLimit)
		bad.set(silent)
		ejections++
		waitFor(t, startLimit, fmt.Sprintf("ejection %d", ejections), func() error {
			if strings.Count(server.Log(), bad.addr+" is ejected") < ejections {
				return errors.New("not yet")
			}
			return nil
		})
		at = time.Now()
		l.waitForQueries(20) // what was sent before may still arrive
		return at
	}

	eject()
	before := asked.Load()
	for range 3 {
		server.reload()
		l.waitForQueries(50)
	}
	if n := asked.Load() - before; n > 0 {
		t.Errorf("over three reloads, %d queries met the upstream that is out", n)
	}

	bad.set(answers)
	again := eject() // so that it is held for five seconds
	before = asked.Load()
	bad.set(answers)
	server.reload()
	<-time.After(time.Until(again.Add(4 * time.Second)))
	if n := asked.Load() - before; n > 0 {
		t.Errorf("within four seconds of its second ejection, and a reload, %d queries met the upstream", n)
	}
	l.waitUntilAnsweredBy(address(1), startLimit)
	l.checkNoneLost()
}

// reload lets the server read its Corefile again, and waits until it has.
func (s *server) reload() {
	s.t.Helper()
	const done = "Reloading complete"
	seen := strings.Count(s.Log(), done)
	s.Signal(syscall.SIGUSR1)
	waitFor(s.t, startLimit, done, func() error {
		if strings.Count(s.Log(), done) == seen {
			return errors.New("not yet")
		}
		return nil
	})
}
