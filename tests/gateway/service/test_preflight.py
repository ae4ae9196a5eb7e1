"""What a start meets on the machine."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from lamplighter.engine.client.places import with_absolute_places
from lamplighter.gateway.service import preflight as module
from lamplighter.gateway.service import unit_view
from lamplighter.gateway.service.port_check import SOCKETS, SystemdSocket, port_faults
from lamplighter.gateway.service.preflight import MachineFindings, preflight
from lamplighter.gateway.settings import Settings

PLAIN = {"http": {"port": 0}, "websocket": {"port": 0}, "coap": {"server": {"port": 0}}}
SECURE = {"security": {"enabled": True, "host": "127.0.0.1", "https_port": 0, "wss_port": 0}}
UNIT = """\
User=lamplighter
StateDirectory=lamplighter
ProtectSystem=no
ProtectHome=yes
PrivateTmp=no
"""
UNITS = """\
Listen=[::]:{http} (Stream)
Listen=/run/lamplighter/http.sock (Stream)
ActiveState={state}
UnitFileState=disabled

Listen=127.0.0.1:{ws} (Stream)
ActiveState={state}
UnitFileState=disabled
"""


def settings(**tables: object) -> Settings:
    return msgspec.convert({**PLAIN, **tables}, Settings)


def found(folder: Path, made: Settings, units: str = "") -> MachineFindings:
    asked: list[Sequence[str]] = []

    def show(arguments: Sequence[str]) -> str:
        asked.append(arguments)
        return units if SOCKETS[0] in arguments else UNIT

    made, _ = with_absolute_places(made, folder)
    result = preflight(made, folder / "lamplighter.toml", folder / "data", show, module.credential_names())
    assert bool(asked) == bool(units), "systemd is asked for the settings of its units only"
    return result


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that takes the place of /etc/lamplighter."""
    monkeypatch.setattr(unit_view, "SERVICE_FOLDER", tmp_path)
    monkeypatch.setattr(module, "CREDENTIALS", tmp_path / "credstore")
    return tmp_path


LISTEN = """
import socket, sys
one = socket.create_server(("127.0.0.1", 0))
print(one.getsockname()[1], flush=True)
sys.stdin.read()
"""


def taken() -> tuple[socket.socket, int]:
    listening = socket.create_server(("127.0.0.1", 0))
    return listening, listening.getsockname()[1]


def test_a_good_machine_has_no_faults(tmp_path: Path) -> None:
    assert found(tmp_path, settings()).faults == []
    assert list(tmp_path.iterdir()) == [], "nothing was written"


@pytest.mark.parametrize("secure", [False, True])
def test_each_port_in_use_is_named(tmp_path: Path, secure: bool) -> None:
    one, first = taken()
    other, second = taken()
    tables = {"http": {"port": first}, "websocket": {"port": second}}
    if secure:
        tables = {"security": {**SECURE["security"], "https_port": first, "wss_port": second}}
    with one, other:
        faults = found(tmp_path, settings(**tables)).faults
    keys = ("security.https_port", "security.wss_port") if secure else ("http.port", "websocket.port")
    assert [fault.partition(": Address")[0] for fault in faults] == [
        f"{tmp_path / 'lamplighter.toml'}: {key}: cannot listen on 127.0.0.1:{port}"
        for key, port in zip(keys, (first, second), strict=True)
    ]


def test_one_port_for_two_gates_is_named(tmp_path: Path) -> None:
    one, port = taken()
    one.close()
    [fault] = found(tmp_path, settings(http={"port": port}, websocket={"port": port})).faults
    assert f"websocket.port: cannot listen on 127.0.0.1:{port}" in fault


def test_the_ports_of_a_running_gateway_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    lock = (tmp_path / "data" / "lock").open("w")
    listening, port = taken()
    with lock, listening:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = found(tmp_path, settings(http={"port": port}))
        assert result.faults == []
        other = subprocess.Popen(
            [sys.executable, "-c", LISTEN], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
        )
        with other:
            assert other.stdout is not None
            [fault] = found(tmp_path, settings(websocket={"port": int(other.stdout.readline())})).faults
            assert "websocket.port: cannot listen" in fault, "another program's"
            other.communicate("")
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert len(found(tmp_path, settings(http={"port": port})).faults) == 1


def test_a_port_of_an_adapter_is_noted(tmp_path: Path) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        result = found(tmp_path, settings(coap={"server": {"port": port}}))
    assert result.faults == []
    assert [f"coap.server.port: cannot listen on 127.0.0.1:{port}" in note for note in result.notes] == [True]


def test_a_machine_without_ipv6_has_the_ports_of_every_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    everywhere = {"security": {**SECURE["security"], "host": "::"}}
    with socket.socket(type=socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        taken = found(tmp_path, settings(**everywhere, coap={"server": {"port": port}}))
    assert taken.faults == [] and "Address already in use" in " ".join(taken.notes)
    # A socket for IPv6 would not notice a program that has the port of IPv4, and could not be opened there.
    opened: list[int] = []
    kind = socket.socket

    def counted(family: int = socket.AF_INET, *arguments: int, **more: int) -> socket.socket:
        opened.append(family)
        return kind(family, *arguments, **more)

    monkeypatch.setattr("lamplighter.gateway.service.port_check.socket.socket", counted)
    assert found(tmp_path, settings(**everywhere)).faults == []
    assert socket.AF_INET6 not in opened


def test_the_ports_of_systemd_are_not_taken(service: Path) -> None:
    one, http = taken()
    other, ws = taken()
    with one, other:
        made = settings(security={**SECURE["security"], "https_port": http, "wss_port": ws})
        assert found(service, made, UNITS.format(http=http, ws=ws, state="active")).faults == []
        assert len(found(service, made, UNITS.format(http=http, ws=ws, state="inactive")).faults) == 2


def test_sockets_that_systemd_opens_at_the_next_boot_may_still_be_the_gateways(service: Path) -> None:
    one, http = taken()
    other, ws = taken()
    made = settings(security={**SECURE["security"], "https_port": http, "wss_port": ws})
    units = UNITS.replace("disabled", "enabled").replace("[::]", "127.0.0.1").format(http=http, ws=ws, state="inactive")
    (service / "data").mkdir()
    with one, other, (service / "data" / "lock").open("w") as lock:
        assert [fault.partition(" cannot")[0] for fault in found(service, made, units).faults] == [*SOCKETS]
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert found(service, made, units).faults == []
        # Another program has the port at another address: systemd cannot open it at the next boot either.
        command = [sys.executable, "-c", LISTEN.replace('"127.0.0.1", 0', f'"127.0.0.2", {http}')]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as another:
            assert another.stdout is not None and int(another.stdout.readline()) == http
            [fault] = found(service, made, units).faults
            assert fault.startswith(f"{SOCKETS[0]} cannot listen")
            another.communicate("")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can look with the eyes of another user")
def test_systemd_may_open_ports_that_the_service_may_not() -> None:
    passed = [SystemdSocket(SOCKETS[0], "127.0.0.1", 443, active=False)]
    secure = settings(**SECURE)
    with unit_view.UnitView("x", "nobody").eyes():
        assert [*port_faults(secure, passed, None)] == []
        [fault] = port_faults(settings(security={**SECURE["security"], "https_port": 443}), [], None)
    assert fault.names == ("security", "https_port") and "Permission denied" in fault.what


def test_a_destination_that_the_shipper_may_not_write_is_named(service: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "UNIT", UNIT.replace("ProtectSystem=no", "ProtectSystem=strict"))
    for url in ("file:///srv/lake", "file:/srv/lake", "local:///srv/lake", "/srv/lake"):
        faults = found(service, settings(sync={"destination": url}), "ActiveState=inactive").faults
        [fault] = [one for one in faults if "sync.destination" in one]
        assert fault.endswith("ReadWritePaths=/srv/lake")
    faults = found(service, settings(sync={"destination": "file://host/lake"}), "ActiveState=inactive").faults
    assert any("sync.destination: file://host/lake: not a folder of this machine" in fault for fault in faults)


def test_a_password_in_a_destination_is_refused(tmp_path: Path) -> None:
    [fault] = found(tmp_path, settings(sync={"destination": "sftp://user:s3cret@host/lake"})).faults
    assert "sync.destination: move the password" in fault and "s3cret" not in fault


def test_sockets_that_the_network_reaches_need_security(service: Path) -> None:
    units = UNITS.format(http=8443, ws=9443, state="active")
    [fault] = found(service, settings(), units).faults
    assert fault.startswith("security.enabled is false, and systemd listens at [::]:8443, which other machines reach")
    assert found(service, settings(security={"plain_on_network": True}), units).faults == []
    assert found(service, settings(**SECURE), units).faults == []


def test_secrets_of_services_are_looked_up_in_the_credential_store(service: Path) -> None:
    made = settings(
        mqtt={"host": "a", "username": "u", "password_file": "lamplighter.mqtt-password"},
        sync={"destination": "s3://bucket", "options_file": "lamplighter.sync-options"},
    )
    units = "ActiveState=inactive"
    faults = found(service, made, units).faults
    assert [fault.split(": ")[1] for fault in faults] == ["mqtt.password_file", "sync.options_file"]
    assert str(service / "credstore" / "lamplighter.sync-options") in faults[1], "where it looked"
    (service / "credstore").mkdir()
    (service / "credstore" / "lamplighter.mqtt-password").mkdir()
    (service / "credstore" / "lamplighter.sync-options").touch()
    assert len(found(service, made, units).faults) == 2, "neither has a secret"
    (service / "credstore" / "lamplighter.mqtt-password").rmdir()
    for name in ("lamplighter.mqtt-password", "lamplighter.sync-options"):
        (service / "credstore" / name).write_text("word")
    assert found(service, made, units).faults == []


def test_all_files_of_all_brokers_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    broker = {"host": "b", "tls": True, "ca_file": str(tmp_path / "ca.pem")}
    made = settings(
        mqtt={
            "host": "a",
            "username": "u",
            "password_file": str(tmp_path / "none"),
            "tls": True,
            "ca_file": str(tmp_path / "no.pem"),
            "brokers": {"attic": broker},
        }
    )
    faults = found(tmp_path, made).faults
    assert [fault.split(": ")[1] for fault in faults] == [
        "mqtt.password_file",
        "mqtt.ca_file",
        "mqtt.brokers.attic",
    ]


def test_options_with_secrets_that_others_may_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "options.toml").write_text("")
    (tmp_path / "options.toml").chmod(0o644)
    [fault] = found(tmp_path, settings(sync={"destination": "s3://b", "options_file": "options.toml"})).faults
    assert "sync.options_file" in fault and "world-readable" in fault


@pytest.mark.parametrize("place", ["data", "data/log"])
def test_a_file_in_the_place_of_a_folder_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text("")
    [fault] = found(tmp_path, settings()).faults
    assert f"{tmp_path / place} is not a folder" in fault


def test_too_little_free_disk_is_a_note(tmp_path: Path) -> None:
    result = found(tmp_path, settings(log={"bytes_max": 2**60}))
    assert result.faults == []
    [note] = result.notes
    assert note.startswith("free disk space: ") and "log.bytes_max" in note


def test_files_that_orders_need_are_looked_at(tmp_path: Path) -> None:
    orders = {"key_file": "fleet.pem", "credentials_file": "fleet.json"}
    faults = found(tmp_path, settings(sync={"orders": orders})).faults
    assert [fault.split(": ")[1] for fault in faults] == ["sync.orders.key_file", "sync.orders.credentials_file"]
    (tmp_path / "fleet.pem").write_text("")
    faults = found(tmp_path, settings(sync={"orders": {"key_file": "fleet.pem"}}, **SECURE)).faults
    assert "sync.orders.credentials_file: it is empty" in faults[0]
