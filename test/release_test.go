package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestReleaseRefusesWhatWouldBeWrong calls make release as far as it goes without
// building anything; what a release consists of takes minutes to make.
func TestReleaseRefusesWhatWouldBeWrong(t *testing.T) {
	// Read, so that go test does not keep a result for another script.
	if _, err := os.ReadFile("../build/release"); err != nil {
		t.Fatal(err)
	}
	full := t.TempDir()
	coredns := coreDNSVersion(t)
	version := coredns + "-steadfast.1"
	if err := os.MkdirAll(filepath.Join(full, version, "from an earlier run"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ version, dist, want string }{
		"no version":              {"", t.TempDir(), "VERSION is empty, want " + coredns + "-steadfast.N"},
		"another CoreDNS":         {"v1.2.3-steadfast.1", t.TempDir(), "VERSION is v1.2.3-steadfast.1, want"},
		"no number":               {coredns + "-steadfast.", t.TempDir(), "want"},
		"a number from 0":         {coredns + "-steadfast.0", t.TempDir(), "want"},
		"a dot that is no dot":    {strings.Replace(version, ".", "x", 1), t.TempDir(), "want"},
		"something behind it":     {version + "-rc1", t.TempDir(), "want"},
		"a folder that is in use": {version, full, "is not empty"},
	} {
		t.Run(name, func(t *testing.T) {
			release := exec.CommandContext(t.Context(), "make", "release", "VERSION="+tc.version, "DIST="+tc.dist)
			release.Dir = ".."
			out, err := release.CombinedOutput()
			if err == nil || !strings.Contains(string(out), tc.want) {
				t.Errorf("make release: %v, want %q:\n%s", err, tc.want, out)
			}
		})
	}
}

// coreDNSVersion is what go.mod says.
func coreDNSVersion(t *testing.T) string {
	t.Helper()
	mod, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(mod), "\tgithub.com/coredns/coredns ")
	version, _, _ := strings.Cut(rest, "\n")
	if !ok || version == "" {
		t.Fatalf("go.mod requires no CoreDNS:\n%s", mod)
	}
	return version
}
