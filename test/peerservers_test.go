package test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/miekg/dns"
)

// peer is a DNS server as others wrote it.
type peer struct {
	transports []string // on which it serves
	signed     bool     // it returns the zone's signatures to who sets DO
	lacks      string   // what of the zone or of DNS it cannot do, in words
	// command writes the server's configuration and returns what starts it, in
	// the foreground, with its log on stderr.
	command func(s *peerServer) []string
}

var peers = map[string]peer{
	"unbound": {
		transports: []string{"udp", "tcp", "tls", "https"},
		signed:     true,
		command:    unboundCommand,
	},
	"bind": {
		transports: []string{"udp", "tcp", "tls", "https"},
		signed:     true,
		command:    bindCommand,
	},
	"dnsmasq": {
		transports: []string{"udp", "tcp"},
		lacks: "DoT, DoH and DoQ; SOA, NS and DNSSEC records of its own, so its denials have no SOA and DO changes nothing; " +
			"a CNAME whose target it does not know",
		command: dnsmasqCommand,
	},
	"kresd": {
		transports: []string{"udp", "tcp", "tls", "https"},
		signed:     true,
		lacks:      "zone files: it resolves the zone from the CoreDNS beside it, from its cache the second time",
		command:    kresdCommand,
	},
	"coredns": {
		transports: []string{"udp", "tcp", "tls", "https", "quic"},
		signed:     true,
		command:    corednsCommand,
	},
}

// peerSite is what all peers of a test share.
type peerSite struct {
	dir        string // any user can read it
	plain      string // the zone's file
	signed     string // the same, signed
	trust      string // the DS record of the signed zone
	certs      certificates
	authority  string      // an address that serves the signed zone, for peers that only resolve
	other      *peerServer // serves the zone on every transport, and another answer to who
	otherPlain string      // its zone's file
}

// publicDir returns a directory for files that servers read which run as another
// user.
func publicDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	// What TempDir makes stands in a directory for this user alone.
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func newPeerSite(t testing.TB) *peerSite {
	t.Helper()
	s := &peerSite{dir: publicDir(t)}
	s.plain = writeFile(t, s.dir, "plain.zone", peerRecords(peerWho))
	s.otherPlain = writeFile(t, s.dir, "other.zone", peerRecords(otherWho))
	s.signed, s.trust = signZone(t, s.dir, s.plain)
	s.certs = newCertificates(t, s.dir)
	s.authority = startServer(t, fmt.Sprintf(`.:{PORT1} {
		bind 127.0.0.1
		file %s peers.test
	}`, s.signed)).addr()
	s.other = s.start(t, "the other", peer{
		transports: peers["coredns"].transports,
		command: func(p *peerServer) []string {
			p.zone = s.otherPlain
			return corednsCommand(p)
		},
	})
	return s
}

// peerServer is a running peer.
type peerServer struct {
	*process
	t     testing.TB
	name  string
	peer  peer
	site  *peerSite
	dir   string         // the server's own, where it may write
	zone  string         // the file that it serves
	ports map[string]int // transport → port; UDP and TCP share one
	argv  []string
}

// start starts a peer and returns once it answers on all its transports.
func (s *peerSite) start(t testing.TB, name string, p peer) *peerServer {
	t.Helper()
	plain := freePort(t)
	server := &peerServer{
		t: t, name: name, peer: p, site: s, dir: publicDir(t), zone: s.plain,
		ports: map[string]int{"udp": plain, "tcp": plain},
	}
	if p.signed {
		server.zone = s.signed
	}
	for _, transport := range p.transports {
		if server.ports[transport] == 0 {
			server.ports[transport] = freePort(t)
		}
	}
	server.argv = p.command(server)
	if os.Geteuid() == 0 {
		if err := os.Chown(server.dir, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	server.run()
	return server
}

// addr is where the peer serves over a transport.
func (s *peerServer) addr(transport string) string { return loopbackAddr(s.ports[transport]) }

// run starts the peer's process, the first time or again.
func (s *peerServer) run() {
	s.t.Helper()
	if s.argv[0] == "coredns" {
		s.process = startProcess(s.t, "coredns", s.dir, s.argv[1:]...)
	} else {
		s.process = startProgram(s.t, s.dir, s.argv...)
	}
	for _, transport := range s.peer.transports {
		s.waitUntilServing(transport)
	}
}

// signal sends sig to all of the peer's processes.
func (s *peerServer) signal(sig syscall.Signal) {
	if s.cmd.SysProcAttr.Setpgid {
		if err := syscall.Kill(-s.Pid(), sig); err != nil {
			s.t.Errorf("send %v to the processes of %s: %v", sig, s.name, err)
		}
		return
	}
	s.Signal(sig)
}

func (s *peerServer) waitUntilServing(transport string) {
	s.t.Helper()
	waitFor(s.t, startLimit, s.name+" over "+transport, func() error {
		select {
		case <-s.done:
			s.t.Fatalf("%s ended: %v", s.name, s.err)
		default:
		}
		a := newAsker(transport, s.addr(transport), s.site.certs.client)
		defer a.close()
		reply, err := a.ask(new(dns.Msg).SetQuestion("host."+peerOrigin, dns.TypeA))
		if err == nil && len(reply.Answer) == 0 {
			err = errors.New(dns.RcodeToString[reply.Rcode])
		}
		return err
	})
}

// nobody is the user and the group that own nothing, on every Debian.
const nobody = 65534

// startProgram starts a program of this machine, by root as nobody, so that a
// server needs no privilege and can hurt nothing. It ends with the test.
func startProgram(t testing.TB, dir string, argv ...string) *process {
	t.Helper()
	path, err := exec.LookPath(argv[0])
	if err != nil { // a user's PATH may lack it
		path = filepath.Join("/usr/sbin", argv[0])
	}
	p := &process{t: t, name: argv[0], done: make(chan struct{})}
	p.cmd = exec.Command(path, argv[1:]...)
	p.cmd.Dir = dir
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	// In a group of its own, because dnsmasq has a process for each TCP connection.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if os.Geteuid() == 0 {
		p.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s (test/run installs it): %v", argv[0], err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(p.end)
	return p
}

func unboundCommand(s *peerServer) []string {
	config := fmt.Sprintf(`server:
	directory: %[1]q
	chroot: ""
	username: ""
	pidfile: ""
	use-syslog: no
	logfile: ""
	verbosity: 1
	num-threads: 1
	# Its default of 10 is less than what the test's clients have open at once, and
	# it then closes connections that were used a moment ago.
	incoming-num-tcp: 100
	interface: 127.0.0.1@%[2]d
	interface: 127.0.0.1@%[3]d
	interface: 127.0.0.1@%[4]d
	tls-port: %[3]d
	https-port: %[4]d
	tls-service-key: %[5]q
	tls-service-pem: %[6]q
	trust-anchor: %[7]q
	# It resolves names of the test's zone and no others: nothing leaves loopback,
	# and the probes, for the root, are refused at once.
	local-zone: "." refuse
	local-zone: "peers.test." transparent
remote-control:
	control-enable: no
auth-zone:
	name: "peers.test."
	zonefile: %[8]q
	for-downstream: no
	for-upstream: yes
`, s.dir, s.ports["udp"], s.ports["tls"], s.ports["https"], s.site.certs.key, s.site.certs.cert, s.site.trust, s.zone)
	return []string{"unbound", "-d", "-p", "-c", writeFile(s.t, s.dir, "unbound.conf", config)}
}

func bindCommand(s *peerServer) []string {
	config := fmt.Sprintf(`options {
	directory %[1]q;
	pid-file none;
	session-keyfile none;
	listen-on-v6 { none; };
	listen-on port %[2]d { 127.0.0.1; };
	listen-on port %[3]d tls ours { 127.0.0.1; };
	listen-on port %[4]d tls ours http default { 127.0.0.1; };
	recursion no;
	dnssec-validation no;
	notify no;
};
tls ours { key-file %[5]q; cert-file %[6]q; };
controls { };
zone "peers.test" { type primary; file %[7]q; };
`, s.dir, s.ports["udp"], s.ports["tls"], s.ports["https"], s.site.certs.key, s.site.certs.cert, s.zone)
	return []string{"named", "-g", "-n", "1", "-c", writeFile(s.t, s.dir, "named.conf", config)}
}

func dnsmasqCommand(s *peerServer) []string {
	// On the command line, because lines of its file may not be as long as a TXT
	// record over 1232 octets.
	options := []string{
		"keep-in-foreground", "log-facility=-", "pid-file=", "no-resolv", "no-hosts", "no-poll",
		"bind-interfaces", "listen-address=127.0.0.1", fmt.Sprintf("port=%d", s.ports["udp"]),
		"local=/peers.test/", "local-ttl=300",
	}
	for _, rr := range parseRecords(s.t, peerRecords(peerWho)) {
		options = append(options, dnsmasqRecord(s.t, rr)...)
	}
	argv := []string{"dnsmasq", "--conf-file=/dev/null"}
	for _, option := range options {
		argv = append(argv, "--"+option)
	}
	return argv
}

// dnsmasqRecord returns the option that gives dnsmasq a record, if one can.
func dnsmasqRecord(t testing.TB, rr dns.RR) []string {
	t.Helper()
	name := strings.TrimSuffix(rr.Header().Name, ".")
	below, wild := strings.CutPrefix(name, "*.")
	switch rr := rr.(type) {
	case *dns.SOA, *dns.NS:
		return nil
	case *dns.A:
		if wild {
			return []string{"address=/" + below + "/" + rr.A.String()}
		}
		return []string{"host-record=" + name + "," + rr.A.String()}
	case *dns.AAAA:
		return []string{"host-record=" + name + "," + rr.AAAA.String()}
	case *dns.CNAME:
		return []string{"cname=" + name + "," + strings.TrimSuffix(rr.Target, ".")}
	case *dns.MX:
		return []string{fmt.Sprintf("mx-host=%s,%s,%d", name, strings.TrimSuffix(rr.Mx, "."), rr.Preference)}
	}
	packed := make([]byte, dns.MaxMsgSize)
	end, err := dns.PackRR(rr, packed, 0, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	owner := make([]byte, dns.MaxMsgSize)
	ownerEnd, err := dns.PackDomainName(rr.Header().Name, owner, 0, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	rdata := packed[ownerEnd+10 : end] // behind type, class, TTL and length
	return []string{fmt.Sprintf("dns-rr=%s,%d,%x", name, rr.Header().Rrtype, rdata)}
}

func kresdCommand(s *peerServer) []string {
	host, port, err := net.SplitHostPort(s.site.authority)
	if err != nil {
		s.t.Fatal(err)
	}
	config := fmt.Sprintf(`net.ipv6 = false
net.listen('127.0.0.1', %d, { kind = 'dns' })
net.listen('127.0.0.1', %d, { kind = 'tls' })
net.listen('127.0.0.1', %d, { kind = 'doh2' })
net.tls(%q, %q)
cache.size = 10 * MB
trust_anchors.remove('.')
trust_anchors.add(%q)
modules.unload('ta_update')
modules.unload('ta_signal_query')
modules.unload('priming')
modules.unload('detect_time_skew')
policy.add(policy.suffix(policy.FORWARD('%s@%s'), policy.todnames({'peers.test.'})))
-- Nothing leaves loopback, and the probes, for the root, are refused at once.
policy.add(policy.all(policy.REFUSE))
`, s.ports["udp"], s.ports["tls"], s.ports["https"], s.site.certs.cert, s.site.certs.key, s.site.trust, host, port)
	return []string{"kresd", "-n", "-c", writeFile(s.t, s.dir, "kresd.conf", config), s.dir}
}

func corednsCommand(s *peerServer) []string {
	var corefile strings.Builder
	for transport, scheme := range peerSchemes {
		if transport == "udp" || !slices.Contains(s.peer.transports, transport) {
			continue
		}
		fmt.Fprintf(&corefile, "%s://.:%d {\n\tbind 127.0.0.1\n\tfile %s peers.test\n", scheme, s.ports[transport], s.zone)
		if scheme != "dns" {
			fmt.Fprintf(&corefile, "\ttls %s %s\n", s.site.certs.cert, s.site.certs.key)
		}
		corefile.WriteString("}\n")
	}
	return []string{"coredns", "-conf", writeFile(s.t, s.dir, "Corefile", corefile.String())}
}

// peerSchemes are the words of a Corefile for the transports.
var peerSchemes = map[string]string{"udp": "dns", "tcp": "dns", "tls": "tls", "https": "https", "quic": "quic"}
