package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// What is in the network that a test's host is plugged into. Its resolvers answer
// addressA and addressB.
const (
	netPort   = "lan0" // the host's interface
	netServer = "198.51.100.1"
	resolverA = "198.51.100.11"
	resolverB = "198.51.100.12"
	netName   = "lan" // the name of its namespace
)

// netOf is what a DHCP server tells: which resolver there is, and where names are.
type netOf struct{ resolver, domain string }

var (
	netBefore = netOf{resolverA, "before.lab.test"}
	netAfter  = netOf{resolverB, "after.lab.test"}
)

// localNet is a network with a DHCP server, that this host is plugged into.
type localNet struct {
	t    testing.TB
	dir  string
	dhcp *process
	a, b *upstream
}

// startLocalNet starts a network in a namespace of its own, and gives this host an
// interface in it and directories in which daemons may write: /etc, but for what it
// says of DHCP and DNS, as it is, /run and /var/lib empty. The test must be alone.
func startLocalNet(t testing.TB) *localNet {
	t.Helper()
	l := &localNet{t: t, dir: publicDir(t)}
	ownEtc(t)
	for _, dir := range []string{"/run", "/var/lib"} {
		must(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"))
	}
	mustRun(t, "ip", "netns", "add", netName)
	mustRun(t, "ip", "link", "add", netPort, "type", "veth", "peer", "name", "port0", "netns", netName)
	mustRun(t, "ip", "-n", netName, "link", "set", "lo", "up")
	mustRun(t, "ip", "-n", netName, "link", "set", "port0", "up")
	for _, addr := range []string{netServer, resolverA, resolverB} {
		mustRun(t, "ip", "-n", netName, "address", "add", addr+"/24", "dev", "port0")
	}
	l.a, l.b = l.startResolver(resolverA, addressA), l.startResolver(resolverB, addressB)
	l.tell(netBefore)
	return l
}

// ownEtc puts a directory in the place of /etc in which everything can be changed.
func ownEtc(t testing.TB) {
	t.Helper()
	machines := publicDir(t)
	must(t, syscall.Mount("/etc", machines, "", syscall.MS_BIND, ""))
	t.Cleanup(func() { must(t, syscall.Unmount(machines, syscall.MNT_DETACH)) })
	must(t, syscall.Mount("tmpfs", "/etc", "tmpfs", 0, "mode=755"))
	entries, err := os.ReadDir(machines)
	must(t, err)
	for _, entry := range entries {
		switch entry.Name() {
		case "resolv.conf", "dhcp", "NetworkManager", "systemd", "passwd", "group", "dbus-1":
		default:
			must(t, os.Symlink(filepath.Join(machines, entry.Name()), filepath.Join("/etc", entry.Name())))
		}
	}
	// systemd-resolved wants a user of this name, who may be anybody.
	for _, name := range []string{"passwd", "group"} {
		content, err := os.ReadFile(filepath.Join(machines, name))
		must(t, err)
		entry := map[string]string{"passwd": "systemd-resolve:x:0:0::/:/bin/false\n", "group": "systemd-resolve:x:0:\n"}[name]
		writeFile(t, "/etc", name, string(content)+entry)
	}
}

// in starts a program in the network.
func (l *localNet) in(argv ...string) *process {
	l.t.Helper()
	return startBinary(l.t, "ip", filepath.Base(argv[0]), l.dir, append([]string{"netns", "exec", netName}, argv...)...)
}

// startResolver starts the role upstream in the network.
func (l *localNet) startResolver(addr, answers string) *upstream {
	l.t.Helper()
	self, err := os.Executable()
	must(l.t, err)
	listen := addr + ":53"
	u := &upstream{
		process: startBinary(l.t, "ip", "upstream", l.dir, "netns", "exec", netName, self, listen, answers),
		listen:  listen, address: answers,
	}
	u.waitForLog("serving udp", startLimit)
	u.waitForLog("serving tcp", startLimit)
	return u
}

// tell starts dnsmasq, in the place of the one before, with something else to tell.
// Leases are kept, and are renewed after three seconds.
func (l *localNet) tell(what netOf) {
	l.t.Helper()
	if l.dhcp != nil {
		l.dhcp.end()
	}
	l.dhcp = l.in(program("dnsmasq"), "--conf-file=/dev/null", "--keep-in-foreground", "--log-facility=-", "--pid-file=", "--user=", "--group=",
		"--port=0", "--interface=port0", "--bind-interfaces", "--no-ping", "--dhcp-authoritative",
		"--dhcp-range=198.51.100.100,198.51.100.110,2m", "--dhcp-leasefile="+filepath.Join(l.dir, "leases"),
		"--dhcp-option=option:T1,3", "--dhcp-option=option:dns-server,"+what.resolver, "--dhcp-option=option:domain-search,"+what.domain)
	l.dhcp.waitForLog("started", startLimit)
}

// program finds a program that a user's PATH may lack.
func program(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	return filepath.Join("/usr/sbin", name)
}

// unpacked is where test/run unpacks what it cannot install without its taking over
// this machine's network.
const unpacked = "../dist/debian"

// startUnpacked starts a program that is unpacked only, with the libraries beside it.
func (l *localNet) startUnpacked(name string, args ...string) *process {
	l.t.Helper()
	path := glob(l.t, "usr/sbin/"+name, "lib/systemd/"+name, "usr/lib/systemd/"+name)
	if len(path) == 0 {
		l.t.Fatalf("there is no %s in %s (test/run puts it there)", name, unpacked)
	}
	libraries := strings.Join(glob(l.t, "usr/lib/*-linux-gnu*", "usr/lib/*-linux-gnu*/systemd", "lib/*-linux-gnu*"), ":")
	return startBinary(l.t, "env", name, l.dir, append([]string{"LD_LIBRARY_PATH=" + libraries, path[0]}, args...)...)
}

// glob returns what is unpacked.
func glob(t testing.TB, patterns ...string) []string {
	t.Helper()
	root, err := filepath.Abs(unpacked)
	must(t, err)
	var found []string
	for _, pattern := range patterns {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		must(t, err)
		found = append(found, paths...)
	}
	return found
}

// corefileOf is a server block that takes both its resolvers and its search list from
// a file.
func corefileOf(placeholder, path string) string {
	return fmt.Sprintf(`.:{%[1]s} {
		bind 127.0.0.1
		errors
		searchexpand %[2]s {
			budget 10000 10000
			wildcard allow
		}
		healthforward . %[2]s
	}
	`, placeholder, path)
}
