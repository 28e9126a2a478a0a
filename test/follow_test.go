package test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// removedAnswers is for how long a resolver that has left a file may go on
// answering after it.
const removedAnswers = 2 * time.Second

// startResolvers starts resolvers on port 53, the only one that a resolv.conf can
// name, each at an address of its own: number n at 127.0.0.(n+1), and it answers
// address(n). The test must be alone.
func startResolvers(t testing.TB, count int) []*faulty {
	t.Helper()
	var resolvers []*faulty
	for n := range count {
		resolvers = append(resolvers, startFaulty(t, n+1, 53, answers, func(*faulty, arrival, time.Time) {}))
	}
	return resolvers
}

// resolverAt is the IP address of resolver number n.
func resolverAt(n int) string { return fmt.Sprintf("127.0.0.%d", n+1) }

// resolversAt is a resolv.conf with the resolvers of these numbers.
func resolversAt(numbers ...int) string {
	text := strings.Builder{}
	text.WriteString("# made by a test\n")
	for _, n := range numbers {
		fmt.Fprintf(&text, "nameserver %s\n", resolverAt(n))
	}
	return text.String()
}

// followers is a coredns, run by nobody, with a server block for each of some
// files, which forwards to the resolvers in it.
type followers struct {
	*server
	places []string
}

func startFollowers(t testing.TB, paths map[string]string) *followers {
	t.Helper()
	f := &followers{places: slices.Sorted(maps.Keys(paths))}
	var corefile strings.Builder
	for i, name := range f.places {
		fmt.Fprintf(&corefile, ".:{PORT%d} {\n bind 127.0.0.1\n healthforward . %s\n}\n", i+1, paths[name])
	}
	f.server = startServerAsNobody(t, corefile.String())
	return f
}

// of is where the block of a file answers.
func (f *followers) of(name string) string {
	return f.addrOf(fmt.Sprintf("PORT%d", slices.Index(f.places, name)+1))
}

// wayToChange is how a file with resolvers comes about, and becomes another one.
type wayToChange struct {
	lay    func(t *testing.T, dir, content string) (path string)
	change func(t *testing.T, dir, content string)
}

const fileName = "resolv.conf"

var waysToChange = map[string]wayToChange{
	"another one is renamed over it, as dhclient and NetworkManager do": {layFile, renameOver},
	"written in place": {layFile, writeInPlace},
	"removed, and made anew": {layFile, func(t *testing.T, dir, content string) {
		must(t, os.Remove(filepath.Join(dir, fileName)))
		writeInPlace(t, dir, content)
	}},
	"a ConfigMap's mount": {layAtomically, writeAtomically},
	"a Secret's mount": {
		func(t *testing.T, dir, content string) string {
			mountAt(t, "tmpfs", dir, "tmpfs", 0)
			return layAtomically(t, dir, content)
		},
		writeAtomically,
	},
	"mounted over a file, and written in place, as Docker does": {
		func(t *testing.T, dir, content string) string {
			layFile(t, dir, content)
			path := writeFile(t, dir, "mounted", "")
			mountAt(t, filepath.Join(dir, fileName), path, "", syscall.MS_BIND)
			return path
		},
		writeInPlace,
	},
	"another one is mounted over it": {layFile, func(t *testing.T, dir, content string) {
		mountAt(t, writeFile(t, t.TempDir(), fileName, content), filepath.Join(dir, fileName), "", syscall.MS_BIND)
	}},
	"a link to a directory, which another link is renamed over": {
		func(t *testing.T, dir, content string) string {
			linkToNewDir(t, dir, content)
			return filepath.Join(dir, "current", fileName)
		},
		linkToNewDir,
	},
	"a link into a directory where another file is renamed over it, as with NetworkManager": {
		func(t *testing.T, dir, content string) string {
			must(t, os.Mkdir(filepath.Join(dir, "run"), 0o755))
			layFile(t, filepath.Join(dir, "run"), content)
			must(t, os.Symlink(filepath.Join("run", fileName), filepath.Join(dir, fileName)))
			return filepath.Join(dir, fileName)
		},
		func(t *testing.T, dir, content string) { renameOver(t, filepath.Join(dir, "run"), content) },
	},
	"a link to a file, which a link to another file is renamed over": {
		func(t *testing.T, dir, content string) string {
			linkToNewFile(t, dir, content)
			return filepath.Join(dir, fileName)
		},
		linkToNewFile,
	},
}

func TestAFileIsFollowedHoweverItChanges(t *testing.T) {
	t.Parallel()
	if !alone(t) {
		return
	}
	startResolvers(t, 2)
	dirs, paths := make(map[string]string), make(map[string]string)
	for name, way := range waysToChange {
		dirs[name] = publicDir(t)
		paths[name] = way.lay(t, dirs[name], resolversAt(1))
	}
	server := startFollowers(t, paths)
	t.Run("ways", func(t *testing.T) { // it ends when all that is parallel has
		for name, way := range waysToChange {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				l := startLoad(t, server.of(name), "lab.test.", 25)
				l.waitUntilAnsweredBy(address(1), startLimit)
				for _, n := range []int{2, 1} { // twice, as it may be another file by then
					way.change(t, dirs[name], resolversAt(n))
					took := l.checkFollows(n)
					t.Logf("resolver %d answers %v after the change", n, took.Round(time.Millisecond))
				}
				l.checkNoneLost()
			})
		}
	})
}

// checkFollows waits until resolver number n answers, which is the only one since a
// moment ago, and checks that soon nobody else does. It returns how long it took.
func (l *load) checkFollows(n int) time.Duration {
	l.t.Helper()
	changed := time.Now()
	l.waitUntilAnsweredBy(address(n), startLimit)
	took := time.Since(changed)
	<-time.After(removedAnswers)
	settled := time.Now()
	l.waitForQueries(10)
	l.checkAnsweredBy(settled, n)
	return took
}

// checkAnsweredBy fails the test if anybody but resolver number n has answered
// queries that were sent since some time.
func (l *load) checkAnsweredBy(since time.Time, n int) {
	l.t.Helper()
	for _, a := range l.since(since) {
		if a.err == nil && a.address != address(n) {
			l.t.Errorf("an answer by %s, want %s alone", a.address, address(n))
			return
		}
	}
}

// checkNoneLost ends the load and fails the test if a query was not answered.
func (l *load) checkNoneLost() {
	l.t.Helper()
	answers := l.end()
	if errs := lost(answers); len(errs) > 0 {
		l.t.Errorf("%d of %d queries lost, the first %v", len(errs), len(answers), errs[0])
	}
	l.t.Logf("%d queries, p99 %v, max %v", len(answers), quantile(answers, 0.99), quantile(answers, 1))
}

// waysToSpoil put something into the place of a file that names no resolver.
var waysToSpoil = map[string]func(t *testing.T, path string){
	"emptied": func(t *testing.T, path string) { must(t, os.Truncate(path, 0)) },
	"truncated mid-write": func(t *testing.T, path string) {
		must(t, os.WriteFile(path, []byte("# made by a test\nnamese"), 0o600))
	},
	"without a resolver": func(t *testing.T, path string) { replace(t, path, "search lab.test\noptions ndots:2\n") },
	"no text": func(t *testing.T, path string) {
		replace(t, path, strings.Repeat("\x00nameserver\xff 127.0.0.3 \x00", 100))
	},
	"removed":                 func(t *testing.T, path string) { must(t, os.Remove(path)) },
	"replaced by a directory": func(t *testing.T, path string) { must(t, os.Remove(path)); must(t, os.Mkdir(path, 0o755)) },
	"replaced by a FIFO":      func(t *testing.T, path string) { must(t, os.Remove(path)); must(t, syscall.Mkfifo(path, 0o644)) },
	"replaced by a file without an end": func(t *testing.T, path string) {
		must(t, os.Symlink("/dev/zero", path+".new"))
		must(t, os.Rename(path+".new", path))
	},
	"replaced by a link to itself": func(t *testing.T, path string) {
		must(t, os.Symlink(path, path+".new"))
		must(t, os.Rename(path+".new", path))
	},
	"made unreadable":                func(t *testing.T, path string) { must(t, os.Chmod(path, 0)) },
	"its directory is made a secret": func(t *testing.T, path string) { must(t, os.Chmod(filepath.Dir(path), 0)) },
}

// TestTheLastGoodSetIsKeptWhenAFileIsSpoilt: with one warning, however often it is
// looked at.
func TestTheLastGoodSetIsKeptWhenAFileIsSpoilt(t *testing.T) {
	t.Parallel()
	if !alone(t) {
		return
	}
	startResolvers(t, 2)
	paths := make(map[string]string)
	for name := range waysToSpoil {
		paths[name] = layFile(t, publicDir(t), resolversAt(1))
	}
	server := startFollowers(t, paths)
	t.Run("ways", func(t *testing.T) {
		for name, spoil := range waysToSpoil {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				path := paths[name]
				l := startLoad(t, server.of(name), "lab.test.", 25)
				l.waitUntilAnsweredBy(address(1), startLimit)
				spoil(t, path)
				spoilt := time.Now()
				waitFor(t, startLimit, "a warning about "+path, func() error {
					if len(server.warnings(path)) == 0 {
						return errors.New("none")
					}
					return nil
				})
				<-time.After(3 * time.Second) // for those to come that should not
				if got := server.warnings(path); len(got) != 1 {
					t.Errorf("%d warnings, want one:\n%s", len(got), strings.Join(got, "\n"))
				}
				l.checkAnsweredBy(spoilt, 1)

				restore(t, path, resolversAt(2))
				l.checkFollows(2)
				l.checkNoneLost()
			})
		}
	})
}

// warnings returns what the server has said of a file, but for what is fine.
func (f *followers) warnings(path string) []string {
	var found []string
	for line := range strings.Lines(f.Log()) {
		if strings.Contains(line, path) && !strings.Contains(line, "[INFO]") {
			found = append(found, line)
		}
	}
	return found
}

// restore makes a good file of whatever is at path.
func restore(t *testing.T, path, content string) {
	t.Helper()
	must(t, os.Chmod(filepath.Dir(path), 0o755))
	if info, err := os.Lstat(path); err == nil && info.IsDir() {
		must(t, os.Remove(path))
	}
	replace(t, path, content)
}

// TestAFileThatIsNoFileYetIsNoErrorAtTheStart: until it is one, everything fails.
func TestAFileThatIsNoFileYetIsNoErrorAtTheStart(t *testing.T) {
	t.Parallel()
	if !alone(t) {
		return
	}
	startResolvers(t, 2)
	paths := make(map[string]string)
	for name, spoil := range waysToSpoil {
		paths[name] = layFile(t, publicDir(t), resolversAt(1))
		spoil(t, paths[name])
	}
	server := startFollowers(t, paths)
	t.Run("ways", func(t *testing.T) {
		for name := range waysToSpoil {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				addr := server.of(name)
				if got := answerText(ask(t, addr, "host.lab.test", dns.TypeA)); got != "SERVFAIL" {
					t.Errorf("without a resolver: %s, want SERVFAIL", got)
				}
				restore(t, paths[name], resolversAt(2))
				checkAnswersSoon(t, addr, 2)
			})
		}
	})
}

// checkAnswersSoon waits for an answer by resolver number n.
func checkAnswersSoon(t *testing.T, addr string, n int) {
	t.Helper()
	began := time.Now()
	waitFor(t, startLimit, "an answer by "+address(n), func() error {
		if got := answerText(ask(t, addr, "host.lab.test", dns.TypeA)); got != "host.lab.test. A "+address(n) {
			return errors.New(got)
		}
		return nil
	})
	t.Logf("answers after %v", time.Since(began).Round(time.Millisecond))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// replace renames a new file over path.
func replace(t *testing.T, path, content string) {
	t.Helper()
	must(t, os.Rename(writeFile(t, filepath.Dir(path), filepath.Base(path)+".new", content), path))
}

func layFile(t *testing.T, dir, content string) string {
	t.Helper()
	return writeFile(t, dir, fileName, content)
}

func renameOver(t *testing.T, dir, content string) {
	t.Helper()
	replace(t, filepath.Join(dir, fileName), content)
}

func writeInPlace(t *testing.T, dir, content string) {
	t.Helper()
	writeFile(t, dir, fileName, content)
}

func layAtomically(t *testing.T, dir, content string) string {
	t.Helper()
	writeAtomically(t, dir, content)
	must(t, os.Symlink(filepath.Join("..data", fileName), filepath.Join(dir, fileName)))
	return filepath.Join(dir, fileName)
}

// writeAtomically does what kubelet's writer of volumes does: the files are in a new
// directory, to which a link is renamed over ..data; then the old one is removed.
func writeAtomically(t *testing.T, dir, content string) {
	t.Helper()
	data := filepath.Join(dir, "..data")
	old, err := os.Readlink(data)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	fresh := freshDir(t, dir, time.Now().Format("..2006_01_02_15_04_05.")+"*")
	layFile(t, fresh, content)
	must(t, os.Symlink(filepath.Base(fresh), data+"_tmp"))
	must(t, os.Rename(data+"_tmp", data))
	if old != "" {
		must(t, os.RemoveAll(filepath.Join(dir, old)))
	}
}

// freshDir makes a directory in dir, which the user nobody may read.
func freshDir(t *testing.T, dir, pattern string) string {
	t.Helper()
	fresh, err := os.MkdirTemp(dir, pattern) //nolint:usetesting // beside the one that it replaces
	must(t, err)
	must(t, os.Chmod(fresh, 0o755))
	return fresh
}

// linkToNewDir makes "current" a link to a new directory with the file.
func linkToNewDir(t *testing.T, dir, content string) {
	t.Helper()
	fresh := freshDir(t, dir, "release")
	layFile(t, fresh, content)
	relink(t, filepath.Join(dir, "current"), fresh)
}

// linkToNewFile makes the file a link to another one.
func linkToNewFile(t *testing.T, dir, content string) {
	t.Helper()
	fresh := freshDir(t, dir, "elsewhere")
	relink(t, filepath.Join(dir, fileName), layFile(t, fresh, content))
}

func relink(t *testing.T, path, target string) {
	t.Helper()
	must(t, os.Symlink(target, path+".new"))
	must(t, os.Rename(path+".new", path))
}

// mountAt mounts until the test ends.
func mountAt(t *testing.T, source, target, fstype string, flags uintptr) {
	t.Helper()
	if err := syscall.Mount(source, target, fstype, flags, ""); err != nil {
		t.Fatalf("mount %s on %s: %v", source, target, err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(target, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", target, err)
		}
	})
}
