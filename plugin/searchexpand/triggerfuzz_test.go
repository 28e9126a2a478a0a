package searchexpand

import (
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// FuzzTrigger searches any name in any namespace: the name asked comes first, and all that
// is asked can be sent and is made of what the client wrote.
func FuzzTrigger(f *testing.F) {
	f.Add("www.example.default.svc.cluster.local.", "svc.cluster.local", "a.test .")
	f.Add(`w\.w\\\\.x.default.svc.cluster.local.`, "svc.cluster.local", "")
	f.Add(strings.Repeat(strings.Repeat("n", 60)+".", 3)+"ns.a.b.", "a.b", strings.Repeat("y", 63)+".test")
	f.Fuzz(func(t *testing.T, name, zone, words string) {
		packed := make([]byte, 512)
		n, err := dns.PackDomainName(name, packed, 0, nil, false)
		if err != nil || n > maxNameOctets || !dns.IsFqdn(name) {
			t.Skip("not a name that a message can hold")
		}
		if name, _, err = dns.UnpackDomainName(packed[:n], 0); err != nil {
			t.Skip(err)
		}
		c, err := parseOne(dispenser("searchexpand " + words + " {\n trigger namespace " + zone + "\n}"))
		if err != nil || len(c.triggers.zones) != 1 {
			t.Skip("not a directive")
		}
		zone = c.triggers.zones[0]
		base, namespace, ok := cutNamespace(name, zone)
		if !ok {
			return
		}
		if joined := base + namespace + "." + zone; !strings.EqualFold(joined, name) || dots(base) < 1 || dns.CountLabel(namespace) != 1 {
			t.Fatalf("%q is cut into %q, %q and %q", name, base, namespace, zone)
		}
		p := planNamespace(name, base, namespace, zone, listOf(c.entries))
		if p.tries[0].name != name || !p.tries[0].asked || p.tries[1].gate != ifExists || p.tries[2].gate != ifMissing {
			t.Errorf("the plan begins with %+v", p.tries[:3])
		}
		for _, try := range p.tries {
			if n, err := dns.PackDomainName(try.name, packed, 0, nil, false); err != nil || n > maxNameOctets {
				t.Errorf("%q takes %d octets: %v", try.name, n, err)
			}
			if try.gate == noGate && !try.asked && !strings.HasPrefix(try.name, base) {
				t.Errorf("%q is not made of %q", try.name, base)
			}
		}
	})
}
