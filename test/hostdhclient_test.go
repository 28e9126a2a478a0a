package test

import "testing"

// leases are what dhclient tells its script, one lease after the other, and what is then
// asked.
var leases = map[string]struct {
	now  []string
	want string
}{
	"servers and a list": {
		[]string{`interface=eth0 new_domain_name_servers="192.0.2.1 192.0.2.2" new_domain_name=a.example new_domain_search="b.example c.example"`},
		"nameserver 192.0.2.1\nnameserver 192.0.2.2\nsearch b.example c.example\n",
	},
	"a domain alone is the list": {
		[]string{`interface=eth0 new_domain_name_servers=192.0.2.1 new_domain_name=a.example`},
		"nameserver 192.0.2.1\nsearch a.example\n",
	},
	"two interfaces and both families have one list": {
		[]string{
			`interface=eth0 new_domain_name_servers=192.0.2.1 new_domain_name=a.example`,
			`interface=eth0 new_dhcp6_name_servers="2001:db8::1 fe80::1" new_dhcp6_domain_search=b.example`,
			`interface=eth1 new_domain_name_servers=192.0.2.3`,
		},
		"nameserver 192.0.2.1\nnameserver 2001:db8::1\nnameserver fe80::1%eth0\nnameserver 192.0.2.3\nsearch a.example b.example\n",
	},
	"a new lease in the old one's place": {
		[]string{`interface=eth0 new_domain_name_servers=192.0.2.1`, `interface=eth0 new_domain_name_servers=192.0.2.2`},
		"nameserver 192.0.2.2\n",
	},
	"a lease without names changes nothing": {
		[]string{`interface=eth0 new_domain_name_servers=192.0.2.1`, `interface=eth1 new_ip_address=192.0.2.9`},
		"nameserver 192.0.2.1\n",
	},
	"what is no address and no domain is left out": {
		[]string{`interface=eth0 new_domain_name_servers="192.0.2.1 * $(reboot) evil.example" new_domain_search='* a;b.example a.example'`},
		"nameserver 192.0.2.1\nsearch a.example\n",
	},
}

func TestDhclientHookWritesWhatTheLeasesSay(t *testing.T) {
	if !alone(t) {
		return
	}
	for name, row := range leases {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, nil)
			for _, lease := range row.now {
				h.run(0, "", "sh", "-euc", lease+"; . /usr/lib/steadfast/dhclient-enter-hook; make_resolv_conf")
			}
			if got := h.read("/run/steadfast-host/dhclient.conf"); got != row.want {
				t.Errorf("it wrote\n%s\nwant\n%s", got, row.want)
			}
		})
	}
}
