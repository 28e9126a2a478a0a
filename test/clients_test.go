package test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// clientKinds are the clients there are, by what their users call them.
var clientKinds = map[string]clientKind{
	"glibc":            {argv: compiled("glibc")},
	"getent":           {argv: getent, read: readGetent},
	"musl":             {argv: compiled("musl"), overUDP: true},
	"Go":               {argv: compiled("lookup"), env: []string{"GODEBUG=netdns=go"}},
	"Go with cgo":      {argv: compiled("lookup"), env: []string{"GODEBUG=netdns=cgo"}},
	"c-ares":           {argv: compiled("cares")},
	"Python":           {argv: python},
	"BusyBox nslookup": {argv: busyboxNslookup, read: readBusybox, overUDP: true, ownList: true},
	"dig":              {argv: dig, read: readDig, noList: true},
}

// clientLists are search lists of the server, each on an address of its own.
var clientLists = map[string]string{
	"127.53.0.1": "a.test b.test",
	"127.53.0.2": "a.test sf.test b.test",
	"127.53.0.3": "a.test refused.test b.test",
	"127.53.0.4": "a.test silent.test b.test",
	"127.53.0.5": "w.test b.test",
	"127.53.0.6": "w6.test b.test",
	"127.53.0.7": "nx6.test b.test",
	"127.53.0.8": "silent.test b.test",
}

// What stands in a client's resolv.conf besides the server's address. The last
// list is one that the server knows nothing of.
const (
	asDelivered   = ""
	oneTry        = "options timeout:1 attempts:1\n"
	oneByOne      = "options single-request-reopen\n"
	ownSearchList = "search own.test\n"
)

// clientOptions are those that the names of a list are looked up with. musl waits
// until its time is over when it is told of a failure, so that it gets little.
var clientOptions = map[string][]string{
	"a.test b.test":              {asDelivered, oneTry, oneByOne, ownSearchList},
	"a.test sf.test b.test":      {oneTry},
	"a.test refused.test b.test": {oneTry},
	"a.test silent.test b.test":  {asDelivered},
	"w.test b.test":              {asDelivered},
	"w6.test b.test":             {asDelivered},
	"nx6.test b.test":            {asDelivered},
	"silent.test b.test":         {oneTry},
}

// clientRow is what a bare name means.
type clientRow struct {
	// owner is the full name: the bare one has its addresses and its canonical
	// name, and a client says of both the same.
	owner string
	// like is a full name of which a client says what it should say of this one,
	// if that is not owner.
	like string
}

// Names without an address, asked directly.
const (
	noSuchName = "nope.b.test"
	noAddress  = "deadtxt.a.test"
	failure    = "nope.sf.test"
)

// clientRows are the names, by search list.
var clientRows = map[string]map[string]clientRow{
	"a.test b.test": {
		"v4only":  {owner: "v4only.a.test"},
		"v6only":  {owner: "v6only.a.test"},
		"both":    {owner: "both.a.test"},
		"bonly":   {owner: "bonly.b.test"},
		"chain":   {owner: "chain.a.test"},
		"chain2":  {owner: "chain2.a.test"},
		"dangle":  {owner: "dangle.b.test"},
		"ent":     {owner: "ent.b.test"},
		"txtonly": {owner: "txtonly.b.test"},
		"deadtxt": {owner: noAddress},
		"hollow":  {owner: noAddress}, // an empty non-terminal of a.test
		"big":     {owner: "big.b.test"},
		"nope":    {owner: noSuchName},
		"wpad":    {owner: noSuchName},
	},
	"a.test sf.test b.test": {
		"v4only": {owner: "v4only.a.test"},
		"bonly":  {owner: "bonly.b.test"},
		"dangle": {owner: "dangle.b.test"},
		"nope":   {owner: failure},
	},
	"a.test refused.test b.test": {
		"bonly": {owner: "bonly.b.test"},
		"nope":  {owner: failure},
	},
	"a.test silent.test b.test": {
		"bonly": {owner: "bonly.b.test"},
		"both":  {owner: "both.a.test"},
	},
	"silent.test b.test": {
		"bonly": {owner: "bonly.b.test"},
	},
	"w.test b.test": {
		"host1": {owner: "host1.w.test"},
		"lost":  {owner: "lost.w.test"},
		"bonly": {owner: "bonly.b.test"},
	},
	"w6.test b.test": {
		"host1": {owner: "host1.w6.test"},
		"lost":  {owner: "lost.w6.test"},
		"bonly": {owner: "bonly.b.test"},
	},
	"nx6.test b.test": {
		// Its AAAA is NXDOMAIN, for which musl drops the A, too.
		"four":  {owner: "four.nx6.test", like: "v4only.a.test"},
		"bonly": {owner: "bonly.b.test"},
	},
}

func TestEveryClientGetsWhatTheFullNameSays(t *testing.T) {
	if !alone(t) {
		return
	}
	backend := startZoneSet(t)
	startClientServer(t, backend.addr())
	programs := buildClients(t)
	t.Run("clients", func(t *testing.T) { // it ends when all that is parallel has
		for name, kind := range clientKinds {
			for server, list := range clientLists {
				for _, options := range clientOptions[list] {
					if options == ownSearchList && kind.ownList {
						continue
					}
					t.Run(fmt.Sprintf("%s, %s, %s", name, list, strings.TrimSpace(options)), func(t *testing.T) {
						t.Parallel()
						playClient(t, kind, programs, "nameserver "+server+"\n"+options, clientRows[list], backend.addr())
					})
				}
			}
		}
	})
	backend.checkNothingLeaked()
}

// startClientServer starts the server that the clients ask, with a block for each
// list.
func startClientServer(t *testing.T, backend string) {
	t.Helper()
	var corefile strings.Builder
	for server, list := range clientLists {
		fmt.Fprintf(&corefile, ".:53 {\n bind %s\n errors\n searchexpand %s\n cache 30\n healthforward . %s\n}\n", server, list, backend)
	}
	startServer(t, corefile.String())
}

// playClient lets a client look up the names of the rows and the full names that
// they are compared with.
func playClient(t *testing.T, kind clientKind, programs *clientPrograms, resolvConf string, rows map[string]clientRow, backend string) {
	t.Helper()
	names := slices.Sorted(maps.Keys(rows))
	var full []string
	for _, name := range names {
		full = append(full, rows[name].comparable())
	}
	slices.Sort(full)
	looked := runClient(t, kind, programs, resolvConf, append(names, slices.Compact(full)...))
	for _, name := range names {
		for _, fault := range kind.judge(t, name, rows[name], looked, backend) {
			t.Error(fault)
		}
	}
}

// comparable is the full name of which a client says the same, with a closing dot
// against search lists.
func (r clientRow) comparable() string {
	if r.like != "" {
		return r.like + "."
	}
	return r.owner + "."
}

// judge returns what is wrong with what the client says of a name.
func (k clientKind) judge(t *testing.T, name string, row clientRow, looked map[string]lookUp, backend string) []string {
	t.Helper()
	var wrong []string
	fault := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	for family, qtypes := range map[string][]uint16{"ip": {dns.TypeA, dns.TypeAAAA}, "ip4": {dns.TypeA}, "ip6": {dns.TypeAAAA}} {
		got, isAsked := looked[name+" "+family]
		if !isAsked && family == "ip" {
			continue // a client that asks for one type at a time
		}
		if full := looked[row.comparable()+" "+family]; got.says != full.says || got.says == "" {
			fault("%s %s: %q %v, want %q as of %s", name, family, got.says, got.addresses, full.says, row.comparable())
			continue
		}
		addresses, canonical := lookUpDirectly(t, backend, row.owner, qtypes)
		if !k.sameAddresses(got.addresses, addresses) {
			fault("%s %s: %v, want %v of %s", name, family, got.addresses, addresses, row.owner)
		}
		if len(addresses) > 0 && got.canonical != canonical {
			fault("%s %s: canonical name %q, want %q", name, family, got.canonical, canonical)
		}
	}
	return wrong
}

// lookUpDirectly returns the addresses of a full name, and the name where its
// aliases end.
func lookUpDirectly(t *testing.T, backend, name string, qtypes []uint16) (addresses []string, canonical string) {
	t.Helper()
	for _, qtype := range qtypes {
		for _, rr := range ask(t, backend, name, qtype).Answer {
			switch rr := rr.(type) {
			case *dns.A:
				addresses = append(addresses, rr.A.String())
			case *dns.AAAA:
				addresses = append(addresses, rr.AAAA.String())
			default:
				continue
			}
			canonical = strings.TrimSuffix(rr.Header().Name, ".")
		}
	}
	return sortedAddresses(addresses), canonical
}

// sameAddresses reports whether a client found all there are or, where it asks by
// UDP alone, as many as 512 bytes hold.
func (k clientKind) sameAddresses(got, want []string) bool {
	if !k.overUDP || len(want) < 20 {
		return slices.Equal(got, want)
	}
	for _, addr := range got {
		if !slices.Contains(want, addr) {
			return false
		}
	}
	return len(got) >= 20
}
