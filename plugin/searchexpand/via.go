package searchexpand

import (
	"context"
	"errors"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"

	"github.com/miekg/dns"
)

// errNoServer is met in embedding programs only: CoreDNS tells each query what
// server it came to.
var errNoServer = errors.New("no server to ask")

// wholeServer puts candidates to all server blocks of the server that got the
// query, as if the client had asked: the block whose zone fits answers, with its
// own plugins. It is what plugin/pkg/upstream does for aliases of file and
// rewrite, without the second copy of the request. The context tells our own
// block that the question is one of a walk, so it is not searched again.
type wholeServer struct{}

var _ plugin.Handler = wholeServer{}

// Name implements plugin.Handler.
func (wholeServer) Name() string { return pluginName }

// ServeDNS implements plugin.Handler. The server writes every reply that is due,
// of failures too; where it writes none, none is wanted.
func (wholeServer) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	server, ok := ctx.Value(dnsserver.Key{}).(*dnsserver.Server)
	if !ok {
		return dns.RcodeServerFailure, errNoServer
	}
	server.ServeDNS(ctx, w, r)
	return dns.RcodeSuccess, nil
}
