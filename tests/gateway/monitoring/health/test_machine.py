"""What a board, a card and the appliance tell, as files below a folder that stands for the machine's root."""

from __future__ import annotations

import os
from pathlib import Path

from lamplighter.gateway.monitoring.health.machine import PROBLEMS, PROBLEMS_MAX, MachineComponents
from tests.support.tables import each_row

THROTTLED = "sys/devices/platform/soc/soc:firmware/get_throttled"
ZONE = "sys/class/thermal/thermal_zone0"
LIFE, SPARE = "disk/mmcblk0/device/life_time", "disk/mmcblk0/device/pre_eol_info"
OK = "ok"


def machine(root: Path, files: dict[str, str]) -> MachineComponents:
    """With the data on the second partition of mmcblk0."""
    data = root / "data"
    data.mkdir()
    partition = root / "disk/mmcblk0/mmcblk0p2"
    partition.mkdir(parents=True)
    (partition / "partition").write_text("2\n")
    number = data.stat().st_dev
    blocks = root / "sys/dev/block"
    blocks.mkdir(parents=True)
    (blocks / f"{os.major(number)}:{os.minor(number)}").symlink_to(partition)
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return MachineComponents(data, root)


@each_row(
    "files, expected",
    [
        ({}, {}),
        ({THROTTLED: "0\n"}, {"power": OK}),
        ({THROTTLED: "50005\n"}, {"power": "too little voltage", "temperature": "slowed down"}),
        ({THROTTLED: "50000\n"}, {"power": "since its last start"}),
        ({THROTTLED: "nonsense"}, {}),
        ({"sys/class/hwmon/hwmon1/name": "rpi_volt\n", "sys/class/hwmon/hwmon1/in0_lcrit_alarm": "0"}, {"power": OK}),
        (
            {"sys/class/hwmon/hwmon1/name": "rpi_volt\n", "sys/class/hwmon/hwmon1/in0_lcrit_alarm": "1"},
            {"power": "has too little voltage"},
        ),
        ({"sys/class/hwmon/hwmon0/name": "other\n", "sys/class/hwmon/hwmon0/in0_lcrit_alarm": "1"}, {}),
        ({f"{ZONE}/temp": "90000\n"}, {"temperature": OK}),
        (
            {f"{ZONE}/temp": "80000", f"{ZONE}/trip_point_0_type": "critical", f"{ZONE}/trip_point_0_temp": "110000"},
            {"temperature": OK},
        ),
        (
            {f"{ZONE}/temp": "81500", f"{ZONE}/trip_point_0_type": "passive", f"{ZONE}/trip_point_0_temp": "80000"},
            {"temperature": "82 °C, and is slowed down from 80 °C on"},
        ),
        (
            {f"{ZONE}/temp": "81500", f"{ZONE}/trip_point_0_type": "active", f"{ZONE}/trip_point_0_temp": "50000"},
            {"temperature": OK},
        ),
        ({LIFE: "0x01 0x02\n", SPARE: "0x01"}, {"card": OK}),
        ({LIFE: "0x01 0x09\n", SPARE: "0x01"}, {"card": "90 % of the life of mmcblk0"}),
        ({LIFE: "0x0B 0x01\n", SPARE: "0x01"}, {"card": "worn out"}),
        ({LIFE: "0x01 0x01\n", SPARE: "0x02"}, {"card": "of the life"}),
        ({LIFE: "0x01 0x01\n", SPARE: "0x03"}, {"card": "worn out"}),
        ({LIFE: "not defined\n"}, {}),
        (
            {f"{PROBLEMS}/mqtt-broker": "it was set aside\nnothing to do\n"},
            {"appliance/mqtt-broker": "it was set aside"},
        ),
        ({f"{PROBLEMS}/empty": ""}, {}),
    ],
)
def test_what_a_machine_tells_is_a_component(tmp_path: Path, files: dict[str, str], expected: dict[str, str]) -> None:
    found = machine(tmp_path, files).components()
    assert [one.name for one in found] == list(expected)
    for one in found:
        if expected[one.name] == OK:
            assert one.state == OK
        else:
            assert expected[one.name] in one.reason
            assert one.cure


def test_a_worn_card_has_failed(tmp_path: Path) -> None:
    [card] = machine(tmp_path, {SPARE: "0x03"}).components()
    assert card.state == "failed"


def test_reports_are_bounded(tmp_path: Path) -> None:
    found = machine(
        tmp_path, {f"{PROBLEMS}/{number}": "x" * 100_000 for number in range(PROBLEMS_MAX + 5)}
    ).components()
    assert len(found) == PROBLEMS_MAX
    assert max(len(one.reason) for one in found) < 1000


def test_data_on_no_disk_have_no_card(tmp_path: Path) -> None:
    assert MachineComponents(tmp_path / "missing", tmp_path).components() == []


def test_this_machine_is_read() -> None:
    for one in MachineComponents(Path("/")).components():
        assert one.well or one.reason


def test_what_a_machine_tells_in_numbers(tmp_path: Path) -> None:
    files = {
        THROTTLED: "0x5",
        "sys/class/thermal/thermal_zone0/temp": "48250",
        LIFE: "0x02 0x03",
        "disk/mmcblk0/stat": "1 2 3 4 5 6 1000 8 9 10 11",
    }
    assert machine(tmp_path, files).figures() == {
        "undervoltage": 1.0,
        "throttled": 1.0,
        "temperature_celsius": 48.25,
        "card_life_used_ratio": 0.3,
        "card_written_bytes": 512_000.0,
    }
    # Zero is "not defined".
    for name, told in {"other": {}, "undefined": {LIFE: "0x00 0x00"}}.items():
        (tmp_path / name).mkdir()
        assert machine(tmp_path / name, told).figures() == {}
