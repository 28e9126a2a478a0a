package test

import (
	"context"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// imageCorefile does the product's main job inside one container: a bare name is
// completed and forwarded to a resolver on another port.
const imageCorefile = `.:53 {
	errors
	searchexpand corp.example
	healthforward . 127.0.0.1:1053
}
.:1053 {
	bind 127.0.0.1
	errors
	template IN A corp.example {
		match "^db01[.]corp[.]example[.]$"
		answer "db01.corp.example. 60 IN A 192.0.2.10"
		fallthrough
	}
	template ANY ANY {
		rcode NXDOMAIN
		authority ". 60 IN SOA a. b. 1 7200 900 1209600 60"
	}
}
`

func TestImageAnswersOnPort53AsNobody(t *testing.T) {
	e := newEngine(t)
	image := e.buildImage()
	program := staticAsk(t)

	if got, want := e.run("image", "inspect", "-f", "{{.Config.User}} {{.Config.WorkingDir}} {{.Config.Entrypoint}} {{.Config.ExposedPorts}}", image),
		"65532:65532 / [/coredns] map[53/tcp:{} 53/udp:{}]"; got != want {
		t.Errorf("image says %q, want %q", got, want)
	}

	// The engine lets everybody open low ports by default. Taking that back shows
	// that the file capability has survived the build.
	const strict = "--sysctl=net.ipv4.ip_unprivileged_port_start=1024"
	runs := map[string][]string{
		"by the file capability alone":                {strict},
		"with every other capability dropped":         {strict, "--cap-drop=ALL", "--cap-add=NET_BIND_SERVICE"},
		"with a user of the cluster's choice":         {strict, "--user=1000720000:0"},
		"under no_new_privs, as in kubeadm's cluster": {"--security-opt=no-new-privileges", "--cap-drop=ALL", "--cap-add=NET_BIND_SERVICE"},
	}
	for name, options := range runs {
		t.Run(name, func(t *testing.T) {
			e := e.in(t)
			server := e.create(append(options, image, "-conf", "/Corefile")...)
			e.copyIn(server, "Corefile", []byte(imageCorefile), 0o644)
			e.run("start", server)
			addr := e.run("inspect", "-f", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", server)

			client := e.create("--entrypoint=/ask", image, addr+":53", "db01", "A")
			e.copyIn(client, "ask", program, 0o755)
			reply := e.run("start", "-a", client)
			for _, want := range []string{"db01.\t60\tIN\tCNAME\tdb01.corp.example.", "db01.corp.example.\t60\tIN\tA\t192.0.2.10"} {
				if !strings.Contains(reply, want) {
					t.Errorf("the reply lacks %q:\n%s", want, reply)
				}
			}
		})
	}

	t.Run("with CA certificates", func(t *testing.T) {
		e := e.in(t)
		bundle := filepath.Join(t.TempDir(), "bundle")
		e.run("cp", e.create(image)+":/etc/ssl/certs/ca-certificates.crt", bundle)
		pem, err := os.ReadFile(bundle)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(pem), "-----BEGIN CERTIFICATE-----") {
			t.Errorf("the bundle of %d bytes holds no certificate", len(pem))
		}
	})
}

// engine is a Docker engine and, in it, what this test run has made: everything
// bears the run's name and goes with the test that made it.
type engine struct {
	t    *testing.T
	name string
}

// newEngine makes a private network that leads nowhere. Without a Docker engine
// there is nothing to test; a CI that has one but cannot reach it fails.
func newEngine(t *testing.T) *engine {
	t.Helper()
	if _, err := exec.LookPath("docker"); err != nil {
		t.Skip("no docker command here, so no image can be built")
	}
	if out, err := exec.CommandContext(t.Context(), "docker", "info").CombinedOutput(); err != nil {
		if os.Getenv("CI") == "" {
			t.Skipf("no Docker engine answers here: %v", err)
		}
		t.Fatalf("docker info: %v\n%s", err, out)
	}
	e := &engine{t: t, name: "steadfast-test-" + strings.ToLower(rand.Text()[:10])}
	e.run("network", "create", "--internal", e.name)
	t.Cleanup(func() { e.remove("network", "rm", e.name) })
	return e
}

// in returns the engine for a subtest, with which ends what it makes.
func (e *engine) in(t *testing.T) *engine {
	t.Helper()
	return &engine{t: t, name: e.name}
}

// buildImage builds the image as a user does, and returns its name.
func (e *engine) buildImage() string {
	e.t.Helper()
	image := e.name + ":test"
	cmd := exec.CommandContext(e.t.Context(), "make", "image", "IMAGE="+image, "DIST="+e.t.TempDir())
	cmd.Dir = ".."
	if out, err := cmd.CombinedOutput(); err != nil {
		e.t.Fatalf("make image: %v\n%s", err, out)
	}
	e.t.Cleanup(func() { e.remove("image", "rm", image) })
	return image
}

// create creates a container in the network, and returns its id.
func (e *engine) create(args ...string) string {
	e.t.Helper()
	id := e.run(append([]string{"create", "--network=" + e.name}, args...)...)
	e.t.Cleanup(func() {
		if e.t.Failed() {
			e.showLog(id)
		}
		e.remove("rm", "-f", "-v", id)
	})
	return id
}

// copyIn puts a file at the container's root.
func (e *engine) copyIn(container, name string, content []byte, mode os.FileMode) {
	e.t.Helper()
	path := filepath.Join(e.t.TempDir(), name)
	if err := os.WriteFile(path, content, mode); err != nil {
		e.t.Fatal(err)
	}
	e.run("cp", path, container+":/"+name)
}

// run runs docker and returns what it prints.
func (e *engine) run(args ...string) string {
	e.t.Helper()
	var stderr strings.Builder
	cmd := exec.CommandContext(e.t.Context(), "docker", args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		e.t.Fatalf("docker %s: %v\n%s%s", strings.Join(args, " "), err, out, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

// showLog adds what a container wrote to the test's log.
func (e *engine) showLog(container string) {
	out, err := exec.CommandContext(context.Background(), "docker", "logs", container).CombinedOutput()
	e.t.Logf("log of container %s (%v):\n%s", container, err, out)
}

// remove runs docker when the test, and its context, is over.
func (e *engine) remove(args ...string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "docker", args...).CombinedOutput(); err != nil {
		e.t.Errorf("docker %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// staticAsk builds test/ask so that it runs where there is nothing else.
func staticAsk(t *testing.T) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ask")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", path, "./ask")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return program
}
