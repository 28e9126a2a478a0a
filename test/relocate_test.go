package test

import (
	"maps"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/coredns/caddy/caddyfile"
)

// move carries a Corefile that is written for production to where a test may
// start it: free unprivileged ports on loopback, and upstreams that are loopback
// too. Nothing else about the Corefile changes.
type move struct {
	t          testing.TB
	ports      map[string]int // port in the Corefile → port now
	resolvConf string         // stands for /etc/resolv.conf as an upstream
	kubernetes string         // URL of the API server, "" if no block needs one
}

// moves is all that a move does inside a server block: directive → what becomes of
// its lines. Besides, the ports of the blocks themselves are moved, and a block
// without bind gets one.
var moves = map[string]func(m *move, lines [][]string){
	"bind": (*move).bind,

	// Listeners that are not DNS.
	"health":     func(m *move, lines [][]string) { m.listen(lines, ":8080") },
	"ready":      func(m *move, lines [][]string) { m.listen(lines, ":8181") },
	"prometheus": func(m *move, lines [][]string) { m.listen(lines, "localhost:9153") },
	"pprof":      func(m *move, lines [][]string) { m.listen(lines, "localhost:6053") },

	// What is asked.
	"forward":       (*move).upstreams,
	"healthforward": (*move).healthforward,
	"grpc":          (*move).upstreams,
	"kubernetes":    (*move).apiServer,
}

// corefile returns text, moved.
func (m *move) corefile(text string) string {
	m.t.Helper()
	blocks, err := caddyfile.Parse("Corefile", strings.NewReader(text), nil)
	if err != nil {
		m.t.Fatalf("parse %v:\n%s", err, text)
	}
	// First all the blocks' ports, because an upstream in one may be another.
	for _, b := range blocks {
		for i, key := range b.Keys {
			b.Keys[i] = m.serverKey(key)
		}
	}
	var out strings.Builder
	for _, b := range blocks {
		out.WriteString(strings.Join(b.Keys, " ") + " {\n")
		if _, ok := b.Tokens["bind"]; !ok {
			out.WriteString("bind 127.0.0.1\n")
		}
		for _, directive := range slices.Sorted(maps.Keys(b.Tokens)) {
			lines := tokenLines(b.Tokens[directive])
			if moved, ok := moves[directive]; ok {
				moved(m, lines)
			}
			for _, line := range lines {
				for i, word := range line {
					line[i] = quoted(word)
				}
				out.WriteString(strings.Join(line, " ") + "\n")
			}
		}
		out.WriteString("}\n")
	}
	return out.String()
}

// addr is where the port of the Corefile is now.
func (m *move) addr(port string) string {
	m.t.Helper()
	now, ok := m.ports[port]
	if !ok {
		m.t.Fatalf("nothing in the Corefile listens on port %s, but on %v", port, m.ports)
	}
	return loopbackAddr(now)
}

// port returns the port that stands for the Corefile's, always the same.
func (m *move) port(original string) string {
	if m.ports == nil {
		m.ports = make(map[string]int)
	}
	if _, ok := m.ports[original]; !ok {
		m.ports[original] = freePort(m.t)
	}
	return strconv.Itoa(m.ports[original])
}

var (
	keyPort = regexp.MustCompile(`^(.*):([0-9]+)$`)
	// defaultPorts are CoreDNS's, by the scheme of a server block.
	defaultPorts = map[string]string{"": "53", "dns": "53", "tls": "853", "quic": "853", "grpc": "443", "https": "443", "https3": "443"}
)

// serverKey moves what stands in front of a server block.
func (m *move) serverKey(key string) string {
	scheme, zone, hasScheme := strings.Cut(key, "://")
	if !hasScheme {
		scheme, zone = "", key
	}
	port := defaultPorts[scheme]
	if match := keyPort.FindStringSubmatch(zone); match != nil {
		zone, port = match[1], match[2]
	}
	key = zone + ":" + m.port(port)
	if hasScheme {
		key = scheme + "://" + key
	}
	return key
}

func (m *move) bind(lines [][]string) {
	for _, line := range lines {
		for i, word := range line[1:] {
			if addr, err := netip.ParseAddr(word); err == nil {
				line[i+1] = loopback(addr)
			} else if word != "{" && line[0] == "bind" {
				line[i+1] = "127.0.0.1" // an interface
			}
		}
	}
}

// listen moves the address that may stand behind a directive.
func (m *move) listen(lines [][]string, address string) {
	first := lines[0]
	if len(first) > 1 && first[1] != "{" {
		address = first[1]
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		m.t.Fatalf("%s: %v", first[0], err)
	}
	address = loopbackAddr(m.mustAtoi(m.port(port)))
	if len(first) > 1 && first[1] != "{" {
		first[1] = address
	} else {
		lines[0] = slices.Insert(first, 1, address)
	}
}

func (m *move) mustAtoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		m.t.Fatal(err)
	}
	return n
}

// upstreams moves every address in the lines.
func (m *move) upstreams(lines [][]string) {
	for _, line := range lines {
		for i, word := range line {
			line[i] = m.upstream(word)
		}
	}
}

// healthforward moves every upstream, and where its page is.
func (m *move) healthforward(lines [][]string) {
	for i, line := range lines {
		if line[0] == "status" {
			m.listen(lines[i:i+1], "")
		} else {
			m.upstreams(lines[i : i+1])
		}
	}
}

// upstream moves an upstream, with or without a scheme and a port. An upstream
// that is another block of the same Corefile stays that.
func (m *move) upstream(word string) string {
	if word == "/etc/resolv.conf" {
		return m.resolvConf
	}
	scheme, rest, hasScheme := strings.Cut(word, "://")
	if hasScheme {
		scheme += "://"
	} else {
		scheme, rest = "", word
	}
	if addr, err := netip.ParseAddr(rest); err == nil {
		return scheme + loopback(addr)
	}
	addrPort, err := netip.ParseAddrPort(rest)
	if err != nil {
		return word
	}
	port := strconv.Itoa(int(addrPort.Port()))
	if now, ok := m.ports[port]; ok && addrPort.Addr().IsLoopback() {
		port = strconv.Itoa(now)
	}
	return scheme + net.JoinHostPort(loopback(addrPort.Addr()), port)
}

// loopback returns an address that looks like addr and never leaves the machine.
func loopback(addr netip.Addr) string {
	if !addr.Is4() {
		return "::1"
	}
	b := addr.As4()
	b[0] = 127
	return netip.AddrFrom4(b).String()
}

// apiServer gives kubernetes the server that a pod finds in its environment.
func (m *move) apiServer(lines [][]string) {
	for i, line := range lines {
		if line[0] == "kubernetes" && line[len(line)-1] == "{" {
			lines[i] = append(line, "\n", "endpoint", m.kubernetes)
			return
		}
	}
	lines[0] = append(lines[0], "{", "\n", "endpoint", m.kubernetes, "\n", "}")
}

// tokenLines puts a directive's tokens back into the lines they came from.
func tokenLines(tokens []caddyfile.Token) [][]string {
	var lines [][]string
	next := -1 // line on which a token would continue the last one
	for _, token := range tokens {
		if token.Line != next {
			lines = append(lines, nil)
		}
		lines[len(lines)-1] = append(lines[len(lines)-1], token.Text)
		next = token.Line + strings.Count(token.Text, "\n")
	}
	return lines
}

// quoted writes a word as the Corefile's lexer reads it.
func quoted(word string) string {
	if word == "\n" || word != "" && !strings.ContainsAny(word, " \t\r\n\"#") {
		return word
	}
	return `"` + strings.ReplaceAll(word, `"`, `\"`) + `"`
}

func TestMoveKeepsTheCorefileButForAddresses(t *testing.T) {
	m := &move{t: t, resolvConf: "/tmp/resolv.conf", kubernetes: "http://127.0.0.1:1"}
	got := m.corefile(`(snip) {
		errors
	}
	. {
		import snip
		ready
		log . "{remote} \"{name}\" # {rcode}"
		healthforward . 10.1.2.3 127.0.0.1:1053 2001:db8::1 dns://192.0.2.1:54 /etc/resolv.conf {
			policy sequential
			status 127.0.0.1:8053 token
		}
	}
	a.example:1053 tls://b.example {
		bind 10.9.8.7
		kubernetes cluster.local {
			pods insecure
		}
		prometheus :9153
		health {
			lameduck 5s
		}
	}`)
	port := func(original string) string { return strconv.Itoa(m.ports[original]) }
	want := `.:` + port("53") + ` {
bind 127.0.0.1
errors
healthforward . 127.1.2.3 127.0.0.1:` + port("1053") + ` ::1 dns://127.0.2.1:54 /tmp/resolv.conf {
policy sequential
status 127.0.0.1:` + port("8053") + ` token
}
log . "{remote} \"{name}\" # {rcode}"
ready 127.0.0.1:` + port("8181") + `
}
a.example:` + port("1053") + ` tls://b.example:` + port("853") + ` {
bind 127.9.8.7
health 127.0.0.1:` + port("8080") + ` {
lameduck 5s
}
kubernetes cluster.local { 
 endpoint http://127.0.0.1:1
pods insecure
}
prometheus 127.0.0.1:` + port("9153") + `
}
`
	if got != want {
		t.Errorf("moved Corefile:\n%s\nwant:\n%s", got, want)
	}
}
