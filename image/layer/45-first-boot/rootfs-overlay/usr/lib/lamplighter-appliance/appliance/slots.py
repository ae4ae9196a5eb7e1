"""Which system starts next: RAUC's bootloader backend over autoboot.txt, which the boards' firmware reads.

autoboot.txt names one boot partition. A system that was just installed is tried once: autoboot.txt names it, and
autoboot.good says what is to be restored. The initramfs of what starts then restores it before anything else, so a
system that hangs, panics or is switched off is tried no second time; one that is well is made the permanent one by
`health`.

The firmware's own flag for this (`reboot "0 tryboot"`) is set by a driver that Debian's kernel does not have.
Both files have the same length and fit a sector, so autoboot.txt is changed in place, by one write to the card.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from .machine import Machine

BOOT_PARTITIONS = {"A": 2, "B": 3}
HEALTHY_FOR_S = 60
UNHEALTHY_AFTER_S = 900


def autoboot(first: str) -> str:
    """The autoboot.txt that starts a slot. [tryboot] is the other: for people with a kernel that knows it."""
    other = next(name for name in BOOT_PARTITIONS if name != first)
    return (
        f"[all]\ntryboot_a_b=1\nboot_partition={BOOT_PARTITIONS[first]}\n"
        f"[tryboot]\nboot_partition={BOOT_PARTITIONS[other]}\n"
    )


def booted(machine: Machine) -> str:
    """The slot that runs, as cmdline.txt of its boot partition says."""
    found = re.search(r"\brauc\.slot=([AB])\b", machine.path("/proc/cmdline").read_text())
    if found is None:
        raise OSError("the kernel's command line has no rauc.slot=: cmdline.txt on the boot partition was changed")
    return found[1]


def primary(machine: Machine) -> str:
    """The slot that the next start takes."""
    found = re.search(r"boot_partition=(\d+)", (machine.firmware / "autoboot.txt").read_text())
    for name, partition in BOOT_PARTITIONS.items():
        if found is not None and int(found[1]) == partition:
            return name
    raise OSError("autoboot.txt on the firmware partition names no boot partition of ours")


def on_trial(machine: Machine) -> bool:
    """Whether the running system is tried for the first time."""
    return machine.path("/run/appliance/trial").exists()


def set_primary(machine: Machine, name: str) -> None:
    """The other slot: is tried once, at the next start. The running one: is what starts from now on."""
    good = machine.firmware / "autoboot.good"
    running = booted(machine)
    with machine.firmware_writable():
        if name == running:
            _overwrite(machine.firmware / "autoboot.txt", autoboot(name))
            good.unlink(missing_ok=True)
            machine.path("/run/appliance/trial").unlink(missing_ok=True)
        else:
            machine.write(good, autoboot(running))
            _overwrite(machine.firmware / "autoboot.txt", autoboot(name))


def backend(machine: Machine, arguments: list[str]) -> int:
    """What RAUC asks of its bootloader backend; `man rauc`, custom."""
    match arguments:
        case ["get-primary"]:
            print(primary(machine))
        case ["set-primary", name]:
            set_primary(machine, name)
        case ["get-state", name]:
            print("bad" if (machine.state / f"bad-{name}").exists() else "good")
        case ["set-state", name, "good"]:
            (machine.state / f"bad-{name}").unlink(missing_ok=True)
            if name == booted(machine) and on_trial(machine):  # else an update may wait for the next start
                set_primary(machine, name)
        case ["set-state", name, "bad"]:
            # RAUC is about to overwrite it: from here on it is not what starts.
            if primary(machine) == name != booted(machine):
                if on_trial(machine):  # the running one may be no good, and this is all there is to go back to
                    print("the running system is on trial, and the other one is its rollback target", file=sys.stderr)
                    return 1  # RAUC ends before it writes anything
                set_primary(machine, booted(machine))
            machine.write(machine.state / f"bad-{name}", "")
        case ["get-current"]:
            print(booted(machine))
        case _:
            return 1
    return 0


def health(
    machine: Machine,
    well: Callable[[], bool],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Waits until a system on trial has been well for a while, and keeps it; else the one before is started.

    Returns 0 when it is kept, 1 when the machine is to be started again.
    """
    if not on_trial(machine):
        return 0
    begin, since = clock(), None
    while clock() - begin < UNHEALTHY_AFTER_S:
        if well():
            since = clock() if since is None else since
            if clock() - since >= HEALTHY_FOR_S:
                backend(machine, ["set-state", booted(machine), "good"])
                machine.say(f"the new system (slot {booted(machine)}) passed its health check and stays")
                return 0
        else:
            since = None
        sleep(5)
    machine.say(f"the new system (slot {booted(machine)}) failed its health check: rolling back to the previous system")
    return 1


def is_well() -> bool:
    """Nothing of the system has failed, and the gateway answers. Somebody's login that ended badly says nothing."""
    failed = subprocess.run(
        ["systemctl", "list-units", "--failed", "--quiet", "--plain", "--type=service,socket,mount,timer"],
        capture_output=True,
        text=True,
        check=False,
    )
    gateway = subprocess.run(["systemctl", "is-active", "--quiet", "lamplighter-gateway.service"], check=False)
    status = subprocess.run(["lamplighter", "status"], capture_output=True, check=False)
    return not failed.stdout.strip() and gateway.returncode == 0 and status.returncode == 0


def _overwrite(file: Path, text: str) -> None:
    with file.open("r+b") as opened:
        opened.write(text.encode())
        opened.truncate()
        opened.flush()
        os.fsync(opened.fileno())
