package healthforward

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"steadfast.internal/plugin/internal/dnsfake"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/forward"
	"github.com/coredns/coredns/plugin/pkg/proxy"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
)

// BenchmarkServeDNS compares a query through healthforward with one through
// CoreDNS's forward, side by side: one upstream in this process, which is most of
// the time of both.
func BenchmarkServeDNS(b *testing.B) {
	var asked atomic.Uint64 // each name once, or most of them would share a packet
	up := dnsfake.New(b, dnsfake.Address("192.0.2.1"))
	stock := forward.New()
	stock.SetProxy(proxy.NewProxy("forward", up.Addr(), "dns"))
	b.Cleanup(func() { stock.OnShutdown() })
	for name, h := range map[string]plugin.Handler{
		"healthforward": start(b, "healthforward . %s", up.Addr()),
		"forward":       stock,
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(16)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					m := question(fmt.Sprintf("n%08d.example.org.", asked.Add(1)), dns.TypeA)
					if rcode, err := h.ServeDNS(context.Background(), &test.ResponseWriter{}, m); rcode != 0 || err != nil {
						b.Errorf("ServeDNS = %d, %v", rcode, err)
					}
				}
			})
		})
	}
}
