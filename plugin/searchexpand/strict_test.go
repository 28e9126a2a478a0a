package searchexpand

import (
	"slices"
	"testing"

	"github.com/miekg/dns"
)

func TestOnFailureStopEndsAtTheFirstSuffixThatFails(t *testing.T) {
	tests := map[string]struct {
		list  []string
		ask   string
		rcode int
		asked []string
	}{
		"SERVFAIL in front":    {[]string{"sf.test.", "b.test."}, "bonly.", dns.RcodeServerFailure, []string{"bonly.sf.test. A"}},
		"REFUSED by the first": {[]string{"refused.test.", "b.test."}, "bonly.", dns.RcodeServerFailure, []string{"bonly.refused.test. A"}},
		"REFUSED by the only":  {[]string{"refused.test."}, "bonly.", dns.RcodeServerFailure, []string{"bonly.refused.test. A"}},
		"an error in the middle": {
			[]string{"a.test.", "fail.test.", "b.test."}, "bonly.", dns.RcodeServerFailure, []string{"bonly.a.test. A", "bonly.fail.test. A"},
		},
		"a failure behind the hit": {[]string{"b.test.", "sf.test."}, "bonly.", dns.RcodeSuccess, []string{"bonly.b.test. A"}},
		"a denial is no failure": {
			[]string{"a.test.", "b.test."}, "nope.", dns.RcodeNameError, []string{"nope.a.test. A", "nope.b.test. A"},
		},
		"no data is no failure": {
			[]string{"a.test.", "b.test."}, "ent.", dns.RcodeSuccess, []string{"ent.a.test. A", "ent.a.test. AAAA", "ent.b.test. A"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := newConfig()
			c.entries, c.onFailure = entriesOf(tc.list...), failureStops
			z := newZones(t)
			m := serve(t, newTestPluginOf(z, c), query(tc.ask, dns.TypeA))
			if got := z.questions(); m.Rcode != tc.rcode || !slices.Equal(got, tc.asked) {
				t.Errorf("rcode %d after %q, want %d after %q", m.Rcode, got, tc.rcode, tc.asked)
			}
		})
	}
}

func TestOnFailureStopSaysWhichSuffixItWas(t *testing.T) {
	c := conclude([]finding{
		{candidate: tried("db01.a.test.", "a.test."), verdict: nxDomain, ttl: 30},
		{candidate: tried("db01.sf.test.", "sf.test."), outcome: outcome{msg: msg(t, dns.RcodeServerFailure)}, verdict: fatal},
	})
	if c.result != resultServFail || c.last.suffix != "sf.test." || c.reason != "sf.test.: SERVFAIL" {
		t.Errorf("conclusion = %+v, want SERVFAIL for sf.test.", c)
	}
}
