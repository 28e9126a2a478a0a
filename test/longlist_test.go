package test

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// TestASilentDomainInTheMiddleOfAListCostsOneWait counts what is asked, too: each
// name once. It is stock forward that asks, because healthforward asks who is silent
// again.
func TestASilentDomainInTheMiddleOfAListCostsOneWait(t *testing.T) {
	zones := startZoneSet(t)
	server := startServer(t, fmt.Sprintf(".:{PORT1} {\n bind 127.0.0.1\n searchexpand a.test silent.test b.test\n forward . %s\n}", zones.addr()))
	began := time.Now()
	if got, want := answerText(ask(t, server.addr(), "beyond", dns.TypeA)), "beyond. CNAME beyond.b.test. beyond.b.test. A 192.0.2.31"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	took := time.Since(began)
	// The domain has a second. 250 ms is what it should cost, on an idle machine.
	if took >= time.Second {
		t.Errorf("answered after %v, which is as long as the silent domain may take", took)
	}
	t.Logf("answered after %v", took.Round(time.Millisecond))
	asked := slices.DeleteFunc(zones.asked(), func(q string) bool { return !strings.HasPrefix(q, "beyond.") })
	slices.Sort(asked)
	if want := []string{"beyond.a.test. A", "beyond.b.test. A", "beyond.silent.test. A"}; !slices.Equal(asked, want) {
		t.Errorf("asked for %q, want %q", asked, want)
	}
}

// TestAFloodOfBareNamesStopsAtTheBudget asks for names that are nowhere, against a
// list of 64 domains, while another client asks for some that are.
func TestAFloodOfBareNamesStopsAtTheBudget(t *testing.T) {
	// Each name looks through 64 domains, which takes a race build a hundred times as
	// long as a plain answer.
	t.Log(playFlood(t, 100, 3*time.Second))
}

// BenchmarkFailoverOfAFlood is part of make failover: 1,000 names a second.
func BenchmarkFailoverOfAFlood(b *testing.B) {
	b.Run("1000", func(b *testing.B) {
		for b.Loop() {
			fmt.Println(playFlood(b, 1000, 10*time.Second))
			b.ReportMetric(0, "ns/op") // it takes as long as it takes
		}
	})
}

// flood is what came of one.
type flood struct {
	mu    sync.Mutex
	asked map[string]int // how often an upstream was asked for each name

	queries, unanswered int
	lasted              time.Duration
	others              []time.Duration // how long another client waited for each of its names
}

func (f *flood) String() string {
	arrived := 0
	for _, times := range f.asked {
		arrived += times
	}
	slices.Sort(f.others)
	return fmt.Sprintf("%d queries in %v, %d unanswered; the upstream was asked for %d names, %d times; another client got %d answers, the slowest after %v",
		f.queries, f.lasted.Round(time.Millisecond), f.unanswered, len(f.asked), arrived, len(f.others), slices.Max(append(f.others, 0)).Round(time.Millisecond))
}

// arrive counts what comes to the upstream.
func (f *flood) arrive(_ *faulty, a arrival, _ time.Time) {
	if !strings.HasPrefix(a.name, "flood") {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked[a.name]++
}

// playFlood asks for so many names a second, and checks what reaches the upstream.
func playFlood(t testing.TB, perSecond int, lasts time.Duration) *flood {
	t.Helper()
	var list []string
	for i := range 64 {
		list = append(list, fmt.Sprintf("s%d.test", i))
	}
	f := &flood{asked: make(map[string]int)}
	up := startFaulty(t, 1, freePort(t), called("known", under(list[2]+".", answers, fails(dns.RcodeNameError)), fails(dns.RcodeNameError)), f.arrive)
	server := startServer(t, fmt.Sprintf(".:{PORT1} {\n bind 127.0.0.1\n searchexpand %s\n cache 30\n healthforward . %s\n}",
		strings.Join(list, " "), up.addr))

	client := startOpenLoop(t, server.addr())
	began := time.Now()
	stop := make(chan struct{})
	var other sync.WaitGroup
	var failures []string
	other.Go(func() { f.others, failures = askFromElsewhere(server.addr(), stop) })
	client.ask(perSecond, lasts, func(i int, _ time.Duration) demand { return demand{name: fmt.Sprintf("flood%d.", i), fails: true} })
	client.rest()
	close(stop)
	other.Wait()
	client.end()
	f.queries = len(client.fates)
	for i := range client.fates {
		if client.fates[i].took == 0 {
			f.unanswered++
		}
	}

	f.mu.Lock()
	defer f.mu.Unlock()
	f.lasted = time.Since(began)
	// What the README says a client has: 200 a second, and two seconds' worth at first.
	if limit := int(200 * (f.lasted + 2*time.Second).Seconds()); len(f.asked) > limit || len(f.asked) < 400 {
		t.Errorf("the upstream was asked for %d names in %v, want 400 to %d", len(f.asked), f.lasted, limit)
	}
	// A machine that holds everything up for a second makes a domain fail, once.
	if len(failures) > len(f.others)/10+1 {
		t.Errorf("another client got %d answers and %d failures, such as %s", len(f.others), len(failures), failures[0])
	}
	return f
}

// askFromElsewhere asks, from another network, for one name after the other until it
// shall stop, and returns how long each took that was found, and what came of others.
func askFromElsewhere(addr string, stop chan struct{}) (took []time.Duration, failures []string) {
	client := &dns.Client{Timeout: patience, Dialer: &net.Dialer{LocalAddr: &net.UDPAddr{IP: net.IPv4(127, 9, 9, 9)}}}
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for i := 0; ; i++ {
		name := fmt.Sprintf("known%d.", i)
		began := time.Now()
		reply, _, err := client.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeA), addr)
		switch want := fmt.Sprintf("%s CNAME %ss2.test. %ss2.test. A %s", name, name, name, address(1)); {
		case err != nil:
			failures = append(failures, err.Error())
		case answerText(reply) != want:
			failures = append(failures, answerText(reply))
		default:
			took = append(took, time.Since(began))
		}
		select {
		case <-ticker.C:
		case <-stop:
			return took, failures
		}
	}
}
