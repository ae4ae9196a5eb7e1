#!/bin/bash
# The boot files of a slot, from the kernel and firmware that are in the tree. $1: the tree.
set -eu
tree=$1
: "${DEVICE_TREES:?}" "${CONSOLE:?}" "${FIRMWARE_SETTINGS:?}" # build.sh says
boot=$tree/boot/firmware
kernel=$(basename "$tree"/usr/lib/modules/*)
# Kernels of today have all of theirs in one folder; that of Debian 13 has it in three.
image=$tree/usr/lib/modules/$kernel/vmlinuz trees=$tree/usr/lib/modules/$kernel/dtb
[ -f "$image" ] || image=$tree/boot/vmlinuz-$kernel
[ -d "$trees" ] || trees=$tree/usr/lib/linux-image-$kernel

rm -rf "$boot"
mkdir -p "$boot"
cp "$tree"/usr/lib/raspi-firmware/*.{bin,dat,elf} "$boot/"
for name in $DEVICE_TREES; do
    # shellcheck disable=SC2086 # they have *
    cp "$trees"/broadcom/$name "$boot/"
done
for newer in "$boot"/bcm2712-d-*.dtb; do # the firmware's name for the later stepping of the chip
    [ ! -e "$newer" ] || cp "$newer" "${newer/bcm2712-d-/bcm2712d0-}"
done
cp "$image" "$boot/vmlinuz"

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
# The boards' own firmware reads this; docs/appliance.md, Boards.
arm_64bit=1
$(echo "$FIRMWARE_SETTINGS" | tr " " "\n")
kernel=vmlinuz
initramfs initrd.img followkernel
CONFIG
# assemble.sh writes cmdline.txt for each slot; this is what they share. panic: a kernel that is lost starts again.
echo "console=tty0 console=$CONSOLE rootfstype=squashfs ro rootwait fsck.mode=skip quiet panic=10 root=@ROOT@ rauc.slot=@SLOT@" \
    > "$boot/cmdline.txt"

# Neither is used from the tree again.
rm -f "$tree"/boot/vmlinuz-* "$tree"/boot/initrd.img-* "$tree"/boot/System.map-* "$tree/vmlinuz" "$tree/initrd.img"
rm -f "$tree"/vmlinuz.old "$tree"/initrd.img.old
rm -rf "$tree"/usr/lib/linux-image-* "$tree/usr/lib/raspi-firmware" "$tree"/usr/lib/modules/*/{dtb,vmlinuz,System.map}
