package test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

var outageTime = flag.Duration("cluster.outage", 10*time.Second, "for how long TestRealCluster takes the API server away")

// corporateCorefile is the resolver that the node's resolv.conf names: of the
// company that the node stands in, and of the world.
const corporateCorefile = `. {
	` + logQuestions + `
	errors
	template IN A world.example {
		answer "{{ .Name }} 60 IN A 192.0.2.7"
	}
	template IN A corp.example {
		match "^db01[.]corp[.]example[.]$"
		answer "{{ .Name }} 60 IN A 192.0.2.8"
		fallthrough
	}
	template ANY ANY corp.example {
		match "^db01[.]corp[.]example[.]$"
		authority "corp.example. 60 IN SOA a. b. 1 7200 900 1209600 60"
		fallthrough
	}
	template IN PTR 2.0.192.in-addr.arpa {
		answer "{{ .Name }} 60 IN PTR host.world.example."
	}
	template ANY ANY world.example {
		authority "world.example. 60 IN SOA a. b. 1 7200 900 1209600 60"
	}
	template ANY ANY {
		rcode NXDOMAIN
		authority ". 60 IN SOA a. b. 1 7200 900 1209600 60"
	}
}`

// nodeLocalCorefile is what a node-local cache has for the zones that matter here,
// with the cluster's DNS at two addresses in the place of one.
const nodeLocalCorefile = `cluster.local in-addr.arpa ip6.arpa {
	bind ` + nodeLocalAddress + `
	` + logQuestions + `
	errors
	cache 30
	forward . %[1]s %[2]s {
		force_tcp
	}
}
. {
	bind ` + nodeLocalAddress + `
	` + logQuestions + `
	errors
	cache 30
	forward . /etc/resolv.conf
}`

// cluster is the network, the API server and the servers of one test.
type cluster struct {
	api       *apiServer
	corporate *clusterServer
	programs  *clientPrograms
	pods      map[int]podNetwork // by number; 0 is the node
	dnsPods   int                // how many there were
	labels    int                // how many names were made
}

// TestRealCluster runs this build as the DNS of a cluster with a real API server:
// with the Corefile of build/kubernetes, the account and the rights that kubeadm
// gives, in networks of pods.
func TestRealCluster(t *testing.T) {
	program := needAPIServer(t)
	if !alone(t) {
		return
	}
	c := startCluster(t, program)
	replicas := c.startReplicas(t, searchWithDomain)

	t.Run("every client finds what its namespace says", func(t *testing.T) { c.playPods(t, replicas[0]) })
	t.Run("without a trigger, too", func(t *testing.T) {
		c.playPods(t, c.startReplicas(t, "searchexpand corp.example")[1])
	})
	t.Run("what is asked in full", func(t *testing.T) {
		for _, replica := range replicas {
			checkAnswers(t, replica)
		}
	})
	t.Run("what a look-up costs", func(t *testing.T) {
		for name, variant := range clusterVariants {
			t.Run(name, func(t *testing.T) { c.playVariant(t, variant) })
		}
	})
	t.Run("pods, endpoints and services come and go", func(t *testing.T) { c.churn(t, replicas) })
	t.Run("the API server is away", func(t *testing.T) { c.outage(t, replicas) })
	c.checkNothingLeaked(t)
}

// playPods runs every client in every pod with that server.
func (c *cluster) playPods(t *testing.T, server *clusterServer) {
	for name, kind := range clientKinds {
		for namespace, number := range clientPods {
			t.Run(name+", "+namespace, func(t *testing.T) {
				t.Parallel()
				c.playPod(t, kind, c.pods[number], namespace, server.address)
			})
		}
	}
}

func startCluster(t *testing.T, program string) *cluster {
	t.Helper()
	manifest, err := os.ReadFile("kubernetes/cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	prepareNode(t)
	c := &cluster{api: startAPIServer(t, program)}
	waitFor(t, startLimit, "the namespaces of every cluster", func() error {
		_, err := c.api.request("GET", "/api/v1/namespaces/kube-system", "", "")
		return err
	})
	c.api.create(string(manifest))
	c.programs = buildClients(t)
	c.pods = map[int]podNetwork{0: nil}
	for _, number := range []int{shopPod, bankPod, strangerPod} {
		c.pods[number] = startPodNetwork(t, number)
	}
	bePodOfCluster(t, c.api)
	c.corporate = startClusterServer(t, startPodNetwork(t, corporateNumber), podAddress(corporateNumber), corporateCorefile)
	return c
}

// searchWithDomain is what build/kubernetes ships, with a domain of the reader's own.
const searchWithDomain = "searchexpand corp.example {\n trigger namespace svc.cluster.local\n}"

// startReplicas starts two pods of the cluster's DNS.
func (c *cluster) startReplicas(t *testing.T, plugin string) []*clusterServer {
	t.Helper()
	replicas := []*clusterServer{c.startReplica(t, plugin), c.startReplica(t, plugin)}
	for _, replica := range replicas {
		waitFor(t, apiLimit, "a replica that is ready", func() error { return httpOK("http://" + replica.address + ":8181/ready") })
	}
	return replicas
}

// startReplica starts one pod of the cluster's DNS, which may not be ready yet. It
// has the Corefile that build/kubernetes ships, but for a log, pods that autopath and
// @kubernetes need to be verified, and what stands in the place of searchexpand.
func (c *cluster) startReplica(t *testing.T, plugin string) *clusterServer {
	t.Helper()
	corefile := kubernetesCorefile(t)
	corefile = changed(t, corefile, map[string]string{
		"    errors\n":  "    errors\n    " + logQuestions + "\n",
		shippedSearch:   "    " + plugin + "\n",
		"pods insecure": "pods verified",
	})
	c.dnsPods++
	number := 200 + c.dnsPods
	return startClusterServer(t, startPodNetwork(t, number), podAddress(number), corefile)
}

// podResolvConf is what a kubelet writes.
func podResolvConf(namespace, server string) string {
	return fmt.Sprintf("search %s.svc.cluster.local svc.cluster.local cluster.local\nnameserver %s\noptions ndots:5\n", namespace, server)
}

// The pods that clients run in, by the last number of their addresses; the last is in
// shop, too, but nobody told the API server.
const shopPod, bankPod, strangerPod = 11, 12, 13

// clientPods are the pods in which every client runs, by namespace.
var clientPods = map[string]int{"shop": shopPod, "bank": bankPod}

// podRow is what a name means in a pod.
type podRow struct {
	addresses string // in the order of sortedAddresses; none if it has no address
	canonical string
}

const webOfShop, webOfBank = "10.96.1.1", "10.96.2.1"

// podRows are the names, by the namespace of the pod that looks them up.
var podRows = map[string]map[string]podRow{
	"shop": {
		"web":                        {webOfShop, "web.shop.svc.cluster.local"},
		"web.bank":                   {webOfBank, "web.bank.svc.cluster.local"},
		"web.bank.svc":               {webOfBank, "web.bank.svc.cluster.local"},
		"web.bank.svc.cluster.local": {webOfBank, "web.bank.svc.cluster.local"},
		"api":                        {}, // is in the other namespace
		"api.bank":                   {"10.96.2.2 fd00:96::2", "api.bank.svc.cluster.local"},
		"db":                         {"10.244.0.21 10.244.0.22", "db.shop.svc.cluster.local"},
		"db-1.db":                    {"10.244.0.22", "db-1.db.shop.svc.cluster.local"},
		"outside":                    {"192.0.2.7", "world.example"},
		"10-244-0-12.bank.pod":       {"10.244.0.12", "10-244-0-12.bank.pod.cluster.local"},
		"10-244-0-99.bank.pod":       {},
		"db01":                       {"192.0.2.8", "db01.corp.example"},
		"db01.corp.example":          {"192.0.2.8", "db01.corp.example"},
		"www.world.example":          {"192.0.2.7", "www.world.example"},
		"nobody":                     {},
		"nobody.shop":                {},
	},
	"bank": {
		"web":                  {webOfBank, "web.bank.svc.cluster.local"},
		"web.shop":             {webOfShop, "web.shop.svc.cluster.local"},
		"api":                  {"10.96.2.2 fd00:96::2", "api.bank.svc.cluster.local"},
		"db":                   {},
		"db.shop":              {"10.244.0.21 10.244.0.22", "db.shop.svc.cluster.local"},
		"db-0.db.shop.svc":     {"10.244.0.21", "db-0.db.shop.svc.cluster.local"},
		"outside.shop":         {"192.0.2.7", "world.example"},
		"10-244-0-11.shop.pod": {"10.244.0.11", "10-244-0-11.shop.pod.cluster.local"},
		"db01":                 {"192.0.2.8", "db01.corp.example"},
		"www.world.example":    {"192.0.2.7", "www.world.example"},
		"nobody":               {},
	},
}

// playPod lets a client in a pod look up the names of its namespace's rows.
func (c *cluster) playPod(t *testing.T, kind clientKind, pod podNetwork, namespace, server string) {
	t.Helper()
	rows := podRows[namespace]
	names := slices.Sorted(maps.Keys(rows))
	if kind.ownList {
		// It completes bare names only, and then does not ask for them as they are.
		names = slices.DeleteFunc(names, func(name string) bool {
			return strings.Contains(name, ".") || rows[name].canonical == "db01.corp.example"
		})
	}
	if kind.noList {
		names = slices.DeleteFunc(names, func(name string) bool {
			return strings.Contains(rows[name].canonical, ".cluster.local") && rows[name].canonical != name || rows[name].canonical == "world.example"
		})
	}
	const nobody = "nobody.external.example."
	looked := runClientIn(t, pod, kind, c.programs, podResolvConf(namespace, server), append(names, nobody))
	for _, name := range names {
		for _, family := range []string{"ip", "ip4", "ip6"} {
			got, isAsked := looked[name+" "+family]
			if !isAsked && family == "ip" {
				continue // a client that asks for one type at a time
			}
			want := ofFamily(rows[name].addresses, family)
			if addresses := strings.Join(got.addresses, " "); addresses != want || (got.says == found) != (want != "") {
				t.Errorf("%s %s: %s %q, want %q", name, family, got.says, addresses, want)
			}
			if want != "" && got.canonical != rows[name].canonical {
				t.Errorf("%s %s: canonical name %q, want %q", name, family, got.canonical, rows[name].canonical)
			}
			if rows[name].addresses == "" && got.says != looked[nobody+" "+family].says {
				t.Errorf("%s %s: %s, want %s as of a name that nobody has", name, family, got.says, looked[nobody+" "+family].says)
			}
		}
	}
}

// ofFamily returns those of the addresses that a look-up in one family gives.
func ofFamily(addresses, family string) string {
	return strings.Join(slices.DeleteFunc(strings.Fields(addresses), func(address string) bool {
		return family == "ip4" && strings.Contains(address, ":") || family == "ip6" && !strings.Contains(address, ":")
	}), " ")
}

// checkAnswers asks a replica for what C libraries do not ask for.
func checkAnswers(t *testing.T, replica *clusterServer) {
	t.Helper()
	for _, row := range []struct {
		name  string
		qtype uint16
		want  string
	}{
		{webOfShop, dns.TypePTR, "1.1.96.10.in-addr.arpa. PTR web.shop.svc.cluster.local."},
		{"fd00:96::2", dns.TypePTR, "2." + strings.Repeat("0.", 23) + "6.9.0.0.0.0.d.f.ip6.arpa. PTR api.bank.svc.cluster.local."},
		{"10.244.0.21", dns.TypePTR, "21.0.244.10.in-addr.arpa. PTR db-0.db.shop.svc.cluster.local."},
		{"192.0.2.7", dns.TypePTR, "7.2.0.192.in-addr.arpa. PTR host.world.example."},
		{"_http._tcp.web.shop.svc.cluster.local", dns.TypeSRV, "_http._tcp.web.shop.svc.cluster.local. SRV 0 100 80 web.shop.svc.cluster.local."},
		{"_dns._udp.web.shop.svc.cluster.local", dns.TypeSRV, "_dns._udp.web.shop.svc.cluster.local. SRV 0 100 53 web.shop.svc.cluster.local."},
		{"_dns._tcp.web.shop.svc.cluster.local", dns.TypeSRV, "NXDOMAIN"},
		{"_sql._tcp.db.shop.svc.cluster.local", dns.TypeSRV, "_sql._tcp.db.shop.svc.cluster.local. SRV 0 50 5432 db-0.db.shop.svc.cluster.local. " +
			"_sql._tcp.db.shop.svc.cluster.local. SRV 0 50 5432 db-1.db.shop.svc.cluster.local."},
		{"db01", dns.TypeA, "db01. CNAME db01.corp.example. db01.corp.example. A 192.0.2.8"},
	} {
		if got, err := replica.says(row.name, row.qtype); err != nil || got != row.want {
			t.Errorf("%s %s: %q, %v, want %q", row.name, dns.TypeToString[row.qtype], got, err, row.want)
		}
	}
}

// checkNothingLeaked fails the test if the corporate resolver was asked for a name
// that only the cluster can have, or for a bare one.
func (c *cluster) checkNothingLeaked(t *testing.T) {
	t.Helper()
	questions := clusterQuestion.FindAllStringSubmatch(c.corporate.Log(), -1)
	if len(questions) == 0 {
		t.Errorf("no question seen: the log of %s is not as expected", c.corporate.name)
	}
	for _, match := range questions {
		name, qtype := strings.ToLower(match[2]), match[3]
		bare := dns.CountLabel(name) == 1 && !slices.Contains(neverCompleted, qtype)
		if bare || strings.HasSuffix(name, ".cluster.local.") {
			t.Errorf("the corporate resolver was asked for %s %s", name, qtype)
		}
	}
}
