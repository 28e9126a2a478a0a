// Package leaktest finds goroutines that outlive the tests of a package. Tests only.
package leaktest

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// patience is how long goroutines may take to end after the last test: an idle
// socket of a transport ends ten seconds after its last use.
const patience = 15 * time.Second

// Main runs the tests and exits the process. It fails if goroutines with part in
// their stack are left, part being the package's path or some of it.
func Main(m *testing.M, part string) {
	code := m.Run()
	if code == 0 {
		if left := await(part); left != "" {
			fmt.Fprintln(os.Stderr, "goroutines are left:\n"+left)
			code = 1
		}
	}
	os.Exit(code)
}

// await returns the stacks of the goroutines that are still there when patience
// is over.
func await(part string) string {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(patience)
	for {
		left := stacks(part)
		if left == "" || time.Now().After(deadline) {
			return left
		}
		<-tick.C
	}
}

func stacks(part string) string {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var left []string
	for i, stack := range strings.Split(string(buf), "\n\n") {
		if i > 0 && strings.Contains(stack, part) { // the first is our own
			left = append(left, stack)
		}
	}
	return strings.Join(left, "\n\n")
}
