"""The data folder, as `lamplighter check` finds it for the user of the services."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest

from lamplighter.engine.errors import ChangeLogError, ConfigurationError
from lamplighter.gateway.clock import MachineClock
from lamplighter.gateway.gates.opening import Protection
from lamplighter.gateway.log.writer import LogWriter
from lamplighter.gateway.service.data_check import check_data
from lamplighter.gateway.service.port_check import port_faults
from lamplighter.gateway.service.unit_view import UnitView
from lamplighter.gateway.settings import Settings
from tests.gateway.service.test_preflight import settings
from tests.support.tables import each_row

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can look with the eyes of another user")

VIEW = UnitView("lamplighter-gateway.service", "nobody")
SECURE = {"enabled": True, "host": "127.0.0.1", "https_port": 0, "wss_port": 0}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data folder of the user's, after a start."""
    for folder in (tmp_path, *tmp_path.parents):
        if any(one.name.startswith("pytest-of-") for one in (folder, *folder.parents)):
            folder.chmod(0o755)  # pytest's own, which are for their owner only
    data = tmp_path / "data"
    data.mkdir()
    start(data)  # by root, who may read all modules that it imports
    for path in (data, *data.rglob("*")):
        shutil.chown(path, "nobody")
    return data


def start(data: Path) -> None:
    """What a start does before it serves: the log with a record, and the keys."""
    log = LogWriter(data, MachineClock("always"), "fsync")
    log.open()
    try:
        Protection(settings(security=SECURE), data.parent, data, MachineClock("always"), log.disk)
    finally:
        log.close()


def faults(data: Path) -> list[str]:
    found: list[str] = []
    with VIEW.eyes():
        check_data(Settings(), data, VIEW, found, [])
    return found


@each_row(
    ("names", "mode", "first", "refused"),
    [
        (["security"], 0o755, "security", True),
        (["security/keys.json"], 0o755, "security/keys.json", True),
        (["identity", "lock"], 0o755, "identity and 1 more", True),
        (["log"], 0o755, "log", False),  # until its first record
        (["log"], 0o700, "log", True),
        (["snapshots"], 0o700, "snapshots", True),
        (["history"], 0o755, "history", False),  # without it, the index of values is not kept
        (["home.ndjson.zst"], 0o755, "", False),
        ([], 0o755, "", False),
    ],
)
def test_files_of_another_user_are_found_as_a_start_finds_them(
    data: Path, names: list[str], mode: int, first: str, refused: bool
) -> None:
    (data / "home.ndjson.zst").touch()
    (data / "history").mkdir(exist_ok=True)
    for path in data.rglob("*"):
        shutil.chown(path, "nobody")
    for path in (data / name for name in names):
        shutil.chown(path, "root")
        path.chmod(mode if path.is_dir() else 0o600)
    found = faults(data)
    cure = f", as after a copy that root has restored; `chown -R nobody: {data}`"
    assert found == ([f"data folder {data}: nobody may not use {data / first}{cure}"] if first else [])
    if refused:
        with VIEW.eyes(), pytest.raises((ConfigurationError, ChangeLogError), match="chown -R nobody: "):
            start(data)


def test_what_systemd_gives_to_the_user_is_no_fault(data: Path) -> None:
    for path in (data, *data.rglob("*")):
        shutil.chown(path, "root")
    view = UnitView(VIEW.name, VIEW.user, state=(data,))
    found: list[str] = []
    with view.eyes():
        check_data(Settings(), data, view, found, [])
    assert found == []


def test_a_port_of_an_adapter_is_its_own_while_no_gateway_runs() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as adapter:
        adapter.bind(("127.0.0.1", 0))
        wanted = settings(coap={"server": {"enabled": True, "port": adapter.getsockname()[1]}})
        assert len([*port_faults(wanted, [], None)]) == 1
        assert [*port_faults(wanted, [], None, os.geteuid())] == []
