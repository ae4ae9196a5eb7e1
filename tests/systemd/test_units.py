"""The units, as they stand: what systemd says of them, and that they agree with the settings and with the package."""

from __future__ import annotations

import configparser
import re
import subprocess
import tomllib
from pathlib import Path

import msgspec
import pytest

from cloud_sync.settings import SyncSettings
from gateway.__main__ import _parser
from gateway.adapter_process import MQTT_PASSWORD
from gateway.gates import HTTP, WEBSOCKET, socket_paths
from gateway.install import _LONG_RUNNING, _UNITS
from gateway.settings import Settings
from gateway.wanted import reason_against
from tests.components import require_command

TOP = Path(__file__).resolve().parents[2]
UNITS = TOP / "systemd"
DEB = TOP / "image/deb"
SERVICES = sorted(UNITS.glob("*.service"))
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
    return msgspec.convert(tomllib.loads((UNITS / "lamplighter.toml").read_text()), Settings)


def test_systemd_has_nothing_to_say_about_the_units() -> None:
    files = [path for path in UNITS.iterdir() if path.suffix in (".service", ".socket", ".target", ".timer")]
    assert len(files) == 8
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


@pytest.mark.parametrize("service", SERVICES, ids=lambda path: path.stem)
def test_services_can_do_next_to_nothing_to_the_machine(service: Path) -> None:
    command = [require_command("systemd-analyze"), "security", "--offline=true", "--no-pager", service]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"Overall exposure level for \S+: (\d+\.\d)", said)
    assert found is not None, said
    assert float(found[1]) <= EXPOSURE_MAX


@pytest.mark.parametrize("name", _LONG_RUNNING)
def test_services_are_restarted_for_good(name: str) -> None:
    service = unit(f"lamplighter-{name}.service")
    assert service["Unit"]["StartLimitIntervalSec"] == "0"
    assert service["Unit"]["PartOf"] == "lamplighter.target"
    assert service["Service"]["Type"] == "notify"
    assert service["Service"]["Restart"] == "always"
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
    assert found.security.registration == "listed"
    gateway = unit("lamplighter-gateway.service")["Service"]
    assert found.gateway.data == f"/var/lib/{gateway['StateDirectory']}"
    assert found.security.socket_folder == f"/run/{gateway['RuntimeDirectory']}"
    assert gateway["RuntimeDirectoryPreserve"] == "yes", "the sockets are there"


def test_credentials_have_the_names_that_the_processes_look_for() -> None:
    assert unit("lamplighter-mqtt.service")["Service"]["LoadCredential"] == MQTT_PASSWORD
    name = unit("lamplighter-sync.service")["Service"]["LoadCredential"]
    text = (UNITS / "lamplighter.toml").read_text()
    assert f"/etc/credstore/{name}" in text
    assert f"/etc/credstore/{MQTT_PASSWORD}" in text
    assert SyncSettings(options_file=name)


@pytest.mark.parametrize("service", SERVICES, ids=lambda path: path.stem)
def test_commands_are_commands(service: Path) -> None:
    commands = re.findall(r"^Exec(?:Start|Reload|Condition)=(.*)$", service.read_text(), re.M)
    assert commands
    for command in commands:
        program, *words = command.split()
        if program.endswith("bin/lamplighter"):
            assert _parser().parse_args(words).config == Path("/etc/lamplighter/lamplighter.toml")
        elif program.endswith("bin/python"):
            assert words[:2] == ["-P", "-m"]
            assert (TOP / words[2].replace(".", "/")).exists() or (TOP / f"{words[2].replace('.', '/')}.py").exists()
        else:
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


@pytest.mark.parametrize("script", ["postinst", "prerm", "postrm"])
def test_scripts_of_the_package_name_every_unit(script: str) -> None:
    text = (DEB / script).read_text()
    names = {path.name for path in UNITS.iterdir() if path.suffix in (".service", ".socket", ".target", ".timer")}
    if script != "prerm":
        names = {name for name in names if "[Install]" in (UNITS / name).read_text()}
    [declared] = re.findall(r'^units="(.*?)"$', text, re.M | re.S)
    assert names == set(declared.split())


@pytest.mark.parametrize("script", ["build.sh", "postinst", "prerm", "postrm"])
def test_scripts_of_the_package_have_no_findings(script: str) -> None:
    checked = subprocess.run(
        [require_command("shellcheck"), "-x", "-e", "SC1091", DEB / script], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout


def test_only_purging_deletes_data() -> None:
    purging = re.compile(r"^\s*purge\)\n(.*?)^\s*;;", re.M | re.S)
    for script in ("postinst", "prerm", "postrm"):
        assert "/var/lib/lamplighter" not in purging.sub("", (DEB / script).read_text()), script
    assert "rm -rf /var/lib/lamplighter" in (DEB / "postrm").read_text()


def test_older_systemd_is_not_given_keys_that_it_does_not_know() -> None:
    for path in UNITS.glob("lamplighter*"):
        assert "RestartSteps" not in path.read_text(), path
    assert "RestartSteps" in (UNITS / "restart-steps.conf").read_text()
    assert _UNITS == "etc/systemd/system"


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("mqtt", "", "mqtt.host is empty"),
        ("mqtt", '[mqtt]\nhost = "127.0.0.1"', ""),
        ("coap", "", ""),
        ("coap", "[coap]\nenabled = false", "coap.enabled is false"),
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


def test_without_settings_the_process_itself_says_so(tmp_path: Path) -> None:
    assert reason_against("sync", tmp_path / "missing.toml") == ""
