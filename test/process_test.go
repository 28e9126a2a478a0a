package test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	// startLimit is how long a process may take until it serves. An idle machine
	// needs a second; a race build beside a compiler on two cores needs many.
	startLimit = 60 * time.Second
	// endLimit is how long a process may take from SIGTERM to its end: the
	// longest lameduck in any Corefile here is 5 s, and the rest is for a
	// machine that is busy.
	endLimit = 30 * time.Second
	// pollInterval is a compromise: a test waits half of it in vain, on average.
	pollInterval = 10 * time.Millisecond
)

// process is a running role of this test binary.
type process struct {
	t    testing.TB
	name string
	cmd  *exec.Cmd
	log  logBuffer
	done chan struct{} // closed when the process has ended and log is whole
	err  error         // how it ended; may be read once done is closed
}

// startProcess starts a role. The process ends with the test, which fails if the
// race detector spoke up in it or if it does not end by SIGTERM; its log is shown
// when the test failed.
func startProcess(t testing.TB, role, dir string, args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return startBinary(t, self, role, dir, args...)
}

// startBinary starts any program as startProcess does a role.
func startBinary(t testing.TB, program, role, dir string, args ...string) *process {
	t.Helper()
	p := &process{t: t, name: role, done: make(chan struct{})}
	p.cmd = exec.Command(program, args...)
	p.cmd.Dir = dir
	p.cmd.Env = append(os.Environ(), roleEnv+"="+role)
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	// A test binary that is killed, by its own -timeout say, must not leave
	// servers behind.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", role, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(p.end)
	return p
}

// end stops the process and judges it.
func (p *process) end() {
	p.Signal(syscall.SIGCONT) // a stopped process takes no other signal but SIGKILL
	p.Signal(syscall.SIGTERM)
	if !p.ended(endLimit) {
		p.t.Errorf("%s (pid %d) is still there %v after SIGTERM", p.name, p.Pid(), endLimit)
		p.Signal(syscall.SIGKILL)
		<-p.done
	}
	if strings.Contains(p.Log(), "WARNING: DATA RACE") {
		p.t.Errorf("%s (pid %d): the race detector found something", p.name, p.Pid())
	}
	if p.t.Failed() {
		p.t.Logf("log of %s (pid %d), which ended with %v:\n%s", p.name, p.Pid(), p.err, p.Log())
	}
}

// ended waits for the process's end and reports whether it came within limit.
func (p *process) ended(limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.done:
		return true
	case <-timer.C:
		return false
	}
}

// Pid returns the process's number.
func (p *process) Pid() int { return p.cmd.Process.Pid }

// Signal sends sig. A process that has ended already is no error: tests kill.
func (p *process) Signal(sig syscall.Signal) {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Errorf("send %v to %s: %v", sig, p.name, err)
	}
}

// Wait returns how the process ended, as exec.Cmd's Wait does, and ends the test
// if it does not end within limit.
func (p *process) Wait(limit time.Duration) error {
	p.t.Helper()
	if !p.ended(limit) {
		p.t.Fatalf("%s (pid %d) did not end within %v", p.name, p.Pid(), limit)
	}
	return p.err
}

// Log returns what the process has written so far.
func (p *process) Log() string { return p.log.String() }

// waitForLog waits until the process has written text, and ends the test if it
// ends before or takes longer than limit.
func (p *process) waitForLog(text string, limit time.Duration) {
	p.t.Helper()
	waitFor(p.t, limit, fmt.Sprintf("%q in the log of %s", text, p.name), func() error {
		if strings.Contains(p.Log(), text) {
			return nil
		}
		select {
		case <-p.done:
			// Once more: the last lines may have come between the two looks.
			if strings.Contains(p.Log(), text) {
				return nil
			}
			p.t.Fatalf("%s ended (%v) before it wrote %q", p.name, p.err, text)
		default:
		}
		return errors.New("not written yet")
	})
}

// logBuffer is a buffer that one goroutine fills while others read.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// waitFor calls ok until it returns nil, and ends the test with its last error
// when limit is over.
func waitFor(t testing.TB, limit time.Duration, what string, ok func() error) {
	t.Helper()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		err := ok()
		if err == nil {
			return
		}
		select {
		case <-ticker.C:
		case <-timer.C:
			t.Fatalf("waited %v for %s: %v", limit, what, err)
		}
	}
}
