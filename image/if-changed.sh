#!/bin/sh
# For CI: builds and starts the image if the inputs of its base have changed since the last complete `make test-image`.
# image/tested has the hash of the tested base of each device. Other tests cover the layers above the base. Only pi64 is
# built here: that of another device is named, since one image more would take CI another hour.
#
#   if-changed.sh                 builds and tests the image if its base has changed, within CI's time limit
#   if-changed.sh --done [DEVICE] records the current base of a device as tested
set -eu
cd "$(dirname "$0")/.."

tested() { sed -n "s/^$1 //p" image/tested 2> /dev/null; }

if [ "${1:-}" = --done ]; then
    device=${2:-pi64}
    others=$(grep -v "^$device " image/tested 2> /dev/null || true)
    printf '%s\n' "$others" "$device $(image/base-hash.sh "$device")" | sed '/^$/d' | LC_ALL=C sort > image/tested
    exit 0
fi
for config in image/config/*.sh; do
    device=$(basename "$config" .sh)
    now=$(image/base-hash.sh "$device")
    if [ "$now" = "$(tested "$device")" ]; then
        echo "image: $device is not built: its base $now is already tested (image/tested)"
    elif [ "$device" != pi64 ]; then
        echo "image: $device has a base $now that is NOT tested; make image test-image DEVICE=$device"
    else
        echo "image: $device: its base has changed from $(tested "$device") to $now"
        make image
        # The slowest tests run only in a manual `make test-image`: each unit stopped in three ways, updates, reset.
        make test-image ARGS="-k 'test_built_image or not (recovers or update or bundle or tried_once or reset or second_machine)'"
    fi
done
