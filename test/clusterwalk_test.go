package test

import (
	"fmt"
	"strings"
	"testing"
)

// clusterVariant is a way to configure the cluster's DNS.
type clusterVariant struct {
	// plugin stands in the ConfigMap's Corefile in the place of searchexpand.
	plugin string
	// questions is how many names a pod with the stock list, of ndots:5 and three
	// domains, has to ask for until it has the address of a name outside, by where
	// it asks.
	questions map[string]int
}

// walkPlaces is where pods ask from, and whom.
var walkPlaces = map[string]struct {
	number    int // of the pod; 0 for one with the node's network
	nodeLocal bool
	replica   int
}{
	"a pod":                                {number: shopPod},
	"a pod, at the other replica":          {number: shopPod, replica: 1},
	"a pod in the other namespace":         {number: bankPod},
	"a pod behind a node-local cache":      {number: shopPod, nodeLocal: true},
	"a pod with hostNetwork":               {},
	"a pod that kubernetes has no idea of": {number: strangerPod},
}

var clusterVariants = map[string]clusterVariant{
	"searchexpand as shipped": {
		plugin: searchWithDomain,
		questions: map[string]int{
			"a pod": 1, "a pod, at the other replica": 1, "a pod in the other namespace": 1,
			"a pod behind a node-local cache": 1, "a pod with hostNetwork": 1, "a pod that kubernetes has no idea of": 1,
		},
	},
	"the list that kubernetes has for a pod": {
		plugin: "searchexpand @kubernetes corp.example {\n        trigger first\n    }",
		questions: map[string]int{
			"a pod": 1, "a pod, at the other replica": 1, "a pod in the other namespace": 1,
			"a pod behind a node-local cache": 4, "a pod with hostNetwork": 4, "a pod that kubernetes has no idea of": 4,
		},
	},
	"CoreDNS's autopath in its place": {
		plugin: "autopath @kubernetes",
		questions: map[string]int{
			"a pod": 1, "a pod, at the other replica": 1, "a pod in the other namespace": 1,
			"a pod behind a node-local cache": 4, "a pod with hostNetwork": 4, "a pod that kubernetes has no idea of": 4,
		},
	},
}

// walkClients are those with a resolver library that follows a search list.
var walkClients = []string{"glibc", "musl", "Go", "c-ares"}

// playVariant counts questions. Each look-up is of a name of its own, so that its
// questions can be told from others and no cache answers.
func (c *cluster) playVariant(t *testing.T, variant clusterVariant) {
	replicas := c.startReplicas(t, variant.plugin)
	nodeLocal := startClusterServer(t, nil, nodeLocalAddress, fmt.Sprintf(nodeLocalCorefile, replicas[0].address, replicas[1].address))
	if len(variant.questions) != len(walkPlaces) {
		t.Errorf("%d places have a row, want %d", len(variant.questions), len(walkPlaces))
	}
	for name, want := range variant.questions {
		t.Run(name, func(t *testing.T) {
			place := walkPlaces[name]
			server := replicas[place.replica]
			if place.nodeLocal {
				server = nodeLocal
			}
			namespace := "shop"
			if place.number == bankPod {
				namespace = "bank"
			}
			for _, client := range walkClients {
				c.labels++
				label := fmt.Sprintf("n%d", c.labels)
				looked := runClientIn(t, c.pods[place.number], clientKinds[client], c.programs,
					podResolvConf(namespace, server.address), []string{label + ".world.example"})
				if got := looked[label+".world.example ip4"]; strings.Join(got.addresses, " ") != "192.0.2.7" {
					t.Errorf("%s: %s %v", client, got.says, got.addresses)
				}
				if asked := server.asked(label, "A"); len(asked) != want {
					t.Errorf("%s asked for %v, want %d names", client, asked, want)
				}
			}
		})
	}
}
