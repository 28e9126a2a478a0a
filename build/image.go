//go:build ignore

// Image writes a container image of the archive that build/rootfs.go wrote, without
// a container engine: an OCI image layout that docker load reads as well.
//
//	go run build/image.go -name NAME:TAG -arch GOARCH -label KEY=VALUE... -rootfs FILE -out FILE
package main

import (
	"errors"
	"flag"
	"log"
	"os"
	"strings"
	"time"

	"steadfast.internal/build/internal/ociimage"
)

func main() {
	log.SetFlags(0)
	img := ociimage.Image{Labels: make(map[string]string)}
	flag.StringVar(&img.Name, "name", "", "`name:tag` of the image")
	flag.StringVar(&img.Architecture, "arch", "amd64", "architecture of the program in it, as Go calls it")
	flag.Func("label", "`key=value`, any number of times", func(s string) error {
		key, value, ok := strings.Cut(s, "=")
		if !ok {
			return errors.New("no = in it")
		}
		img.Labels[key] = value
		return nil
	})
	from := flag.String("rootfs", "", "archive of its `files`")
	out := flag.String("out", "", "archive to `write`")
	flag.Parse()
	_, tag, tagged := strings.Cut(img.Name, ":")
	if !tagged || *from == "" || *out == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	img.Tag = tag
	// The label is there for readers of labels; one date must not stand twice.
	if at := img.Labels["org.opencontainers.image.created"]; at != "" {
		created, err := time.Parse(time.RFC3339, at)
		if err != nil {
			log.Fatalf("label org.opencontainers.image.created: %v", err)
		}
		img.Created = created
	}
	if err := write(*out, img, *from); err != nil {
		log.Fatal(err)
	}
}

func write(out string, img ociimage.Image, from string) error {
	root, err := os.Open(from)
	if err != nil {
		return err
	}
	defer root.Close()
	archive, err := os.Create(out)
	if err != nil {
		return err
	}
	defer archive.Close()
	if err := ociimage.Write(archive, img, root); err != nil {
		return err
	}
	return archive.Close()
}
