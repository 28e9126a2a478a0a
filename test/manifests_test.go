package test

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const manifests = "../build/kubernetes"

// TestManifests tries build/kubernetes with kubectl and a real API server.
func TestManifests(t *testing.T) {
	program := needAPIServer(t)
	needKubectl(t)
	if !alone(t) {
		return
	}
	api := startAPIServer(t, program)
	k := newKubectl(t, api)
	waitFor(t, startLimit, "the namespaces of every cluster", func() error {
		_, err := k.try("kubectl get namespace kube-system")
		return err
	})
	crds, err := filepath.Abs("kubernetes/crds.yaml")
	if err != nil {
		t.Fatal(err)
	}
	k.run("kubectl apply -f " + crds + " && kubectl wait --for=condition=Established -f " + crds)
	for _, constant := range []string{"CoreDNSConfigMap", "CoreDNSService", "CoreDNSServiceAccount", "CoreDNSClusterRole", "CoreDNSClusterRoleBinding"} {
		manifest := strings.Replace(kubeadmManifest(t, constant), `resourceVersion: "0"`, "", 1)
		writeFile(t, k.root, "manifest.yaml", manifest)
		k.run("kubectl create -f manifest.yaml")
	}

	t.Run("the API server accepts every object", func(t *testing.T) { k.in(t).accepts(stockDeployments["kubeadm"](t)) })
	for _, name := range slices.Sorted(maps.Keys(stockDeployments)) {
		t.Run("both steps and back, from the Deployment of "+name, func(t *testing.T) {
			k.in(t).playSteps(api, stockDeployments[name](t))
		})
	}
	t.Run("another Corefile and back", func(t *testing.T) { k.in(t).playCorefiles(api, stockDeployments["kubeadm"](t)) })
	t.Run("README, word for word", func(t *testing.T) { k.in(t).playREADME(api, stockDeployments["kubeadm"](t)) })
}

// in is the same kubectl for a subtest, which begins with a new copy.
func (k *kubectl) in(t *testing.T) *kubectl {
	t.Helper()
	inner := &kubectl{t: t, home: k.home, root: k.root}
	inner.reset()
	return inner
}

// kustomizations are the folders that can be applied, and components their parts that
// are optional.
func kustomizations(t testing.TB) (folders []string) {
	t.Helper()
	err := filepath.WalkDir(manifests, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Base(path) != "kustomization.yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		if folder := strings.TrimPrefix(filepath.Dir(path), manifests+"/"); !strings.Contains(string(text), "kind: Component") && folder != "rollback" {
			folders = append(folders, folder)
		}
		return err
	})
	if err != nil || len(folders) < 6 {
		t.Fatalf("found the folders %q: %v", folders, err)
	}
	return folders
}

const dryRun = "kubectl apply --server-side --force-conflicts --dry-run=server --validate=strict "

// accepts lets the API server judge everything that can be applied, without applying it.
func (k *kubectl) accepts(stock string) {
	defer k.create(stock)()
	for _, folder := range kustomizations(k.t) {
		if folder != "node-local/base" {
			k.run(dryRun + "-k build/kubernetes/" + folder)
		}
	}
	for _, component := range []string{"disruption-budget", "node-resolv-conf"} {
		k.edit("deployment/kustomization.yaml", "#- ../components/"+component, "- ../components/"+component)
	}
	if out := k.run(dryRun + "-k build/kubernetes/deployment"); !strings.Contains(out, "poddisruptionbudget") {
		k.t.Errorf("with its component there is no budget:\n%s", out)
	}

	pages, err := filepath.Glob(manifests + "/platforms/*.md")
	if err != nil || len(pages) == 0 {
		k.t.Fatalf("found the pages %q: %v", pages, err)
	}
	objects := 0
	for _, page := range append(pages, manifests+"/README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			k.t.Fatal(err)
		}
		for line, block := range fencedBlocks(string(text), "yaml") {
			if strings.Contains(block, "apiVersion: kubeadm.k8s.io/") {
				continue // a file of kubeadm's, which no API server knows
			}
			objects++
			// The one address that a page can name only for its own platform.
			block = strings.ReplaceAll(block, "10.43.0.", "10.96.0.")
			writeFile(k.t, k.root, "object.yaml", block)
			if _, err := k.try(dryRun + "-f object.yaml"); err != nil {
				k.t.Errorf("%s:%d: %v", page, line, err)
			}
		}
	}
	if objects == 0 {
		k.t.Error("no page has an object")
	}

	// What makes the above worth something.
	k.edit("components/steadfast/deployment.yaml", "readOnlyRootFilesystem", "readOnlyRootFileSystem")
	if out, err := k.try(dryRun + "-k build/kubernetes/deployment"); err == nil {
		k.t.Errorf("a field that is misspelt is accepted:\n%s", out)
	}
}

// workload is what is looked at in a Deployment or a DaemonSet.
type workload struct {
	Kind     string
	Metadata struct{ Name string }
	Spec     struct {
		Strategy, UpdateStrategy struct {
			RollingUpdate struct{ MaxSurge, MaxUnavailable any }
		}
		Template struct {
			Spec struct {
				PriorityClassName string
				DNSPolicy         string
				HostNetwork       bool
				Containers        []podContainer
				Volumes           []struct {
					Name      string
					ConfigMap struct{ Name string }
					HostPath  struct{ Path, Type string }
				}
			}
		}
	}
	// Of a ConfigMap.
	Immutable bool
	Data      map[string]string
}

type podContainer struct {
	Name, Image     string
	Env             []struct{ Name, Value string }
	Ports           []any
	Resources       struct{ Limits map[string]string }
	SecurityContext struct {
		RunAsNonRoot, ReadOnlyRootFilesystem, AllowPrivilegeEscalation bool
		RunAsUser                                                      int
		Capabilities                                                   struct{ Add, Drop []string }
	}
}

func TestManifestsSayWhatAWorkloadNeeds(t *testing.T) {
	needKubectl(t)
	for _, folder := range kustomizations(t) {
		if folder == "node-local/base" {
			continue
		}
		t.Run(folder, func(t *testing.T) {
			objects := kustomize(t, folder)
			for _, w := range objects {
				for _, c := range w.Spec.Template.Spec.Containers {
					if c.Name == "coredns" {
						w.check(t, c, objects)
					}
				}
			}
		})
	}
}

// kustomize returns what a folder makes.
func kustomize(t *testing.T, folder string) (objects []workload) {
	t.Helper()
	for _, text := range strings.Split(mustRun(t, os.Getenv(kubectlEnv), "kustomize", filepath.Join(manifests, folder)), "\n---\n") {
		var w workload
		if err := yaml.Unmarshal([]byte(text), &w); err != nil {
			t.Fatalf("%v:\n%s", err, text)
		}
		objects = append(objects, w)
	}
	return objects
}

// check judges a workload by its container that is this build.
func (w workload) check(t *testing.T, c podContainer, objects []workload) {
	t.Helper()
	pod := w.Spec.Template.Spec
	c.check(t, pod.HostNetwork)
	if !strings.Contains(c.Image, "/steadfast/coredns:v") {
		t.Errorf("the image is %q", c.Image)
	}
	got := []any{pod.PriorityClassName, w.Spec.Strategy.RollingUpdate.MaxUnavailable}
	want := []any{"system-cluster-critical", 1.0}
	if w.Kind == "DaemonSet" {
		got = []any{pod.PriorityClassName, w.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable, w.Spec.UpdateStrategy.RollingUpdate.MaxSurge, pod.DNSPolicy}
		want = []any{"system-node-critical", 0.0, 1.0, "Default"}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", w.Kind, got, want)
	}
	if pod.HostNetwork && len(c.Ports) > 0 {
		t.Errorf("ports of the node are taken: %v", c.Ports)
	}
	for _, volume := range pod.Volumes {
		if volume.HostPath.Path != "" && volume.HostPath.Type != "Directory" && volume.Name != "xtables-lock" {
			t.Errorf("a path of the node that is no directory, %+v", volume)
		}
		if volume.Name != "config-volume" {
			continue
		}
		found := slices.IndexFunc(objects, func(o workload) bool { return o.Kind == "ConfigMap" && o.Metadata.Name == volume.ConfigMap.Name })
		if found < 0 || !objects[found].Immutable || objects[found].Data["Corefile"] == "" {
			t.Errorf("no immutable ConfigMap %q with a Corefile", volume.ConfigMap.Name)
		}
	}
}

// check judges a container.
func (c podContainer) check(t *testing.T, hostNetwork bool) {
	t.Helper()
	limit, err := strconv.Atoi(strings.TrimSuffix(c.Resources.Limits["memory"], "Mi"))
	if err != nil {
		t.Errorf("limit of memory: %v", err)
	}
	want := fmt.Sprintf("%dMiB", limit*8/10)
	if i := slices.IndexFunc(c.Env, func(v struct{ Name, Value string }) bool { return v.Name == "GOMEMLIMIT" }); i < 0 || c.Env[i].Value != want {
		t.Errorf("environment %v, want GOMEMLIMIT=%s, 80 %% of %dMi", c.Env, want, limit)
	}
	s := c.SecurityContext
	got := fmt.Sprintln(s.RunAsNonRoot, s.RunAsUser, s.ReadOnlyRootFilesystem, s.AllowPrivilegeEscalation, s.Capabilities)
	if want := fmt.Sprintln(true, 65532, true, hostNetwork, "{[NET_BIND_SERVICE] [ALL]}"); got != want {
		t.Errorf("security context %s, want %s", got, want)
	}
}

// helmValues are those of helm/values.yaml that make a container and a Corefile.
type helmValues struct {
	Image             struct{ Repository, Tag string }
	PriorityClassName string
	RollingUpdate     struct{ MaxUnavailable int }
	podContainer
	PodDisruptionBudget struct {
		MaxUnavailable             int
		UnhealthyPodEvictionPolicy string
	}
	Servers []struct {
		Zones []struct {
			Zone   string
			UseTCP bool `json:"use_tcp"`
		}
		Port    int
		Plugins []struct {
			Name        string
			Parameters  any
			ConfigBlock string
		}
	}
}

func readHelmValues(t *testing.T) (v helmValues) {
	t.Helper()
	text, err := os.ReadFile(manifests + "/helm/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// corefile is what the chart makes of `servers`.
func (v helmValues) corefile() string {
	var out strings.Builder
	for _, server := range v.Servers {
		for _, zone := range server.Zones {
			fmt.Fprintf(&out, "%s:%d ", zone.Zone, server.Port)
		}
		out.WriteString("{\n")
		for _, plugin := range server.Plugins {
			out.WriteString("    " + plugin.Name)
			if plugin.Parameters != nil {
				fmt.Fprintf(&out, " %v", plugin.Parameters)
			}
			if plugin.ConfigBlock != "" {
				out.WriteString(" {\n" + plugin.ConfigBlock + "\n    }")
			}
			out.WriteString("\n")
		}
		out.WriteString("}\n")
	}
	return out.String()
}

func TestHelmValuesSayWhatAWorkloadNeeds(t *testing.T) {
	v := readHelmValues(t)
	v.check(t, false)
	got := fmt.Sprintln(v.Image.Repository+":"+v.Image.Tag, v.PriorityClassName, v.RollingUpdate, v.PodDisruptionBudget)
	if want := fullImage + " system-cluster-critical {1} {1 AlwaysAllow}\n"; got != want {
		t.Errorf("values %s, want %s", got, want)
	}
	if strings.Contains(v.corefile(), "\n    reload") {
		t.Error("running pods read the Corefile that is meant for the next ones")
	}
}

func TestEveryCorefileOfTheManifestsStarts(t *testing.T) {
	corefiles := map[string]string{"helm/values.yaml": readHelmValues(t).corefile()}
	for _, pattern := range []string{"*/Corefile", "*/*/Corefile"} {
		paths, err := filepath.Glob(filepath.Join(manifests, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			corefiles[strings.TrimPrefix(path, manifests+"/")] = string(text)
		}
	}
	if len(corefiles) < 5 {
		t.Fatalf("found %q", slices.Sorted(maps.Keys(corefiles)))
	}
	for name, corefile := range corefiles {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each has a lameduck of 5 s
			dir := t.TempDir()
			writeFiles(t, dir, map[string]string{"NodeHosts": "192.0.2.11 node1\n", "custom/an.override": "log\n"})
			corefile = strings.NewReplacer(
				"/etc/coredns/", dir+"/",
				"/node/resolv.conf", "/etc/resolv.conf",
				// What a pod finds in its environment.
				"{$KUBE_DNS_SERVICE_HOST}", kubeDNS,
				"{$KUBE_DNS_UPSTREAM_SERVICE_HOST}", wildCluster,
			).Replace(corefile)
			startMoved(t, dir, corefile)
		})
	}
}
