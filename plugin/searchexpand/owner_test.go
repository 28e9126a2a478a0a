package searchexpand

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

func TestAnswerOwnerRenamesWhatWasFound(t *testing.T) {
	const sigAlias = "www.b.test. 60 IN RRSIG CNAME 13 3 60 20300101000000 20200101000000 1 b.test. AAAA"
	const sigTarget = "x.test. 9 IN RRSIG A 13 2 9 20300101000000 20200101000000 1 test. AAAA"
	tests := map[string]struct {
		asked  string
		qtype  uint16
		do     bool
		limit  uint32
		found  string
		below  []string
		answer []string
	}{
		"an address": {
			"db01.", dns.TypeA, false, math.MaxUint32, "db01.b.test.", []string{host}, []string{"db01. 300 IN A 192.0.2.1"},
		},
		"in the case of the question": {
			"dB01.", dns.TypeA, false, math.MaxUint32, "dB01.b.test.", []string{host}, []string{"dB01. 300 IN A 192.0.2.1"},
		},
		"several addresses, with one TTL": {
			"db01.", dns.TypeA, false, math.MaxUint32, "db01.b.test.",
			[]string{host, "db01.b.test. 60 IN A 192.0.2.2"},
			[]string{"db01. 60 IN A 192.0.2.1", "db01. 60 IN A 192.0.2.2"},
		},
		"no longer than what was passed over": {
			"db01.", dns.TypeA, false, 5, "db01.b.test.", []string{host}, []string{"db01. 5 IN A 192.0.2.1"},
		},
		"the first alias of a chain, and nothing else": {
			"www.", dns.TypeA, false, 20, "www.b.test.",
			[]string{"x.test. 9 IN A 192.0.2.1", "x.test. 9 IN A 192.0.2.2", "www.b.test. 60 IN CNAME x.test."},
			[]string{"www. 20 IN CNAME x.test.", "x.test. 9 IN A 192.0.2.1", "x.test. 9 IN A 192.0.2.2"},
		},
		"the first alias of a chain of aliases": {
			"www.", dns.TypeA, false, math.MaxUint32, "www.b.test.",
			[]string{"www.b.test. 60 IN CNAME x.test.", "x.test. 50 IN CNAME y.test.", "y.test. 9 IN A 192.0.2.1"},
			[]string{"www. 60 IN CNAME x.test.", "x.test. 50 IN CNAME y.test.", "y.test. 9 IN A 192.0.2.1"},
		},
		"a signature does not cover the name asked": {
			"db01.", dns.TypeA, true, math.MaxUint32, "db01.b.test.",
			[]string{host, "db01.b.test. 300 IN " + sigA},
			[]string{"db01. 300 IN A 192.0.2.1"},
		},
		"one of what is not renamed stays for who asked for it": {
			"www.", dns.TypeA, true, math.MaxUint32, "www.b.test.",
			[]string{"www.b.test. 60 IN CNAME x.test.", sigAlias, "x.test. 9 IN A 192.0.2.1", sigTarget},
			[]string{"www. 60 IN CNAME x.test.", "x.test. 9 IN A 192.0.2.1", sigTarget},
		},
		"and goes for who did not": {
			"www.", dns.TypeA, false, math.MaxUint32, "www.b.test.",
			[]string{"www.b.test. 60 IN CNAME x.test.", sigAlias, "x.test. 9 IN A 192.0.2.1", sigTarget},
			[]string{"www. 60 IN CNAME x.test.", "x.test. 9 IN A 192.0.2.1"},
		},
		"other types": {
			"db01.", dns.TypeMX, false, math.MaxUint32, "db01.b.test.",
			[]string{"db01.b.test. 300 IN MX 10 db01.b.test."},
			[]string{"db01. 300 IN MX 10 db01.b.test."},
		},
		"a chain back to the name asked": {
			"db01.", dns.TypeA, false, math.MaxUint32, "db01.b.test.",
			[]string{"db01.b.test. 60 IN CNAME db01.", "db01. 300 IN A 192.0.2.1"},
			[]string{"db01. 300 IN A 192.0.2.1"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			req := query(tc.asked, tc.qtype)
			if tc.do {
				req.SetEdns0(1232, true)
			}
			below := msg(t, dns.RcodeSuccess, tc.below...)
			before := below.String()
			c := won(below, tc.found)
			c.ttl = tc.limit
			f := asDefault
			f.shape = shapeOwner
			m := f.reply(req, c)
			if got := records(m.Answer); !slices.Equal(got, tc.answer) {
				t.Errorf("answer:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(tc.answer, "\n"))
			}
			if below.String() != before {
				t.Error("the message below changed")
			}
		})
	}
}

func TestAnswerOwnerThroughTheChain(t *testing.T) {
	c := newConfig()
	c.entries, c.form.shape = entriesOf("a.test.", "b.test."), shapeOwner
	tests := map[string]struct {
		ask  string
		want []string
	}{
		"an address":       {"BoNlY.", []string{"BoNlY. A 192.0.2.23"}},
		"an alias":         {"chain.", []string{"chain. CNAME v4only.b.test.", "v4only.b.test. A 192.0.2.20"}},
		"nothing is found": {"nope.", nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			m := serve(t, newTestPluginOf(newZones(t), c), query(tc.ask, dns.TypeA))
			if got := short(m.Answer); !slices.Equal(got, tc.want) || m.AuthenticatedData || m.Authoritative {
				t.Errorf("answer = %q, AD %v, AA %v; want %q", got, m.AuthenticatedData, m.Authoritative, tc.want)
			}
		})
	}
}

func TestATruncatedAnswerIsRenamedAsFarAsItGoes(t *testing.T) {
	f := asDefault
	f.shape = shapeOwner
	for name, tc := range map[string]struct {
		below []string
		want  []string
	}{
		"some records": {[]string{host}, []string{"db01. 300 IN A 192.0.2.1"}},
		"an alias":     {[]string{"db01.b.test. 60 IN CNAME x.test."}, []string{"db01. 60 IN CNAME x.test."}},
		"nothing":      {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			below := msg(t, 0, tc.below...)
			below.Truncated = true
			c := won(below, "db01.b.test.")
			c.result = resultTruncated
			m := f.reply(query("db01.", dns.TypeA), c)
			if got := records(m.Answer); !m.Truncated || !slices.Equal(got, tc.want) {
				t.Errorf("TC %v with %q, want TC with %q", m.Truncated, got, tc.want)
			}
		})
	}
}
