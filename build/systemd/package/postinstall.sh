#!/bin/sh
# Runs when the package is in place, on an upgrade too. Whether this host asks
# steadfast is for `steadfast-host enable` to change, so nothing is started here that
# did not run before, and resolv.conf is not looked at.
set -eu

add_user() {
	if getent passwd steadfast >/dev/null; then return; fi
	if command -v useradd >/dev/null; then
		useradd --system --user-group --no-create-home --home-dir / --shell /sbin/nologin steadfast
	else # BusyBox
		addgroup -S steadfast
		adduser -S -D -H -h / -s /sbin/nologin -G steadfast steadfast
	fi
}

if ! command -v systemctl >/dev/null; then
	add_user
	exit 0
fi
# DynamicUser=, which makes a user for the time that the service runs, is from 235.
version=$(systemctl --version | sed -n '1s/^systemd \([0-9]*\).*/\1/p')
if [ "${version:-0}" -lt 235 ]; then add_user; fi
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart steadfast
fi
