//go:build ignore

// Rootfs writes the archive that build/Dockerfile adds to an empty image.
//
//	go run build/rootfs.go -program FILE -certs FILE -out FILE
package main

import (
	"flag"
	"log"
	"os"

	"steadfast.internal/build/internal/rootfs"
)

func main() {
	log.SetFlags(0)
	program := flag.String("program", "", "static `binary` that becomes /coredns")
	certs := flag.String("certs", "/etc/ssl/certs/ca-certificates.crt", "`bundle` of CA certificates")
	out := flag.String("out", "", "archive to `write`")
	flag.Parse()
	if *program == "" || *out == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	archive, err := os.Create(*out)
	if err != nil {
		log.Fatal(err)
	}
	if err := rootfs.Write(archive, *program, *certs); err != nil {
		log.Fatal(err)
	}
	if err := archive.Close(); err != nil {
		log.Fatal(err)
	}
}
