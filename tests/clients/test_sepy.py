"""The published Python client against `lamplighter run`, plain (SEPA protocol, 6.7)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients.peer import Peer, PeerError
from tests.clients.profiles import configuration
from tests.support.gateway_process import GatewayProcess

NAMESPACE = "http://greetings.example/"


@pytest.fixture
def client(peer: Peer, gateway: GatewayProcess) -> Peer:
    peer.call("open", profile=profile(gateway))
    peer.call("clear")
    return peer


def profile(gateway: GatewayProcess) -> dict[str, Any]:
    return configuration(gateway) | {
        "namespaces": {"g": NAMESPACE},
        "updates": {
            "GREET": {"sparql": "INSERT DATA { g:ann g:says 'hello' }"},
            "GREET_AS": {
                "sparql": "INSERT DATA { ?who g:says ?what }",
                "forcedBindings": {"who": {"type": "uri", "value": ""}, "what": {"type": "literal", "value": ""}},
            },
            "WRONG": {"sparql": "INSERT oops"},
        },
        "queries": {
            "GREETINGS": {"sparql": "SELECT ?who ?what { ?who g:says ?what }"},
            "WRONG": {"sparql": "SELECT oops"},
        },
    }


def greetings(rows: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(row["who"]["value"].removeprefix(NAMESPACE), row["what"]["value"]) for row in rows}


def greet(client: Peer, who: str, what: str) -> None:
    client.call("update", key="GREET_AS", bindings={"who": f"g:{who}", "what": what})


def test_what_was_put_in_is_all_that_is_there(client: Peer) -> None:
    client.call("update", key="GREET")
    found = client.call("query_all")
    assert found["head"]["vars"] == ["a", "b", "c"]
    [row] = found["results"]["bindings"]
    assert {name: term["value"] for name, term in row.items()} == {
        "a": f"{NAMESPACE}ann",
        "b": f"{NAMESPACE}says",
        "c": "hello",
    }


def test_a_forced_binding_that_is_required_has_to_be_given(client: Peer) -> None:
    with pytest.raises(PeerError, match="KeyError"):
        client.call("update", key="GREET_AS")
    client.call("update", key="GREET")
    greet(client, "bob", "გამარჯობა")
    found = client.call("query", key="GREETINGS")["results"]["bindings"]
    assert greetings(found) == {("ann", "hello"), ("bob", "გამარჯობა")}


def test_what_does_not_parse_is_an_error(client: Peer) -> None:
    for call in ("update", "query"):
        with pytest.raises(PeerError, match="ValueError"):
            client.call(call, key="WRONG")


def test_a_subscription_is_told_the_result_and_then_each_change(client: Peer) -> None:
    client.call("update", key="GREET")
    greet(client, "bob", "hi")
    spuid = client.call("subscribe", key="GREETINGS", name="greetings")
    first = client.notification("greetings")
    assert (greetings(first["added"]), first["removed"]) == ({("ann", "hello"), ("bob", "hi")}, [])
    greet(client, "cleo", "good day")
    second = client.notification("greetings")
    assert (greetings(second["added"]), second["removed"]) == ({("cleo", "good day")}, [])
    client.call("clear")
    third = client.notification("greetings")
    assert (third["added"], len(third["removed"])) == ([], 3)
    client.call("unsubscribe", spuid=spuid)


def test_a_subscription_can_name_its_graph(client: Peer, gateway: GatewayProcess) -> None:
    gateway.update("DROP SILENT GRAPH <http://g>")
    spuid = client.call("subscribe", key="GREETINGS", name="in graph", default_graph="http://g")
    assert client.notification("in graph")["added"] == []
    client.call("update", key="GREET")
    gateway.update(f"INSERT DATA {{ GRAPH <http://g> {{ <{NAMESPACE}dora> <{NAMESPACE}says> 'servus' }} }}")
    assert greetings(client.notification("in graph")["added"]) == {("dora", "servus")}
    client.call("unsubscribe", spuid=spuid)


def test_the_profile_that_the_client_writes_serves_it(client: Peer, gateway: GatewayProcess) -> None:
    parts = profile(gateway)
    text = client.call(
        "generated",
        parts={
            "host": parts["host"],
            "sparql11": parts["sparql11protocol"],
            "sparql11se": parts["sparql11seprotocol"],
            "queries": {"GREETINGS": parts["queries"]["GREETINGS"]},
            "updates": {"GREET": parts["updates"]["GREET"]},
            "namespaces": parts["namespaces"],
        },
    )
    client.call("open_text", text=text)
    client.call("update", key="GREET")
    assert greetings(client.call("query", key="GREETINGS")["results"]["bindings"]) == {("ann", "hello")}
