package transport

import (
	"time"

	"github.com/miekg/dns"
)

// waiter is an exchange that waits for its reply.
type waiter struct {
	query Query
	done  chan result // has room for the one result that anybody reads
	sent  time.Time   // over UDP
}

func newWaiter(q Query) *waiter { return &waiter{query: q, done: make(chan result, 1)} }

type result struct {
	reply *dns.Msg
	err   error
}

// give hands r to whoever waits. A second result finds no room and is dropped.
func (w *waiter) give(r result) {
	select {
	case w.done <- r:
	default:
	}
}

// enter puts w under a random ID that no other waits for.
func enter(waiting map[uint16]*waiter, w *waiter) uint16 {
	for {
		id := randomID()
		if _, taken := waiting[id]; !taken {
			waiting[id] = w
			return id
		}
	}
}
