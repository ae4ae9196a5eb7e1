#!/bin/bash
# The boot files of a slot, from the kernel and firmware that are in the tree. $1: the tree.
set -eu
tree=$1
boot=$tree/boot/firmware
kernel=$(basename "$tree"/lib/modules/*)

rm -rf "$boot"
mkdir -p "$boot"
cp "$tree"/usr/lib/raspi-firmware/*.{bin,dat,elf} "$boot/"
cp "$tree"/usr/lib/linux-image-"$kernel"/broadcom/bcm2{711,837}-*.dtb "$boot/" # Pi 3 and Zero 2 W: 2837; Pi 4: 2711
cp "$tree/boot/vmlinuz-$kernel" "$boot/vmlinuz"

# The initramfs: the one of the base, and an archive behind it with our scripts, which the kernel unpacks over it. So a
# change of them needs no emulation.
extra=$(mktemp -d)
cp -r --no-preserve=mode "${BASH_SOURCE%/*}/initramfs/." "$extra/"
chmod 755 "$extra"/scripts/*/appliance
mkdir "$extra/appliance" # their libraries are in the base's archive
(cd "$tree/usr/sbin" && cp blkdiscard blkid blockdev e2fsck mke2fs resize2fs sfdisk tune2fs ../bin/partx "$extra/appliance/")
for stage in local-top local-premount local-bottom; do
    # shellcheck disable=SC2016 # for the initramfs
    printf '/scripts/%s/appliance "$@"\n[ -e /conf/param.conf ] && . /conf/param.conf\n' "$stage" \
        > "$extra/scripts/$stage/ORDER"
done
cp "$tree/boot/initrd.img-$kernel" "$boot/initrd.img"
truncate --size=%4 "$boot/initrd.img"
(cd "$extra" && find . | sort | cpio --quiet -o -H newc --owner=0:0) >> "$boot/initrd.img"
rm -rf "$extra"

cat > "$boot/config.txt" <<CONFIG
# The boards' own firmware reads this; docs/operations.md, Boards.
arm_64bit=1
enable_uart=1
upstream_kernel=1
kernel=vmlinuz
initramfs initrd.img followkernel
CONFIG
# assemble.sh writes cmdline.txt for each slot; this is what they share. panic: a kernel that is lost starts again.
echo "console=tty0 console=ttyS1,115200 rootfstype=squashfs ro rootwait fsck.mode=skip quiet panic=10 root=@ROOT@ rauc.slot=@SLOT@" \
    > "$boot/cmdline.txt"

# Neither is used from the tree again.
rm -f "$tree"/boot/vmlinuz-* "$tree"/boot/initrd.img-* "$tree"/boot/System.map-* "$tree/vmlinuz" "$tree/initrd.img"
rm -f "$tree"/vmlinuz.old "$tree"/initrd.img.old
rm -rf "$tree"/usr/lib/linux-image-* "$tree/usr/lib/raspi-firmware"
