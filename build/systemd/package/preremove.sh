#!/bin/sh
# Runs before the package goes. A host that asks nobody but steadfast would be
# without names afterwards; an upgrade leaves everything as it is. dpkg says what is
# happening in words, rpm by how many of the package will be left, and apk calls this
# only when it is removed.
set -eu
case ${1-} in
upgrade | deconfigure | failed-upgrade | 1) exit 0 ;;
esac
/usr/sbin/steadfast-host disable
