#!/bin/sh
# Of an update bundle: the boot slot is the same for both sides, but for the name of the system beside it.
set -eu
if [ "$1" = slot-post-install ] && [ "$RAUC_SLOT_CLASS" = boot ]; then
    cmdline=$RAUC_SLOT_MOUNT_POINT/cmdline.txt
    case $RAUC_SLOT_NAME in
        boot.0) sed -i 's/root=[^ ]*-0[56] rauc\.slot=./root=PARTUUID=4c414d50-05 rauc.slot=A/' "$cmdline" ;;
        boot.1) sed -i 's/root=[^ ]*-0[56] rauc\.slot=./root=PARTUUID=4c414d50-06 rauc.slot=B/' "$cmdline" ;;
    esac
    grep -q 'rauc\.slot=' "$cmdline"
fi
