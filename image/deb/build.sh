#!/bin/bash
# Builds the package: build/deb/lamplighter_<version>+deb<release>_<architecture>.deb, with all that it needs but Python.
#
#   ARCH     amd64 or arm64; this machine's by default. Nothing of another architecture is run.
#   PYTHON   3.11 (Debian 12) or 3.13 (Debian 13); that of this machine's release by default
#   LEVEL    of the compression, 12 by default
#
# Versions and hashes are those of the committed requirements-cloud.lock, or it ends.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(dirname "$(dirname "$here")")
python=$top/.venv/bin/python
arch=${ARCH:-$(dpkg --print-architecture)}
release=$(. /etc/os-release && echo "${VERSION_ID:-}")
case ${PYTHON:-$release} in
    3.11 | 12) minor=3.11 release=12 ;;
    3.13 | 13) minor=3.13 release=13 ;;
    *) echo "deb: PYTHON must be 3.11 (Debian 12) or 3.13 (Debian 13)" >&2; exit 1 ;;
esac
case $arch in
    amd64) platform=x86_64-manylinux_2_28 ;;
    arm64) platform=aarch64-manylinux_2_28 ;;
    *) echo "deb: ARCH must be amd64 or arm64; there are no wheels for $arch" >&2; exit 1 ;;
esac
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$top/pyproject.toml")
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$top" log -1 --format=%ct 2> /dev/null || stat -c %Y "$top/pyproject.toml")}
export SOURCE_DATE_EPOCH
work=$top/build/deb
tree=$work/tree-$arch-$minor
lib=$tree/usr/lib/lamplighter
site=$lib/lib/python$minor/site-packages
share=$tree/usr/share/lamplighter
output=$work/lamplighter_$version+deb${release}_$arch.deb
say() { echo "deb: $*"; }
mkdir -p "$work"
exec 9> "$work/lock"
flock 9 # one at a time: what is between has one name

# uv resolves for another machine than this one, which pip does by the markers of this one.
if [ ! -x "$work/tools/bin/uv" ]; then
    "$python" -m venv "$work/tools"
    "$work/tools/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$here/tools.lock"
fi
uv() { "$work/tools/bin/uv" "$@"; }

say "requirements for $arch and Python $minor"
cd "$top"
uv pip compile --quiet --no-header --no-annotate --no-emit-index-url --generate-hashes \
    --python-platform "$platform" --python-version "$minor" --only-binary :all: \
    --extra sync-s3 --extra sync-sftp --constraint requirements-cloud.lock pyproject.toml -o "$work/requirements.txt"
grep -o 'sha256:[0-9a-f]*' "$work/requirements.txt" | sort -u > "$work/wanted"
grep -o 'sha256:[0-9a-f]*' requirements-cloud.lock | sort -u > "$work/locked"
if comm -23 "$work/wanted" "$work/locked" | grep -q .; then
    echo "deb: requirements-cloud.lock does not have all that pyproject.toml asks for; make lock" >&2
    exit 1
fi

if ! [ -f gateway/page/built/index.html ]; then
    say "web page"
    PYTHON=$python sh gateway/page/build.sh # says why it cannot; then there is no package
fi
if ! [ -f gateway/page/built-docs/files.json ]; then
    say "documents"
    PYTHON=$python sh docs_site/build.sh
fi

say "environment"
rm -rf "$tree"
mkdir -p "$site" "$lib/bin" "$tree/usr/bin" "$share"
uv pip install --quiet --no-deps --require-hashes --only-binary :all: --python-platform "$platform" \
    --python-version "$minor" --target "$site" -r "$work/requirements.txt"
rm -rf "$work/wheel"
"$python" -m hatchling build --target wheel --directory "$work/wheel" > /dev/null
uv pip install --quiet --no-deps --python-platform "$platform" --python-version "$minor" --target "$site" \
    "$work"/wheel/lamplighter-*.whl
rm -rf "${site:?}/bin" "$site/share" "$site/.lock" "$site/lamplighter/demo" "$site/lamplighter/mapping" "$site/lamplighter/apps"
find "$site" -name __pycache__ -prune -exec rm -rf {} +
find "$site" \( -name direct_url.json -o -name uv_cache.json -o -name INSTALLER -o -name REQUESTED \) -delete
cp "$here/lamplighter" "$lib/bin/lamplighter"
ln -s "/usr/bin/python$minor" "$lib/bin/python"
printf 'home = /usr/bin\ninclude-system-site-packages = false\nversion = %s\n' "$minor" > "$lib/pyvenv.cfg"
ln -s ../lib/lamplighter/bin/lamplighter "$tree/usr/bin/lamplighter"

say "services and settings"
units=$tree/usr/lib/systemd/system
mkdir -p "$units" "$tree/DEBIAN" "$tree/usr/lib/sysusers.d" "$tree/usr/lib/tmpfiles.d"
"$python" -m lamplighter.gateway.service.units systemd "$units" "$here" "$tree/DEBIAN"
cp systemd/sysusers.d/*.conf "$tree/usr/lib/sysusers.d/"
cp systemd/tmpfiles.d/*.conf "$tree/usr/lib/tmpfiles.d/"
mkdir -p "$tree/etc/lamplighter/mapping" "$tree/etc/lamplighter/apps" "$tree/usr/share/doc/lamplighter"
# What is in /etc is the operator's: postinst copies it from here. As conffiles of dpkg, they would stop an upgrade to ask.
mkdir -p "$share/etc/mapping" "$share/etc/apps"
cp systemd/lamplighter.toml "$share/etc/"
cp mapping/*.toml "$share/etc/mapping/"
cp apps/*.jsap "$share/etc/apps/"
cp lamplighter.toml "$share/"
cp -r systemd/journald.conf.d "$share/" # for machines that start from a card; their operator decides
cp LICENSE "$tree/usr/share/doc/lamplighter/copyright"
cp -r docs/*.md docs/monitoring "$tree/usr/share/doc/lamplighter/"

"$python" -c '
import sys
from pathlib import Path
from lamplighter.gateway.__main__ import command_parser
from lamplighter.gateway.cli.command_tree import write_files
write_files(Path(sys.argv[1]), command_parser())
' "$tree/usr"
find "$tree/usr/share/man" -name "*.1" -exec gzip -9n {} +

say "package"
find "$tree" -path "$tree/DEBIAN" -prune -o -type f -print0 | xargs -0 chmod 644
find "$tree" -type d -print0 | xargs -0 chmod 755
chmod 755 "$tree"/DEBIAN/p* "$lib/bin/lamplighter"
size=$(du -k -s --apparent-size "$tree" | cut -f 1)
sed -e "s/@VERSION@/$version+deb$release/" -e "s/@ARCH@/$arch/" -e "s/@PYTHON@/$minor/" -e "s/@SIZE@/$size/" \
    "$here/control.in" > "$tree/DEBIAN/control"
(cd "$tree" && find . -path ./DEBIAN -prune -o -type f -printf '%P\n' | sort | xargs -d '\n' md5sum) > "$work/md5sums"
mv "$work/md5sums" "$tree/DEBIAN/md5sums"
dpkg-deb --build --root-owner-group -Zzstd "-z${LEVEL:-12}" "$tree" "$output" > /dev/null
say "$output, $(du -k "$output" | cut -f 1) KB, installed $size KB"
