#!/bin/bash
# $1: the tree.
set -eu
tree=$1
systemctl --root="$tree" --quiet enable appliance-identity.service appliance-announcement.service
rm -rf "$tree"/usr/lib/lamplighter-appliance/appliance/__pycache__ # of tests that ran where this is built
