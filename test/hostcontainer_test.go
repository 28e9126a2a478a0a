package test

import (
	"os"
	"strings"
	"testing"
)

func TestContainerEntrypointMakesWhatWasGivenTheUpstream(t *testing.T) {
	if !alone(t) {
		return
	}
	startServerIn(t, t.TempDir(), `corp.example {
		bind 127.0.0.2
		hosts {
			192.0.2.10 db01.corp.example
		}
	}`)
	h := newHost(t, map[string]string{"/etc/resolv.conf": givenServers})
	for from, to := range map[string]string{"entrypoint": "/entrypoint", "Corefile": "/etc/steadfast/Corefile"} {
		content, err := os.ReadFile("../build/systemd/container/" + from)
		if err != nil {
			t.Fatal(err)
		}
		h.write(to, string(content), 0o755)
	}
	h.mountServer("/usr/bin/coredns")
	// The program ends when it has found the name, and the server must not outlive it here
	// as it does not outlive a container.
	const program = `
		for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do
			if getent ahostsv4 db01; then exit 7; fi
			sleep 1
		done`
	contained := []string{"unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "/entrypoint", "sh", "-c", program}
	for _, start := range []string{"first", "second, with the resolv.conf that the first one wrote"} {
		t.Run(start, func(t *testing.T) {
			h := &host{t: t, root: h.root}
			h.runWith([]string{roleEnv + "=coredns"}, 7, "192.0.2.10", contained...)
			for name, want := range map[string]string{
				"/etc/steadfast/upstream.conf": givenServers,
				"/etc/resolv.conf":             "# written by steadfast\nnameserver 127.0.0.1\noptions edns0 trust-ad\n",
			} {
				if got := h.read(name); got != want {
					t.Errorf("%s is %q, want %q", name, got, want)
				}
			}
		})
	}
	t.Run("third, when what was given is lost", func(t *testing.T) {
		h := &host{t: t, root: h.root}
		h.run(0, "", "rm", "/etc/steadfast/upstream.conf")
		if out := h.run(1, "is not there", "/entrypoint", "true"); strings.Contains(out, "CoreDNS-") {
			t.Errorf("the server was started:\n%s", out)
		}
	})
}
