#!/bin/sh
# Installs the published Zigbee2MQTT, unchanged, under build/zigbee2mqtt. Version and hashes are those of the lock file
# beside this. Does nothing when it is there. A failure is told, and then by the test.
set -eu
here=tests/zigbee2mqtt
folder=build/zigbee2mqtt

mkdir -p "$folder"
if command -v npm >/dev/null 2>&1 && ! cmp -s "$here/package-lock.json" "$folder/installed"; then
  echo "installing Zigbee2MQTT"
  cp "$here/package.json" "$here/package-lock.json" "$folder/"
  if (cd "$folder" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null); then
    cp "$here/package-lock.json" "$folder/installed"
  else
    echo "Zigbee2MQTT could not be installed"
  fi
fi
