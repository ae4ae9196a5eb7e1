#!/bin/bash
# Builds the image of a device: build/image/lamplighter-<version>.img.zst with checksum, SBOM and update bundle.
#
#   base    Debian packages of all layers (base/), emulated, kept under a hash of what it is made from
#   layers  layer/*: packages, rootfs-overlay/ copied over the tree, customize.sh run on it, in this order
#   image   slots and partitions (assemble.sh), without mounting anything and without loop devices; the manifest
#
# Has to be root, on Debian 12 or 13. Use: image/build.sh [device]; devices are in config/. LAMPLIGHTER_DEB names a
# package that is already built, UPDATE_KEY the folder of your key, BASE_DAYS how old a base may be: a newer one has Debian's
# security updates.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(dirname "$here")
device=${1:-pi64}
work=${WORK:-$top/build/image}
[ "$device" = pi64 ] || work=${WORK:-$top/build/image-$device}
[ -f "$here/config/$device.sh" ] || { echo "image: no device $device; there are: $(cd "$here/config" && echo *.sh)" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "image: only root can make a tree of another machine; use sudo make image" >&2; exit 1; }

set -a
# shellcheck source=image/config/pi64.sh
. "$here/config/$device.sh"
set +a
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$top/pyproject.toml")
SOURCE_DATE_EPOCH=$(git -C "$top" log -1 --format=%ct 2> /dev/null || stat -c %Y "$top/pyproject.toml")
export SOURCE_DATE_EPOCH
step() { echo "$(date +%T) image: $*"; }

step "what the builder needs"
sh "$here/install-builder.sh"

packages=$(sed 's/#.*//' "$here"/layer/*/packages | tr -s ' \n' ' ')
hash=$("$here/base-hash.sh" "$device")
base=$work/base-$hash.tar
mkdir -p "$work"
if [ -n "$(find "$base" -mtime "-${BASE_DAYS:-14}" 2> /dev/null)" ]; then
    step "base $hash is there, of $(date -r "$base" +%F)"
else
    step "base $hash: Debian $SUITE for $ARCHITECTURE, ten minutes or more"
    # shellcheck disable=SC2086 # names of packages
    sh "$here/base/build.sh" "$base" $packages
fi

# Who has this key can update the appliances that are built with it, and nobody else can: it is not below build/.
update_key=${UPDATE_KEY:-$top/update-key}
if [ ! -f "$update_key/key.pem" ]; then
    step "a NEW key for update bundles, in $update_key: keep it, what is flashed now takes updates signed with it alone"
    (umask 077 && mkdir -p "$update_key")
    openssl req -x509 -newkey rsa:3072 -sha256 -nodes -days 7300 -subj "/CN=Lamplighter updates" \
        -addext "keyUsage=critical,digitalSignature,keyCertSign" \
        -keyout "$update_key/key.pem" -out "$update_key/certificate.pem" 2> /dev/null
fi

step "the application's package"
deb=${LAMPLIGHTER_DEB:-}
if [ -z "$deb" ]; then
    make --no-print-directory -C "$top" deb ARCH="$ARCHITECTURE" PYTHON="$PYTHON_VERSION"
    # shellcheck disable=SC2012 # our own names
    deb=$(ls -t "$top"/build/deb/lamplighter_*_"$ARCHITECTURE".deb | head -n 1)
fi
[ -f "$deb" ] || { echo "image: make deb has made no package for $ARCHITECTURE" >&2; exit 1; }

native_python=$work/python-$SUITE-$PYTHON_VERSION
if [ ! -d "$native_python" ]; then
    step "Python $PYTHON_VERSION for this machine, which compiles"
    sh "$here/native-python.sh" "$native_python"
fi

step "the tree"
tree=$work/tree
rm -rf "$tree"
mkdir -p "$tree"
tar -x -f "$base" -C "$tree" --numeric-owner --xattrs --xattrs-include='*'
# RAUC 1.13 does not understand what kernels since 6.19 say of dm-verity (1.15.1 does), so it checks a whole bundle first.
bundle_format=verity
[ -z "$BACKPORTS" ] || bundle_format=plain
export tree deb device version work here top native_python update_key bundle_format
for layer in "$here"/layer/*/; do
    step "layer $(basename "$layer")"
    if [ -d "$layer/rootfs-overlay" ]; then
        # Modes as checked out would depend on somebody's umask.
        cp -rT --preserve=links,timestamps --no-preserve=ownership,mode "$layer/rootfs-overlay" "$tree"
    fi
    if [ -f "$layer/customize.sh" ]; then
        bash "$layer/customize.sh" "$tree"
    fi
done

step "the image"
bash "$here/assemble.sh"
step "done: $(ls -s --block-size=M "$work/lamplighter-$version.img.zst")"
