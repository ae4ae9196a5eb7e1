"""Two packages under a real systemd, the previous version and this one, go forward and back on one machine.

What is used of the one has to hold with the other (`tests.support.every_feature`); and a gateway that cannot start says
why, to whoever asks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.components import missing, require_command
from tests.support.every_feature import EveryFeature, configure, put_receiver
from tests.support.places import ROOT
from tests.support.previous_version import previous_tree
from tests.systemd.machine import Machine, built_package, rebuild, run, with_bytecode

pytestmark = pytest.mark.faults

ROUNDS = 5
FOLDER, SETTINGS = "/etc/lamplighter", "/etc/lamplighter/lamplighter.toml"
SERVICES = ("lamplighter-gateway", "lamplighter-coap", "lamplighter-mqtt")


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    if os.geteuid() != 0:
        missing("systemd-nspawn and mmdebstrap need root")
    for command in ("systemd-nspawn", "mmdebstrap"):
        require_command(command)
    packages = {"new": built_package(ROOT), "old": built_package(previous_tree())}
    machine = Machine("versions")
    for name, package in packages.items():
        rebuild(package, machine.root / f"root/{name}.deb", "", without_cloud)
    yield machine
    machine.end()


def without_cloud(tree: Path) -> None:
    """With its bytecode, and without what destinations in the cloud need, which would be unpacked each time."""
    for name in ("aiobotocore", "aiohttp", "botocore", "nacl", "paramiko"):
        for folder in (tree / "usr/lib/lamplighter/lib").glob(f"python3*/site-packages/{name}"):
            run("rm", "-r", str(folder))
    with_bytecode(tree)


def install(machine: Machine, package: str) -> None:
    """A version, asked nothing; returns when its services run."""
    machine(f"dpkg --install /root/{package}.deb < /dev/null 2>&1")
    machine.wait(lambda: all(machine.show(one, "ActiveState") == "active" for one in SERVICES), 60, "the services")


def test_five_times_forward_and_back_nothing_is_lost(machine: Machine) -> None:
    machine("dpkg --install /root/old.deb 2>&1")
    # Edited, so that it is neither replaced nor asked about.
    text = (machine.root / SETTINGS[1:]).read_text()
    text = text.replace('host = ""', 'host = "127.0.0.1"')
    text = text.replace("enabled = true\n", "enabled = true\nattempts_per_min = 6000\n", 1)
    text = text.replace('destination = ""', 'destination = "/var/lib/lamplighter/shipped"')
    machine.put(SETTINGS, text + configure(machine, FOLDER))
    machine("install -d -o lamplighter /var/lib/lamplighter/shipped")
    machine("install -d -m 755 /root/files")
    receiving = machine.begin(put_receiver(machine, "/root/files"))
    house = EveryFeature(
        machine,
        http="/run/lamplighter/http.sock",
        websocket="/run/lamplighter/ws.sock",
        https=8443,
        files="/root/files",
        python="/usr/lib/lamplighter/bin/python -P",
    )
    machine("runuser -u lamplighter -- lamplighter devices key porch --address 127.0.0.1:5998 --print")
    machine("systemctl restart lamplighter-gateway lamplighter-coap lamplighter-mqtt")
    install(machine, "new")
    house.begin()
    for _ in range(ROUNDS):
        for package in ("old", "new"):
            house.use()
            install(machine, package)
            house.check()
            machine("systemctl start lamplighter-sync")
    assert machine.journal("--unit='lamplighter-*' --priority=err") == ""
    assert (machine.root / SETTINGS[1:]).read_text().startswith(text)
    assert receiving.stdout is not None
    receiving.kill()
    receiving.wait()
    receiving.stdout.close()


def test_a_gateway_that_cannot_start_says_why(machine: Machine) -> None:
    file = "/var/lib/lamplighter/security/clients.json"
    before = machine(f"cat {file}")
    machine(f"""echo '{{"format": 2, "clients": []}}' > {file}""")
    machine.code("systemctl restart lamplighter-gateway")
    machine.wait(lambda: int(machine.show("lamplighter-gateway", "NRestarts")) > 0, 60, "another try")
    told = machine("lamplighter status 2>&1; echo exit code $?")
    for text in ("lamplighter-gateway.service: activating", f"{file}: a newer version", "exit code 3"):
        assert text in told, told
    # It is there from the end of one try to the beginning of the next.
    shown = "failed: " + file
    machine.wait(lambda: shown in machine("systemctl status lamplighter-gateway || true"), 60, "the status")
    assert "the backup is made from" in machine("lamplighter backup --yes /root/backup.zst 2>&1")
    machine("lamplighter verify")
    machine.put(file, before)
    machine(f"chown lamplighter: {file}")
    machine.wait(lambda: machine.show("lamplighter-gateway", "ActiveState") == "active", 60, "the gateway")


def test_an_adapter_that_cannot_start_is_described_by_its_own_words(machine: Machine) -> None:
    rules = f"{FOLDER}/mapping/wrong.toml"
    machine.put(rules, '[[stream]]\ntopic = "a"\nnonsense = 1\n')
    machine.code("systemctl restart lamplighter-mqtt")

    def described() -> bool:
        """By the gateway, which runs as a user without rights on the journal."""
        told = machine("lamplighter status")
        [reason] = [one["reason"] for one in health() if one["name"] == "mqtt/default"] or [""]
        words = "nonsense" in told and "journalctl -u lamplighter-mqtt" in told and "start it" not in told
        return words and "nonsense" in reason and "its service was started again" in reason

    def health() -> list[dict[str, str]]:
        answer = machine("curl --silent --unix-socket /run/lamplighter/http.sock http://localhost/health")
        found: list[dict[str, str]] = json.loads(answer)["components"]
        return found

    machine.wait(described, 120, "the words of the adapter")
    machine(f"rm {rules}")
    machine.wait(lambda: machine.show("lamplighter-mqtt", "ActiveState") == "active", 60, "the adapter")


UNATTENDED = "DEBIAN_FRONTEND=noninteractive apt-get install --yes --allow-downgrades"
EDITED = (SETTINGS, f"{FOLDER}/mapping/street.toml", f"{FOLDER}/apps/smart-lighting.jsap")


def edit(machine: Machine) -> dict[str, str]:
    """The operator changes each file of the package's, and adds one. Returns their texts."""
    texts = {path: (machine.root / path[1:]).read_text() + "\n" for path in EDITED}
    texts[f"{FOLDER}/mapping/mine.toml"] = "# mine\n"
    for path, text in texts.items():
        machine.put(path, text)
    return texts


def unattended(machine: Machine, package: str, options: str = "") -> str:
    """Installs a version as a script does, with nobody to answer. Returns what is said."""
    return machine(f"{UNATTENDED} {options} /root/{package}.deb < /dev/null 2>&1")


def check_installed(machine: Machine, texts: dict[str, str]) -> None:
    assert machine("dpkg-query --show --showformat '${db:Status-Status}' lamplighter") == "installed"
    assert {path: (machine.root / path[1:]).read_text() for path in texts} == texts
    machine.wait(lambda: machine.show("lamplighter-gateway", "ActiveState") == "active", 60, "the gateway")


def test_edited_files_stay_forward_and_back_and_nobody_is_asked(machine: Machine) -> None:
    machine("dpkg --purge lamplighter 2>&1")
    unattended(machine, "old")
    texts = edit(machine)
    for package in ("new", "old", "new"):
        said = unattended(machine, package)
        check_installed(machine, texts)
        if package == "new":
            assert all(f"{path} stays as you edited it" in said for path in EDITED), said


def test_files_that_nobody_edited_do_not_hinder_the_way_back(machine: Machine) -> None:
    machine("dpkg --purge lamplighter 2>&1")
    unattended(machine, "old")
    for package in ("new", "old", "new"):
        assert "as you edited it" not in unattended(machine, package)
        check_installed(machine, {})
        brought = (machine.root / "usr/share/lamplighter/etc/lamplighter.toml").read_text() if package == "new" else ""
        assert not brought or (machine.root / SETTINGS[1:]).read_text() == brought


def test_without_an_older_version_before_the_way_back_needs_a_word(machine: Machine) -> None:
    """Version 0.1.0 has conffiles, of which dpkg knows nothing then. docs/install-upgrade.md has the option."""
    machine("dpkg --purge lamplighter 2>&1")
    unattended(machine, "new")
    texts = edit(machine)
    with pytest.raises(AssertionError, match="conffile prompt"):
        unattended(machine, "old")
    assert machine("dpkg-query --show --showformat '${db:Status-Status}' lamplighter") == "unpacked"
    option = "-o Dpkg::Options::=--force-confold"
    assert f"`{option}`" in (ROOT / "docs/install-upgrade.md").read_text()
    unattended(machine, "old", option)
    check_installed(machine, texts)
    unattended(machine, "new")
    check_installed(machine, texts)


def test_an_upgrade_takes_links_that_the_older_version_did_not_have(machine: Machine) -> None:
    """The sockets are the gateway's, too; after the tests above it came from version 0.1.0."""
    links = machine("ls /etc/systemd/system/lamplighter-gateway.service.wants").split()
    assert links == ["lamplighter-http.socket", "lamplighter-ws.socket"]
