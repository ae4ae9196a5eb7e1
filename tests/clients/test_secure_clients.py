"""The published clients against `lamplighter run` in secure mode (SEPA protocol, 6.6 `secure`, and 6.7)."""

from __future__ import annotations

import http.client as http_client
import json
from collections.abc import Iterator

import pytest
from websockets.asyncio.client import connect

from tests.clients.peer import Peer, PeerError, javascript_client, python_client
from tests.clients.secure_gateway import HTTPS_PORT, SecureGateway
from tests.support.gateway_process import wait_for

ALL = "SELECT * { ?a ?b ?c }"
IDENTITY = "SEPATest"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureGateway]:
    with SecureGateway(tmp_path_factory.mktemp("secure") / "gateway") as process:
        yield process


@pytest.fixture(scope="module")
def node(gateway: SecureGateway) -> Iterator[Peer]:
    with javascript_client(gateway.authority) as peer:
        yield peer


@pytest.fixture
def client(node: Peer, gateway: SecureGateway) -> Peer:
    log_in(node, gateway)
    return node


def log_in(node: Peer, gateway: SecureGateway) -> None:
    settings = gateway.configuration()
    node.call("register", identity=IDENTITY, config={"host": settings["host"], "oauth": settings["oauth"]})
    node.call("login")


def ended(client: Peer, name: str) -> None:
    client.call("unsubscribe", name=name)
    client.event(name, "unsubscribed")


def ask(gateway: SecureGateway, path: str, body: str, headers: dict[str, str]) -> tuple[int, dict[str, object]]:
    connection = http_client.HTTPSConnection(gateway.host, HTTPS_PORT, context=gateway.trust(), timeout=60)
    try:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def status_of(gateway: SecureGateway, token: str) -> int:
    """Of a query with this token."""
    headers = {"Content-Type": "application/sparql-query", "Authorization": f"Bearer {token}"}
    return ask(gateway, "/query", ALL, headers)[0]


# --- JavaScript ---------------------------------------------------------------------------------------


def test_a_client_registers_logs_in_updates_and_queries(client: Peer) -> None:
    token = client.call("login")["token"]
    assert {"access_token", "token_type", "expires_in"} <= set(token)
    assert token["expires_in"] == 5
    answer = client.call("update", sparql="DELETE WHERE { ?s ?p ?o } ; INSERT DATA { <a:a> <a:b> 'ვაიმეე' }")
    assert answer["status"] == 200
    [row] = client.call("query", sparql=ALL)["results"]["bindings"]
    assert row["c"]["value"] == "ვაიმეე"


def test_a_client_subscribes_is_notified_and_unsubscribes(client: Peer, name: str) -> None:
    client.call("subscribe", name=name, sparql="SELECT ?o { <a:secure> ?p ?o }")
    assert client.notification(name)["sequence"] == 0
    client.call("update", sparql=f"INSERT DATA {{ <a:secure> <a:p> '{name}' }}")
    data = client.notification(name)
    assert data["sequence"] == 1
    assert data["addedResults"]["results"]["bindings"][0]["o"]["value"] == name
    ended(client, name)


def test_what_does_not_parse_is_an_error_though_the_client_takes_it_for_an_old_token(client: Peer) -> None:
    with pytest.raises(PeerError, match="Max token regeneration"):
        client.call("query", sparql="oops")


def test_a_client_renews_its_token_by_itself_whatever_it_asks_for(gateway: SecureGateway, name: str) -> None:
    with javascript_client(gateway.authority) as client:  # that of a few subscriptions has to end soon, see `Peer`
        log_in(client, gateway)
        renews_its_token(client, gateway, name)


def renews_its_token(client: Peer, gateway: SecureGateway, name: str) -> None:
    old = client.call("login")["token"]["access_token"]
    assert status_of(gateway, old) == 200
    client.call("subscribe", name=name, sparql=ALL)  # its unsubscribe will have the token of now
    assert client.notification(name)["sequence"] == 0
    wait_for(lambda: status_of(gateway, old) == 401, what="the end of a token that lives 5 s")

    client.call("forge", token=old)
    assert "results" in client.call("query", sparql=ALL)
    client.call("forge", token=old)
    assert client.call("update", sparql=f"INSERT DATA {{ <a:renewed> <a:p> '{name}' }}")["status"] == 200
    assert client.notification(name)["sequence"] == 1  # a subscription does not end with its token
    client.call("forge", token=old)
    again = f"{name}-again"
    client.call("subscribe", name=again, sparql="SELECT ?o { <a:renewed> ?p ?o }")
    assert client.notification(again)["sequence"] == 0
    ended(client, name)
    ended(client, again)


# --- Python -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("identity", [IDENTITY, "gateway-7f"])
def test_the_python_client_updates_and_renews_when_it_is_told_to(gateway: SecureGateway, identity: str) -> None:
    """The rest of its secure mode cannot work with any broker: it swaps addresses, or leaves the scheme out."""
    profile = gateway.configuration() | {
        "namespaces": {"g": "http://greetings.example/"},
        "updates": {"GREET": {"sparql": f"INSERT DATA {{ g:{identity} g:says 'hello' }}"}},
        "queries": {},
    }
    with python_client() as client:
        client.call("open", profile=profile, client_id=identity)
        assert "response" in json.loads(client.call("update", key="GREET"))
        client.call("expire", token="eyJhbGciOiJub25lIn0.e30.")
        with pytest.raises(PeerError, match="TokenExpiredException"):
            client.call("update", key="GREET")
        assert "response" in json.loads(client.call("update", key="GREET"))


# --- SEPA's own security tests (protocol, 6.4), without a client ----------------------------------------


def test_register_and_refresh_token(gateway: SecureGateway) -> None:
    said = {"Content-Type": "application/json", "Accept": "application/json"}
    asked = json.dumps({"register": {"client_identity": IDENTITY, "grant_types": ["client_credentials"]}})
    status, answer = ask(gateway, "/oauth/register", asked, said)
    assert status == 201
    credentials = answer["credentials"]
    assert isinstance(credentials, dict)
    assert (credentials["client_id"], credentials["client_secret"]) == (IDENTITY, IDENTITY)

    basic = {**said, "Authorization": "Basic U0VQQVRlc3Q6U0VQQVRlc3Q="}
    status, answer = ask(gateway, "/oauth/token", "", basic)
    assert status == 201
    token = answer["token"]
    assert isinstance(token, dict)
    assert {name: answer[name] for name in token} == token
    assert str(answer["token_type"]).lower() == "bearer"
    assert status_of(gateway, token["access_token"]) == 200

    status, answer = ask(gateway, "/oauth/token", "", {**said, "Authorization": "Basic U0VQQVRlc3Q6d3Jvbmc="})
    assert (status, answer["error"]) == (400, "unauthorized_client")


async def test_a_message_without_a_good_token_is_refused_with_its_alias(gateway: SecureGateway) -> None:
    async with connect(gateway.socket, ssl=gateway.trust()) as socket:
        for authorization, code in [
            ({}, "invalid_request"),
            ({"authorization": 5}, "invalid_request"),
            ({"authorization": "Basic abc"}, "unsupported_grant_type"),
            ({"authorization": "Bearer abc"}, "invalid_request"),
        ]:
            await socket.send(json.dumps({"subscribe": {"sparql": "oops", "alias": "a", **authorization}}))
            error = json.loads(await socket.recv())
            assert (error["error"], error["status_code"], error["alias"]) == (code, 401, "a"), authorization
        for text in ("no JSON", "{}"):
            await socket.send(text)
            error = json.loads(await socket.recv())
            assert (error["error"], error["status_code"]) == ("invalid_request", 401), text
