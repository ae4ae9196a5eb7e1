#!/bin/bash
# $1: the tree.
set -eu
tree=$1
systemctl --root="$tree" --quiet enable systemd-networkd.service systemd-resolved.service systemd-timesyncd.service \
    ssh.service avahi-daemon.service
