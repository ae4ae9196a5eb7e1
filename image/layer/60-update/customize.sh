#!/bin/bash
# $1: the tree.
set -eu
tree=$1
: "${update_key:?}" "${device:?}" "${bundle_format:?}" # build.sh says
# An update is for the boards of one device, and in the format that RAUC reads with their kernel.
sed -i "s/@DEVICE@/$device/; s/@FORMAT@/$bundle_format/" "$tree/etc/rauc/system.conf"
chmod 755 "$tree/usr/lib/lamplighter-appliance/boot-backend"
# Bundles are taken when they are signed with the key that this image was built with.
cp "$update_key/certificate.pem" "$tree/etc/rauc/keyring.pem"
systemctl --root="$tree" --quiet enable appliance-health.service
