package searchexpand

import (
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

func TestCandidatesAreInListOrder(t *testing.T) {
	label := strings.Repeat("x", 63)
	suffix := strings.Repeat(label+".", 3) // 193 octets
	// With the suffix, a label of n octets makes a name of n + 194.
	fits, tooLong := strings.Repeat("n", 61)+".", strings.Repeat("n", 62)+"."
	escaped := strings.Repeat(`\046`, 61) + "." // as long as fits, though four times as many bytes

	tests := map[string]struct {
		name string
		list []string
		want []string
	}{
		"a dotless name never goes out as it is": {"db01.", []string{"a.test.", "b.test."}, []string{"db01.a.test.", "db01.b.test."}},
		"a dotted name goes out as it is last":   {"db01.lab.", []string{"a.test."}, []string{"db01.lab.a.test.", "db01.lab."}},
		"the root says where a dotless name goes out as it is": {
			"db01.", []string{"a.test.", ".", "b.test."}, []string{"db01.a.test.", "db01.", "db01.b.test."},
		},
		"the root says where a dotted name goes out as it is, once": {
			"db01.lab.", []string{".", "a.test."}, []string{"db01.lab.", "db01.lab.a.test."},
		},
		"the root alone": {"db01.", []string{"."}, []string{"db01."}},
		"a dot inside a label makes no dotted name": {`db\.01.`, []string{"a.test."}, []string{`db\.01.a.test.`}},
		"a backslash in front of a dot is a dot":    {`db\\.lab.`, []string{"a.test."}, []string{`db\\.lab.a.test.`, `db\\.lab.`}},
		"the case of the name asked stays":          {"Db01.", []string{"a.test."}, []string{"Db01.a.test."}},
		"255 octets are tried":                      {fits, []string{suffix}, []string{fits + suffix}},
		"256 octets are skipped":                    {tooLong, []string{suffix, "a.test."}, []string{tooLong + "a.test."}},
		"octets are counted, not characters":        {escaped, []string{suffix}, []string{escaped + suffix}},
		"nothing fits":                              {tooLong, []string{suffix}, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := names(candidates(tc.name, domainsOf(tc.list...)))
			if !slices.Equal(got, tc.want) {
				t.Errorf("candidates(%q, %q) = %q, want %q", tc.name, tc.list, got, tc.want)
			}
		})
	}
}

func TestCandidatesOfALongListAreAllThere(t *testing.T) {
	list := longList(100)
	got := candidates("db01.", domainsOf(list...))
	if len(got) != len(list) {
		t.Fatalf("candidates = %d, want %d", len(got), len(list))
	}
	for i, c := range got {
		if c.suffix != list[i] || c.name != "db01."+list[i] {
			t.Errorf("candidate %d = %+v, want the one under %q", i, c, list[i])
		}
	}
}

func TestDotsAreThoseBetweenLabels(t *testing.T) {
	tests := map[string]int{"a.": 0, "a.b.": 1, "a.b.c.": 2, `a\.b.`: 0, `a\\.b.`: 1, `a\046b.c.`: 1}
	for name, want := range tests {
		if got := dots(name); got != want {
			t.Errorf("dots(%q) = %d, want %d", name, got, want)
		}
	}
}

func FuzzCandidates(f *testing.F) {
	f.Add("db01.", "a.test b.test")
	f.Add(`d\.b\\.x.`, ". a.test")
	f.Add(strings.Repeat(`\200`, 63)+".", strings.Repeat("y", 63)+".test .")
	f.Fuzz(func(t *testing.T, name, words string) {
		packed := make([]byte, 512)
		n, err := dns.PackDomainName(name, packed, 0, nil, false)
		if err != nil || n > maxNameOctets || !dns.IsFqdn(name) || name == root {
			t.Skip("not a name that a message can hold")
		}
		// A name from a message has canonical escapes.
		if name, _, err = dns.UnpackDomainName(packed[:n], 0); err != nil {
			t.Skip(err)
		}
		if got := wireOctets(name); got != n {
			t.Errorf("wireOctets(%q) = %d, want %d", name, got, n)
		}
		var list []string
		for _, word := range strings.Fields(words) {
			if domain, err := parseDomain(word); err == nil {
				list = append(list, domain)
			}
		}
		for _, c := range candidates(name, domainsOf(list...)) {
			if n, err := dns.PackDomainName(c.name, packed, 0, nil, false); err != nil || n > maxNameOctets {
				t.Errorf("candidate %q of %q takes %d octets: %v", c.name, name, n, err)
			}
			if c.suffix == root && c.name != name || c.suffix != root && !dns.IsSubDomain(c.suffix, c.name) {
				t.Errorf("candidate %+v is not under its suffix", c)
			}
			if c.suffix == root && dots(name) == 0 && !slices.Contains(list, root) {
				t.Errorf("dotless %q goes out as it is", name)
			}
		}
	})
}

func names(cs []candidate) []string {
	var out []string
	for _, c := range cs {
		out = append(out, c.name)
	}
	return out
}
