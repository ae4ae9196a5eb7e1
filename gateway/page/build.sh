#!/bin/sh
# Builds the web page: gateway/page/built. Needs npm (Node 18 or newer), else Python with venv and pip: it then gets Node
# from PyPI. Versions and hashes are those of source/package-lock.json and node.lock.
#
#   PYTHON   the Python that makes the environment of Node; python3 by default
set -eu
here=$(cd "$(dirname "$0")" && pwd)
top=$(dirname "$(dirname "$here")")
work=$top/build/page
say() { echo "page: $*" >&2; }
mkdir -p "$work"

# One build at a time: processes that start together share the folder.
exec 9> "$work/lock"
if command -v flock > /dev/null 2>&1; then flock 9; fi

usable() { command -v npm && node -e 'process.exit(Number(process.versions.node.split(".")[0]) < 18 ? 1 : 0)'; }
if ! usable > /dev/null 2>&1; then
    if ! cmp -s "$here/node.lock" "$work/node.installed"; then
        say "installing Node from PyPI"
        rm -rf "$work/node"
        if ! "${PYTHON:-python3}" -m venv "$work/node" ||
            ! "$work/node/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$here/node.lock"; then
            say "neither npm nor Node from PyPI is there; install npm, or connect to the network, and run make page"
            exit 1
        fi
        cp "$here/node.lock" "$work/node.installed"
    fi
    PATH=$work/node/bin:$PATH
fi

if ! cmp -s "$here/source/package-lock.json" "$work/installed"; then
    say "installing the packages of the page"
    cp "$here/source/package.json" "$here/source/package-lock.json" "$work/"
    (cd "$work" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error > /dev/null) || {
        say "its packages could not be installed from the npm registry; connect to the network, and run make page"
        exit 1
    }
    cp "$here/source/package-lock.json" "$work/installed"
fi

rm -rf "$work/new"
node "$here/source/build.mjs" "$work" "$work/new"
rm -rf "$here/built"
mv "$work/new" "$here/built"
