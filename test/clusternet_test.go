package test

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/miekg/dns"
)

// Addresses of the cluster's one node. Pods have 10.244.0.N and fd00:10:244::N, on
// a bridge that has the node's own address.
const (
	nodeAddress      = "10.244.0.1"
	corporateNumber  = 53 // a resolver outside, which the node's resolv.conf names
	nodeLocalAddress = "169.254.20.10"
)

// podNetwork is the network of a pod, or the node's own if it is the zero value:
// the words in front of a program that runs in it.
type podNetwork []string

func podAddress(number int) string { return "10.244.0." + strconv.Itoa(number) }

// prepareNode makes the test's own network that of a node.
func prepareNode(t testing.TB) {
	t.Helper()
	for _, command := range []string{
		"link add cni0 type bridge",
		"link set cni0 up",
		"address add " + nodeAddress + "/24 dev cni0",
		"address add fd00:10:244::1/64 dev cni0 nodad",
		"address add " + kubernetesService + "/32 dev lo", // there is no kube-proxy
		"address add " + nodeLocalAddress + "/32 dev lo",
	} {
		mustRun(t, append([]string{"ip"}, strings.Fields(command)...)...)
	}
}

// startPodNetwork makes the network of a pod, which ends with the test.
func startPodNetwork(t testing.TB, number int) podNetwork {
	t.Helper()
	ours, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	// A network lives as long as a process in it.
	holder := startBinary(t, "unshare", "the network of "+podAddress(number), t.TempDir(), "--net", "sleep", "infinity")
	waitFor(t, startLimit, "a network for "+podAddress(number), func() error {
		theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", holder.Pid()))
		if err == nil && theirs == ours {
			err = errors.New("it is still the node's")
		}
		return err
	})
	network := podNetwork{"nsenter", "--target", strconv.Itoa(holder.Pid()), "--net", "--"}
	link := "pod" + strconv.Itoa(number)
	mustRun(t, "ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(holder.Pid()))
	mustRun(t, "ip", "link", "set", link, "master", "cni0", "up")
	for _, command := range []string{
		"link set lo up",
		"link set eth0 up",
		"address add " + podAddress(number) + "/24 dev eth0",
		"address add fd00:10:244::" + strconv.Itoa(number) + "/64 dev eth0 nodad",
		"route add default via " + nodeAddress,
	} {
		mustRun(t, slices.Concat(network, []string{"ip"}, strings.Fields(command))...)
	}
	return network
}

// clusterServer is a coredns with a log line for each question of a client.
type clusterServer struct {
	*process
	address string
}

const logQuestions = `log . "asked {remote} {name} {type}"`

var clusterQuestion = regexp.MustCompile(`(?m)\basked (\S+) (\S+) (\S+)$`)

// startClusterServer starts coredns in a network and returns once it answers at
// address.
func startClusterServer(t testing.TB, network podNetwork, address, corefile string) *clusterServer {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	argv := append(slices.Clone(network), self, "-conf", writeFile(t, dir, "Corefile", corefile))
	s := &clusterServer{startBinary(t, argv[0], "coredns", dir, argv[1:]...), address}
	s.waitForLog("CoreDNS-", startLimit)
	waitFor(t, startLimit, "an answer from "+s.addr(), func() error {
		_, err := exchange(s.addr(), aliveQuestion())
		return err
	})
	// All end at once, before any is waited for: each has a lameduck of 5 s.
	t.Cleanup(func() { s.Signal(syscall.SIGTERM) })
	return s
}

func (s *clusterServer) addr() string { return s.address + ":53" }

// asked returns the names that clients have asked for with a question of this type,
// each once, if the name begins with label. A question is logged behind its answer, so
// that one more is waited for.
func (s *clusterServer) asked(label, qtype string) []string {
	s.t.Helper()
	last := label + "-asked.cluster.local."
	waitFor(s.t, apiLimit, last+" in the log of "+s.address, func() error {
		if _, err := s.says(last, dns.TypeA); err != nil {
			return err
		}
		if !strings.Contains(s.Log(), last) {
			return errors.New("it is not there")
		}
		return nil
	})
	var names []string
	for _, match := range clusterQuestion.FindAllStringSubmatch(s.Log(), -1) {
		if match[3] == qtype && strings.HasPrefix(match[2], label+".") && !slices.Contains(names, match[2]) {
			names = append(names, match[2])
		}
	}
	return names
}

// says is what the server answers, in one line; a name or an address whose PTR
// record is asked for.
func (s *clusterServer) says(name string, qtype uint16) (string, error) {
	if qtype == dns.TypePTR {
		var err error
		if name, err = dns.ReverseAddr(name); err != nil {
			return "", err
		}
	}
	reply, err := exchange(s.addr(), new(dns.Msg).SetQuestion(dns.Fqdn(name), qtype))
	if err != nil {
		return "", err
	}
	// The plugin loadbalance shuffles, and leaves aliases in front.
	order := func(rr dns.RR) string {
		if rr.Header().Rrtype == dns.TypeCNAME {
			return ""
		}
		return rr.String()
	}
	slices.SortFunc(reply.Answer, func(a, b dns.RR) int { return strings.Compare(order(a), order(b)) })
	return answerText(reply), nil
}

// waitUntil waits until the server answers a question in these words.
func (s *clusterServer) waitUntil(name string, qtype uint16, want string) {
	s.t.Helper()
	waitFor(s.t, apiLimit, fmt.Sprintf("%s of %s at %s", want, name, s.address), func() error {
		got, err := s.says(name, qtype)
		if err == nil && got != want {
			err = fmt.Errorf("it says %q", got)
		}
		return err
	})
}

// bePodOfCluster puts what a kubelet puts into each of the DNS's pods where the
// processes of this test find it: the account's token, the API server's address and
// the node's resolv.conf. The mounts are the test's own.
func bePodOfCluster(t *testing.T, api *apiServer) {
	t.Helper()
	const account = "/var/run/secrets/kubernetes.io/serviceaccount"
	mustRun(t, "mount", "-t", "tmpfs", "tmpfs", "/var/run/")
	if err := os.MkdirAll(account, 0o755); err != nil {
		t.Fatal(err)
	}
	authority, err := os.ReadFile(api.authority())
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, account, "ca.crt", string(authority))
	writeFile(t, account, "token", api.token("kube-system", "coredns"))
	t.Setenv("KUBERNETES_SERVICE_HOST", kubernetesService)
	t.Setenv("KUBERNETES_SERVICE_PORT", kubernetesPort)
	path := writeFile(t, t.TempDir(), "resolv.conf", "nameserver "+podAddress(corporateNumber)+"\n")
	mustRun(t, "mount", "--bind", path, "/etc/resolv.conf")
}
