"""What makes an appliance of the machine, on a folder that stands for it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from appliance.announcement import announce
from appliance.files import TAKERS, take_files
from appliance.identity import ACCOUNTS, make_identity, password
from appliance.imager import FILE, PASSWORDS
from appliance.machine import CREDENTIALS, REPORT, Machine

from tests.support.components import require_command

WIRELESS = 'country=IT\nnetwork={\n    ssid="home"\n    psk="long enough"\n}\n'


@dataclass(frozen=True)
class FolderMachine(Machine):
    """A machine that is a folder. answers: what programs do, by their first two words; others run."""

    answers: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    asked: list[Sequence[str]] = field(default_factory=list)

    def run(self, *command: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
        self.asked.append(command)
        answer = self.answers.get(" ".join(command[:2]))
        if answer is None:
            return super().run(*command, given=given)
        if command[:2] == ("ssh-keygen", "-q") and not answer[0]:
            for name in (command[-1], f"{command[-1]}.pub"):
                Path(name).write_text(f"{Path(name).name} of this machine\n")
        return subprocess.CompletedProcess(command, *answer)

    @property
    def told(self) -> str:
        return (self.root / "dev/console").read_text()


@pytest.fixture
def machine(tmp_path: Path) -> FolderMachine:
    for folder in (
        "dev",
        "run",
        "usr/lib",
        "boot/config",
        "etc/ssh",
        "etc/lamplighter",
        "var/lib/mosquitto",
        "usr/share/zoneinfo/Europe",
    ):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "dev/console").touch()
    (tmp_path / "usr/share/zoneinfo/Europe/Rome").touch()
    (tmp_path / "etc/lamplighter/appliance.toml").write_text('[security]\nenabled = true\n[mqtt]\nhost = "127.0.0.1"\n')
    (tmp_path / "etc/lamplighter/lamplighter.toml").write_text("# before\n")
    (tmp_path / "usr/lib/os-release").write_text("IMAGE_VERSION=1\n")
    answers = {"ssh-keygen -q": (0, "", ""), "ssh-keygen -l": (255, "", ""), "lamplighter check": (0, "", "")}
    return FolderMachine(tmp_path, answers=answers)


def put(machine: Machine, name: str, content: str | bytes) -> None:
    (machine.firmware / name).write_bytes(content.encode() if isinstance(content, str) else content)


def test_identity_is_made_once(machine: FolderMachine) -> None:
    make_identity(machine)
    made = {file: file.read_bytes() for file in machine.root.rglob("*") if file.is_file()}
    make_identity(machine)
    assert {file: file.read_bytes() for file in machine.root.rglob("*") if file.is_file()} == made


@pytest.mark.parametrize("left", ["nothing", "its public half", "an empty file"])
def test_host_key_that_a_power_cut_left_is_made_again(machine: FolderMachine, left: str) -> None:
    """A name can be on the card before the content is: the key is whole, or is made."""
    key = machine.path("/etc/ssh/ssh_host_ed25519_key")
    if left == "its public half":
        key.with_name(f"{key.name}.pub").write_text("of another key\n")
    elif left == "an empty file":
        key.touch()
    make_identity(machine)
    assert key.read_text() == "key of this machine\n"
    assert key.stat().st_mode & 0o077 == 0
    assert key.with_name(f"{key.name}.pub").read_text() == "key.pub of this machine\n"
    assert not [*machine.path("/run").iterdir()]


def test_machine_starts_without_ssh_when_no_key_can_be_made(machine: FolderMachine) -> None:
    machine.answers["ssh-keygen -q"] = (1, "", "no random numbers\n")
    make_identity(machine)
    assert "ssh host keys could not be created: no random numbers" in machine.told
    assert machine.path("/etc/mosquitto/passwords").exists()


def test_host_name_has_four_hexadecimal_digits(machine: FolderMachine) -> None:
    make_identity(machine)
    name = machine.path("/etc/hostname").read_text().strip()
    assert name.startswith("lamplighter-") and len(name) == 16 and int(name[-4:], 16) >= 0
    assert f"127.0.1.1 {name}\n" in machine.path("/etc/hosts").read_text()


def test_no_two_machines_have_a_secret_in_common() -> None:
    assert len({password() for _ in range(1000)}) == 1000


def test_broker_knows_the_passwords_as_hashes_only(machine: FolderMachine) -> None:
    make_identity(machine)
    secrets = {
        "sensors": json.loads((machine.state / "broker.json").read_text())["sensors"],
        "gateway": machine.path("/etc/credstore/lamplighter.mqtt-password").read_text().strip(),
    }
    passwords = machine.path("/etc/mosquitto/passwords")
    assert passwords.stat().st_mode & 0o077 == 0
    for line in passwords.read_text().splitlines():
        user, rest = line.split(":")
        _, kind, iterations, salt, derived = rest.split("$")
        again = hashlib.pbkdf2_hmac("sha512", secrets.pop(user).encode(), base64.b64decode(salt), int(iterations))
        assert (kind, base64.b64decode(derived)) == ("7", again)
    assert not secrets


def test_secrets_are_readable_for_root_only(machine: FolderMachine) -> None:
    make_identity(machine)
    for file in (machine.state / "broker.json", machine.path("/etc/credstore/lamplighter.mqtt-password")):
        assert file.stat().st_mode & 0o077 == 0, file


def test_each_file_is_taken_once_until_it_is_changed(machine: FolderMachine) -> None:
    put(machine, "timezone", "Europe/Rome\n")
    assert take_files(machine)
    assert machine.path("/etc/localtime").readlink() == Path("/usr/share/zoneinfo/Europe/Rome")
    told = machine.told
    assert take_files(machine)
    assert machine.told == told
    put(machine, "timezone", "\nEurope/Rome\n")
    assert take_files(machine)
    assert machine.told != told


@pytest.mark.parametrize("text", [WIRELESS, WIRELESS.replace("\n", "\r\n"), "\ufeff" + WIRELESS])
def test_wireless_network_is_taken_however_its_lines_end(machine: FolderMachine, text: str) -> None:
    put(machine, "wpa_supplicant.conf", text)
    assert take_files(machine)
    taken = machine.path("/etc/wpa_supplicant/wpa_supplicant-wlan0.conf")
    assert taken.read_text() == WIRELESS
    assert taken.stat().st_mode & 0o077 == 0


def test_public_keys_are_taken(machine: FolderMachine, tmp_path: Path) -> None:
    keygen = require_command("ssh-keygen")
    subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    del machine.answers["ssh-keygen -l"]
    put(machine, "authorized_keys", "# mine\n" + (tmp_path / "key.pub").read_text())
    assert take_files(machine)
    assert "ssh-ed25519" in machine.path("/etc/ssh/authorized_keys/root").read_text()
    assert "1 key for ssh" in machine.told


def test_settings_are_merged_over_those_of_the_appliance(machine: FolderMachine) -> None:
    put(machine, "lamplighter.toml", '[gateway]\nbase_iri = "http://home.example/"\n[mqtt]\nqueue_max = 7\n')
    assert take_files(machine)
    merged = tomllib.loads(machine.path("/etc/lamplighter/lamplighter.toml").read_text())
    assert merged == {
        "gateway": {"base_iri": "http://home.example/"},
        "security": {"enabled": True},
        "mqtt": {"host": "127.0.0.1", "queue_max": 7},
    }


def test_settings_that_the_gateway_refuses_change_nothing(machine: FolderMachine) -> None:
    trial = machine.path("/etc/lamplighter/lamplighter.trial.toml")
    machine.answers["lamplighter check"] = (2, "", f"lamplighter: {trial}: no key colour in [gateway]\n")
    put(machine, "lamplighter.toml", '[gateway]\ncolour = "red"\n')
    assert not take_files(machine)
    assert machine.path("/etc/lamplighter/lamplighter.toml").read_text() == "# before\n"
    assert "MISTAKE in lamplighter.toml: no key colour in [gateway]" in machine.told
    assert "no key colour" in (machine.firmware / REPORT).read_text()


def test_settings_are_merged_anew_when_an_update_brings_others(machine: FolderMachine) -> None:
    """And when it goes back: the two systems share the settings that were merged."""
    put(machine, "lamplighter.toml", "[mqtt]\nqueue_max = 7\n")
    assert take_files(machine)
    machine.path("/etc/lamplighter/appliance.toml").write_text("[mqtt]\nqueue_max = 9\nport = 1884\n")
    assert take_files(machine)
    settings = machine.path("/etc/lamplighter/lamplighter.toml")
    assert tomllib.loads(settings.read_text()) == {"mqtt": {"queue_max": 7, "port": 1884}}


def test_settings_are_checked_anew_by_another_version(machine: FolderMachine) -> None:
    put(machine, "lamplighter.toml", "[mqtt]\nqueue_max = 7\n")
    assert take_files(machine)
    machine.path("/usr/lib/os-release").write_text("IMAGE_VERSION=2\n")
    machine.answers["lamplighter check"] = (2, "", "lamplighter: no key queue_max in [mqtt]\n")
    assert not take_files(machine)
    assert "MISTAKE in lamplighter.toml: no key queue_max in [mqtt]" in machine.told


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"timezone": 7}', "7"])
def test_damaged_list_of_what_was_taken_costs_nothing(machine: FolderMachine, damage: str) -> None:
    machine.state.mkdir(parents=True)
    (machine.state / "files.json").write_text(damage)
    put(machine, "timezone", "Europe/Rome\n")
    assert take_files(machine)
    told = machine.told
    assert take_files(machine) and machine.told == told


@pytest.mark.parametrize("fault", [OSError(5, "Input/output error"), subprocess.TimeoutExpired("lamplighter", 300)])
def test_whatever_goes_wrong_with_a_file_the_machine_starts(
    machine: FolderMachine, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    def fail(machine: Machine, text: str) -> str:
        raise fault

    monkeypatch.setitem(TAKERS, "lamplighter.toml", fail)
    put(machine, "lamplighter.toml", "")
    put(machine, "timezone", "Europe/Rome")
    assert not take_files(machine)
    assert f"MISTAKE in lamplighter.toml: not applied: {fault!r}" in machine.told
    assert machine.path("/etc/timezone").read_text() == "Europe/Rome\n"


@pytest.mark.parametrize("secret", ["pa{ss#wo}}rd", "closing}only", "{{{{{{{{", "# 12345678"])
def test_password_of_a_wireless_network_may_have_any_characters(machine: FolderMachine, secret: str) -> None:
    text = WIRELESS.replace("long enough", secret).replace("country=IT", "country=IT # where it is {")
    put(machine, "wpa_supplicant.conf", text)
    assert take_files(machine), machine.told
    assert machine.path("/etc/wpa_supplicant/wpa_supplicant-wlan0.conf").read_text() == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[security]\nlocal_users = ["nosuch"]\n', "security.local_users: this machine has no user 'nosuch'"),
        ('[security]\ncertificate_file = "my.pem"\nkey_file = "my.key"\n', "security.certificate_file: "),
        ('[http]\nquery_path = "/delayed"\n', "two resources have the path /delayed"),
    ],
)
def test_settings_with_which_the_gateway_would_not_start_are_refused_by_it(
    machine: FolderMachine, monkeypatch: pytest.MonkeyPatch, text: str, why: str
) -> None:
    del machine.answers["lamplighter check"]
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    # Its sockets are not below the test's folder, whose name may be too long for them.
    own = '[security]\nenabled = true\nsocket_folder = "/run/lamplighter"\n'
    machine.path("/etc/lamplighter/appliance.toml").write_text(own)
    put(machine, "lamplighter.toml", text)
    assert not take_files(machine)
    assert machine.path("/etc/lamplighter/lamplighter.toml").read_text() == "# before\n"
    assert "MISTAKE in lamplighter.toml: " in machine.told and why in machine.told
    put(machine, "lamplighter.toml", '[security]\nregistration = "open"\n')
    assert take_files(machine), machine.told


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("wpa_supplicant.conf", 'country=IT\nnetwork={\nssid="x"\n', "line 3: network block was not terminated"),
        ("wpa_supplicant.conf", WIRELESS.replace('"home"', "“home”"), "line 3: failed to parse ssid"),
        ("wpa_supplicant.conf", WIRELESS.replace('"home"', "home"), "line 3: failed to parse ssid"),
        ("wpa_supplicant.conf", WIRELESS.replace('ssid="home"', 'ssid="home'), "line 3: invalid quotation;"),
        ("wpa_supplicant.conf", WIRELESS.replace("psk=", "pks="), "line 4: unknown network field 'pks'"),
        ("wpa_supplicant.conf", WIRELESS.replace('"long enough"', "long enough"), "line 4: Invalid PSK;"),
        ("wpa_supplicant.conf", WIRELESS.replace('    psk="long enough"\n', ""), "line 2: this network has no psk"),
        ("wpa_supplicant.conf", f'{WIRELESS}network={{\nssid="b"\n}}\n', "line 6: this network has no psk"),
        ("wpa_supplicant.conf", WIRELESS.replace("country=IT", "country=Italy"), "country=XX"),
        ("wpa_supplicant.conf", "wifi: home\n", "line 1: "),
        ("wpa_supplicant.conf", "country=IT\n", "no network="),
        ("wpa_supplicant.conf", 'country=IT\nnetwork={\npsk="long enough"\n}', "no ssid"),
        ("wpa_supplicant.conf", WIRELESS.replace("country=IT\n", ""), "country=XX"),
        ("wpa_supplicant.conf", WIRELESS.replace("long enough", "short"), "line 4: Invalid passphrase length 5"),
        ("wpa_supplicant.conf", WIRELESS.replace("long enough", "é" * 32), "line 4: Invalid passphrase length 64"),
        ("authorized_keys", "", "no key"),
        ("authorized_keys", "ssh-ed25519 nonsense\n", "line 1 is not an ssh public key"),
        ("authorized_keys", "-----BEGIN OPENSSH PRIVATE KEY-----\n", "private key"),
        ("timezone", "Europe/Atlantis", "no time zone"),
        ("timezone", "../../etc/passwd", "no time zone"),
        ("timezone", b"\xff\xfe\xff", "UTF-8"),
        ("timezone", "A" * 400, "no time zone"),
        ("timezone", "", "such as Europe/Rome"),
        ("authorized_keys", "ssh-ed25519\n", "id_ed25519.pub"),
        ("rpi-preseed.toml", "[system]\nhostname = my lamp\n", "line 2"),
        ("rpi-preseed.toml", '[system]\nhostname = "my lamp"\n', "[system] hostname 'my lamp' is no host name"),
        ("rpi-preseed.toml", '[user]\nname = "An na"\n', "[user] name 'An na'"),
        ("rpi-preseed.toml", '[user]\nname = "anna"\npassword = "x"\npassword_encrypted = true\n', "is no hash"),
        ("rpi-preseed.toml", '[user]\nname = "root"\n', "root is a user of the system"),
        ("rpi-preseed.toml", '[wlan]\nssid = "a"\ncountry = "IT"\npassword = "short"\n', "[wlan] line 4: Invalid pass"),
        ("rpi-preseed.toml", '[wlan]\nssid = "a"\npassword = "long enough"\n', "[wlan] has no line country=XX"),
        ("rpi-preseed.toml", '[locale]\ntimezone = "Rome"\n', "[locale] there is no time zone"),
        ("rpi-preseed.toml", '[ssh]\nenabled = true\nauthorized_keys = ["x"]\n', "[ssh] line 1 is not an ssh public"),
        ("lamplighter.toml", "[mqtt]\nhost = “broker”\n", "line 2, column 8"),
        ("lamplighter.toml", "colour = 'red'\n", "outside of a table"),
        ("lamplighter.toml", "[gateway\n", "TOML"),
        ("lamplighter.toml", f"[gateway]\nat = {'9' * 9000}\n", "TOML"),
        ("lamplighter.toml", f"[gateway]\nat = {'[' * 9000}\n", "TOML"),
        ("lamplighter.toml", "[gateway]\nat = 2026-11-21\n", "gateway.at"),
        ("lamplighter.toml", "#" * 300_000, "bytes"),
    ],
)
def test_mistakes_are_told_at_each_start_and_change_nothing(
    machine: FolderMachine, name: str, content: str | bytes, why: str
) -> None:
    before = {file: file.read_bytes() for file in machine.path("/etc").rglob("*") if file.is_file()}
    put(machine, name, content)
    for count in (1, 2):
        assert not take_files(machine)
        mistakes = [line for line in machine.told.splitlines() if f"MISTAKE in {name}: " in line and why in line]
        assert len(mistakes) == count
    assert why in machine.path("/run/issue.d/lamplighter.issue").read_text()
    assert {file: file.read_bytes() for file in machine.path("/etc").rglob("*") if file.is_file()} == before


def test_tables_in_tables_are_merged(machine: FolderMachine) -> None:
    text = '[coap.server]\nport = 5684\n[mqtt.brokers.attic]\nhost = "attic"\n[ngsild.contexts]\n"http://a/b" = "c"\n'
    own = '[mqtt]\nhost = "127.0.0.1"\n[mqtt.brokers.cellar]\nhost = "cellar"\n[coap.server]\nenabled = true\n'
    machine.path("/etc/lamplighter/appliance.toml").write_text(own)
    put(machine, "lamplighter.toml", text)
    assert take_files(machine), machine.told
    assert "applied, 3 settings" in machine.told
    assert tomllib.loads(machine.path("/etc/lamplighter/lamplighter.toml").read_text()) == {
        "coap": {"server": {"enabled": True, "port": 5684}},
        "mqtt": {"host": "127.0.0.1", "brokers": {"cellar": {"host": "cellar"}, "attic": {"host": "attic"}}},
        "ngsild": {"contexts": {"http://a/b": "c"}},
    }


def test_lines_of_the_gateways_faults_are_those_of_the_users_file(machine: FolderMachine) -> None:
    trial = machine.path("/etc/lamplighter/lamplighter.trial.toml")
    said = f"lamplighter: {trial} line 9: mqtt.brokers.attic.host: 'a:1' is not a host\n{trial} line 1: other.key: no\n"
    machine.answers["lamplighter check"] = (2, "", said)
    put(machine, "lamplighter.toml", '# mine\n[mqtt.brokers.attic]\nport = 1\nhost = "a:1"\n')
    assert not take_files(machine)
    assert "MISTAKE in lamplighter.toml: line 4: mqtt.brokers.attic.host: 'a:1'" in machine.told
    assert "MISTAKE in lamplighter.toml: other.key: no" in machine.told


def test_the_report_on_the_card_is_written_when_there_is_something_new(machine: FolderMachine) -> None:
    report = machine.firmware / REPORT
    put(machine, "timezone", "Rome")
    take_files(machine)
    assert "MISTAKE in timezone: there is no time zone 'Rome'; it is a name such as" in report.read_text()
    before = report.stat().st_ino
    take_files(machine)
    assert report.stat().st_ino == before, "the card is not written for what it says already"
    put(machine, "timezone", "Europe/Rome")
    take_files(machine)
    assert report.read_bytes() == b"timezone: applied, the time zone is Europe/Rome\r\n"
    before = report.stat().st_ino
    take_files(machine)
    assert report.stat().st_ino == before
    put(machine, "timezone", "Rome")
    take_files(machine)
    (machine.firmware / "timezone").unlink()
    take_files(machine)
    assert report.read_text() == "all files were applied\n"


def test_no_secret_of_a_wireless_network_is_told(machine: FolderMachine) -> None:
    for wrong in ('psk="hunter2"', "psk=hunter2 and more", 'sae_password="hunter2'):
        put(machine, "wpa_supplicant.conf", WIRELESS.replace('psk="long enough"', wrong))
        assert not take_files(machine)
    assert "line 4" in machine.told and "hunter2" not in machine.told


# --- what Imager writes -----------------------------------------------------------------------------------

# As version 2.0.11 writes it when all pages of its customisation are filled in.
PMK = "a" * 64
NETWORK = b'home "5"'
IMAGER = f"""\
config_version = "1.0"

[system]
hostname = "Porch"

[user]
name = "anna"
password = "$y$j9T$abcdefghijklmnop$0123456789abcdefghijklmnopqrstuvwxyzABCDEFG"
password_encrypted = true
groups = ["sudo"]
passwordless_sudo = true

[ssh]
enabled = true
password_authentication = true
authorized_keys = [
  "ssh-ed25519 AAAA anna@laptop",
]

[wlan]
ssid = "home \\"5\\""
password = "{PMK}"
password_encrypted = true
hidden = true
country = "IT"

[locale]
keymap = "it"
timezone = "Europe/Rome"

[connect]
enabled = true
mode = "device-identity"
"""


@pytest.fixture
def with_users(machine: FolderMachine) -> FolderMachine:
    """Programs that make users do as if."""
    machine.answers.update(
        {
            "id -u": (1, "", "no such user\n"),
            "useradd --create-home": (0, "", ""),
            "usermod --append": (0, "", ""),
            "chpasswd --encrypted": (0, "", ""),
            "ssh-keygen -l": (0, "", ""),
        }
    )
    return machine


def test_all_that_imager_writes_is_applied(with_users: FolderMachine) -> None:
    machine = with_users
    put(machine, FILE, IMAGER)
    assert take_files(machine), machine.told
    assert machine.path("/etc/hostname").read_text() == "porch\n"
    assert "127.0.1.1 porch\n" in machine.path("/etc/hosts").read_text()
    asked = [" ".join(one) for one in machine.asked]
    assert "useradd --create-home --base-dir /data/home --shell /bin/bash anna" in asked
    assert "usermod --append --groups sudo anna" in asked and "chpasswd --encrypted" in asked
    sudo = machine.path("/etc/sudoers.d/010-anna")
    assert (sudo.read_text(), sudo.stat().st_mode & 0o777) == ("anna ALL=(ALL) NOPASSWD: ALL\n", 0o440)
    keys = machine.path("/etc/ssh/authorized_keys/anna")
    assert keys.read_text() == "ssh-ed25519 AAAA anna@laptop\n"
    assert keys.stat().st_mode & 0o777 == 0o644, "sshd reads it as anna"
    assert not machine.path("/etc/ssh/authorized_keys/root").exists()
    assert machine.path(PASSWORDS).read_text() == "PasswordAuthentication yes\n"
    wireless = machine.path("/etc/wpa_supplicant/wpa_supplicant-wlan0.conf").read_text()
    assert f"ssid={NETWORK.hex()}\n" in wireless and f"psk={PMK}\n" in wireless
    assert "scan_ssid=1" in wireless and wireless.startswith("country=IT\n")
    assert machine.path("/etc/timezone").read_text() == "Europe/Rome\n"
    assert "[connect] is not for this image" in machine.told
    assert "$y$" not in machine.told and PMK not in machine.told
    count = len(machine.asked)
    assert take_files(machine) and len(machine.asked) == count, "once"


def test_files_of_the_appliance_count_more_than_imagers(with_users: FolderMachine) -> None:
    machine = with_users
    put(machine, FILE, IMAGER.replace("Europe/Rome", "Europe/Atlantis"))
    put(machine, "wpa_supplicant.conf", WIRELESS)
    put(machine, "timezone", "Europe/Rome")
    assert take_files(machine), machine.told
    assert machine.path("/etc/wpa_supplicant/wpa_supplicant-wlan0.conf").read_text() == WIRELESS
    assert machine.path("/etc/timezone").read_text() == "Europe/Rome\n"


def test_open_network_keys_alone_and_a_declined_sudo(with_users: FolderMachine) -> None:
    machine = with_users
    text = '[ssh]\nenabled = true\npassword_authentication = false\nauthorized_keys = [\n  "ssh-ed25519 A",\n]\n'
    put(machine, FILE, f'{text}[wlan]\nssid_hex = "ff00"\nhidden = false\ncountry = "it"\n')
    assert take_files(machine), machine.told
    assert machine.path("/etc/ssh/authorized_keys/root").read_text() == "ssh-ed25519 A\n"
    assert not machine.path(PASSWORDS).exists()
    wireless = machine.path("/etc/wpa_supplicant/wpa_supplicant-wlan0.conf").read_text()
    assert "ssid=ff00\n" in wireless and "key_mgmt=NONE\n" in wireless
    put(machine, FILE, IMAGER)
    assert take_files(machine)
    put(machine, FILE, IMAGER.replace("passwordless_sudo = true\n", "").replace("ication = true", "ication = false"))
    assert take_files(machine)
    assert not machine.path("/etc/sudoers.d/010-anna").exists() and not machine.path(PASSWORDS).exists()
    put(machine, FILE, IMAGER)
    assert take_files(machine) and machine.path(PASSWORDS).exists()
    put(machine, FILE, IMAGER.replace("enabled = true\npass", "enabled = false\npass"))
    assert take_files(machine) and not machine.path(PASSWORDS).exists()


def test_what_is_wrong_in_one_part_leaves_the_others(with_users: FolderMachine) -> None:
    machine = with_users
    machine.answers["useradd --create-home"] = (1, "", "useradd: cannot lock /etc/passwd\n")
    put(machine, FILE, IMAGER)
    assert not take_files(machine)
    assert f"MISTAKE in {FILE}: [user] useradd refuses anna: useradd: cannot lock /etc/passwd" in machine.told
    assert machine.path("/etc/timezone").read_text() == "Europe/Rome\n"


def test_users_of_a_later_version_are_added_to_those_that_the_owner_has(machine: FolderMachine) -> None:
    accounts = machine.path(ACCOUNTS)
    accounts.mkdir(parents=True)
    (accounts / "passwd").write_text("root:x:0:0::/root:/bin/sh\nnewer:x:987:987::/:/sbin/nologin\n")
    passwd = machine.path("/etc/passwd")
    passwd.write_text("root:x:0:0:mine:/root:/bin/bash\nanna:x:1000:1000::/data/home/anna:/bin/bash\n")
    passwd.chmod(0o644)
    make_identity(machine)
    names = [line.partition(":")[0] for line in passwd.read_text().splitlines()]
    assert names == ["root", "anna", "newer"] and ":mine:" in passwd.read_text()
    before = passwd.stat().st_ino
    make_identity(machine)
    assert passwd.stat().st_ino == before


@pytest.mark.parametrize("name", [*(f"{name}.txt" for name in TAKERS), "id_ed25519.pub", "factory-reset.txt"])
def test_names_that_are_nearly_right_are_told(machine: FolderMachine, name: str) -> None:
    put(machine, name, "x")
    assert not take_files(machine)
    assert f"{name} is not read; did you mean" in machine.told


def test_everything_is_told_once(machine: FolderMachine, capsys: pytest.CaptureFixture[str]) -> None:
    make_identity(machine)
    machine.answers["lamplighter clients"] = (0, "client_id      operator\nclient_secret  s3cret\n", "")
    machine.answers["openssl x509"] = (0, "sha256 Fingerprint=AB:CD\n", "")
    sensors = json.loads((machine.state / "broker.json").read_text())["sensors"]
    announce(machine)
    for text in (machine.told, (machine.firmware / CREDENTIALS).read_text()):
        for secret in ("s3cret", sensors, "SHA-256 AB:CD", ".local:8443", "operator"):
            assert secret in text
    assert not (machine.state / "broker.json").exists()
    assert (machine.state / "announced").exists()
    said = capsys.readouterr()
    assert "s3cret" not in said.out + said.err and sensors not in said.out + said.err  # the journal would keep it


@pytest.mark.parametrize("radio", [True, False])
def test_board_without_the_radio_that_was_set_up_says_so(machine: FolderMachine, radio: bool) -> None:
    make_identity(machine)
    machine.answers["lamplighter clients"] = (0, "client_id      operator\nclient_secret  s3cret\n", "")
    machine.answers["openssl x509"] = (0, "sha256 Fingerprint=AB:CD\n", "")
    put(machine, "wpa_supplicant.conf", WIRELESS)
    assert take_files(machine)
    machine.path("/sys/class/net/wlan0" if radio else "/sys/class/net/eth0").mkdir(parents=True)
    announce(machine)
    assert ("no supported wireless network" in machine.told) is not radio


def test_operator_that_nobody_was_told_of_is_made_anew(machine: FolderMachine) -> None:
    """The power went between the registration and the announcement."""

    class Interrupted(FolderMachine):
        def run(self, *command: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
            if command[:3] == ("lamplighter", "clients", "add") and not self.asked[:1]:
                self.asked.append(command)
                return subprocess.CompletedProcess(command, 1, "", "lamplighter: there is a client operator already\n")
            return super().run(*command, given=given)

    make_identity(machine)
    machine.answers["lamplighter clients"] = (0, "client_id      operator\nclient_secret  s3cret\n", "")
    machine.answers["openssl x509"] = (0, "sha256 Fingerprint=AB:CD\n", "")
    interrupted = Interrupted(machine.root, answers=machine.answers)
    announce(interrupted)
    assert [command[2] for command in interrupted.asked if command[0] == "lamplighter"] == ["add", "remove", "add"]
    assert ("lamplighter", "clients", "remove", "operator", "--yes") in interrupted.asked, "nobody is there to be asked"
    assert "s3cret" in machine.told


def test_nothing_counts_as_told_while_the_gateway_does_not_answer(machine: FolderMachine) -> None:
    make_identity(machine)
    machine.answers["lamplighter clients"] = (2, "", "lamplighter: no gateway\n")
    with pytest.raises(OSError, match="no gateway"):
        announce(machine)
    assert (machine.state / "broker.json").exists()
    assert not (machine.state / "announced").exists()
    assert not (machine.firmware / CREDENTIALS).exists()
