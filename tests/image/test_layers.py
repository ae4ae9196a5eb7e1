"""What can be known of the image without building it: scripts, configuration, and that its parts agree."""

from __future__ import annotations

import configparser
import re
import subprocess
import tomllib
from pathlib import Path

import msgspec
import pytest
from appliance.identity import BROKER_USERS
from appliance.machine import Machine
from appliance.slots import BOOT_PARTITIONS, HEALTHY_FOR_S, UNHEALTHY_AFTER_S, autoboot, backend, health, on_trial

from gateway.settings import Settings
from tests.components import require_command
from tests.image.conftest import TOP
from tests.image.virtual_machine import autoboot as firmware_reads

IMAGE = TOP / "image"
SCRIPTS = sorted(
    path
    for path in IMAGE.rglob("*")
    if path.is_file() and "deb" not in path.relative_to(IMAGE).parts and path.read_bytes().startswith(b"#!/bin/")
)
LAYERS = sorted(IMAGE.glob("layer/*"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(IMAGE)))
def test_scripts_have_no_findings(script: Path) -> None:
    shellcheck = require_command("shellcheck")
    done = subprocess.run([shellcheck, "-x", "-e", "SC1091", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_layer_says_something() -> None:
    assert len(LAYERS) >= 5
    for layer in LAYERS:
        assert {path.name for path in layer.iterdir()} & {"packages", "customize.sh", "rootfs-overlay"}, layer


def test_own_settings_are_settings_of_the_gateway() -> None:
    document = tomllib.loads((IMAGE / "layer/50-application/settings.toml").read_text())
    settings = msgspec.convert(document, Settings)
    assert settings.mqtt.host == "127.0.0.1"
    assert settings.mqtt.username in BROKER_USERS


def test_broker_asks_everybody_for_a_password() -> None:
    lines = (IMAGE / "layer/40-broker/rootfs-overlay/etc/mosquitto/mosquitto.conf").read_text().splitlines()
    assert "allow_anonymous false" in lines
    assert "password_file /etc/mosquitto/passwords" in lines
    assert not [line for line in lines if line.startswith("allow_anonymous true")]


def test_partitions_are_named_alike_everywhere() -> None:
    device = (IMAGE / "config/pi64.sh").read_text()
    signature = re.search(r"DISK_SIGNATURE=0x([0-9a-f]{8})", device)
    assert signature is not None
    named = re.compile(r"\b([0-9a-f]{8})-0([1-7])\b")
    found = {
        match.groups()
        for path in IMAGE.rglob("*")
        if path.is_file()
        for match in named.finditer(path.read_text(errors="ignore"))
    }
    assert {name for name, _ in found} == {signature[1]}
    slots = configparser.ConfigParser()
    slots.read(IMAGE / "layer/60-update/rootfs-overlay/etc/rauc/system.conf")
    devices = {section: slots[section]["device"][-2:] for section in slots.sections() if section.startswith("slot.")}
    assert devices == {
        "slot.system.0": "05",
        "slot.boot.0": f"0{BOOT_PARTITIONS['A']}",
        "slot.system.1": "06",
        "slot.boot.1": f"0{BOOT_PARTITIONS['B']}",
    }


# --- which system starts next ---------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine that runs slot A."""
    for folder in ("boot/config", "proc", "run/appliance", "dev", "data"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "dev/console").touch()
    (tmp_path / "proc/cmdline").write_text("root=PARTUUID=4c414d50-05 rauc.slot=A quiet\n")
    (tmp_path / "boot/config/autoboot.txt").write_text((IMAGE / "bootconfig/autoboot.txt").read_text())
    return Machine(tmp_path)


def starts(machine: Machine) -> dict[str, int]:
    return firmware_reads((machine.firmware / "autoboot.txt").read_text())


def initramfs(machine: Machine) -> None:
    """What scripts/local-premount/appliance does with the two files."""
    good = machine.firmware / "autoboot.good"
    if good.exists() and good.read_bytes():
        (machine.firmware / "autoboot.txt").write_bytes(good.read_bytes())
        good.unlink()
        machine.path("/run/appliance/trial").touch()


def test_image_begins_with_the_first_slot() -> None:
    assert (IMAGE / "bootconfig/autoboot.txt").read_text() == autoboot("A")
    assert firmware_reads(autoboot("A")) == {"all": 2, "tryboot": 3}


def test_the_file_that_the_firmware_reads_keeps_its_length() -> None:
    assert len(autoboot("A")) == len(autoboot("B")) <= 512


def test_installed_system_is_tried_once(machine: Machine) -> None:
    assert backend(machine, ["set-primary", "B"]) == 0
    assert starts(machine)["all"] == 3
    initramfs(machine)
    assert starts(machine)["all"] == 2  # whatever happens now, the next start is the one before
    assert on_trial(machine)


def test_system_that_is_well_for_a_while_stays(machine: Machine) -> None:
    backend(machine, ["set-primary", "B"])
    initramfs(machine)
    machine.path("/proc/cmdline").write_text("rauc.slot=B\n")
    now = [0.0]
    answers = iter([False, False, True, False] + [True] * 1000)
    assert health(machine, lambda: next(answers), lambda: now[0], lambda s: now.__setitem__(0, now[0] + s)) == 0
    assert now[0] >= HEALTHY_FOR_S + 20
    assert starts(machine)["all"] == 3
    assert not on_trial(machine)


def test_system_that_is_not_well_goes(machine: Machine) -> None:
    backend(machine, ["set-primary", "B"])
    initramfs(machine)
    machine.path("/proc/cmdline").write_text("rauc.slot=B\n")
    now = [0.0]
    wavers = iter([True, False] * 10_000)
    assert health(machine, lambda: next(wavers), lambda: now[0], lambda s: now.__setitem__(0, now[0] + s)) == 1
    assert now[0] >= UNHEALTHY_AFTER_S
    assert starts(machine)["all"] == 2


def test_system_that_was_there_before_is_not_judged(machine: Machine) -> None:
    assert health(machine, lambda: False, lambda: 0.0, lambda s: None) == 0


def test_what_rauc_asks(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    for question, answer in ((["get-primary"], "A"), (["get-current"], "A"), (["get-state", "B"], "good")):
        assert backend(machine, question) == 0
        assert capsys.readouterr().out.strip() == answer
    assert backend(machine, ["set-state", "B", "bad"]) == 0
    assert backend(machine, ["get-state", "B"]) == 0
    assert capsys.readouterr().out.strip() == "bad"
    assert backend(machine, ["something"]) == 1


def test_no_secret_is_in_the_source() -> None:
    for path in IMAGE.rglob("*"):
        if path.is_file():
            text = path.read_text(errors="ignore")
            assert "PRIVATE KEY-----\nMII" not in text, path
            assert not re.search(r"^\s*(password|psk)\s*=\s*(?!.*password)\S+", text, re.MULTILINE), path
