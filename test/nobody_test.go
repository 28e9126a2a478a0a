package test

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
)

// corednsAsNobody is the role of a coredns that may do what everybody may, as in
// the container image and under systemd.
const corednsAsNobody = "coredns as nobody"

func init() {
	roles[corednsAsNobody] = func() {
		if err := becomeNobody(); err != nil {
			fmt.Println("become nobody:", err)
			os.Exit(1)
		}
		runCoreDNS()
	}
}

// powerlessEnv is set in a process that has given up root's privileges.
const powerlessEnv = "STEADFAST_TEST_POWERLESS"

// Of linux/prctl.h and linux/securebits.h: root is a user like any other from the
// next exec on.
const (
	prSetSecurebits = 28
	secureNoRoot    = 1
)

// becomeNobody changes the user of this process. It does so after the exec, because
// only root can read the directory that go test builds in.
func becomeNobody() error {
	if os.Getenv(powerlessEnv) != "" {
		return nil
	}
	// Whoever made these namespaces without being root has no other user in them,
	// and may not change groups.
	if err := syscall.Setgroups(nil); err != nil && !errors.Is(err, syscall.EPERM) {
		return err
	}
	err := syscall.Setgid(nobody)
	if err == nil {
		err = syscall.Setuid(nobody)
	}
	if errors.Is(err, syscall.EINVAL) {
		return becomePowerless()
	}
	if err != nil {
		return err
	}
	// The kernel forgets it with the user. See startBinary.
	return prctl(syscall.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL))
}

// becomePowerless starts this program once more, as a root without privileges. It
// returns only if it fails.
func becomePowerless() error {
	runtime.LockOSThread() // the bit is one thread's
	if err := prctl(prSetSecurebits, secureNoRoot); err != nil {
		return err
	}
	return syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), powerlessEnv+"=yes"))
}

func prctl(option, value uintptr) error {
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, option, value, 0); errno != 0 {
		return fmt.Errorf("prctl %d: %w", option, errno)
	}
	return nil
}
