package searchexpand

import (
	"strings"
	"testing"
	"time"

	"steadfast.internal/plugin/internal/readmetest"
)

func TestREADMEHasItsSectionsInOrder(t *testing.T) { readmetest.Sections(t) }

func TestREADMESyntaxIsThePropertyTable(t *testing.T) {
	readmetest.Syntax(t, (&config{}).properties().Names())
}

func TestREADMEExamplesParse(t *testing.T) {
	blocks := readmetest.Words("(?s)~~~ corefile\n(.*?)~~~", readmetest.Section(t, "Examples"))
	if len(blocks) == 0 {
		t.Fatal("no example")
	}
	for _, block := range blocks {
		_, directive, found := strings.Cut(block, pluginName+" ")
		if !found {
			t.Errorf("no %s in\n%s", pluginName, block)
			continue
		}
		// What follows the directive in the server block is not ours to parse.
		text := pluginName + " " + directive[:strings.IndexByte(directive, '\n')]
		if strings.HasSuffix(text, "{") {
			text = pluginName + " " + directive[:strings.Index(directive, "\n    }")+len("\n    }")]
		}
		if _, err := parse(dispenser(text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestREADMEMetricsAreTheRegisteredOnes(t *testing.T) {
	count(t.Context(), resultAnswer) // a vector has no name before its first series
	observe(t.Context(), []finding{{verdict: answered}}, time.Millisecond)
	suffixCount.WithLabelValues("a.test.", eventFailed)
	unpaidCount.WithLabelValues(payerClient)
	readmetest.Metrics(t, pluginName)
}

func TestREADMENamesEveryLabelValue(t *testing.T) {
	text := readmetest.Section(t, "Metrics")
	results := []result{
		resultAnswer, resultTruncated, resultNoData, resultNXDomain, resultServFail, resultRefused, resultDropped,
		resultOverload, resultBudget, resultBlocked, resultCancelled,
	}
	for _, r := range results {
		if !strings.Contains(text, "`"+string(r)+"`") {
			t.Errorf("README does not name the result %s", r)
		}
	}
	for _, event := range []string{eventFailed, eventOutrun, eventOpened, eventSkipped, eventClosed, payerClient, payerProcess} {
		if !strings.Contains(text, "`"+event+"`") {
			t.Errorf("README does not name %s", event)
		}
	}
	for _, v := range verdictNames {
		if !strings.Contains(text, "`"+v+"`") {
			t.Errorf("README does not name the verdict %s", v)
		}
	}
}

func TestREADMENamesTheMetadata(t *testing.T) {
	readmetest.Metadata(t, labelName, labelResult, labelSuffix)
}
