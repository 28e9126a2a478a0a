package test

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// fakeSystemctl is a service manager for a host without one. It knows that units run or
// do not, writes down what it is told, and does what systemd-resolved does when it is
// started: it writes resolv.conf anew, with the servers of its configuration in front.
const fakeSystemctl = `#!/bin/sh
while case ${1-} in -*) ;; *) false ;; esac; do shift; done
case $1 in
is-active) exec test -e "/run/active/$2" ;;
start) : >"/run/active/$2" ;;
stop) rm -f "/run/active/$2" ;;
restart)
	if [ "$2" = systemd-resolved ]; then
		conf=/etc/systemd/resolved.conf.d/99-steadfast.conf
		[ -e $conf ] || conf=/etc/systemd/resolved.conf
		sed -n 's/^DNS=\(.\)/nameserver \1/p' $conf >/run/systemd/resolve/resolv.conf 2>/dev/null
		cat /run/links >>/run/systemd/resolve/resolv.conf
	fi
	;;
esac
echo "$*" >>/run/told
`

// host is this machine with other files in /etc, /run and /var/lib, to be seen by what
// is run in it. It keeps them in memory.
type host struct {
	t    *testing.T
	root string
}

// newHost needs namespaces of the test's own (alone).
func newHost(t *testing.T, files map[string]string) *host {
	t.Helper()
	dir := t.TempDir()
	mustRun(t, "mount", "-t", "tmpfs", "tmpfs", dir)
	h := &host{t: t, root: filepath.Join(dir, "root")}
	for _, name := range []string{"root", "upper", "work"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// By relative paths, because a comma would end an absolute one.
	mustRun(t, "sh", "-c", `cd "$1" && mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root`, "sh", dir)
	t.Cleanup(func() { mustUnmount(t, dir) })
	for _, name := range []string{"/proc", "/dev"} {
		mustRun(t, "mount", "--rbind", name, h.root+name)
	}
	for _, name := range []string{"/run", "/var/lib", "/sys"} {
		mustRun(t, "mount", "-t", "tmpfs", "tmpfs", h.root+name)
	}
	mustRun(t, "rm", "-rf", h.path("/etc/resolv.conf"), h.path("/etc/NetworkManager"), h.path("/etc/dhcp"),
		h.path("/etc/systemd"), h.path("/usr/bin/nmcli"))
	for _, name := range []string{"/run/systemd/system", "/run/active", "/etc/steadfast/conf.d"} {
		if err := os.MkdirAll(h.path(name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h.write("/usr/bin/systemctl", fakeSystemctl, 0o755)
	for from, to := range map[string]string{
		"steadfast-host":            "/usr/sbin/steadfast-host",
		"networkmanager-dispatcher": "/usr/lib/NetworkManager/dispatcher.d/50-steadfast",
		"dhclient-enter-hook":       "/usr/lib/steadfast/dhclient-enter-hook",
		"Corefile":                  "/etc/steadfast/Corefile",
	} {
		content, err := os.ReadFile(filepath.Join("../build/systemd", from))
		if err != nil {
			t.Fatal(err)
		}
		h.write(to, string(content), 0o755)
	}
	for name, content := range files {
		h.write(name, content, 0o640)
	}
	return h
}

// mustUnmount takes away what a test mounted, and all in it.
func mustUnmount(t *testing.T, dir string) {
	t.Helper()
	if out, err := exec.Command("umount", "-R", "-l", dir).CombinedOutput(); err != nil {
		t.Errorf("umount: %v\n%s", err, out)
	}
}

func (h *host) path(name string) string { return filepath.Join(h.root, name) }

// write makes a file of somebody's who is not root, or a link.
func (h *host) write(name, content string, mode os.FileMode) {
	h.t.Helper()
	path := h.path(name)
	target, link := strings.CutPrefix(content, "-> ")
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	switch {
	case err == nil && link:
		err = os.Symlink(target, path)
	case err == nil:
		err = os.WriteFile(path, []byte(content), mode)
	}
	if err == nil && mode == 0o640 {
		err = os.Lchown(path, 1, 1)
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) read(name string) string {
	h.t.Helper()
	return h.run(0, "", "cat", name)
}

// run runs a program on the host, and returns what it writes, which must contain says,
// as its exit code must be code.
func (h *host) run(code int, says string, argv ...string) string {
	h.t.Helper()
	return h.runWith(nil, code, says, argv...)
}

// runWith is run with other variables in the environment.
func (h *host) runWith(env []string, code int, says string, argv ...string) string {
	h.t.Helper()
	cmd := exec.CommandContext(h.t.Context(), "chroot", append([]string{h.root}, argv...)...)
	cmd.Env = append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, env...)
	out, _ := cmd.CombinedOutput()
	if got := cmd.ProcessState.ExitCode(); got != code || !strings.Contains(string(out), says) {
		h.t.Fatalf("%q ends with %d, want %d, and says\n%s\nwant %q", argv, got, code, out, says)
	}
	return string(out)
}

// enable runs `steadfast-host enable`.
func (h *host) enable(code int, says string, args ...string) {
	h.t.Helper()
	h.run(code, says, append([]string{"steadfast-host", "enable"}, args...)...)
}

// serve starts the server that the service would start, with the host's Corefile.
func (h *host) serve() {
	h.t.Helper()
	h.mountServer("/coredns")
	p := startBinary(h.t, "chroot", "coredns", h.t.TempDir(), h.root, "/coredns", "-conf", "/etc/steadfast/Corefile")
	p.waitForLog("CoreDNS-", startLimit)
}

// mountServer puts this program, which can be the server, into a place on the host.
func (h *host) mountServer(name string) {
	h.t.Helper()
	self, err := os.Executable()
	if err != nil {
		h.t.Fatal(err)
	}
	h.write(name, "", 0o755)
	mustRun(h.t, "mount", "--bind", self, h.path(name))
}

// etc returns all that is in /etc but folders: by path mode, owner and content.
func (h *host) etc() map[string]string {
	h.t.Helper()
	found := make(map[string]string)
	err := filepath.WalkDir(h.path("/etc"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		var content string
		if info.Mode()&fs.ModeSymlink != 0 {
			content, err = os.Readlink(path)
		} else if info.Mode().IsRegular() {
			var text []byte
			text, err = os.ReadFile(path)
			content = fmt.Sprintf("%x", sha256.Sum256(text))
		}
		stat := info.Sys().(*syscall.Stat_t)
		found[strings.TrimPrefix(path, h.root)] = fmt.Sprintf("%v %d:%d %s", info.Mode(), stat.Uid, stat.Gid, content)
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return found
}
