package searchexpand

import (
	"errors"
	"fmt"
	"hash/maphash"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// defaultClientRate pays, on average, for a list of ten domains twenty times a
	// second: more than a host asks, and a network of hosts behind a cache.
	defaultClientRate = 200

	// defaultProcessRate is ten such clients, and what a resolver does in its stride.
	defaultProcessRate = 2000

	// maxRate is more than a process can ask.
	maxRate = 1_000_000

	// clientBurst and processBurst are how much of its rate a client and the process
	// save up: a host that starts asks for much at once, all hosts do not.
	clientBurst  = 2 * time.Second
	processBurst = time.Second

	// clientBuckets is how many buckets all networks share, so that no stranger makes
	// them grow: 128 kB. Two networks meet in one by a chance of 1 to 4096, and which
	// ones do is anew with each start.
	clientBuckets = 4096

	// Networks are told apart by these bits: a host owns a /64, and who owns one
	// address of a /24 often has others.
	ipv4Network = 24
	ipv6Network = 64

	// withinProcess is how long an answer from this process takes at most; one from a
	// resolver takes longer, unless that is on this host.
	withinProcess = time.Millisecond

	// recallTime is how long a question that is not paid for may take to be answered
	// from memory. Longer than it ever needs, for the processor may be busy.
	recallTime = 20 * time.Millisecond

	// upstreamLabel ends the metadata by which forward and healthforward tell whom
	// they asked.
	upstreamLabel = "/upstream"
)

// errBudget is the failure of a question that could not be paid for.
var errBudget = errors.New("too many names were asked for in too short a time")

// processCredit is shared by all server blocks, and by the instances before and
// after a reload: the upstreams are the same.
//
//nolint:gochecknoglobals // it counts what the process sends
var processCredit credit

// credit is a token bucket that counts in time: who has a rate of 200 pays 5 ms for
// each question, and the credit grows by a second each second. So lists with
// different rates can pay from one. A new one is full.
type credit struct {
	mu    sync.Mutex
	spent time.Time // all time before it is spent
}

// pay takes the cost of a question at now, or returns false and takes nothing. More
// than burst cannot be saved up. Who read the clock before another one paid, and comes
// after it, earns nothing by that.
func (c *credit) pay(now time.Time, cost, burst time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	start := c.spent
	if oldest := now.Add(-burst); start.Before(oldest) {
		start = oldest
	}
	if start.Add(cost).After(now) {
		return false
	}
	c.spent = start.Add(cost)
	return true
}

// refund gives back what a question cost.
func (c *credit) refund(cost time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spent = c.spent.Add(-cost)
}

// rates says how many questions a second may leave the process for one list.
type rates struct {
	client  int // those of one client network; 1 to 1,000,000, default 200
	process int // those of all clients and of all lists; 1 to 1,000,000, default 2,000
}

// parse reads CLIENT_RATE PROCESS_RATE.
func (r *rates) parse(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("wants two arguments, got %d", len(args))
	}
	for i, dst := range []*int{&r.client, &r.process} {
		n, err := strconv.Atoi(args[i])
		if err != nil || n < 1 || n > maxRate {
			return fmt.Errorf("%q is not a number from 1 to %d", args[i], maxRate)
		}
		*dst = n
	}
	if r.client > r.process {
		return fmt.Errorf("%d for one client is more than %d for all", r.client, r.process)
	}
	return nil
}

// budget pays for the questions of one list. See DESIGN.md, D14.
type budget struct {
	perClient, perProcess time.Duration // what a question costs
	process               *credit
	seed                  maphash.Seed
	clients               [clientBuckets]credit
}

func newBudget(r rates, process *credit) *budget {
	return &budget{
		perClient: time.Second / time.Duration(r.client), perProcess: time.Second / time.Duration(r.process),
		process: process, seed: maphash.MakeSeed(),
	}
}

// bill is the budget of one client.
type bill struct {
	*budget
	client *credit
}

// of returns the budget of the client with that address.
func (b *budget) of(addr net.Addr) bill {
	return bill{b, &b.clients[maphash.Comparable(b.seed, network(addr))%clientBuckets]}
}

// network returns whom an address belongs to. Clients without an IP address are one.
func network(addr net.Addr) netip.Prefix {
	ip, bits := ipOf(addr), ipv6Network
	if ip.Is4() {
		bits = ipv4Network
	}
	net, err := ip.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return net
}

// pay takes what one question costs from both, or nothing.
func (b bill) pay(now time.Time) bool {
	if !b.client.pay(now, b.perClient, clientBurst) {
		unpaidCount.WithLabelValues(payerClient).Inc()
		return false
	}
	if !b.process.pay(now, b.perProcess, processBurst) {
		b.client.refund(b.perClient)
		unpaidCount.WithLabelValues(payerProcess).Inc()
		return false
	}
	return true
}

// settle gives back what a question cost that did not leave the process, now that it
// has ended after that time. One that failed may have left without a trace.
func (b bill) settle(took time.Duration, o outcome) {
	if took > withinProcess || o.msg == nil {
		return
	}
	for label := range o.values {
		if strings.HasSuffix(label, upstreamLabel) {
			return
		}
	}
	b.client.refund(b.perClient)
	b.process.refund(b.perProcess)
}
