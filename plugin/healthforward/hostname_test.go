package healthforward

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"steadfast.internal/plugin/internal/dnsfake"

	"github.com/miekg/dns"
)

func TestLookAgainAfter(t *testing.T) {
	for name, tc := range map[string]struct {
		ttl      time.Duration
		failures int
		known    bool
		want     time.Duration
	}{
		"when the TTL is over":            {ttl: time.Minute, known: true, want: time.Minute},
		"at its lower bound":              {ttl: ttlMin, known: true, want: ttlMin},
		"below":                           {ttl: ttlMin - 1, known: true, want: ttlMin},
		"without any":                     {known: true, want: ttlMin},
		"at its upper bound":              {ttl: ttlMax, known: true, want: ttlMax},
		"above":                           {ttl: ttlMax + 1, known: true, want: ttlMax},
		"after a failure":                 {ttl: time.Hour, failures: 1, known: true, want: time.Second},
		"after two":                       {failures: 2, known: true, want: 2 * time.Second},
		"after five":                      {failures: 5, known: true, want: 16 * time.Second},
		"after six":                       {failures: 6, known: true, want: retryMax},
		"after very many":                 {failures: 1 << 40, known: true, want: retryMax},
		"while nothing is known":          {failures: 1, want: time.Second},
		"while nothing is known for long": {failures: 1 << 40, want: time.Second},
	} {
		if got := lookAgainAfter(tc.ttl, tc.failures, tc.known); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// families answers A and AAAA each by its own handler.
func families(a, aaaa dnsfake.Handler) dnsfake.Handler {
	return func(r dnsfake.Request) dnsfake.Response {
		if r.Question[0].Qtype == dns.TypeA {
			return a(r)
		}
		return aaaa(r)
	}
}

func TestResolversAreAskedForBothFamilies(t *testing.T) {
	none := dnsfake.Answer()
	good := families(dnsfake.Answer("@ 300 IN A 192.0.2.1"), none)
	truncated := func(r dnsfake.Request) dnsfake.Response {
		response := good(r)
		if response.Msg.Truncated = r.Proto == protoUDP; response.Msg.Truncated {
			response.Msg.Answer = nil
		}
		return response
	}
	alias := families(dnsfake.Answer("@ 20 IN CNAME x.example.", "x.example. 300 IN A 192.0.2.1"), none)
	many := func(r dnsfake.Request) dnsfake.Response {
		var records []string
		for i := range 70 {
			records = append(records, ". 60 IN A "+netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}).String())
		}
		return families(dnsfake.Answer(records...), none)(r)
	}
	nxdomain, servfail := dnsfake.Rcode(dns.RcodeNameError), dnsfake.Rcode(dns.RcodeServerFailure)
	for name, tc := range map[string]struct {
		resolvers []dnsfake.Handler
		want      string // the first two
		n         int
		ttl       time.Duration
		problem   string // in the error; empty: there is none
	}{
		"one of them is there":             {[]dnsfake.Handler{good}, "192.0.2.1", 1, 300 * time.Second, ""},
		"both are, and the lower TTL":      {[]dnsfake.Handler{families(dnsfake.Answer("@ 300 IN A 192.0.2.1"), dnsfake.Answer("@ 60 IN AAAA 2001:db8::1"))}, "192.0.2.1 2001:db8::1", 2, time.Minute, ""},
		"always in the same order":         {[]dnsfake.Handler{families(dnsfake.Answer("@ 60 IN A 192.0.2.2", "@ 60 IN A 192.0.2.1", "@ 60 IN A 192.0.2.2"), none)}, "192.0.2.1 192.0.2.2", 2, time.Minute, ""},
		"an alias holds no longer":         {[]dnsfake.Handler{alias}, "192.0.2.1", 1, 20 * time.Second, ""},
		"the first fails":                  {[]dnsfake.Handler{servfail, good}, "192.0.2.1", 1, 300 * time.Second, ""},
		"the first is silent":              {[]dnsfake.Handler{dnsfake.Silence, good}, "192.0.2.1", 1, 300 * time.Second, ""},
		"the answer is truncated":          {[]dnsfake.Handler{truncated}, "192.0.2.1", 1, 300 * time.Second, ""},
		"one family fails":                 {[]dnsfake.Handler{families(dnsfake.Answer("@ 60 IN A 192.0.2.1"), servfail)}, "192.0.2.1", 1, time.Minute, "SERVFAIL"},
		"there is no such name":            {[]dnsfake.Handler{nxdomain}, "", 0, 1, errNoAddress.Error()},
		"it has no address":                {[]dnsfake.Handler{none}, "", 0, 1, errNoAddress.Error()},
		"all fail":                         {[]dnsfake.Handler{servfail, dnsfake.Rcode(dns.RcodeRefused)}, "", 0, 1, "REFUSED"},
		"there are far too many":           {[]dnsfake.Handler{many}, "192.0.2.0 192.0.2.1", maxAddresses, time.Minute, ""},
		"an answer of another type":        {[]dnsfake.Handler{dnsfake.Answer("@ 60 IN TXT x")}, "", 0, 1, errNoAddress.Error()},
		"the first does not know the name": {[]dnsfake.Handler{nxdomain, good}, "", 0, 1, errNoAddress.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			var at []string
			for _, handler := range tc.resolvers {
				at = append(at, dnsfake.New(t, handler).Addr())
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			addrs, ttl, err := lookupAt(ctx, "dns.example.org", at)
			if got := strings.TrimPrefix(joined(addrs[:min(len(addrs), 2)]), "nobody"); got != tc.want || len(addrs) != tc.n || ttl != tc.ttl {
				t.Errorf("%d addresses, %s, for %v; want %d, %s, for %v", len(addrs), got, ttl, tc.n, tc.want, tc.ttl)
			}
			if (err == nil) != (tc.problem == "") || err != nil && !strings.Contains(err.Error(), tc.problem) {
				t.Errorf("error = %v, want one with %q", err, tc.problem)
			}
		})
	}
}

func TestASilentResolverEndsWithTheTime(t *testing.T) {
	silent := dnsfake.New(t, dnsfake.Silence)
	ctx, cancel := context.WithTimeout(t.Context(), 700*ms)
	defer cancel()
	addrs, _, err := lookupAt(ctx, "dns.example.org", []string{silent.Addr()})
	// The socket's time may be over a moment before the context's.
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded) || len(addrs) != 0 {
		t.Errorf("lookup = %v, %v", addrs, err)
	}
	if n := silent.Count("dns.example.org."); n < 3 { // two families, and one of them again at least
		t.Errorf("asked %d times, want again after %v", n, askAgain)
	}
}

func TestNamesInTheHostsFileNeedNoResolver(t *testing.T) {
	asked := dnsfake.New(t, dnsfake.Address("192.0.2.1"))
	addrs, ttl, err := lookupSystem(t.Context(), "localhost", []string{asked.Addr()}, nil)
	if err != nil || ttl != ttlUnknown || !slices.Contains(addrs, netip.MustParseAddr("127.0.0.1")) || len(asked.Seen()) != 0 {
		t.Errorf("localhost = %v for %v, %v; the resolver was asked %d times", addrs, ttl, err, len(asked.Seen()))
	}
}

// TestWhoWouldWaitForItselfIsNotAsked: a resolver of the system that is this process.
func TestWhoWouldWaitForItselfIsNotAsked(t *testing.T) {
	all := systemResolvers(func(netip.AddrPort) bool { return false })
	for i, at := range all {
		left := systemResolvers(func(own netip.AddrPort) bool { return own.String() == at })
		if want := slices.Delete(slices.Clone(all), i, i+1); !slices.Equal(left, want) {
			t.Errorf("without %s: %v, want %v", at, left, want)
		}
	}
	if left := systemResolvers(func(netip.AddrPort) bool { return true }); len(left) != 0 {
		t.Errorf("without all: %v", left)
	}
}
