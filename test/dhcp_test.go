package test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// TestTheResolversOfADHCPLeaseAreFollowed: dhclient writes /etc/resolv.conf, and the
// server, run by nobody, takes its upstreams and its search list from there.
func TestTheResolversOfADHCPLeaseAreFollowed(t *testing.T) {
	t.Parallel()
	if !alone(t) {
		return
	}
	network := startLocalNet(t)
	writeFile(t, "/etc", "resolv.conf", "")
	server := startServerAsNobody(t, corefileOf("PORT1", "/etc/resolv.conf"))
	if got := answerText(ask(t, server.addr(), "host.lab.test", dns.TypeA)); got != "SERVFAIL" {
		t.Errorf("before there is a lease: %s, want SERVFAIL", got)
	}
	network.startDHClient()

	network.checkFollowed(map[string]string{"/etc/resolv.conf": server.addr()})
}

// TestTheFilesOfNetworkManagerAndSystemdResolvedAreFollowed: as on desktops,
// NetworkManager tells systemd-resolved, and both write a file in which it is not
// systemd-resolved's stub that is named.
func TestTheFilesOfNetworkManagerAndSystemdResolvedAreFollowed(t *testing.T) {
	t.Parallel()
	if !alone(t) {
		return
	}
	const (
		byNetworkManager = "/run/NetworkManager/no-stub-resolv.conf"
		byResolved       = "/run/systemd/resolve/resolv.conf"
	)
	network := startLocalNet(t)
	must(t, os.Symlink("../run/systemd/resolve/stub-resolv.conf", "/etc/resolv.conf"))
	server := startServerAsNobody(t, corefileOf("PORT1", byNetworkManager)+corefileOf("PORT2", byResolved))
	network.startBus()
	must(t, os.MkdirAll("/run/systemd", 0o755))
	network.startUnpacked("systemd-resolved").waitForLog("Using system hostname", startLimit)
	network.startNetworkManager()

	network.checkFollowed(map[string]string{byNetworkManager: server.addr(), byResolved: server.addrOf("PORT2")})
}

// checkFollowed waits for the network's first word on its resolvers to be heeded at
// each address, by file, then for its second, while names are asked for, and checks
// that none is lost though the first resolver is gone by then.
func (l *localNet) checkFollowed(servers map[string]string) {
	t := l.t
	t.Helper()
	for _, addr := range servers {
		waitForCompletion(t, addr, netBefore, addressA)
	}
	loads := make(map[string]*load)
	for path, addr := range servers {
		loads[path] = startLoad(t, addr, "", 100)
		loads[path].waitForQueries(100)
	}
	l.tell(netAfter)
	told := time.Now()
	for path := range servers {
		waitFor(t, startLimit, resolverB+" in "+path, func() error {
			text, err := os.ReadFile(path)
			if err == nil && !strings.Contains(string(text), resolverB) {
				err = errors.New("not yet")
			}
			return err
		})
		written := time.Now()
		loads[path].waitUntilAnsweredBy(addressB, startLimit)
		waitForCompletion(t, servers[path], netAfter, addressB)
		t.Logf("%s: written %v after the server had it, followed after %v more", path,
			written.Sub(told).Round(time.Millisecond), time.Since(written).Round(time.Millisecond))
	}
	<-time.After(removedAnswers)
	settled := time.Now()
	l.a.process.end()
	for path, load := range loads {
		load.waitForQueries(100)
		for _, a := range load.since(settled) {
			if a.address == addressA {
				t.Errorf("%s: an answer by the resolver that has left", path)
				break
			}
		}
		load.checkNoneLost()
	}
}

// waitForCompletion waits until a bare name is completed in a network's domain and
// answered by its resolver.
func waitForCompletion(t testing.TB, addr string, network netOf, address string) {
	t.Helper()
	full := "some." + network.domain + "."
	want := fmt.Sprintf("some. CNAME %s %s A %s", full, full, address)
	waitFor(t, startLimit, want+" from "+addr, func() error {
		if got := answerText(ask(t, addr, "some", dns.TypeA)); got != want {
			return errors.New(got)
		}
		return nil
	})
}

func (l *localNet) startDHClient() {
	l.t.Helper()
	config := writeFile(l.t, l.dir, "dhclient.conf", `timeout 30;
retry 1;
initial-interval 1;
request subnet-mask, domain-name-servers, domain-search;
`)
	startBinary(l.t, program("dhclient"), "dhclient", l.dir, "-4", "-d", "-cf", config,
		"-lf", filepath.Join(l.dir, "dhclient.leases"), "-pf", filepath.Join(l.dir, "dhclient.pid"), netPort)
}

// startBus starts D-Bus's system bus, on which everything is allowed.
func (l *localNet) startBus() {
	l.t.Helper()
	must(l.t, os.MkdirAll("/run/dbus", 0o755))
	config := writeFile(l.t, l.dir, "bus.conf", `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-BUS Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
	<type>system</type>
	<listen>unix:path=/run/dbus/system_bus_socket</listen>
	<auth>EXTERNAL</auth>
	<policy context="default">
		<allow user="*"/>
		<allow own="*"/>
		<allow send_destination="*" eavesdrop="true"/>
		<allow eavesdrop="true"/>
	</policy>
</busconfig>
`)
	startBinary(l.t, program("dbus-daemon"), "dbus-daemon", l.dir, "--nofork", "--config-file="+config)
	waitFor(l.t, startLimit, "the bus", func() error {
		_, err := os.Stat("/run/dbus/system_bus_socket")
		return err
	})
}

func (l *localNet) startNetworkManager() {
	l.t.Helper()
	// Without a writable /sys it does not wait for udev to announce the interface.
	must(l.t, syscall.Mount("sysfs", "/sys", "sysfs", syscall.MS_RDONLY, ""))
	must(l.t, os.MkdirAll("/run/connections", 0o700))
	connection := writeFile(l.t, "/run/connections", "lan.nmconnection", `[connection]
id=lan
uuid=5f2d7a34-0ad2-4e4c-9d8a-1f0d5f8b7a11
type=ethernet
interface-name=`+netPort+`
[ipv4]
method=auto
[ipv6]
method=disabled
`)
	must(l.t, os.Chmod(connection, 0o600))
	config := writeFile(l.t, "/run", "NetworkManager.conf", `[main]
plugins=keyfile
dns=systemd-resolved
rc-manager=unmanaged
hostname-mode=none
auth-polkit=false
[keyfile]
path=/run/connections
[connectivity]
enabled=false
`)
	must(l.t, os.MkdirAll("/var/lib/NetworkManager", 0o755))
	l.startUnpacked("NetworkManager", "--no-daemon", "--config="+config, "--config-dir=/run/no", "--system-config-dir=/run/no",
		"--intern-config=/run/intern.conf", "--state-file=/run/state", "--pid-file=/run/NetworkManager.pid")
}
