package healthforward

import (
	"strings"
	"testing"

	"steadfast.internal/plugin/healthforward/internal/pool"
	"steadfast.internal/plugin/internal/readmetest"
)

func TestREADMEHasItsSectionsInOrder(t *testing.T) { readmetest.Sections(t) }

func TestREADMESyntaxIsThePropertyTable(t *testing.T) {
	c := newConfig()
	readmetest.Syntax(t, c.properties("", make(map[string]bool)).Names())
}

func TestREADMENamesTheMetadata(t *testing.T) {
	readmetest.Metadata(t, pluginName+"/tier", pluginName+"/upstream", "forward/upstream")
}

func TestREADMEMetricsAreTheRegisteredOnes(t *testing.T) {
	const addr = "192.0.2.99:53"
	newUpstreamMetrics(addr, protoUDP) // a vector has no name before its first series
	u := &upstream{upstreamKey: upstreamKey{addr: addr, proto: protoUDP}}
	setState(u, pool.Up)
	setAdmin(u, pool.Ready)
	transitionsTotal.WithLabelValues(addr, protoUDP, pool.Up.String(), pool.Heard.String())
	unansweredTotal.WithLabelValues("no_answer")
	t.Cleanup(func() { u.forget(true, true) })
	readmetest.Metrics(t, pluginName)
}

func TestREADMENamesEveryLabelValue(t *testing.T) {
	text := readmetest.Section(t, "Metrics")
	words := append([]string{}, reasons[:]...)
	for outcome, word := range outcomes {
		if pool.Outcome(outcome) != pool.Abandoned {
			words = append(words, word)
		}
	}
	for _, s := range pool.States() {
		words = append(words, s.String())
	}
	for _, a := range steerable {
		words = append(words, a.String())
	}
	for c := pool.None + 1; !strings.HasPrefix(c.String(), "cause("); c++ { // to the last with a word
		words = append(words, c.String())
	}
	for _, word := range words {
		if !strings.Contains(text, "`"+word+"`") {
			t.Errorf("README does not name %s", word)
		}
	}
}
