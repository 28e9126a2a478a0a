// Command ask puts one question to a DNS server, for tests that ask from inside
// a container, where there is no dig:
//
//	ask ADDRESS NAME TYPE
//
// It asks again until the server answers, for a quarter of a minute at most, since
// a container that was started may not serve yet. It prints the reply.
package main

import (
	"fmt"
	"os"
	"time"

	"github.com/miekg/dns"
)

// limit is how long a server may take to start.
const limit = 15 * time.Second

func main() {
	if len(os.Args) != 4 || dns.StringToType[os.Args[3]] == 0 {
		fmt.Fprintln(os.Stderr, "usage: ask ADDRESS NAME TYPE")
		os.Exit(2)
	}
	reply, err := ask(os.Args[1], new(dns.Msg).SetQuestion(dns.Fqdn(os.Args[2]), dns.StringToType[os.Args[3]]))
	if err != nil {
		fmt.Fprintln(os.Stderr, "ask:", err)
		os.Exit(1)
	}
	fmt.Println(reply)
}

// ask sends q, four times a second at most, until a reply comes or limit is over.
func ask(addr string, q *dns.Msg) (*dns.Msg, error) {
	client := &dns.Client{Timeout: time.Second}
	ticker := time.NewTicker(250 * time.Millisecond)
	defer ticker.Stop()
	over := time.NewTimer(limit)
	defer over.Stop()
	for {
		reply, _, err := client.Exchange(q, addr)
		if err == nil {
			return reply, nil
		}
		select {
		case <-ticker.C:
		case <-over.C:
			return nil, err
		}
	}
}
