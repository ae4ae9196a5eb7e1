#!/bin/sh
# Fetches what the bill of materials is checked with into build/schema: CycloneDX's own schemas, which come with its
# Python package, and a validator. pip checks the hashes. Does nothing when they are there.
set -eu
python=${1:-.venv/bin/python}
folder=build/schema
cmp -s tests/image/schema.lock "$folder/schema.lock" && exit 0
echo "fetching the schemas of CycloneDX"
rm -rf "$folder"
"$python" -m pip install --disable-pip-version-check --quiet --quiet --no-deps --require-hashes --only-binary :all: \
  --target "$folder" -r tests/image/schema.lock
cp tests/image/schema.lock "$folder/"
