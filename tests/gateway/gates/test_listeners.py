"""Sockets that gates listen on."""

from __future__ import annotations

import errno
import os
import resource
import socket
import stat
from contextlib import closing
from pathlib import Path

import pytest

from lamplighter.engine.errors import ConfigurationError
from lamplighter.gateway.gates.listeners import passed_listener, tcp_listener, unix_listener
from lamplighter.gateway.service.process import allow_files
from lamplighter.gateway.settings import HttpSettings, Settings, WebsocketSettings


def test_accepted_connections_do_not_wait_for_acknowledgements() -> None:
    listener = tcp_listener("http", "127.0.0.1", 0, 1000)
    with closing(listener.socket), socket.create_connection(("127.0.0.1", listener.port)):
        accepted, _ = listener.socket.accept()
        with closing(accepted):
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert not listener.local


def test_a_port_that_is_taken_is_named() -> None:
    listener = tcp_listener("http", "127.0.0.1", 0, 1000)
    with (
        closing(listener.socket),
        pytest.raises(ConfigurationError, match=f"http: cannot listen on .*:{listener.port}"),
    ):
        tcp_listener("http", "127.0.0.1", listener.port, 1000)


def test_a_host_that_is_no_address_is_named_with_the_reason() -> None:
    with pytest.raises(ConfigurationError, match=r"no host:0: (?!Unknown error)[^(;]+; write an address of this"):
        tcp_listener("http", "no host", 0, 1000)
    with pytest.raises(ConfigurationError, match="Cannot assign requested address; write an address of this machine"):
        tcp_listener("http", "203.0.113.5", 0, 1000)


def test_an_address_of_ipv6_on_a_machine_without_it_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: object, **more: object) -> socket.socket:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))

    monkeypatch.setattr(socket, "create_server", refused)  # as the kernel does with ipv6.disable=1
    with pytest.raises(ConfigurationError, match="not supported by protocol; write an address of this machine"):
        tcp_listener("http", "fd00::7", 0, 1000)


def answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=60).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.parametrize(("host", "answering"), [("::", [True, True]), ("0.0.0.0", [True, False])])
def test_every_address_is_of_both_families(host: str, answering: list[bool]) -> None:
    listener = tcp_listener("security", host, 0, 1000)
    with closing(listener.socket):
        assert [answers(one, listener.port) for one in ("127.0.0.1", "::1")] == answering


def test_every_address_is_of_one_family_without_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    listener = tcp_listener("security", "::", 0, 1000)
    with closing(listener.socket):
        assert listener.socket.getsockname()[0] == "0.0.0.0"


def test_an_address_that_is_taken_is_written_as_in_a_url() -> None:
    with closing(tcp_listener("security", "0.0.0.0", 0, 1000).socket) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"cannot listen on \[::\]:{port}: Address already in use"):
            tcp_listener("security", "::", port, 1000)


@pytest.mark.parametrize("passed", [False, True], ids=["its own", "passed by systemd"])
def test_more_connections_than_a_gate_may_have_take_no_files(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, passed: bool
) -> None:
    """A gate counts its connections when their TLS handshake is over; thousands without one had all files."""
    monkeypatch.setattr("lamplighter.gateway.gates.listeners.HANDSHAKES_MAX", 1)
    if passed:
        listener = passed_listener(socket.create_server(("127.0.0.1", 0)), 1)
    else:
        listener = tcp_listener("http", "127.0.0.1", 0, 1)

    def connected() -> socket.socket:
        return socket.create_connection(("127.0.0.1", listener.port), timeout=60)

    with closing(listener.socket), closing(connected()), closing(connected()):
        first, second = listener.socket.accept()[0], listener.socket.accept()[0]
        for _ in range(2):
            with closing(connected()) as client:
                with pytest.raises(ConnectionAbortedError):
                    listener.socket.accept()
                assert client.recv(1) == b""
        assert caplog.text.count(f"connections refused port={listener.port} open=2") == 1
        first.close()
        with closing(connected()):
            listener.socket.accept()[0].close()
        second.close()


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


def test_the_process_may_have_the_files_that_its_connections_need(caplog: pytest.LogCaptureFixture) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, limits[1]))
        allow_files(Settings(http=HttpSettings(connections_max=30), websocket=WebsocketSettings(connections_max=70)))
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (556, limits[1])
        allow_files(Settings(http=HttpSettings(connections_max=1), websocket=WebsocketSettings(connections_max=1)))
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (556, limits[1])
        assert not caplog.text
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
