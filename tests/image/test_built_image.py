"""What can be known of the built image without starting it. What the boards' firmware does with it is emulated nowhere,
so everything that it reads is looked at here."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest
import user_ids

from lamplighter.gateway.settings import Settings
from tests.image.virtual_machine import Card, autoboot, config, partitions
from tests.support.components import require_command
from tests.support.places import ROOT

pytestmark = pytest.mark.image

COMPRESSED_BYTES_MAX = 350 * 1000 * 1000
WRITTEN_BYTES_MAX = 2 * 1000 * 1000 * 1000
BOOTCONFIG, BOOT_A, BOOT_B, SYSTEM_A, SYSTEM_B, DATA = 1, 2, 3, 5, 6, 7
# By board: its device tree as mainline Linux names it (upstream_kernel=1), and the firmware that its chip starts with.
BOARDS_OF = {
    "pi5": {
        "Pi 5": ("bcm2712-rpi-5-b.dtb", ""),
        "Pi 5 of 2024": ("bcm2712d0-rpi-5-b.dtb", ""),
    },
    "pi64": {
        "Pi 3 B": ("bcm2837-rpi-3-b.dtb", "start.elf"),
        "Pi 3 B+": ("bcm2837-rpi-3-b-plus.dtb", "start.elf"),
        "Zero 2 W": ("bcm2837-rpi-zero-2-w.dtb", "start.elf"),
        "Pi 4": ("bcm2711-rpi-4-b.dtb", "start4.elf"),
        "Pi 400": ("bcm2711-rpi-400.dtb", "start4.elf"),
        "CM4": ("bcm2711-rpi-cm4-io.dtb", "start4.elf"),
    },
}
DEVICE = os.environ.get("DEVICE") or "pi64"
BOARDS = BOARDS_OF[DEVICE]


@pytest.fixture(scope="module")
def card(image: Path) -> Card:
    return Card(image)


# --- sizes, sums, partitions ----------------------------------------------------------------------------


def test_image_is_within_its_budget(image: Path) -> None:
    assert image.stat().st_size <= WRITTEN_BYTES_MAX
    assert image.with_suffix(".img.zst").stat().st_size <= COMPRESSED_BYTES_MAX


def test_check_sums_are_right(built: Path) -> None:
    (sums,) = built.glob("lamplighter-*.sha256")
    lines = [line.split() for line in sums.read_text().splitlines()]
    assert {Path(name).suffix for _, name in lines} == {".zst", ".raucb", ".json"}
    for digest, name in lines:
        with (built / name).open("rb") as file:
            assert hashlib.file_digest(file, "sha256").hexdigest() == digest, name


def test_compressed_image_is_the_image(image: Path) -> None:
    with image.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    summed = hashlib.sha256()
    command = ["zstd", "-dcq", str(image.with_suffix(".img.zst"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as unpacked:
        assert unpacked.stdout is not None
        while block := unpacked.stdout.read(1 << 20):
            summed.update(block)
    assert unpacked.returncode == 0
    assert summed.hexdigest() == digest


def test_boot_rom_of_every_board_can_read_the_partitions(image: Path) -> None:
    found = partitions(image)
    assert sorted(found) == [1, 2, 3, 4, 5, 6, 7]
    assert [found[number].type for number in (BOOTCONFIG, BOOT_A, BOOT_B)] == [
        0x0C
    ] * 3  # Pi 3 knows no 0xEF, and no GPT
    ends = [found[number].begin + found[number].size for number in (1, 2, 3, 5, 6, 7)]
    begins = [found[number].begin for number in (2, 3, 5, 6, 7)]
    assert all(end <= begin for end, begin in zip(ends, begins, strict=False)), "partitions overlap"
    assert all(part.begin % (1 << 20) == 0 for number, part in found.items() if number != 4), "not aligned to 1 MiB"
    assert found[DATA].begin + found[DATA].size <= image.stat().st_size


def test_second_slot_is_as_large_and_empty(image: Path) -> None:
    found = partitions(image)
    assert (found[BOOT_A].size, found[SYSTEM_A].size) == (found[BOOT_B].size, found[SYSTEM_B].size)
    with image.open("rb") as file:
        for number in (BOOT_B, SYSTEM_B):
            file.seek(found[number].begin)
            assert not any(file.read(1 << 20)), number


def test_data_partition_is_one_that_the_first_start_makes(image: Path) -> None:
    with image.open("rb") as file:
        file.seek(partitions(image)[DATA].begin)
        assert file.read(64).rstrip(b"\0") == b"LAMPLIGHTER-DATA"


# --- what the firmware reads ----------------------------------------------------------------------------


def test_firmware_is_led_to_the_first_slot(card: Card) -> None:
    names = card.names(BOOTCONFIG)
    assert {"autoboot.txt", "bootcode.bin", "README.txt"} <= names
    assert autoboot(card.read(BOOTCONFIG, "autoboot.txt").decode()) == {"all": BOOT_A, "tryboot": BOOT_B}
    assert "config.txt" not in names  # the firmware would take it for a boot partition


def test_every_file_that_config_txt_names_is_there(card: Card) -> None:
    names = card.names(BOOT_A)
    settings = config(card.read(BOOT_A, "config.txt").decode())
    assert settings["kernel"] in names
    assert settings["initramfs"].split()[0] in names
    assert settings["arm_64bit"] == "1"
    for key in ("device_tree", "overlay_prefix", "os_prefix", "include"):
        assert key not in settings, f"{key} is not followed by this test"


@pytest.mark.parametrize("board", BOARDS)
def test_board_has_its_firmware_and_device_tree(card: Card, board: str) -> None:
    tree, start = BOARDS[board]
    names = card.names(BOOT_A)
    if start:  # that of a Pi 5 is in the board
        assert {start, start.replace("start", "fixup").replace(".elf", ".dat"), "bootcode.bin"} <= names
    assert tree in names
    assert card.read(BOOT_A, tree)[:4] == b"\xd0\x0d\xfe\xed"  # the magic number of a device tree


def test_kernel_is_one_for_this_processor(card: Card) -> None:
    assert card.read(BOOT_A, "vmlinuz")[56:60] == b"ARM\x64"


def test_root_is_the_partition_beside_it(card: Card, image: Path) -> None:
    words = card.read(BOOT_A, "cmdline.txt").decode()
    assert words.count("\n") <= 1  # the firmware reads one line
    found = dict(word.split("=", 1) for word in words.split() if "=" in word)
    with image.open("rb") as file:
        file.seek(440)
        signature = int.from_bytes(file.read(4), "little")
        assert found["root"] == f"PARTUUID={signature:08x}-0{SYSTEM_A}"
        file.seek(partitions(image)[SYSTEM_A].begin)
        assert file.read(4) == b"hsqs"
    assert found["rootfstype"] == "squashfs"
    assert found["rauc.slot"] == "A"
    assert "ro" in words.split()


def test_initramfs_has_what_the_first_start_needs(card: Card) -> None:
    """The archive behind the packed one: both scripts, and the order that starts them."""
    initramfs = card.read(BOOT_A, "initrd.img")
    extra = initramfs[initramfs.rindex(b"070701", 0, initramfs.index(b"scripts/local-bottom", len(initramfs) // 2)) :]
    for name in (b"scripts/local-premount/appliance", b"scripts/local-bottom/appliance", b"scripts/local-bottom/ORDER"):
        assert name in extra
    assert extra.rstrip(b"\0").endswith(b"TRAILER!!!")


@pytest.mark.parametrize("board", BOARDS)
def test_device_tree_of_a_board_compiles(card: Card, board: str, tmp_path: Path) -> None:
    tree = device_tree(card, BOARDS[board][0], tmp_path)
    source, again = tmp_path / "tree.dts", tmp_path / "again.dtb"
    dtc = [require_command("dtc"), "-q"]
    subprocess.run([*dtc, "-I", "dtb", "-O", "dts", "-o", source, tree], check=True)
    subprocess.run([*dtc, "-I", "dts", "-O", "dtb", "-o", again, source], check=True)
    assert property_of(again, "/", "model").startswith("Raspberry Pi ")


# Of a Pi 5, by their labels in its device tree: the card, which has the root, with its pins; RP1 and what is behind it.
CARD_AND_RP1 = (
    "sdio1",
    "mip0",
    "mip1",
    "pinctrl",
    "pinctrl_aon",
    "gio_aon",
    "pcie2",
    "rp1_clocks",
    "rp1_gpio",
    "rp1_eth",
)
BEHIND_THE_ROOT = ("pm", "rp1_usb0", "rp1_usb1")  # the watchdog, and USB


@pytest.mark.skipif(DEVICE != "pi5", reason="the kernel of Debian 13 was made for the other boards")
@pytest.mark.parametrize("board", BOARDS)
def test_devices_that_a_start_needs_have_their_drivers(card: Card, system: Path, board: str, tmp_path: Path) -> None:
    """In the kernel, or as modules: those in front of the root in the initramfs, with all that they need."""
    tree = device_tree(card, BOARDS[board][0], tmp_path)
    (tmp_path / "initrd.img").write_bytes(card.read(BOOT_A, "initrd.img"))
    # It fails at its end, at the archive behind the packed one.
    listed = subprocess.run(
        ["lsinitramfs", tmp_path / "initrd.img"], capture_output=True, text=True, check=False
    ).stdout
    early = {Path(name).name.partition(".")[0].replace("-", "_") for name in listed.splitlines() if ".ko" in name}
    (modules,) = (system / "usr/lib/modules").iterdir()
    needs = module_needs(modules)
    for label in (*CARD_AND_RP1, *BEHIND_THE_ROOT):
        node = property_of(tree, "/__symbols__", label)
        assert property_of(tree, node, "status") in ("", "okay"), label
        found = drivers(modules, property_of(tree, node, "compatible").split())
        assert found, f"{label}: {node} has no driver"
        assert "" in found or label in BEHIND_THE_ROOT or {one for name in found for one in needs[name]} <= early, label
    # RP1 itself is found by its number on the bus.
    (rp1,) = (line.split()[2] for line in aliases(modules) if line.startswith("alias pci:v00001DE4d00000001"))
    assert set(needs[rp1]) <= early


def device_tree(card: Card, name: str, folder: Path) -> Path:
    tree = folder / name
    tree.write_bytes(card.read(BOOT_A, name))
    return tree


def property_of(tree: Path, node: str, name: str) -> str:
    """A text of a node, the texts of a list with blanks between them; "" without it."""
    fdtget = [require_command("fdtget"), "-d", "", "-t", "s", tree, node, name]
    return subprocess.run(fdtget, capture_output=True, text=True, check=True).stdout.strip()


def aliases(modules: Path) -> list[str]:
    return (modules / "modules.alias").read_text().splitlines()


def drivers(modules: Path, compatible: list[str]) -> set[str]:
    """The modules for a node; "" for a driver that is in the kernel."""
    names = {f"of:N*T*C{one}" for one in compatible}
    found = {line.split()[2] for line in aliases(modules) if line.split()[1] in names}
    built_in = (modules / "modules.builtin.modinfo").read_bytes().decode().split("\0")
    return found | {"" for line in built_in if line.partition(".alias=")[2] in names}


def module_needs(modules: Path) -> dict[str, list[str]]:
    """Each module with those that it needs, itself first."""

    def name(path: str) -> str:
        return Path(path).name.partition(".")[0].replace("-", "_")

    lines = (line.partition(":") for line in (modules / "modules.dep").read_text().splitlines())
    return {name(path): [name(path), *map(name, others.split())] for path, _, others in lines}


# --- the system -----------------------------------------------------------------------------------------


def elf_machines(folder: Path) -> dict[Path, int]:
    """The machine of each ELF file."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                head = file.read(20)
            if head[:4] == b"\x7fELF":
                found[path] = int.from_bytes(head[18:20], "little")
    return found


def test_application_is_for_this_processor(system: Path) -> None:
    packages = next(system.glob("usr/lib/lamplighter/lib/python3.*/site-packages"))
    wheels = sorted(packages.glob("*.dist-info/WHEEL"))
    assert len(wheels) > 20
    for wheel in wheels:
        tags = re.findall(r"^Tag: (\S+)$", wheel.read_text(), re.MULTILINE)
        assert all(tag.endswith(("-any", "_aarch64")) for tag in tags), (wheel, tags)
    machines = elf_machines(packages)
    assert len(machines) > 10
    assert set(machines.values()) == {183}  # EM_AARCH64


def test_application_matches_the_python_that_is_there(system: Path) -> None:
    (packages,) = system.glob("usr/lib/lamplighter/lib/python3.*/site-packages")
    version = packages.parent.name
    assert (system / "usr/bin" / version).exists()
    assert (system / "usr/bin/lamplighter").read_text().startswith("#!/usr/lib/lamplighter/bin/python")
    assert list(
        (packages / "lamplighter/engine/__pycache__").glob(f"core.{version.replace('python3.', 'cpython-3')}.pyc")
    )


def test_byte_code_is_of_the_python_that_is_there(system: Path) -> None:
    """Another magic number, and each start compiles everything anew."""
    (packages,) = system.glob("usr/lib/lamplighter/lib/python3.*/site-packages")
    (own,) = packages.glob("lamplighter/engine/__pycache__/core.*.pyc")
    (pythons,) = system.glob("usr/lib/python3.*/__pycache__/ast.cpython-*[0-9].pyc")  # compiled in the image, emulated
    assert own.read_bytes()[:4] == pythons.read_bytes()[:4]
    assert own.read_bytes()[4:8] == b"\x01\0\0\0"  # unchecked: the times of the files do not matter
    assert b"/usr/lib/lamplighter/lib/" in own.read_bytes() and b"/mnt/" not in own.read_bytes()
    for package in ("lamplighter/gateway", "lamplighter/adapters/mqtt", "pyoxigraph", "uvicorn"):
        folder = packages / package
        sources = {path.stem for path in folder.glob("*.py")}
        assert sources == {path.name.split(".")[0] for path in (folder / "__pycache__").glob("*.pyc")}, package


def test_users_have_the_numbers_of_every_image(system: Path) -> None:
    ids = user_ids.table((ROOT / "image/layer/90-user-ids/ids").read_text())
    found = user_ids.present(system)
    assert {"lamplighter", "mosquitto"} <= set(found.users) <= set(ids.users)
    assert user_ids.changes(found, ids) == ({}, {})
    assert (system / "var/lib/mosquitto").stat().st_uid == ids.users["mosquitto"]


def test_nothing_in_the_image_tells_machines_apart(system: Path) -> None:
    assert (system / "etc/machine-id").read_bytes() in (b"", b"uninitialized\n")
    assert not (system / "var/lib/dbus/machine-id").is_file() or (system / "var/lib/dbus/machine-id").is_symlink()
    assert not (system / "etc/hostname").exists()
    assert not list((system / "etc/ssh").glob("ssh_host_*"))
    assert not (system / "var/lib/systemd/random-seed").exists()
    for place in ("etc/mosquitto/passwords", "var/lib/lamplighter/security", "etc/ssh/authorized_keys"):
        assert not (system / place).exists(), place
    assert not list((system / "etc/credstore").glob("*") if (system / "etc/credstore").exists() else [])


def test_no_private_key_is_in_the_image(system: Path) -> None:
    for folder in ("etc", "root", "home", "usr/lib/lamplighter-appliance", "var/lib"):
        for path in (system / folder).rglob("*"):
            if path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 20:
                assert b"PRIVATE KEY-----" not in path.read_bytes(), path


def test_settings_are_those_of_a_secure_gateway(system: Path) -> None:
    document = tomllib.loads((system / "etc/lamplighter/lamplighter.toml").read_text())
    assert document == tomllib.loads((system / "etc/lamplighter/appliance.toml").read_text())
    settings = msgspec.convert(document, Settings)
    assert settings.security.enabled
    assert not settings.security.plain_on_network
    assert not settings.security.test_identity
    assert settings.security.registration == "code"
    assert settings.mqtt.host == "127.0.0.1"


def test_nobody_has_a_password(system: Path) -> None:
    for line in (system / "etc/shadow").read_text().splitlines():
        user, password = line.split(":")[:2]
        assert password.startswith(("*", "!")), user


def test_programs_that_act_for_others_are_the_known_ones(system: Path) -> None:
    found = {
        str(path.relative_to(system))
        for path in system.rglob("*")
        if path.is_file() and not path.is_symlink() and path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)
    }
    login = ("chage", "chfn", "chsh", "expiry", "gpasswd", "newgrp", "passwd", "su")
    known = {f"usr/bin/{name}" for name in (*login, "mount", "ssh-agent", "sudo", "umount")}
    known |= {"usr/sbin/unix_chkpwd", "usr/lib/dbus-1.0/dbus-daemon-launch-helper", "usr/lib/openssh/ssh-keysign"}
    assert found <= known, found - known


def test_update_key_is_the_builders(system: Path, certificate: Path) -> None:
    assert (system / "etc/rauc/keyring.pem").read_text() == certificate.read_text()


def test_bundle_is_signed_and_for_this_image(built: Path, certificate: Path, tmp_path: Path) -> None:
    (bundle,) = built.glob("lamplighter-*.raucb")
    done = subprocess.run(
        ["rauc", "info", f"--keyring={certificate}", "--output-format=json", str(bundle)],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["compatible"] == f"lamplighter-{DEVICE}"
    assert {name for image in found["images"] for name in image} == {"boot", "system"}
    other = tmp_path / "other.pem"
    subprocess.run(
        f"openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=other -out {other} -keyout {tmp_path}/key.pem".split(),
        capture_output=True,
        check=True,
    )
    refused = subprocess.run(["rauc", "info", f"--keyring={other}", str(bundle)], capture_output=True, check=False)
    assert refused.returncode != 0


def test_imager_gets_what_the_manifest_says(built: Path, image: Path) -> None:
    (file,) = built.glob("lamplighter-*.rpi-imager-manifest")
    (entry,) = json.loads(file.read_text())["os_list"]
    (sums,) = built.glob("lamplighter-*.sha256")
    assert f"{entry['image_download_sha256']}  {image.name}.zst" in sums.read_text()
    assert (entry["extract_size"], entry["init_format"]) == (image.stat().st_size, "rpi-preseed")


# --- the bill of materials ------------------------------------------------------------------------------


def test_bill_of_materials_is_complete(built: Path, system: Path) -> None:
    (file,) = built.glob("lamplighter-*.cdx.json")
    document = json.loads(file.read_text())
    purls = {component["purl"] for component in document["components"]}
    status = (system / "var/lib/dpkg/status").read_text()
    installed = re.findall(r"^Package: (\S+)\nStatus: install ok installed$", status, re.MULTILINE)
    assert len(installed) > 100
    listed = {unquote(purl.split("/")[2].split("@")[0]) for purl in purls if purl.startswith("pkg:deb/")}
    assert listed >= set(installed)
    wheels = list(system.glob("usr/lib/lamplighter/lib/python3.*/site-packages/*.dist-info"))
    assert sum(purl.startswith("pkg:pypi/") for purl in purls) == len(wheels) > 20


def test_bill_of_materials_is_cyclonedx(built: Path) -> None:
    """As CycloneDX's own schema says, with no member that it does not know, and refers to nothing but what it has."""
    schemas = ROOT / "build/schema/cyclonedx/schema/_res"  # tests/image/fetch-schema.sh
    sys.path.append(str(ROOT / "build/schema"))
    import fastjsonschema

    def schema(uri: str) -> Any:
        return json.loads((schemas / uri.rsplit("/", 1)[1]).read_text())

    check = fastjsonschema.compile(
        schema("/bom-1.6.SNAPSHOT.schema.json"), handlers={"http": schema}, use_formats=False
    )
    (file,) = built.glob("lamplighter-*.cdx.json")
    document = json.loads(file.read_text())
    check(document)
    damaged = {**document, "components": [{**document["components"][0], "colour": "red"}]}
    with pytest.raises(fastjsonschema.JsonSchemaValueException, match="colour"):
        check(damaged)
    references = [document["metadata"]["component"]["bom-ref"]]
    references += [component["bom-ref"] for component in document["components"]]
    assert len(references) == len(set(references))
    for dependency in document["dependencies"]:
        assert {dependency["ref"], *dependency["dependsOn"]} <= set(references)
    for component in document["components"]:
        assert re.fullmatch(r"pkg:(deb|pypi)/[^\s]+@[^\s]+", component["purl"]), component["purl"]


def test_version_is_the_projects(image: Path, system: Path) -> None:
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert image.name == f"lamplighter-{version[1]}.img"
    assert f"IMAGE_VERSION={version[1]}\n" in (system / "usr/lib/os-release").read_text()
