package test

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/miekg/dns"
)

// The variants that every scenario is played with. A variant begins with the
// directive.
const (
	stock    = "forward"
	own      = "healthforward"
	unhedged = "healthforward hedge off"
)

// scenario is something that befalls upstreams, and what clients should notice.
type scenario struct {
	name      string
	upstreams []behaviour   // before any fault
	faults    []fault       // in the order of time
	returns   time.Duration // when somebody is back, which firstGood counts from
	lasts     time.Duration // from the first fault

	rates  []int                                // queries a second; 500 and 2 if empty
	asks   func(i int, at time.Duration) demand // unique if nil
	cold   bool                                 // without a warm-up
	unseen bool                                 // upstream 1 closes its port, so that it cannot count; see play.attempts

	// What stands behind the directive: a block, or ". TO... {…}", in which {U1} is
	// an upstream. both is that of stock and own, stanzas those of variants.
	both    string
	stanzas map[string]string
	before  string // in the server block

	always []claim // hold on any machine
	idle   []claim // hold on an idle machine only
	inTest bool    // go test plays it too, and asserts what always holds
	long   bool    // played only if asked for
}

// fault is a change in what an upstream does. It is bad from then on, unless well.
type fault struct {
	at       time.Duration
	upstream int // from 1
	does     behaviour
	well     bool
}

// hidden is what must hold when one of two upstreams goes bad.
var hidden = []claim{noneSlow, atLoad(none(onBad)), loadAtMost(traffic, 1.05), shown(copies)}

// scenarios are what make failover plays.
var scenarios = []scenario{
	{
		name: "healthy LAN", upstreams: []behaviour{answers, answers}, lasts: 8 * time.Second,
		always: []claim{none(failed), none(wrong)},
		idle:   []claim{noneSlow, loadAtMost(traffic, 1.02), none(ejections), shown(median), shown(p99)},
	},
	{
		name: "black-hole", upstreams: []behaviour{answers, answers}, lasts: 8 * time.Second,
		faults: []fault{{upstream: 1, does: silent}},
		always: []claim{none(failed), none(wrong)}, idle: hidden, inTest: true,
	},
	{
		name: "closed port", upstreams: []behaviour{answers, answers}, lasts: 8 * time.Second, unseen: true,
		faults: []fault{{upstream: 1, does: closed}},
		always: []claim{none(failed), none(wrong)}, idle: hidden,
	},
	{
		name: "slow, 800 ms", upstreams: []behaviour{answers, answers}, lasts: 8 * time.Second,
		faults: []fault{{upstream: 1, does: answersIn(800 * time.Millisecond)}},
		always: []claim{none(failed), none(wrong)}, idle: hidden,
	},
	{
		name: "SERVFAIL from one", upstreams: []behaviour{answers, answers}, lasts: 8 * time.Second,
		faults: []fault{{upstream: 1, does: fails(dns.RcodeServerFailure)}},
		always: []claim{none(failed), none(wrong)}, idle: refusals, inTest: true,
	},
	{
		name: "REFUSED from one", upstreams: []behaviour{answers, answers}, lasts: 8 * time.Second,
		faults: []fault{{upstream: 1, does: fails(dns.RcodeRefused)}},
		always: []claim{none(failed), none(wrong)}, idle: refusals,
	},
	{
		name: "grey, answers probes only", upstreams: []behaviour{answers, answers}, lasts: 8 * time.Second,
		faults: []fault{{upstream: 1, does: grey(answers, silent)}},
		always: []claim{none(failed), none(wrong)}, idle: hidden,
	},
	{
		name: "grey, answers probes by SERVFAIL", upstreams: []behaviour{answers, answers}, lasts: 8 * time.Second,
		faults: []fault{{upstream: 1, does: grey(fails(dns.RcodeServerFailure), silent)}},
		always: []claim{none(failed), none(wrong)}, idle: hidden,
	},
	{
		name: "30 % loss on one", upstreams: []behaviour{answers, answers}, lasts: 12 * time.Second,
		faults: []fault{{upstream: 1, does: lossy(0.3, answers)}},
		always: []claim{none(failed), none(wrong)}, idle: []claim{loadAtMost(traffic, 1.25)},
	},
	outage("2 s outage", 2*time.Second),
	outage("7 s outage", 7*time.Second),
	long(outage("25 s outage", 25*time.Second)),
	{
		name: "flapping, 2 s", upstreams: []behaviour{answers, answers}, lasts: 12 * time.Second,
		faults: []fault{
			{at: 0, upstream: 1, does: silent},
			{at: 2 * time.Second, upstream: 1, does: answers, well: true},
			{at: 4 * time.Second, upstream: 1, does: silent},
			{at: 6 * time.Second, upstream: 1, does: answers, well: true},
			{at: 8 * time.Second, upstream: 1, does: silent},
			{at: 10 * time.Second, upstream: 1, does: answers, well: true},
		},
		always: []claim{none(failed), none(wrong)}, idle: hidden,
	},
	{
		name: "all down 10 s, one comes back", upstreams: []behaviour{answers, answers}, lasts: 14 * time.Second,
		faults: []fault{
			{upstream: 1, does: silent},
			{upstream: 2, does: silent},
			{at: 10 * time.Second, upstream: 1, does: answers, well: true},
		},
		returns: 10 * time.Second,
		asks:    failing(10*time.Second + 100*time.Millisecond),
		always:  []claim{none(failed), none(wrong)},
		idle:    []claim{loadAtMost(traffic, 1.25), atMost(firstGood, 100), atMost(lastFailure, 4100), shown(excused)},
	},
	{
		name: "dead at start", upstreams: []behaviour{silent, answers}, lasts: 8 * time.Second, cold: true,
		faults: []fault{{upstream: 1, does: silent}},
		always: []claim{none(failed), none(wrong)}, idle: append(hidden, shown(firstGood)),
	},
	{
		name: "three of four dead at start, the last lives", upstreams: []behaviour{silent, silent, silent, answers},
		lasts: 8 * time.Second, cold: true,
		faults: []fault{{upstream: 1, does: silent}, {upstream: 2, does: silent}, {upstream: 3, does: silent}},
		both:   "{\n policy sequential\n }",
		always: []claim{none(failed), none(wrong)}, idle: []claim{atMost(firstGood, 400), atLoad(none(onBad))},
	},
	{
		name: "one name silent everywhere", lasts: 10 * time.Second, inTest: true,
		upstreams: []behaviour{under("dead.d0.test.", silent, answers), under("dead.d0.test.", silent, answers)},
		asks:      every(20, demand{name: "dead.d0.test.", by: noUpstream, fails: true}),
		always:    []claim{none(failed), none(wrong), none(ejections)},
		idle:      []claim{noneSlow, loadAtMost(traffic, 1.1), shown(excused)},
	},
	{
		name: "one name SERVFAIL everywhere", lasts: 10 * time.Second,
		upstreams: []behaviour{
			under("dead.d0.test.", fails(dns.RcodeServerFailure), answers),
			under("dead.d0.test.", fails(dns.RcodeServerFailure), answers),
		},
		asks:   every(20, demand{name: "dead.d0.test.", by: noUpstream, fails: true}),
		always: []claim{none(failed), none(wrong), none(ejections)},
		idle:   []claim{noneSlow, loadAtMost(traffic, 1.1), shown(excused)},
	},
	{
		name: "one name silent at one upstream", lasts: 10 * time.Second,
		upstreams: []behaviour{under("dead.d0.test.", silent, answers), answers},
		asks:      every(20, demand{name: "dead.d0.test.", slow: true}),
		always:    []claim{none(failed), none(wrong), none(ejections)},
		idle:      []claim{noneSlow, loadAtMost(traffic, 1.1)},
	},
	{
		name: "every tenth name slow at its authority", lasts: 10 * time.Second,
		upstreams: []behaviour{
			called("slow", answersIn(time.Second), answers),
			called("slow", answersIn(time.Second), answers),
		},
		asks:   everyTenthSlow,
		always: []claim{none(failed), none(wrong), none(ejections)},
		idle:   []claim{noneSlow, loadAtMost(traffic, 1.15)},
	},
	{
		name: "a tier fails over and back", lasts: 10 * time.Second,
		upstreams: []behaviour{answers, under("corp.test.", fails(dns.RcodeNameError), answers)},
		faults: []fault{
			{upstream: 1, does: silent},
			{at: 5 * time.Second, upstream: 1, does: answers, well: true},
		},
		returns: 5 * time.Second,
		asks:    halfPrivate(7500 * time.Millisecond),
		stanzas: map[string]string{own: ". {U1} {\n backup {U2}\n private corp.test\n }"},
		always:  []claim{none(failed), none(wrong)},
		// Private names are asked of the first tier all the same.
		idle: []claim{none(slowLate), atMost(inUse, 2000), shown(excused)},
	},
	{
		name: "an internal resolver loses 30 %, before a public one", lasts: 10 * time.Second, inTest: true,
		upstreams: []behaviour{answers, under("corp.test.", fails(dns.RcodeNameError), answers)},
		faults:    []fault{{upstream: 1, does: lossy(0.3, answers)}},
		asks:      halfPrivate(0),
		both:      "{\n policy sequential\n }",
		always:    []claim{none(wrong)},
		// More than the budget: who lives is asked again until it has said what it knows.
		idle: []claim{none(failed), loadAtMost(traffic, 1.6)},
	},
	{
		// The plain one must not hear of what the validator refuses: not after it,
		// and not first either, which is the operator's to say.
		name: "a forged name, a validator before a plain resolver", lasts: 8 * time.Second, inTest: true,
		upstreams: []behaviour{under("bogus.test.", bogus, answers), answers},
		asks:      forged,
		stanzas: map[string]string{
			own:   "{\n policy sequential\n }",
			stock: "{\n policy sequential\n failover SERVFAIL REFUSED NOTIMP\n }", // our default
		},
		always: []claim{none(failed), none(wrong)},
		idle:   []claim{none(ejections), shown(excused)},
	},
	{
		name: "an upstream that answers 1,000 of 1,500", lasts: 10 * time.Second, rates: []int{1500},
		upstreams: []behaviour{limited(1000)},
		always:    []claim{none(ejections), none(wrong)},
		idle:      []claim{atLeast(goodput, 0.95)},
	},
	farAway("80 and 180 ms away, 1 % loss", 0.01, 30*time.Second),
	farAway("80 and 180 ms away, 5 % loss", 0.05, 30*time.Second),
	long(farAway("80 and 180 ms away, 1 % loss, 10 minutes", 0.01, 10*time.Minute)),
	long(farAway("80 and 180 ms away, 5 % loss, 10 minutes", 0.05, 10*time.Minute)),
	{
		name: "all down 7 s, behind cache", lasts: 12 * time.Second, before: "cache 30",
		upstreams: []behaviour{answers, answers},
		faults: []fault{
			{upstream: 1, does: silent},
			{upstream: 2, does: silent},
			{at: 7 * time.Second, upstream: 1, does: answers, well: true},
			{at: 7 * time.Second, upstream: 2, does: answers, well: true},
		},
		returns: 7 * time.Second,
		asks:    repeated(8 * time.Second),
		always:  []claim{none(wrong)},
		idle:    []claim{none(failed), shown(firstGood), shown(excused)},
	},
	{
		name: "bimodal WAN", upstreams: []behaviour{bimodal, bimodal}, lasts: 20 * time.Second, rates: []int{500},
		stanzas: map[string]string{stock: "", unhedged: "{\n hedge off\n }", own: ""},
		always:  []claim{none(failed), none(wrong)},
		idle: []claim{
			loadAtMost(traffic, 1.08), none(ejections), shown(median), shown(p99), atMost(p99OfUnhedged, 1.0/3),
		},
	},
}

// refusals is what must hold when one of two upstreams answers by a bad rcode.
var refusals = []claim{noneSlow, atLoad(none(onBad)), loadAtMost(trafficLate, 1.05), shown(copies)}

// outage is one upstream gone, and back.
func outage(name string, lasts time.Duration) scenario {
	return scenario{
		name: name, upstreams: []behaviour{answers, answers}, lasts: lasts + 5*time.Second,
		faults: []fault{
			{upstream: 1, does: silent},
			{at: lasts, upstream: 1, does: answers, well: true},
		},
		returns: lasts,
		always:  []claim{none(failed), none(wrong)},
		idle:    append(hidden, atMost(inUse, 2000)),
	}
}

// farAway is two upstreams over lines that lose packets, and nothing wrong with them.
func farAway(name string, loss float64, lasts time.Duration) scenario {
	return scenario{
		name: name, lasts: lasts,
		upstreams: []behaviour{
			lossy(loss, answersIn(80*time.Millisecond)),
			lossy(loss, answersIn(180*time.Millisecond)),
		},
		always: []claim{none(wrong)},
		idle:   []claim{none(failed), none(ejections), shown(p99)},
	}
}

func long(s scenario) scenario {
	s.long = true
	return s
}

// failing expects failures until some time.
func failing(until time.Duration) func(int, time.Duration) demand {
	return func(i int, at time.Duration) demand {
		d := unique(i, at)
		d.fails = at < until
		return d
	}
}

// every asks for one name each nth time.
func every(n int, d demand) func(int, time.Duration) demand {
	return func(i int, at time.Duration) demand {
		if i%n == n/2 {
			return d
		}
		return unique(i, at)
	}
}

// everyTenthSlow asks for a name of the kind slow each tenth time.
func everyTenthSlow(i int, at time.Duration) demand {
	if i%10 == 5 {
		return demand{name: nameOf("slow", i), slow: true}
	}
	return unique(i, at)
}

// halfPrivate asks for every second name under corp.test, which upstream 1 alone
// knows and which may fail until some time.
func halfPrivate(until time.Duration) func(int, time.Duration) demand {
	return func(i int, at time.Duration) demand {
		if i%2 == 0 {
			return demand{name: fmt.Sprintf("name%d.corp.test.", i), by: 1, fails: at < until}
		}
		return unique(i, at)
	}
}

// forged asks for every fifth name under bogus.test, which nobody may answer.
func forged(i int, at time.Duration) demand {
	if i%5 == 0 {
		return demand{name: fmt.Sprintf("name%d.bogus.test.", i), by: noUpstream, fails: true}
	}
	return unique(i, at)
}

// repeated asks for the same ten names, over and over, in an order by chance.
func repeated(failsUntil time.Duration) func(int, time.Duration) demand {
	return func(_ int, at time.Duration) demand {
		return demand{name: nameOf("again", rand.IntN(10)), fails: at < failsUntil}
	}
}
