# Device: the 64-bit boards that Debian 13's own kernel drives: Pi 3, Zero 2 W, 4, 400, CM4. The Pi 5 has its own (pi5.sh).
# Sourced by image/build.sh; sizes are MiB.
# shellcheck disable=SC2034 # read by who sources this

ARCHITECTURE=arm64
SUITE=trixie
BACKPORTS=                  # packages, with *, that come from SUITE-backports
PYTHON_VERSION=3.13
DISK_SIGNATURE=0x4c414d50   # "LAMP"; partitions are named by it in cmdline.txt: PARTUUID=4c414d50-05

BOARDS="Pi 3, Zero 2 W, 4, 400 and CM4"
IMAGER_DEVICES="pi3-64bit pi4-64bit"        # what Imager calls them: Zero 2 W goes with the 3, and 400 and CM4 with the 4
DEVICE_TREES="bcm2711-*.dtb bcm2837-*.dtb"  # Pi 4: 2711; Pi 3 and Zero 2 W: 2837
CONSOLE=ttyS1,115200
FIRMWARE_SETTINGS="enable_uart=1 upstream_kernel=1" # lines of config.txt
INITRAMFS_MODULES=                                  # besides those of every device

BOOTCONFIG_MIB=64
BOOT_MIB=160
SYSTEM_MIB=512
