// Package test runs the product as its users do: the real binary as a process
// of its own, real sockets, real signals. What can be shown without a process is
// shown beside the code instead.
package test

import (
	"fmt"
	"os"
	"testing"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/coremain"

	_ "steadfast.internal/build/plugins"
	"steadfast.internal/build/version"
)

// roleEnv names the role that this test binary plays instead of running tests.
const roleEnv = "STEADFAST_TEST_ROLE"

// roles are the programs that the test binary can be, so that the processes of
// a test need no build step and run under the race detector with it. A role
// finds its arguments in os.Args, as a main function does, and ends the process
// by returning.
var roles = map[string]func(){
	"coredns": runCoreDNS,
}

func TestMain(m *testing.M) {
	name, isRole := os.LookupEnv(roleEnv)
	if !isRole {
		os.Exit(m.Run())
	}
	role, known := roles[name]
	if !known {
		fmt.Fprintf(os.Stderr, "%s: no role %q\n", roleEnv, name)
		os.Exit(2)
	}
	os.Args[0] = name
	role()
}

// runCoreDNS is the main function of build/main.go.
func runCoreDNS() {
	caddy.AppVersion = version.String()
	coremain.Run()
}
