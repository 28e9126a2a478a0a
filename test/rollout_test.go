package test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// stockDeployments are those that clusters have before this build.
var stockDeployments = map[string]func(t testing.TB) string{
	"kubeadm": func(t testing.TB) string { return kubeadmManifest(t, "CoreDNSDeployment") },
	"coredns/deployment": func(t testing.TB) string {
		return changed(t, kubeadmManifest(t, "CoreDNSDeployment"), map[string]string{
			"  replicas: 2\n": "",
			"    matchLabels:\n      k8s-app: kube-dns\n": "    matchLabels:\n      k8s-app: kube-dns\n      app.kubernetes.io/name: coredns\n",
			"  template:\n    metadata:\n      labels:\n": "  template:\n    metadata:\n      labels:\n        app.kubernetes.io/name: coredns\n",
			"            - ALL\n":                         "            - all\n",
			"            port: liveness-probe\n":          "            port: 8080\n",
			"            port: readiness-probe\n":         "            port: 8181\n",
		})
	},
	"k3s, which keeps no history": func(t testing.TB) string {
		return changed(t, kubeadmManifest(t, "CoreDNSDeployment"), map[string]string{
			"  replicas: 2\n":            "  revisionHistoryLimit: 0\n",
			"path: Corefile\n":           "path: Corefile\n            - key: NodeHosts\n              path: NodeHosts\n",
			"            - ALL\n":        "            - all\n",
			"      dnsPolicy: Default\n": "      dnsPolicy: Default\n      topologySpreadConstraints:\n      - maxSkew: 1\n        topologyKey: kubernetes.io/hostname\n        whenUnsatisfiable: DoNotSchedule\n        labelSelector:\n          matchLabels:\n            k8s-app: kube-dns\n",
		})
	},
}

// changed puts each text in the place of another, which is there once.
func changed(t testing.TB, text string, changes map[string]string) string {
	t.Helper()
	for was, is := range changes {
		if strings.Count(text, was) != 1 {
			t.Fatalf("%q should be there once:\n%s", was, text)
		}
		text = strings.Replace(text, was, is, 1)
	}
	return text
}

// deployment is what is read of one; the rest stays as the API server says it.
type deployment struct {
	Metadata struct {
		UID        string
		Generation int
	}
	Spec map[string]any
}

// template is the pods', which is what a rollout changes and an undone one restores.
func (d deployment) template() map[string]any { return d.Spec["template"].(map[string]any) }

// image and configMap are the two things that have to change together.
func (d deployment) image() string { return d.pod().Containers[0].Image }

func (d deployment) configMap() string {
	for _, volume := range d.pod().Volumes {
		if volume.Name == "config-volume" {
			return volume.ConfigMap.Name
		}
	}
	return ""
}

// podSpec is what is read of a template.
type podSpec struct {
	Containers []podContainer
	Volumes    []struct {
		Name      string
		ConfigMap struct{ Name string }
	}
}

func (d deployment) pod() (pod podSpec) {
	text, err := json.Marshal(d.template()["spec"])
	if err == nil {
		err = json.Unmarshal(text, &pod)
	}
	if err != nil {
		panic(err) // it came from an API server
	}
	return pod
}

func (k *kubectl) deployment() (d deployment) {
	k.t.Helper()
	k.get("deployment coredns", &d)
	return d
}

// create creates a Deployment and returns what removes it, with its history
// and the ConfigMaps of its second steps.
func (k *kubectl) create(manifest string) (remove func()) {
	k.t.Helper()
	writeFile(k.t, k.root, "deployment.yaml", manifest)
	k.run("kubectl create -f deployment.yaml")
	return func() {
		k.run("kubectl -n kube-system delete --wait=false deployment/coredns && kubectl -n kube-system delete replicasets --all" +
			" && kubectl -n kube-system delete configmaps -l app.kubernetes.io/part-of=steadfast")
	}
}

// startController does for the Deployment coredns what the controller of Deployments
// does and kubectl waits for or reads, in a cluster that has none: one ReplicaSet for
// each template, numbered, as many as the Deployment wants kept; and a status as if
// all pods were there at once. It is over when the test is.
func startController(t testing.TB, api *apiServer) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		c := &deploymentController{api: api}
		ticker := time.NewTicker(20 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if err := c.sync(); err != nil && ctx.Err() == nil {
				t.Errorf("the controller: %v", err)
				return
			}
		}
	}()
}

type deploymentController struct {
	api       *apiServer
	seen      int // generation
	revision  int
	templates map[string]map[string]any // of the ReplicaSets, by name
}

const appsPath = "/apis/apps/v1/namespaces/kube-system"

// sync looks at the Deployment once.
func (c *deploymentController) sync() error {
	text, err := c.api.request("GET", appsPath+"/deployments/coredns", "", "")
	if err != nil {
		return err
	}
	var d deployment
	if err := json.Unmarshal([]byte(text), &d); err != nil || d.Metadata.Generation == c.seen {
		return err
	}
	if err := c.number(d); err != nil {
		return err
	}
	replicas := d.Spec["replicas"]
	_, err = c.api.request("PATCH", appsPath+"/deployments/coredns/status", "application/merge-patch+json", asJSON(map[string]any{"status": map[string]any{
		"observedGeneration": d.Metadata.Generation, "replicas": replicas, "updatedReplicas": replicas,
		"readyReplicas": replicas, "availableReplicas": replicas,
	}}))
	c.seen = d.Metadata.Generation
	return err
}

// number gives the Deployment's template the next number: a ReplicaSet that has it
// already is renumbered, as the real controller does.
func (c *deploymentController) number(d deployment) error {
	c.revision++
	numbered := map[string]any{"deployment.kubernetes.io/revision": strconv.Itoa(c.revision)}
	for name, template := range c.templates {
		if reflect.DeepEqual(template, d.template()) {
			_, err := c.api.request("PATCH", appsPath+"/replicasets/"+name, "application/merge-patch+json",
				asJSON(map[string]any{"metadata": map[string]any{"annotations": numbered}}))
			return err
		}
	}
	hash := fmt.Sprintf("h%d", c.revision)
	labels := func(from any) map[string]any {
		labels := maps.Clone(from.(map[string]any))
		labels["pod-template-hash"] = hash
		return labels
	}
	template := maps.Clone(d.template())
	template["metadata"] = map[string]any{"labels": labels(template["metadata"].(map[string]any)["labels"])}
	name := "coredns-" + hash
	_, err := c.api.request("POST", appsPath+"/replicasets", "application/json", asJSON(map[string]any{
		"apiVersion": "apps/v1", "kind": "ReplicaSet",
		"metadata": map[string]any{
			"name": name, "labels": template["metadata"].(map[string]any)["labels"], "annotations": numbered,
			"ownerReferences": []any{map[string]any{
				"apiVersion": "apps/v1", "kind": "Deployment", "name": "coredns", "uid": d.Metadata.UID, "controller": true,
			}},
		},
		"spec": map[string]any{
			"replicas": 0, "template": template,
			"selector": map[string]any{"matchLabels": labels(d.Spec["selector"].(map[string]any)["matchLabels"])},
		},
	}))
	if d.Spec["revisionHistoryLimit"] == 0.0 {
		for old := range c.templates {
			if _, err := c.api.request("DELETE", appsPath+"/replicasets/"+old, "", ""); err != nil {
				return err
			}
		}
		c.templates = nil
	}
	if c.templates == nil {
		c.templates = make(map[string]map[string]any)
	}
	c.templates[name] = d.template()
	return err
}

func asJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps and strings only
	}
	return string(text)
}

// Commands of README.md.
const (
	stepOne = "kubectl -n kube-system set image deployment/coredns coredns=" + compatImage
	stepTwo = "kubectl apply --server-side --force-conflicts -k build/kubernetes/deployment"
	undo    = "kubectl -n kube-system rollout undo deployment/coredns"
	status  = "kubectl -n kube-system rollout status --timeout=60s deployment/coredns"
	save    = "kubectl -n kube-system get deployment coredns -o yaml > build/kubernetes/rollback/before.yaml"
	putBack = "kubectl replace -k build/kubernetes/rollback"

	fullImage   = "registry.example/steadfast/coredns:v1.15.0-steadfast.1"
	compatImage = fullImage + "-compat"
)

// playSteps goes both steps, and back from each.
func (k *kubectl) playSteps(api *apiServer, stock string) {
	k.t.Cleanup(k.create(stock))
	startController(k.t, api)
	var before, after map[string]any
	k.get("configmap coredns", &before)
	k.run(status)
	k.run(save)
	was := k.deployment()

	k.step(stepOne)
	one := k.deployment()
	if one.image() != compatImage || one.configMap() != "coredns" {
		k.t.Errorf("step 1: image %s with ConfigMap %s", one.image(), one.configMap())
	}
	if was.Spec["revisionHistoryLimit"] == 0.0 {
		if out, err := k.try(undo); err == nil {
			k.t.Errorf("step 1 is undone without a history: %s", out)
		}
	} else {
		k.step(undo)
		k.is("step 1, undone", was)
		k.step(stepOne)
		k.is("step 1 again", one)
	}

	k.step(stepTwo)
	two := k.deployment()
	k.checkStepTwo(was, two)
	k.step(undo)
	k.is("step 2, undone", one)
	k.step(stepTwo)
	k.is("step 2 again", two)

	k.step(putBack)
	if got := k.deployment(); !reflect.DeepEqual(got.Spec, was.Spec) {
		k.t.Errorf("put back, it is\n%v\nand was\n%v", got.Spec, was.Spec)
	}
	if k.get("configmap coredns", &after); !reflect.DeepEqual(before, after) {
		k.t.Errorf("the ConfigMap coredns has changed from\n%v\nto\n%v", before, after)
	}
}

// playCorefiles changes the Corefile after the second step, and takes that back.
func (k *kubectl) playCorefiles(api *apiServer, stock string) {
	k.t.Cleanup(k.create(stock))
	startController(k.t, api)
	k.step(stepTwo)
	two := k.deployment()
	k.edit("components/steadfast/Corefile", "cache 30", "cache 60")
	k.step(stepTwo)
	three := k.deployment()
	if three.configMap() == two.configMap() {
		k.t.Error("another Corefile is in the same ConfigMap")
	}
	for _, d := range []deployment{two, three} {
		out, err := k.try(`kubectl -n kube-system patch configmap ` + d.configMap() + ` --type merge -p '{"data":{"Corefile":"x"}}'`)
		if err == nil || !strings.Contains(out, "immutable") {
			k.t.Errorf("ConfigMap %s is edited: %v, %s", d.configMap(), err, out)
		}
	}
	k.step(undo)
	k.is("another Corefile, undone", two)
	k.step(stepTwo)
	k.is("another Corefile again", three)
}

// step runs a command and waits for its rollout.
func (k *kubectl) step(command string) {
	k.t.Helper()
	k.run(command + "\n" + status)
}

// is fails the test unless the Deployment has the template that it had in want.
func (k *kubectl) is(what string, want deployment) {
	k.t.Helper()
	if got := k.deployment(); !reflect.DeepEqual(got.template(), want.template()) {
		k.t.Errorf("%s: it is\n%s\nwant\n%s", what, asJSON(got.template()), asJSON(want.template()))
	}
}

// checkStepTwo compares the stock Deployment with what step 2 has made of it.
func (k *kubectl) checkStepTwo(was, is deployment) {
	k.t.Helper()
	if is.image() != fullImage || !strings.HasPrefix(is.configMap(), "coredns-steadfast-") {
		k.t.Errorf("step 2: image %s with ConfigMap %s", is.image(), is.configMap())
	}
	var configMap struct{ Data map[string]string }
	k.get("configmap "+is.configMap(), &configMap)
	if want := kubernetesCorefile(k.t); configMap.Data["Corefile"] != want {
		k.t.Errorf("its Corefile is\n%s\nwant\n%s", configMap.Data["Corefile"], want)
	}
	// What the overlay does not name stays the stock Deployment's.
	for _, field := range []string{"replicas", "selector"} {
		if !reflect.DeepEqual(was.Spec[field], is.Spec[field]) {
			k.t.Errorf("%s was %v, is %v", field, was.Spec[field], is.Spec[field])
		}
	}
	wasPod, isPod := was.template()["spec"].(map[string]any), is.template()["spec"].(map[string]any)
	for _, field := range slices.Sorted(maps.Keys(wasPod)) {
		if !slices.Contains([]string{"containers", "volumes", "securityContext", "priorityClassName"}, field) && !reflect.DeepEqual(wasPod[field], isPod[field]) {
			k.t.Errorf("%s was %v, is %v", field, wasPod[field], isPod[field])
		}
	}
}

// readmeStates is what the Deployment is after each block of commands in README.md.
var readmeStates = []struct{ what, image, configMap string }{
	{"it is saved", stockImage, "coredns"},
	{"step 1", compatImage, "coredns"},
	{"step 1 is undone", stockImage, "coredns"},
	{"the Corefiles are compared", stockImage, "coredns"},
	{"step 2", fullImage, "coredns-steadfast-"},
	{"step 2 is undone", stockImage, "coredns"},
	{"the ConfigMaps are listed", stockImage, "coredns"},
	{"it is put back as it was saved", stockImage, "coredns"},
	{"it has the sysctl", stockImage, "coredns"},
}

// diffShown is what is seen of the second step before it is done.
var diffShown = regexp.MustCompile(`(?s)\n- +image: \S+/coredns:v1[.]14.*\n\+ +name: coredns-steadfast-.*\n\+ +healthforward [.] /etc/resolv[.]conf`)

// playREADME runs the commands of README.md in their order.
func (k *kubectl) playREADME(api *apiServer, stock string) {
	k.t.Cleanup(k.create(stock))
	startController(k.t, api)
	text, err := os.ReadFile(manifests + "/README.md")
	if err != nil {
		k.t.Fatal(err)
	}
	blocks := fencedBlocks(string(text), "sh")
	lines := slices.Sorted(maps.Keys(blocks))
	if len(lines) != len(readmeStates) {
		k.t.Fatalf("%d blocks of commands, and %d states", len(lines), len(readmeStates))
	}
	for i, want := range readmeStates {
		out := k.run(blocks[lines[i]])
		d := k.deployment()
		if got := d.configMap(); d.image() != want.image || got != want.configMap && (!strings.HasSuffix(want.configMap, "-") || !strings.HasPrefix(got, want.configMap)) {
			k.t.Errorf("line %d, %s: image %s with ConfigMap %s, want %s and %s\n%s", lines[i], want.what, d.image(), got, want.image, want.configMap, out)
		}
		if want.what == "step 2" && !diffShown.MatchString(out) {
			k.t.Errorf("kubectl diff does not show what changes:\n%s", out)
		}
	}
	if !strings.Contains(asJSON(k.deployment().template()), "ip_unprivileged_port_start") {
		k.t.Error("no sysctl")
	}
}
