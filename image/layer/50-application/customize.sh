#!/bin/bash
# The application, from its package. $1: the tree.
set -eu
tree=$1
: "${deb:?}" "${native_python:?}" "${PYTHON_VERSION:?}" # build.sh says

# Scripts of the package run in the tree, emulated; nothing is started there.
cp "$deb" "$tree/tmp/lamplighter.deb"
printf '#!/bin/sh\nexit 101\n' > "$tree/usr/sbin/policy-rc.d"
chmod 755 "$tree/usr/sbin/policy-rc.d"
# The mounts are of these few programs only, and gone with them, however they end.
# shellcheck disable=SC2016 # it has arguments of its own
unshare --mount sh -euc '
    mount --bind /dev "$1/dev"
    mount -t proc proc "$1/proc"
    chroot "$1" dpkg --install /tmp/lamplighter.deb
' sh "$tree"
# A read-only root never writes byte code, and without it a start takes twice as long. unchecked-hash: times do not matter.
# shellcheck disable=SC2016
unshare --mount sh -euc '
    mount --bind "$1" "$2/mnt"
    chroot "$2" "/usr/bin/python$3" -m compileall -q --invalidation-mode unchecked-hash -s /mnt -p / \
        /mnt/usr/lib/lamplighter /mnt/usr/lib/lamplighter-appliance
' sh "$tree" "$native_python" "$PYTHON_VERSION"
rm "$tree/usr/sbin/policy-rc.d" "$tree/tmp/lamplighter.deb"

# What the package says of a gateway on any machine, and what is so on this one: the appliance's settings.
python3 - "$tree" "${BASH_SOURCE%/*}/settings.toml" << 'MERGE'
import sys, tomllib
from pathlib import Path
tree, own = Path(sys.argv[1]), Path(sys.argv[2])
sys.path.append(str(tree / "usr/lib/lamplighter-appliance"))
sys.dont_write_bytecode = True
from appliance.settings import merged
settings = tree / "etc/lamplighter/lamplighter.toml"
text = merged(tomllib.loads(settings.read_text()), tomllib.loads(own.read_text()))
head = "# The appliance's settings; docs/appliance.md says where yours go.\n"
settings.write_text(head + text)
(tree / "etc/lamplighter/appliance.toml").write_text(head + text)
MERGE
