package test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// podManifest is a pod as it is once a kubelet runs it.
func podManifest(namespace, name, address string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s}
spec: {containers: [{name: main, image: none}]}
status: {phase: Running, podIP: %s, podIPs: [{ip: %s}]}
`, name, namespace, address, address)
}

// serviceManifest is a service with an address.
func serviceManifest(namespace, name, address string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %s, namespace: %s}
spec: {clusterIP: %s, ports: [{name: http, port: 80}]}
`, name, namespace, address)
}

// churn changes what stands in the cluster, and waits until every replica says so.
func (c *cluster) churn(t *testing.T, replicas []*clusterServer) {
	all := func(name, want string) {
		t.Helper()
		for _, replica := range replicas {
			replica.waitUntil(name, dns.TypeA, want)
		}
	}
	// One address goes from pod to pod, as addresses do.
	const address = "10.244.0.150"
	for i := range 10 {
		namespace, other := "shop", "bank"
		if i%2 == 1 {
			namespace, other = other, namespace
		}
		pod, label := fmt.Sprintf("churn-%d", i), strings.ReplaceAll(address, ".", "-")
		name := label + "." + namespace + ".pod.cluster.local."
		c.api.create(podManifest(namespace, pod, address))
		all(name, name+" A "+address)
		all(label+"."+other+".pod.cluster.local.", "NXDOMAIN")
		c.api.remove("Pod", namespace, pod)
		all(name, "NXDOMAIN")
	}
	const service = "soon.shop.svc.cluster.local."
	all(service, "NXDOMAIN")
	c.api.create(serviceManifest("shop", "soon", "10.96.1.50"))
	all(service, service+" A 10.96.1.50")
	c.api.remove("Service", "shop", "soon")
	all(service, "NXDOMAIN")

	const endpoint = "db-0.db.shop.svc.cluster.local."
	slice := "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices/db-1"
	for _, address := range []string{"10.244.0.31", "10.244.0.21"} {
		c.api.patch(slice, `endpoints: [{addresses: [`+address+`], hostname: db-0, conditions: {ready: true}}, `+
			`{addresses: [10.244.0.22], hostname: db-1, conditions: {ready: true}}]`)
		all(endpoint, endpoint+" A "+address)
	}
}

// outageNames are asked for while the API server is away.
var outageNames = map[string]string{
	"web.shop.svc.cluster.local.":         "web.shop.svc.cluster.local. A " + webOfShop,
	"web.bank.svc.cluster.local.":         "web.bank.svc.cluster.local. A " + webOfBank,
	"db-0.db.shop.svc.cluster.local.":     "db-0.db.shop.svc.cluster.local. A 10.244.0.21",
	"outside.shop.svc.cluster.local.":     "outside.shop.svc.cluster.local. CNAME world.example. world.example. A 192.0.2.7",
	"10-244-0-12.bank.pod.cluster.local.": "10-244-0-12.bank.pod.cluster.local. A 10.244.0.12",
	"nobody.shop.svc.cluster.local.":      "NXDOMAIN",
	"db01.":                               "db01. CNAME db01.corp.example. db01.corp.example. A 192.0.2.8",
	"www.world.example.":                  "www.world.example. A 192.0.2.7",
}

// outage kills the API server. Those that knew the cluster go on, one that starts
// then serves the rest of the world, and all follow when it is back.
func (c *cluster) outage(t *testing.T, replicas []*clusterServer) {
	for _, replica := range replicas {
		for name, want := range outageNames {
			replica.waitUntil(name, dns.TypeA, want)
		}
	}
	c.api.kill()
	over := time.Now().Add(*outageTime)
	late := c.startReplica(t, searchWithDomain)
	for name, want := range map[string]string{
		"web.shop.svc.cluster.local.": "SERVFAIL", // not NXDOMAIN, which would be kept
		"db01.":                       outageNames["db01."],
		"www.world.example.":          outageNames["www.world.example."],
	} {
		if got, err := late.says(name, dns.TypeA); err != nil || got != want {
			t.Errorf("one that starts without the API server says of %s %q, %v, want %q", name, got, err, want)
		}
	}
	if httpOK("http://"+late.address+":8181/ready") == nil {
		t.Error("one that starts without the API server is ready")
	}
	asked := 0
	waitFor(t, *outageTime+startLimit, "the end of the outage", func() error {
		for _, replica := range replicas {
			for name, want := range outageNames {
				if got, err := replica.says(name, dns.TypeA); err != nil || got != want {
					t.Errorf("during the outage, %s: %q, %v, want %q", name, got, err, want)
				}
				asked++
			}
		}
		if t.Failed() || !time.Now().Before(over) {
			return nil
		}
		return errors.New("it goes on")
	})
	t.Logf("%d questions answered during the outage", asked)

	c.api.start()
	const service = "late.bank.svc.cluster.local."
	c.api.create(serviceManifest("bank", "late", "10.96.2.60"))
	for _, replica := range append(replicas, late) {
		replica.waitUntil(service, dns.TypeA, service+" A 10.96.2.60")
	}
	waitFor(t, apiLimit, "the replica that started late to be ready", func() error {
		return httpOK("http://" + late.address + ":8181/ready")
	})
	checkAnswers(t, late)
}
