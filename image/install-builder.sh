#!/bin/sh
# What makes images, from Debian's packages; nothing is installed when all is there.
set -eu
missing=
for pair in mmdebstrap:mmdebstrap arch-test:arch-test genimage:genimage mksquashfs:squashfs-tools mcopy:mtools \
    mkfs.vfat:dosfstools depmod:kmod cpio:cpio zstd:zstd rauc:rauc qemu-aarch64-static:qemu-user-static \
    update-binfmts:binfmt-support bash-static:bash-static openssl:openssl; do
    command -v "${pair%%:*}" > /dev/null || missing="$missing ${pair##*:}"
done
if [ -n "$missing" ]; then
    apt-get update -q
    # shellcheck disable=SC2086 # names of packages
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing
fi
# Programs of the image's machine run by emulation where a package's script needs one.
if [ "$(dpkg --print-architecture)" != arm64 ] && [ ! -e /proc/sys/fs/binfmt_misc/qemu-aarch64 ]; then
    mountpoint -q /proc/sys/fs/binfmt_misc || mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
    update-binfmts --enable qemu-aarch64
fi
