// Package asforward makes healthforward answer to the word forward. Where
// plugin.cfg has
//
//	forward:steadfast.internal/plugin/healthforward/asforward
//
// a Corefile for CoreDNS's forward runs on healthforward unchanged, and on the
// stock program again.
package asforward

import "steadfast.internal/plugin/healthforward"

func init() { healthforward.Register("forward") }
