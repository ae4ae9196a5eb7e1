# Device: Pi 5, by the kernel of trixie-backports: that of Debian 13 (6.12) has no driver for the RP1 chip with Ethernet,
# USB and GPIO. The kernel has device trees of the Pi 5 (both steppings of its chip), and none of CM5 and Pi 500.
# Sourced by image/build.sh; sizes are MiB.
# shellcheck disable=SC2034 # read by who sources this

ARCHITECTURE=arm64
SUITE=trixie
BACKPORTS="linux-* firmware-brcm80211"
PYTHON_VERSION=3.13
DISK_SIGNATURE=0x4c414d50   # as for every device: initramfs and updates name partitions by it

BOARDS="Pi 5"
IMAGER_DEVICES="pi5-64bit"
DEVICE_TREES="bcm2712-*.dtb"
CONSOLE=ttyAMA10,115200     # the connector between the HDMI sockets
# os_check: the firmware, which is in the board's EEPROM, looks for signs of a vendor's kernel.
FIRMWARE_SETTINGS="os_check=0 upstream_kernel=1"
# The card's controller with its pins and power; RP1 and its interrupts (pcie-brcmstb, which it hangs on, is built in).
INITRAMFS_MODULES="sdhci-brcmstb gpio-brcmstb pinctrl-brcmstb-bcm2712 irq-bcm2712-mip rp1_pci clk-rp1 pinctrl-rp1 macb"

BOOTCONFIG_MIB=64
BOOT_MIB=192
SYSTEM_MIB=640              # the modules alone have 86 MB
