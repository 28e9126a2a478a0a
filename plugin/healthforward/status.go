package healthforward

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"steadfast.internal/plugin/healthforward/internal/pool"
	"steadfast.internal/plugin/internal/status"
)

// statusPage is where a stanza wants the page. The zero value wants none.
type statusPage struct {
	addr      status.Address
	tokenFile string
}

// String returns the arguments of the property.
func (p statusPage) String() string {
	return strings.TrimSpace(p.addr.String() + " " + p.tokenFile)
}

// status reads ADDR [FILE].
func (c *Config) status(root string, args []string) error {
	if len(args) == 0 || len(args) > 2 {
		return fmt.Errorf("wants an address, and maybe the file of a token; got %d arguments", len(args))
	}
	addr, err := status.ParseAddress(args[0])
	if err != nil {
		return err
	}
	p := statusPage{addr: addr}
	if len(args) > 1 {
		p.tokenFile = args[1]
		if !filepath.IsAbs(p.tokenFile) && root != "" {
			p.tokenFile = filepath.Join(root, p.tokenFile)
		}
		if _, err := status.ReadToken(p.tokenFile); err != nil {
			return err // it names the file
		}
	}
	if !addr.Private() && p.tokenFile == "" {
		return fmt.Errorf("%s can be reached from other hosts: give the file of a token too, or an address of loopback", addr)
	}
	if c.Status != (statusPage{}) && c.Status != p {
		return fmt.Errorf("there is one page: %s, or %s", c.Status, p)
	}
	c.Status = p
	return nil
}

// wantPage takes where one of the generation's stanzas wants the page.
func (g *generation) wantPage(p statusPage) error {
	switch {
	case p == (statusPage{}):
		return nil
	case g.page != (statusPage{}) && g.page != p:
		return fmt.Errorf("status: there is one page for all stanzas: %s, or %s", g.page, p)
	}
	g.page = p
	return nil
}

// openPage begins to serve the page of a generation, unless it is served there already:
// then its socket stays open over a reload. It requires that mu is held.
func (r *registry) openPage(want statusPage) error {
	if want == (statusPage{}) || r.served[want.addr] != nil {
		return nil
	}
	s, err := status.Listen(want.addr, r.page, want.tokenFile)
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	r.served[want.addr] = s
	return nil
}

// turnPages closes the pages that no generation has any more, and lets the others go by
// the newest one's token. It requires that mu is held.
func (r *registry) turnPages() {
	for addr, s := range r.served {
		wanted := false
		for _, g := range r.generations { // the newest last
			if g.page.addr == addr {
				wanted = true
				s.Use(g.page.tokenFile)
			}
		}
		if !wanted {
			s.Close()
			delete(r.served, addr)
		}
	}
}

// end closes the pages at the end of the process, after the lameduck time of health.
func (r *registry) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for addr, s := range r.served {
		s.Close()
		delete(r.served, addr)
	}
}

// place is an upstream as an operator names it: all that are there, however they are
// reached and judged, are one to him.
type place struct{ proto, addr string }

func (p place) String() string { return p.proto + "://" + p.addr }

// steerable is what an operator can want of an upstream from the page.
var steerable = [...]pool.Admin{pool.Ready, pool.Drain, pool.Maint}

// maxSteered bounds the upstreams that are remembered to be drained or in maint.
const maxSteered = 1024

// Errors of controls.
var (
	errManySteered = fmt.Errorf("%d upstreams are drained or in maint already", maxSteered)
	errNoProbe     = errors.New("it is not probed: it is in maint, has no probes, or has not been asked for a minute")
)

// steer sets what an operator wants of the upstreams at a target: PROTO://ADDR, or ADDR
// for every transport. It holds for who comes there later, too.
func (r *registry) steer(who, target string, want pool.Admin) (int, error) {
	r.mu.Lock()
	now := time.Now()
	found := r.at(target)
	if len(found) == 0 {
		r.mu.Unlock()
		return 0, status.ErrNoTarget
	}
	if want != pool.Ready && len(r.steered)+r.unsteered(found) > maxSteered {
		r.mu.Unlock()
		return 0, errManySteered
	}
	for _, at := range found {
		if want == pool.Ready {
			delete(r.steered, at)
		} else {
			r.steered[at] = want
		}
		for _, u := range r.upstreams {
			if u.place() == at {
				r.pool.SetAdmin(now, u.id, want)
				setAdmin(u, want)
			}
		}
	}
	r.mu.Unlock()
	log.Infof("status: %s sets %s to %s", who, joinedPlaces(found), want)
	r.prober.wake()
	return len(found), nil
}

// unsteered returns how many of the places are not steered. It requires that mu is held.
func (r *registry) unsteered(ps []place) int {
	n := 0
	for _, p := range ps {
		if _, ok := r.steered[p]; !ok {
			n++
		}
	}
	return n
}

// probeAt lets the upstreams at a target be probed at once.
func (r *registry) probeAt(who, target string) (int, error) {
	r.mu.Lock()
	now := time.Now()
	found := r.at(target)
	var probed []place
	for _, u := range r.upstreams {
		if slices.Contains(found, u.place()) && r.pool.ProbeNow(now, u.id) && !slices.Contains(probed, u.place()) {
			probed = append(probed, u.place())
		}
	}
	r.mu.Unlock()
	switch {
	case len(found) == 0:
		return 0, status.ErrNoTarget
	case len(probed) == 0:
		return 0, errNoProbe
	}
	log.Infof("status: %s has %s probed", who, joinedPlaces(probed))
	r.prober.wake()
	return len(probed), nil
}

func (u *upstream) place() place { return place{u.proto, u.addr} }

// at returns the places of that name where an upstream is, or one that was steered has
// been. It requires that mu is held.
func (r *registry) at(target string) []place {
	var found []place
	add := func(p place) {
		if (target == p.addr || target == p.String()) && !slices.Contains(found, p) {
			found = append(found, p)
		}
	}
	for _, u := range r.upstreams {
		add(u.place())
	}
	for p := range r.steered {
		add(p)
	}
	slices.SortFunc(found, comparePlaces)
	return found
}

func comparePlaces(a, b place) int {
	one, errA := netip.ParseAddrPort(a.addr)
	other, errB := netip.ParseAddrPort(b.addr)
	if errA != nil || errB != nil {
		return strings.Compare(a.String(), b.String())
	}
	return cmp.Or(one.Compare(other), strings.Compare(b.proto, a.proto))
}

func joinedPlaces(ps []place) string {
	words := make([]string, len(ps))
	for i, p := range ps {
		words[i] = p.String()
	}
	return strings.Join(words, " ")
}

// section is what the page shows of the registry, and what can be done there.
func (r *registry) section() status.Section {
	s := status.Section{Name: pluginName, Report: func() status.Report { return r.overview(time.Now()).report() }}
	for _, want := range steerable {
		s.Actions = append(s.Actions, status.Action{Name: want.String(), Do: func(who, target string) (int, error) {
			return r.steer(who, target, want)
		}})
	}
	s.Actions = append(s.Actions, status.Action{Name: "probe", Do: r.probeAt})
	return s
}
