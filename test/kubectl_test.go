package test

import (
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"text/template"
	"time"
)

// kubectlEnv names the program kubectl, as kubeAPIServerEnv does the API server.
const kubectlEnv = "STEADFAST_KUBECTL"

// kubectl is the real program in the hands of whoever administers the cluster. Its
// commands run in a copy of this repository's build/kubernetes, which they may edit.
type kubectl struct {
	t    testing.TB
	home string
	root string // the copy's root: commands name build/kubernetes/...
}

// needKubectl ends the test where there is no kubectl.
func needKubectl(t testing.TB) {
	t.Helper()
	switch {
	case os.Getenv(kubectlEnv) != "":
	case os.Getenv("CI") == "":
		t.Skipf("%s is not set, so there is no kubectl: NOTHING was tested; make cluster builds one first", kubectlEnv)
	default:
		t.Fatalf("%s is not set, though test/run sets it", kubectlEnv)
	}
}

func newKubectl(t testing.TB, api *apiServer) *kubectl {
	t.Helper()
	k := &kubectl{t: t, home: t.TempDir(), root: t.TempDir()}
	if err := os.Symlink(os.Getenv(kubectlEnv), filepath.Join(k.home, "kubectl")); err != nil {
		t.Fatal(err)
	}
	writeFile(t, k.home, "config", fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test, user: admin}}]
clusters: [{name: test, cluster: {server: "https://%s:%s", certificate-authority: %s}}]
users: [{name: admin, user: {token: %s}}]
`, apiAddress, kubernetesPort, api.authority(), adminToken))
	k.reset()
	return k
}

// reset makes a new copy of build/kubernetes.
func (k *kubectl) reset() {
	k.t.Helper()
	copied := filepath.Join(k.root, "build/kubernetes")
	if err := os.RemoveAll(copied); err != nil {
		k.t.Fatal(err)
	}
	if err := os.CopyFS(copied, os.DirFS("../build/kubernetes")); err != nil {
		k.t.Fatal(err)
	}
}

// edit puts one text in the place of another in a file of the copy.
func (k *kubectl) edit(path, was, is string) {
	k.t.Helper()
	path = filepath.Join(k.root, "build/kubernetes", path)
	text, err := os.ReadFile(path)
	if err != nil {
		k.t.Fatal(err)
	}
	if strings.Count(string(text), was) != 1 {
		k.t.Fatalf("%s should have %q once:\n%s", path, was, text)
	}
	writeFile(k.t, filepath.Dir(path), filepath.Base(path), strings.Replace(string(text), was, is, 1))
}

// try runs commands as a shell reads them, and returns what they print.
func (k *kubectl) try(commands string) (string, error) {
	// Even in a cleanup, and with a kubectl that waits for what never comes.
	ctx, cancel := context.WithTimeout(context.Background(), apiLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", commands)
	cmd.WaitDelay = time.Second
	cmd.Dir = k.root
	cmd.Env = append(os.Environ(), "HOME="+k.home, "KUBECONFIG="+filepath.Join(k.home, "config"), "PATH="+k.home+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s\n%w:\n%s", commands, err, out)
	}
	return string(out), err
}

// run is try where an error ends the test.
func (k *kubectl) run(commands string) string {
	k.t.Helper()
	out, err := k.try(commands)
	if err != nil {
		k.t.Fatal(err)
	}
	return out
}

// get reads an object of the namespace kube-system.
func (k *kubectl) get(object string, into any) {
	k.t.Helper()
	if err := json.Unmarshal([]byte(k.run("kubectl -n kube-system get "+object+" -o json")), into); err != nil {
		k.t.Fatal(err)
	}
}

// kubeadmManifest returns a manifest of kubeadm's addon, out of the source of the
// kubeadm that belongs to the API server, with the values of this cluster.
func kubeadmManifest(t testing.TB, constant string) string {
	t.Helper()
	dir := strings.TrimSpace(mustRun(t, "go", "-C", "kubernetes", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes"))
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, "cmd/kubeadm/app/phases/addons/dns/manifests.go"), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var text string
	ast.Inspect(file, func(node ast.Node) bool {
		spec, ok := node.(*ast.ValueSpec)
		if ok && spec.Names[0].Name == constant {
			text, err = strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		}
		return true
	})
	if err != nil || text == "" {
		t.Fatalf("kubeadm has no %s: %v", constant, err)
	}
	var out strings.Builder
	if err := template.Must(template.New(constant).Parse(text)).Execute(&out, map[string]any{
		"DeploymentName":       "coredns",
		"Replicas":             2,
		"Image":                stockImage,
		"ControlPlaneTaintKey": "node-role.kubernetes.io/control-plane",
		"DNSDomain":            "cluster.local",
		"DNSIP":                kubeDNS,
	}); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

const (
	stockImage = "registry.example/coredns/coredns:v1.14.2"
	kubeDNS    = "10.96.0.10"
)
