package healthforward

import (
	"testing"
	"time"

	"github.com/miekg/dns"
)

func TestAQueryTakesNoLongerThanItsDeadline(t *testing.T) {
	for name, tc := range map[string]struct {
		options string
		qtype   uint16
		want    time.Duration
	}{
		"the default":                     {"", dns.TypeA, 4 * time.Second},
		"shorter":                         {"deadline 1500ms", dns.TypeA, 1500 * ms},
		"longer":                          {"deadline 6s", dns.TypeA, 6 * time.Second},
		"raised by read_timeout":          {"deadline 2s\nread_timeout 5s", dns.TypeA, 5 * time.Second},
		"of what is sent once":            {"deadline 1500ms", dns.TypeHINFO, 1500 * ms},
		"of what is sent once, untouched": {"", dns.TypeHINFO, 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, tc.options, func(t *testing.T, fw *Forwarder, a, b *model) {
				for _, m := range []*model{a, b} {
					m.set(func(m *model) { m.deaf = true })
				}
				began := time.Now()
				reply, rcode, err := ask(t, fw, question("example.org.", tc.qtype))
				if took := time.Since(began); took != tc.want || reply != nil || rcode != dns.RcodeServerFailure || err != nil {
					t.Errorf("wrote %v, ServeDNS = %d, %v after %v; want SERVFAIL, unwritten, after %v", reply, rcode, err, took, tc.want)
				}
			})
		})
	}
}
