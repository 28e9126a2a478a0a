#!/bin/sh
# The life of the package on a host with systemd, from its installation to its end. Each
# line of output is "CHECK: what is seen"; hostunit_test.go says what is to be seen.
exec 2>&1
seen() {
	name=$1
	shift
	echo "$name: $("$@" 2>&1 | tr '\n' ' ' | sed 's/ *$//')"
}
patiently() { # until the command succeeds, and 20 s at most
	for _ in $(seq 200); do
		if "$@" >/dev/null 2>&1; then return; fi
		sleep 0.1
	done
}
addresses() { getent ahostsv4 "$1" | awk '{ print $1 }' | sort -u; }
pid() { systemctl show -P MainPID steadfast; }
process() { sed -n "s/^$1:[[:space:]]*//p" "/proc/$(pid)/status"; }

hostname client
rm -f /etc/resolv.conf
printf 'search corp.example\nnameserver 127.0.0.2\n' >/etc/resolv.conf
chmod 640 /etc/resolv.conf
before=$(stat -c '%a %U %s' /etc/resolv.conf; cat /etc/resolv.conf)

seen installed dpkg --force-depends --no-triggers -i /steadfast.deb
seen "resolv.conf after installation" sh -c "cmp /etc/resolv.conf - <<-END && echo unchanged
	search corp.example
	nameserver 127.0.0.2
END"
seen "service after installation" systemctl is-active steadfast
seen "service at boot after installation" systemctl is-enabled steadfast

# The host's upstreams, by the same program, as a service without a sandbox.
cat >/upstream <<-'END'
	corp.example {
	    bind 127.0.0.2
	    hosts {
	        192.0.2.10 db01.corp.example
	    }
	}
	vpn.example {
	    bind 127.0.0.3
	    hosts {
	        192.0.2.20 www.vpn.example
	    }
	}
	. {
	    bind 127.0.0.2
	    template ANY ANY {
	        rcode NXDOMAIN
	    }
	}
END
systemd-run -q --unit=upstream /usr/lib/steadfast/coredns -conf /upstream
patiently getent ahostsv4 db01.corp.example

seen "enable" steadfast-host enable --test db01
if ! systemctl -q is-active steadfast; then
	journalctl --no-pager -q -o cat | tail -n 60
	exit
fi
seen "resolv.conf" grep -v '^#' /etc/resolv.conf
seen "a bare name" addresses db01
seen "service at boot" systemctl is-enabled steadfast
seen "user" sh -c "test $(process Uid | cut -f 2) -ge 61184 && echo dynamic"
seen "capabilities" process CapEff
seen "bounding set" process CapBnd
seen "no new privileges" process NoNewPrivs
seen "system call filter" process Seccomp
seen "open files" systemctl show -P LimitNOFILE steadfast
seen "memory" systemctl show -P MemoryMax -P Environment steadfast
seen "restarts" systemctl show -P Restart -P RestartUSec -P StartLimitIntervalUSec steadfast
seen "waits for it" systemctl show -P Before steadfast
seen "it waits for" systemctl show -P After steadfast
seen "it wants" systemctl show -P Wants steadfast
seen "verified" systemd-analyze verify steadfast.service

# What is put into conf.d is in force after a reload, in the same process.
first=$(pid)
mkdir -p /run/steadfast-host/conf.d
echo 'healthforward vpn.example 127.0.0.3' >/run/steadfast-host/conf.d/vpn.conf
seen "reload" systemctl reload steadfast
patiently getent ahostsv4 www.vpn.example
seen "a name of the VPN" addresses www.vpn.example
echo "process after reload: $(if [ "$(pid)" = "$first" ]; then echo same; fi)"

# systemd gives up after five starts in ten seconds, if it may.
is_new() { [ "$(pid)" != "$first" ] && [ "$(pid)" != 0 ]; }
for _ in 1 2 3 4 5 6; do
	first=$(pid)
	systemctl kill -s KILL steadfast
	patiently is_new
done
patiently getent ahostsv4 db01
seen "starts after six deaths" systemctl show -P NRestarts steadfast
seen "a bare name after six deaths" addresses db01

seen "status" steadfast-host status
seen "removed" dpkg -r steadfast
if [ "$(stat -c '%a %U %s' /etc/resolv.conf; cat /etc/resolv.conf)" = "$before" ]; then echo "resolv.conf in the end: as before"; fi
seen "service in the end" systemctl is-active steadfast
seen "left behind" find /run/steadfast-host /var/lib/steadfast-host /usr/lib/steadfast
echo "whole: yes"
journalctl --no-pager -q -u steadfast -u upstream -o cat | tail -n 60
