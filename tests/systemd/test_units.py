"""The units, as they stand: what systemd says of them, and that they agree with the settings and with the package."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest

from lamplighter.adapters.mqtt.credentials import MQTT_PASSWORD
from lamplighter.adapters.specs import ADAPTERS
from lamplighter.cloud_sync.settings import SyncSettings
from lamplighter.gateway.__main__ import command_parser
from lamplighter.gateway.addresses import socket_paths
from lamplighter.gateway.gates.opening import HTTP, WEBSOCKET
from lamplighter.gateway.service.enabled import reason_against
from lamplighter.gateway.service.units import LONG_RUNNING
from lamplighter.gateway.settings import Settings
from tests.support.components import missing, require_command
from tests.support.places import ROOT
from tests.support.tables import each_row
from tests.support.units import PACKAGE, UNITS

SETTINGS = ROOT / "systemd/lamplighter.toml"
DEB = ROOT / "image/deb"
SERVICES = sorted(UNITS.glob("*.service"))
OPERATIONS, MONITOR = ROOT / "docs/install-upgrade.md", ROOT / "docs/monitor.md"
EXPOSURE_MAX = 2.0


def unit(name: str) -> configparser.ConfigParser:
    """A unit; of a key that stands there several times, all values, a line each."""

    class Values(dict[str, str]):
        def __setitem__(self, key: str, value: str) -> None:
            if key in self and isinstance(value, list):
                value = [*self[key], *value]  # type: ignore[assignment]
            super().__setitem__(key, value)

    parser = configparser.ConfigParser(strict=False, interpolation=None, dict_type=Values, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNITS / name)
    return parser


def settings() -> Settings:
    return msgspec.convert(tomllib.loads(SETTINGS.read_text()), Settings)


def test_units_name_pages_that_the_package_has() -> None:
    for path in UNITS.iterdir():
        for page in re.findall(r"^Documentation=file:///usr/share/doc/lamplighter/(.*)$", path.read_text(), re.M):
            assert (ROOT / "docs" / page).is_file(), f"{path.name}: {page}"


def test_systemd_has_nothing_to_say_about_the_units() -> None:
    files = [path for path in UNITS.iterdir() if path.suffix in (".service", ".socket", ".target", ".timer")]
    assert len(files) == 10
    verified = subprocess.run(
        [require_command("systemd-analyze"), "verify", "--man=no", *files], capture_output=True, text=True, check=False
    )
    # Where the package is not installed, its programs are not there.
    lines = [line for line in verified.stderr.splitlines() if "is not executable: No such file" not in line]
    assert [line for line in lines if "lamplighter" in line] == []


def test_a_key_that_systemd_does_not_know_is_noticed(tmp_path: Path) -> None:
    wrong = tmp_path / "lamplighter-wrong.service"
    wrong.write_text((UNITS / "lamplighter-gateway.service").read_text().replace("[Service]", "[Service]\nNoSuchKey=1"))
    verified = subprocess.run(
        [require_command("systemd-analyze"), "verify", "--man=no", wrong], capture_output=True, text=True, check=False
    )
    assert "NoSuchKey" in verified.stderr


@each_row("service", SERVICES, ids=lambda path: path.stem)
def test_services_can_do_next_to_nothing_to_the_machine(service: Path) -> None:
    command = [require_command("systemd-analyze"), "security", "--offline=true", "--no-pager", service]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"Overall exposure level for \S+: (\d+\.\d)", said)
    assert found is not None, said
    assert float(found[1]) <= EXPOSURE_MAX


def test_memory_limits_are_documented() -> None:
    limits = {path.stem: unit(path.name)["Service"]["MemoryMax"] for path in SERVICES}
    assert limits.pop("lamplighter-gateway") == "70%" and limits.pop("lamplighter-mqtt") == "128M"
    assert set(limits.values()) == {"192M"}
    text = " ".join(OPERATIONS.read_text().split())
    assert (
        "the gateway 70 % of the machine's memory, the MQTT adapter 128 MB, the other adapters and sync 192 MB" in text
    )


@each_row("name", LONG_RUNNING)
def test_services_are_restarted_for_good(name: str) -> None:
    service = unit(f"lamplighter-{name}.service")
    assert service["Unit"]["StartLimitIntervalSec"] == "0"
    assert service["Unit"]["PartOf"] == "lamplighter.target"
    assert service["Service"]["Type"] == "notify"
    assert service["Service"]["Restart"] == "always"
    assert service["Service"]["RestartSec"] == "3"
    assert "systemd restarts a failed service after 3 s, without a limit" in OPERATIONS.read_text()
    assert int(service["Service"]["WatchdogSec"]) >= 30
    assert "Requires" not in service["Unit"], "one that fails would take others with it"
    assert not re.search(r"time-(sync|set)|network-online", "".join(service["Unit"].values()))


@pytest.mark.parametrize("name", ["http", "ws"])
def test_sockets_are_those_of_the_settings(name: str) -> None:
    socket = unit(f"lamplighter-{name}.socket")["Socket"]
    port = {"http": settings().security.https_port, "ws": settings().security.wss_port}[name]
    path = dict(zip(("http", "ws"), socket_paths(settings(), Path("/var/lib/lamplighter")), strict=True))[name]
    streams = re.findall(r"^ListenStream=(.*)$", (UNITS / f"lamplighter-{name}.socket").read_text(), re.M)
    assert streams == [str(port), str(path)]
    assert socket["FileDescriptorName"] == {"http": HTTP, "ws": WEBSOCKET}[name]
    assert socket["Service"] == "lamplighter-gateway.service"


def test_settings_of_the_package_are_secure_and_where_the_units_expect_things() -> None:
    found = settings()
    assert found.security.enabled
    assert found.security.registration == "code"
    gateway = unit("lamplighter-gateway.service")["Service"]
    assert found.gateway.data == f"/var/lib/{gateway['StateDirectory']}"
    assert found.security.socket_folder == f"/run/{gateway['RuntimeDirectory']}"
    assert gateway["RuntimeDirectoryPreserve"] == "yes", "the sockets are there"


def test_credentials_have_the_names_that_the_processes_look_for() -> None:
    assert unit("lamplighter-mqtt.service")["Service"]["LoadCredential"] == MQTT_PASSWORD
    name = unit("lamplighter-sync.service")["Service"]["LoadCredential"]
    text = SETTINGS.read_text()
    assert f"/etc/credstore/{name}" in text
    assert f"/etc/credstore/{MQTT_PASSWORD}" in text
    assert SyncSettings(options_file=name)


@each_row("service", SERVICES, ids=lambda path: path.stem)
def test_commands_are_commands(service: Path) -> None:
    commands = re.findall(r"^Exec(?:Start|Reload|Condition)=(.*)$", service.read_text(), re.M)
    assert commands
    for command in commands:
        program, *words = command.split()
        if program.endswith("bin/lamplighter"):
            assert command_parser().parse_args(words).config == Path("/etc/lamplighter/lamplighter.toml")
        elif program.endswith("bin/python"):
            assert words[:2] == ["-P", "-m"]
            assert (ROOT / words[2].replace(".", "/")).exists() or (ROOT / f"{words[2].replace('.', '/')}.py").exists()
        elif "lamplighter.gateway.service.enabled" not in command:
            assert command == """/bin/sh -c 'kill -HUP "$$MAINPID"'"""  # kill(1) is not on every machine


def test_what_the_gateway_asks_of_the_kernel_is_allowed_to_it() -> None:
    """adjtimex tells whether the clock is synchronised, Netlink what the interfaces are called; the query processes are
    niced, so @resources must not be taken away."""
    for name in ("gateway", "sync"):
        text = (UNITS / f"lamplighter-{name}.service").read_text()
        # The last word counts, and @privileged has these calls in it.
        assert re.findall(r"^SystemCallFilter=(.*)$", text, re.MULTILINE)[-1] == "adjtimex clock_adjtime"
        assert "ProtectClock" not in re.sub(r"^#.*$", "", text, flags=re.M)
    gateway = (UNITS / "lamplighter-gateway.service").read_text()
    assert "AF_NETLINK" in gateway
    assert "~@privileged\n" in gateway
    assert "ProcSubset" not in gateway  # boot_id
    assert "PrivateUsers=yes" not in gateway


@each_row("script", ["postinst", "prerm", "postrm"])
def test_scripts_of_the_package_name_every_unit(script: str) -> None:
    text = (PACKAGE / script).read_text()
    names = {path.name for path in UNITS.iterdir() if path.suffix in (".service", ".socket", ".target", ".timer")}
    if script != "prerm":
        names = {name for name in names if "[Install]" in (UNITS / name).read_text()}
    [declared] = re.findall(r'^units="(.*?)"$', text, re.M | re.S)
    assert names == set(declared.split())


@each_row("script", ["build.sh", "preinst", "postinst", "prerm", "postrm"])
def test_scripts_of_the_package_have_no_findings(script: str) -> None:
    checked = subprocess.run(
        [require_command("shellcheck"), "-x", "-e", "SC1091", (DEB if script == "build.sh" else PACKAGE) / script],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout


def test_only_purging_deletes_data() -> None:
    purging = re.compile(r"^\s*purge\)\n(.*?)^\s*;;", re.M | re.S)
    for script in ("preinst", "postinst", "prerm", "postrm"):
        assert "/var/lib/lamplighter" not in purging.sub("", (PACKAGE / script).read_text()), script
    assert "rm -rf /var/lib/lamplighter" in (PACKAGE / "postrm").read_text()


def test_scripts_of_the_package_are_in_it() -> None:
    scripts = {path.name for path in DEB.iterdir() if re.fullmatch(r"(pre|post)(inst|rm)", path.name)}
    assert scripts == {"preinst", "postinst", "prerm", "postrm"}
    for script in scripts:
        assert (PACKAGE / script).exists(), script
    assert 'lamplighter.gateway.service.units systemd "$units" "$here" "$tree/DEBIAN"' in (DEB / "build.sh").read_text()


def test_no_restart_waits_longer_for_what_ended_long_ago() -> None:
    """Of RestartSteps= systemd resets the count only by hand; and systemd 252 does not know it."""
    for path in [*(ROOT / "systemd").rglob("*"), *UNITS.iterdir(), *DEB.iterdir()]:
        if path.is_file() and path.suffix != ".md":
            assert not re.search("RestartSteps|restart-steps|RestartMaxDelaySec", path.read_text()), path


@each_row("name", [*(path.name for path in SERVICES), "lamplighter-sync.timer"])
def test_all_stop_with_the_target(name: str) -> None:
    assert unit(name)["Unit"]["PartOf"] == "lamplighter.target"


@each_row("service", SERVICES, ids=lambda path: path.stem)
def test_services_see_the_state_of_no_other_service(service: Path) -> None:
    kept = {name: unit(name.name)["Service"].get("StateDirectory", "") for name in SERVICES}
    own = kept[service]
    others = {f"/var/lib/{state}" for state in kept.values() if state and state != own}
    if service.stem == "lamplighter-sync":  # it shares the data folder, for the log
        others.add("/var/lib/lamplighter/security")
    assert others, "no service keeps a state"
    hidden = set(unit(service.name)["Service"]["InaccessiblePaths"].split())
    assert hidden == {f"-{folder}" for folder in others}


def test_the_documented_reload_starts_what_was_left_out() -> None:
    """An adapter that nobody wanted is inactive, and what is inactive cannot be reloaded."""
    commands = re.findall(r"systemctl (reload\S*) (lamplighter[a-z -]*)$", OPERATIONS.read_text(), re.M)
    assert "reload-or-restart lamplighter-gateway" in SETTINGS.read_text()
    assert commands == [("reload-or-restart", " ".join(f"lamplighter-{name}" for name in LONG_RUNNING))]


def documented(page: Path, beginning: str, root: Path) -> str:
    """A command of a page that begins so, for a machine whose root is this folder."""
    [found] = re.findall(rf"^\$ sudo ({re.escape(beginning)}.*)$", page.read_text(), re.M)
    return re.sub(r" /(etc|usr)/", rf" {root}/\1/", found)


def test_a_secret_that_is_made_as_documented_is_its_owners_only(tmp_path: Path) -> None:
    (tmp_path / "etc/credstore").mkdir(parents=True)
    command = documented(OPERATIONS, "install -m 600 /dev/stdin", tmp_path)
    subprocess.run(["sh", "-c", command], input="secret\n", text=True, check=True)
    made = tmp_path / f"etc/credstore/{MQTT_PASSWORD}"
    assert made.read_text() == "secret\n"
    assert made.stat().st_mode & 0o777 == 0o600


def test_the_journal_of_a_card_is_set_up_as_documented(tmp_path: Path) -> None:
    """Debian has no /etc/systemd/journald.conf.d."""
    source = ROOT / "systemd/journald.conf.d/50-lamplighter.conf"
    shared = tmp_path / "usr/share/lamplighter/journald.conf.d"
    shared.mkdir(parents=True)
    (shared / source.name).write_bytes(source.read_bytes())
    (tmp_path / "etc/systemd").mkdir(parents=True)
    command = documented(MONITOR, "install -D", tmp_path)
    subprocess.run(["sh", "-c", command], check=True)
    assert (tmp_path / "etc/systemd/journald.conf.d" / source.name).read_bytes() == source.read_bytes()


def tmpfiles(root: Path) -> None:
    """What systemd does at each start with our file, for a machine whose root is this folder."""
    if os.geteuid() != 0:
        missing("systemd-tmpfiles changes owners, which root may")
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\nlamplighter:x:990:990::/:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\nlamplighter:x:990:\n")
    command = [require_command("systemd-tmpfiles"), "--create", f"--root={root}"]
    subprocess.run([*command, ROOT / "systemd/tmpfiles.d/lamplighter.conf"], check=True)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_the_folder_of_secrets_is_roots_alone(tmp_path: Path) -> None:
    tmpfiles(tmp_path)
    assert mode(tmp_path / "etc/credstore") == 0o700
    assert mode(tmp_path / "run/lamplighter") == 0o755


def test_a_secret_that_everybody_could_read_is_roots_alone_from_the_next_start_on(tmp_path: Path) -> None:
    folder = tmp_path / "etc/credstore"
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    for name in (MQTT_PASSWORD, "others"):
        (folder / name).touch()
        (folder / name).chmod(0o644)
        os.chown(folder / name, 990, 990)
    tmpfiles(tmp_path)
    assert (mode(folder), mode(folder / MQTT_PASSWORD)) == (0o700, 0o600)
    assert (folder / MQTT_PASSWORD).stat().st_uid == 0
    assert mode(folder / "others") == 0o644, "what is not ours is not ours to change"


@each_row(
    ("name", "text", "reason"),
    [
        ("mqtt", "", "mqtt.host is empty"),
        ("mqtt", '[mqtt]\nhost = "127.0.0.1"', ""),
        ("coap", "", ""),
        ("coap", "[coap]\nenabled = false", "coap.enabled is false"),
        ("http-devices", "", "http_devices.enabled is false"),
        ("http-devices", "[http_devices]\nenabled = true", ""),
        ("modbus", "", "modbus.enabled is false"),
        ("modbus", "[modbus]\nenabled = true", ""),
        ("sync", "", "sync.destination is empty"),
        ("sync", '[sync]\ndestination = "/srv"', ""),
        ("sync", "not TOML", ""),
        ("mqtt", "mqtt = 1", ""),
    ],
)
def test_a_process_is_started_when_the_settings_ask_for_it(tmp_path: Path, name: str, text: str, reason: str) -> None:
    config = tmp_path / "lamplighter.toml"
    config.write_text(text)
    assert reason_against(name, config).startswith(reason)
    assert bool(reason) == bool(reason_against(name, config))


def condition(name: str, config: Path, python: str) -> int:
    """How systemd would take the condition of a unit: 0 starts it, up to 254 leaves it out."""
    command = unit(f"lamplighter-{name}.service")["Service"]["ExecCondition"].replace("$$", "$")
    program = command.replace("/usr/lib/lamplighter/bin/python", python)
    settings = program.replace("/etc/lamplighter/lamplighter.toml", str(config))
    assert program != command and settings != program
    environment = {"PYTHONPATH": str(ROOT)}
    return subprocess.run(shlex.split(settings), env=environment, capture_output=True, check=False).returncode


@each_row(
    ("name", "wanted", "unwanted"),
    [
        ("mqtt", '[mqtt]\nhost = "127.0.0.1"', ""),
        ("coap", "", "[coap]\nenabled = false"),
        ("http-devices", "[http_devices]\nenabled = true", ""),
        ("modbus", "[modbus]\nenabled = true", ""),
        ("sync", '[sync]\ndestination = "/srv"', ""),
    ],
)
def test_a_service_is_left_out_only_when_the_settings_say_so(
    tmp_path: Path, name: str, wanted: str, unwanted: str
) -> None:
    config = tmp_path / "lamplighter.toml"
    config.write_text(unwanted)
    assert condition(name, config, sys.executable) == 1
    config.write_text(wanted)
    assert condition(name, config, sys.executable) == 0
    # What cannot even ask, as while a package is unpacked, is no reason to leave it out for good.
    config.write_text(unwanted)
    assert condition(name, config, str(tmp_path / "no-python")) == 0
    for ended in ("exit 1", "exit 2", "kill -KILL $$"):
        broken = tmp_path / "broken"
        broken.write_text(f"#!/bin/sh\n{ended}\n")
        broken.chmod(0o755)
        assert condition(name, config, str(broken)) == 0, ended


def test_every_service_that_may_be_left_out_has_such_a_condition() -> None:
    conditions = {path.name for path in SERVICES if "ExecCondition" in unit(path.name)["Service"]}
    assert conditions == {"lamplighter-sync.service", *(f"{spec.service}.service" for spec in ADAPTERS)}


def test_without_settings_the_process_itself_says_so(tmp_path: Path) -> None:
    assert reason_against("sync", tmp_path / "missing.toml") == ""
