"""The ports of a gateway whose settings leave them to the system."""

import fcntl
from pathlib import Path

import msgspec
import pytest

from lamplighter.engine.errors import UpstreamError
from lamplighter.gateway.addresses import Ports, assigned_here, local_url, ports_here, write_ports
from lamplighter.gateway.settings import Settings
from tests.support.tables import each_row


def settings(http: int, websocket: int) -> Settings:
    return msgspec.convert({"http": {"port": http}, "websocket": {"port": websocket}}, Settings)


def test_ports_that_the_system_chose_are_found_in_the_data_folder(tmp_path: Path) -> None:
    write_ports(settings(0, 0), tmp_path, Ports(43211, 43212))
    assert ports_here(settings(0, 0), tmp_path) == (43211, 43212)
    assert ports_here(settings(8000, 0), tmp_path) == (8000, 43212)
    assert local_url(settings(0, 0), tmp_path) == "ws://127.0.0.1:43212/subscribe"
    write_ports(settings(0, 0), tmp_path, Ports(5, 6))
    assert ports_here(settings(0, 0), tmp_path) == (5, 6)


def test_ports_of_the_settings_need_no_file(tmp_path: Path) -> None:
    write_ports(settings(8000, 9000), tmp_path, Ports(8000, 9000))
    assert list(tmp_path.iterdir()) == []
    assert ports_here(settings(8000, 9000), tmp_path) == (8000, 9000)


@each_row("text", [None, "", "http x\n", "http 1\n", "http 1 2\n"])
def test_ports_that_are_not_known_are_an_error(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "ports").write_text(text)
    with pytest.raises(UpstreamError, match="is it running, with this configuration"):
        ports_here(settings(0, 0), tmp_path)


@each_row("content", [None, b"", b"\xff", b'{"a": 1}', b"[1]"])
def test_settings_of_the_command_line_that_cannot_be_read_are_none(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "assigned.json").write_bytes(content)
    (tmp_path / "lock").touch()
    with (tmp_path / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert assigned_here(tmp_path) == []
