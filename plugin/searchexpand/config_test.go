package searchexpand

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/caddy/caddyfile"
)

func TestParseTakes(t *testing.T) {
	label := strings.Repeat("x", 63)
	longest := strings.Repeat(label+".", 3) + strings.Repeat("y", 61) + "." // 255 octets
	tests := map[string]struct {
		text  string
		want  []string
		ndots int
	}{
		"one domain":                                  {"searchexpand corp.example.org", []string{"corp.example.org."}, 1},
		"several, in order":                           {"searchexpand b.example a.example", []string{"b.example.", "a.example."}, 1},
		"capitals and a closing dot":                  {"searchexpand Corp.Example.", []string{"corp.example."}, 1},
		"the same domain three times":                 {"searchexpand a.example b.example A.Example a.example.", []string{"a.example.", "b.example."}, 1},
		"the root among domains, once":                {"searchexpand a.example . b.example .", []string{"a.example.", ".", "b.example."}, 1},
		"a single label":                              {"searchexpand lan", []string{"lan."}, 1},
		"underscores, hyphens and digits":             {"searchexpand _x.a-1.2b", []string{"_x.a-1.2b."}, 1},
		"a domain of 255 octets":                      {"searchexpand " + longest, []string{longest}, 1},
		"an empty block":                              {"searchexpand a.example {\n}", []string{"a.example."}, 1},
		"ndots at its lower bound":                    {"searchexpand a.example {\n ndots 1\n}", []string{"a.example."}, 1},
		"ndots at its upper bound":                    {"searchexpand a.example {\n ndots 15\n}", []string{"a.example."}, 15},
		"parallel and timeout, at their lower bounds": {"searchexpand a.example {\n parallel 1\n timeout 100ms\n}", []string{"a.example."}, 1},
		"parallel and timeout, at their upper bounds": {"searchexpand a.example {\n parallel 64\n timeout 10s\n}", []string{"a.example."}, 1},
		"a file that is not there yet":                {"searchexpand a.example /nowhere/resolv.conf /nowhere/resolv.conf", []string{"a.example.", "/nowhere/resolv.conf"}, 1},
		"a hundred domains":                           {"searchexpand " + strings.Join(longList(100), " "), longList(100), 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parseOne(dispenser(tc.text))
			if err != nil {
				t.Fatalf("parse(%q): %v", tc.text, err)
			}
			if !slices.Equal(textsOf(got), tc.want) || got.ndots != tc.ndots {
				t.Errorf("parse(%q) = %q and ndots %d, want %q and %d", tc.text, textsOf(got), got.ndots, tc.want, tc.ndots)
			}
		})
	}
}

func TestParseTakesProperties(t *testing.T) {
	tests := map[string]struct {
		lines string
		want  func(c *config) // what it makes of the defaults
	}{
		"nothing":                  {"", func(*config) {}},
		"answer":                   {"answer owner", func(c *config) { c.form.shape = shapeOwner }},
		"answer as delivered":      {"answer cname", func(*config) {}},
		"negttl at its bounds":     {"negttl 0s\n negttl 5m", func(c *config) { c.form.negTTL = 300 }},
		"negttl of nothing":        {"negttl 0s", func(c *config) { c.form.negTTL = 0 }},
		"maxttl at its bounds":     {"maxttl 0s\n maxttl 24h", func(c *config) { c.form.maxTTL = 86400 }},
		"maxttl of nothing":        {"maxttl 0s", func(c *config) { c.form.maxTTL = 0 }},
		"on_failure":               {"on_failure stop", func(c *config) { c.onFailure = failureStops }},
		"on_failure as delivered":  {"on_failure continue", func(*config) {}},
		"via":                      {"via server", func(c *config) { c.via = viaServer }},
		"via as delivered":         {"via chain", func(*config) {}},
		"except":                   {"except lan\n except Home.Example. x", func(c *config) { c.except = []string{"lan.", "home.example.", "x."} }},
		"block":                    {"block Printer tv.", func(c *config) { c.block.labels = []string{"printer", "tv"} }},
		"block none":               {"block none", func(c *config) { c.block.none = true }},
		"block none besides names": {"block x none\n block y", func(c *config) { c.block = blocking{[]string{"x", "y"}, true} }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parseOne(dispenser("searchexpand a.example {\n " + tc.lines + "\n}"))
			if err != nil {
				t.Fatalf("parse(%q): %v", tc.lines, err)
			}
			want := newConfig()
			want.entries = entriesOf("a.example.")
			tc.want(&want)
			if !reflect.DeepEqual(got, want) {
				t.Errorf("parse(%q) = %+v, want %+v", tc.lines, got, want)
			}
		})
	}
}

func TestParseTakesEachPolicyForWildcards(t *testing.T) {
	tests := map[string]string{
		"":                   wildcardLast,
		" wildcard last\n":   wildcardLast,
		" wildcard allow\n":  wildcardAllow,
		" wildcard ignore\n": wildcardIgnore,
	}
	for line, want := range tests {
		c, err := parseOne(dispenser("searchexpand a.example {\n" + line + "}"))
		if err != nil || c.wildcard != want {
			t.Errorf("%q: wildcard %q, %v, want %q", line, c.wildcard, err, want)
		}
		if probed := newSearchExpand(c).wildcards != nil; probed != (want != wildcardAllow) {
			t.Errorf("%q: suffixes are probed: %v", line, probed)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	label := strings.Repeat("x", 64)
	tooLong := strings.Repeat(strings.Repeat("x", 63)+".", 3) + strings.Repeat("y", 62) // 256 octets
	tests := map[string]struct {
		text string
		want []string // what the error has to name
	}{
		"no domain":                     {"searchexpand", []string{"at least one domain"}},
		"no domain but a block":         {"searchexpand {\n ndots 2\n}", []string{"at least one domain"}},
		"an empty label":                {"searchexpand a..example", []string{`"a..example"`, "empty"}},
		"a leading dot":                 {"searchexpand .example", []string{`".example"`, "empty"}},
		"an empty argument":             {`searchexpand ""`, []string{`""`, "empty"}},
		"a label of 64 octets":          {"searchexpand " + label + ".example", []string{label, "64 octets", "63"}},
		"a domain of 256 octets":        {"searchexpand " + tooLong, []string{tooLong, "256 octets", "255"}},
		"an address":                    {"searchexpand 192.0.2.1", []string{`"192.0.2.1"`, "number"}},
		"an IPv6 address":               {"searchexpand 2001:db8::1", []string{`"2001:db8::1"`, "':'"}},
		"a path that leads nowhere":     {"searchexpand etc/resolv.conf", []string{`"etc/resolv.conf"`, "no such file"}},
		"a plugin without a name":       {"searchexpand @", []string{`"@"`, "name of a plugin"}},
		"a plugin and a zone":           {"searchexpand @kubernetes.cluster.local", []string{`"@kubernetes.cluster.local"`, "name of a plugin"}},
		"a placeholder left open":       {"searchexpand {kubernetes/x.corp.example", []string{`"{kubernetes/x.corp.example"`, "{plugin/label}"}},
		"a placeholder without slash":   {"searchexpand {namespace}.corp.example", []string{`"{namespace}.corp.example"`, "{plugin/label}"}},
		"placeholders in another":       {"searchexpand {a/{b/c}}.corp.example", []string{`"{a/{b/c}}.corp.example"`, "{plugin/label}"}},
		"a brace that closes nothing":   {"searchexpand x}.corp.example", []string{`"x}.corp.example"`, "'}'"}},
		"a placeholder at the end":      {"searchexpand corp.{a/b}", []string{`"corp.{a/b}"`, "domain behind it"}},
		"nothing but a placeholder":     {"searchexpand {a/b}.", []string{`"{a/b}."`, "domain behind it"}},
		"a number behind it":            {"searchexpand {a/b}.1", []string{`"{a/b}.1"`, "number"}},
		"an empty label beside it":      {"searchexpand {a/b}..corp.example", []string{`"{a/b}..corp.example"`, "empty"}},
		"client without an address":     {"searchexpand a.example {\n client\n}", []string{"client", "at least one"}},
		"client that is a name":         {"searchexpand a.example {\n client db01\n}", []string{"client", `"db01"`, "network"}},
		"client of 33 bits":             {"searchexpand a.example {\n client 10.0.0.0/33\n}", []string{"client", `"10.0.0.0/33"`, "network"}},
		"client with bits too many":     {"searchexpand a.example {\n client 10.0.0.1/8\n}", []string{"client", `"10.0.0.1/8"`, "10.0.0.0/8"}},
		"client with a zone":            {"searchexpand a.example {\n client fe80::1%eth0\n}", []string{"client", `"fe80::1%eth0"`, "zone"}},
		"client of more than IPv4":      {"searchexpand a.example {\n client ::ffff:0.0.0.0/95\n}", []string{"client", "/95"}},
		"except_client that is none":    {"searchexpand a.example {\n except_client 10.0.0.0/8 nodes\n}", []string{"except_client", `"nodes"`}},
		"trigger of another word":       {"searchexpand a.example {\n trigger last\n}", []string{"trigger", `"last"`}},
		"trigger without a word":        {"searchexpand a.example {\n trigger\n}", []string{"trigger", "first", "namespace"}},
		"trigger first with a zone":     {"searchexpand a.example {\n trigger first a.example\n}", []string{"trigger", "first a.example"}},
		"trigger without a zone":        {"searchexpand a.example {\n trigger namespace\n}", []string{"trigger", "at least one zone"}},
		"trigger for every name":        {"searchexpand a.example {\n trigger namespace .\n}", []string{"trigger", `"."`}},
		"trigger for a bare zone":       {"searchexpand a.example {\n trigger namespace svc\n}", []string{"trigger", `"svc"`, "above"}},
		"trigger for a zone in one":     {"searchexpand a.example {\n trigger namespace svc.a.b a.b\n}", []string{"trigger", "in one another"}},
		"trigger for the first of none": {"searchexpand . {\n trigger first\n}", []string{"trigger", "first"}},
		"a stanza behind everybody's":   {"searchexpand a.example\nsearchexpand b.example {\n client 10.0.0.0/8\n}", []string{"stanza 2", "stanza 1"}},
		"a client behind its network": {
			"searchexpand a.example {\n client 10.0.0.0/8\n}\nsearchexpand b.example {\n client 192.0.2.1 10.1.0.0/16\n}", []string{"stanza 2", "10.1.0.0/16", "stanza 1"},
		},
		"the same client twice": {
			"searchexpand a.example {\n client 10.0.0.0/8\n}\nsearchexpand b.example {\n client 10.0.0.0/8\n}", []string{"stanza 2", "10.0.0.0/8", "stanza 1"},
		},
		"an escape":                   {`searchexpand a\.b.example`, []string{`'\\'`}},
		"a letter outside ASCII":      {"searchexpand bücher.example", []string{"'ü'"}},
		"the sign for kelvin":         {"searchexpand \u212a.example", []string{"'\u212a'"}},
		"ndots below its bound":       {"searchexpand a.example {\n ndots 0\n}", []string{"ndots", "0 is less than 1"}},
		"ndots above its bound":       {"searchexpand a.example {\n ndots 16\n}", []string{"ndots", "16 is more than 15"}},
		"ndots that is no number":     {"searchexpand a.example {\n ndots two\n}", []string{"ndots", `"two"`}},
		"ndots without a number":      {"searchexpand a.example {\n ndots\n}", []string{"ndots", "one argument"}},
		"ndots with two numbers":      {"searchexpand a.example {\n ndots 1 2\n}", []string{"ndots", "one argument"}},
		"answer of another shape":     {"searchexpand a.example {\n answer alias\n}", []string{"answer", `"alias"`, "cname, owner"}},
		"answer without a shape":      {"searchexpand a.example {\n answer\n}", []string{"answer", "one argument"}},
		"except without a name":       {"searchexpand a.example {\n except\n}", []string{"except", "at least one"}},
		"except that is every name":   {"searchexpand a.example {\n except .\n}", []string{"except", `"."`}},
		"except that is no name":      {"searchexpand a.example {\n except lan a..b\n}", []string{"except", `"a..b"`}},
		"block without a name":        {"searchexpand a.example {\n block\n}", []string{"block", "at least one name"}},
		"block with a dotted name":    {"searchexpand a.example {\n block wpad.example\n}", []string{"block", `"wpad.example"`, "dot"}},
		"block that is no name":       {"searchexpand a.example {\n block a*\n}", []string{"block", `"a*"`, "'*'"}},
		"block with a label too long": {"searchexpand a.example {\n block " + label + "\n}", []string{"block", label, "64 octets"}},
		"block of nothing":            {"searchexpand a.example {\n block .\n}", []string{"block", `"."`, "empty"}},
		"negttl below its bound":      {"searchexpand a.example {\n negttl -1s\n}", []string{"negttl", "-1s is less than 0s"}},
		"negttl above its bound":      {"searchexpand a.example {\n negttl 301s\n}", []string{"negttl", "301s is more than 5m0s"}},
		"negttl that is no duration":  {"searchexpand a.example {\n negttl 30\n}", []string{"negttl", `"30"`}},
		"negttl of half a second":     {"searchexpand a.example {\n negttl 1500ms\n}", []string{"negttl", "1.5s", "whole number"}},
		"maxttl below its bound":      {"searchexpand a.example {\n maxttl -1s\n}", []string{"maxttl", "-1s is less than 0s"}},
		"maxttl above its bound":      {"searchexpand a.example {\n maxttl 24h1s\n}", []string{"maxttl", "24h1s is more than 24h0m0s"}},
		"maxttl without a duration":   {"searchexpand a.example {\n maxttl\n}", []string{"maxttl", "one argument"}},
		"on_failure of another word":  {"searchexpand a.example {\n on_failure halt\n}", []string{"on_failure", `"halt"`, "continue, stop"}},
		"on_failure without a word":   {"searchexpand a.example {\n on_failure\n}", []string{"on_failure", "one argument"}},
		"via of another word":         {"searchexpand a.example {\n via servers\n}", []string{"via", `"servers"`, "chain, server"}},
		"via of two words":            {"searchexpand a.example {\n via chain server\n}", []string{"via", "one argument"}},
		"parallel below its bound":    {"searchexpand a.example {\n parallel 0\n}", []string{"parallel", "0 is less than 1"}},
		"parallel above its bound":    {"searchexpand a.example {\n parallel 65\n}", []string{"parallel", "65 is more than 64"}},
		"timeout below its bound":     {"searchexpand a.example {\n timeout 99ms\n}", []string{"timeout", "99ms is less than 100ms"}},
		"timeout above its bound":     {"searchexpand a.example {\n timeout 10001ms\n}", []string{"timeout", "10001ms is more than 10s"}},
		"timeout without a unit":      {"searchexpand a.example {\n timeout 2\n}", []string{"timeout", `"2"`}},
		"budget with one rate":        {"searchexpand a.example {\n budget 200\n}", []string{"budget", "two arguments"}},
		"budget of nothing":           {"searchexpand a.example {\n budget 0 2000\n}", []string{"budget", `"0"`, "1 to 1000000"}},
		"budget above its bound":      {"searchexpand a.example {\n budget 200 1000001\n}", []string{"budget", `"1000001"`, "1 to 1000000"}},
		"budget that is no number":    {"searchexpand a.example {\n budget 200/s 2000\n}", []string{"budget", `"200/s"`}},
		"more for one than for all":   {"searchexpand a.example {\n budget 201 200\n}", []string{"budget", "201 for one client is more than 200"}},
		"wildcard with another word":  {"searchexpand a.example {\n wildcard first\n}", []string{"wildcard", `"first"`, "last", "allow", "ignore"}},
		"wildcard without a word":     {"searchexpand a.example {\n wildcard\n}", []string{"wildcard", "one argument"}},
		"a property that is not ours": {"searchexpand a.example {\n nodts 1\n}", []string{"nodts", "ndots"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := parseOne(dispenser(tc.text))
			if err == nil {
				t.Fatalf("parse(%q) took it", tc.text)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("parse(%q): %q does not name %q", tc.text, err, want)
				}
			}
		})
	}
}

func TestPaceAndItsDefaults(t *testing.T) {
	tests := map[string]struct {
		text string
		want pace
	}{
		"nothing said": {"searchexpand a.example", pace{1, 2 * time.Second}},
		"all said":     {"searchexpand a.example {\n parallel 16\n timeout 1500ms\n}", pace{16, 1500 * time.Millisecond}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c, err := parseOne(dispenser(tc.text))
			if err != nil || c.pace != tc.want {
				t.Errorf("parse(%q) = %v, %v, want %v", tc.text, c.pace, err, tc.want)
			}
			if s := newSearchExpand(c); s.pace != tc.want {
				t.Errorf("the plugin's pace = %v, want %v", s.pace, tc.want)
			}
		})
	}
}

func TestBudgetAndItsDefaults(t *testing.T) {
	tests := map[string]struct {
		text string
		want rates
	}{
		"nothing said":   {"searchexpand a.example", rates{200, 2000}},
		"lower bounds":   {"searchexpand a.example {\n budget 1 1\n}", rates{1, 1}},
		"upper bounds":   {"searchexpand a.example {\n budget 1000000 1000000\n}", rates{1000000, 1000000}},
		"what one wants": {"searchexpand a.example {\n budget 50 500\n}", rates{50, 500}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c, err := parseOne(dispenser(tc.text))
			if err != nil || c.rates != tc.want {
				t.Errorf("parse(%q) = %v, %v, want %v", tc.text, c.rates, err, tc.want)
			}
		})
	}
}

func TestStanzasThatEachGetQueriesAreTaken(t *testing.T) {
	for claim, text := range map[string]string{
		"two networks":                    "searchexpand a.example {\n client 10.0.0.0/8\n}\nsearchexpand b.example {\n client 192.0.2.0/24\n}",
		"one inside the other, first":     "searchexpand a.example {\n client 10.1.0.0/16\n}\nsearchexpand b.example {\n client 10.0.0.0/8\n}",
		"everybody else, last":            "searchexpand a.example {\n client 10.0.0.0/8\n}\nsearchexpand b.example",
		"those that the first leaves out": "searchexpand a.example {\n except_client 10.1.0.0/16\n}\nsearchexpand b.example {\n client 10.1.2.0/24\n}",
		"a network with a hole":           "searchexpand a.example {\n client 10.0.0.0/8\n except_client 10.1.2.3\n}\nsearchexpand b.example {\n client 10.1.0.0/16\n}",
	} {
		stanzas, err := parse(dispenser(text))
		if err != nil || len(stanzas) != 2 {
			t.Errorf("%s: %d stanzas, %v", claim, len(stanzas), err)
		}
	}
	_, err := parse(dispenser("searchexpand a.example\nsearchexpand b.example"))
	if err == nil || !strings.Contains(err.Error(), errUnreached.Error()) {
		t.Errorf("the second of two for everybody: %v, want %v", err, errUnreached)
	}
}

func TestSetupNamesThePlugin(t *testing.T) {
	if err := setup(caddy.NewTestController("dns", "searchexpand a.example {\n ndots 3\n}")); err != nil {
		t.Errorf("setup: %v", err)
	}
	err := setup(caddy.NewTestController("dns", "searchexpand"))
	if err == nil || !strings.HasPrefix(err.Error(), "plugin/searchexpand: ") {
		t.Errorf("setup = %v, want an error that begins with the plugin's name", err)
	}
}

func FuzzBlock(f *testing.F) {
	f.Add("searchexpand a.example . {\n ndots 2\n}")
	f.Add("searchexpand a.example {\n ndots {\n}")
	f.Add("searchexpand a.example {\n except lan\n block none printer\n}")
	f.Add("searchexpand a.example {\n negttl 5s\n maxttl 1h\n}")
	f.Add("searchexpand a.example {\n answer owner\n}")
	f.Add("searchexpand a.example {\n via server\n on_failure stop\n}")
	f.Add("searchexpand {")
	f.Add("searchexpand {kubernetes/client-namespace}.svc.cluster.local @kubernetes . {\n client 10.0.0.0/8 ::1\n except_client 10.1.0.0/16\n}\nsearchexpand a.example")
	f.Add("searchexpand {\n trigger namespace svc.cluster.local\n trigger first\n}")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parseOne(dispenser(text))
		if err != nil || c.ndots == 0 { // an empty text holds no directive
			return
		}
		if len(c.entries) == 0 && len(c.triggers.zones) == 0 {
			t.Error("a stanza without any names to complete")
		}
		if c.ndots < 1 || c.ndots > maxNdots {
			t.Errorf("ndots = %d, want 1 to %d", c.ndots, maxNdots)
		}
		if c.form.negTTL > 300 || c.form.maxTTL > 86400 && c.form.maxTTL != noMaxTTL {
			t.Errorf("form = %+v, which is out of bounds", c.form)
		}
		seen := make(map[string]bool)
		for _, domain := range textsOf(c) {
			if seen[domain] {
				t.Errorf("%q is there twice", domain)
			}
			seen[domain] = true
			if strings.ContainsAny(domain, "@{") {
				continue
			}
			if domain != strings.ToLower(domain) || !strings.HasSuffix(domain, ".") || wireOctets(domain) > maxNameOctets {
				t.Errorf("%q is not a lower-case, fully qualified name", domain)
			}
		}
		newRules(c)
	})
}

// dispenser returns the tokens of a server block.
func dispenser(text string) *caddyfile.Dispenser {
	d := caddyfile.NewDispenser("Corefile", strings.NewReader(text))
	return &d
}
