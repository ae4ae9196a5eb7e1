#!/bin/bash
# Last, when all packages are there. $1: the tree.
set -eu
: "${here:?}" # build.sh says
python3 "$here/user_ids.py" "$1" "${BASH_SOURCE%/*}/ids"

# What /etc has once an owner has added a user lacks the users of later versions: the appliance adds these.
accounts=$1/usr/lib/lamplighter-appliance/accounts
mkdir -p "$accounts"
for file in passwd group shadow gshadow; do
    if [ -e "$1/etc/$file" ]; then
        cp --preserve=mode,ownership "$1/etc/$file" "$accounts/"
    fi
done
