package healthforward

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"steadfast.internal/plugin/internal/corefile"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"
)

// Bounds of what upstreams are judged by.
const (
	slowAtLeast  = 10 * time.Millisecond // below that it is the scheduler that is judged
	slowAtMost   = 10 * time.Second
	rampAtMost   = 10 * time.Minute
	holdAtMost   = time.Hour
	fullBudget   = 100 // percent: every query may be sent twice
	percent      = "%"
	turnedOff    = "off"
	metaTypes    = 128 // RFC 6895, section 3.1: from here to 255 no type is that of a record
	lastMetaType = 255
)

// healthCheck reads DURATION [no_rec] [domain NAME]. In forward it is the interval
// of probes while an upstream fails, and so it is here.
func (c *Config) healthCheck(args []string) error {
	if len(args) == 0 {
		return errors.New("wants a duration")
	}
	if err := corefile.Duration(&c.Rules.Interval, 0, forever)(args[:1]); err != nil {
		return err
	}
	c.Rules.Interval = max(c.Rules.Interval, minProbeInterval)
	c.Rules.IntervalMax = max(c.Rules.IntervalMax, c.Rules.Interval)
	c.Way.probeName = "."
	for args = args[1:]; len(args) > 0; args = args[1:] {
		switch {
		case args[0] == "no_rec":
			c.Way.probeNoRD = true
		case args[0] != "domain":
			return fmt.Errorf("%q is none of: no_rec, domain", args[0])
		case len(args) == 1:
			return errors.New("domain wants a name")
		default:
			if _, ok := dns.IsDomainName(args[1]); !ok {
				return fmt.Errorf("domain: %q is no name", args[1])
			}
			c.Way.probeName = plugin.Name(args[1]).Normalize()
			args = args[1:]
		}
	}
	return nil
}

// probe reads NAME TYPE, or off.
func (c *Config) probe(args []string) error {
	if len(args) == 1 && args[0] == turnedOff {
		c.Rules.NoProbe = true
		return nil
	}
	if len(args) != 2 {
		return fmt.Errorf("wants a name and a type, or off; got %d arguments", len(args))
	}
	if _, ok := dns.IsDomainName(args[0]); !ok {
		return fmt.Errorf("%q is no name", args[0])
	}
	qtype, ok := dns.StringToType[strings.ToUpper(args[1])]
	if !ok || qtype == dns.TypeNone || qtype == dns.TypeOPT || qtype >= metaTypes && qtype <= lastMetaType {
		return fmt.Errorf("%q is no type of a record", args[1])
	}
	c.Rules.NoProbe = false
	c.Way.probeName, c.Way.probeType = plugin.Name(args[0]).Normalize(), qtype
	return nil
}

func (c *Config) hold(args []string) error {
	err := corefile.Duration(&c.Rules.Hold, 0, holdAtMost)(args)
	c.Rules.HoldMax = max(c.Rules.HoldMax, c.Rules.Hold)
	return err
}

// hedge reads a delay, or the bounds of a learned one.
func (c *Config) hedge(args []string) error {
	if len(args) == 1 && args[0] == "off" {
		c.NoHedge = true // who does not hedge becomes suspicious all the same
		return nil
	}
	if len(args) == 0 || len(args) > 2 {
		return fmt.Errorf("wants one or two durations, or off; got %d arguments", len(args))
	}
	var bounds [2]time.Duration
	for i := range bounds {
		if err := corefile.Duration(&bounds[i], 10*time.Millisecond, 2*time.Second)(args[min(i, len(args)-1):][:1]); err != nil {
			return err
		}
	}
	if bounds[1] < bounds[0] {
		return fmt.Errorf("%s is more than %s", args[0], args[1])
	}
	c.NoHedge = false
	c.Hedge.Min, c.Hedge.Max = bounds[0], bounds[1]
	return nil
}

// budget reads a number of percent.
func (c *Config) budget(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("wants one argument, got %d", len(args))
	}
	digits, found := strings.CutSuffix(args[0], percent)
	v, err := strconv.ParseFloat(digits, 64)
	switch {
	case !found || err != nil || v != v: // the last one is NaN
		return fmt.Errorf("%q is no percentage such as 20%%", args[0])
	case v < 0:
		return fmt.Errorf("%s is less than 0%%", args[0])
	case v > fullBudget:
		return fmt.Errorf("%s is more than %d%%", args[0], fullBudget)
	}
	c.Budget = v / 100
	return nil
}

// enforce reads on or off.
func (c *Config) enforce(args []string) error {
	var word string
	if err := corefile.Enum(&word, "on", turnedOff)(args); err != nil {
		return err
	}
	c.Rules.DryRun = word == turnedOff
	return nil
}

// orOff accepts a duration within the bounds, or off, which is 0.
func orOff(dst *time.Duration, minimum, maximum time.Duration) corefile.Property {
	return func(args []string) error {
		if len(args) == 1 && args[0] == turnedOff {
			*dst = 0
			return nil
		}
		return corefile.Duration(dst, minimum, maximum)(args)
	}
}
