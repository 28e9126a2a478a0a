package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
)

// ours are the directives that this build adds to CoreDNS's, each with the one
// that it follows.
var ours = map[string]string{
	"searchexpand":  "autopath",
	"healthforward": "forward",
}

func TestOrderIsCoreDNSsWithOursInTheirPlaces(t *testing.T) {
	var want []string
	for _, directive := range stockDirectives(t) {
		want = append(want, directive)
		for own, before := range ours {
			if before == directive {
				want = append(want, own)
			}
		}
	}
	if got := dnsserver.Directives; !slices.Equal(got, want) {
		t.Errorf("directives are\n%v\nwant\n%v", got, want)
	}
}

func TestEveryDirectiveHasAPlugin(t *testing.T) {
	for _, directive := range dnsserver.Directives {
		if _, err := caddy.DirectiveAction("dns", directive); err != nil {
			t.Errorf("plugin.cfg names %q, and its package registers no such directive: %v", directive, err)
		}
	}
}

// stockDirectives reads the plugin.cfg of the CoreDNS that go.mod requires. Its
// Go form, dnsserver's list, is overwritten in this process.
func stockDirectives(t *testing.T) []string {
	t.Helper()
	dir := goList(t, "-m", "-f", "{{.Dir}}", "github.com/coredns/coredns")
	cfg, err := os.ReadFile(filepath.Join(dir[0], "plugin.cfg"))
	if err != nil {
		t.Fatal(err)
	}
	var directives []string
	for line := range strings.Lines(string(cfg)) {
		if directive, _, ok := strings.Cut(line, ":"); ok && !strings.HasPrefix(line, "#") {
			directives = append(directives, directive)
		}
	}
	return directives
}

// goList returns the lines that go list prints, run in the module's root.
func goList(t *testing.T, args ...string) []string {
	t.Helper()
	var stderr strings.Builder
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list"}, args...)...)
	cmd.Dir = ".."
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, stderr.String())
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}
