package test

import (
	"errors"
	"flag"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// aloneEnv is set in a test binary that has namespaces of its own.
const aloneEnv = "STEADFAST_TEST_ALONE"

// clientNet are the addresses of the machine that such a test has for itself. Not
// only loopback ones, because with AI_ADDRCONFIG glibc asks for the families of
// the other ones.
var clientNet = []string{"192.0.2.53/24", "2001:db8::53/64"}

// alone reports whether this test runs in a network, a mount and a host name of
// its own: every port is free there, nothing can leave, and what it mounts over
// /etc nobody else sees. If it does not yet, alone runs it once more, so, in a
// process of its own that it waits for; the caller has then only to return.
//
//	if !alone(t) {
//		return
//	}
func alone(t testing.TB) bool {
	t.Helper()
	if os.Getenv(aloneEnv) != "" {
		prepareNamespaces(t)
		return true
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	again := []string{"-test.run=^" + t.Name() + "$", "-test.v=true", "-test.parallel=8"} // clients wait more than they work
	if _, isBenchmark := t.(*testing.B); isBenchmark {
		again = []string{"-test.run=^$", "-test.bench=^" + strings.ReplaceAll(t.Name(), "/", "$/^") + "$", "-test.benchtime=1x"}
	}
	flag.Visit(func(f *flag.Flag) { // those that are ours
		if !strings.HasPrefix(f.Name, "test.") {
			again = append(again, "-"+f.Name+"="+f.Value.String())
		}
	})
	cmd := exec.CommandContext(t.Context(), self, append(again, "-test.paniconexit0")...)
	cmd.Env = append(os.Environ(), aloneEnv+"=yes")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig:  syscall.SIGKILL,
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS,
	}
	if os.Geteuid() != 0 { // whoever is not root may become it, in a namespace
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) {
		t.Skipf("this machine lets nobody make namespaces (%v), which real clients need for a resolv.conf of their own: "+
			"NOTHING was tested; run as root, or a container with CAP_SYS_ADMIN", err)
	}
	if err != nil {
		t.Errorf("in namespaces of its own: %v", err)
	}
	t.Logf("in namespaces of its own:\n%s", out)
	return false
}

var namespacesReady sync.Once

// prepareNamespaces makes the new namespaces usable.
func prepareNamespaces(t testing.TB) {
	t.Helper()
	namespacesReady.Do(func() {
		// What is mounted from now on must not reach the namespace we come from.
		if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
			t.Fatalf("make mounts private: %v", err)
		}
		// glibc takes the domain of a dotted host name for a search list.
		if err := syscall.Sethostname([]byte("client")); err != nil {
			t.Fatal(err)
		}
		mustRun(t, "ip", "link", "set", "lo", "up")
		// Any user may listen on any port, for there is nobody to take it from.
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, addr := range clientNet {
			mustRun(t, "ip", "address", "add", addr, "dev", "lo", "nodad")
		}
	})
}

// mustRun runs a program and returns what it wrote to stdout.
func mustRun(t testing.TB, argv ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s (test/run installs what is missing)", strings.Join(argv, " "), err, stderr.String())
	}
	return string(out)
}
