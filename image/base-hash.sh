#!/bin/sh
# Prints the hash of the inputs of a device's base: base/, the device, and the packages of all layers.
# Use: image/base-hash.sh DEVICE
set -eu
export LC_ALL=C  # the order of names
cd "$(dirname "$0")"
cat base/* "config/$1.sh" layer/*/packages | sha256sum | cut -c 1-16
