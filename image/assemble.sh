#!/bin/bash
# From the tree to the image. Settings: tree, version, work, here, update_key, and those of the device.
#
# Why an MBR: the boot ROM of Pi 3 and Zero 2 W reads no GPT. An MBR has four entries, so the three FAT partitions, which
# the firmware must find (autoboot.txt names 2 and 3), are primary, and the rest is in an extended one:
#
#   1 bootconfig  FAT   autoboot.txt, bootcode.bin, the user's files
#   2 boot_a      FAT   firmware, kernel, initramfs      5 system_a  squashfs, read-only
#   3 boot_b      FAT   empty until the first update     6 system_b  empty until the first update
#   4 extended                                           7 data      ext4, made at the first start, as large as the card
set -euo pipefail
: "${tree:?}" "${version:?}" "${work:?}" "${here:?}" "${device:?}" "${update_key:?}" "${bundle_format:?}" # build.sh says
parts=$work/parts
output=$work/lamplighter-$version
rm -rf "$parts" "$output".*
mkdir -p "$parts/root/bootconfig" "$parts/files"

python3 "$here/sbom.py" "$tree" "$version" > "$output.cdx.json"

# What the slots are made of. The boot slot's cmdline.txt names the system beside it.
mv "$tree/boot/firmware" "$parts/root/boot_a"
mkdir "$tree/boot/firmware"
signature=${DISK_SIGNATURE#0x}
sed -i "s/@ROOT@/PARTUUID=$signature-05/; s/@SLOT@/A/" "$parts/root/boot_a/cmdline.txt"
cp "$here/bootconfig/"* "$parts/root/boot_a/bootcode.bin" "$parts/root/bootconfig/"
mksquashfs "$tree" "$parts/files/system.squashfs" -comp zstd -Xcompression-level 15 -b 256K -noappend -no-progress \
    -quiet -xattrs
printf 'LAMPLIGHTER-DATA' > "$parts/files/data.img" # what the first start makes a file system of
truncate --size=8M "$parts/files/data.img"
size=$(stat -c %s "$parts/files/system.squashfs")
[ "$size" -le $((SYSTEM_MIB << 20)) ] || { echo "image: the system has $size bytes, more than SYSTEM_MIB" >&2; exit 1; }

cat > "$parts/genimage.cfg" <<CFG
image bootconfig.vfat {
    vfat { label = "LAMPLIGHTER" extraargs = "-F 32 -s 1" }
    mountpoint = "/bootconfig"
    size = ${BOOTCONFIG_MIB}M
}
image boot.vfat {
    vfat { label = "BOOT" extraargs = "-F 32" }
    mountpoint = "/boot_a"
    size = ${BOOT_MIB}M
}
image lamplighter.img {
    hdimage { partition-table-type = "mbr" disk-signature = $DISK_SIGNATURE extended-partition = 4 align = 1M }
    partition bootconfig { partition-type = 0x0C bootable = true image = "bootconfig.vfat" offset = 4M }
    partition boot_a { partition-type = 0x0C image = "boot.vfat" }
    partition boot_b { partition-type = 0x0C size = ${BOOT_MIB}M }
    partition system_a { partition-type = 0x83 image = "system.squashfs" size = ${SYSTEM_MIB}M }
    partition system_b { partition-type = 0x83 size = ${SYSTEM_MIB}M }
    partition data { partition-type = 0x83 image = "data.img" }
}
CFG
genimage --loglevel 0 --rootpath "$parts/root" --tmppath "$parts/tmp" --inputpath "$parts/files" \
    --outputpath "$parts/output" --config "$parts/genimage.cfg"
mv "$parts/output/lamplighter.img" "$output.img"

zstd -q -T0 -10 -f "$output.img" -o "$output.img.zst"
python3 "$here/manifest.py" "$output.img" "$version" > "$output.rpi-imager-manifest"

# The same system as a bundle, for `lamplighter update`. RAUC checks the signature: in format verity also each block as
# it is read, in format plain of the whole bundle before it is mounted.
mkdir "$parts/bundle"
cp "$here/bundle/hook.sh" "$parts/bundle/"
chmod 755 "$parts/bundle/hook.sh"
ln "$parts/output/boot.vfat" "$parts/files/system.squashfs" "$parts/bundle/"
cat > "$parts/bundle/manifest.raucm" <<MANIFEST
[update]
compatible=lamplighter-$device
version=$version

[bundle]
format=$bundle_format

[hooks]
filename=hook.sh

[image.boot]
filename=boot.vfat
hooks=post-install

[image.system]
filename=system.squashfs
MANIFEST
rauc bundle --cert "$update_key/certificate.pem" --key "$update_key/key.pem" \
    --mksquashfs-args="-comp zstd -Xcompression-level 3 -quiet -no-progress" "$parts/bundle" "$output.raucb"

(cd "$work" && sha256sum "lamplighter-$version".{img.zst,raucb,cdx.json} > "lamplighter-$version.sha256")
rm -rf "$parts"
