#!/bin/bash
# Last, when all packages are there. $1: the tree.
set -eu
: "${here:?}" # build.sh says
python3 "$here/user_ids.py" "$1" "${BASH_SOURCE%/*}/ids"
