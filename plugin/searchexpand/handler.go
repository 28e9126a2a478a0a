// Package searchexpand completes bare names on the server. It turns a query for
// a name that is too short to be meant as it is (db01) into queries for that
// name under each domain of a search list, puts them to the rest of the plugin
// chain in order, and answers with what the first domain that has the name says,
// behind an alias from the name that was asked.
//
// It never changes a query that it does not expand and never sends one anywhere
// itself. From one query to the next it keeps only where a name was found, for
// seconds.
package searchexpand

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metadata"
	"github.com/coredns/coredns/plugin/metrics"
	"github.com/coredns/coredns/request"

	"github.com/miekg/dns"
)

// SearchExpand is the plugin for one stanza of a server block.
type SearchExpand struct {
	Next plugin.Handler

	entries   []entry // of the search list, as in config
	list      list    // what they make, if it is the same for all queries
	clients   clients
	rules     rules
	form      form
	strict    bool      // a suffix that fails ends the walk
	hosts     hostTable // of the hosts plugin of the same server block; nil if there is none
	wide      bool      // candidates go through all server blocks, not through Next
	limit     *limit
	pace      pace
	suffixes  *suffixes
	budget    *budget
	pins      *pins
	flights   *flights
	wildcards *wildcards // nil: any match counts
}

var _ plugin.Handler = (*SearchExpand)(nil)

// newSearchExpand makes the plugin from its configuration.
func newSearchExpand(c config) *SearchExpand {
	s := &SearchExpand{
		entries:  c.entries,
		list:     listOf(c.entries),
		clients:  c.clients,
		rules:    newRules(c),
		form:     c.form,
		strict:   c.onFailure == failureStops,
		wide:     c.via == viaServer,
		limit:    &inFlight,
		pace:     c.pace,
		suffixes: newSuffixes(),
		budget:   newBudget(c.rates, &processCredit),
		pins:     newPins(maxPins),
		flights:  newFlights(),
	}
	if c.wildcard != wildcardAllow {
		s.wildcards = newWildcards(c.wildcard)
	}
	return s
}

// Name implements plugin.Handler.
func (s *SearchExpand) Name() string { return pluginName }

// ServeDNS implements plugin.Handler.
func (s *SearchExpand) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	d := s.rules.decide(r)
	if d == pass || nested(ctx) || written(s.hosts, r.Question[0].Name) {
		return plugin.NextOrFailure(pluginName, s.Next, ctx, w, r)
	}
	if d == block {
		return s.answer(ctx, w, r, blocked())
	}
	p, ok := s.plan(ctx, request.Request{W: w, Req: r}, d)
	if !ok {
		return plugin.NextOrFailure(pluginName, s.Next, ctx, w, r)
	}
	return s.answer(ctx, w, r, s.resolve(ctx, w, r, p, time.Now()))
}

// plan returns how the name of a query is searched, now that it is known whose it is. It
// is not where its client has no list.
func (s *SearchExpand) plan(ctx context.Context, state request.Request, d decision) (plan, bool) {
	name := state.Req.Question[0].Name
	if d == namespace {
		return s.planNamespace(ctx, state, name), true
	}
	l := s.listFor(ctx, state, s.entries)
	if s.rules.first != "" && l.first != "" {
		if base, ok := cutZone(name, l.first); ok {
			known := s.rules.standingOf(base) == complete || l.completes(base)
			return planFirst(name, base, l, known), s.rules.searches(base) || known && !s.rules.isBlocked(base)
		}
	}
	if d != expand || len(l.domains) == 0 || l.completes(name) {
		return plan{}, false
	}
	return planBare(name, l), true
}

// planNamespace returns the plan for a name that the rules have found to be in a
// namespace. Only what is the same for all clients is added to the list of one in that
// namespace, and only for names that are as short as those that are completed: a
// wildcard record must not have github.com. So the answer depends on nothing but the name.
func (s *SearchExpand) planNamespace(ctx context.Context, state request.Request, name string) plan {
	for _, zone := range s.rules.zones {
		base, namespace, ok := cutNamespace(name, zone)
		if !ok {
			continue
		}
		var l list
		if dots(base) < s.rules.limit() && s.rules.standingOf(base) == incomplete {
			l = s.listFor(ctx, state, slices.DeleteFunc(slices.Clone(s.entries), func(e entry) bool { return !e.shared }))
		}
		if l.completes(base) {
			l = list{}
		}
		return planNamespace(name, base, namespace, zone, l)
	}
	return plan{}
}

// listFor returns what the entries make for the client of a query.
func (s *SearchExpand) listFor(ctx context.Context, state request.Request, entries []entry) list {
	if s.list.known {
		return s.list
	}
	return newList(ctx, state, entries)
}

func (s *SearchExpand) walker(w dns.ResponseWriter, r *dns.Msg, p plan, start time.Time) walker {
	next := s.Next
	if s.wide {
		next = wholeServer{}
	}
	c := newClient(w)
	return walker{
		next: next, limit: s.limit, pace: s.pace, suffixes: s.suffixes, bill: s.budget.of(c.remote),
		client: c, request: r, base: p.base, tries: p.tries, strict: s.strict, wildcards: s.wildcards, end: start.Add(s.pace.timeout),
	}
}

// answer counts the conclusion and writes the reply that it calls for, if any.
// After a reply it never returns a failing rcode, or CoreDNS would send a second
// one, and no error, on which autopath would forget the reply.
func (s *SearchExpand) answer(ctx context.Context, w dns.ResponseWriter, r *dns.Msg, c conclusion) (int, error) {
	count(ctx, c.result)
	tell(ctx, c)
	if c.result == resultDropped || c.result == resultCancelled {
		return c.last.rcode, c.last.err
	}
	if err := w.WriteMsg(s.form.reply(r, c)); err != nil {
		return dns.RcodeServerFailure, fmt.Errorf("writing the answer to a completed name: %w", err)
	}
	return dns.RcodeSuccess, nil
}

// tell sets the metadata of the query, so that log can show how it ended. What
// plugins below said about the winner, such as the upstream that answered, is
// made the query's own.
func tell(ctx context.Context, c conclusion) {
	for label, value := range c.last.values {
		metadata.SetValueFunc(ctx, label, value)
	}
	metadata.SetValueFunc(ctx, labelResult, func() string { return string(c.result) })
	if c.last.name != "" {
		metadata.SetValueFunc(ctx, labelName, func() string { return c.last.name })
		metadata.SetValueFunc(ctx, labelSuffix, func() string { return c.last.suffix })
	}
}

// The labels of our metadata.
const (
	labelName   = pluginName + "/name"   // the name that won, or that ended the walk otherwise
	labelSuffix = pluginName + "/suffix" // the entry of the search list that it was made with
	labelResult = pluginName + "/result"
)

// mark is the context key of the questions that a walk asks.
type mark struct{}

func withMark(ctx context.Context) context.Context { return context.WithValue(ctx, mark{}, true) }

// nested reports whether the query is part of another one's resolution: a
// candidate of ours, or the target of an alias that file or rewrite looks up
// through the whole server. dns64 does the same without counting: its question
// is the client's, and is expanded.
func nested(ctx context.Context) bool {
	if ctx.Value(mark{}) != nil {
		return true
	}
	depth, _ := ctx.Value(dnsserver.LoopKey{}).(int)
	return depth > 0
}

// count counts one query that was not passed on.
func count(ctx context.Context, r result) {
	requestCount.WithLabelValues(metrics.WithServer(ctx), string(r)).Inc()
}

// observe counts the candidates of a walk and its time.
func observe(ctx context.Context, findings []finding, took time.Duration) {
	server := metrics.WithServer(ctx)
	for _, f := range findings {
		candidateCount.WithLabelValues(server, f.verdict.String()).Inc()
		if f.verdict == failed || f.verdict == fatal {
			log.Debugf("%s: %v, rcode %d", f.name, f.err, failureRcode(f.outcome))
		}
	}
	walkDuration.WithLabelValues(server).Observe(took.Seconds())
}
