// Package readmetest compares a plugin's README with what the plugin really has.
// Tests only.
package readmetest

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// Section returns the text of one section of README.md in the working directory.
func Section(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "\n## "+name+"\n")
	if !found {
		t.Fatalf("README.md has no section %s", name)
	}
	body, _, _ := strings.Cut(rest, "\n## ")
	return body
}

// Words returns what the first group of pattern matches in text, sorted, each once.
func Words(pattern, text string) []string {
	set := make(map[string]bool)
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		set[m[1]] = true
	}
	return slices.Sorted(maps.Keys(set))
}

// Sections checks that the README has the sections of a CoreDNS man page, in order.
// Others may stand between them.
func Sections(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"## Name", "## Description", "## Syntax", "## Metrics", "## Metadata", "## Ready", "## Examples", "## Bugs", "## See Also"}
	got := slices.DeleteFunc(regexp.MustCompile(`(?m)^## .*$`).FindAllString(string(text), -1), func(title string) bool {
		return !slices.Contains(want, title)
	})
	if !slices.Equal(got, want) {
		t.Errorf("sections = %q, want %q", got, want)
	}
}

// Syntax checks that the section Syntax explains these properties and no others.
func Syntax(t *testing.T, properties []string) {
	t.Helper()
	if got := Words("(?m)^\\* `([a-z_]+)`", Section(t, "Syntax")); !slices.Equal(got, properties) {
		t.Errorf("README has the properties %q, the table %q", got, properties)
	}
}

// Metadata checks that the section Metadata explains these labels and no others.
func Metadata(t *testing.T, labels ...string) {
	t.Helper()
	slices.Sort(labels)
	if got := Words("(?m)^\\* `([a-z/]+)`", Section(t, "Metadata")); !slices.Equal(got, labels) {
		t.Errorf("README has the labels %q, want %q", got, labels)
	}
}

// Metrics checks that the section Metrics explains the registered metrics whose
// names begin with coredns_PLUGIN_ and no others, and that promlint likes them. A
// vector is registered with its first series, so the caller makes one of each.
func Metrics(t *testing.T, plugin string) {
	t.Helper()
	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var registered []string
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "coredns_"+plugin+"_") {
			registered = append(registered, f.GetName())
		}
	}
	if got := Words("`(coredns_[a-z_]+)", Section(t, "Metrics")); !slices.Equal(got, registered) {
		t.Errorf("README has the metrics %q, the registry %q", got, registered)
	}
	problems, err := testutil.GatherAndLint(prometheus.DefaultGatherer, registered...)
	if err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
}
