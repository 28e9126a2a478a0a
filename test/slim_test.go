package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// heavy are the plugins that slim is without, and a package that each brings along.
var heavy = map[string]string{
	"route53": "github.com/aws/aws-sdk-go-v2/service/route53",
	// Not all of AWS's: dnssec reads keys from its Secrets Manager.
	"azure":        "github.com/Azure/azure-sdk-for-go/profiles/latest/dns/mgmt/dns",
	"clouddns":     "google.golang.org/api/dns/v1",
	"kubernetes":   "k8s.io/client-go/kubernetes",
	"k8s_external": "k8s.io/api/core/v1",
	"etcd":         "go.etcd.io/etcd/client/v3",
	"nomad":        "github.com/hashicorp/nomad/api",
	"trace":        "github.com/DataDog/dd-trace-go/v2/ddtrace/tracer",
}

func TestSlimLinksNoClientOfACloudOrACluster(t *testing.T) {
	full, slim := linked(t, "./build"), linked(t, "./build/slim")
	for plugin, brings := range heavy {
		for _, pkg := range []string{"github.com/coredns/coredns/plugin/" + plugin, brings} {
			if !slices.Contains(full, pkg) {
				t.Errorf("full does not link %s, so that slim without it shows nothing", pkg)
			}
			if slices.Contains(slim, pkg) {
				t.Errorf("slim links %s", pkg)
			}
		}
	}
}

// linked returns the packages of a program.
func linked(t *testing.T, program string) []string {
	t.Helper()
	tellInputs(t, program)
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", program)
	list.Dir = ".."
	out, err := list.Output()
	if err != nil {
		t.Fatalf("%v: %v", list.Args, err)
	}
	return strings.Fields(string(out))
}

func TestSlimHasBothPlugins(t *testing.T) {
	slim := filepath.Join(t.TempDir(), "coredns")
	buildFlavour(t, slim, "./build/slim")
	a := startUpstream(t, loopbackAddr(freePort(t)), addressA)
	s := startServerOf(t, slim, t.TempDir(), `.:{PORT1} {
		bind 127.0.0.1
		errors
		searchexpand lab.test
		cache
		healthforward . `+a.listen+`
	}`)
	reply := ask(t, s.addr(), "db01", dns.TypeA)
	if len(reply.Answer) != 2 || reply.Answer[0].Header().Rrtype != dns.TypeCNAME {
		t.Errorf("db01 is answered with\n%v\nwant an alias under lab.test and its address", reply)
	}
	plugins := startBinary(t, slim, "coredns", t.TempDir(), "-plugins")
	if err := plugins.Wait(startLimit); err != nil {
		t.Fatal(err)
	}
	for plugin := range heavy {
		if slices.Contains(strings.Fields(plugins.Log()), plugin) {
			t.Errorf("slim has the plugin %s", plugin)
		}
	}
}

// buildFlavour builds a program as make does, so that its packages are those that the
// image's program has.
func buildFlavour(t *testing.T, output, flavour string) {
	t.Helper()
	tellInputs(t, flavour)
	buildIn(t, "..", output, flavour)
}

// buildIn is buildFlavour for other sources, with options for go build.
func buildIn(t *testing.T, dir, output, program string, options ...string) {
	t.Helper()
	args := append([]string{"build", "-trimpath", "-ldflags", "-s -w", "-o", output}, options...)
	build := exec.CommandContext(t.Context(), "go", append(args, program)...)
	build.Dir = dir
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build.Args, err, out)
	}
}

// tellInputs reads what a flavour has of its own, so that go test does not take a
// result from its cache when that has changed: the rest this package imports.
func tellInputs(t *testing.T, flavour string) {
	t.Helper()
	for _, name := range []string{"main.go", "plugins/zplugin.go"} {
		if _, err := os.ReadFile(filepath.Join("..", flavour, name)); err != nil {
			t.Fatal(err)
		}
	}
}
