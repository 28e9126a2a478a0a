package test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// sections are those of a plugin's README, in their order: CoreDNS's man pages,
// which tools and readers expect.
var sections = []string{"Name", "Description", "Syntax", "Metrics", "Ready", "Examples", "Bugs", "See Also"}

// fixtures are files that a Corefile in a README may name.
var fixtures = map[string]string{
	"token":       "0123456789abcdef\n",
	"resolv.conf": "search corp.example lab.example\nnameserver 127.0.0.1\n",
	"db.corp.example": `$ORIGIN corp.example.
@ 60 IN SOA ns.corp.example. hostmaster.corp.example. 1 7200 900 1209600 60
@ 60 IN NS ns
ns 60 IN A 192.0.2.1
db01 60 IN A 192.0.2.10
`,
}

func TestPluginREADMEsHaveTheSectionsOfAManPage(t *testing.T) {
	setups, err := filepath.Glob("../plugin/*/setup.go")
	if err != nil || len(setups) == 0 {
		t.Fatalf("found no plugin: %v", err)
	}
	for _, setup := range setups {
		readme := filepath.Join(filepath.Dir(setup), "README.md")
		text, err := os.ReadFile(readme)
		if err != nil {
			t.Errorf("a plugin is described: %v", err)
			continue
		}
		var got []string
		for line := range strings.Lines(string(text)) {
			if title, ok := strings.CutPrefix(line, "## "); ok && slices.Contains(sections, strings.TrimSpace(title)) {
				got = append(got, strings.TrimSpace(title))
			}
		}
		if !slices.Equal(got, sections) {
			t.Errorf("%s has the sections %q, want %q, once each and in this order; others may stand between", readme, got, sections)
		}
	}
}

func TestEveryCorefileInAREADMEStarts(t *testing.T) {
	readmes := []string{"../README.md"}
	more, err := filepath.Glob("../plugin/*/README.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range fixtures {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, readme := range append(readmes, more...) {
		text, err := os.ReadFile(readme)
		if err != nil {
			t.Error(err)
			continue
		}
		blocks := corefileBlocks(string(text))
		for _, line := range slices.Sorted(maps.Keys(blocks)) {
			t.Run(fmt.Sprintf("%s:%d", strings.TrimPrefix(readme, "../"), line), func(t *testing.T) {
				startMoved(t, dir, blocks[line])
			})
		}
	}
}

func TestCorefileExampleStarts(t *testing.T) {
	text, err := os.ReadFile("../Corefile.example")
	if err != nil {
		t.Fatal(err)
	}
	startMoved(t, "..", string(text))
}

// startMoved starts a Corefile in dir, moved to where a test may start it. Both
// an API server and a resolv.conf are there for the blocks that need them.
func startMoved(t *testing.T, dir, corefile string) {
	t.Helper()
	resolvConf := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(resolvConf, []byte(fixtures["resolv.conf"]), 0o644); err != nil {
		t.Fatal(err)
	}
	m := &move{t: t, resolvConf: resolvConf, kubernetes: startKubeAPI(t)}
	startServerIn(t, dir, m.corefile(corefile))
}

// corefileBlocks returns the fenced blocks of a README that say they are a
// corefile, by the line on which each begins.
func corefileBlocks(readme string) map[int]string { return fencedBlocks(readme, "corefile") }

// fencedBlocks returns the blocks that say they are in a language.
func fencedBlocks(readme, language string) map[int]string {
	blocks := make(map[int]string)
	fence, start := "", 0
	n := 0
	for line := range strings.Lines(readme) {
		n++
		trimmed := strings.TrimSpace(line)
		switch {
		case fence == "" && (strings.HasPrefix(trimmed, "```") || strings.HasPrefix(trimmed, "~~~")):
			fence = trimmed[:3]
			start = 0
			if strings.TrimSpace(strings.TrimLeft(trimmed, "`~")) == language {
				start = n
				blocks[start] = ""
			}
		case fence != "" && len(trimmed) >= len(fence) && strings.Trim(trimmed, fence[:1]) == "":
			fence = ""
		case fence != "" && start > 0:
			blocks[start] += line
		}
	}
	return blocks
}

func TestCorefileBlocksAreFound(t *testing.T) {
	got := corefileBlocks("# x\n~~~ corefile\n. {\n}\n~~~\n```\nnot.this {\n```\n```corefile\na {\n}\n```\n~~~ txt\n``` corefile\n~~~\n")
	want := map[int]string{2: ". {\n}\n", 9: "a {\n}\n"}
	if !maps.Equal(got, want) {
		t.Errorf("corefileBlocks = %v, want %v", got, want)
	}
}
