"""Unauthenticated clients: limits on their bytes, their time and their effect on others."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.sync.client import ClientConnection, connect

from tests.support.running_gateway import Answer
from tests.support.secure_gateway import TIMEOUT_S, SecureGateway, ask, hear

FIRST_BYTES_MAX = 64 * 1024
QUERY = "ASK {}"


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "compressed"])
def gateway(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[SecureGateway]:
    folder = tmp_path_factory.mktemp("first")
    tables = {"websocket": {"compression": request.param}, "limits": {"query_bytes_max": 16 * 2**20}}
    with SecureGateway(folder, tables, attempts_per_min=100_000) as running:
        yield running


@pytest.fixture(scope="module")
def bearer(gateway: SecureGateway) -> str:
    return gateway.bearer("full", gateway.client("full", read=["*"], write=["*"], subscribe=["*"]))


def query(size: int, **members: str) -> str:
    """A query message of so many bytes."""
    empty = json.dumps({"query": {"sparql": QUERY, "alias": "a", **members}})
    return json.dumps({"query": {"sparql": QUERY.ljust(len(QUERY) + size - len(empty)), "alias": "a", **members}})


def closed_with(client: ClientConnection) -> int:
    with pytest.raises(ConnectionClosed) as caught:
        while True:
            hear(client)
    assert caught.value.rcvd is not None
    return caught.value.rcvd.code


def test_a_first_message_has_its_token_within_64_kib(gateway: SecureGateway, bearer: str) -> None:
    with gateway.websocket() as client:
        client.send(query(FIRST_BYTES_MAX - 1024, authorization=bearer))
        assert "answer" in hear(client)
        client.send(query(4 * 2**20, authorization=bearer))
        assert "answer" in hear(client)


def test_a_large_message_may_follow_the_first_at_once(gateway: SecureGateway, bearer: str) -> None:
    with gateway.websocket() as client:
        client.send(query(1000, authorization=bearer))
        client.send(query(900_000, authorization=bearer))
        assert ["answer" in hear(client) for _ in range(2)] == [True, True]


def test_a_token_in_the_handshake_allows_large_messages(gateway: SecureGateway, bearer: str) -> None:
    with gateway.websocket(Authorization=bearer) as client:
        client.send(query(2**20))
        assert "answer" in hear(client)


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer no.good.token"}])
def test_a_larger_message_without_a_good_token_ends_its_connection(
    gateway: SecureGateway, headers: dict[str, str]
) -> None:
    with gateway.websocket(**headers) as client:
        client.send(query(FIRST_BYTES_MAX - 1024))
        assert hear(client)["status_code"] in (400, 401)
        client.send(query(FIRST_BYTES_MAX + 1024))  # short enough for the buffers of the sockets
        assert closed_with(client) == CloseCode.MESSAGE_TOO_BIG


def test_who_goes_on_without_a_good_token_is_disconnected(gateway: SecureGateway) -> None:
    with gateway.websocket() as client:
        for _ in range(100):
            assert ask(client, {"query": {"sparql": QUERY}})["status_code"] in (400, 401)
        client.send(json.dumps({"query": {"sparql": QUERY}}))
        assert closed_with(client) == CloseCode.POLICY_VIOLATION


def test_processes_of_this_machine_may_send_large_messages_at_once(gateway: SecureGateway) -> None:
    with gateway.local_websocket() as client:
        client.send(query(2**20))
        assert "answer" in hear(client)


def test_a_head_that_is_too_large_is_told_so(gateway: SecureGateway) -> None:
    with connected(gateway, "127.0.0.1") as one:
        one.sendall(b"GET /subscribe HTTP/1.1\r\nHost: localhost\r\n" + (b"X: " + b"y" * 8000 + b"\r\n") * 3)
        head, _, body = received(one).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 431 ")
        assert Answer(431, {}, body).json["error"] == "headers_too_large"


def test_who_shows_no_token_in_time_is_disconnected(tmp_path: Path) -> None:
    with SecureGateway(tmp_path, token_wait_s=1) as gateway:
        bearer = gateway.bearer("full", gateway.client("full", read=["*"]))
        with gateway.websocket(Authorization=bearer) as good, gateway.websocket() as silent:
            assert closed_with(silent) == CloseCode.POLICY_VIOLATION
            assert "answer" in ask(good, {"query": {"sparql": QUERY}})


# --- whom they keep out ---------------------------------------------------------------------------------


def connected(gateway: SecureGateway, source: str, port: int | None = None) -> ssl.SSLSocket:
    """A connection with TLS from another address of this machine."""
    raw = socket.create_connection(("127.0.0.1", port or gateway.socket_port), TIMEOUT_S, (source, 0))
    return gateway.tls.wrap_socket(raw, server_hostname="localhost")


def received(one: ssl.SSLSocket) -> bytes:
    data = b""
    try:
        while part := one.recv(65536):
            data += part
    except OSError:
        pass
    return data


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SecureGateway]:
    with SecureGateway(tmp_path, {"websocket": {"connections_max": 4}, "http": {"connections_max": 4}}) as running:
        yield running


def websocket_from(gateway: SecureGateway, source: str, **headers: str) -> ClientConnection:
    tls = ssl.create_default_context(cafile=gateway.authority)
    tls.maximum_version = ssl.TLSVersion.TLSv1_2
    raw = socket.create_connection(("127.0.0.1", gateway.socket_port), TIMEOUT_S, (source, 0))
    url = f"wss://localhost:{gateway.socket_port}/subscribe"
    return connect(url, sock=raw, ssl=tls, additional_headers=headers, open_timeout=TIMEOUT_S)


def test_who_fills_the_sockets_without_a_token_keeps_nobody_out(small: SecureGateway) -> None:
    bearer = small.bearer("full", small.client("full", read=["*"]))
    message: dict[str, Any] = {"query": {"sparql": QUERY, "authorization": bearer}}
    with ExitStack() as stack:
        trusted = stack.enter_context(websocket_from(small, "127.0.0.1"))
        assert "answer" in ask(trusted, message)
        hostile = [stack.enter_context(websocket_from(small, "127.0.0.1")) for _ in range(3)]
        good = stack.enter_context(websocket_from(small, "127.0.0.2"))
        with pytest.raises(ConnectionClosed):
            hostile[0].recv(TIMEOUT_S)
        assert "answer" in ask(good, message)
        assert "answer" in ask(trusted, message)
        # Those of one address keep each other out: they are refused, as before.
        with pytest.raises(Exception, match="503"):
            websocket_from(small, "127.0.0.1")


def test_who_fills_the_http_gate_without_a_token_keeps_nobody_out(small: SecureGateway) -> None:
    bearer = small.bearer("full", small.client("full", read=["*"]))
    with ExitStack() as stack:
        hostile = [stack.enter_context(connected(small, "127.0.0.1", small.port)) for _ in range(4)]
        good = stack.enter_context(connected(small, "127.0.0.2", small.port))
        good.sendall(f"GET /health HTTP/1.1\r\nHost: localhost\r\nAuthorization: {bearer}\r\n\r\n".encode())
        assert good.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert received(hostile[0]) == b""
