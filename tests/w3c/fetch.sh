#!/bin/sh
# Fetches rdflib's source distribution into build/w3c: the W3C SPARQL test suite is in it. Version and hash are those of
# requirements-test.lock, and pip checks the hash. Does nothing when it is there. A failure is told, and then by the tests.
set -eu
python=${1:-.venv/bin/python}
folder=build/w3c
version=$(sed -n 's/^rdflib==\([^ ]*\).*/\1/p' requirements-test.lock)
[ -f "$folder/rdflib-$version.tar.gz" ] && exit 0
echo "fetching the W3C test suite"
mkdir -p "$folder"
awk '/^rdflib==/ { found = 1 } found { print } found && !/\\$/ { exit }' requirements-test.lock >"$folder/rdflib.lock"
pip() {
  "$python" -m pip --disable-pip-version-check "$@" --quiet --no-deps --require-hashes
}
# pip asks the tool that builds rdflib for its metadata; that tool has no place in the environment of the project.
if pip install --upgrade --target "$folder/backend" --only-binary :all: -r tests/w3c/build-backend.lock &&
  PYTHONPATH="$PWD/$folder/backend" pip download --no-binary :all: --no-build-isolation --dest "$folder/part" \
    -r "$folder/rdflib.lock"; then
  mv "$folder/part/rdflib-$version.tar.gz" "$folder/"
else
  echo "the W3C test suite could not be fetched"
fi
rm -rf "$folder/part" "$folder/backend" "$folder/rdflib.lock"
