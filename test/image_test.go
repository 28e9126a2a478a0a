package test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
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

// TestImage builds the image once, and shows what it does.
func TestImage(t *testing.T) {
	e := newEngine(t)
	dist := t.TempDir()
	image := e.buildImage("test", dist)
	for name, test := range map[string]func(t *testing.T, e *engine, image string){
		"answers on port 53 as nobody":              imageAnswersOnPort53,
		"does not start without the one capability": imageNeedsItsCapability,
		"holds certificates and time zones":         imageHoldsWhatGoLooksFor,
		"can stand on another image":                imageOnAnotherBase,
		"serves through what befalls containers":    imageServes,
	} {
		t.Run(name, func(t *testing.T) { test(t, e.in(t), image) })
	}
	t.Run("is what its archive holds", func(t *testing.T) { imageIsItsArchive(t, e.in(t), image, dist) })
}

func imageAnswersOnPort53(t *testing.T, e *engine, image string) {
	program := staticAsk(t)
	// The engine lets everybody open low ports by default. Taking that back shows
	// that the file capability has survived the build.
	const strict = "--sysctl=net.ipv4.ip_unprivileged_port_start=1024"
	runs := map[string][]string{
		"by the file capability alone":                         {strict},
		"read-only, with every other capability dropped":       {strict, "--cap-drop=ALL", "--cap-add=NET_BIND_SERVICE", "--read-only"},
		"with a user of the cluster's choice":                  {strict, "--user=1000720000:0", "--entrypoint=coredns"}, // by the PATH
		"read-only, under no_new_privs, as kubeadm's pods run": {"--security-opt=no-new-privileges", "--cap-drop=ALL", "--cap-add=NET_BIND_SERVICE", "--read-only"},
	}
	for name, options := range runs {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // most of it is waiting for the engine
			e := e.in(t)
			server := e.createServer(image, imageCorefile, options...)
			e.run("start", server)
			client := e.create("--entrypoint=/ask", image, e.address(server)+":53", "db01", "A")
			e.copyIn(client, "/ask", program, 0o755)
			reply := e.run("start", "-a", client)
			for _, want := range []string{"db01.\t60\tIN\tCNAME\tdb01.corp.example.", "db01.corp.example.\t60\tIN\tA\t192.0.2.10"} {
				if !strings.Contains(reply, want) {
					t.Errorf("the reply lacks %q:\n%s", want, reply)
				}
			}
		})
	}
}

// imageNeedsItsCapability shows what README.md warns of: Linux refuses to run a program
// whose file asks for a capability that its container may not have, also where
// no_new_privs would not give it to the program.
func imageNeedsItsCapability(t *testing.T, e *engine, image string) {
	for name, options := range map[string][]string{
		"with all dropped":                     {"--cap-drop=ALL"},
		"with all dropped, under no_new_privs": {"--cap-drop=ALL", "--security-opt=no-new-privileges"},
	} {
		t.Run(name, func(t *testing.T) {
			e := e.in(t)
			out, err := e.try("start", "-a", e.create(append(options, image, "-version")...))
			if err == nil || !strings.Contains(out, "operation not permitted") {
				t.Errorf("the container starts: %v\n%s\nso README.md warns of what is no more", err, out)
			}
		})
	}
}

func imageHoldsWhatGoLooksFor(t *testing.T, e *engine, image string) {
	id := e.create(image)
	for path, want := range map[string]string{
		"/etc/ssl/certs/ca-certificates.crt": "-----BEGIN CERTIFICATE-----",
		"/usr/share/zoneinfo/Europe/Berlin":  "TZif",
	} {
		file := filepath.Join(t.TempDir(), "file")
		e.run("cp", id+":"+path, file)
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(content, []byte(want)) {
			t.Errorf("%s, of %d bytes, lacks %q", path, len(content), want)
		}
	}
}

// imageOnAnotherBase builds on an image that holds one file, since no registry can be
// reached from here that has a distroless one; and adds another, which takes less time
// than the program.
func imageOnAnotherBase(t *testing.T, e *engine, _ string) {
	context := t.TempDir()
	base, image := e.name+":base", e.name+":on-base"
	archive := filepath.Join(context, "rootfs.tar")
	writeTar(t, archive, "from-base")
	e.run("import", archive, base)
	t.Cleanup(func() { e.remove("image", "rm", base) })
	writeTar(t, archive, "coredns")
	e.run("build", "-q", "-f", filepath.Join("..", "build", "Dockerfile"), "--build-arg", "BASE="+base, "-t", image, context)
	t.Cleanup(func() { e.remove("image", "rm", image) })
	id := e.create(image)
	for _, name := range []string{"from-base", "coredns"} {
		e.run("cp", id+":/"+name, filepath.Join(t.TempDir(), name))
	}
}

// writeTar writes an archive that holds an empty file.
func writeTar(t *testing.T, archive, name string) {
	t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	err := errors.Join(tw.WriteHeader(&tar.Header{Name: name, Mode: 0o644}), tw.Close(), os.WriteFile(archive, b.Bytes(), 0o600))
	if err != nil {
		t.Fatal(err)
	}
}

// imageConfig is what an image says of itself.
type imageConfig struct {
	User, WorkingDir string
	Entrypoint, Env  []string
	ExposedPorts     map[string]struct{}
	Labels           map[string]string
}

// imageIsItsArchive compares what the engine built with what make image-archive writes
// without an engine.
func imageIsItsArchive(t *testing.T, e *engine, image, dist string) {
	var built, archived imageConfig
	if err := json.Unmarshal([]byte(e.run("image", "inspect", "-f", "{{json .Config}}", image)), &built); err != nil {
		t.Fatal(err)
	}
	if built.User != "65532:65532" || built.WorkingDir != "/" || !reflect.DeepEqual(built.Entrypoint, []string{"/coredns"}) || len(built.ExposedPorts) != 2 {
		t.Errorf("the image says %+v", built)
	}
	for _, label := range []string{"title", "description", "licenses", "version", "revision", "created"} {
		if built.Labels["org.opencontainers.image."+label] == "" {
			t.Errorf("the image has no label %s: %v", label, built.Labels)
		}
	}
	makeIn(t, "image-archive", "IMAGE="+image, "DIST="+dist)
	conf := readArchivedConfig(t, filepath.Join(dist, "image.tar"))
	if err := json.Unmarshal(conf, &struct{ Config *imageConfig }{&archived}); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(built, archived) {
		t.Errorf("the engine built\n%+v\nand its archive holds\n%+v", built, archived)
	}
}

// readArchivedConfig returns the file that an image's archive calls its configuration.
func readArchivedConfig(t *testing.T, archive string) []byte {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	small := make(map[string][]byte) // all but the layer
	tr := tar.NewReader(f)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Size < 1<<20 {
			if small[h.Name], err = io.ReadAll(tr); err != nil {
				t.Fatal(err)
			}
		}
	}
	var manifest []struct{ Config string }
	if err := json.Unmarshal(small["manifest.json"], &manifest); err != nil || len(manifest) != 1 {
		t.Fatalf("manifest.json: %v, %s", err, small["manifest.json"])
	}
	return small[manifest[0].Config]
}

// TestProgramIsTheSameWhereverItIsBuilt builds slim here and in a copy of the sources
// elsewhere: only so can somebody else find out whether a program is what it is said
// to be.
func TestProgramIsTheSameWhereverItIsBuilt(t *testing.T) {
	elsewhere := t.TempDir()
	for _, dir := range []string{"build", "plugin"} {
		if err := os.CopyFS(filepath.Join(elsewhere, dir), os.DirFS(filepath.Join("..", dir))); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"go.mod", "go.sum"} {
		content, err := os.ReadFile(filepath.Join("..", file))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(elsewhere, file), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sum := func(dir string) [sha256.Size]byte {
		program := filepath.Join(t.TempDir(), "coredns")
		// What git knows of a copy is not the same: nothing.
		buildIn(t, dir, program, "./build/slim", "-buildvcs=false")
		content, err := os.ReadFile(program)
		if err != nil {
			t.Fatal(err)
		}
		return sha256.Sum256(content)
	}
	if here, there := sum(".."), sum(elsewhere); here != there {
		t.Errorf("two builds of the same sources are %x and %x", here, there)
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
