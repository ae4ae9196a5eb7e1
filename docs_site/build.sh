#!/bin/sh
# Builds the site of the documents: gateway/page/built-docs. Needs Python with venv and pip; the first time, it gets Sphinx
# from PyPI. Versions and hashes are those of requirements-docs.lock.
#
#   PYTHON   the Python that makes the environment; python3 by default
#
# Ends with 3 where Sphinx cannot be installed, and with another code if the documents have an error.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
top=$(dirname "$here")
work=$top/build/docs
say() { echo "docs: $*" >&2; }
mkdir -p "$work"

# One build at a time: processes that start together share the folder.
exec 9> "$work/lock"
if command -v flock > /dev/null 2>&1; then flock 9; fi

if ! cmp -s "$top/requirements-docs.lock" "$work/installed"; then
    say "installing Sphinx into build/docs/env"
    rm -rf "$work/env"
    # Not compiled: a build imports a small part.
    if ! "${PYTHON:-python3}" -m venv "$work/env" ||
        ! "$work/env/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check --require-hashes \
            -r "$top/requirements-docs.lock"; then
        say "Sphinx could not be installed from PyPI; connect to the network, and run make docs"
        exit 3
    fi
    cp "$top/requirements-docs.lock" "$work/installed"
fi

rm -rf "$work/new"
"$work/env/bin/python" "$here/build.py" "$top" "$work" "$work/new"
rm -rf "$top/gateway/page/built-docs"
mv "$work/new" "$top/gateway/page/built-docs"
