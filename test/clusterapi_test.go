package test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// kubeAPIServerEnv names the program kube-apiserver. test/run builds it, out of the
// module in kubernetes/, because that takes longer than all other tests.
const kubeAPIServerEnv = "STEADFAST_KUBE_APISERVER"

// apiServer is a real Kubernetes API server over a real etcd, both alone in the
// network of this test. There is no kubelet, no controller and no kube-proxy: what
// they would write the test writes.
type apiServer struct {
	*process
	t       testing.TB
	program string
	dir     string
	client  *http.Client
}

const (
	kubernetesService = "10.96.0.1" // where pods find the API server
	kubernetesPort    = "6443"
	apiAddress        = "192.0.2.53" // of the node, one of clientNet
	adminToken        = "administrator"
	// apiLimit is how long the API server may take to be ready, and those who watch
	// it to come back after an outage: client-go waits 30 s between two tries, or
	// twice that by chance.
	apiLimit = 2 * time.Minute
)

// needAPIServer returns the program. Without it there is nothing to test; a CI
// that has none fails.
func needAPIServer(t testing.TB) string {
	t.Helper()
	program := os.Getenv(kubeAPIServerEnv)
	switch {
	case program == "" && os.Getenv("CI") == "":
		t.Skipf("%s is not set, so there is no API server: NOTHING was tested; make cluster builds one first", kubeAPIServerEnv)
	case program == "":
		t.Fatalf("%s is not set, though test/run sets it", kubeAPIServerEnv)
	}
	if _, err := exec.LookPath("etcd"); err != nil {
		t.Fatalf("%v: an API server keeps its objects there (test/run installs it)", err)
	}
	return program
}

// startAPIServer starts etcd and an API server over it, and returns once it is
// ready. The network must be the test's own.
func startAPIServer(t testing.TB, program string) *apiServer {
	t.Helper()
	a := &apiServer{t: t, program: program, dir: t.TempDir()}
	startBinary(t, "etcd", "etcd", a.dir, "--data-dir="+filepath.Join(a.dir, "etcd"), "--logger=zap", "--log-level=warn",
		"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380")
	waitFor(t, startLimit, "etcd", func() error { return httpOK("http://127.0.0.1:2379/health") })
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, a.dir, "accounts.key", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})))
	writeFile(t, a.dir, "tokens.csv", adminToken+",admin,1,system:masters\n")
	a.start()
	return a
}

// start starts the API server, for the first time or over what etcd has kept.
func (a *apiServer) start() {
	a.t.Helper()
	a.process = startBinary(a.t, a.program, "kube-apiserver", a.dir,
		"--etcd-servers=http://127.0.0.1:2379",
		"--bind-address=0.0.0.0", "--secure-port="+kubernetesPort,
		"--advertise-address="+apiAddress, "--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=10.96.0.0/16,fd00:96::/112",
		"--cert-dir="+filepath.Join(a.dir, "certs"), // it signs its own, for the service's address as well
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=accounts.key", "--service-account-signing-key-file=accounts.key",
		"--token-auth-file=tokens.csv", "--authorization-mode=RBAC",
		// No controller gives a namespace its account, so none may be asked for.
		"--disable-admission-plugins=ServiceAccount",
	)
	// By SIGTERM it would wait a minute for those who still watch it.
	a.t.Cleanup(a.kill)
	waitFor(a.t, apiLimit, "an API server that is ready", func() error {
		select {
		case <-a.done:
			a.t.Fatalf("kube-apiserver ended: %v", a.err)
		default:
		}
		if a.client == nil {
			pem, err := os.ReadFile(a.authority())
			if err != nil {
				return err
			}
			pool := x509.NewCertPool()
			pool.AppendCertsFromPEM(pem)
			a.client = &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
		}
		_, err := a.request(http.MethodGet, "/readyz", "", "")
		return err
	})
}

// kill ends the API server as a machine that fails does.
func (a *apiServer) kill() {
	a.t.Helper()
	a.Signal(syscall.SIGKILL)
	a.Wait(endLimit)
}

// authority is the file of the certificate that vouches for the API server's.
func (a *apiServer) authority() string { return filepath.Join(a.dir, "certs", "apiserver.crt") }

// request sends one request as an administrator and returns the reply's body. A
// status that is none of success is an error.
func (a *apiServer) request(method, path, contentType, body string) (string, error) {
	request, err := http.NewRequestWithContext(a.t.Context(), method, "https://"+apiAddress+":"+kubernetesPort+path, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	request.Header.Set("Authorization", "Bearer "+adminToken)
	request.Header.Set("Content-Type", contentType)
	response, err := a.client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, response.Status, text)
	}
	return string(text), err
}

// kubePaths is where the objects of a kind stand; %s is the namespace.
var kubePaths = map[string]string{
	"Namespace":          "/api/v1/namespaces",
	"Service":            "/api/v1/namespaces/%s/services",
	"EndpointSlice":      "/apis/discovery.k8s.io/v1/namespaces/%s/endpointslices",
	"Pod":                "/api/v1/namespaces/%s/pods",
	"ServiceAccount":     "/api/v1/namespaces/%s/serviceaccounts",
	"ClusterRole":        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
	"ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
}

// kubeObject is what is read of an object, to know where it stands.
type kubeObject struct {
	Kind     string
	Metadata struct{ Name, Namespace string }
	Status   map[string]any
}

// path is where objects of this one's kind stand in its namespace.
func (o kubeObject) path(t testing.TB) string {
	t.Helper()
	path, ok := kubePaths[o.Kind]
	if !ok {
		t.Fatalf("object of kind %q", o.Kind)
	}
	if strings.Contains(path, "%s") {
		path = fmt.Sprintf(path, o.Metadata.Namespace)
	}
	return path
}

// create creates the objects of a manifest in YAML, and gives them the status that
// stands there.
func (a *apiServer) create(manifest string) {
	a.t.Helper()
	for _, text := range strings.Split(manifest, "\n---\n") {
		object := parseObject(a.t, text)
		path := object.path(a.t)
		a.must(http.MethodPost, path, "application/yaml", text)
		if object.Status == nil {
			continue
		}
		status, err := yaml.Marshal(map[string]any{"status": object.Status})
		if err != nil {
			a.t.Fatal(err)
		}
		a.patch(path+"/"+object.Metadata.Name+"/status", string(status))
	}
}

// patch changes what the YAML names of the object at path.
func (a *apiServer) patch(path, change string) {
	a.t.Helper()
	merge, err := yaml.YAMLToJSON([]byte(change))
	if err != nil {
		a.t.Fatal(err)
	}
	a.must(http.MethodPatch, path, "application/merge-patch+json", string(merge))
}

// remove deletes an object at once: a pod's kubelet would have a say first.
func (a *apiServer) remove(kind, namespace, name string) {
	a.t.Helper()
	object := kubeObject{Kind: kind}
	object.Metadata.Namespace = namespace
	a.must(http.MethodDelete, object.path(a.t)+"/"+name+"?gracePeriodSeconds=0", "", "")
}

// must is request where an error ends the test.
func (a *apiServer) must(method, path, contentType, body string) string {
	a.t.Helper()
	reply, err := a.request(method, path, contentType, body)
	if err != nil {
		a.t.Fatal(err)
	}
	return reply
}

// token returns what a pod with this service account shows to the API server.
func (a *apiServer) token(namespace, account string) string {
	a.t.Helper()
	reply := a.must(http.MethodPost, fmt.Sprintf(kubePaths["ServiceAccount"], namespace)+"/"+account+"/token", "application/json",
		`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`)
	token, _ := parseObject(a.t, reply).Status["token"].(string)
	if token == "" {
		a.t.Fatalf("no token in %s", reply)
	}
	return token
}

func parseObject(t testing.TB, text string) kubeObject {
	t.Helper()
	var object kubeObject
	if err := yaml.Unmarshal([]byte(text), &object); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	return object
}
