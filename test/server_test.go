package test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// server is a running coredns.
type server struct {
	*process
	corefile string         // the file's path: change it, then send SIGUSR1
	ports    map[string]int // "PORT1" → what stands for it
}

// startServer runs the real coredns on corefile and returns once it serves. Each
// placeholder {PORT1}, {PORT2}, … stands for a free port of its own on 127.0.0.1;
// {PORT1} is the one that the server answers DNS on, if it is there. The Corefile
// must bind 127.0.0.1.
func startServer(t testing.TB, corefile string, args ...string) *server {
	t.Helper()
	return startServerIn(t, t.TempDir(), corefile, args...)
}

// startServerIn is startServer with a working directory that holds the files
// which the Corefile names.
func startServerIn(t testing.TB, dir, corefile string, args ...string) *server {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return startServerOf(t, self, dir, corefile, args...)
}

// startServerOf is startServerIn with a program that is built otherwise.
func startServerOf(t testing.TB, program, dir, corefile string, args ...string) *server {
	t.Helper()
	return startServerAs(t, program, "coredns", dir, corefile, args...)
}

// startServerAsNobody is startServer for who may read what everybody may.
func startServerAsNobody(t testing.TB, corefile string) *server {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return startServerAs(t, self, corednsAsNobody, publicDir(t), corefile)
}

func startServerAs(t testing.TB, program, role, dir, corefile string, args ...string) *server {
	t.Helper()
	text, ports := withPorts(t, corefile)
	path := writeFile(t, publicDir(t), "Corefile", text)
	s := &server{
		process:  startBinary(t, program, role, dir, append([]string{"-conf", path}, args...)...),
		corefile: path,
		ports:    ports,
	}
	// coremain says its name when every listener is open and every OnStartup
	// has run.
	s.waitForLog("CoreDNS-", startLimit)
	if _, ok := ports["PORT1"]; ok {
		waitFor(t, startLimit, "an answer from "+s.addr(), func() error {
			_, err := exchange(s.addr(), aliveQuestion())
			return err
		})
	}
	return s
}

// aliveQuestion is one that CoreDNS answers (with BADVERS) before any plugin sees
// it, so that asking it touches no upstream and no cache.
func aliveQuestion() *dns.Msg {
	m := new(dns.Msg).SetQuestion("alive.test.", dns.TypeTXT).SetEdns0(1232, false)
	m.IsEdns0().SetVersion(1)
	return m
}

// addr is where {PORT1} is.
func (s *server) addr() string { return s.addrOf("PORT1") }

// addrOf is where a placeholder's port is.
func (s *server) addrOf(placeholder string) string {
	s.t.Helper()
	port, ok := s.ports[placeholder]
	if !ok {
		s.t.Fatalf("the Corefile has no {%s}", placeholder)
	}
	return loopbackAddr(port)
}

var placeholder = regexp.MustCompile(`\{(PORT[0-9]+)\}`)

// withPorts puts a free port in the place of each placeholder.
func withPorts(t testing.TB, text string) (string, map[string]int) {
	t.Helper()
	ports := make(map[string]int)
	text = placeholder.ReplaceAllStringFunc(text, func(match string) string {
		name := strings.Trim(match, "{}")
		if _, ok := ports[name]; !ok {
			ports[name] = freePort(t)
		}
		return strconv.Itoa(ports[name])
	})
	return text, ports
}

func loopbackAddr(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// Ports for servers come from below the range from which Linux takes the ports
// of outgoing sockets and of listeners on port 0 (32768 and up), so that nobody
// takes one between the moment it was found free and the server's start.
const firstPort, lastPort = 20000, 29999

var portsGiven struct {
	mu   sync.Mutex
	used map[int]bool // so that no two servers of this process get the same
}

// freePort returns a port that nobody listens on, by UDP or TCP, and that it has
// not returned before.
func freePort(t testing.TB) int {
	t.Helper()
	portsGiven.mu.Lock()
	defer portsGiven.mu.Unlock()
	if portsGiven.used == nil {
		portsGiven.used = make(map[int]bool)
	}
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		if !portsGiven.used[port] && isFree(port) {
			portsGiven.used[port] = true
			return port
		}
	}
	t.Fatalf("no free port from %d to %d", firstPort, lastPort)
	return 0
}

// isFree reports whether port can be listened on at every address.
func isFree(port int) bool {
	addr := ":" + strconv.Itoa(port)
	u, err := net.ListenPacket("udp", addr)
	if err != nil {
		return false
	}
	defer u.Close()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// ask sends a question by UDP and ends the test if no reply comes. Options change
// the query before it goes out.
func ask(t testing.TB, addr, name string, qtype uint16, options ...func(*dns.Msg)) *dns.Msg {
	t.Helper()
	q := new(dns.Msg).SetQuestion(dns.Fqdn(name), qtype)
	for _, option := range options {
		option(q)
	}
	reply, err := exchange(addr, q)
	if err != nil {
		t.Fatalf("ask %s for %s %s: %v", addr, name, dns.TypeToString[qtype], err)
	}
	return reply
}

// askFrom is ask from another address of this host.
func askFrom(t testing.TB, client, addr, name string, qtype uint16) *dns.Msg {
	t.Helper()
	c := &dns.Client{Dialer: &net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(client)}}, Timeout: 5 * time.Second}
	reply, _, err := c.Exchange(new(dns.Msg).SetQuestion(dns.Fqdn(name), qtype), addr)
	if err != nil {
		t.Fatalf("ask %s from %s for %s %s: %v", addr, client, name, dns.TypeToString[qtype], err)
	}
	return reply
}

// exchange sends q by UDP, and by TCP if the answer is truncated, as a stub
// resolver does. It waits for 5 s, glibc's time-out.
func exchange(addr string, q *dns.Msg) (*dns.Msg, error) {
	client := &dns.Client{Timeout: 5 * time.Second, UDPSize: 4096}
	reply, _, err := client.Exchange(q, addr)
	if err == nil && reply.Truncated {
		client.Net = "tcp"
		reply, _, err = client.Exchange(q, addr)
	}
	return reply, err
}

func TestServerAnswersAndEndsBySIGTERM(t *testing.T) {
	s := startServer(t, `.:{PORT1} {
		bind 127.0.0.1
		whoami
		errors
	}
	.:{PORT2} {
		bind 127.0.0.1
		template ANY ANY {
			rcode NXDOMAIN
		}
	}`)
	if got := ask(t, s.addr(), "example.org", dns.TypeA); got.Rcode != dns.RcodeSuccess || len(got.Extra) == 0 {
		t.Errorf("{PORT1} answers %v, want whoami's", got)
	}
	if got := ask(t, s.addrOf("PORT2"), "example.org", dns.TypeA); got.Rcode != dns.RcodeNameError {
		t.Errorf("{PORT2} answers %s, want NXDOMAIN", dns.RcodeToString[got.Rcode])
	}
	s.Signal(syscall.SIGTERM)
	if err := s.Wait(endLimit); err != nil {
		t.Errorf("after SIGTERM: %v, want exit status 0", err)
	}
	if _, err := exchange(s.addr(), aliveQuestion()); err == nil {
		t.Errorf("%s answers after the process's end", s.addr())
	}
}

func TestVersionNamesCoreDNSAndOurs(t *testing.T) {
	p := startProcess(t, "coredns", t.TempDir(), "-version")
	if err := p.Wait(startLimit); err != nil {
		t.Fatal(err)
	}
	want := regexp.MustCompile(`(?m)^CoreDNS-\d+\.\d+\.\d+\+steadfast\.\d+\.\d+\.\d+\S*\n\w+/\w+, go\d`)
	if !want.MatchString(p.Log()) {
		t.Errorf("coredns -version prints\n%s\nwant a match of %s", p.Log(), want)
	}
}

func TestPluginsListsOurs(t *testing.T) {
	p := startProcess(t, "coredns", t.TempDir(), "-plugins")
	if err := p.Wait(startLimit); err != nil {
		t.Fatal(err)
	}
	plugins := strings.Fields(p.Log())
	for _, want := range []string{"searchexpand", "healthforward", "forward"} {
		if !slices.Contains(plugins, want) {
			t.Errorf("coredns -plugins prints %v, want %s among them", plugins, want)
		}
	}
}

func TestBadCorefileEndsTheProcessWithAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "Corefile")
	if err := os.WriteFile(path, []byte(". {\n\tno_such_directive\n}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, "coredns", t.TempDir(), "-conf", path)
	var exit interface{ ExitCode() int }
	if err := p.Wait(startLimit); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("process ended with %v, want exit status 1", err)
	}
	if want := fmt.Sprintf("%s:2", path); !strings.Contains(p.Log(), want) {
		t.Errorf("log %q does not name the line, %s", p.Log(), want)
	}
}
