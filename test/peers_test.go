package test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"
)

const (
	peerQueries = 1000 // for each pair of peer and transport
	peerClients = 4    // ask them at the same time
)

// peerBlocks is a coredns with a server block for each of some forwarders.
type peerBlocks struct {
	*server
	placeholders map[string]string // name of the block → its port's
}

// startBlocks starts it; forwarders are lines for a server block, by name.
func startBlocks(t testing.TB, forwarders map[string]string) *peerBlocks {
	t.Helper()
	b := &peerBlocks{placeholders: make(map[string]string)}
	var corefile strings.Builder
	for i, name := range slices.Sorted(maps.Keys(forwarders)) {
		b.placeholders[name] = fmt.Sprintf("PORT%d", i+1)
		fmt.Fprintf(&corefile, ".:{PORT%d} {\n\tbind 127.0.0.1\n\t%s\n}\n", i+1, forwarders[name])
	}
	b.server = startServer(t, corefile.String())
	return b
}

// at is where a block is asked.
func (b *peerBlocks) at(name string) string { return b.addrOf(b.placeholders[name]) }

// forwarderLines are the lines that forward everything over a transport.
func (s *peerSite) forwarderLines(word, transport, more string, addrs ...string) string {
	to := make([]string, 0, len(addrs))
	for _, addr := range addrs {
		to = append(to, peerSchemes[transport]+"://"+addr)
	}
	if peerSchemes[transport] != "dns" {
		more += fmt.Sprintf("\n\t\ttls %s\n\t\ttls_servername %s", s.certs.ca, peerCertName)
	}
	return fmt.Sprintf("%s . %s {\n\t\t%s\n\t}", word, strings.Join(to, " "), more)
}

func TestPeersAnswerThroughHealthforwardAsDirectlyAndAsThroughForward(t *testing.T) {
	site := newPeerSite(t)
	for name, p := range peers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if p.lacks != "" {
				t.Logf("it cannot do: %s", p.lacks)
			}
			server := site.start(t, name, p)
			forwarders := make(map[string]string)
			for _, transport := range p.transports {
				forwarders["forward "+transport] = site.forwarderLines("forward", transport, "", server.addr(transport))
				forwarders["healthforward "+transport] = site.forwarderLines("healthforward", transport, "", server.addr(transport))
			}
			blocks := startBlocks(t, forwarders)
			for _, transport := range p.transports {
				t.Run(transport, func(t *testing.T) {
					row := &peerRow{t: t, server: server, blocks: blocks, transport: transport, counts: make(map[string]int)}
					row.compare()
				})
			}
		})
	}
}

// peerRow is a pair of peer and transport.
type peerRow struct {
	t         *testing.T
	server    *peerServer
	blocks    *peerBlocks
	transport string

	mu     sync.Mutex
	counts map[string]int // what was seen
	faults int            // replies that are not as they should be
}

// compare asks all the queries, directly first, so that a cache of the peer can
// only be older when the others ask.
func (r *peerRow) compare() {
	var clients sync.WaitGroup
	queries := mixedQueries(peerQueries, uint64(len(r.server.name)))
	for client := range peerClients {
		clients.Go(func() {
			direct := newAsker(r.transport, r.server.addr(r.transport), r.server.site.certs.client)
			defer direct.close()
			through := make(map[string]asker) // "forward tcp" → asks forward over TCP
			defer func() {
				for _, a := range through {
					a.close()
				}
			}()
			for i := client; i < len(queries); i += peerClients {
				c := comparison{peerQuery: queries[i], transport: r.transport, network: r.network(i / peerClients)}
				var err error
				if c.direct, err = direct.ask(asHealthforward(c.msg, r.transport)); err != nil {
					r.fault(c, "directly: %v", err)
					continue
				}
				c.forward = r.askThrough(through, "forward", c)
				c.healthforward = r.askThrough(through, "healthforward", c)
				r.judge(c, direct)
			}
		})
	}
	clients.Wait()
	r.judgeCounts()
	r.t.Logf("%d queries: %v", len(queries), r.counts)
}

// network is what a client asks over: the transport, or UDP and TCP in turn where
// only the upstream's end is encrypted.
func (r *peerRow) network(i int) string {
	if peerSchemes[r.transport] == "dns" {
		return r.transport
	}
	return [...]string{"udp", "tcp"}[i%2]
}

func (r *peerRow) askThrough(through map[string]asker, word string, c comparison) *dns.Msg {
	key := word + " " + c.network
	if through[key] == nil {
		through[key] = newAsker(c.network, r.blocks.at(word+" "+r.transport), nil)
	}
	reply, err := through[key].ask(c.msg)
	if err != nil {
		r.fault(c, "through %s: %v", word, err)
		return nil
	}
	return reply
}

// judge compares what came for one query. It may ask directly once more.
func (r *peerRow) judge(c comparison, direct asker) {
	want := asServed(c.direct, c.msg, c.network)
	if reply := c.healthforward; reply != nil {
		for _, diff := range slices.Concat(unrelated(reply, c.msg), differences(reply, want), r.outliving(c, want, direct)) {
			r.fault(c, "healthforward, and directly: %s", diff)
		}
	}
	if reply := c.forward; reply != nil && c.healthforward != nil {
		if diffs := differences(c.healthforward, reply); len(diffs) > 0 {
			if row, ok := deliberateRow(c, diffs); ok {
				r.count("as meant: " + row)
			} else {
				r.fault(c, "healthforward, and forward: %v", diffs)
			}
		}
	}
	r.count(dns.RcodeToString[c.direct.Rcode])
	if len(extendedErrors(c.direct)) > 0 {
		r.count("EDE")
	}
	if c.direct.Truncated {
		r.count("TC")
	}
	if c.direct.Len() > 4096 {
		r.count("> 4096")
	}
	if c.direct.Rcode == dns.RcodeSuccess && len(c.direct.Answer) == 0 {
		r.count("NODATA")
	}
	for _, rr := range c.direct.Answer {
		switch rr.Header().Rrtype {
		case dns.TypeRRSIG:
			r.count("RRSIG")
		case dns.TypeCNAME:
			r.count("CNAME")
		}
	}
}

// outliving says which TTLs of healthforward's reply are above the peer's.
func (r *peerRow) outliving(c comparison, want *dns.Msg, direct asker) []string {
	longer := outliving(c.healthforward, want, 0)
	if len(longer) == 0 {
		return nil
	}
	// A peer with a cache may have replaced what it answered directly, because of
	// another query. It is a second older now at most.
	again, err := direct.ask(asHealthforward(c.msg, r.transport))
	if err != nil {
		return append(longer, err.Error())
	}
	return outliving(c.healthforward, asServed(again, c.msg, c.network), 1)
}

// judgeCounts fails if the peer gave no such answers as the test is about.
func (r *peerRow) judgeCounts() {
	wants := []string{"NXDOMAIN", "NODATA", "CNAME", "NOERROR", "REFUSED"}
	if r.transport == "udp" {
		wants = append(wants, "TC")
	} else {
		wants = append(wants, "> 4096")
	}
	if r.server.peer.signed {
		wants = append(wants, "RRSIG")
	}
	for _, want := range wants {
		if r.counts[want] == 0 {
			r.t.Errorf("no direct answer was %s: %v", want, r.counts)
		}
	}
}

func (r *peerRow) count(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[what]++
}

// fault reports one, but not a thousand of them.
func (r *peerRow) fault(c comparison, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.faults++; r.faults > 10 {
		r.t.Fail()
		return
	}
	r.t.Errorf("%s (%s, %s) by %s: %s", strings.ReplaceAll(c.msg.Question[0].String(), "\t", " "), c.kind, c.option, c.network, fmt.Sprintf(format, args...))
}
