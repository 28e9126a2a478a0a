package test

import (
	"embed"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// lookUp is what a client says of a name in one family, or in both.
type lookUp struct {
	says      string // found, or the client's own word or number for why nothing was
	canonical string // as the client writes it; without the closing dot
	addresses []string
}

// clientKind is a resolver library, or a program that is its own.
type clientKind struct {
	// argv is what looks up all the names.
	argv func(programs *clientPrograms, names []string) []string
	// env is added to the environment.
	env []string
	// read returns what the output says, by name and family ("ip", "ip4", "ip6").
	// Without it each line is as clients/addrinfo.c prints it.
	read    func(output string) map[string]lookUp
	overUDP bool // it never asks by TCP, and takes what a truncated answer has
	ownList bool // with a search list of its own it never asks for a bare name
	noList  bool // it asks for names as they are
}

// found is what all clients say alike.
const found = "0"

//go:embed clients
var clientSources embed.FS

// clientPrograms are the clients that are compiled for the test.
type clientPrograms struct{ dir string }

func (p *clientPrograms) path(name string) string { return filepath.Join(p.dir, name) }

func buildClients(t *testing.T) *clientPrograms {
	t.Helper()
	p := &clientPrograms{dir: publicDir(t)}
	for _, name := range []string{"addrinfo.c", "cares.c", "addrinfo.py"} {
		source, err := clientSources.ReadFile("clients/" + name)
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, p.dir, name, string(source))
	}
	mustRun(t, "gcc", "-Wall", "-Wextra", "-o", p.path("glibc"), p.path("addrinfo.c"))
	mustRun(t, "musl-gcc", "-static", "-Wall", "-Wextra", "-o", p.path("musl"), p.path("addrinfo.c"))
	mustRun(t, "gcc", "-Wall", "-Wextra", "-o", p.path("cares"), p.path("cares.c"), "-lcares")
	// With cgo, so that the program has both of Go's resolvers.
	mustRun(t, "env", "CGO_ENABLED=1", "go", "build", "-o", p.path("lookup"), "./lookup")
	return p
}

// compiled is the argv of a program of clientPrograms.
func compiled(name string) func(*clientPrograms, []string) []string {
	return func(p *clientPrograms, names []string) []string { return append([]string{p.path(name)}, names...) }
}

func python(p *clientPrograms, names []string) []string {
	return append([]string{"/usr/bin/python3", p.path("addrinfo.py")}, names...)
}

// runClient lets a client look names up, with a resolv.conf of its own.
func runClient(t *testing.T, kind clientKind, programs *clientPrograms, resolvConf string, names []string) map[string]lookUp {
	t.Helper()
	return runClientIn(t, nil, kind, programs, resolvConf, names)
}

// runClientIn is runClient in the network of a pod.
func runClientIn(t *testing.T, network podNetwork, kind clientKind, programs *clientPrograms, resolvConf string, names []string) map[string]lookUp {
	t.Helper()
	dir := t.TempDir()
	const mount = `mount --bind resolv.conf /etc/resolv.conf && mount --bind nsswitch.conf /etc/nsswitch.conf && ` +
		`mount --bind hosts /etc/hosts && exec "$@"`
	argv := slices.Concat(network, []string{"unshare", "-m", "sh", "-c", mount, "sh"}, kind.argv(programs, names))
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), kind.env...)
	writeFile(t, dir, "resolv.conf", resolvConf)
	writeFile(t, dir, "nsswitch.conf", "hosts: files dns\n")
	writeFile(t, dir, "hosts", "127.0.0.1 localhost\n")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	read := kind.read
	if read == nil {
		read = readLines
	}
	looked := read(string(out))
	if len(looked) == 0 {
		t.Fatalf("%v says nothing that makes sense:\n%s", cmd.Args, out)
	}
	return looked
}

// readLines reads what clients/addrinfo.c prints.
func readLines(output string) map[string]lookUp {
	looked := make(map[string]lookUp)
	for line := range strings.Lines(output) {
		if words := strings.Fields(line); len(words) > 3 {
			looked[words[0]+" "+words[1]] = lookUp{
				says:      words[2],
				canonical: strings.TrimSuffix(words[3], "."),
				addresses: sortedAddresses(words[4:]),
			}
		}
	}
	return looked
}

// sortedAddresses returns each address once, in order. A v4 address in the clothes
// of a v6 one is none of that family.
func sortedAddresses(words []string) []string {
	var addresses []string
	for _, word := range words {
		addr, err := netip.ParseAddr(word)
		if err == nil && !addr.Is4In6() {
			addresses = append(addresses, addr.String())
		}
	}
	slices.Sort(addresses)
	return slices.Compact(addresses)
}

// getent looks names up by glibc, as administrators do. It takes many names, but
// stops telling which one at the first that is missing, so each gets its own.
func getent(_ *clientPrograms, names []string) []string {
	const script = `for name; do for database in ahosts ahostsv4 ahostsv6; do
		echo "look-up: $name $database"; getent $database "$name" || test $? = 2 || echo "! $?"
	done; done`
	return append([]string{"sh", "-c", script, "sh"}, names...)
}

// readGetent reads lines such as "192.0.2.1 STREAM host.example".
func readGetent(output string) map[string]lookUp {
	families := map[string]string{"ahosts": "ip", "ahostsv4": "ip4", "ahostsv6": "ip6"}
	return readBlocks(output, families, func(l *lookUp, words []string) {
		l.addresses = append(l.addresses, words[0])
		if len(words) > 2 {
			l.canonical = words[2]
		}
	})
}

// busyboxNslookup is BusyBox's own resolver; that of Debian's package runs on glibc,
// which makes no difference here, as it sends its own questions.
func busyboxNslookup(_ *clientPrograms, names []string) []string {
	const script = `for name; do for type in a aaaa; do
		echo "look-up: $name $type"; busybox nslookup -type=$type "$name" 2>&1 || true
	done; done`
	return append([]string{"sh", "-c", script, "sh"}, names...)
}

// readBusybox reads "Name:" and "Address:" lines, behind the server's own.
func readBusybox(output string) map[string]lookUp {
	return readBlocks(output, map[string]string{"a": "ip4", "aaaa": "ip6"}, func(l *lookUp, words []string) {
		switch {
		case words[0] == "Name:":
			l.canonical = words[1]
		case words[0] == "Address:" && l.canonical != "":
			l.addresses = append(l.addresses, words[1])
		case words[0] == "**", words[0] == ";;": // ** server can't find nope: NXDOMAIN
			l.says = words[len(words)-1]
		}
	})
}

// readBlocks reads the output of a script that prints "look-up: NAME KIND" in
// front of each look-up. Whoever found an address need not say so.
func readBlocks(output string, families map[string]string, read func(l *lookUp, words []string)) map[string]lookUp {
	looked := make(map[string]lookUp)
	for _, block := range strings.Split(output, "look-up: ")[1:] {
		head, body, _ := strings.Cut(block, "\n")
		name, kind, _ := strings.Cut(head, " ")
		l := lookUp{says: "nothing"}
		for line := range strings.Lines(body) {
			if words := strings.Fields(line); len(words) > 0 {
				read(&l, words)
			}
		}
		if l.addresses = sortedAddresses(l.addresses); len(l.addresses) > 0 {
			l.says = found
		}
		looked[name+" "+families[kind]] = l
	}
	return looked
}

// dig asks for a name and follows no list.
func dig(_ *clientPrograms, names []string) []string {
	const script = `for name; do for type in A AAAA; do
		echo "look-up: $name $type"; dig +tries=1 +noall +comments +answer "$name" $type || true
	done; done`
	return append([]string{"sh", "-c", script, "sh"}, names...)
}

// readDig reads the status, and records such as "host.example. 60 IN A 192.0.2.1".
func readDig(output string) map[string]lookUp {
	return readBlocks(output, map[string]string{"A": "ip4", "AAAA": "ip6"}, func(l *lookUp, words []string) {
		switch {
		case len(words) > 5 && words[4] == "status:":
			l.says = words[5]
		case len(words) == 5 && strings.HasPrefix(words[3], "A"):
			l.canonical = strings.TrimSuffix(words[0], ".")
			l.addresses = append(l.addresses, words[4])
		}
	})
}
