package test

import (
	"errors"
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// imageOutage is how long upstreams are away in the test of the memory limit. make
// outage makes it ten minutes.
var imageOutage = flag.Duration("image.outage", 8*time.Second, "how long TestImage's outage at 2000 queries a second lasts")

// alwaysAnswers answers every question for an address.
const alwaysAnswers = `. {
	errors
	template IN A {
		answer "{{ .Name }} 60 IN A 192.0.2.10"
	}
	template ANY ANY {
		rcode NOERROR
		authority ". 60 IN SOA a. b. 1 7200 900 1209600 60"
	}
}
`

// served is the image as it serves, and what it asks.
type served struct {
	e      *engine
	a, b   container // upstreams
	server container
}

// lameduck is for how long the server answers after SIGTERM.
const lameduck = 3 * time.Second

// imageServes plays what befalls containers, one thing after the other on the same
// three: to start them takes longer than all the rest. Nothing is cached, so that every
// query says something about upstreams.
func imageServes(t *testing.T, e *engine, image string) {
	s := served{e: e, a: e.startServer(image, alwaysAnswers), b: e.startServer(image, alwaysAnswers)}
	s.server = e.startServer(image, `. {
	errors
	prometheus :9153
	health :8080 {
		lameduck `+lameduck.String()+`
	}
	healthforward . `+s.a.addr()+` `+s.b.addr()+`
}
`, "--memory=128m", "--memory-swap=128m", "--env=GOMEMLIMIT=102MiB")
	for _, step := range []struct {
		name string
		play func(t *testing.T, s served)
	}{
		{"nobody is ejected for a tenth of a CPU", onLittleCPU},
		{"an outage at 2000 queries a second fits into 128 MB", throughOutage},
		{"an upstream that is paused is not missed", throughPause},
		{"nor one that has lost its network", throughDisconnect},
		{"SIGTERM ends it, after lameduck", untilSIGTERM},
	} {
		t.Run(step.name, func(t *testing.T) {
			s.e = e.in(t)
			step.play(t, s)
		})
	}
}

// mostHidden is how long a query may take in the second in which an upstream goes away.
// On an idle machine it is a twentieth of a second; the rest is for one that compiles.
const mostHidden = 2 * time.Second

// unhurt fails the test if a query was not answered well, and returns how long the
// slowest took.
func unhurt(t *testing.T, fates []fate) time.Duration {
	t.Helper()
	var most time.Duration
	bad := 0
	for _, f := range fates {
		if f.took == 0 || f.rcode != dns.RcodeSuccess || f.address != "192.0.2.10" {
			bad++
		}
		most = max(most, f.took)
	}
	if bad > 0 {
		t.Errorf("%d of %d queries were not answered well", bad, len(fates))
	}
	return most
}

// onLittleCPU asks as much as a tenth of a CPU can just do or not do: that the process
// was not let run is no upstream's fault.
func onLittleCPU(t *testing.T, s served) {
	s.e.run("update", "--cpus=0.1", s.server.id)
	client := startOpenLoop(t, s.server.addr())
	client.ask(300, 5*time.Second, unique)
	client.rest()
	client.end()
	t.Logf("replies by rcode: %v", byRcode(client.fates))
	s.e.run("update", "--cpus=1", s.server.id)
	metrics, err := httpGet("http://" + s.server.ip + ":9153/metrics")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(metrics, `coredns_healthforward_transitions_total{`) {
		t.Fatalf("no metrics of healthforward:\n%s", metrics)
	}
	for line := range strings.Lines(metrics) {
		if strings.HasPrefix(line, "coredns_healthforward_transitions_total{") && strings.Contains(line, `state="ejected"`) {
			t.Errorf("ejected: %s", line)
		}
	}
}

// throughOutage takes all upstreams away, which is when most is in flight.
func throughOutage(t *testing.T, s served) {
	const rate = 2000
	client := startOpenLoop(t, s.server.addr())
	client.ask(rate, time.Second, unique)
	s.e.run("pause", s.a.id, s.b.id)
	client.ask(rate, *imageOutage, unique)
	t.Logf("at the end of the outage: %s", s.e.run("stats", "--no-stream", "--format={{.MemUsage}}, {{.CPUPerc}} of a CPU", s.server.id))
	s.e.run("unpause", s.a.id, s.b.id)
	waitFor(t, startLimit, "an answer after the outage", func() error {
		reply, err := exchange(s.server.addr(), new(dns.Msg).SetQuestion("after.test.", dns.TypeA))
		if err == nil && reply.Rcode != dns.RcodeSuccess {
			err = errors.New("the reply says " + dns.RcodeToString[reply.Rcode])
		}
		return err
	})
	for _, upstream := range []container{s.a, s.b} {
		s.e.waitForLog(s.server.id, upstream.addr()+" is back", 1)
	}
	client.rest()
	client.end()
	t.Logf("replies by rcode: %v", byRcode(client.fates))
	if got, want := s.e.run("inspect", "-f", "{{.State.Status}} {{.State.OOMKilled}} {{.RestartCount}}", s.server.id), "running false 0"; got != want {
		t.Errorf("state, killed for its memory, restarts: %s, want %s", got, want)
	}
	after := startOpenLoop(t, s.server.addr())
	after.ask(200, time.Second, unique)
	endUnhurt(t, after)
}

func throughPause(t *testing.T, s served) {
	client := startOpenLoop(t, s.server.addr())
	client.ask(100, time.Second, unique)
	since := s.e.countLog(s.server.id, s.a.addr()+" is back")
	s.e.run("pause", s.a.id)
	client.ask(100, 3*time.Second, unique)
	s.e.run("unpause", s.a.id)
	s.e.waitForLog(s.server.id, s.a.addr()+" is back", since+1)
	client.ask(100, time.Second, unique)
	endUnhurt(t, client)
}

func throughDisconnect(t *testing.T, s served) {
	client := startOpenLoop(t, s.server.addr())
	client.ask(100, time.Second, unique)
	since := s.e.countLog(s.server.id, s.b.addr()+" is ejected")
	s.e.run("network", "disconnect", s.e.name, s.b.id)
	client.ask(100, 3*time.Second, unique)
	s.e.waitForLog(s.server.id, s.b.addr()+" is ejected", since+1)
	endUnhurt(t, client)
}

func untilSIGTERM(t *testing.T, s served) {
	client := startOpenLoop(t, s.server.addr())
	began := time.Now()
	s.e.run("kill", "--signal=TERM", s.server.id)
	client.ask(100, lameduck/2, unique)
	endUnhurt(t, client)
	if code := s.e.run("wait", s.server.id); code != "0" {
		t.Errorf("exit status %s, want 0", code)
	}
	took := time.Since(began)
	t.Logf("it ended %v after SIGTERM", took)
	if most := lameduck + 5*time.Second; took < lameduck || took > most {
		t.Errorf("it ended %v after SIGTERM, want from %v to %v", took, lameduck, most)
	}
}

// endUnhurt ends a client that should have noticed nothing.
func endUnhurt(t *testing.T, client *openLoop) {
	t.Helper()
	client.rest()
	client.end()
	most := unhurt(t, client.fates)
	t.Logf("the slowest of %d queries took %v", len(client.fates), most)
	if most > mostHidden {
		t.Errorf("a query took %v, more than %v", most, mostHidden)
	}
}

// byRcode counts fates; those without a reply are "none".
func byRcode(fates []fate) map[string]int {
	counts := make(map[string]int)
	for _, f := range fates {
		if f.took == 0 {
			counts["none"]++
			continue
		}
		counts[dns.RcodeToString[f.rcode]]++
	}
	return counts
}
