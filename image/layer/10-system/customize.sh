#!/bin/bash
# What the system itself does not do on an appliance. $1: the tree.
set -eu
tree=$1
: "${version:?}" # build.sh says
system=$tree/etc/systemd/system

mkdir -p "$tree/data" "$tree/boot/config"
: > "$tree/etc/machine-id" # empty: made at the first start (initramfs); one that is here would be everybody's
rm -f "$tree/etc/hostname" "$tree/var/lib/dbus/machine-id" "$tree"/etc/ssh/ssh_host_*
ln -sf /run/systemd/resolve/stub-resolv.conf "$tree/etc/resolv.conf"

rm -f "$tree/etc/apt/sources.list" "$tree"/etc/apt/sources.list.d/* # the builder's own

# Updates come as bundles; a read-only root has nothing for these to do.
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service \
    systemd-networkd-wait-online.service systemd-firstboot.service wpa_supplicant.service; do
    ln -sf /dev/null "$system/$unit"
done
rm -rf "$tree"/var/cache/apt/* "$tree"/var/lib/apt/lists/* "$tree"/var/log/* "$tree/var/lib/systemd/random-seed"

# Who stands before a screen is told where to go; nobody can log in there, as there are no passwords.
printf 'Lamplighter %s on \\n   \\4   \\6\nhttps://\\n.local:8443   ssh root@\\n.local (with your key)\n\n' \
    "$version" > "$tree/etc/issue"
printf 'IMAGE_ID=lamplighter\nIMAGE_VERSION=%s\n' "$version" >> "$tree/usr/lib/os-release"

# A board without a clock starts at this file's time, not in 1970.
touch -d "@${SOURCE_DATE_EPOCH:?}" "$tree/usr/lib/clock-epoch"
