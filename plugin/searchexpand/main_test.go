package searchexpand

import (
	"testing"

	"steadfast.internal/plugin/internal/leaktest"

	clog "github.com/coredns/coredns/plugin/pkg/log"
)

func TestMain(m *testing.M) {
	clog.Discard()
	leaktest.Main(m, "/plugin/searchexpand")
}
