#!/bin/sh
# For CI: builds and starts the image when its base is made from something else than when `make test-image` was last
# through as a whole, which image/tested says; else says so and does nothing. What is put on top of the base is looked at
# by other tests.
#
#   if-changed.sh        builds and starts it if the base has changed, within the time that CI has
#   if-changed.sh --done notes that what is there was tested
set -eu
cd "$(dirname "$0")/.."

now=$(image/base-hash.sh pi64)
tested=$(cat image/tested 2> /dev/null || echo none)
if [ "${1:-}" = --done ]; then
    echo "$now" > image/tested
    exit 0
fi
if [ "$now" = "$tested" ]; then
    echo "image: not built, since its base $now was tested (image/tested)"
    exit 0
fi
echo "image: its base $now is another one than was tested, $tested"
make image
# What takes longest is left to `make test-image` by hand: each unit stopped in three ways, updates, reset.
make test-image ARGS="-k 'test_built_image or not (recovers or update or bundle or tried_once or reset or second_machine)'"
