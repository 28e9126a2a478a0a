package transport

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"steadfast.internal/plugin/internal/dnsfake"

	"github.com/miekg/dns"
)

func TestUDPPassesOverWhatIsNoReply(t *testing.T) {
	for name, packet := range map[string]func(q *dns.Msg) []byte{
		"a short packet":       func(*dns.Msg) []byte { return []byte{1, 2, 3} },
		"another ID":           func(q *dns.Msg) []byte { r := new(dns.Msg).SetReply(q); r.Id++; return pack(r) },
		"another name":         func(q *dns.Msg) []byte { r := new(dns.Msg).SetReply(q); r.Question[0].Name = "x.org."; return pack(r) },
		"another type":         func(q *dns.Msg) []byte { r := new(dns.Msg).SetReply(q); r.Question[0].Qtype = 28; return pack(r) },
		"another class":        func(q *dns.Msg) []byte { r := new(dns.Msg).SetReply(q); r.Question[0].Qclass = 3; return pack(r) },
		"another opcode":       func(q *dns.Msg) []byte { r := new(dns.Msg).SetReply(q); r.Opcode = 4; return pack(r) },
		"the query, reflected": func(q *dns.Msg) []byte { return pack(q) },
		"no question, NOERROR": func(q *dns.Msg) []byte { r := new(dns.Msg).SetReply(q); r.Question = nil; return pack(r) },
		"broken records":       func(q *dns.Msg) []byte { return append(pack(new(dns.Msg).SetReply(q))[:12], 0xC0, 0xFF, 1, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			up := dnsfake.New(t, func(r dnsfake.Request) dnsfake.Response {
				response := dnsfake.Address("192.0.2.1")(r)
				copied := r.Msg.Copy()
				response.Raw = [][]byte{packet(copied)}
				return response
			})
			var mismatched atomic.Int32
			x := newExchanger(t, "udp", up.Addr(), Options{Mismatched: func([]byte) { mismatched.Add(1) }})
			m, err := x.Exchange(t.Context(), newQuery(t, "example.org."))
			if err != nil || len(m.Answer) != 1 {
				t.Errorf("reply %v, error %v; want the one that came second", m, err)
			}
			if n := mismatched.Load(); n != 1 {
				t.Errorf("%d mismatches counted, want 1", n)
			}
		})
	}
}

func TestTooLargeOverUDPIsTruncated(t *testing.T) {
	var records []string
	for i := range 40 {
		records = append(records, fmt.Sprintf("@ 60 IN TXT \"%d%s\"", i, strings.Repeat("x", 200)))
	}
	up := dnsfake.New(t, dnsfake.Answer(records...))
	x := newExchanger(t, "udp", up.Addr(), Options{})
	m, err := x.Exchange(t.Context(), newQuery(t, "example.org."))
	if err != nil || !m.Truncated || len(m.Answer) != 0 || len(m.Question) != 1 {
		t.Errorf("reply %v, error %v; want an empty truncated one", m, err)
	}
	x = newExchanger(t, "tcp", up.Addr(), Options{})
	if m, err = x.Exchange(t.Context(), newQuery(t, "example.org.")); err != nil || len(m.Answer) != 40 {
		t.Errorf("over TCP: error %v; want all 40 records", err)
	}
}

func TestUDPUsesManyPortsAndChangesThem(t *testing.T) {
	up := dnsfake.New(t, dnsfake.Address("192.0.2.1"))
	x := newExchanger(t, "udp", up.Addr(), Options{})
	for range 200 {
		if _, err := x.Exchange(t.Context(), newQuery(t, "example.org.")); err != nil {
			t.Fatal(err)
		}
	}
	ids, ports := make(map[uint16]bool), make(map[string]bool)
	for _, r := range up.Seen() {
		ids[r.Id], ports[r.From.String()] = true, true
	}
	if len(ports) != udpSockets {
		t.Errorf("200 queries from %d ports, want %d", len(ports), udpSockets)
	}
	if len(ids) < 190 {
		t.Errorf("200 queries with %d IDs, want hardly a repetition", len(ids))
	}
}

func TestAUDPSocketIsRetired(t *testing.T) {
	now := time.Now()
	for name, tc := range map[string]struct {
		left    int
		age     time.Duration
		retired bool
		want    bool
	}{
		"it is new":                {udpQueries, 0, false, true},
		"its last query":           {1, 0, false, true},
		"it has sent all":          {0, 0, false, false},
		"just young enough":        {5, udpAge, false, true},
		"too old":                  {5, udpAge + 1, false, false},
		"its server has gone away": {5, 0, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := &udpSocket{left: tc.left, until: now.Add(udpAge), retired: tc.retired, waiting: make(map[uint16]*waiter)}
			if _, ok := s.add(now.Add(tc.age), &waiter{}); ok != tc.want {
				t.Errorf("takes another query: %v, want %v", ok, tc.want)
			}
		})
	}
}

// FuzzDeliver feeds packets to a socket on which somebody waits: whatever comes,
// nothing panics, and nothing but a reply to the query is delivered.
func FuzzDeliver(f *testing.F) {
	q := new(dns.Msg).SetQuestion("example.org.", dns.TypeA)
	query, err := NewQuery(q)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(pack(new(dns.Msg).SetReply(q)), false)
	f.Add(pack(q), false)
	f.Add(pack(new(dns.Msg).SetRcode(q, dns.RcodeRefused))[:12], true)
	f.Fuzz(func(t *testing.T, packet []byte, cut bool) {
		w := &waiter{query: query, done: make(chan result, 1)}
		s := &udpSocket{waiting: make(map[uint16]*waiter)}
		if len(packet) >= 2 {
			s.waiting[binary.BigEndian.Uint16(packet)] = w
		}
		s.deliver(packet, cut)
		select {
		case r := <-w.done:
			if !matches(r.reply, query) {
				t.Errorf("delivered %v", r.reply)
			}
		default:
		}
	})
}

func BenchmarkUDP(b *testing.B) {
	up := dnsfake.New(b, dnsfake.Address("192.0.2.1"))
	q := newQuery(b, "example.org.")
	for name, opts := range map[string]Options{"pooled": {}, "a socket per query": {Fresh: true}} {
		b.Run(name, func(b *testing.B) {
			x := newExchanger(b, "udp", up.Addr(), opts)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := x.Exchange(context.Background(), q); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}

func TestASocketThatIsNotAnsweredIsRetiredIfSiblingsAre(t *testing.T) {
	base := time.Now()
	at := func(s int) time.Time { return base.Add(time.Duration(s) * time.Second) }
	type query struct {
		sent     int
		answered bool
	}
	for name, tc := range map[string]struct {
		queries []query // in the order of their ends
		sibling int     // when the last query was sent that a sibling answered; 0 for none
		want    bool
	}{
		"nothing was lost":                  {[]query{{1, true}, {2, true}}, 9, false},
		"one was lost":                      {[]query{{1, true}, {2, false}}, 9, false},
		"two in a row were lost":            {[]query{{1, true}, {2, false}, {3, false}}, 9, true},
		"two were lost, nobody is answered": {[]query{{1, true}, {2, false}, {3, false}}, 0, false},
		"the sibling's was sent before":     {[]query{{2, false}, {4, false}}, 3, false},
		"two were lost, not in a row":       {[]query{{1, false}, {2, true}, {3, false}}, 9, false},
		"answered what was sent later":      {[]query{{5, true}, {3, false}, {4, false}}, 9, false},
		"answered late, and lost again":     {[]query{{1, false}, {2, false}, {3, true}, {4, false}}, 9, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := &udpSocket{left: 100, until: at(1000), waiting: make(map[uint16]*waiter), givenUp: make(map[uint16]bool)}
			u := &udp{}
			u.slots[0], u.slots[1] = s, &udpSocket{answered: at(tc.sibling)}
			if tc.sibling == 0 {
				u.slots[1] = nil
			}
			q := newQuery(t, "example.org.")
			for _, each := range tc.queries {
				id, ok := s.add(at(each.sent), newWaiter(q))
				if !ok {
					t.Fatal("the socket takes no more")
				}
				if each.answered {
					m := new(dns.Msg).SetQuestion("example.org.", dns.TypeA)
					m.Id, m.Response = id, true
					s.deliver(pack(m), false)
				}
				s.remove(id, !each.answered)
			}
			if got := u.deaf(s); got != tc.want {
				t.Errorf("deaf: %v, want %v", got, tc.want)
			}
		})
	}
}

// A Service's address stands for several backends, of which a connected socket
// always reaches the same one.
func TestAQuerySoonReachesABackendThatAnswers(t *testing.T) {
	var deafPorts sync.Map // half of the first ports
	var ports atomic.Int32
	up := dnsfake.New(t, func(r dnsfake.Request) dnsfake.Response {
		n := ports.Add(1)
		if deaf, _ := deafPorts.LoadOrStore(r.From.String(), n <= udpSockets && n%2 == 0); deaf.(bool) {
			return dnsfake.Silence(r)
		}
		return dnsfake.Address("192.0.2.1")(r)
	})
	x := newExchanger(t, "udp", up.Addr(), Options{})
	row := 0
	for range 400 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if _, err := x.Exchange(ctx, newQuery(t, "example.org.")); err == nil {
			row++
		} else {
			row = 0
		}
		cancel()
	}
	if row < 20 {
		t.Errorf("the last %d queries were answered, want all of many", row)
	}
}

func TestAQuestionThatSomebodyGuessesAtIsAskedOverTCP(t *testing.T) {
	wrong := func(q *dns.Msg, n int) (packets [][]byte) {
		for i := range n {
			m := new(dns.Msg).SetReply(q)
			m.Id += uint16(i + 1)
			packets = append(packets, pack(m))
		}
		return packets
	}
	for name, tc := range map[string]struct {
		guesses int
		want    string
	}{
		"99 guesses":  {udpForged - 1, "udp"},
		"100 guesses": {udpForged, "tcp"},
	} {
		t.Run(name, func(t *testing.T) {
			up := dnsfake.New(t, func(r dnsfake.Request) dnsfake.Response {
				response := dnsfake.Answer("@ 60 IN TXT " + r.Proto)(r)
				if r.Proto == "udp" {
					response.Raw = wrong(r.Msg, tc.guesses)
				}
				return response
			})
			x := newExchanger(t, "udp", up.Addr(), Options{})
			m := exchange(t, x)
			if len(m.Answer) != 1 || m.Answer[0].(*dns.TXT).Txt[0] != tc.want {
				t.Errorf("reply %v, want over %s", m, tc.want)
			}
		})
	}
}

func TestLateRepliesAreNoGuesses(t *testing.T) {
	s := &udpSocket{left: 1000, until: time.Now().Add(time.Hour), waiting: make(map[uint16]*waiter), givenUp: make(map[uint16]bool)}
	for range 2 * udpForged {
		id, _ := s.add(time.Now(), newWaiter(newQuery(t, "example.org.")))
		s.remove(id, true)
		m := new(dns.Msg).SetQuestion("example.org.", dns.TypeA)
		m.Id, m.Response = id, true
		s.deliver(pack(m), false)
	}
	if s.forged != 0 || len(s.givenUp) != 0 {
		t.Errorf("%d late replies are taken for guesses, %d are still awaited", s.forged, len(s.givenUp))
	}
}
