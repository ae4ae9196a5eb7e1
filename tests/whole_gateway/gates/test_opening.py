"""A gateway in plain and in secure mode: what it serves, and what a second start finds."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

from tests.support.running_gateway import http, running_gateway
from tests.support.secure_gateway import JSON, SecureGateway, ask, basic


async def test_in_plain_mode_there_is_nothing_to_register_at(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as at:
        root = at.query.removesuffix("/query")
        for method, path in (
            ("POST", "/oauth/register"),
            ("POST", "/oauth/token"),
            ("GET", "/clients"),
            ("DELETE", "/clients/x"),
            ("POST", "/keys/rotate"),
        ):
            answer = await http(root + path, method, b"{}", JSON)
            assert (answer.status, answer.json["error"]) == (500, "dependability_not_configured"), path
        assert (await http(root + "/ca.pem")).status == 404
    assert not (tmp_path / "data" / "security").exists()


def test_however_many_come_by_the_network_this_machine_gets_through(tmp_path: Path) -> None:
    one = {"connections_max": 1}
    with SecureGateway(tmp_path, {"http": one, "websocket": one}) as gateway, gateway.websocket():
        with pytest.raises(InvalidStatus, match="503"), gateway.websocket():
            pass
        with gateway.local_websocket() as here:
            assert "answer" in ask(here, {"query": {"sparql": "ASK {}"}})
        taken = socket.create_connection(("localhost", gateway.port))
        with gateway.tls.wrap_socket(taken, server_hostname="localhost"):
            assert gateway.https("GET", "/ready").status == 503
            assert gateway.local("GET", "/ready").status == 200


def waiting(gateway: SecureGateway) -> int:
    """Resumable subscriptions whose client is away."""
    listed = gateway.local("GET", "/subscriptions").json["subscriptions"]
    return sum(one["since"] is None for one in listed)


def test_the_second_start_finds_authority_clients_and_keys(tmp_path: Path) -> None:
    open_to_all = {"registration": "open", "grant_subscribe": ["*"], "test_identity": True, "attempts_per_min": 3}
    with SecureGateway(tmp_path, **open_to_all) as gateway:
        secret = gateway.register("lamp").json["credentials"]["client_secret"]
        bearer = gateway.bearer("lamp", secret)
        authority, fingerprint = gateway.authority.read_bytes(), gateway.addresses.fingerprint
        with gateway.websocket(Authorization=bearer) as socket:
            ask(socket, {"subscribe": {"sparql": "SELECT * { ?s ?p ?o }", "resume": {"keep": "PT1H"}}})
    with SecureGateway(tmp_path, **open_to_all) as gateway:
        assert (gateway.authority.read_bytes(), gateway.addresses.fingerprint) == (authority, fingerprint)
        assert gateway.https("GET", "/health", b"", {"Authorization": bearer}).status == 200, "the same boot"
        assert gateway.bearer("lamp", secret) != bearer
        test = gateway.register("SEPATest").json["credentials"]
        test_bearer = gateway.bearer(test["client_id"], test["client_secret"])
        with gateway.websocket(Authorization=test_bearer) as socket:
            subscribed = ask(socket, {"subscribe": {"sparql": "SELECT * { ?s ?p ?o }", "alias": "t"}})
            assert subscribed["notification"]["alias"] == "t"
            assert "updated" in ask(socket, {"update": {"sparql": "CLEAR SILENT GRAPH <http://e/none>"}})
        assert waiting(gateway) == 1
        assert gateway.local("DELETE", "/clients/lamp").status == 200
        refused = [gateway.https("GET", "/health", b"", {"Authorization": bearer}) for _ in range(4)]
        assert [answer.status for answer in refused] == [401, 401, 401, 429]
        assert int(refused[-1].headers["retry-after"]) in range(1, 21)
        assert gateway.https("POST", "/oauth/token", b"", JSON | basic("SEPATest", "SEPATest")).status == 201
        assert waiting(gateway) == 0, "those that wait for it end, too"
