#!/bin/sh
# After the packages are configured: the stubs go, and what they stood for is done once. $1: the tree.
set -eu
tree=$1

restore() {
    rm "$tree$1"
    chroot "$tree" dpkg-divert --local --rename --remove "$1" > /dev/null
}

for file in /usr/sbin/update-initramfs /usr/sbin/depmod /usr/bin/systemd-hwdb /usr/bin/py3compile \
    /usr/sbin/update-ca-certificates /usr/lib/python3.13/py_compile.py; do
    restore "$file"
done

kernel=$(basename "$tree"/usr/lib/modules/*)
depmod --basedir "$tree" --all "$kernel" # by the builder's own kmod: seconds instead of minutes

# The authorities, as update-ca-certificates lays them out; it starts a program for each of them.
(cd "$tree/usr/share/ca-certificates" && for file in mozilla/*.crt; do
    echo "$file" >> "$tree/etc/ca-certificates.conf"
    ln -s "/usr/share/ca-certificates/$file" "$tree/etc/ssl/certs/$(basename "$file" .crt).pem"
    cat "$file" >> "$tree/etc/ssl/certs/ca-certificates.crt"
done)
chroot "$tree" openssl rehash /etc/ssl/certs

# The hardware database knows keyboards, mice and names of vendors: nothing that a gateway needs, and slow to compile.
rm -rf "$tree/usr/lib/udev/hwdb.d" "$tree/etc/udev/hwdb.d"
ln -sf /dev/null "$tree/etc/systemd/system/systemd-hwdb-update.service"

# What the first boot needs before there is a root: our scripts are added to this archive later, without emulation.
cat > "$tree/etc/initramfs-tools/hooks/lamplighter" <<'HOOK'
#!/bin/sh
set -e
[ "${1:-}" != prereqs ] || exit 0
. /usr/share/initramfs-tools/hook-functions
for program in blkid blkdiscard e2fsck mke2fs resize2fs tune2fs sfdisk blockdev; do
    copy_exec "$(command -v "$program")" /sbin
done
copy_exec /usr/bin/partx /sbin
manual_add_modules squashfs overlay ext4 vfat nls_cp437 nls_ascii nls_iso8859-1 nls_utf8
HOOK
if [ -n "${INITRAMFS_MODULES:-}" ]; then
    echo "manual_add_modules $INITRAMFS_MODULES" >> "$tree/etc/initramfs-tools/hooks/lamplighter"
fi
chmod 755 "$tree/etc/initramfs-tools/hooks/lamplighter"
echo 'COMPRESS=zstd' > "$tree/etc/initramfs-tools/conf.d/lamplighter"
chroot "$tree" mkinitramfs -o "/boot/initrd.img-$kernel" "$kernel"

# A root that is read-only never writes byte code, so it has to be there. unchecked-hash: times do not matter.
chroot "$tree" python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash \
    -x '/(test|tests|idlelib|lib2to3|turtledemo|ensurepip)/' /usr/lib/python3.13

if [ -e "$tree/usr/bin/dash.real" ]; then
    mv "$tree/usr/bin/dash.real" "$tree/usr/bin/dash"
fi
