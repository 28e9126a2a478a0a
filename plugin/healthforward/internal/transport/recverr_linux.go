package transport

import (
	"context"
	"syscall"
)

// recvErr asks the kernel for all ICMP errors. By default Linux passes only some,
// such as port unreachable, to a connected UDP socket, and drops net and host
// unreachable (net/ipv4/udp.c, __udp4_lib_err). A kernel that refuses costs no
// more than a time-out.
func recvErr(_ context.Context, network, _ string, c syscall.RawConn) error {
	level, option := syscall.IPPROTO_IP, syscall.IP_RECVERR
	if network == "udp6" {
		level, option = syscall.IPPROTO_IPV6, syscall.IPV6_RECVERR
	}
	return c.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), level, option, 1)
	})
}
