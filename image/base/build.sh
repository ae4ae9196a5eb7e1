#!/bin/sh
# Makes the base: a tree of Debian packages, as a tar file. $1: the tar file; the rest: names of packages.
# Settings: ARCHITECTURE, SUITE, BACKPORTS, INITRAMFS_MODULES.
set -eu
output=$1
shift
here=$(cd "$(dirname "$0")" && pwd)

# The mirrors are the builder's own: their addresses are taken from its apt sources, the suites are ours.
mirror_of() {
    # shellcheck disable=SC2016 # apt replaces them
    apt-get indextargets --format '$(LABEL)|$(REPO_URI)' 'Created-By: Packages' | sed -n "s/^$1|//p" | head -n 1
}
mirror=$(mirror_of Debian)
security=$(mirror_of Debian-Security)
[ -n "$mirror" ] || { echo "image: apt on this machine has no source of Debian packages; add one and apt-get update" >&2; exit 1; }
key=/usr/share/keyrings/debian-archive-keyring.gpg
components="main non-free-firmware"
preferences=$(mktemp)
trap 'rm -f "$preferences"' EXIT
if [ -n "$BACKPORTS" ]; then
    printf 'Package: %s\nPin: release n=%s-backports\nPin-Priority: 990\n' "$BACKPORTS" "$SUITE" > "$preferences"
fi
set -- --include="$(echo "$*" | tr ' ' ',')" "$SUITE" "$output.part" \
    "deb [signed-by=$key] $mirror $SUITE $components" \
    "deb [signed-by=$key] $mirror $SUITE-updates $components"
if [ -n "$BACKPORTS" ]; then
    set -- "$@" "deb [signed-by=$key] $mirror $SUITE-backports $components"
fi
if [ -n "$security" ]; then
    set -- "$@" "deb [signed-by=$key] $security $SUITE-security $components"
fi

mmdebstrap --mode=root --format=tar --variant=minbase --architectures="$ARCHITECTURE" \
    --dpkgopt=force-confold --dpkgopt=force-unsafe-io --aptopt='APT::Install-Recommends "false"' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/info/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --setup-hook="mkdir -p \"\$1/etc/apt/preferences.d\"" \
    --setup-hook="upload $preferences /etc/apt/preferences.d/backports" \
    --essential-hook="sh $here/essential-hook.sh \"\$1\"" \
    --customize-hook="sh $here/customize-hook.sh \"\$1\"" "$@"
mv "$output.part" "$output"
