# Device: the 64-bit boards that Debian 13's own kernel drives: Pi 3, Zero 2 W, 4, 400, CM4.
# Not the Pi 5: kernel 6.12 of Debian 13 has no driver for its RP1 chip, which carries Ethernet, USB and GPIO.
# Sourced by image/build.sh; sizes are MiB.
# shellcheck disable=SC2034 # read by who sources this

ARCHITECTURE=arm64
SUITE=trixie
PYTHON_VERSION=3.13
DISK_SIGNATURE=0x4c414d50   # "LAMP"; partitions are named by it in cmdline.txt: PARTUUID=4c414d50-05

BOOTCONFIG_MIB=64
BOOT_MIB=160
SYSTEM_MIB=512
