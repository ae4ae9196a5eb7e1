#!/bin/sh
# For CI: builds and starts the image if the inputs of its base have changed since the last complete `make test-image`.
# image/tested has the hash of the tested base. Other tests cover the layers above the base.
#
#   if-changed.sh        builds and tests the image if its base has changed, within CI's time limit
#   if-changed.sh --done records the current base as tested
set -eu
cd "$(dirname "$0")/.."

now=$(image/base-hash.sh pi64)
tested=$(cat image/tested 2> /dev/null || echo none)
if [ "${1:-}" = --done ]; then
    echo "$now" > image/tested
    exit 0
fi
if [ "$now" = "$tested" ]; then
    echo "image: not built: its base $now is already tested (image/tested)"
    exit 0
fi
echo "image: its base has changed from $tested to $now"
make image
# The slowest tests run only in a manual `make test-image`: each unit stopped in three ways, updates, reset.
make test-image ARGS="-k 'test_built_image or not (recovers or update or bundle or tried_once or reset or second_machine)'"
