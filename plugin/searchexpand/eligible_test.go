package searchexpand

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/test"

	"github.com/miekg/dns"
)

func TestDecideByName(t *testing.T) {
	c := config{
		entries: entriesOf("corp.example.", "lab.internal.", "alt.", "."),
		except:  []string{"lan.", "x.mylan."},
		block:   blocking{labels: []string{"printer", "wpad-2"}},
	}
	tests := map[string]struct {
		ndots int
		name  string
		want  decision
	}{
		"a bare name":                                   {1, "db01.", expand},
		"a bare name in capitals":                       {1, "DB01.", expand},
		"a bare name with an underscore":                {1, "_mysrv.", expand},
		"a bare name with a dot inside its label":       {1, `db\.01.`, expand},
		"a bare name with a backslash":                  {1, `db\\01.`, expand},
		"a bare name of the longest label":              {1, strings.Repeat("n", 63) + ".", expand},
		"as many dots as ndots":                         {1, "db01.lab.", pass},
		"one dot less than ndots":                       {2, "db01.lab.", expand},
		"ndots of 15, 14 dots":                          {15, strings.Repeat("a.", 15), expand},
		"ndots of 15, 15 dots":                          {15, strings.Repeat("a.", 16), pass},
		"the root":                                      {1, ".", pass},
		"a name without its closing dot":                {1, "db01", pass},
		"a suffix itself":                               {5, "corp.example.", pass},
		"under a suffix":                                {5, "db01.corp.example.", pass},
		"under a suffix, in capitals":                   {5, "Db01.CORP.Example.", pass},
		"the tail of a suffix is no suffix":             {5, "example.", expand},
		"a suffix must start at a label":                {5, "mycorp.example.", expand},
		"a suffix must start at a dot that is one":      {5, `my\.corp.example.`, expand},
		"a backslash before the dot is another label's": {5, `my\\.corp.example.`, pass},
		"localhost":                                     {1, "localhost.", pass},
		"multicast DNS":                                 {5, "printer.local.", pass},
		"a reverse name":                                {5, "1.2.0.192.in-addr.arpa.", pass},
		"the name that finds NAT64":                     {5, "ipv4only.arpa.", pass},
		"resolver discovery":                            {5, "_dns.resolver.arpa.", pass},
		"home.arpa":                                     {5, "tv.home.arpa.", pass},
		"onion, invalid, test, alt":                     {5, "x.onion.", pass},
		"private use, beside a suffix in it":            {5, "db01.internal.", pass},
		"a label that contains a special one":           {5, "db01.mylocal.", expand},
		"an address":                                    {5, "1.2.3.4.", pass},
		"a number":                                      {1, "12345.", pass},
		"a name that begins with digits":                {1, "7of9.", expand},
		"the question of the loop plugin":               {3, "6292641803451309721.7599326249113926499.", pass},
		"wpad":                                          {1, "wpad.", block},
		"isatap in capitals":                            {1, "ISATAP.", block},
		"a name that begins with wpad":                  {1, "wpad2.", expand},
		"a dotted name whose host is wpad":              {2, "wpad.lab.", pass},
		"wpad under a suffix":                           {5, "wpad.corp.example.", pass},
		"a name that the operator blocks":               {1, "Printer.", block},
		"another of them":                               {1, "wpad-2.", block},
		"a dotted name that begins with one":            {2, "printer.lab.", pass},
		"a name that only begins like one":              {1, "printer2.", expand},
		"an excepted zone":                              {1, "LAN.", pass},
		"under an excepted zone":                        {5, "tv.Lan.", pass},
		"under an excepted zone of two labels":          {5, "tv.x.mylan.", pass},
		"above an excepted zone":                        {5, "mylan.", expand},
		"beside an excepted zone":                       {5, "tv.mylan.", expand},
		"an excepted zone must start at a label":        {5, "mylan.vlan.", expand},
		"a special zone that is a suffix":               {5, "db01.alt.", pass},
		"that zone itself":                              {5, "alt.", pass},
		"the tail of home.arpa":                         {5, "home.", expand},
		"home.arpa itself":                              {5, "home.arpa.", pass},
		"a last label of digits":                        {5, "db01.42.", pass},
		"a first label of digits":                       {5, "42.db01.", expand},
		"digits with a sign":                            {1, "-42.", expand},
		"a name of one octet that is no letter":         {1, `\000.`, expand},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			m := new(dns.Msg)
			m.Question = []dns.Question{{Name: tc.name, Qtype: dns.TypeA, Qclass: dns.ClassINET}}
			c.ndots = tc.ndots
			if got := newRules(c).decide(m); got != tc.want {
				t.Errorf("decide(%q) with ndots %d = %d, want %d", tc.name, tc.ndots, got, tc.want)
			}
		})
	}
}

func TestLabelsBeginWhereDNSSaysThatTheyDo(t *testing.T) {
	names := []string{
		"a.", "a.b.", `a\.b.`, `a\\.b.`, `a\\\.b.c.`, `\...`, `\.\.\..x.`, `a\046b.c.`, `\\.`, `\092.x.`, strings.Repeat(`\200`, 63) + ".x.",
		strings.Repeat(`\.`, 63) + ".x.", strings.Repeat("a.", 127),
	}
	for _, name := range names {
		want := dns.Split(name)
		got, ok := labels(name, nil, len(want))
		if !ok || !slices.Equal(got, want) {
			t.Errorf("labels(%q) = %v, %v, want %v", name, got, ok, want)
		}
		if _, ok := labels(name, nil, len(want)-1); ok {
			t.Errorf("labels(%q) has no more than %d", name, len(want)-1)
		}
	}
}

func TestDecideBySpecialZone(t *testing.T) {
	for _, zone := range specialZones {
		for _, name := range []string{zone, "x." + zone, "X." + strings.ToUpper(zone)} {
			if got := newRules(config{ndots: 5, entries: entriesOf("corp.example.")}).decide(query(name, dns.TypeA)); got != pass {
				t.Errorf("decide(%q) = %d, want %d", name, got, pass)
			}
		}
	}
}

func TestBlockNoneBlocksWhatIsNamedOnly(t *testing.T) {
	r := newRules(config{ndots: 1, entries: entriesOf("corp.example."), block: blocking{labels: []string{"printer"}, none: true}})
	for name, want := range map[string]decision{"wpad.": expand, "isatap.": expand, "printer.": block} {
		if got := r.decide(query(name, dns.TypeA)); got != want {
			t.Errorf("decide(%q) = %d, want %d", name, got, want)
		}
	}
}

func TestAnExceptedNameIsNotBlocked(t *testing.T) {
	r := newRules(config{ndots: 1, entries: entriesOf("corp.example."), except: []string{"wpad."}})
	if got := r.decide(query("wpad.", dns.TypeA)); got != pass {
		t.Errorf("decide = %d, want %d: a server of ours has it", got, pass)
	}
}

func TestDecideByQuery(t *testing.T) {
	tests := map[string]struct {
		change func(m *dns.Msg)
		want   decision
	}{
		"a plain query":    {func(*dns.Msg) {}, expand},
		"DO set":           {func(m *dns.Msg) { m.SetEdns0(1232, true) }, expand},
		"RD not set":       {func(m *dns.Msg) { m.RecursionDesired = false }, expand},
		"CD set":           {func(m *dns.Msg) { m.CheckingDisabled = true }, pass},
		"class CH":         {func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }, pass},
		"class ANY":        {func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassANY }, pass},
		"a notification":   {func(m *dns.Msg) { m.Opcode = dns.OpcodeNotify }, pass},
		"an update":        {func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate }, pass},
		"no question":      {func(m *dns.Msg) { m.Question = nil }, pass},
		"two questions":    {func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) }, pass},
		"signed with TSIG": {func(m *dns.Msg) { m.SetTsig("key.", dns.HmacSHA256, 300, 0) }, pass},
		"signed with SIG(0)": {func(m *dns.Msg) {
			m.Extra = append(m.Extra, &dns.SIG{RRSIG: dns.RRSIG{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeSIG}}})
		}, pass},
		"an OPT is no signature": {func(m *dns.Msg) { m.SetEdns0(1232, false) }, expand},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			m := query("db01.", dns.TypeA)
			tc.change(m)
			if got := newRules(config{ndots: 1, entries: entriesOf("corp.example.")}).decide(m); got != tc.want {
				t.Errorf("decide = %d, want %d", got, tc.want)
			}
		})
	}
}

func TestDecideByType(t *testing.T) {
	asked := []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeHTTPS, dns.TypeSVCB, dns.TypeTXT, dns.TypeSRV, dns.TypeMX, dns.TypeSSHFP, dns.TypePTR, 65280}
	notAsked := []uint16{
		dns.TypeDNSKEY, dns.TypeDS, dns.TypeRRSIG, dns.TypeNSEC, dns.TypeNSEC3, dns.TypeNSEC3PARAM, dns.TypeCDS, dns.TypeCDNSKEY,
		dns.TypeCSYNC, dns.TypeNS, dns.TypeSOA, dns.TypeCNAME, dns.TypeDNAME, dns.TypeAXFR, dns.TypeIXFR, dns.TypeTKEY, dns.TypeTSIG,
		dns.TypeANY, dns.TypeNULL,
	}
	r := newRules(config{ndots: 1, entries: entriesOf("corp.example.")})
	for _, qtype := range asked {
		if got := r.decide(query("db01.", qtype)); got != expand {
			t.Errorf("decide of type %s = %d, want %d", dns.Type(qtype), got, expand)
		}
	}
	for _, qtype := range notAsked {
		if got := r.decide(query("db01.", qtype)); got != pass {
			t.Errorf("decide of type %s = %d, want %d", dns.Type(qtype), got, pass)
		}
	}
}

// notEligible are queries that need each of the checks up to the last.
var notEligible = map[string]*dns.Msg{
	"a full name":                 query("www.example.org.", dns.TypeA),
	"a full name in capitals":     query("WWW.Example.ORG.", dns.TypeA),
	"a short name under a suffix": query("Db01.Lab.D99.Example.", dns.TypeA),
	"a special name":              query("printer.local.", dns.TypeA),
	"an excepted name":            query("tv.Except.D1.Test-Zone.", dns.TypeA),
	"a blocked name":              query("WPAD.", dns.TypeA),
	"a number":                    query("12345.", dns.TypeA),
	"a name of the most labels":   query(strings.Repeat("a.", 127), dns.TypeA),
	"a name of escapes":           query(strings.Repeat(strings.Repeat(`\200`, 60)+".", 4)+"local.", dns.TypeA),
	"a type that is not searched": query("db01.", dns.TypeNS),
}

func TestDecidingAgainstAllocatesNothing(t *testing.T) {
	for name, m := range notEligible {
		for _, ndots := range []int{1, 5} {
			r := newRules(config{ndots: ndots, entries: entriesOf(longList(100)...), except: []string{"test-zone."}})
			f := &followedFile{}
			f.now.Store(&fileList{ndots: ndots})
			r.files = []*fromFile{{file: f}}
			s := &SearchExpand{rules: r}
			ctx := context.WithValue(t.Context(), dnsserver.LoopKey{}, 0)
			var d decision
			if n := testing.AllocsPerRun(100, func() { d = s.rules.decide(m); _ = nested(ctx) }); n != 0 {
				t.Errorf("%s, ndots %d: %v allocations, want 0", name, ndots, n)
			}
			_ = d
		}
	}
}

func BenchmarkDecideNotEligible(b *testing.B) {
	for name, m := range notEligible {
		for _, ndots := range []string{"1", "5"} {
			b.Run(strings.ReplaceAll(name, " ", "_")+"/ndots"+ndots, func(b *testing.B) {
				r := newRules(config{ndots: int(ndots[0] - '0'), entries: entriesOf(longList(100)...), except: []string{"test-zone."}})
				b.ReportAllocs()
				for b.Loop() {
					r.decide(m)
				}
			})
		}
	}
}

// at is a client that has its address at hand, as a socket has.
type at struct {
	test.ResponseWriter
	addr net.Addr
}

func (a *at) RemoteAddr() net.Addr { return a.addr }

// BenchmarkPassThrough is what a query that is not ours costs in all, beside a
// chain without us. CoreDNS itself allocates a writer for every plugin.
func BenchmarkPassThrough(b *testing.B) {
	next := plugin.HandlerFunc(func(context.Context, dns.ResponseWriter, *dns.Msg) (int, error) { return 0, nil })
	c := newConfig()
	c.entries = entriesOf(longList(100)...)
	elsewhere := c
	elsewhere.clients.only = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32")}
	s := newStanzas([]config{elsewhere, c})
	s.follow(next)
	ctx := context.WithValue(context.Background(), dnsserver.LoopKey{}, 0)
	w, m := &at{addr: &net.UDPAddr{IP: net.IPv4(198, 51, 100, 1)}}, query("www.example.org.", dns.TypeA)
	b.Run("without", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = plugin.NextOrFailure("test", next, ctx, w, m)
		}
	})
	b.Run("with", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = plugin.NextOrFailure("test", s, ctx, w, m)
		}
	})
}
