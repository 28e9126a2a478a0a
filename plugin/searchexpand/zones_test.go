package searchexpand

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/test"
	"github.com/coredns/coredns/request"

	"github.com/miekg/dns"
)

// zones stands for the rest of the chain: a resolver that sees a few zones and
// the root. Names under sf.test. get SERVFAIL, under refused.test. REFUSED, under
// fail.test. an error with nothing written, under drop.test. nothing at all, and
// under slow.test. an answer only when the context ends.
type zones struct {
	records map[string][]dns.RR // by owner in lower case
	minimum map[string]uint32   // by zone, the TTL of its denials

	mu    sync.Mutex
	asked []string // name and type of each question
}

var _ plugin.Handler = (*zones)(nil)

// newZones returns the test bed that the rows of the handler tests refer to.
func newZones(t testing.TB) *zones {
	t.Helper()
	z := &zones{
		records: make(map[string][]dns.RR),
		minimum: map[string]uint32{".": 86400, "a.test.": 30, "b.test.": 20},
	}
	z.add(t, "a.test.", 60, "v4only A 192.0.2.10", "both A 192.0.2.11", "both AAAA 2001:db8::11", "txtonly TXT here",
		"chain CNAME v4only.b.test.", "chain2 CNAME mid.a.test.", "mid CNAME both.a.test.", "dangle CNAME gone.a.test.",
		"x.ent A 192.0.2.12")
	z.add(t, "b.test.", 300, "v4only A 192.0.2.20", "v4only AAAA 2001:db8::20", "txtonly A 192.0.2.22", "bonly A 192.0.2.23",
		"dangle A 192.0.2.24", "ent A 192.0.2.25", strings.Repeat("n", 63)+" A 192.0.2.26")
	z.add(t, "example.", 120, "ext A 192.0.2.99")
	for i := range 60 {
		z.add(t, "b.test.", 300, fmt.Sprintf("big A 198.51.100.%d", i))
	}
	return z
}

func (z *zones) add(t testing.TB, zone string, ttl int, lines ...string) {
	t.Helper()
	for _, line := range lines {
		owner, data, _ := strings.Cut(line, " ")
		rr, err := dns.NewRR(fmt.Sprintf("%s.%s %d IN %s", owner, zone, ttl, data))
		if err != nil {
			t.Fatal(err)
		}
		name := rr.Header().Name
		z.records[name] = append(z.records[name], rr)
	}
}

func (z *zones) Name() string { return "zones" }

func (z *zones) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	q := r.Question[0]
	z.mu.Lock()
	z.asked = append(z.asked, q.Name+" "+dns.Type(q.Qtype).String())
	z.mu.Unlock()

	m := new(dns.Msg).SetReply(r)
	m.Authoritative = true
	name := strings.ToLower(q.Name)
	switch {
	case dns.IsSubDomain("sf.test.", name):
		m.Rcode = dns.RcodeServerFailure
	case dns.IsSubDomain("refused.test.", name):
		m.Rcode = dns.RcodeRefused
	case dns.IsSubDomain("fail.test.", name):
		return dns.RcodeServerFailure, fmt.Errorf("dial 192.0.2.1:53: refused")
	case dns.IsSubDomain("drop.test.", name):
		return dns.RcodeSuccess, nil
	case dns.IsSubDomain("slow.test.", name):
		<-ctx.Done()
		return dns.RcodeServerFailure, ctx.Err()
	default:
		z.lookup(m, name, q.Qtype)
	}
	_ = w.WriteMsg(m)
	return m.Rcode, nil
}

// lookup fills m with what the zones say about name.
func (z *zones) lookup(m *dns.Msg, name string, qtype uint16) {
	for range 5 {
		alias := ""
		found := false
		for _, rr := range z.records[name] {
			if rr.Header().Rrtype == qtype {
				m.Answer = append(m.Answer, dns.Copy(rr))
				found = true
			} else if cname, ok := rr.(*dns.CNAME); ok {
				m.Answer = append(m.Answer, dns.Copy(rr))
				alias = cname.Target
			}
		}
		if found {
			m.Ns = append(m.Ns, &dns.NS{Hdr: dns.RR_Header{Name: z.zone(name), Rrtype: dns.TypeNS, Class: dns.ClassINET, Ttl: 60}, Ns: "ns.invalid."})
			return
		}
		if alias == "" {
			break
		}
		name = alias
	}
	if !z.exists(name) {
		m.Rcode = dns.RcodeNameError
	}
	zone := z.zone(name)
	m.Ns = []dns.RR{&dns.SOA{
		Hdr: dns.RR_Header{Name: zone, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 3600},
		Ns:  "ns.invalid.", Mbox: "nobody.invalid.", Minttl: z.minimum[zone],
	}}
}

// exists reports whether name has records or a name below it does.
func (z *zones) exists(name string) bool {
	for owner := range z.records {
		if dns.IsSubDomain(name, owner) {
			return true
		}
	}
	return false
}

func (z *zones) zone(name string) string {
	for zone := range z.minimum {
		if zone != root && dns.IsSubDomain(zone, name) {
			return zone
		}
	}
	return root
}

// questions returns what was asked since the last call.
func (z *zones) questions() []string {
	z.mu.Lock()
	defer z.mu.Unlock()
	asked := z.asked
	z.asked = nil
	return asked
}

// recorder is the client: it counts replies, because two are one too many.
type recorder struct {
	test.ResponseWriter
	replies []*dns.Msg
}

func (r *recorder) WriteMsg(m *dns.Msg) error {
	r.replies = append(r.replies, m.Copy())
	return nil
}

// serve asks s as a CoreDNS server would, and returns the reply that the client
// gets, or nil.
func serve(t testing.TB, s plugin.Handler, r *dns.Msg) *dns.Msg {
	t.Helper()
	w := &recorder{}
	asked := r.Copy()
	rcode, err := s.ServeDNS(t.Context(), request.NewScrubWriter(r, w), r)
	if err != nil && len(w.replies) > 0 {
		t.Errorf("ServeDNS returned %v after a reply", err)
	}
	if !plugin.ClientWrite(rcode) {
		w.replies = append(w.replies, new(dns.Msg).SetRcode(r, rcode))
	}
	if r.Question[0] != asked.Question[0] {
		t.Errorf("the query's question became %v, was %v", r.Question[0], asked.Question[0])
	}
	switch len(w.replies) {
	case 0:
		return nil
	case 1:
		return w.replies[0]
	}
	t.Fatalf("%d replies, want one", len(w.replies))
	return nil
}

// newTestPlugin returns the plugin in front of next, with a limit and a credit of its
// own, and without probes for wildcards.
func newTestPlugin(next plugin.Handler, ndots int, list ...string) *SearchExpand {
	c := newConfig()
	c.entries, c.ndots = entriesOf(list...), ndots
	return newTestPluginOf(next, c)
}

// newTestPluginOf is newTestPlugin for whatever a directive may say.
func newTestPluginOf(next plugin.Handler, c config) *SearchExpand {
	c.wildcard = wildcardAllow
	s := newSearchExpand(c)
	s.Next = next
	s.limit = &limit{max: 16}
	s.budget = newBudget(c.rates, &credit{})
	return s
}

// entriesOf returns what the Corefile spells out as the domains.
func entriesOf(list ...string) []entry {
	var entries []entry
	for _, d := range list {
		entries = append(entries, fixedEntry(d))
	}
	return entries
}

// domainsOf returns the domains of a list that the Corefile spells out.
func domainsOf(list ...string) []domain { return listOf(entriesOf(list...)).domains }

// textsOf returns what a stanza completes names with.
func textsOf(c config) []string {
	var texts []string
	for _, e := range c.entries {
		texts = append(texts, e.text)
	}
	return texts
}

// tried returns the candidate that a domain of the Corefile makes.
func tried(name, suffix string) candidate {
	return candidate{name: name, domain: domain{suffix: suffix, entry: suffix}, asked: suffix == root}
}

// parseOne returns the only stanza of a server block, or none.
func parseOne(d *caddyfile.Dispenser) (config, error) {
	stanzas, err := parse(d)
	if err != nil || len(stanzas) == 0 {
		return config{}, err
	}
	return stanzas[0], nil
}

func query(name string, qtype uint16) *dns.Msg {
	m := new(dns.Msg)
	m.SetQuestion(name, qtype)
	return m
}

// longList returns n suffixes: d0.example., d1.example. and so on.
func longList(n int) []string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf("d%d.example.", i))
	}
	return list
}

// records returns the strings of rrs with single spaces for tabs.
func records(rrs []dns.RR) []string {
	var out []string
	for _, rr := range rrs {
		out = append(out, strings.ReplaceAll(rr.String(), "\t", " "))
	}
	return out
}
