// Package corefile parses the block of a Corefile directive from a table of
// properties, in the manner of package flag: the table's keys are the words a
// block may hold, its values say what may follow them. It never decides what a
// value means, and knows no server.
package corefile

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coredns/caddy/caddyfile"
)

// Property reads the arguments that stand behind a property's name. Its errors
// name the value and the bound; [Table.Parse] adds the property's name.
type Property func(args []string) error

// Table maps the name of each property that a block may hold to its parser.
type Table map[string]Property

// Names returns the names of the properties, sorted.
func (t Table) Names() []string { return slices.Sorted(maps.Keys(t)) }

// Parse reads the block that follows d's current token, if there is one, and
// calls the property of each line. A property that stands twice is read twice.
// The error carries file and line, the property and what was wrong with it.
func (t Table) Parse(d *caddyfile.Dispenser) error {
	for d.NextBlock() {
		name := d.Val()
		property, ok := t[name]
		if !ok {
			return d.Errf("unknown property %q, want one of: %s", name, strings.Join(t.Names(), ", "))
		}
		args := d.RemainingArgs()
		if err := property(args); err != nil {
			return d.Errf("%s: %v", name, err)
		}
		// Properties have no blocks of their own. Without this check an opening
		// brace would be swallowed, and its closing one would end our block early.
		if d.NextArg() {
			return d.Errf("%s: unexpected %q", name, d.Val())
		}
	}
	return nil
}

// Duration accepts one Go duration within min and max, both included.
func Duration(dst *time.Duration, minimum, maximum time.Duration) Property {
	return one(func(s string) error {
		v, err := time.ParseDuration(s)
		if err != nil {
			return fmt.Errorf("%q is not a duration such as 500ms or 5s", s)
		}
		if v < minimum {
			return fmt.Errorf("%s is less than %s", s, minimum)
		}
		if v > maximum {
			return fmt.Errorf("%s is more than %s", s, maximum)
		}
		*dst = v
		return nil
	})
}

// Int accepts one decimal integer within min and max, both included.
func Int(dst *int, minimum, maximum int) Property {
	return one(func(s string) error {
		v, err := strconv.Atoi(s)
		if errors.Is(err, strconv.ErrRange) {
			return fmt.Errorf("%s is not within %d and %d", s, minimum, maximum)
		}
		if err != nil {
			return fmt.Errorf("%q is not a whole number", s)
		}
		if v < minimum {
			return fmt.Errorf("%d is less than %d", v, minimum)
		}
		if v > maximum {
			return fmt.Errorf("%d is more than %d", v, maximum)
		}
		*dst = v
		return nil
	})
}

// Flag accepts no argument: the property's name says it all.
func Flag(dst *bool) Property {
	return func(args []string) error {
		if len(args) != 0 {
			return fmt.Errorf("wants no argument, got %q", strings.Join(args, " "))
		}
		*dst = true
		return nil
	}
}

// Enum accepts exactly one of the words.
func Enum(dst *string, words ...string) Property {
	return one(func(s string) error {
		if !slices.Contains(words, s) {
			return fmt.Errorf("%q is none of: %s", s, strings.Join(words, ", "))
		}
		*dst = s
		return nil
	})
}

// List accepts one or more arguments and appends what parse makes of each to dst.
func List[T any](dst *[]T, parse func(string) (T, error)) Property {
	return func(args []string) error {
		if len(args) == 0 {
			return errors.New("wants at least one argument")
		}
		for _, arg := range args {
			v, err := parse(arg)
			if err != nil {
				return err
			}
			*dst = append(*dst, v)
		}
		return nil
	}
}

// one makes a property of exactly one argument.
func one(parse func(string) error) Property {
	return func(args []string) error {
		if len(args) != 1 {
			return fmt.Errorf("wants one argument, got %d", len(args))
		}
		return parse(args[0])
	}
}
