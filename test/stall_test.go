package test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestStallsOfOurOwnEjectNobody holds the process up: for a while, as a machine that
// is suspended does, and for nine tenths of the time, as a CPU quota does. It is what
// the judgement of speed would take for a slow upstream; what our own lateness proves
// of silence is in the tables of healthforward's prober.
func TestStallsOfOurOwnEjectNobody(t *testing.T) {
	for name, tc := range map[string]struct {
		stopped, running time.Duration
		times            int
	}{
		"a suspended machine":    {3 * time.Second, 500 * time.Millisecond, 2},
		"a CPU quota of a tenth": {90 * time.Millisecond, 10 * time.Millisecond, 60},
		"half a second now and then, as collecting garbage under pressure": {500 * time.Millisecond, 200 * time.Millisecond, 8},
	} {
		t.Run(name, func(t *testing.T) {
			// So slow that there is always something on the way when we are stopped.
			a := startUpstream(t, loopbackAddr(freePort(t)), addressA, "40ms")
			b := startUpstream(t, loopbackAddr(freePort(t)), addressB, "40ms")
			server := startServer(t, fmt.Sprintf(".:{PORT1} {\n bind 127.0.0.1\n healthforward . %s %s\n}", a.listen, b.listen))
			l := startLoad(t, server.addr(), "lab.test.", 50)
			l.waitForQueries(20)
			for range tc.times {
				server.Signal(syscall.SIGSTOP)
				<-time.After(tc.stopped)
				server.Signal(syscall.SIGCONT)
				<-time.After(tc.running)
			}
			l.waitForQueries(20)
			answers := l.end()
			if text := server.Log(); strings.Contains(text, "ejected") {
				t.Errorf("the log says\n%s", text)
			}
			if errs := lost(answers); len(errs) > 0 {
				t.Errorf("%d of %d queries lost, the first %v", len(errs), len(answers), errs[0])
			}
		})
	}
}
