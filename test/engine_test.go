package test

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

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

// buildImage builds an image as a user does, and returns its name. What make writes
// is in dist.
func (e *engine) buildImage(tag, dist string, options ...string) string {
	e.t.Helper()
	image := e.name + ":" + tag
	makeIn(e.t, append([]string{"image", "IMAGE=" + image, "DIST=" + dist}, options...)...)
	e.t.Cleanup(func() { e.remove("image", "rm", image) })
	return image
}

// makeIn runs make at the module's root.
func makeIn(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "make", args...)
	cmd.Dir = ".."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make %s: %v\n%s", strings.Join(args, " "), err, out)
	}
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

// copyIn puts a file into a container.
func (e *engine) copyIn(container, name string, content []byte, mode os.FileMode) {
	e.t.Helper()
	path := filepath.Join(e.t.TempDir(), filepath.Base(name))
	if err := os.WriteFile(path, content, mode); err != nil {
		e.t.Fatal(err)
	}
	e.run("cp", path, container+":"+name)
}

// createServer creates a container that serves a Corefile. That is in a volume, since
// nothing can be put into a read-only container.
func (e *engine) createServer(image, corefile string, options ...string) string {
	e.t.Helper()
	server := e.create(append(options, "-v", "/conf", image, "-conf", "/conf/Corefile")...)
	e.copyIn(server, "/conf/Corefile", []byte(corefile), 0o644)
	return server
}

// container is a server in the engine that this host can ask.
type container struct {
	id, ip string
}

// addr is where it answers.
func (c container) addr() string { return c.ip + ":53" }

// startServer is createServer, and returns once the container answers. Only on Linux
// does a container's network lead to its host.
func (e *engine) startServer(image, corefile string, options ...string) container {
	e.t.Helper()
	id := e.createServer(image, corefile, options...)
	e.run("start", id)
	c := container{id: id, ip: e.address(id)}
	waitFor(e.t, startLimit, "an answer from container "+id, func() error {
		_, err := exchange(c.addr(), aliveQuestion())
		return err
	})
	return c
}

// address returns a running container's.
func (e *engine) address(id string) string {
	e.t.Helper()
	return e.run("inspect", "-f", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", id)
}

// countLog counts how often a container has written text.
func (e *engine) countLog(id, text string) int {
	e.t.Helper()
	out, err := e.try("logs", id)
	if err != nil {
		e.t.Fatalf("docker logs: %v\n%s", err, out)
	}
	return strings.Count(out, text)
}

// waitForLog waits until a container has written text so many times.
func (e *engine) waitForLog(id, text string, times int) {
	e.t.Helper()
	waitFor(e.t, startLimit, fmt.Sprintf("%q in the log of container %s", text, id), func() error {
		if n := e.countLog(id, text); n < times {
			return fmt.Errorf("%d times, want %d", n, times)
		}
		return nil
	})
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

// try is run for what may fail: it returns all that docker prints.
func (e *engine) try(args ...string) (string, error) {
	out, err := exec.CommandContext(e.t.Context(), "docker", args...).CombinedOutput()
	return string(out), err
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
