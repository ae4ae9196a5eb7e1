#!/bin/sh
# Fetches pySHACL's source distribution into build/shacl: the W3C data-shapes test suite is in it. Version and hash are
# those of requirements-test.lock, and pip checks the hash. Does nothing when it is there. A failure is told, and then by
# the tests.
set -eu
python=${1:-.venv/bin/python}
folder=build/shacl
version=$(sed -n 's/^pyshacl==\([^ ]*\).*/\1/p' requirements-test.lock)
[ -f "$folder/pyshacl-$version.tar.gz" ] && exit 0
echo "fetching the W3C data-shapes test suite"
mkdir -p "$folder"
awk '/^pyshacl==/ { found = 1 } found { print } found && !/\\$/ { exit }' requirements-test.lock >"$folder/pyshacl.lock"
pip() {
  "$python" -m pip --disable-pip-version-check "$@" --quiet --no-deps --require-hashes
}
# pip asks the tool that builds pySHACL for its metadata; that tool has no place in the environment of the project.
if pip install --upgrade --target "$folder/backend" --only-binary :all: -r tests/w3c/build-backend.lock &&
  PYTHONPATH="$PWD/$folder/backend" pip download --no-binary :all: --no-build-isolation --dest "$folder/part" \
    -r "$folder/pyshacl.lock"; then
  mv "$folder/part/pyshacl-$version.tar.gz" "$folder/"
else
  echo "the W3C data-shapes test suite could not be fetched"
fi
rm -rf "$folder/part" "$folder/backend" "$folder/pyshacl.lock"
