//go:build ignore

// Rootfs writes the archive that build/Dockerfile adds to an empty image.
//
//	go run build/rootfs.go -program FILE -certs FILE -zones FILE -out FILE
package main

import (
	"flag"
	"log"
	"os"

	"steadfast.internal/build/internal/rootfs"
)

func main() {
	log.SetFlags(0)
	var s rootfs.Source
	flag.StringVar(&s.Program, "program", "", "static `binary` that becomes /coredns")
	flag.StringVar(&s.Certs, "certs", "/etc/ssl/certs/ca-certificates.crt", "`bundle` of CA certificates")
	flag.StringVar(&s.Zones, "zones", "", "Go's zoneinfo.`zip`")
	out := flag.String("out", "", "archive to `write`")
	flag.Parse()
	if s.Program == "" || s.Zones == "" || *out == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	archive, err := os.Create(*out)
	if err != nil {
		log.Fatal(err)
	}
	if err := rootfs.Write(archive, s); err != nil {
		log.Fatal(err)
	}
	if err := archive.Close(); err != nil {
		log.Fatal(err)
	}
}
