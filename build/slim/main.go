// Command coredns in the flavour slim: without the plugins that bring a client of a
// cloud, a cluster or a tracing service with them, for hosts and sidecars. It is less
// than half as large.
package main

import (
	"github.com/coredns/caddy"
	"github.com/coredns/coredns/coremain"

	_ "steadfast.internal/build/slim/plugins"
	"steadfast.internal/build/version"
)

func main() {
	caddy.AppVersion = version.String() + "-slim"
	coremain.Run()
}
