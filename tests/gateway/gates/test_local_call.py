"""Calls to a socket that takes connections while no gateway runs, as systemd's does when the service crashes."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from lamplighter.engine.errors import UpstreamError
from lamplighter.gateway.__main__ import main
from lamplighter.gateway.addresses import socket_paths
from lamplighter.gateway.gates import local_call
from lamplighter.gateway.gates.local_call import Absence, call, require_gateway
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.systemd import UnitState

SECURE = msgspec.convert({"security": {"enabled": True}}, Settings)
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket of a gateway with the data folder `tmp_path`, which nobody serves."""
    (tmp_path / "lock").touch()
    path = socket_paths(SECURE, tmp_path)[0]
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))
        one.listen()
        yield one


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_call, "READ_S", 0.05)
    monkeypatch.setattr(local_call, "CHANGE_S", 0.1)
    monkeypatch.setattr(local_call, "_LOOK_S", 0.05)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_a_call_does_not_wait_for_a_gateway_that_is_not_there(
    tmp_path: Path, listening: socket.socket, method: str
) -> None:
    with pytest.raises(UpstreamError, match="no gateway runs"):
        call(SECURE, tmp_path, method, "/figures")
    with pytest.raises(UpstreamError, match="no gateway runs"):
        require_gateway(SECURE, tmp_path)


def test_a_gateway_that_is_slow_is_waited_for(
    tmp_path: Path, listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = threading.Semaphore(0)
    reason = Absence.reason

    def noted(absence: Absence) -> str:
        looks.release()
        return reason(absence)

    monkeypatch.setattr(Absence, "reason", noted)

    def serve() -> None:
        connection, _ = listening.accept()
        for _ in range(3):  # the call has looked for the gateway, and found it
            looks.acquire()
        connection.sendall(ANSWER)
        connection.close()

    lock = os.open(tmp_path / "lock", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    serving = threading.Thread(target=serve)
    serving.start()
    with call(SECURE, tmp_path, "GET", "/figures") as answer:
        assert answer.read() == b"{}"
    serving.join()
    os.close(lock)


def test_a_look_does_not_keep_a_gateway_from_starting(tmp_path: Path, listening: socket.socket) -> None:
    assert "no gateway runs" in Absence(tmp_path, 0.1).reason()
    lock = os.open(tmp_path / "lock", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert Absence(tmp_path, 0.1).reason() == ""
    os.close(lock)


@pytest.mark.parametrize(
    ("sub", "absent"), [("running", False), ("start", False), ("auto-restart", True), ("dead", True)]
)
def test_who_may_not_look_at_the_folder_asks_systemd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sub: str, absent: bool
) -> None:
    monkeypatch.setattr(local_call, "INSTALLED", tmp_path)
    monkeypatch.setattr(local_call, "unit_state", lambda unit: UnitState(unit, "any", sub, "exit-code", "3"))
    reason = Absence(tmp_path, 0.1).reason()  # there is no lock, as if it could not be opened
    assert bool(reason) == absent
    assert not absent or f"lamplighter-gateway.service: any ({sub}), exit-code, restarted 3 times" in reason


@pytest.mark.parametrize(
    ("unit", "told"),
    [
        (UnitState("x", "inactive", "dead", "success", "0"), r"x: inactive \(dead\), .*`systemctl start x` starts it"),
        (
            UnitState("x", "inactive", "dead", "success", "0", load="masked"),
            "x is masked, .*`systemctl unmask x && systemctl start x`",
        ),
        (UnitState("x", "active", "running", "success", "0"), "is it running, and with this configuration"),
        (None, "is it running, and with this configuration"),
    ],
    ids=["stopped", "masked", "running", "no systemd"],
)
def test_where_nobody_listens_systemd_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: UnitState | None, told: str
) -> None:
    monkeypatch.setattr(local_call, "INSTALLED", tmp_path)
    monkeypatch.setattr(local_call, "unit_state", lambda name: unit)
    with pytest.raises(UpstreamError, match=f"No such file or directory; {told}"):
        call(SECURE, tmp_path, "GET", "/figures")


def test_what_cannot_be_seen_is_no_absence(tmp_path: Path) -> None:
    assert Absence(tmp_path / "missing", 0.1).reason() == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["timers"],
        ["subscriptions"],
        ["devices"],
        ["clients", "list"],
        ["query", "ASK {}"],
        ["readings"],
        ["keys", "rotate"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_commands_say_that_no_gateway_runs(
    tmp_path: Path, listening: socket.socket, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    (tmp_path / "lamplighter.toml").write_text("[security]\nenabled = true\n")
    code = main([*arguments, "--config", str(tmp_path / "lamplighter.toml"), "--data", str(tmp_path)])
    assert (code, "no gateway runs" in capsys.readouterr().err) == (3, True)


def test_a_backup_is_made_from_the_folder(
    tmp_path: Path, listening: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lamplighter.toml").write_text("[security]\nenabled = true\n")
    main(["backup", str(tmp_path / "x.zst"), "--config", str(tmp_path / "lamplighter.toml"), "--data", str(tmp_path)])
    assert "the backup is made from" in capsys.readouterr().err
