"""Quotas on the connections of one client and of one address."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from lamplighter.gateway.security import peers
from tests.support.running_gateway import running_gateway
from tests.support.secure_gateway import SecureGateway, ask

TEXT = "SELECT ?o { ?s <p:> ?o }"


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureGateway]:
    tables = {"quotas": {"connections_max": 3}}
    with SecureGateway(tmp_path_factory.mktemp("secure"), tables, attempts_per_min=0) as running:
        yield running


def bearer(secure: SecureGateway, name: str) -> str:
    return secure.bearer(name, secure.client(name, read=["*"], subscribe=["*"]))


def asked(connection: http.client.HTTPSConnection, token: str) -> tuple[int, str, str | None]:
    """Status, body and Connection of one request on a connection that stays open."""
    headers = {"Authorization": token, "Content-Type": "application/sparql-query"}
    connection.request("POST", "/secure/query", "ASK {}", headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), answer.headers.get("Connection")


def test_a_client_has_its_connections_over_http(secure: SecureGateway) -> None:
    flood, other = bearer(secure, "http-flood"), bearer(secure, "http-other")

    def opened() -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("localhost", secure.port, timeout=60, context=secure.tls)

    connections = [opened() for _ in range(5)]
    try:
        for _ in range(2):
            assert [asked(one, flood)[0] for one in connections[:3]] == [200] * 3
        status, body, how = asked(connections[3], flood)
        assert (status, how) == (403, "close") and "quotas.connections_max = 3" in body
        assert msgspec.json.decode(body)["error"] == "limit_exceeded"
        assert asked(connections[4], other)[0] == 200
        connections[0].close()
        for _ in range(1000):
            again = opened()
            status = asked(again, flood)[0]
            again.close()
            if status == 200:
                break
        assert status == 200
    finally:
        for one in connections:
            one.close()


def test_a_client_has_its_connections_over_websocket(secure: SecureGateway) -> None:
    flood, other = bearer(secure, "ws-flood"), bearer(secure, "ws-other")
    subscribe, query = {"sparql": TEXT, "alias": "a"}, {"sparql": "ASK {}", "alias": "a"}
    with ExitStack() as stack:
        sockets = [stack.enter_context(secure.websocket()) for _ in range(5)]
        for one in sockets[:3]:
            assert "notification" in ask(one, {"subscribe": {**subscribe, "authorization": flood}})
            assert "answer" in ask(one, {"query": {**query, "authorization": flood}})
        refused = ask(sockets[3], {"query": {**query, "authorization": flood}})
        assert (refused["status_code"], refused["error"], refused["alias"]) == (403, "limit_exceeded", "a")
        assert "quotas.connections_max = 3" in refused["error_description"]
        for one in sockets[3:]:
            assert "answer" in ask(one, {"query": {**query, "authorization": other}})


async def test_an_address_has_its_connections_in_plain_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_of_address", lambda address: address)
    async with running_gateway(tmp_path, quotas={"connections_max": 3}) as addresses:
        host, _, port = addresses.query.removeprefix("http://").partition("/")[0].partition(":")
        streams = [await asyncio.open_connection(host, int(port)) for _ in range(4)]
        answer = (await streams[3][0].read()).decode()
        assert answer.startswith("HTTP/1.1 403 ") and "quotas.connections_max = 3" in answer
        for _, writer in streams:
            writer.close()
        sockets = [await connect(addresses.subscribe) for _ in range(3)]
        with pytest.raises(InvalidStatus) as caught:
            await connect(addresses.subscribe)
        assert caught.value.response.status_code == 403
        assert b"quotas.connections_max = 3" in caught.value.response.body
        await sockets[0].close()
        for _ in range(1000):  # until the gateway has seen that it went
            try:
                sockets.append(await connect(addresses.subscribe))
                break
            except InvalidStatus:
                continue
        assert len(sockets) == 4
        for one in sockets:
            await one.close()
