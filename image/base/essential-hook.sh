#!/bin/sh
# Before the packages are configured: what is slow under emulation, and done again by each package, becomes a stub. It is
# done once, in customize-hook.sh. $1: the tree.
set -eu
tree=$1

# Most of the time goes to starting thousands of small programs by emulation, and half of them are shells. The builder's
# own one, which is static, runs in the tree as it is.
if [ "$(dpkg --print-architecture)" != "$ARCHITECTURE" ]; then
    mv "$tree/usr/bin/dash" "$tree/usr/bin/dash.real"
    cp /bin/bash-static "$tree/usr/bin/dash"
fi

divert() {
    chroot "$tree" dpkg-divert --local --rename --divert "$1.real" --add "$1" > /dev/null
    mkdir -p "$tree$(dirname "$1")"
    printf '#!/bin/sh\nexit 0\n' > "$tree$1"
    chmod 755 "$tree$1"
}

for program in /usr/sbin/update-initramfs /usr/sbin/depmod /usr/bin/systemd-hwdb /usr/bin/py3compile \
    /usr/sbin/update-ca-certificates; do
    divert "$program"
done
# The postinst of python3.13-minimal runs this file, and no py3compile.
chroot "$tree" dpkg-divert --local --rename --divert /usr/lib/python3.13/py_compile.py.real \
    --add /usr/lib/python3.13/py_compile.py > /dev/null
mkdir -p "$tree/usr/lib/python3.13"
: > "$tree/usr/lib/python3.13/py_compile.py"

# z50-raspi-firmware would look at the machine that builds. CMA=0: anything else is written as it is when not built on
# a Pi 4, and makes a Pi 4 unbootable. What it writes is not used (layer 20 writes config.txt), but it must not fail.
mkdir -p "$tree/etc/default" "$tree/boot/firmware"
printf 'CMA=0\nROOTPART=LABEL=unused\nCONSOLES="tty0 ttyS1,115200"\n' > "$tree/etc/default/raspi-firmware"
