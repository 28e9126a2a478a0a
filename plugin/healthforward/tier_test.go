package healthforward

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
)

func TestTheBackupAnswersWithinHalfASecondAndThenAtItsOwnSpeed(t *testing.T) {
	tiered(t, oneEach, nil, func(t *testing.T, fw *Forwarder, up map[string]*view) {
		up[primary].alive(false)
		if addr, took := resolve(t, fw, "first.example.org."); addr != spare || took != 500*ms {
			t.Errorf("the first query: %q in %v, want the backup's answer when the primary has had its time", addr, took)
		}
		time.Sleep(200 * ms) // by then the primary is ejected
		for i := range 20 {
			if addr, took := resolve(t, fw, fmt.Sprintf("n%d.example.org.", i)); addr != spare || took != 2*ms {
				t.Errorf("query %d: %q in %v", i, addr, took)
			}
		}
	})
}

func TestAPrimaryThatIsDeadAtTheStart(t *testing.T) {
	tiered(t, oneEach, []string{primary}, func(t *testing.T, fw *Forwarder, up map[string]*view) {
		up[spare].says("none.example.org.", said{rcode: dns.RcodeNameError, after: 2 * ms})
		var wg sync.WaitGroup
		wg.Go(func() {
			if rcode, took := rcodeOf(t, fw, "none.example.org."); rcode != dns.RcodeNameError || took > 400*ms {
				t.Errorf("a denial: rcode %d in %v, want once the primary is judged", rcode, took)
			}
		})
		if addr, took := resolve(t, fw, "first.example.org."); addr != spare || took > 400*ms {
			t.Errorf("the first query: %q in %v, want once the primary is judged", addr, took)
		}
		wg.Wait()
		if addr, took := resolve(t, fw, "second.example.org."); addr != spare || took != 2*ms {
			t.Errorf("the second query: %q in %v", addr, took)
		}
		if !fw.Ready() {
			t.Error("not ready")
		}
	})
}

func TestTheBackupNeverDeniesWhatALivingPrimaryMayKnow(t *testing.T) {
	for what, answer := range map[string]said{"NXDOMAIN": {rcode: dns.RcodeNameError, after: 5 * ms}, "NODATA": {after: 5 * ms}} {
		for when, outage := range map[string]func(v *view){
			"it is slow":                  func(v *view) { v.says("only.example.org.", said{knows: true, after: 300 * ms}) },
			"it is very slow":             func(v *view) { v.says("only.example.org.", said{knows: true, after: 1800 * ms}) },
			"it stumbles":                 func(v *view) { v.alive(false); time.AfterFunc(400*ms, func() { v.alive(true) }) },
			"it says SERVFAIL":            func(v *view) { v.says("only.example.org.", said{rcode: dns.RcodeServerFailure}) },
			"it refuses":                  func(v *view) { v.says("only.example.org.", said{rcode: dns.RcodeRefused}) },
			"it drops the name and lives": func(v *view) { v.says("only.example.org.", said{never: true}) },
		} {
			t.Run(what+", "+when, func(t *testing.T) {
				tiered(t, oneEach, nil, func(t *testing.T, fw *Forwarder, up map[string]*view) {
					up[spare].says("only.example.org.", answer)
					outage(up[primary])
					reply, _, _ := ask(t, fw, question("only.example.org.", dns.TypeA))
					if reply != nil && addressIn(reply) != primary && reply.Rcode != dns.RcodeServerFailure && reply.Rcode != dns.RcodeRefused {
						t.Errorf("reply %v", reply)
					}
				})
			})
		}
	}
}

func TestASlowNameIsThePrimarysToAnswer(t *testing.T) {
	tiered(t, oneEach, nil, func(t *testing.T, fw *Forwarder, up map[string]*view) {
		up[primary].says("slow.example.org.", said{knows: true, after: 300 * ms})
		up[spare].says("slow.example.org.", said{rcode: dns.RcodeNameError, after: 5 * ms})
		for range 5 {
			if addr, took := resolve(t, fw, "slow.example.org."); addr != primary || took != 300*ms {
				t.Errorf("%q in %v, want the primary's answer", addr, took)
			}
		}
	})
}

func TestWhatThePrimaryFailsTheBackupIsAsked(t *testing.T) {
	for name, tc := range map[string]struct {
		primary, spare said
		want           int
		addr           string
		took           time.Duration
	}{
		"SERVFAIL":              {said{rcode: dns.RcodeServerFailure}, said{knows: true}, 0, spare, 0},
		"REFUSED":               {said{rcode: dns.RcodeRefused}, said{knows: true}, 0, spare, 0},
		"both fail":             {said{rcode: dns.RcodeServerFailure}, said{rcode: dns.RcodeServerFailure}, dns.RcodeServerFailure, "", 0},
		"the backup is slow":    {said{rcode: dns.RcodeServerFailure}, said{knows: true, after: 700 * ms}, 0, spare, 700 * ms},
		"the name is dropped":   {said{never: true}, said{knows: true}, 0, spare, 500 * ms},
		"the name takes longer": {said{knows: true, after: 900 * ms}, said{knows: true}, 0, spare, 500 * ms},
		"the primary denies it": {said{rcode: dns.RcodeNameError}, said{knows: true}, dns.RcodeNameError, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			tiered(t, oneEach, nil, func(t *testing.T, fw *Forwarder, up map[string]*view) {
				up[primary].says("bad.example.org.", tc.primary)
				up[spare].says("bad.example.org.", tc.spare)
				lively(t, fw, func() {
					began := time.Now()
					reply, _, _ := ask(t, fw, question("bad.example.org.", dns.TypeA))
					if reply == nil || reply.Rcode != tc.want || addressIn(reply) != tc.addr || time.Since(began) != tc.took {
						t.Errorf("reply %v after %v, want rcode %d, address %q after %v", reply, time.Since(began), tc.want, tc.addr, tc.took)
					}
				})
				if n := countState(fw, "up"); n != 2 {
					t.Errorf("%d upstreams are up, want both", n)
				}
			})
		})
	}
}

func TestOneOfTwoPrimariesIsEnough(t *testing.T) {
	for _, policy := range []string{"random", "sequential", "round_robin"} {
		stanza := fmt.Sprintf("healthforward . %s %s {\n backup %s\n policy %s\n}", primary, second, spare, policy)
		tiered(t, stanza, nil, func(t *testing.T, fw *Forwarder, up map[string]*view) {
			up[primary].alive(false)
			for i := range 200 {
				if addr, took := resolve(t, fw, fmt.Sprintf("n%d.example.org.", i)); addr != second || took > 252*ms {
					t.Errorf("%s, query %d: %q in %v", policy, i, addr, took)
				}
				time.Sleep(20 * ms)
			}
			if n := len(up[spare].queries); n != 0 {
				t.Errorf("%s: the backup was asked %d times", policy, n)
			}
		})
	}
}

func TestWhatAllPrimariesFailTheBackupIsAsked(t *testing.T) {
	stanza := fmt.Sprintf("healthforward . %s %s {\n backup %s\n}", primary, second, spare)
	tiered(t, stanza, nil, func(t *testing.T, fw *Forwarder, up map[string]*view) {
		up[primary].says("bad.example.org.", said{rcode: dns.RcodeServerFailure})
		up[second].says("bad.example.org.", said{rcode: dns.RcodeServerFailure})
		if addr, took := resolve(t, fw, "bad.example.org."); addr != spare || took != 2*ms {
			t.Errorf("%q in %v", addr, took)
		}
	})
}

func TestThePrimaryIsUsedAgainWhenItIsBack(t *testing.T) {
	tiered(t, oneEach, nil, func(t *testing.T, fw *Forwarder, up map[string]*view) {
		up[primary].alive(false)
		resolve(t, fw, "first.example.org.")
		time.Sleep(20 * time.Second)
		up[primary].alive(true)
		back := time.Now()
		for addr := ""; addr != primary; time.Sleep(10 * ms) {
			var took time.Duration
			if addr, took = resolve(t, fw, "again.example.org."); took > 2*ms {
				t.Errorf("%q in %v", addr, took)
			}
			if time.Since(back) > 5*time.Second {
				t.Fatal("not used again")
			}
		}
		if took := time.Since(back); took > 2*time.Second {
			t.Errorf("used again after %v", took)
		}
		returned := time.Now()
		for i := range 50 { // its slow start has nobody to share with
			if addr, _ := resolve(t, fw, fmt.Sprintf("n%d.example.org.", i)); addr != primary {
				t.Errorf("after its return: %q", addr)
			}
		}
		if n := up[spare].since(returned); n != 0 {
			t.Errorf("the backup was asked %d times after that", n)
		}
	})
}

func TestAllTiersDeadThenOneBack(t *testing.T) {
	stanza := fmt.Sprintf("healthforward . %s {\n backup %s\n backup %s\n}", primary, spare, third)
	for _, first := range []string{primary, spare, third} {
		tiered(t, stanza, nil, func(t *testing.T, fw *Forwarder, up map[string]*view) {
			for _, v := range up {
				v.alive(false)
			}
			if rcode, took := rcodeOf(t, fw, "down.example.org."); rcode != -1 || took != queryDeadline {
				t.Errorf("nobody answers: rcode %d in %v", rcode, took)
			}
			time.Sleep(10 * time.Second)
			parked := make(chan time.Time, 1)
			go func() {
				if addr, _ := resolve(t, fw, "parked.example.org."); addr != first {
					t.Errorf("what waits is answered by %q", addr)
				}
				parked <- time.Now()
			}()
			time.Sleep(100 * ms)
			up[first].alive(true)
			back := time.Now()
			if addr, took := resolve(t, fw, "first.example.org."); addr != first || took > 200*ms {
				t.Errorf("first query after the return of %s: %q in %v", first, addr, took)
			}
			if took := (<-parked).Sub(back); took > 200*ms {
				t.Errorf("what waited is answered %v after the return of %s", took, first)
			}
		})
	}
}

func TestTheThirdTierIsForWhenTheSecondIsGoneToo(t *testing.T) {
	stanza := fmt.Sprintf("healthforward . %s {\n backup %s\n backup %s\n}", primary, spare, third)
	tiered(t, stanza, nil, func(t *testing.T, fw *Forwarder, up map[string]*view) {
		up[primary].alive(false)
		resolve(t, fw, "first.example.org.")
		time.Sleep(time.Second)
		n := len(up[third].queries)
		for i := range 20 {
			if addr, took := resolve(t, fw, fmt.Sprintf("n%d.example.org.", i)); addr != spare || took != 2*ms {
				t.Errorf("%q in %v", addr, took)
			}
		}
		if more := len(up[third].queries) - n; more != 0 {
			t.Errorf("the third tier was asked %d times", more)
		}
		up[spare].alive(false)
		if addr, took := resolve(t, fw, "second.example.org."); addr != third || took != 500*ms {
			t.Errorf("%q in %v", addr, took)
		}
		time.Sleep(time.Second)
		if addr, took := resolve(t, fw, "third.example.org."); addr != third || took != 2*ms {
			t.Errorf("%q in %v", addr, took)
		}
	})
}

func TestAPrimaryThatRefusesIsJudgedBeforeTheBackupMayDeny(t *testing.T) {
	tiered(t, oneEach, nil, func(t *testing.T, fw *Forwarder, up map[string]*view) {
		up[spare].says("none.example.org.", said{rcode: dns.RcodeNameError, after: 2 * ms})
		resolve(t, fw, "before.example.org.")
		probes := up[primary].probes
		up[primary].set(func(m *model) { m.refuses = true })
		if addr, took := resolve(t, fw, "first.example.org."); addr != spare || took != 2*ms {
			t.Errorf("%q in %v", addr, took)
		}
		if rcode, took := rcodeOf(t, fw, "none.example.org."); rcode != dns.RcodeNameError || took > tierHold {
			t.Errorf("a denial: rcode %d in %v, want once the primary is judged", rcode, took)
		}
		if n := up[primary].probes - probes; n > 10 {
			t.Errorf("%d probes until the verdict", n)
		}
		if rcode, took := rcodeOf(t, fw, "none.example.org."); rcode != dns.RcodeNameError || took != 2*ms {
			t.Errorf("a denial after that: rcode %d in %v", rcode, took)
		}
	})
}

func TestAPrimaryWithoutARouteIsOut(t *testing.T) {
	tiered(t, oneEach, nil, func(t *testing.T, fw *Forwarder, up map[string]*view) {
		up[spare].says("none.example.org.", said{rcode: dns.RcodeNameError, after: 2 * ms})
		up[primary].set(func(m *model) { m.err = syscall.ENETUNREACH })
		for i := range 5 {
			if addr, took := resolve(t, fw, fmt.Sprintf("n%d.example.org.", i)); addr != spare || took != 2*ms {
				t.Errorf("%q in %v", addr, took)
			}
		}
		if rcode, _ := rcodeOf(t, fw, "none.example.org."); rcode == dns.RcodeNameError {
			t.Error("the backup denies what the primary was there for a moment ago")
		}
		for range 20 {
			time.Sleep(500 * ms)
			if rcode, took := rcodeOf(t, fw, "none.example.org."); rcode != dns.RcodeNameError || took != 2*ms {
				t.Errorf("a denial: rcode %d in %v", rcode, took)
			}
		}
		up[primary].set(func(m *model) { m.err = nil })
		time.Sleep(2 * time.Second)
		if addr, took := resolve(t, fw, "again.example.org."); addr != primary || took != 2*ms {
			t.Errorf("after its return: %q in %v", addr, took)
		}
	})
}

// TestInNoOutageAPrivateViewIsDenied plays outages of any kind: as long as the primary
// may answer, nobody is told that there is no name which it alone knows, and no private
// name reaches the backup.
func TestInNoOutageAPrivateViewIsDenied(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		tiered(t, oneEach, nil, func(t *testing.T, fw *Forwarder, up map[string]*view) {
			up[spare].says("only.example.org.", said{rcode: dns.RcodeNameError, after: ms})
			var wg sync.WaitGroup
			for range 400 {
				if random.IntN(40) == 0 {
					befall(random, up[primary])
				}
				name := []string{"only.example.org.", "nas.", "n.example.org."}[random.IntN(3)]
				wg.Go(func() {
					before := gone(fw, up[primary])
					rcode, _ := rcodeOf(t, fw, name)
					if rcode == dns.RcodeNameError && !before && !gone(fw, up[primary]) {
						t.Errorf("seed %d: %s is denied while the primary is there", seed, name)
					}
				})
				time.Sleep(time.Duration(random.IntN(40)) * ms)
			}
			wg.Wait()
			if n := up[spare].asked["nas."]; n != 0 {
				t.Errorf("seed %d: the backup was asked a private name %d times", seed, n)
			}
		})
	}
}

// gone reports whether the primary is ejected, or there was no route to it in the last
// second, for which it is taken for out of reach.
func gone(fw *Forwarder, primary *view) bool {
	primary.mu.Lock()
	defer primary.mu.Unlock()
	return time.Since(primary.cutOff) <= time.Second || primary.err != nil || countState(fw, "ejected") > 0
}

// befall makes something happen to an upstream.
func befall(random *rand.Rand, v *view) {
	kind := random.IntN(7)
	v.set(func(m *model) {
		if m.err != nil {
			v.cutOff = time.Now()
		}
		m.deaf, m.silent, m.refuses, m.err, m.rtt, m.busy = kind == 0, kind == 1, kind == 2, nil, 2*ms, 0
		switch kind {
		case 3:
			m.err = syscall.ENETUNREACH
		case 4:
			m.rtt = 350 * ms
		case 5:
			m.rtt = 900 * ms
		}
	})
}

func TestTheBackupIsAskedWhileTooManyWaitOnThePrimary(t *testing.T) {
	tiered(t, oneEach, nil, func(t *testing.T, fw *Forwarder, up map[string]*view) {
		const many = 1024 // what its rules allow
		up[primary].mu.Lock()
		up[primary].rtt = 300 * ms
		up[primary].mu.Unlock()
		var wg sync.WaitGroup
		for i := range many {
			wg.Go(func() { resolve(t, fw, fmt.Sprintf("n%d.example.org.", i)) })
		}
		time.Sleep(ms)
		if addr, took := resolve(t, fw, "more.example.org."); addr != spare || took != 2*ms {
			t.Errorf("one more query: %q in %v, want the backup's answer at once", addr, took)
		}
		wg.Wait()
	})
}
