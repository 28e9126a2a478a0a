//go:build ignore

// Generate writes the Go file that compiles in the plugins of a plugin.cfg.
// From the module's root:
//
//	go run build/generate.go [-in plugin.cfg] [-out build/plugins/zplugin.go] [-replace DIRECTIVE:PACKAGE] [-without DIRECTIVE,...]
//
// An -out of - is standard output. The last two make a flavour: -replace puts another
// package in the place of what stands for that directive in plugin.cfg, -without leaves
// directives out.
package main

import (
	"flag"
	"log"
	"os"
	"strings"

	"steadfast.internal/build/internal/plugincfg"
)

func main() {
	log.SetFlags(0)
	in := flag.String("in", "plugin.cfg", "list of plugins to `read`")
	out := flag.String("out", "build/plugins/zplugin.go", "Go file to `write`, - for standard output")
	replace := flag.String("replace", "", "`line` that stands for the one of its directive in plugin.cfg")
	without := flag.String("without", "", "`directives` to leave out, with commas between")
	flag.Parse()
	if flag.NArg() > 0 {
		log.Fatalf("unexpected argument %q", flag.Arg(0))
	}

	cfg, err := os.Open(*in)
	if err != nil {
		log.Fatal(err)
	}
	defer cfg.Close()
	entries, err := plugincfg.Parse(cfg)
	if err != nil {
		log.Fatalf("%s: %v", *in, err)
	}
	if *replace != "" {
		if err := plugincfg.Replace(entries, *replace); err != nil {
			log.Fatal(err)
		}
	}
	if *without != "" {
		entries, err = plugincfg.Without(entries, strings.Split(*without, ",")...)
		if err != nil {
			log.Fatal(err)
		}
	}
	source, err := plugincfg.Source(entries)
	if err != nil {
		log.Fatalf("%s: %v", *in, err)
	}
	if *out == "-" {
		_, err = os.Stdout.Write(source)
	} else {
		err = os.WriteFile(*out, source, 0o644)
	}
	if err != nil {
		log.Fatal(err)
	}
}
