// Command lookup looks names up as every Go program does, for tests that give it
// a resolv.conf of its own. For each name and each address family it prints one
// line:
//
//	NAME FAMILY CODE CANONICAL ADDRESS...
//
// where the code is what getaddrinfo would have returned, as far as Go tells: 0,
// -2 if there is no such host or it has no such address, -3 if it may be worth
// another try. The canonical name is "-" if there is none.
//
// GODEBUG=netdns=go or cgo in the environment chooses the resolver.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
)

func main() {
	ctx := context.Background()
	for _, name := range os.Args[1:] {
		for _, family := range []string{"ip", "ip4", "ip6"} {
			fmt.Fprintln(os.Stdout, name, family, lookUp(ctx, name, family))
		}
	}
}

// lookUp returns the rest of a line.
func lookUp(ctx context.Context, name, family string) string {
	ips, err := net.DefaultResolver.LookupIP(ctx, family, name)
	if err != nil {
		return code(err) + " -"
	}
	canonical, err := net.DefaultResolver.LookupCNAME(ctx, name)
	if err != nil {
		canonical = "-"
	}
	words := []string{"0", canonical}
	for _, ip := range ips {
		words = append(words, ip.String())
	}
	return strings.Join(words, " ")
}

func code(err error) string {
	var dnsError *net.DNSError
	switch {
	case errors.As(err, &dnsError) && dnsError.IsNotFound:
		return "-2"
	case errors.As(err, &dnsError) && dnsError.Temporary():
		return "-3"
	}
	return "-4" // EAI_FAIL
}
