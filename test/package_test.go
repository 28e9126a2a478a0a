package test

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// packagedFiles are what every package puts on a host, with the modes that matter:
// NetworkManager runs no dispatcher script that others than root may write.
var packagedFiles = map[string]string{
	"/etc/steadfast/Corefile":                           "-rw-r--r--",
	"/etc/steadfast/conf.d":                             "drwxr-xr-x",
	"/usr/lib/NetworkManager/dispatcher.d/50-steadfast": "-rwxr-xr-x",
	"/usr/lib/steadfast/coredns":                        "-rwxr-xr-x",
	"/usr/lib/steadfast/dhclient-enter-hook":            "-rw-r--r--",
	"/usr/sbin/steadfast-host":                          "-rwxr-xr-x",
	"/usr/share/doc/steadfast/README.md":                "-rw-r--r--",
	"/usr/share/doc/steadfast/copyright":                "-rw-r--r--",
	"/usr/share/doc/steadfast/healthforward.md":         "-rw-r--r--",
	"/usr/share/doc/steadfast/searchexpand.md":          "-rw-r--r--",
}

// packageKinds are how to look into a package, and what it has of its own.
var packageKinds = map[string]struct {
	pattern string
	list    func(t *testing.T, file string) map[string]string
	own     map[string]string
}{
	"Debian":       {"*.deb", listDeb, map[string]string{"/lib/systemd/system/steadfast.service": "-rw-r--r--"}},
	"Fedora":       {"*.rpm", listRPM, map[string]string{"/usr/lib/systemd/system/steadfast.service": "-rw-r--r--"}},
	"Alpine Linux": {"*.apk", listAPK, map[string]string{"/etc/init.d/steadfast": "-rwxr-xr-x"}},
}

func TestPackages(t *testing.T) {
	dist := t.TempDir()
	build := exec.CommandContext(t.Context(), "make", "packages", "DIST="+dist)
	build.Dir = ".."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("make packages: %v\n%s", err, out)
	}
	found := func(t *testing.T, pattern string) string {
		t.Helper()
		files, err := filepath.Glob(filepath.Join(dist, "packages", pattern))
		if err != nil || len(files) != 1 {
			t.Fatalf("make packages made %q, want one %s: %v", files, pattern, err)
		}
		return files[0]
	}
	for name, kind := range packageKinds {
		t.Run(name, func(t *testing.T) {
			want := maps.Clone(packagedFiles)
			maps.Copy(want, kind.own)
			if got := kind.list(t, found(t, kind.pattern)); !maps.Equal(got, want) {
				t.Errorf("the package holds\n%v\nwant\n%v", got, want)
			}
		})
	}
	t.Run("Debian keeps what the operator changed", func(t *testing.T) {
		conffiles := mustRun(t, "dpkg-deb", "--info", found(t, "*.deb"), "conffiles")
		if got, want := strings.TrimSpace(conffiles), "/etc/steadfast/Corefile"; got != want {
			t.Errorf("conffiles %q, want %q", got, want)
		}
	})
	t.Run("on a host with systemd", func(t *testing.T) { checkHost(t, found(t, "*.deb")) })
}

// listDeb returns what a .deb puts on a host: modes by path, all of it root's. Of
// folders it names those in /etc alone.
func listDeb(t *testing.T, file string) map[string]string {
	t.Helper()
	return listing(t, mustRun(t, "dpkg-deb", "--contents", file), 1)
}

func listRPM(t *testing.T, file string) map[string]string {
	t.Helper()
	return listing(t, mustRun(t, "rpm", "--dbpath", t.TempDir(), "-qlvp", file), 3)
}

// listing reads lines such as those of ls -l, in which the path is the last word and
// the owner is in a column.
func listing(t *testing.T, text string, owner int) map[string]string {
	t.Helper()
	files := make(map[string]string)
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 5 {
			continue
		}
		if words[owner] != "root/root" && words[owner] != "root" {
			t.Errorf("not root's: %s", line)
		}
		keep(files, words[len(words)-1], words[0])
	}
	return files
}

// keep notes a file, or a folder that is not there because of what is in it.
func keep(files map[string]string, name, mode string) {
	name = "/" + strings.Trim(strings.TrimPrefix(name, "."), "/")
	if strings.HasPrefix(mode, "d") && name != "/etc/steadfast/conf.d" {
		return
	}
	files[name] = mode
}

// listAPK reads an .apk, which is two compressed archives, one behind the other; the
// first is about the package.
func listAPK(t *testing.T, file string) map[string]string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	unpacked, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	for archive := tar.NewReader(unpacked); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(header.Name, ".") {
			continue
		}
		if header.Uid != 0 || header.Gid != 0 {
			t.Errorf("%s is not root's", header.Name)
		}
		mode := fs.FileMode(header.Mode).Perm().String()
		if header.Typeflag == tar.TypeDir {
			mode = "d" + mode[1:]
		}
		keep(files, header.Name, mode)
	}
}

// hostScripts are the programs that nobody compiles.
var hostScripts = []string{
	"../build/systemd/steadfast-host", "../build/systemd/networkmanager-dispatcher", "../build/systemd/dhclient-enter-hook",
	"../build/systemd/steadfast.openrc", "../build/systemd/container/entrypoint", "../build/systemd/package/postinstall.sh",
	"../build/systemd/package/preremove.sh", "../build/systemd/package/postremove.sh", "host/checks.sh", "host/systemd.sh",
}

func TestShellScriptsOfHostsAreClean(t *testing.T) {
	for _, name := range hostScripts {
		t.Run(name, func(t *testing.T) {
			out, err := exec.CommandContext(t.Context(), "shellcheck", name).CombinedOutput()
			if err != nil {
				t.Errorf("shellcheck: %v (test/run installs it)\n%s", err, out)
			}
		})
	}
}

// exposure is how much of the host the unit may leave open, in tenths: below 2.0.
const exposure = 19

func TestUnitLeavesLittleOfTheHostOpen(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", "security", "--offline=true", "--no-pager",
		fmt.Sprintf("--threshold=%d", exposure), "../build/systemd/steadfast.service").CombinedOutput()
	if err != nil {
		t.Errorf("systemd-analyze security: %v (test/run installs it)\n%s", err, out)
	}
}

func TestPackageMakesAUserWhereSystemdMakesNone(t *testing.T) {
	if !alone(t) {
		return
	}
	for name, row := range map[string]struct {
		systemctl string
		users     int
	}{
		"systemd 234":           {"#!/bin/sh\necho 'systemd 234 (234)'\n", 1},
		"systemd 235":           {"#!/bin/sh\necho 'systemd 235 (235-1.fc27)'\n", 0},
		"no systemd, as Alpine": {"", 1},
	} {
		t.Run(name, func(t *testing.T) {
			h := packageHost(t)
			h.write("/usr/bin/systemctl", row.systemctl, 0o755)
			if row.systemctl == "" {
				h.run(0, "", "rm", "-f", "/usr/bin/systemctl", "/bin/systemctl")
			}
			for range 2 { // the second time as an upgrade
				h.run(0, "", "sh", "/postinstall.sh")
			}
			if got := strings.Count(h.read("/etc/passwd"), "\nsteadfast:"); got != row.users {
				t.Errorf("%d users steadfast, want %d", got, row.users)
			}
		})
	}
}

func TestPackageThatGoesLeavesTheHostWithNames(t *testing.T) {
	if !alone(t) {
		return
	}
	for name, row := range map[string]struct {
		args []string
		gone bool
	}{
		"dpkg removes it":  {[]string{"remove"}, true},
		"dpkg upgrades it": {[]string{"upgrade", "0.2.0-1"}, false},
		"rpm removes it":   {[]string{"0"}, true},
		"rpm upgrades it":  {[]string{"1"}, false},
		"apk removes it":   {[]string{"0.1.0-r1"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := packageHost(t)
			h.run(0, "enabled", "steadfast-host", "enable", "--no-test")
			h.run(0, "", append([]string{"sh", "/preremove.sh"}, row.args...)...)
			h.run(0, "", "sh", "/postremove.sh")
			if got := h.read("/etc/resolv.conf") == givenServers; got != row.gone {
				t.Errorf("resolv.conf is given back: %v, want %v", got, row.gone)
			}
		})
	}
}

// packageHost is a host with the scripts of the package.
func packageHost(t *testing.T) *host {
	t.Helper()
	h := newHost(t, map[string]string{"/etc/resolv.conf": givenServers})
	for _, name := range []string{"postinstall.sh", "preremove.sh", "postremove.sh"} {
		content, err := os.ReadFile(filepath.Join("../build/systemd/package", name))
		if err != nil {
			t.Fatal(err)
		}
		h.write("/"+name, string(content), 0o755)
	}
	return h
}
