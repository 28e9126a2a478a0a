package test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "steadfast.internal"

// layers says what a package's non-test files may not reach. An import path in
// never means itself and all below it.
var layers = map[string]struct {
	never   []string // not even through other packages
	only    []string // the only imports of its own, if set
	because string
}{
	"plugin/healthforward/internal/pool": {
		only: []string{"cmp", "errors", "fmt", "iter", "maps", "math", "math/rand/v2", "slices", "strconv", "sync", "time"},
		// os is not here because fmt needs it; that pool's own files do not
		// import it is said by only.
		never:   []string{"net", "context", "log"},
		because: "the state machine takes now and outcomes as arguments, and neither waits, asks nor logs",
	},
	"plugin/healthforward/internal/transport": {
		never:   []string{"github.com/coredns", "github.com/prometheus", module + "/plugin/healthforward/internal/pool"},
		because: "a way out knows no plugin, no metric and no policy",
	},
	"plugin/searchexpand": {
		never:   []string{module + "/plugin/healthforward"},
		because: "the two plugins meet in plugin.cfg and in DNS messages only",
	},
	"plugin/healthforward": {
		never:   []string{module + "/plugin/searchexpand"},
		because: "the two plugins meet in plugin.cfg and in DNS messages only",
	},
	"plugin/internal/corefile": {
		never:   []string{"github.com/coredns/coredns", module + "/plugin/healthforward", module + "/plugin/searchexpand"},
		because: "it parses blocks, whoever's they are",
	},
	"plugin/internal/resolvconf": {
		never:   []string{"github.com/coredns", "github.com/miekg", "github.com/prometheus", module + "/plugin/healthforward", module + "/plugin/searchexpand"},
		because: "it reads and follows files, whatever they are for",
	},
	"plugin/internal/smallfile": {
		never:   []string{"github.com", module + "/plugin/healthforward", module + "/plugin/searchexpand"},
		because: "it reads files, whatever they are for",
	},
	"plugin/internal/status": {
		never:   []string{"github.com", module + "/plugin/healthforward", module + "/plugin/searchexpand"},
		because: "it shows what plugins tell it, and must be small enough to be trusted",
	},
	"build/internal/plugincfg": {
		never:   []string{"github.com", module + "/build/plugins"},
		because: "a generator that links what it generates cannot mend it",
	},
}

func TestPackagesReachOnlyWhatTheirLayerAllows(t *testing.T) {
	for pkg, layer := range layers {
		t.Run(pkg, func(t *testing.T) {
			importPath := path.Join(module, pkg)
			for _, dep := range goList(t, "-deps", "-f", "{{.ImportPath}}", importPath) {
				for _, never := range layer.never {
					if within(dep, never) {
						t.Errorf("%s reaches %s, but never %s: %s", pkg, dep, never, layer.because)
					}
				}
			}
			if layer.only == nil {
				return
			}
			for imported := range strings.FieldsSeq(goList(t, "-f", `{{join .Imports " "}}`, importPath)[0]) {
				if !slices.Contains(layer.only, imported) {
					t.Errorf("%s imports %s, but only %v: %s", pkg, imported, layer.only, layer.because)
				}
			}
		})
	}
}

// importers says who may import a package.
var importers = map[string]struct {
	allowed []string
	tests   bool // any package's test files may, too
	because string
}{
	"plugin/internal/dnsfake": {
		tests:   true,
		because: "it is an upstream that lies, for tests",
	},
	"plugin/internal/leaktest": {
		tests:   true,
		because: "it looks for goroutines that a test left behind",
	},
	"plugin/internal/readmetest": {
		tests:   true,
		because: "it compares a README with the code that it describes",
	},
	"build/plugins": {
		allowed: []string{"build", "test"},
		because: "whoever imports it links all of CoreDNS",
	},
	"build/compat/plugins": {
		allowed: []string{"build/compat"},
		because: "it registers the word forward a second time",
	},
}

func TestPackagesAreImportedByWhomTheyAreFor(t *testing.T) {
	const format = `{{.ImportPath}}:{{join .Imports " "}}:{{join .TestImports " "}} {{join .XTestImports " "}}`
	for _, line := range goList(t, "-f", format, "./...") {
		fields := strings.SplitN(line, ":", 3)
		importer := strings.TrimPrefix(strings.TrimPrefix(fields[0], module), "/")
		for pkg, rule := range importers {
			if slices.Contains(rule.allowed, importer) {
				continue
			}
			imports := strings.Fields(fields[1])
			if !rule.tests {
				imports = append(imports, strings.Fields(fields[2])...)
			}
			if slices.Contains(imports, path.Join(module, pkg)) {
				t.Errorf("%s imports %s: %s", importer, pkg, rule.because)
			}
		}
	}
}

// within reports whether importPath is root or stands below it.
func within(importPath, root string) bool {
	return importPath == root || strings.HasPrefix(importPath, root+"/")
}

func TestPoolNeitherReadsTheClockNorStartsGoroutines(t *testing.T) {
	for _, file := range goFiles(t) {
		if path.Dir(file.name) != "plugin/healthforward/internal/pool" || strings.HasSuffix(file.name, "_test.go") {
			continue
		}
		ast.Inspect(file.syntax, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: pool starts a goroutine", file.at(n))
			case *ast.SelectorExpr:
				switch n.Sel.Name {
				case "Now", "Since", "Until", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick", "Sleep":
					if file.isPackage(n.X, "time") {
						t.Errorf("%s: pool calls time.%s, and should be told", file.at(n), n.Sel.Name)
					}
				}
			}
			return true
		})
	}
}

// Where time is not real a sleep is fine. A test file that has no bubble, by itself or
// by a function of its package that makes one, has no such place; in one that has,
// which function runs inside is for its reader to see.
func TestNothingSleepsOutsideASynctestBubble(t *testing.T) {
	makers := bubbleMakers(goFiles(t))
	for _, file := range goFiles(t) {
		if strings.HasSuffix(file.name, "_test.go") && (file.imports("testing/synctest") || file.callsOneOf(makers[path.Dir(file.name)])) {
			continue
		}
		ast.Inspect(file.syntax, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "Sleep" && file.isPackage(sel.X, "time") {
				t.Errorf("%s: time.Sleep; wait for what should happen, or use a synctest bubble", file.at(n))
			}
			return true
		})
	}
}

// bubbleMakers returns the names of the functions that make a bubble, by directory:
// directly, or by another one of them.
func bubbleMakers(files []goFile) map[string]map[string]bool {
	makers := make(map[string]map[string]bool)
	for more := true; more; {
		more = false
		for _, file := range files {
			dir := path.Dir(file.name)
			if makers[dir] == nil {
				makers[dir] = make(map[string]bool)
			}
			for _, decl := range file.syntax.Decls {
				f, ok := decl.(*ast.FuncDecl)
				if !ok || f.Recv != nil || makers[dir][f.Name.Name] {
					continue
				}
				ast.Inspect(f, func(n ast.Node) bool {
					sel, ok := n.(*ast.SelectorExpr)
					direct := ok && sel.Sel.Name == "Test" && file.isPackage(sel.X, "testing/synctest")
					if direct || callsOneOf(n, makers[dir]) {
						makers[dir][f.Name.Name], more = true, true
					}
					return true
				})
			}
		}
	}
	return makers
}

// callsOneOf reports whether the node is a call of a function of that name.
func callsOneOf(n ast.Node, names map[string]bool) bool {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return false
	}
	ident, ok := call.Fun.(*ast.Ident)
	return ok && names[ident.Name]
}

func (f goFile) callsOneOf(names map[string]bool) bool {
	found := false
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		found = found || callsOneOf(n, names)
		return !found
	})
	return found
}

func TestFilesAreNamedByWhatTheyHold(t *testing.T) {
	grabBags := []string{"util", "utils", "helper", "helpers", "common", "misc", "type", "types", "constants", "interfaces"}
	for _, file := range goFiles(t) {
		base := strings.TrimSuffix(strings.TrimSuffix(path.Base(file.name), ".go"), "_test")
		if slices.Contains(grabBags, base) {
			t.Errorf("%s: a file is named by the concept that it holds", file.name)
		}
		if strings.Contains(base, "-") {
			t.Errorf("%s: a file's name has underscores, not hyphens", file.name)
		}
	}
}

// goFile is a parsed file of the module.
type goFile struct {
	name   string // slash-separated, from the module's root
	syntax *ast.File
	fset   *token.FileSet
}

// goFiles parses every Go file of the module.
func goFiles(t *testing.T) []goFile {
	t.Helper()
	var files []goFile
	err := filepath.WalkDir("..", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != ".." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "dist") {
			return fs.SkipDir
		}
		if d.IsDir() || filepath.Ext(name) != ".go" {
			return nil
		}
		rel, err := filepath.Rel("..", name)
		if err != nil {
			return err
		}
		file := goFile{name: filepath.ToSlash(rel), fset: token.NewFileSet()}
		file.syntax, err = parser.ParseFile(file.fset, name, nil, parser.SkipObjectResolution)
		files = append(files, file)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// at is where n stands.
func (f goFile) at(n ast.Node) string {
	return f.name + ":" + strconv.Itoa(f.fset.Position(n.Pos()).Line)
}

// imports reports whether the file imports a package.
func (f goFile) imports(importPath string) bool {
	return slices.ContainsFunc(f.syntax.Imports, func(spec *ast.ImportSpec) bool {
		return spec.Path.Value == strconv.Quote(importPath)
	})
}

// isPackage reports whether x is the name under which the file imports a package.
func (f goFile) isPackage(x ast.Expr, importPath string) bool {
	id, ok := x.(*ast.Ident)
	if !ok {
		return false
	}
	for _, spec := range f.syntax.Imports {
		if spec.Path.Value != strconv.Quote(importPath) {
			continue
		}
		name := path.Base(importPath)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		return id.Name == name
	}
	return false
}
