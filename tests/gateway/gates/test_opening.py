"""Listeners that the gateway opens in plain and in secure mode."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from lamplighter.engine.client.files import read_file
from lamplighter.engine.errors import ConfigurationError, QueueFullError, UnauthorizedError
from lamplighter.gateway.disk import Disk
from lamplighter.gateway.gates.opening import Protection
from lamplighter.gateway.gates.protection_check import check_protection
from lamplighter.gateway.security import certificates
from lamplighter.gateway.security.browsers import Browsers
from lamplighter.gateway.security.callers import ANYBODY, LOCAL
from lamplighter.gateway.security.certificates import DEVICE, own_identity
from lamplighter.gateway.security.gatekeeper import OpenGatekeeper, TokenGatekeeper
from lamplighter.gateway.security.peers import peer, trusted_users
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.settings.security import SecuritySettings
from tests.support.gateway_parts import FakeClock
from tests.support.places import ROOT
from tests.support.tables import each_row


def protection(folder: Path, **tables: Any) -> Protection:
    settings = msgspec.convert(tables, Settings)
    (folder / "data").mkdir(exist_ok=True)
    return Protection(settings, folder, folder / "data", FakeClock(), Disk())


def test_plain_mode_does_not_load_what_only_secure_mode_needs() -> None:
    names = "[name for name in ('cryptography', 'jwt') if name in sys.modules]"
    script = f"import sys, lamplighter.gateway.service.process; print({names})"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@each_row("table", ["http", "websocket"])
@each_row("host", ["0.0.0.0", "::", "192.0.2.1", "lamp.example"])
def test_plain_gates_on_the_network_have_to_be_asked_for_by_name(tmp_path: Path, table: str, host: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{table}\.host = .*security\.plain_on_network"):
        protection(tmp_path, **{table: {"host": host, "port": 0}}).open()


def test_asked_for_by_name_they_are_opened(tmp_path: Path) -> None:
    host = {"host": "0.0.0.0", "port": 0}
    gates = protection(tmp_path, http=host, websocket=host, security={"plain_on_network": True}).open()
    listeners = [*gates.http, *gates.websocket]
    assert [listener.socket.getsockname()[0] for listener in listeners] == ["0.0.0.0"] * 2
    assert isinstance(gates.gatekeeper, OpenGatekeeper)
    for listener in listeners:
        listener.socket.close()


SECURE = {"enabled": True, "host": "127.0.0.1", "https_port": 0, "wss_port": 0}


def test_in_secure_mode_tcp_is_tls_and_the_rest_is_of_this_machine(tmp_path: Path) -> None:
    gates = protection(tmp_path, security=SECURE).open()
    for listeners in (gates.http, gates.websocket):
        kinds = [(listener.socket.family, listener.tls is not None) for listener in listeners]
        assert kinds == [(socket.AF_INET, True), (socket.AF_UNIX, False)]
        for listener in listeners:
            listener.socket.close()


@each_row(
    ("settings", "told"),
    [
        ({"grant_read": ["relative"]}, "security.grant_read.*not an absolute IRI"),
        ({"local_users": ["nobody-of-that-name"]}, "security.local_users"),
        ({"certificate_file": "a.pem", "key_file": "a.key"}, r"security\.certificate_file.*a\.pem"),
        ({"names": ["a b"]}, "security.names"),
        ({"socket_folder": "x" * 200}, "cannot listen on"),
    ],
)
def test_settings_that_cannot_be_used_stop_the_start(tmp_path: Path, settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        protection(tmp_path, security=SECURE | settings).open()


@pytest.mark.parametrize("name", ["certificate", "key"])
def test_a_file_that_may_not_be_read_stops_the_start_but_is_no_mistake_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    own_identity(tmp_path, [], Disk())
    for file in (certificate, key):
        file.write_bytes((tmp_path / DEVICE).read_bytes())
    settings = SECURE | {"certificate_file": certificate.name, "key_file": key.name}
    checked = msgspec.convert({"security": settings}, Settings)
    assert check_protection(checked, tmp_path, tmp_path / "data") == ""
    refused = {"certificate": certificate, "key": key}[name]

    def read(path: Path) -> bytes:  # a mode would not keep root from reading
        if path == refused:
            raise PermissionError(13, "Permission denied", str(path))
        return read_file(path)

    monkeypatch.setattr(certificates, "read_file", read)
    unread = check_protection(checked, tmp_path, tmp_path / "data")
    assert unread == f"security.{name}_file: {refused}: Permission denied; name a file in PEM that the gateway may read"
    with pytest.raises(ConfigurationError, match=unread):
        protection(tmp_path, security=settings)


def test_a_port_that_is_taken_is_told_and_nothing_stays_open(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"cannot listen on 127.0.0.1:{port}"):
            protection(tmp_path, security=SECURE | {"wss_port": port}).open()


@contextmanager
def pair(folder: Path) -> Iterator[socket.socket]:
    """The gateway's end of a Unix socket."""
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as client:
        listening.bind(str(folder / "s"))
        listening.listen()
        client.connect(str(folder / "s"))
        accepted, _ = listening.accept()
        with accepted:
            yield accepted


BROWSERS = Browsers(SecuritySettings())


def test_only_trusted_users_pass_at_a_unix_socket(tmp_path: Path) -> None:
    with pair(tmp_path) as connected:
        request: Any = SimpleNamespace(scope={"state": {"socket": connected, "origin": ""}})
        process = peer(connected)
        assert process is not None
        assert TokenGatekeeper(None, trusted_users([]), BROWSERS).http_caller(request) == LOCAL  # type: ignore[arg-type]
        with pytest.raises(UnauthorizedError, match=r"security\.local_users"):
            TokenGatekeeper(None, frozenset({process.user + 1}), BROWSERS).http_caller(request)  # type: ignore[arg-type]


def test_plain_mode_limits_an_address_when_it_is_told_to() -> None:
    request: Any = SimpleNamespace(
        client=SimpleNamespace(host="127.0.0.1"), scope={"state": {"socket": None, "origin": ""}}
    )
    unlimited = OpenGatekeeper(FakeClock(), 0)
    assert {unlimited.http_caller(request) for _ in range(10_000)} == {ANYBODY}
    limited = OpenGatekeeper(FakeClock(), 2)
    assert [limited.http_caller(request) for _ in range(2)] == [ANYBODY] * 2
    with pytest.raises(QueueFullError, match="plain_requests_per_s = 2"):
        limited.http_caller(request)
