package corefile

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/coredns/caddy/caddyfile"
)

// settings is what the blocks of these tests can set.
type settings struct {
	wait  time.Duration
	count int
	mode  string
	names []string
	loud  bool
}

func (s *settings) table() Table {
	return Table{
		"wait":  Duration(&s.wait, time.Second, time.Minute),
		"count": Int(&s.count, 1, 10),
		"loud":  Flag(&s.loud),
		"mode":  Enum(&s.mode, "fast", "slow"),
		"names": List(&s.names, func(arg string) (string, error) {
			if arg == "bad" {
				return "", errors.New("bad is no name")
			}
			return strings.ToUpper(arg), nil
		}),
	}
}

// parse reads the block of a directive and returns the rest of the tokens.
func (s *settings) parse(text string) (rest string, err error) {
	d := caddyfile.NewDispenser("Corefile", strings.NewReader(text))
	d.Next()
	err = s.table().Parse(&d)
	for d.Next() {
		rest += d.Val() + " "
	}
	return strings.TrimSpace(rest), err
}

func TestParseSetsWhatTheBlockSays(t *testing.T) {
	var s settings
	rest, err := s.parse("directive {\n wait 5s\n count 10\n mode slow\n names a b\n names c\n count 1\n loud\n}\nnext one\n")
	if err != nil {
		t.Fatal(err)
	}
	if s.wait != 5*time.Second || s.count != 1 || s.mode != "slow" || !s.loud || strings.Join(s.names, "") != "ABC" {
		t.Errorf("settings = %+v", s)
	}
	if rest != "next one" {
		t.Errorf("left behind the block: %q", rest)
	}
}

func TestNoBlockAndAnEmptyOneAreFine(t *testing.T) {
	for _, text := range []string{"directive", "directive {\n}", "directive {\n}\n"} {
		var s settings
		if _, err := s.parse(text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestErrorsNameFileLinePropertyValueAndBound has a row at and beyond each bound.
func TestErrorsNameFileLinePropertyValueAndBound(t *testing.T) {
	for line, want := range map[string]string{
		"wait 1s":                    "",
		"wait 999ms":                 "wait: 999ms is less than 1s",
		"wait 1m":                    "",
		"wait 61s":                   "wait: 61s is more than 1m0s",
		"wait 5":                     `wait: "5" is not a duration such as 500ms or 5s`,
		"wait":                       "wait: wants one argument, got 0",
		"wait 5s 6s":                 "wait: wants one argument, got 2",
		"count 1":                    "",
		"count 0":                    "count: 0 is less than 1",
		"count 10":                   "",
		"count 11":                   "count: 11 is more than 10",
		"count -1":                   "count: -1 is less than 1",
		"count 1.5":                  `count: "1.5" is not a whole number`,
		"count 99999999999999999999": "count: 99999999999999999999 is not within 1 and 10",
		"mode fast":                  "",
		"mode Fast":                  `mode: "Fast" is none of: fast, slow`,
		"names":                      "names: wants at least one argument",
		"loud yes":                   `loud: wants no argument, got "yes"`,
		"names a bad":                "names: bad is no name",
		"colour red":                 `unknown property "colour", want one of: count, loud, mode, names, wait`,
		"count 1 {\n}":               `count: unexpected "{"`,
		"{\n}":                       `unknown property "{"`,
	} {
		var s settings
		_, err := s.parse("directive {\n " + line + "\n}")
		switch {
		case want == "":
			if err != nil {
				t.Errorf("%q: %v", line, err)
			}
		case err == nil:
			t.Errorf("%q is accepted", line)
		case !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "Corefile:2"):
			t.Errorf("%q: error %q, want one at Corefile:2 with %q", line, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(" wait 5s\n names a {\n}\n")
	f.Add("}\n}")
	f.Fuzz(func(t *testing.T, lines string) {
		s := settings{wait: time.Second, count: 1}
		if _, err := s.parse("directive {\n" + lines + "\n}"); err != nil {
			return
		}
		if s.wait < time.Second || s.wait > time.Minute || s.count < 1 || s.count > 10 {
			t.Errorf("accepted %+v", s)
		}
	})
}
