#!/bin/sh
# fetch-npm.sh SOURCE TARGET NAME: installs the packages of SOURCE/package-lock.json, with its versions and hashes, under
# TARGET. Does nothing when they are there. A failure is told, and then by the tests.
set -eu
mkdir -p "$2"
if command -v npm >/dev/null 2>&1 && ! cmp -s "$1/package-lock.json" "$2/installed"; then
  echo "installing $3"
  cp "$1/package.json" "$1/package-lock.json" "$2/"
  if (cd "$2" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null); then
    cp "$1/package-lock.json" "$2/installed"
  else
    echo "$3 could not be installed"
  fi
fi
