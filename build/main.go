// Command coredns is CoreDNS with the plugins that plugin.cfg lists.
package main

import (
	"github.com/coredns/caddy"
	"github.com/coredns/coredns/coremain"

	_ "steadfast.internal/build/plugins"
	"steadfast.internal/build/version"
)

//go:generate go run generate.go -in ../plugin.cfg -out plugins/zplugin.go
//go:generate go run generate.go -in ../plugin.cfg -out compat/plugins/zplugin.go -replace forward:steadfast.internal/plugin/healthforward/asforward
//go:generate go run generate.go -in ../plugin.cfg -out slim/plugins/zplugin.go -without route53,azure,clouddns,k8s_external,kubernetes,etcd,nomad,trace

func main() {
	caddy.AppVersion = version.String()
	coremain.Run()
}
