package healthforward

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"steadfast.internal/plugin/healthforward/internal/pool"
)

// backup reads the TOs of the next lower tier.
func (c *Config) backup(args []string) error {
	if len(args) == 0 {
		return errors.New("wants at least one TO")
	}
	tier, err := parseTos(args)
	c.Backups = append(c.Backups, tier)
	return err
}

// parseTos reads the TOs of one tier.
func parseTos(args []string) ([]to, error) {
	tos := make([]to, 0, len(args))
	for _, arg := range args {
		t, err := parseTo(arg)
		if err == nil {
			err = t.check()
		}
		if err != nil {
			return nil, err
		}
		tos = append(tos, t)
	}
	return tos, nil
}

// nameServers settles whose certificate is expected of a tier's upstreams.
func (c *Config) nameServers(tier []to) error {
	for i, t := range tier {
		switch {
		case t.serverName != "" && c.Way.tlsName != "" && t.scheme != "https":
			return fmt.Errorf("%s: tls_servername %s is given too", t, c.Way.tlsName)
		case t.host != "" && t.scheme != schemePlain && t.serverName == "" && c.Way.tlsName == "":
			tier[i].serverName = strings.TrimSuffix(t.host, ".") // who is named is meant
		}
	}
	return nil
}

// tiers returns the TOs, the first tier first.
func (c *Config) tiers() [][]to { return append([][]to{c.To}, c.Backups...) }

// allTo returns the TOs of all tiers, in their order.
func (c *Config) allTo() []to { return slices.Concat(c.tiers()...) }

// byTier returns where the TOs lead, by tier.
func (c *Config) byTier(places [][]target) [][]target {
	tiers := make([][]target, 0, 1+len(c.Backups))
	rest := places
	for _, tier := range c.tiers() {
		tiers = append(tiers, slices.Concat(rest[:len(tier)]...))
		rest = rest[len(tier):]
	}
	return tiers
}

// members takes the upstreams of a tier for the queries that come over the client's
// transport. It requires that mu is held.
func (r *registry) members(now time.Time, f *Forwarder, g *group, places []target, client string) ([]pool.ID, error) {
	var ids []pool.ID
	for _, t := range places {
		u, err := r.upstream(now, f.keyFor(t, client), f.TLS)
		if err != nil {
			return nil, err
		}
		if g.upstreams[u.id] == nil { // twins in the Corefile, or in a file, are one
			u.refs++
			g.upstreams[u.id] = u
		}
		if !slices.Contains(ids, u.id) {
			ids = append(ids, u.id)
		}
	}
	return ids, nil
}
