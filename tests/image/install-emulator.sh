#!/bin/sh
# What the tests of the image start it on and look into it with. Root only; others are told.
set -eu
missing=""
for pair in qemu-system-aarch64:qemu-system-arm mcopy:mtools unsquashfs:squashfs-tools zstd:zstd rauc:rauc \
  ssh:openssh-client openssl:openssl dtc:device-tree-compiler lsinitramfs:initramfs-tools-core; do
  command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair##*:}"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ]; then
  echo "these packages are missing:$missing" >&2
  exit 1
fi
echo "installing$missing"
apt-get update -qq
# shellcheck disable=SC2086 # names of packages
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
