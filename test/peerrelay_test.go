package test

import (
	"net"
	"sync"
	"testing"
)

// relay hands connections on to a server, and resets them when told.
type relay struct {
	listener net.Listener
	target   string
	working  sync.WaitGroup

	mu    sync.Mutex
	conns map[*net.TCPConn]bool // the client's ends; true: to be reset when a reply comes
	lost  int                   // replies in whose place there was a reset
	over  bool
}

func startRelay(t testing.TB, target string) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", loopbackAddr(freePort(t)))
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listener: listener, target: target, conns: make(map[*net.TCPConn]bool)}
	r.working.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			r.working.Go(func() { r.serve(client.(*net.TCPConn)) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		r.mu.Lock()
		r.over = true
		r.mu.Unlock()
		r.drop()
		r.working.Wait()
	})
	return r
}

func (r *relay) addr() string { return r.listener.Addr().String() }

// serve hands on what comes on one connection, until one of its ends is closed.
func (r *relay) serve(client *net.TCPConn) {
	defer client.Close()
	conn, err := net.DialTimeout("tcp", r.target, peerAskLimit)
	if err != nil {
		return
	}
	server := conn.(*net.TCPConn)
	defer server.Close()
	if !r.keep(client) {
		return
	}
	defer r.forget(client)
	replies := make(chan struct{})
	go func() {
		defer close(replies)
		defer client.Close() // which ends the other direction too
		buf := make([]byte, 64<<10)
		for {
			n, err := server.Read(buf)
			if n > 0 && r.mayReply(client) {
				_, err = client.Write(buf[:n])
			}
			if err != nil {
				return
			}
		}
	}()
	server.ReadFrom(client)
	server.Close()
	<-replies
}

// keep remembers a connection, unless the relay is over.
func (r *relay) keep(c *net.TCPConn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.over {
		r.conns[c] = false
	}
	return !r.over
}

func (r *relay) forget(c *net.TCPConn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, c)
}

// mayReply reports whether a reply may be handed on. If not, it resets the
// connection instead.
func (r *relay) mayReply(c *net.TCPConn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.conns[c] {
		return true
	}
	r.lost++
	reset(c)
	return false
}

// drop resets all connections and returns how many there were.
func (r *relay) drop() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		reset(c)
	}
	return len(r.conns)
}

// dropAtReply resets each connection that is there now once a reply comes on it:
// the query has been sent, and nobody knows whether it was read.
func (r *relay) dropAtReply() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		r.conns[c] = true
	}
}

func (r *relay) repliesLost() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lost
}

func reset(c *net.TCPConn) {
	c.SetLinger(0) // so that Close sends RST
	c.Close()
}
