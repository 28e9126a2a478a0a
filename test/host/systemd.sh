#!/bin/sh
# Starts systemd as the first process of a small system of its own: this machine's files,
# with what is changed kept in memory, and no network but loopback. It runs checks.sh
# there, and ends with it.
#
#     systemd.sh FOLDER    with steadfast.deb, checks.sh and results, and an empty folder new
#
# Run by unshare with new namespaces of every kind but the user's.
set -eu
mount --make-rprivate /
mount -t tmpfs tmpfs "$1/new"
mkdir "$1/new/upper" "$1/new/work" "$1/new/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/new/upper,workdir=$1/new/work" "$1/new/root"
cp "$1/checks.sh" "$1/steadfast.deb" "$1/new/root/"
touch "$1/new/root/results"
mount --bind "$1/results" "$1/new/root/results"
cd "$1/new/root"
ip link set lo up
# With loopback addresses alone, glibc asks for nothing.
ip address add 192.0.2.53/24 dev lo

mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty; do
	touch "dev/$device"
	mount --bind "/dev/$device" "dev/$device"
done
mkdir dev/shm dev/mqueue dev/pts
mount -t tmpfs tmpfs dev/shm
mount -t mqueue mqueue dev/mqueue
mount -t devpts devpts dev/pts
ln -s pts/ptmx dev/ptmx

# Nothing of this machine is started, but for what the checks start.
cat >etc/systemd/system/checks.service <<-END
	[Unit]
	DefaultDependencies=no
	[Service]
	Type=oneshot
	ExecStart=-/bin/sh /checks.sh
	ExecStopPost=/bin/systemctl exit --force
	StandardOutput=append:/results
	StandardError=append:/results
	TimeoutStartSec=240
END

mkdir old
pivot_root . old
umount -l /old
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --unit=checks.service \
	--show-status=no --log-target=null </dev/null >/dev/null 2>&1
