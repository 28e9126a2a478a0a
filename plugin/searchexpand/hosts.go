package searchexpand

import (
	"net"

	"github.com/coredns/coredns/plugin"
)

// hostTable tells the addresses that an operator wrote down for a name. The hosts
// plugin is one, and says nothing about names outside of its zones.
type hostTable interface {
	LookupStaticHostV4(host string) []net.IP
	LookupStaticHostV6(host string) []net.IP
}

// hostTableOf returns the table of the handler, or nil if it has none, as where
// the server block has no hosts plugin.
func hostTableOf(h plugin.Handler) hostTable {
	table, ok := h.(hostTable)
	if !ok {
		return nil
	}
	return table
}

// written reports whether name, fully qualified, is in table. Then it is meant as
// it is, whatever the type asked: hosts answers it further down the chain.
func written(table hostTable, name string) bool {
	return table != nil && (len(table.LookupStaticHostV4(name)) > 0 || len(table.LookupStaticHostV6(name)) > 0)
}
