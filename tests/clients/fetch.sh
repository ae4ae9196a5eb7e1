#!/bin/sh
# Installs the published SEPA clients, unchanged, under build/clients: @arces-wot/sepa-js for Node, and sepy with an
# environment of its own. Versions and hashes are those of the lock files beside this. Does nothing when they are there.
# A failure is told, and then by the tests.
set -eu
here=tests/clients
folder=build/clients
python=${1:-.venv/bin/python}

sh tests/fetch-npm.sh "$here/js" "$folder/js" "the JavaScript client"

if ! cmp -s "$here/sepy.lock" "$folder/sepy/installed"; then
  echo "installing the Python client"
  rm -rf "$folder/sepy"
  if "$python" -m venv "$folder/sepy" &&
    "$folder/sepy/bin/python" -m pip --disable-pip-version-check install --quiet --require-hashes -r "$here/sepy.lock"; then
    cp "$here/sepy.lock" "$folder/sepy/installed"
  else
    echo "the Python client could not be installed"
  fi
fi
