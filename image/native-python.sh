#!/bin/sh
# The image's Python for the machine that builds, so that byte code is compiled without emulation: it is the same for
# all processors. Extracted from Debian's packages, not installed. $1: the folder. Settings: SUITE, PYTHON_VERSION.
set -eu
output=$1
# shellcheck disable=SC2016 # apt replaces them
mirror=$(apt-get indextargets --format '$(LABEL)|$(REPO_URI)' 'Created-By: Packages' | sed -n 's/^Debian|//p' | head -n 1)
[ -n "$mirror" ] || { echo "image: apt on this machine has no source of Debian packages; add one and apt-get update" >&2; exit 1; }
rm -rf "$output.part"
mmdebstrap --quiet --mode=root --variant=extract \
    --include="base-files,python$PYTHON_VERSION-minimal,libpython$PYTHON_VERSION-stdlib" "$SUITE" "$output.part" \
    "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $SUITE main"
chroot "$output.part" "/usr/bin/python$PYTHON_VERSION" -c 'import compileall'
mkdir -p "$output.part/mnt" # the tree, while it is compiled
mv "$output.part" "$output"
