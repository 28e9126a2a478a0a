package test

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// hostLimit is for the start of a system and what is tried in it: half a minute on a
// machine that is otherwise idle.
const hostLimit = 5 * time.Minute

// hostChecks are what host/checks.sh is to see, as expressions for the whole of it.
var hostChecks = map[string]string{
	"installed":                          `.*Setting up steadfast .*`,
	"resolv.conf after installation":     `unchanged`,
	"service after installation":         `inactive`,
	"service at boot after installation": `disabled`,
	"enable":                             `steadfast-host: enabled: .*`,
	"resolv.conf":                        `nameserver 127\.0\.0\.1 options edns0 trust-ad`,
	"a bare name":                        `192\.0\.2\.10`,
	"service at boot":                    `enabled`,
	"user":                               `dynamic`,
	"capabilities":                       `0000000000000400`, // cap_net_bind_service
	"bounding set":                       `0000000000000400`,
	"no new privileges":                  `1`,
	"system call filter":                 `2`,
	"open files":                         `65536`,
	"memory":                             `262144000 GOMEMLIMIT=200MiB`,
	"restarts":                           `always 100ms 0`,
	"waits for it":                       `.*nss-lookup\.target.*`,
	"it waits for":                       `.*network\.target.*`,
	"it wants":                           `.*nss-lookup\.target.*`,
	"verified":                           ``,
	"reload":                             ``,
	"a name of the VPN":                  `192\.0\.2\.20`,
	"process after reload":               `same`,
	"starts after six deaths":            `6`,
	"a bare name after six deaths":       `192\.0\.2\.10`,
	"status":                             `steadfast-host: enabled, kind static .*the service runs.*nameserver 127\.0\.0\.2`,
	"removed":                            `.*Removing steadfast .*steadfast-host: disabled.*`,
	"resolv.conf in the end":             `as before`,
	"service in the end":                 `inactive`,
	"left behind":                        `(find: \S+ No such file or directory ?){3}`,
	"whole":                              `yes`,
}

// checkHost installs the package on this machine's system, as far as only namespaces
// of the test's see it, with a systemd of its own that runs the service, the helper and
// NSS as on a host. What that does not show: cgroup limits, which need a controller that
// the machine's own hierarchy may hold, an older systemd, and a boot.
func checkHost(t *testing.T, deb string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a systemd of one's own takes root: NOTHING was tested")
	}
	dir := t.TempDir()
	mustRun(t, "cp", deb, filepath.Join(dir, "steadfast.deb"))
	mustRun(t, "cp", "host/checks.sh", "host/systemd.sh", dir)
	results := filepath.Join(dir, "results")
	for _, err := range []error{os.Mkdir(filepath.Join(dir, "new"), 0o755), os.WriteFile(results, nil, 0o644)} {
		if err != nil {
			t.Fatal(err)
		}
	}

	ctx, cancel := context.WithTimeout(t.Context(), hostLimit)
	defer cancel()
	// It is root of its own tree of control groups, and cannot touch another's.
	const start = `echo $$ >"$1/cgroup.procs" && exec unshare --kill-child --cgroup --mount --pid --fork --net --ipc --uts sh "$2/systemd.sh" "$2"`
	cmd := exec.CommandContext(ctx, "sh", "-c", start, "sh", controlGroup(t), dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	seen, readErr := os.ReadFile(results)
	if err != nil || readErr != nil {
		t.Errorf("a systemd of one's own: %v, %v\n%s", err, readErr, out)
	}
	got := make(map[string]string)
	for line := range strings.Lines(string(seen)) {
		name, value, _ := strings.Cut(strings.TrimRight(line, "\n"), ":")
		if _, wanted := hostChecks[name]; wanted {
			got[name] = strings.TrimSpace(value)
		}
	}
	for name, want := range hostChecks {
		if value, ok := got[name]; !ok || !regexp.MustCompile("^(?:"+want+")$").MatchString(value) {
			t.Errorf("%s: %q (%v), want %q", name, value, ok, want)
		}
	}
	if t.Failed() {
		t.Logf("all that was seen:\n%s", seen)
	}
}

// controlGroup makes a group in the unified hierarchy that goes with the test.
func controlGroup(t *testing.T) string {
	t.Helper()
	var root string
	for line := range strings.Lines(mustRun(t, "cat", "/proc/self/mountinfo")) {
		if before, after, _ := strings.Cut(line, " - "); strings.HasPrefix(after, "cgroup2 ") {
			root = strings.Fields(before)[4]
		}
	}
	if root == "" {
		t.Skip("no cgroup2 is mounted here, which systemd needs: NOTHING was tested")
	}
	group := filepath.Join(root, "steadfast-test-"+rand.Text())
	if err := os.Mkdir(group, 0o755); err != nil { // the service's user reads there, as on a host
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// A group is gone some moments after its last process.
		waitFor(t, time.Minute, "the end of "+group, func() error { return removeGroups(group) })
	})
	return group
}

// removeGroups removes a group and those in it. Its files go with it.
func removeGroups(group string) error {
	entries, err := os.ReadDir(group)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeGroups(filepath.Join(group, entry.Name())); err != nil {
				return err
			}
		}
	}
	return os.Remove(group)
}
