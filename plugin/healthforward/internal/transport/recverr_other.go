//go:build !linux

package transport

import (
	"context"
	"syscall"
)

// recvErr does nothing: only Linux hides ICMP errors.
func recvErr(context.Context, string, string, syscall.RawConn) error { return nil }
