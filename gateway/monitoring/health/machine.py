"""The components of the machine that the gateway runs on: its power, its temperature, its card, and what the appliance
reports.

Read from sysfs, where a board or disk tells it; what a machine does not tell is no component. The appliance's own
services report in files (`PROBLEMS`), of two lines: reason and cure.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from lamplighter.gateway.monitoring.health.components import Component, not_ok

POWER, TEMPERATURE, CARD = "power", "temperature", "card"
# Folder of the appliance's reports; the name of a file is that of its component.
PROBLEMS = "run/appliance/problems"
PROBLEMS_MAX = 20
REPORT_BYTES_MAX = 2000

_THROTTLED = "sys/devices/platform/soc/soc:firmware/get_throttled"
_UNDERVOLTAGE, _THROTTLED_NOW, _UNDERVOLTAGE_BEFORE = 0x1, 0x4, 0x10000
# eMMC life in steps of 10 % that begin at 1 (JEDEC JESD84-B51, 7.4.110): 9 is 80 to 90 % used, 11 exceeded.
_WORN_STEPS, _LIFE_OVER = 9, 11
# Of PRE_EOL_INFO (the same, 7.4.109): 90 % of the reserved blocks are used; 2 is 80 %.
_URGENT = 3


@dataclass(frozen=True)
class MachineComponents:
    """Reads what the machine tells of itself.

    data: the folder whose disk counts. root: of the file system, for tests.
    """

    data: Path
    root: Path = Path("/")

    def components(self) -> list[Component]:
        found = (self._power(), self._temperature(), self._card(), *self._reports())
        return [one for one in found if one is not None]

    def figures(self) -> dict[str, float]:
        """What the machine tells in numbers, by name of the metric (`gateway.monitoring.metrics`)."""
        bits = _number(self.root / _THROTTLED, 16)
        found: dict[str, float | None] = {
            "undervoltage": None if bits is None else bool(bits & _UNDERVOLTAGE),
            "throttled": None if bits is None else bool(bits & _THROTTLED_NOW),
        }
        temperature = _number(self.root / "sys/class/thermal/thermal_zone0/temp")
        found["temperature_celsius"] = None if temperature is None else temperature / 1000
        disk = self._disk()
        if disk is not None:
            life = self._life(disk)
            found["card_life_used_ratio"] = min(max(life), 10) / 10 if any(life) else None
            fields = _text(disk / "stat").split()  # the seventh: sectors of 512 bytes that were written
            found["card_written_bytes"] = int(fields[6]) * 512 if len(fields) > 6 else None
        return {name: float(value) for name, value in found.items() if value is not None}

    def _power(self) -> Component | None:
        """By the firmware of a Raspberry Pi, or by the kernel's driver for it (hwmon rpi_volt)."""
        cure = "use the board's own power supply and a short cable; a voltage that sinks damages cards"
        bits = _number(self.root / _THROTTLED, 16)
        alarm = next(
            (
                _number(folder / "in0_lcrit_alarm")
                for folder in self.root.glob("sys/class/hwmon/hwmon*")
                if _text(folder / "name") == "rpi_volt"
            ),
            None,
        )
        if bits is None and alarm is None:
            return None
        if alarm or (bits or 0) & _UNDERVOLTAGE:
            return not_ok(POWER, "degraded", "the board has too little voltage", cure)
        if (bits or 0) & _UNDERVOLTAGE_BEFORE:
            return not_ok(POWER, "degraded", "the board had too little voltage since its last start", cure)
        return Component(name=POWER)

    def _temperature(self) -> Component | None:
        """Degraded at the lowest temperature at which the kernel slows the processor, or once the firmware does."""
        cure = "give the board air or a heat sink"
        if (_number(self.root / _THROTTLED, 16) or 0) & _THROTTLED_NOW:
            return not_ok(TEMPERATURE, "degraded", "the board is slowed down", cure)
        zone = self.root / "sys/class/thermal/thermal_zone0"
        now = _number(zone / "temp")
        if now is None:
            return None
        trips = [
            limit
            for kind in zone.glob("trip_point_*_type")
            if _text(kind) in ("passive", "hot", "critical")
            and (limit := _number(kind.with_name(kind.name.replace("_type", "_temp")))) is not None
            and limit > 0
        ]
        if trips and now >= min(trips):
            reason = f"the processor has {now / 1000:.0f} °C, and is slowed down from {min(trips) / 1000:.0f} °C on"
            return not_ok(TEMPERATURE, "degraded", reason, cure)
        return Component(name=TEMPERATURE)

    def _card(self) -> Component | None:
        """By the registers of an eMMC; cards of SD have none."""
        disk = self._disk()
        if disk is None:
            return None
        life = self._life(disk)
        spare = _number(disk / "device/pre_eol_info", 16) or 0
        if not life and not spare:
            return None
        cure = "back up (`lamplighter backup`), and replace the card"
        used = f"{min(max(life, default=0), 10) * 10} % of the life of {disk.name} are used"
        if spare >= _URGENT or max(life, default=0) >= _LIFE_OVER:
            return not_ok(CARD, "failed", f"{disk.name} is worn out: {used}", cure)
        if spare == _URGENT - 1 or max(life, default=0) >= _WORN_STEPS:
            return not_ok(CARD, "degraded", used, cure)
        return Component(name=CARD)

    def _life(self, disk: Path) -> list[int]:
        """The used life of both kinds of memory of an eMMC, in steps of 10 %."""
        return [int(step, 16) for step in _text(disk / "device/life_time").split()[:2] if step.startswith("0x")]

    def _disk(self) -> Path | None:
        """The folder in sysfs of the whole disk with the data; None where they are on no block device."""
        try:
            number = self.data.stat().st_dev
            place = (self.root / f"sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve(strict=True)
        except OSError:
            return None
        return place.parent if (place / "partition").exists() else place

    def _reports(self) -> list[Component]:
        found = []
        for file in sorted(self.root.glob(f"{PROBLEMS}/*"))[:PROBLEMS_MAX]:
            reason, _, cure = _text(file).partition("\n")
            if reason:
                found.append(not_ok(f"appliance/{file.name}", "degraded", reason, cure))
        return found


def _text(file: Path) -> str:
    """The text of a small file; empty where there is none or it cannot be read, as files of sysfs may at any time."""
    try:
        with file.open("rb") as opened:
            return opened.read(REPORT_BYTES_MAX).decode(errors="replace").strip()
    except OSError:
        return ""


def _number(file: Path, base: int = 10) -> int | None:
    try:
        return int(_text(file), base)
    except ValueError:
        return None
