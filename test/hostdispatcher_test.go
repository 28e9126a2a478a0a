package test

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

const (
	vpnUUID = "5f3b6c1e-0d0e-4c9c-8f4c-3f6a1f2b7a01"
	lanUUID = "9a0f3c52-6a57-4c0a-9a5e-11d2b6f7c802"
)

// event is what NetworkManager runs a dispatcher script with.
type event struct {
	args string
	env  []string
}

func vpnUp(servers, domains string) event {
	return event{"tun0 vpn-up", []string{
		"CONNECTION_UUID=" + vpnUUID, "VPN_IP_IFACE=tun0", "VPN_IP4_NAMESERVERS=" + servers, "VPN_IP4_DOMAINS=" + domains,
		"IP4_NAMESERVERS=192.0.2.99", "IP4_DOMAINS=below.example", // those of the device below
	}}
}

func lanUp(servers, domains string) event {
	return event{"eth0 up", []string{"CONNECTION_UUID=" + lanUUID, "IP4_NAMESERVERS=" + servers, "IP4_DOMAINS=" + domains}}
}

func down(action, uuid string) event {
	return event{"tun0 " + action, []string{"CONNECTION_UUID=" + uuid}}
}

var tooLong = strings.Repeat("x", 64) + ".example"

// dispatcherRows are events, one after the other, and the stanzas that there are then.
var dispatcherRows = map[string]struct {
	now  []event
	want []string
}{
	"a VPN's domain goes to the VPN's servers": {
		[]event{vpnUp("10.8.0.1 10.8.0.2", "corp.example")},
		[]string{"healthforward corp.example 10.8.0.1 10.8.0.2"},
	},
	"by IPv6 as well": {
		[]event{{"tun0 vpn-up", []string{"CONNECTION_UUID=" + vpnUUID, "VPN_IP6_NAMESERVERS=2001:DB8::1", "VPN_IP4_DOMAINS=corp.example"}}},
		[]string{"healthforward corp.example 2001:db8::1"},
	},
	"the longest name comes first": {
		[]event{vpnUp("10.8.0.1", "corp.example lab.corp.example"), lanUp("192.0.2.1", "office.example")},
		[]string{
			"healthforward lab.corp.example 10.8.0.1",
			"healthforward corp.example 10.8.0.1", "healthforward office.example 192.0.2.1",
		},
	},
	"a domain for routing alone, in capitals, with a closing dot": {
		[]event{vpnUp("10.8.0.1", "~Corp.Example.")},
		[]string{"healthforward corp.example 10.8.0.1"},
	},
	"a VPN that goes takes its domains along": {
		[]event{vpnUp("10.8.0.1", "corp.example"), lanUp("192.0.2.1", "office.example"), down("vpn-down", vpnUUID)},
		[]string{"healthforward office.example 192.0.2.1"},
	},
	"a connection that changes": {
		[]event{lanUp("192.0.2.1", "office.example"), {"eth0 dhcp4-change", lanUp("192.0.2.2", "floor.example").env}},
		[]string{"healthforward floor.example 192.0.2.2"},
	},
	"a connection that loses its servers": {
		[]event{lanUp("192.0.2.1", "office.example"), {"eth0 dhcp4-change", lanUp("", "office.example").env}},
		nil,
	},
	"another network claims a VPN's domain, or a part of it": {
		[]event{lanUp("192.0.2.66", "corp.example mail.corp.example xcorp.example"), vpnUp("10.8.0.1", "corp.example")},
		[]string{"healthforward corp.example 10.8.0.1", "healthforward xcorp.example 192.0.2.66"},
	},
	"a network claims everything": {
		[]event{vpnUp("10.8.0.1", ". ~. ~ com in-addr.arpa ip6.arpa")}, nil,
	},
	"a private name of one label": {
		[]event{vpnUp("10.8.0.1", "corp localhost")}, []string{"healthforward corp 10.8.0.1"},
	},
	"domains that are none": {
		[]event{vpnUp("10.8.0.1", "a{.example a}.example -a.example a-.example a..example .example 10.1.1.1 * /etc/* a_b.example "+
			"{$HOME}.example {%HOME%}.example \"a.example ä.example a\x01.example "+tooLong+" "+strings.Repeat("a.", 126)+"example")}, nil,
	},
	"a domain and a directive": {
		[]event{vpnUp("10.8.0.1", "corp.example\n}\nerratic\n.")},
		[]string{"healthforward corp.example 10.8.0.1"},
	},
	"servers that are none, or this host": {
		[]event{vpnUp("10.8.0 10.8.0.1.1 10.8.0.256 10.8.0.01 127.0.0.1 0.0.0.0 224.0.0.1 255.255.255.255 169.254.0.1 "+
			"::1 :: fe80::1 ff02::1 1:2:3 1::2::3 :1::2 1:: 12345::1 1:2:3:4:5:6:7:8:9 1:2:3:4:5:6:7: "+
			"tls://192.0.2.1 192.0.2.1:53 /etc/shadow * {$HOME} 192.0.2.1;reboot $(reboot)", "corp.example")},
		[]string{"healthforward corp.example 1::"},
	},
	"servers and a directive": {
		[]event{vpnUp("10.8.0.1\nerratic\n10.8.0.2", "corp.example")},
		[]string{"healthforward corp.example 10.8.0.1 10.8.0.2"},
	},
	"more than anybody needs": {
		[]event{vpnUp(numbered("10.8.0.%d ", 1, 100), numbered("d%02d.example ", 1, 60))},
		strings.Split(strings.TrimSpace(numbered("healthforward d%02d.example 10.8.0.1 10.8.0.2 10.8.0.3 10.8.0.4\n", 1, 16)), "\n"),
	},
	"a connection without a number of its own": {
		[]event{{"tun0 vpn-up", []string{"CONNECTION_UUID=../../../etc/passwd", "VPN_IP4_NAMESERVERS=10.8.0.1", "VPN_IP4_DOMAINS=corp.example"}}}, nil,
	},
	"an action of nobody's": {
		[]event{{"none hostname", nil}, {"eth0 pre-up", lanUp("192.0.2.1", "office.example").env}}, nil,
	},
}

// numbered repeats a form with the numbers from first to last.
func numbered(form string, first, last int) string {
	var text strings.Builder
	for i := first; i <= last; i++ {
		fmt.Fprintf(&text, form, i)
	}
	return text.String()
}

func TestDispatcherWritesAStanzaForEachDomain(t *testing.T) {
	if !alone(t) {
		return
	}
	var all strings.Builder
	for name, row := range dispatcherRows {
		t.Run(name, func(t *testing.T) {
			h := dispatcherHost(t)
			for _, e := range row.now {
				h.dispatch(e)
			}
			got := h.stanzas()
			if want := strings.Join(row.want, "\n"); got != want {
				t.Errorf("stanzas\n%s\nwant\n%s", got, want)
			}
			fmt.Fprintln(&all, got)
		})
	}
	// What was written is what the server takes.
	startServer(t, ".:{PORT1} {\n bind 127.0.0.1\n"+all.String()+"}")
}

func TestDispatcherKeepsToThirtyTwoConnections(t *testing.T) {
	if !alone(t) {
		return
	}
	h := dispatcherHost(t)
	for i := range 34 {
		h.dispatch(event{"eth0 up", []string{
			fmt.Sprintf("CONNECTION_UUID=%08d", i), "IP4_NAMESERVERS=192.0.2.1", fmt.Sprintf("IP4_DOMAINS=d%d.example", i),
		}})
	}
	if got := strings.Count(h.stanzas(), "\n") + 1; got != 32 {
		t.Errorf("%d stanzas, want 32", got)
	}
}

func TestDispatcherReloadsOnlyWhatChanges(t *testing.T) {
	if !alone(t) {
		return
	}
	h := dispatcherHost(t)
	for range 2 {
		h.dispatch(vpnUp("10.8.0.1", "corp.example"))
	}
	if got, want := h.read("/run/told"), "reload steadfast\n"; got != want {
		t.Errorf("the service manager was told %q, want %q", got, want)
	}
}

func TestDispatcherDoesNothingUntilTheHostIsEnabled(t *testing.T) {
	if !alone(t) {
		return
	}
	h := dispatcherHost(t)
	if err := os.Remove(h.path("/var/lib/steadfast-host/kind")); err != nil {
		t.Fatal(err)
	}
	h.dispatch(vpnUp("10.8.0.1", "corp.example"))
	if _, err := os.Stat(h.path("/run/steadfast-host")); !os.IsNotExist(err) {
		t.Errorf("it has written something: %v", err)
	}
}

func TestDispatcherKnowsADomainThatTheUserGaveTheConnection(t *testing.T) {
	if !alone(t) {
		return
	}
	h := dispatcherHost(t)
	h.write("/usr/bin/nmcli", "#!/bin/sh\n[ \"$*\" = '-g ipv4.dns-search,ipv6.dns-search connection show uuid "+vpnUUID+"' ] && printf '~user.example,other.example\\n\\n'\n", 0o755)
	h.dispatch(vpnUp("10.8.0.1", "corp.example"))
	const want = "healthforward corp.example 10.8.0.1\nhealthforward other.example 10.8.0.1\nhealthforward user.example 10.8.0.1"
	if got := h.stanzas(); got != want {
		t.Errorf("stanzas\n%s\nwant\n%s", got, want)
	}
}

// dispatcherHost is a host whose names NetworkManager's servers give.
func dispatcherHost(t *testing.T) *host {
	t.Helper()
	return newHost(t, map[string]string{"/var/lib/steadfast-host/kind": "networkmanager\n", "/run/active/steadfast": ""})
}

// dispatch runs the dispatcher script as NetworkManager does.
func (h *host) dispatch(e event) {
	h.t.Helper()
	h.runWith(e.env, 0, "", append([]string{"/usr/lib/NetworkManager/dispatcher.d/50-steadfast"}, strings.Fields(e.args)...)...)
}

// stanzas returns what the dispatcher script has written, without the remark.
func (h *host) stanzas() string {
	h.t.Helper()
	text, err := os.ReadFile(h.path("/run/steadfast-host/conf.d/networkmanager.conf"))
	if os.IsNotExist(err) {
		return ""
	}
	if err != nil {
		h.t.Fatal(err)
	}
	_, stanzas, _ := strings.Cut(string(text), "\n")
	return strings.TrimSpace(stanzas)
}
