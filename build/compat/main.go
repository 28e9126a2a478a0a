// Command coredns in the flavour compat: healthforward answers to the word forward
// too, so that the Corefile of a stock CoreDNS runs on it unchanged, and on the
// stock program again.
package main

import (
	"github.com/coredns/caddy"
	"github.com/coredns/coredns/coremain"

	_ "steadfast.internal/build/compat/plugins"
	"steadfast.internal/build/version"
)

func main() {
	caddy.AppVersion = version.String() + "-compat"
	coremain.Run()
}
