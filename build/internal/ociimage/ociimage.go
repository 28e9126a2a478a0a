// Package ociimage writes a container image of one layer as an archive: an OCI image
// layout (what skopeo, podman, containerd and Docker from version 25 on read), which is
// also what `docker save` writes (for any docker load). It needs no engine, makes
// images of any architecture anywhere, and makes equal archives of equal files.
package ociimage

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// Image describes the image. build/Dockerfile says the same about the image that is
// built by an engine; a test compares the two.
type Image struct {
	Name         string // with tag, as in steadfast/coredns:v1.15.0-steadfast.1
	Tag          string // the tag alone
	Architecture string // as Go calls it
	Labels       map[string]string
	Created      time.Time
}

// blob is a file of the layout that is named by its content.
type blob struct {
	MediaType string            `json:"mediaType"`
	Digest    string            `json:"digest"`
	Size      int64             `json:"size"`
	Platform  *platform         `json:"platform,omitempty"`
	Notes     map[string]string `json:"annotations,omitempty"`
	content   []byte
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

func newBlob(mediaType string, content []byte) blob {
	return blob{MediaType: mediaType, Digest: digest(content), Size: int64(len(content)), content: content}
}

func (b blob) path() string { return "blobs/sha256/" + b.Digest[len("sha256:"):] }

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}

const ociType = "application/vnd.oci.image."

// Write writes the image whose file system is the tar archive root.
func Write(w io.Writer, img Image, root io.Reader) error {
	layer, diffID, err := compress(root)
	if err != nil {
		return fmt.Errorf("compress the layer: %w", err)
	}
	conf, err := json.Marshal(config(img, diffID))
	if err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	layerBlob, confBlob := newBlob(ociType+"layer.v1.tar+gzip", layer), newBlob(ociType+"config.v1+json", conf)
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": ociType + "manifest.v1+json",
		"config": confBlob, "layers": []blob{layerBlob},
	})
	if err != nil {
		return fmt.Errorf("write the manifest: %w", err)
	}
	manifestBlob := newBlob(ociType+"manifest.v1+json", manifest)
	files, err := entryFiles(img, manifestBlob, confBlob, layerBlob)
	if err != nil {
		return fmt.Errorf("write the index: %w", err)
	}
	for _, b := range []blob{confBlob, layerBlob, manifestBlob} {
		files = append(files, file{b.path(), b.content})
	}
	return archive(w, files)
}

// compress returns root compressed, and the digest of what it was before.
func compress(root io.Reader) (compressed []byte, diffID string, err error) {
	var buf bytes.Buffer
	zw := gzip.NewWriter(&buf)
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(zw, sum), root); err != nil {
		return nil, "", err
	}
	if err := zw.Close(); err != nil {
		return nil, "", err
	}
	return buf.Bytes(), "sha256:" + hex.EncodeToString(sum.Sum(nil)), nil
}

// config is what a container is started with.
func config(img Image, diffID string) map[string]any {
	created := img.Created.UTC().Format(time.RFC3339)
	return map[string]any{
		"created":      created,
		"architecture": img.Architecture,
		"os":           "linux",
		"config": map[string]any{
			"User":         "65532:65532",
			"ExposedPorts": map[string]any{"53/tcp": struct{}{}, "53/udp": struct{}{}},
			"Env":          []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			"Entrypoint":   []string{"/coredns"},
			"WorkingDir":   "/",
			"Labels":       img.Labels,
		},
		"rootfs":  map[string]any{"type": "layers", "diff_ids": []string{diffID}},
		"history": []any{map[string]any{"created": created, "created_by": "build/image.go"}},
	}
}

// file is an entry of the archive.
type file struct {
	name    string
	content []byte
}

// entryFiles are those by which readers find the rest: OCI's two, and Docker's.
func entryFiles(img Image, manifest, conf, layer blob) ([]file, error) {
	manifest.Platform = &platform{Architecture: img.Architecture, OS: "linux"}
	manifest.Notes = map[string]string{
		"org.opencontainers.image.ref.name": img.Tag,
		// containerd, so k3s too, calls the image so.
		"io.containerd.image.name": "docker.io/" + img.Name,
	}
	var files []file
	for _, f := range []struct {
		name    string
		content any
	}{
		{"oci-layout", map[string]string{"imageLayoutVersion": "1.0.0"}},
		{"index.json", map[string]any{"schemaVersion": 2, "mediaType": ociType + "index.v1+json", "manifests": []blob{manifest}}},
		{"manifest.json", []any{map[string]any{"Config": conf.path(), "RepoTags": []string{img.Name}, "Layers": []string{layer.path()}}}},
	} {
		content, err := json.Marshal(f.content)
		if err != nil {
			return nil, err
		}
		files = append(files, file{f.name, content})
	}
	return files, nil
}

func archive(w io.Writer, files []file) error {
	tw := tar.NewWriter(w)
	for _, dir := range []string{"blobs/", "blobs/sha256/"} {
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755, ModTime: time.Unix(0, 0)}); err != nil {
			return fmt.Errorf("add %s: %w", dir, err)
		}
	}
	for _, f := range files {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: 0o644, Size: int64(len(f.content)), ModTime: time.Unix(0, 0)}
		if err := tw.WriteHeader(h); err != nil {
			return fmt.Errorf("add %s: %w", f.name, err)
		}
		if _, err := tw.Write(f.content); err != nil {
			return fmt.Errorf("add %s: %w", f.name, err)
		}
	}
	return tw.Close()
}
