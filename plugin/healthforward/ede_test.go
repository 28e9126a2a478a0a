package healthforward

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"steadfast.internal/plugin/healthforward/internal/transport"

	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
)

// extendedError returns the extended error of a reply, or nil.
func extendedError(m *dns.Msg) *dns.EDNS0_EDE {
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if e, ok := o.(*dns.EDNS0_EDE); ok {
				return e
			}
		}
	}
	return nil
}

func TestAnExtendedErrorSaysWhatCameOfEachUpstream(t *testing.T) {
	deaf, refuses, full := func(m *model) { m.deaf = true }, func(m *model) { m.refuses = true }, func(m *model) { m.full = true }
	for name, tc := range map[string]struct {
		a, b  func(*model)
		qtype uint16
		code  uint16
		text  string
	}{
		"both are silent":          {deaf, deaf, dns.TypeA, 22, "healthforward: 192.0.2.1:53 timeout, 192.0.2.2:53 timeout"},
		"one is, and one refuses":  {deaf, refuses, dns.TypeA, 23, "healthforward: 192.0.2.1:53 timeout, 192.0.2.2:53 refused"},
		"both refuse":              {refuses, refuses, dns.TypeA, 23, "healthforward: 192.0.2.1:53 refused, 192.0.2.2:53 refused"},
		"both take no connections": {full, full, dns.TypeA, 23, "healthforward: 192.0.2.1:53 no connection, 192.0.2.2:53 no connection"},
		"what is sent once":        {refuses, deaf, dns.TypeHINFO, 23, "healthforward: 192.0.2.1:53 refused, 192.0.2.2:53 timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, "policy sequential\nede on\nmax_fails 0", func(t *testing.T, fw *Forwarder, a, b *model) {
				a.set(tc.a)
				b.set(tc.b)
				m := question("example.org.", tc.qtype).SetEdns0(4096, true)
				reply, rcode, err := ask(t, fw, m)
				if reply == nil || reply.Rcode != dns.RcodeServerFailure || reply.Id != m.Id || rcode != dns.RcodeSuccess || err != nil {
					t.Fatalf("wrote %v, ServeDNS = %d, %v; want SERVFAIL written, success returned", reply, rcode, err)
				}
				if e := extendedError(reply); e == nil || e.InfoCode != tc.code || e.ExtraText != tc.text || !reply.IsEdns0().Do() {
					t.Errorf("extended error %v, want %d (%s) and DO", e, tc.code, tc.text)
				}
				reply, rcode, err = ask(t, fw, question("example.org.", tc.qtype))
				if reply == nil || reply.Rcode != dns.RcodeServerFailure || len(reply.Extra) != 0 || rcode != dns.RcodeSuccess || err != nil {
					t.Errorf("to who sent no OPT: wrote %v, ServeDNS = %d, %v; want a plain SERVFAIL", reply, rcode, err)
				}
			})
		})
	}
}

func TestWhereNothingIsToBeWrittenEDEWritesNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		options  string
		patience time.Duration
		waiting  int64
		rcode    int
		err      error
	}{
		"it is off by default":     {"", time.Minute, 0, dns.RcodeServerFailure, nil},
		"it is off":                {"ede off", time.Minute, 0, dns.RcodeServerFailure, nil},
		"the client is gone":       {"ede on", time.Second, 0, dns.RcodeServerFailure, context.DeadlineExceeded},
		"too many queries wait":    {"ede on", time.Minute, maxWaiting, dns.RcodeRefused, errFull},
		"the client is long gone":  {"ede on", 0, 0, dns.RcodeServerFailure, context.DeadlineExceeded},
		"too many, and it is gone": {"ede on", 0, maxWaiting, dns.RcodeRefused, errFull},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, tc.options, func(t *testing.T, fw *Forwarder, a, b *model) {
				for _, m := range []*model{a, b} {
					m.set(func(m *model) { m.deaf = true })
				}
				fw.registry.waiting.Add(tc.waiting)
				ctx, cancel := context.WithTimeout(t.Context(), tc.patience)
				defer cancel()
				rec := dnstest.NewRecorder(&test.ResponseWriter{})
				rcode, err := fw.ServeDNS(ctx, rec, question("example.org.", dns.TypeA).SetEdns0(4096, false))
				if rec.Msg != nil || rcode != tc.rcode || !errors.Is(err, tc.err) {
					t.Errorf("wrote %v, ServeDNS = %d, %v; want nothing, %d, %v", rec.Msg, rcode, err, tc.rcode, tc.err)
				}
			})
		})
	}
}

func TestAFollowerIsToldWhatCameOfTheFlight(t *testing.T) {
	bubble(t, "policy sequential\nede on", func(t *testing.T, fw *Forwarder, a, b *model) {
		for _, m := range []*model{a, b} {
			m.set(func(m *model) { m.deaf = true })
		}
		go askWithin(t, fw, time.Minute)
		time.Sleep(500 * ms)
		reply, _, _ := ask(t, fw, question("example.org.", dns.TypeA).SetEdns0(4096, false))
		if e := extendedError(reply); e == nil || !strings.Contains(e.ExtraText, "192.0.2.1:53 timeout") {
			t.Errorf("extended error %v", e)
		}
	})
}

func TestFailfastSaysThatNobodyWasAsked(t *testing.T) {
	bubble(t, "ede on\nfailfast_all_unhealthy_upstreams", func(t *testing.T, fw *Forwarder, a, b *model) {
		for _, m := range []*model{a, b} {
			m.set(func(m *model) { m.deaf = true })
		}
		resolve(t, fw, "first.example.org.")
		time.Sleep(4 * time.Second)
		fw.canary.takes(time.Now())
		reply, _, _ := ask(t, fw, question("example.org.", dns.TypeA).SetEdns0(4096, false))
		if e := extendedError(reply); e == nil || e.InfoCode != 22 || e.ExtraText != "healthforward: no upstream was asked" {
			t.Errorf("extended error %v", e)
		}
	})
}

func TestTheTextOfAnExtendedErrorIsBounded(t *testing.T) {
	for name, tc := range map[string]struct {
		n      int
		addr   string
		suffix string
	}{
		"as many as are named":  {8, "192.0.2.%d:53", "192.0.2.7:53 refused"},
		"one more":              {9, "192.0.2.%d:53", "192.0.2.7:53 refused and 1 more"},
		"many, and long":        {200, "[2001:db8:ffff:ffff:ffff:ffff:ffff:%04d]:5353", " more"},
		"what does not fit":     {1, strings.Repeat("x", 300) + "%d", "healthforward: and 1 more"},
		"nobody":                {0, "", "no upstream was asked"},
		"as long as it can get": {8, "[2001:db8:ffff:ffff:ffff:ffff:ffff:%04d]:5353", "refused and 5 more"},
	} {
		t.Run(name, func(t *testing.T) {
			var outcomes []tried
			for i := range tc.n {
				outcomes = append(outcomes, tried{fmt.Sprintf(tc.addr, i), "refused"})
			}
			e := explain(outcomes)
			if len(e.ExtraText) > maxEDEText || !strings.HasSuffix(e.ExtraText, tc.suffix) {
				t.Errorf("text of %d octets: %s, want it to end in %q within %d", len(e.ExtraText), e.ExtraText, tc.suffix, maxEDEText)
			}
			if wants := tc.n > 0; wants != (e.InfoCode == 23) {
				t.Errorf("code %d of %d refusals", e.InfoCode, tc.n)
			}
			name := strings.Repeat(strings.Repeat("a", 63)+".", 3) + strings.Repeat("a", 61) + "."
			m := failure(question(name, dns.TypeA).SetEdns0(512, false), nil)
			m.IsEdns0().Option = []dns.EDNS0{e}
			if packet, err := m.Pack(); err != nil || len(packet) > dns.MinMsgSize {
				t.Errorf("reply of %d octets, %v", len(packet), err)
			}
		})
	}
}

func TestErrorsHaveWordsThatShowNothingOfThisHost(t *testing.T) {
	for want, err := range map[string]error{
		"timeout":          context.DeadlineExceeded,
		"no connection":    fmt.Errorf("dial: %w", transport.ErrNoConnection),
		"handshake failed": fmt.Errorf("tls: %w", transport.ErrHandshake),
		"error":            errors.New("open /etc/secret: no such file"),
	} {
		if got := (&try{err: err}).outcome(); got != want {
			t.Errorf("%v is %q, want %q", err, got, want)
		}
	}
}
