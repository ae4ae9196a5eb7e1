"""Sockets that gates listen on."""

from __future__ import annotations

import socket
import stat
from contextlib import closing
from pathlib import Path

import pytest

from engine.errors import ConfigurationError
from gateway.listeners import tcp_listener, unix_listener


def test_accepted_connections_do_not_wait_for_acknowledgements() -> None:
    listener = tcp_listener("http", "127.0.0.1", 0)
    with closing(listener.socket), socket.create_connection(("127.0.0.1", listener.port)):
        accepted, _ = listener.socket.accept()
        with closing(accepted):
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert not listener.local


def test_a_port_that_is_taken_is_named() -> None:
    listener = tcp_listener("http", "127.0.0.1", 0)
    with (
        closing(listener.socket),
        pytest.raises(ConfigurationError, match=f"http: cannot listen on .*:{listener.port}"),
    ):
        tcp_listener("http", "127.0.0.1", listener.port)


def test_a_unix_socket_takes_the_place_of_a_dead_one_and_is_not_for_everybody(tmp_path: Path) -> None:
    path = tmp_path / "run" / "http.sock"
    unix_listener(path).socket.close()
    assert path.exists()
    listener = unix_listener(path)
    with closing(listener.socket), closing(socket.socket(socket.AF_UNIX)) as client:
        client.connect(str(path))
        assert listener.local
        assert stat.S_IMODE(path.stat().st_mode) == 0o660


def test_a_path_that_no_unix_socket_can_have_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="path too long; name a shorter"):
        unix_listener(tmp_path / ("x" * 200))
