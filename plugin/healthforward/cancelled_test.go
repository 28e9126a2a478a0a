package healthforward

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/coredns/coredns/plugin/test"

	"github.com/miekg/dns"
)

func TestAQueryWhoseContextIsOverIsSentNowhere(t *testing.T) {
	bubble(t, "", func(t *testing.T, fw *Forwarder, a, b *model) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		before := len(a.queries) + len(b.queries)
		for range 100 {
			rcode, err := fw.ServeDNS(ctx, &test.ResponseWriter{}, question("www.example.org.", dns.TypeA))
			if rcode != dns.RcodeServerFailure || !errors.Is(err, context.Canceled) {
				t.Fatalf("ServeDNS = %d, %v, want SERVFAIL and %v", rcode, err, context.Canceled)
			}
			synctest.Wait()
		}
		if sent := len(a.queries) + len(b.queries) - before; sent != 0 {
			t.Errorf("%d queries were sent, want none", sent)
		}
	})
}
