"""What can be known of the image without building it: scripts, configuration, and that its parts agree."""

from __future__ import annotations

import configparser
import hashlib
import os
import re
import shutil
import subprocess
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
import user_ids
from appliance.identity import BROKER_USERS
from appliance.imager import FILE
from appliance.machine import Machine
from appliance.slots import BOOT_PARTITIONS, HEALTHY_FOR_S, UNHEALTHY_AFTER_S, autoboot, backend, health, on_trial
from manifest import manifest

from lamplighter.gateway.settings import Settings
from tests.image.virtual_machine import autoboot as firmware_reads
from tests.support.components import require_command
from tests.support.places import ROOT
from tests.support.tables import each_row

IMAGE = ROOT / "image"
SCRIPTS = sorted(
    path
    for path in IMAGE.rglob("*")
    if path.is_file() and "deb" not in path.relative_to(IMAGE).parts and path.read_bytes().startswith(b"#!/bin/")
)
LAYERS = sorted(IMAGE.glob("layer/*"))


@each_row("script", SCRIPTS, ids=lambda path: str(path.relative_to(IMAGE)))
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


BROKER_DATABASE = IMAGE / "layer/40-broker/rootfs-overlay/usr/lib/lamplighter-appliance/broker-database"


@pytest.fixture
def broker_database(tmp_path: Path) -> Path:
    """A database that mosquitto itself has written."""
    folder = tmp_path / "mosquitto"
    folder.mkdir()
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout
    lines = ("persistence true", f"persistence_location {folder}/", f"listener 0 {folder}/socket", f"user {user}")
    (tmp_path / "conf").write_text("\n".join(lines))
    # SIGTERM makes it write; it ends with 124 then, as timeout says.
    subprocess.run(["timeout", "1", require_command("mosquitto"), "-c", str(tmp_path / "conf")], check=False)
    assert (folder / "mosquitto.db").stat().st_size > 0
    return folder / "mosquitto.db"


def after_the_broker_ended(database: Path, result: str = "exit-code") -> dict[str, str]:
    """What the appliance reports then, by component."""
    reports = database.parent.parent / "reports"
    environment = os.environ | {"SERVICE_RESULT": result}
    subprocess.run([str(BROKER_DATABASE), str(database.parent), str(reports)], env=environment, check=True)
    return {path.name: path.read_text() for path in reports.glob("*")}


def aside(database: Path) -> list[Path]:
    return sorted(database.parent.glob("mosquitto.db.unreadable-*"))


def test_database_that_the_broker_cannot_read_is_set_aside(broker_database: Path) -> None:
    broker_database.write_bytes(bytes(200))  # as after a power cut
    [reason, cure] = after_the_broker_ended(broker_database)["mqtt-broker"].splitlines()
    assert not broker_database.exists()
    [kept] = aside(broker_database)
    assert kept.read_bytes() == bytes(200)
    assert str(kept) in reason and cure


@pytest.mark.parametrize("result", ["exit-code", "success", "signal", ""])
def test_database_that_the_broker_can_read_stays(broker_database: Path, result: str) -> None:
    before = broker_database.read_bytes()
    assert after_the_broker_ended(broker_database, result) == {}
    assert broker_database.read_bytes() == before


def test_database_stays_where_the_broker_was_ended(broker_database: Path) -> None:
    broker_database.write_bytes(bytes(200))
    assert after_the_broker_ended(broker_database, "signal") == {}
    assert broker_database.exists()


def test_broker_without_a_database_starts_with_none(broker_database: Path) -> None:
    broker_database.unlink()
    assert after_the_broker_ended(broker_database) == {}


def test_few_unreadable_databases_are_kept(broker_database: Path) -> None:
    for year in (2001, 2002, 2003):
        broker_database.with_name(f"mosquitto.db.unreadable-{year}0101T000000Z").touch()
    broker_database.write_bytes(bytes(200))
    after_the_broker_ended(broker_database)
    assert len(aside(broker_database)) == 2
    assert aside(broker_database)[1].read_bytes() == bytes(200)


DEVICES = sorted(file.stem for file in (IMAGE / "config").glob("*.sh"))


def settings_of(device: str) -> dict[str, str]:
    """The settings of a device, as the build has them."""
    text = f"set -a; . {IMAGE}/config/{device}.sh; env -0"
    said = subprocess.run(["env", "-i", "/bin/bash", "-c", text], capture_output=True, text=True, check=True).stdout
    return dict(line.split("=", 1) for line in said.split("\0") if "=" in line)


def test_each_device_says_the_same_things() -> None:
    names = {device: set(settings_of(device)) for device in DEVICES}
    assert DEVICES == ["pi5", "pi64"] and names["pi5"] == names["pi64"]
    for device in DEVICES:
        said = settings_of(device)
        assert all(name.endswith("-64bit") for name in said["IMAGER_DEVICES"].split())
        assert int(said["SYSTEM_MIB"]) >= 512 and said["CONSOLE"].endswith(",115200")


def test_boot_files_are_those_of_the_device_and_its_kernel(tmp_path: Path) -> None:
    """Both ways in which Debian has laid out a kernel."""
    for device, kernel, at, trees in (
        ("pi64", "6.12", "boot/vmlinuz-6.12", "usr/lib/linux-image-6.12"),
        ("pi5", "7.3", "usr/lib/modules/7.3/vmlinuz", "usr/lib/modules/7.3/dtb"),
    ):
        tree = tmp_path / device
        files = [at, f"boot/initrd.img-{kernel}", f"usr/lib/modules/{kernel}/modules.dep", f"{trees}/amd/x.dtb"]
        files += [f"{trees}/broadcom/{name}.dtb" for name in ("bcm2711-rpi-4-b", "bcm2837-rpi-3-b")]
        files += [f"{trees}/broadcom/{name}.dtb" for name in ("bcm2712-rpi-5-b", "bcm2712-d-rpi-5-b", "bcm2835-rpi-b")]
        files += [f"usr/lib/raspi-firmware/{name}" for name in ("bootcode.bin", "fixup4.dat", "start4.elf")]
        programs = ("blkdiscard", "blkid", "blockdev", "e2fsck", "mke2fs", "resize2fs", "sfdisk", "tune2fs")
        files += [*(f"usr/sbin/{name}" for name in programs), "usr/bin/partx"]
        for name in files:
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_text(f"{name}\n")
        script = str(IMAGE / "layer/20-storage/customize.sh")
        subprocess.run(["bash", script, str(tree)], check=True, env={**os.environ, **settings_of(device)})
        boot = tree / "boot/firmware"
        found = {file.name for file in boot.glob("*.dtb")}
        expected = {"bcm2711-rpi-4-b.dtb", "bcm2837-rpi-3-b.dtb"}
        if device == "pi5":
            expected = {"bcm2712-rpi-5-b.dtb", "bcm2712-d-rpi-5-b.dtb", "bcm2712d0-rpi-5-b.dtb"}
        assert found == expected
        assert (boot / "vmlinuz").read_text() == f"{at}\n"
        lines = (boot / "config.txt").read_text().splitlines()
        assert ("os_check=0" in lines) == (device == "pi5") and "kernel=vmlinuz" in lines
        assert f"console={settings_of(device)['CONSOLE']} " in (boot / "cmdline.txt").read_text()
        assert not [*tree.rglob("*/dtb")] and not [*(tree / "boot").glob("vmlinuz*")]


def test_partitions_are_named_alike_everywhere() -> None:
    assert len({settings_of(device)["DISK_SIGNATURE"] for device in DEVICES}) == 1
    signature = re.search(r"0x([0-9a-f]{8})", settings_of("pi64")["DISK_SIGNATURE"])
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


# --- the same owners in every image ---------------------------------------------------------------------

IDS = "user lamplighter 988\nuser mosquitto 100\ngroup lamplighter 988\ngroup mosquitto 103\n"


def packages_took(tree: Path, lamplighter: int, mosquitto: int) -> None:
    (tree / "etc").mkdir(exist_ok=True)
    users = f"root:x:0:0::/root:/bin/sh\nlamplighter:x:{lamplighter}:{lamplighter}:::\nmosquitto:x:{mosquitto}:103:::\n"
    (tree / "etc/passwd").write_text(users)
    (tree / "etc/group").write_text(f"root:x:0:\nlamplighter:x:{lamplighter}:\nmosquitto:x:103:\n")


def test_users_get_the_same_numbers_whatever_packages_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages_took(tmp_path, lamplighter=100, mosquitto=988)  # the other way round: one takes what the other leaves
    owned = {"keys": (100, 100), "queue": (988, 103), "passwd": (0, 0)}
    for name in owned:
        (tmp_path / name).touch()
    lstat = Path.lstat

    def owned_by(path: Path) -> os.stat_result:
        fields = list(lstat(path))
        fields[4:6] = owned.get(path.name, (0, 0))
        return os.stat_result(fields)

    monkeypatch.setattr(Path, "lstat", owned_by)  # who is not root can give nothing away
    given: dict[str, tuple[int, int]] = {}
    monkeypatch.setattr(os, "chown", lambda path, user, group, **_: given.update({path.name: (user, group)}))
    user_ids.renumber(tmp_path, user_ids.table(IDS))
    assert user_ids.present(tmp_path) == user_ids.table(IDS)
    assert given == {"keys": (988, 988), "queue": (100, 103)}
    assert "lamplighter:x:988:988:" in (tmp_path / "etc/passwd").read_text()


def test_user_without_a_number_ends_the_build(tmp_path: Path) -> None:
    packages_took(tmp_path, lamplighter=988, mosquitto=100)
    with (tmp_path / "etc/passwd").open("a") as file:
        file.write("newcomer:x:102:103:::\n")
    with pytest.raises(ValueError, match="newcomer"):
        user_ids.renumber(tmp_path, user_ids.table(IDS))


def test_no_two_users_have_one_number() -> None:
    ids = user_ids.table((IMAGE / "layer/90-user-ids/ids").read_text())
    assert {"lamplighter", "mosquitto"} <= set(ids.users) & set(ids.groups)
    with pytest.raises(AssertionError, match="one number"):
        user_ids.table(IDS + "user somebody 988\n")


# --- for Raspberry Pi Imager ----------------------------------------------------------------------------


def test_imager_is_told_what_it_writes(tmp_path: Path) -> None:
    image = tmp_path / "lamplighter-1.img"
    image.write_bytes(b"image")
    image.with_name("lamplighter-1.img.zst").write_bytes(b"zst")
    (entry,) = manifest(image, "1", datetime(2026, 11, 21, tzinfo=UTC), "Pi 5", ["pi5-64bit"])["os_list"]
    # What Imager's schema requires of an entry.
    required = {"name", "description", "icon", "url", "extract_size", "extract_sha256", "image_download_size"}
    assert {*required, "release_date", "devices"} <= set(entry)
    assert (entry["extract_size"], entry["extract_sha256"]) == (5, hashlib.sha256(b"image").hexdigest())
    assert (entry["image_download_size"], entry["image_download_sha256"]) == (3, hashlib.sha256(b"zst").hexdigest())
    assert entry["url"] == f"{image.as_uri()}.zst"
    assert entry["release_date"] == "2026-11-21"
    assert entry["init_format"] == FILE.removesuffix(".toml"), "the appliance reads what Imager writes"
    assert (entry["devices"], entry["description"].endswith("For Pi 5.")) == (["pi5-64bit"], True)


def test_imager_is_told_where_the_image_will_be(tmp_path: Path) -> None:
    image = tmp_path / "lamplighter-1.img"
    image.touch()
    image.with_name("lamplighter-1.img.zst").touch()
    document = manifest(
        image, "1", datetime(2026, 11, 21, tzinfo=UTC), "Pi 5", ["pi5-64bit"], "https://example.org/a.zst"
    )
    assert document["os_list"][0]["url"] == "https://example.org/a.zst"


# --- when CI builds it ----------------------------------------------------------------------------------


def test_image_is_built_in_ci_when_its_base_has_changed(tmp_path: Path) -> None:
    image = tmp_path / "image"
    shutil.copytree(IMAGE, image, ignore=shutil.ignore_patterns("__pycache__", "tested"))
    (image / "tested").write_text("nothing\n")
    make = tmp_path / "bin/make"
    make.parent.mkdir()
    make.write_text('#!/bin/sh\necho "make $1"\n')
    make.chmod(0o755)

    def said(*arguments: str) -> str:
        environment = {**os.environ, "PATH": f"{make.parent}:{os.environ['PATH']}"}
        command = ["sh", str(image / "if-changed.sh"), *arguments]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    assert "make image\nmake test-image\n" in said()
    said("--done")
    assert "pi64 is not built: its base" in said()
    (image / "layer/45-first-boot/customize.sh").write_text("after")
    assert "pi64 is not built: its base" in said()
    for name in ("base/build.sh", "config/pi64.sh", "layer/40-broker/packages"):
        (image / name).write_text("after")
        assert "make image\nmake test-image\n" in said()
        said("--done", "")
        assert "pi64 is not built: its base" in said()
    # An image of another device is built by hand only.
    assert "that is NOT tested; make image test-image DEVICE=pi5\n" in said()
    said("--done", "pi5")
    assert [line.partition(" is ")[0] for line in said().splitlines()] == ["image: pi5", "image: pi64"]
    (image / "config/pi5.sh").write_text("after")
    assert "pi64 is not built" in said() and "make test-image\n" not in said()


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
    """What scripts/local-top/appliance does with the two files."""
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


def test_slot_that_is_overwritten_is_not_what_starts(machine: Machine) -> None:
    """A second update before the first one was tried."""
    backend(machine, ["set-primary", "B"])
    assert backend(machine, ["set-state", "B", "bad"]) == 0  # RAUC begins with it
    assert starts(machine)["all"] == 2
    initramfs(machine)
    assert not on_trial(machine)


def test_nothing_overwrites_what_a_trial_goes_back_to(machine: Machine) -> None:
    backend(machine, ["set-primary", "B"])
    initramfs(machine)
    machine.path("/proc/cmdline").write_text("rauc.slot=B\n")
    assert backend(machine, ["set-state", "A", "bad"]) == 1
    assert starts(machine)["all"] == 2
    assert on_trial(machine)
    assert backend(machine, ["set-state", "B", "good"]) == 0
    assert backend(machine, ["set-state", "A", "bad"]) == 0
    assert starts(machine)["all"] == 3


def test_word_for_the_running_system_does_not_cancel_an_update(machine: Machine) -> None:
    backend(machine, ["set-primary", "B"])
    assert backend(machine, ["set-state", "A", "good"]) == 0  # `rauc status mark-good`
    assert starts(machine)["all"] == 3


def test_no_secret_is_in_the_source() -> None:
    for path in IMAGE.rglob("*"):
        if path.is_file():
            text = path.read_text(errors="ignore")
            assert "PRIVATE KEY-----\nMII" not in text, path
            assert not re.search(r"^\s*(password|psk)\s*=\s*(?!.*password)\S+", text, re.MULTILINE), path
