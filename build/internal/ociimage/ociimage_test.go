package ociimage

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// root stands for the archive of the file system, which this package does not read.
const root = "what the image holds"

func write(t *testing.T, img Image) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, img, strings.NewReader(root)); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func example() Image {
	return Image{
		Name: "steadfast/coredns:v1", Tag: "v1", Architecture: "arm64",
		Labels:  map[string]string{"b": "2", "a": "1"},
		Created: time.Date(2026, 1, 2, 4, 4, 5, 0, time.FixedZone("", 3600)),
	}
}

// files returns what an archive holds, by name.
func files(t *testing.T, archive []byte) map[string][]byte {
	t.Helper()
	found := make(map[string][]byte)
	tr := tar.NewReader(bytes.NewReader(archive))
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		if found[h.Name], err = io.ReadAll(tr); err != nil {
			t.Fatal(err)
		}
	}
}

// parse reads a file of the archive, and ends the test if it is not there.
func parse[T any](t *testing.T, found map[string][]byte, name string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(found[name], &v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return v
}

// follow returns the name of the file that b describes, if it is what b says.
func follow(t *testing.T, found map[string][]byte, b blob) string {
	t.Helper()
	content := found[b.path()]
	if digest(content) != b.Digest || int64(len(content)) != b.Size {
		t.Fatalf("%s is of %d bytes and %s, want %d and %s", b.path(), len(content), digest(content), b.Size, b.Digest)
	}
	return b.path()
}

func TestBothWaysThroughTheArchiveLeadToTheImage(t *testing.T) {
	found := files(t, write(t, example()))
	if got := string(found["oci-layout"]); got != `{"imageLayoutVersion":"1.0.0"}` {
		t.Errorf("oci-layout = %s", got)
	}
	index := parse[struct{ Manifests []blob }](t, found, "index.json")
	if len(index.Manifests) != 1 || index.Manifests[0].Platform.Architecture != "arm64" || index.Manifests[0].Notes["org.opencontainers.image.ref.name"] != "v1" {
		t.Fatalf("index.json = %s", found["index.json"])
	}
	manifest := parse[struct {
		Config blob
		Layers []blob
	}](t, found, follow(t, found, index.Manifests[0]))
	conf, layer := follow(t, found, manifest.Config), follow(t, found, manifest.Layers[0])

	docker := parse[[]struct {
		Config   string
		RepoTags []string
		Layers   []string
	}](t, found, "manifest.json")
	if docker[0].Config != conf || !slices.Equal(docker[0].Layers, []string{layer}) || !slices.Equal(docker[0].RepoTags, []string{"steadfast/coredns:v1"}) {
		t.Errorf("manifest.json = %s, want %s and %s", found["manifest.json"], conf, layer)
	}

	got := parse[struct {
		Architecture, OS, Created string
		RootFS                    struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}](t, found, conf)
	if got.Architecture != "arm64" || got.OS != "linux" || got.Created != "2026-01-02T03:04:05Z" {
		t.Errorf("configuration = %s", found[conf])
	}
	if want := []string{digest([]byte(root))}; !slices.Equal(got.RootFS.DiffIDs, want) {
		t.Errorf("diff_ids = %v, want %v", got.RootFS.DiffIDs, want)
	}
	zr, err := gzip.NewReader(bytes.NewReader(found[layer]))
	if err != nil {
		t.Fatal(err)
	}
	if content, err := io.ReadAll(zr); err != nil || string(content) != root {
		t.Errorf("the layer holds %q, %v", content, err)
	}
}

func TestEqualFilesMakeEqualArchives(t *testing.T) {
	one, two := write(t, example()), write(t, example())
	if !bytes.Equal(one, two) {
		t.Error("two archives of one image differ")
	}
	other := example()
	other.Labels["a"] = "3"
	if bytes.Equal(one, write(t, other)) {
		t.Error("another label makes no other archive")
	}
}

func TestWriteSaysWhatItWasDoing(t *testing.T) {
	err := Write(io.Discard, example(), iotest.ErrReader(io.ErrUnexpectedEOF))
	if !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), "compress the layer") {
		t.Errorf("Write: %v", err)
	}
}
