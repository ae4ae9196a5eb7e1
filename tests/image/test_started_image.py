"""The built image, started on an emulated board: one machine through its life, in the order of this file.

First start, what it serves, who is refused, units that are stopped and killed, a power cut under load, an update that
stays and one that does not, a factory reset, and another machine of the same image.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import socket
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest
from appliance.slots import autoboot

from tests.image.virtual_machine import Machine, machine
from tests.support.coap_lamp import CoapLamp
from tests.support.components import require_command
from tests.support.places import ROOT

pytestmark = pytest.mark.image

PREFIXES = (
    "PREFIX sosa: <http://www.w3.org/ns/sosa/> PREFIX lighting: <http://lamplighter.example/ns/lighting#> "
    "PREFIX gateway: <http://lamplighter.example/ns/gateway#> "
)
SETTINGS = """[gateway]
base_iri = "http://home.example/"
[coap]
plain = ["10.0.2.0/24"]
"""
"""The emulated network, which has the lamp, may do without keys: by default nothing is sent to a device without one."""
UNITS = ("lamplighter-gateway", "lamplighter-mqtt", "lamplighter-coap", "mosquitto", "avahi-daemon")


@pytest.fixture(scope="module")
def board(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A board with a card of 4 GiB, on which somebody has put his files, one of them with a mistake."""
    with machine(tmp_path_factory.mktemp("board"), image) as one:
        one.card.write(1, "timezone", b"Europe/Rome\r\n")
        one.card.write(1, "wpa_supplicant.conf", b'network={\n ssid="home"\n psk="long enough"\n}\n')
        one.card.write(1, "lamplighter.toml", SETTINGS.encode())
        one.start()
        one.wait_until_up()
        yield one


@pytest.fixture(scope="module")
def secrets(board: Machine) -> dict[str, str]:
    return board.credentials()


def token(board: Machine, secrets: dict[str, str]) -> str:
    basic = base64.b64encode(f"{secrets['client id']}:{secrets['client secret']}".encode()).decode()
    headers = {"Authorization": f"Basic {basic}", "Content-Type": "application/json", "Accept": "application/json"}
    status, answer = board.https("/oauth/token", b"", headers)
    assert status in (200, 201) and isinstance(answer, dict), (status, answer)
    given: str = answer["token"]["access_token"] if "token" in answer else answer["access_token"]
    return given


class Client:
    """The operator, from outside."""

    def __init__(self, board: Machine, secrets: dict[str, str]) -> None:
        self._board = board
        self._headers = {"Authorization": f"Bearer {token(board, secrets)}"}

    def update(self, text: str) -> int:
        headers = {**self._headers, "Content-Type": "application/sparql-update"}
        return self._board.https("/secure/update", (PREFIXES + text).encode(), headers)[0]

    def rows(self, text: str) -> list[dict[str, str]]:
        headers = {**self._headers, "Content-Type": "application/x-www-form-urlencoded"}
        body = urllib.parse.urlencode({"query": PREFIXES + text}).encode()
        status, answer = self._board.https("/secure/query", body, headers)
        assert status == 200 and isinstance(answer, dict), (status, answer)
        return [{name: one["value"] for name, one in row.items()} for row in answer["results"]["bindings"]]


def publish(board: Machine, topic: str, payload: str, *credentials: str) -> int:
    command = [require_command("mosquitto_pub"), "-h", "127.0.0.1", "-p", str(board.ports[1883]), "-q", "1"]
    command += [*credentials, "-t", topic, "-m", payload]
    return subprocess.run(command, capture_output=True, timeout=120, check=False).returncode


# --- the first start ------------------------------------------------------------------------------------


def test_first_start_completes_without_a_failed_unit(board: Machine) -> None:
    board.assert_no_failed_unit()
    assert board.ssh("systemctl is-system-running", check=False) == "running"


def test_data_grows_to_the_card(board: Machine) -> None:
    free = int(board.ssh("df --output=size -B1 /data | tail -n 1"))
    assert free > 2_000_000_000  # of a card of 4 GiB, 1.4 GiB of which are the systems


def test_root_is_read_only(board: Machine) -> None:
    assert board.ssh("findmnt -n -o FSTYPE,OPTIONS /").split()[0] == "squashfs"
    assert "Read-only" in board.ssh("touch /usr/lib/x 2>&1", check=False)
    assert "noatime" in board.ssh("findmnt -n -o OPTIONS /data")
    assert board.ssh("findmnt -n -o OPTIONS /boot/config").startswith("ro")


def state_is_on_the_card(board: Machine) -> bool:
    folders = ("lamplighter", "lamplighter-coap", "mosquitto", "systemd")
    return all(board.ssh(f"findmnt -n -o FSTYPE --target /var/lib/{folder}") == "ext4" for folder in folders)


def test_what_runs_writes_where_it_lasts_or_in_memory(board: Machine) -> None:
    assert state_is_on_the_card(board)
    assert board.ssh("findmnt -n -o FSTYPE --target /var/log") == "overlay"
    assert board.ssh("ls -A /var/log/journal 2> /dev/null", check=False) == ""
    assert int(board.ssh("journalctl --disk-usage | grep -o '[0-9.]*M' | tr -d M | cut -d. -f1") or "0") <= 48


def test_machine_has_a_name_of_its_own(board: Machine) -> None:
    assert re.fullmatch(r"lamplighter-[0-9a-f]{4}", board.ssh("hostname"))
    assert re.fullmatch(r"[0-9a-f]{32}", board.ssh("cat /etc/machine-id"))


def test_secrets_are_on_the_console_once_and_not_in_the_journal(board: Machine, secrets: dict[str, str]) -> None:
    for name in ("client secret", "MQTT password"):
        assert board.console.count(secrets[name]) == 1, name
        assert secrets[name] not in board.ssh("journalctl --no-pager --output cat")
    assert secrets["fingerprint"] in board.console
    assert board.ssh("stat -c %a /boot/config/lamplighter-credentials.txt") in ("600", "700")


def test_files_on_the_firmware_partition_are_taken(board: Machine) -> None:
    assert board.ssh("readlink /etc/localtime") == "/usr/share/zoneinfo/Europe/Rome"
    assert 'base_iri = "http://home.example/"' in board.ssh("cat /etc/lamplighter/lamplighter.toml")


def test_mistake_in_a_file_is_told_on_the_console(board: Machine) -> None:
    assert re.search(r"lamplighter: MISTAKE in wpa_supplicant.conf: has no line country=", board.console)
    assert board.ssh("ls /etc/wpa_supplicant/wpa_supplicant-wlan0.conf 2> /dev/null", check=False) == ""


def test_watchdog_of_the_board_is_used(board: Machine) -> None:
    assert board.ssh("systemctl show -p RuntimeWatchdogUSec --value") == "15s"


def test_start_waits_for_neither_network_nor_time(board: Machine) -> None:
    ordered = board.ssh("systemctl list-dependencies --after --plain lamplighter-gateway.service")
    assert "network-online.target" not in ordered
    assert "time-sync.target" not in ordered
    # The broker's unit names the former; nothing holds it up.
    assert board.ssh("systemctl is-enabled systemd-networkd-wait-online.service", check=False) == "masked"
    assert board.ssh("systemctl is-active time-sync.target", check=False) == "inactive"


def test_gateway_knows_whether_the_clock_is_synchronised(board: Machine) -> None:
    """The kernel is told that it is; the board has no time server. adjtimex(2): modes, status, and the errors in it."""
    health = (
        "import json, socket; s = socket.socket(socket.AF_UNIX); s.connect('/run/lamplighter/http.sock'); "
        "s.sendall(b'GET /health HTTP/1.0\\r\\n\\r\\n'); "
        "print(json.loads(s.makefile('rb').read().split(b'\\r\\n\\r\\n')[1])['clock_trusted'])"
    )
    synchronised = (
        "import ctypes, struct; clock = ctypes.create_string_buffer(512); struct.pack_into('I', clock, 0, 0x1C); "
        "print(ctypes.CDLL(None).adjtimex(clock))"
    )
    assert board.ssh(f'python3 -c "{health}"') == "False"
    assert board.ssh(f'python3 -c "{synchronised}"') != "-1"
    assert board.ssh(f'python3 -c "{health}"') == "True"


# --- the network ----------------------------------------------------------------------------------------


def documented_ports() -> set[tuple[str, int]]:
    """The table of ports in docs/appliance.md."""
    text = (ROOT / "docs/appliance.md").read_text()
    return {(kind, int(port)) for port, kind in re.findall(r"^\| (\d+)/(tcp|udp) \|", text, re.MULTILINE)}


def test_ports_are_the_documented_ones(board: Machine) -> None:
    found = set()
    for line in board.ssh("ss -H -l -n -t -u").splitlines():
        kind, _, _, _, local, *_ = line.split()
        address, port = local.rsplit(":", 1)
        if address.split("%")[0].strip("[]").startswith("127.") or address == "[::1]":
            continue
        if kind == "udp" and int(port) >= 32768:
            continue  # what a client of CoAP or mDNS sends from; answers come back there
        found.add((kind, int(port)))
    documented = documented_ports()
    assert {one for one in found if one[0] == "tcp"} == {one for one in documented if one[0] == "tcp"}
    assert found <= documented  # whether there is a lease to renew depends on the network
    assert ("udp", 5353) in found


def test_gateway_answers_over_tls(board: Machine) -> None:
    board.wait("readiness", lambda: board.https("/ready")[0] == 200 or None)


def test_names_and_services_are_announced(board: Machine) -> None:
    log = board.ssh("journalctl -u avahi-daemon --no-pager -o cat")
    assert "successfully established" in log or "Server startup complete" in log
    assert "Failed" not in log


def test_reading_becomes_triples_and_lights_a_lamp_outside(board: Machine, secrets: dict[str, str]) -> None:
    client = Client(board, secrets)
    with CoapLamp() as lamp:
        assert (
            client.update(
                "INSERT DATA { <http://home.example/post/3> lighting:hasLamp <http://home.example/lamp/3> . "
                f"<http://home.example/lamp/3> gateway:coapResource <coap://10.0.2.2:{lamp.port}/lamp> ; "
                "lighting:hasStatus 'OFF' }"
            )
            == 200
        )
        sensors = ("-u", secrets["MQTT user"], "-P", secrets["MQTT password"])
        assert publish(board, "street/3/presence", "true", *sensors) == 0
        board.wait(
            "an observation",
            lambda: client.rows("SELECT ?o { ?o sosa:hasFeatureOfInterest <http://home.example/post/3> }") or None,
        )

        def lit() -> bool | None:
            """Whether the lamp was ON, if only for a moment."""
            if "ON" in lamp.states:
                return True
            known = client.rows("SELECT ?p ?o { <http://home.example/lamp/3> ?p ?o }")
            sent = client.rows("SELECT ?p ?o { ?sent sosa:madeByActuator <http://home.example/lamp/3> ; ?p ?o }")
            raise AssertionError(f"the lamp was set to {lamp.states}; the gateway has {known}, and sent {sent}")

        board.wait("light", lit)  # it may be told OFF before, which it is at first


def test_nobody_is_served_without_credentials(board: Machine) -> None:
    for path in ("/secure/query?query=ASK%7B%7D", "/query?query=ASK%7B%7D", "/figures", "/metrics", "/clients"):
        assert board.https(path)[0] in (401, 403), path
    headers = {"Content-Type": "application/sparql-update"}
    assert board.https("/secure/update", b"INSERT DATA { <a:a> <a:a> 1 }", headers)[0] in (401, 403)
    assert publish(board, "street/3/presence", "true") != 0
    assert publish(board, "street/3/presence", "true", "-u", "sensors", "-P", "sensors") != 0
    assert publish(board, "street/3/presence", "true", "-u", "gateway", "-P", "") != 0
    for method in ("password", "keyboard-interactive", "none"):
        options = f"-o BatchMode=yes -o PreferredAuthentications={method} -o StrictHostKeyChecking=no"
        command = f"ssh -p {board.ports[22]} {options} -o UserKnownHostsFile=/dev/null root@127.0.0.1 true"
        refused = subprocess.run(command.split(), capture_output=True, check=False)
        assert refused.returncode == 255, method
    with socket.create_connection(("127.0.0.1", board.ports[9443]), 30) as plain:
        plain.settimeout(60)
        plain.sendall(b"GET /subscribe HTTP/1.1\r\nHost: x\r\n\r\n")
        with contextlib.suppress(OSError):
            assert b"101" not in plain.recv(100)


# --- services that are stopped, killed and hang ---------------------------------------------------------


def main_process(board: Machine, unit: str) -> int:
    return int(board.ssh(f"systemctl show -p MainPID --value {unit}"))


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("what", ["systemctl restart", "systemctl stop", "systemctl kill -s KILL"])
def test_unit_recovers(board: Machine, unit: str, what: str) -> None:
    before = main_process(board, unit)
    board.ssh(f"{what} {unit}")
    if what.endswith("stop"):
        board.ssh(f"systemctl start {unit} lamplighter.target")

    def other_one() -> bool | None:
        active = board.ssh(f"systemctl is-active {unit}", check=False) == "active"
        return (active and main_process(board, unit) not in (0, before)) or None

    board.wait(f"{unit} after {what}", other_one)


def test_services_work_again_after_all_that(board: Machine, secrets: dict[str, str]) -> None:
    client = Client(board, secrets)
    sensors = ("-u", secrets["MQTT user"], "-P", secrets["MQTT password"])
    board.wait("the broker", lambda: publish(board, "street/8/presence", "true", *sensors) == 0 or None)
    board.wait(
        "an observation",
        lambda: client.rows("SELECT ?o { ?o sosa:hasFeatureOfInterest <http://home.example/post/8> }") or None,
    )
    assert client.rows("SELECT ?s { <http://home.example/lamp/3> lighting:hasStatus ?s }")  # of before
    board.assert_no_failed_unit()


def test_gateway_that_hangs_is_started_again(board: Machine, secrets: dict[str, str]) -> None:
    before = main_process(board, "lamplighter-gateway")
    board.ssh(f"kill -STOP {before}")
    board.wait("another gateway", lambda: main_process(board, "lamplighter-gateway") not in (0, before) or None)
    board.wait("readiness", lambda: board.https("/ready")[0] == 200 or None)
    assert "watchdog" in board.ssh("journalctl -u lamplighter-gateway --no-pager -o cat").lower()
    assert Client(board, secrets).rows("SELECT ?s { <http://home.example/lamp/3> lighting:hasStatus ?s }")


def test_figures_of_the_services(board: Machine) -> None:
    """Not a limit but a record, for docs: resident memory, and how long the start took."""
    found = {unit: board.ssh(f"grep VmRSS /proc/{main_process(board, unit)}/status") for unit in UNITS}
    found["start"] = board.ssh("systemd-analyze time", check=False)
    print(json.dumps(found, indent=1))
    assert all(found.values())


# --- the power goes -------------------------------------------------------------------------------------


def test_nothing_acknowledged_is_lost_when_the_power_goes_under_load(board: Machine, secrets: dict[str, str]) -> None:
    acknowledged: list[int] = []
    done = threading.Event()

    def load(first: int) -> None:
        client = Client(board, secrets)
        for number in range(first, first + 1_000_000, 2):
            with contextlib.suppress(OSError):
                if (
                    client.update(f"INSERT DATA {{ <http://home.example/n/{number}> lighting:hasStatus 'SENT' }}")
                    == 200
                ):
                    acknowledged.append(number)
            if done.is_set():
                return

    threads = [threading.Thread(target=load, args=(first,)) for first in (0, 1)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 600
    while len(acknowledged) < 40 and time.monotonic() < until:
        time.sleep(0.5)
    board.cut_power()
    done.set()
    for thread in threads:
        thread.join(120)
    assert len(acknowledged) >= 40
    board.start()
    board.wait_until_up()
    assert state_is_on_the_card(board)  # at the second start, too
    client = board.wait("the gateway", lambda: Client(board, secrets))  # the same secrets hold
    rows = client.rows("SELECT ?n { ?n lighting:hasStatus 'SENT' }")
    kept = {int(row["n"].rsplit("/", 1)[1]) for row in rows}
    assert set(acknowledged) <= kept
    board.assert_no_failed_unit()


def test_secrets_are_told_in_the_first_start_only(board: Machine, secrets: dict[str, str]) -> None:
    assert board.console.count(secrets["client secret"]) == 1
    sensors = ("-u", secrets["MQTT user"], "-P", secrets["MQTT password"])
    board.wait("the broker", lambda: publish(board, "street/9/presence", "true", *sensors) == 0 or None)


# --- updates --------------------------------------------------------------------------------------------


def install(board: Machine, bundle: Path) -> str:
    board.send(bundle, "/data/update.raucb")
    try:
        return board.ssh("lamplighter update /data/update.raucb 2>&1", check=False, limit_s=3000)
    finally:
        board.ssh("rm -f /data/update.raucb")


def restart(board: Machine) -> None:
    reset(board)
    board.start()
    board.wait_until_up()


def reset(board: Machine) -> None:
    with contextlib.suppress(AssertionError):  # the connection may end before the answer
        board.ssh("systemctl reboot", check=False)
    board.wait_for_reset()


def test_damaged_bundle_changes_nothing(board: Machine, built: Path, tmp_path: Path) -> None:
    (bundle,) = built.glob("lamplighter-*.raucb")
    damaged = tmp_path / "damaged.raucb"
    damaged.write_bytes(bundle.read_bytes()[:-4096])  # the signature is at the end
    assert "nothing has changed" in install(board, damaged)
    assert board.card.read(1, "autoboot.txt") == (ROOT / "image/bootconfig/autoboot.txt").read_bytes()


def test_update_that_is_well_stays(board: Machine, built: Path, secrets: dict[str, str]) -> None:
    (bundle,) = built.glob("lamplighter-*.raucb")
    assert "The next start" in install(board, bundle)
    restart(board)
    assert board.booted[-1] == 3
    assert "root=PARTUUID=4c414d50-06" in board.ssh("cat /proc/cmdline")
    assert Client(board, secrets).rows("SELECT ?n { ?n lighting:hasStatus 'SENT' }")  # state is shared
    board.wait("the verdict", lambda: board.ssh("test ! -e /run/appliance/trial && echo kept") or None)
    restart(board)
    assert board.booted[-1] == 3


def test_update_that_hangs_is_tried_once(board: Machine, built: Path) -> None:
    (bundle,) = built.glob("lamplighter-*.raucb")
    assert "The next start" in install(board, bundle)
    reset(board)
    board.start()
    assert board.booted[-1] == 2
    board.wait("the trial", lambda: "on trial" in board.last_console or None, 1200)
    board.cut_power()  # as the board's watchdog would
    board.start()
    assert board.booted[-1] == 3
    board.wait_until_up()


def test_system_that_cannot_be_read_is_tried_once(board: Machine) -> None:
    """Its initramfs finds no root and gives up; by then the mark of the trial is gone."""
    assert board.booted[-1] == 3, "the update before has to be there to go back to"
    reset(board)
    board.card.overwrite(5, bytes(1 << 20))
    board.card.write(1, "autoboot.good", board.card.read(1, "autoboot.txt"))
    board.card.write(1, "autoboot.txt", autoboot("A").encode())
    board.start()
    assert board.booted[-1] == 2
    board.wait_for_reset()
    assert "on trial" in board.last_console
    board.start()
    assert board.booted[-1] == 3
    board.wait_until_up()


# --- the end, and the next one --------------------------------------------------------------------------


def test_factory_reset_wipes_everything_once(board: Machine, secrets: dict[str, str]) -> None:
    board.ssh(  # a folder, which some make in place of a file
        "mount -o remount,rw /boot/config && mkdir /boot/config/factory-reset && touch /boot/config/factory-reset/x && "
        "mount -o remount,ro /boot/config"
    )
    name = board.ssh("hostname")
    restart(board)
    again = board.credentials()
    for kind in ("client secret", "MQTT password", "fingerprint"):
        assert again[kind] != secrets[kind], kind
    assert board.ssh("hostname") != name
    assert not Client(board, again).rows("SELECT ?n { ?n lighting:hasStatus 'SENT' }")
    assert not [name for name in board.card.names(1) if name.startswith("factory-reset")]


def test_second_machine_has_other_secrets(image: Path, tmp_path: Path, secrets: dict[str, str]) -> None:
    """The power went in its first start, too, when all of a file system was there but the superblock, which is last."""
    begun = tmp_path / "begun"
    begun.touch()
    subprocess.run([require_command("mke2fs"), "-q", "-t", "ext4", "-L", "lamplighter-new", begun, "16M"], check=True)
    with machine(tmp_path / "second", image) as second:
        second.card.overwrite(7, bytes(2048) + begun.read_bytes()[2048:])
        second.start()
        second.wait_until_up()
        others = second.credentials()
        assert set(others) == set(secrets)
        for kind in ("gateway", "client secret", "MQTT password", "fingerprint"):
            assert others[kind] != secrets[kind], kind
