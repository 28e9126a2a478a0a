package test

import (
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestStallsOfOurOwnEjectNobody holds the process up: for a while, as a machine that
// is suspended does, and for nine tenths of the time, as a CPU quota does.
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
			p := startPair(t, "healthforward", "")
			l := startLoad(t, p.server.addr(), "lab.test.", 50)
			l.waitForQueries(100)
			for range tc.times {
				p.server.Signal(syscall.SIGSTOP)
				<-time.After(tc.stopped)
				p.server.Signal(syscall.SIGCONT)
				<-time.After(tc.running)
			}
			l.waitForQueries(100)
			answers := l.end()
			if text := p.server.Log(); strings.Contains(text, "ejected") {
				t.Errorf("the log says\n%s", text)
			}
			if errs := lost(answers); len(errs) > 0 {
				t.Errorf("%d of %d queries lost, the first %v", len(errs), len(answers), errs[0])
			}
		})
	}
}
