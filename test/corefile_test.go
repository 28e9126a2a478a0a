package test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/miekg/dns"
)

// The machines that the Corefiles of corefiles/ expect around them. They are the
// only addresses that a test here talks to, in a network that it has for itself.
const (
	wildGateway = "198.51.100.1"  // this machine, on the cable to each of the others
	wildFirst   = "198.51.100.61" // of /etc/resolv.conf
	wildSecond  = "198.51.100.62" // of /etc/resolv.conf
	wildCluster = "10.104.51.7"   // the Service kube-dns-upstream of NodeLocal DNSCache
)

// wild are the Corefiles that others write, as they are found in a cluster: file in
// corefiles/ → what has to be there, and what is asked.
var wild = map[string]wildCase{
	"kubeadm": {asks: inCluster},
	"eks":     {asks: inCluster},
	"aks":     {asks: inCluster}, // its two imports find no file
	"rke2":    {asks: inCluster},
	"k3s": {
		files: map[string]string{
			"NodeHosts":          "192.0.2.11 node1\n",
			"custom/lab.server":  "lab.example:53 {\n    forward . " + wildSecond + "\n}\n",
			"custom/an.override": "log . {\n    class error\n}\n",
		},
		asks: append([]wildAsk{
			{"node1.", dns.TypeA, "node1. A 192.0.2.11"},
			{"www.lab.example.", dns.TypeA, "www.lab.example. A 192.0.2.7"},
		}, inCluster...),
	},
	"openshift": {
		port: "5353",
		asks: append([]wildAsk{{"www.corp.example.", dns.TypeA, "www.corp.example. A 192.0.2.7"}}, inCluster...),
	},
	"nodelocal-force-tcp": {
		addresses: []string{"169.254.20.10", "10.96.0.10"},
		metrics:   "9253",
		asks: []wildAsk{
			{"db.default.svc.cluster.local.", dns.TypeA, "db.default.svc.cluster.local. A 192.0.2.7"},
			{"how.default.svc.cluster.local.", dns.TypeTXT, `how.default.svc.cluster.local. TXT "tcp"`},
			{"how.96.10.in-addr.arpa.", dns.TypeTXT, `how.96.10.in-addr.arpa. TXT "tcp"`},
			{"how.example.org.", dns.TypeTXT, `how.example.org. TXT "udp"`},
			{"www.corp.example.", dns.TypeA, "www.corp.example. A 192.0.2.7"},
		},
	},
	"nodelocal-prefer-udp": {
		addresses: []string{"169.254.20.10", "10.96.0.10"},
		metrics:   "9253",
		asks: []wildAsk{
			{"db.default.svc.cluster.local.", dns.TypeA, "db.default.svc.cluster.local. A 192.0.2.7"},
			{"how.default.svc.cluster.local.", dns.TypeTXT, `how.default.svc.cluster.local. TXT "udp"`},
			{"how.example.org.", dns.TypeTXT, `how.example.org. TXT "udp"`},
		},
	},
}

// inCluster is what a cluster's DNS has to know, see kubeObjects.
var inCluster = []wildAsk{
	{"db.default.svc.cluster.local.", dns.TypeA, "db.default.svc.cluster.local. A 10.96.0.42"},
	{"no.default.svc.cluster.local.", dns.TypeA, "NXDOMAIN"},
	{"www.example.org.", dns.TypeA, "www.example.org. A 192.0.2.7"},
}

type wildCase struct {
	files     map[string]string // what stands beside the Corefile: path → content
	addresses []string          // it listens at; none is 127.0.0.1
	port      string            // it listens on; "" is 53
	metrics   string            // port of its metrics; "" is 9153
	asks      []wildAsk
}

type wildAsk struct {
	name  string
	qtype uint16
	want  string // as of answerText
}

// flavours are the two ways over: a Corefile in which one word is changed, and a
// program that needs no change.
var flavours = map[string]func(corefile string) string{
	"standard": func(corefile string) string { return forwardWord.ReplaceAllString(corefile, "${1}healthforward") },
	"compat":   func(corefile string) string { return corefile },
}

// forwardWord is the directive forward, and neither a part of a word nor the end of
// a line.
var forwardWord = regexp.MustCompile(`(?m)^(\s*)forward\b`)

// compatEnv tells the process that alone starts where the program is, which the
// first one has built.
const compatEnv = "STEADFAST_TEST_COMPAT"

func TestCorefilesInTheWild(t *testing.T) {
	if os.Getenv(compatEnv) == "" {
		program, err := compatProgram()
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv(compatEnv, program)
	}
	files, err := filepath.Glob("corefiles/*")
	if err != nil || len(files) != len(wild) {
		t.Errorf("corefiles/ holds %q (%v), want what the table names: %q", files, err, slices.Sorted(maps.Keys(wild)))
	}
	// Each runs in a process of its own and waits most of the time, for lameduck. So
	// they run at the same time, however few -parallel allows.
	places := make(chan struct{}, 6)
	var all sync.WaitGroup
	for file, tc := range wild {
		for flavour, rewrite := range flavours {
			all.Go(func() {
				places <- struct{}{}
				defer func() { <-places }()
				t.Run(file+" "+flavour, func(t *testing.T) {
					if alone(t) {
						playWild(t, file, tc, flavour, rewrite)
					}
				})
			})
		}
	}
	all.Wait()
}

// playWild starts a Corefile on a flavour and lets happen to it what must be
// survived.
func playWild(t *testing.T, file string, tc wildCase, flavour string, rewrite func(string) string) {
	first := startNeighbour(t, wildFirst)
	startNeighbour(t, wildSecond)
	startNeighbour(t, wildCluster)
	resolvConf := filepath.Join(t.TempDir(), "resolv.conf")
	writeFiles(t, filepath.Dir(resolvConf), map[string]string{
		"resolv.conf": "nameserver " + wildFirst + "\nnameserver " + wildSecond + "\n",
	})
	mustRun(t, "mount", "--bind", resolvConf, "/etc/resolv.conf")
	for _, addr := range tc.addresses {
		mustRun(t, "ip", "address", "add", addr+"/32", "dev", "lo")
	}

	forgiveRace(t, knownRace)
	s, corefile := startWild(t, file, tc, flavour, rewrite)
	tc.check(t, "from the start on")
	metrics, err := httpGet("http://127.0.0.1:" + withDefault(tc.metrics, "9153") + "/metrics")
	if err != nil || !strings.Contains(metrics, "coredns_healthforward_upstream_state{") {
		t.Errorf("healthforward does not forward: %v", err)
	}

	s.Signal(syscall.SIGUSR1)
	s.waitForLog("Reloading complete", startLimit)
	tc.check(t, "after SIGUSR1")

	first.Signal(syscall.SIGSTOP)
	tc.checkNew(t, "dead", "while an upstream is silent")

	s.Signal(syscall.SIGTERM)
	if strings.Contains(corefile, "lameduck") {
		s.waitForLog("Going into lameduck mode", startLimit)
		tc.checkNew(t, "duck", "after SIGTERM, in lameduck")
	}
	if err := s.Wait(endLimit); err != nil {
		t.Errorf("after SIGTERM: %v, want exit status 0", err)
	}
}

// startWild starts a Corefile with what the flavour makes of it. Two things are
// changed besides, for there is no API server that everybody trusts and nobody
// writes into /etc.
func startWild(t *testing.T, file string, tc wildCase, flavour string, rewrite func(string) string) (s *server, corefile string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("corefiles", file))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for path, content := range tc.files {
		writeFiles(t, dir, map[string]string{path: rewrite(content)})
	}
	corefile = rewrite(string(text))
	if got, want := strings.Count(corefile, "healthforward"), strings.Count(string(text), "forward"); flavour == "standard" && got != want {
		t.Fatalf("the word is changed %d times, want %d:\n%s", got, want, corefile)
	}
	corefile = strings.ReplaceAll(corefile, "/etc/coredns/", dir+"/")
	corefile = strings.Replace(corefile, "pods insecure", "pods insecure\nendpoint "+startKubeAPI(t), 1)
	program := os.Getenv(compatEnv)
	if flavour == "standard" {
		if program, err = os.Executable(); err != nil {
			t.Fatal(err)
		}
	}
	return startServerOf(t, program, dir, corefile), corefile
}

// knownRace is in CoreDNS: kubernetes sets the logger of the Kubernetes libraries
// when a Corefile is read, also while those of the former one still log.
const knownRace = "k8s.io/klog/v2.SetLoggerWithOptions"

// forgiveRace lets the race detector overlook races in a function, in the processes
// that are started from now on.
func forgiveRace(t *testing.T, function string) {
	t.Helper()
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{"races": "race:" + function + "\n"})
	t.Setenv("GORACE", os.Getenv("GORACE")+" suppressions="+filepath.Join(dir, "races"))
}

// check asks everything, at every address.
func (tc wildCase) check(t *testing.T, when string) {
	t.Helper()
	for _, server := range tc.servers() {
		for _, a := range tc.asks {
			if got := answerText(ask(t, server, a.name, a.qtype)); got != a.want {
				t.Errorf("%s: %s says of %s %s %q, want %q", when, server, a.name, dns.TypeToString[a.qtype], got, a.want)
			}
		}
	}
}

// checkNew asks for names that cannot be known yet.
func (tc wildCase) checkNew(t *testing.T, word, when string) {
	t.Helper()
	for i := range 20 {
		name := fmt.Sprintf("%s%d.example.org.", word, i)
		if got := answerText(ask(t, tc.servers()[0], name, dns.TypeA)); got != name+" A 192.0.2.7" {
			t.Errorf("%s: %s A = %q", when, name, got)
		}
	}
}

func (tc wildCase) servers() []string {
	addresses := tc.addresses
	if len(addresses) == 0 {
		addresses = []string{"127.0.0.1"}
	}
	var servers []string
	for _, addr := range addresses {
		servers = append(servers, addr+":"+withDefault(tc.port, "53"))
	}
	return servers
}

func withDefault(s, standard string) string {
	if s == "" {
		return standard
	}
	return s
}

// writeFiles writes files below dir, with the folders they are in.
func writeFiles(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for path, content := range files {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func init() { roles["neighbour"] = runNeighbour }

// runNeighbour is a name server at every address of its network. It has one for
// every name, and says in a TXT record how it was asked.
func runNeighbour() {
	for _, network := range []string{"tcp", "udp"} {
		handler := dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) {
			m := new(dns.Msg).SetReply(r)
			header := dns.RR_Header{Name: r.Question[0].Name, Rrtype: r.Question[0].Qtype, Class: dns.ClassINET, Ttl: 60}
			switch header.Rrtype {
			case dns.TypeA:
				m.Answer = []dns.RR{&dns.A{Hdr: header, A: []byte{192, 0, 2, 7}}}
			case dns.TypeTXT:
				m.Answer = []dns.RR{&dns.TXT{Hdr: header, Txt: []string{network}}}
			}
			_ = w.WriteMsg(m) // who asked may be gone
		})
		srv := &dns.Server{Addr: ":53", Net: network, Handler: handler}
		srv.NotifyStartedFunc = func() { fmt.Println("serving", network) }
		go func() {
			fmt.Println(srv.ListenAndServe())
			os.Exit(1)
		}()
	}
	select {} // until a signal ends the process
}

// startNeighbour starts a name server on a machine of its own, as far as one kernel
// has several: in a network of its own, at addr, with a cable to this one's. At an
// address of this machine port 53 would be the server's own.
func startNeighbour(t *testing.T, addr string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := startBinary(t, "unshare", "neighbour", t.TempDir(), "--net", self)
	p.waitForLog("serving udp", startLimit)
	p.waitForLog("serving tcp", startLimit)
	pid := fmt.Sprint(p.Pid())
	inside := []string{"nsenter", "--net=/proc/" + pid + "/ns/net"}
	for _, argv := range [][]string{
		{"ip", "link", "add", "to" + pid, "type", "veth", "peer", "name", "eth0", "netns", pid},
		{"ip", "address", "add", wildGateway, "peer", addr, "dev", "to" + pid},
		{"ip", "link", "set", "to" + pid, "up"},
		append(inside, "ip", "address", "add", addr, "peer", wildGateway, "dev", "eth0"),
		append(inside, "ip", "link", "set", "eth0", "up"),
	} {
		mustRun(t, argv...)
	}
	return p
}

// compatProgram returns the path of a program in the flavour compat, which is linked
// once for all tests that need it. The path is that of an open file, which has no
// other name any more: it is good as long as this process lives, and leaves nothing
// behind.
var compatProgram = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "steadfast-compat-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "coredns")
	// As make does, so that the packages are those of the image's program.
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "./build/compat")
	build.Dir = ".."
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%v: %w\n%s", build.Args, err, out)
	}
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open %s: %w", path, err)
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd), nil
})
