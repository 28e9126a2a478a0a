// Package version holds the one place where steadfast's version stands.
package version

import "github.com/coredns/coredns/coremain"

// Steadfast is the version of what this module adds to CoreDNS. A release sets
// it by -ldflags "-X steadfast.internal/build/version.Steadfast=1.2.3".
var Steadfast = "0.1.0" //nolint:gochecknoglobals // the linker can set nothing but a variable

// String returns CoreDNS's version with ours as its build metadata, in the form
// of semver.org: 1.15.0+steadfast.0.1.0.
func String() string { return coremain.CoreVersion + "+steadfast." + Steadfast }
