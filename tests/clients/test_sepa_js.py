"""The published JavaScript client against `lamplighter run`, plain (SEPA protocol, 6.6: `core` and `jsap`)."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from tests.clients.peer import Peer, PeerError, javascript_client
from tests.clients.profiles import configuration
from tests.support.brokers import free_port
from tests.support.gateway_process import GatewayProcess

ALL = "SELECT * { ?a ?b ?c }"
GRAPH = "http://sepatest"


@pytest.fixture
def client(node: Peer, gateway: GatewayProcess) -> Peer:
    node.call("open", config=configuration(gateway))
    node.call("update", sparql=f"DELETE WHERE {{ ?s ?p ?o }} ; DROP SILENT GRAPH <{GRAPH}>")
    return node


def values(results: dict[str, Any]) -> list[dict[str, str]]:
    return [{key: term["value"] for key, term in row.items()} for row in results["results"]["bindings"]]


def ended(client: Peer, *names: str) -> None:
    """Unsubscribes, so that the client closes its socket, as it does with its last subscription."""
    for name in names:
        client.call("unsubscribe", name=name)
        _, data = client.event(name, "unsubscribed")
        assert data["unsubscribed"]["spuid"].startswith("sepa://subscription/")


# --- core ---------------------------------------------------------------------------------------------


def test_a_wrong_address_fails(client: Peer, gateway: GatewayProcess) -> None:
    wrong = configuration(gateway)
    wrong["sparql11protocol"]["port"] = free_port()
    with pytest.raises(PeerError, match="ECONNREFUSED"):
        client.call("query", sparql=ALL, config=wrong)


def test_a_query_is_answered(client: Peer) -> None:
    assert client.call("query", sparql=ALL) == {"head": {"vars": ["a", "b", "c"]}, "results": {"bindings": []}}


def test_an_update_is_answered_and_its_text_survives(client: Peer) -> None:
    answer = client.call("update", sparql=f"INSERT DATA {{ GRAPH <{GRAPH}> {{ <a:a> <a:b> 'ვაიმეე' }} }}")
    assert answer["status"] == 200
    found = client.call("query", sparql=f"SELECT ?o {{ GRAPH <{GRAPH}> {{ ?s ?p ?o }} }}")
    assert values(found) == [{"o": "ვაიმეე"}]


@pytest.mark.parametrize("call", ["query", "update"])
def test_what_does_not_parse_is_rejected_with_the_three_members(client: Peer, call: str) -> None:
    with pytest.raises(PeerError) as caught:
        client.call(call, sparql="oops")
    assert caught.value.members["status"] == caught.value.members["data"]["status_code"] == 400
    assert caught.value.members["data"]["error"] == "SPARQL11ProtocolException"
    assert caught.value.members["data"]["error_description"]


def test_the_first_notification_has_the_sequence_0(client: Peer, name: str) -> None:
    client.call("subscribe", name=name, sparql=ALL)
    event, data = client.event(name, "subscribed", "notification")
    assert (event, data["sequence"]) == ("subscribed", 0)
    assert values(data["addedResults"]) == []
    ended(client, name)


def test_a_subscription_that_does_not_parse_is_told_its_error(client: Peer, name: str) -> None:
    client.call("subscribe", name=name, sparql="SELECT oops")
    _, error = client.event(name, "error")
    assert (error["error"], error["status_code"]) == ("parsing failed", 400)
    client.call("kill", name=name)


def test_a_change_of_the_default_graph_is_notified(client: Peer, name: str) -> None:
    """Neither update nor query names a graph, which SEPA's broker misses."""
    client.call("update", sparql="DELETE { ?a ?b ?c } WHERE { ?a ?b ?c }")
    client.call("subscribe", name=name, sparql=ALL)
    assert client.notification(name)["sequence"] == 0
    client.call("update", sparql="INSERT DATA { <a:a> <a:b> 'hello' }")
    data = client.notification(name)
    assert data["sequence"] == 1
    assert data["addedResults"]["results"]["bindings"][0]["c"]["value"] == "hello"
    assert data["removedResults"]["results"]["bindings"] == []
    ended(client, name)


def test_subscriptions_share_a_socket_and_each_is_told_its_own(gateway: GatewayProcess) -> None:
    with javascript_client() as client:  # that of a few subscriptions has to end soon, see `Peer`
        client.call("open", config=configuration(gateway))
        share_a_socket(client, "first", "second")


def share_a_socket(client: Peer, first: str, second: str) -> None:
    for number, one in enumerate((first, second), 1):
        client.call("subscribe", name=one, sparql=f"SELECT ?o {{ ?s <a:p{number}> ?o }}", alias=one)
    for one in (first, second):
        data = client.notification(one)
        assert (data["sequence"], data["alias"]) == (0, one)
    for number in (2, 1):
        client.call("update", sparql=f"INSERT DATA {{ <a:s> <a:p{number}> {number} }}")
    assert values(client.notification(first)["addedResults"]) == [{"o": "1"}]
    assert values(client.notification(second)["addedResults"]) == [{"o": "2"}]
    ended(client, first, second)


def test_options_that_the_client_copies_into_its_messages_do_no_harm(client: Peer, name: str) -> None:
    options = {"headers": {"X-Anything": "y"}, "timeout": 5000, "default-graph-uri": GRAPH}
    client.call("subscribe", name=name, sparql=ALL, config={"options": options})
    assert client.notification(name)["sequence"] == 0
    client.call("update", sparql=f"INSERT DATA {{ GRAPH <{GRAPH}> {{ <a:a> <a:b> 'in the graph' }} }}")
    assert values(client.notification(name)["addedResults"])[0]["c"] == "in the graph"
    ended(client, name)


def test_a_large_first_result_is_one_notification(client: Peer, name: str) -> None:
    rows = " ".join(f"<a:{number}> <a:huge> '{'x' * 6000}' ." for number in range(100))
    client.call("update", sparql=f"INSERT DATA {{ {rows} }}")
    client.call("subscribe", name=name, sparql="SELECT ?o { ?s <a:huge> ?o }")
    assert len(client.notification(name)["addedResults"]["results"]["bindings"]) == 100
    ended(client, name)


# --- jsap ---------------------------------------------------------------------------------------------


@pytest.fixture
def profile(client: Peer, gateway: GatewayProcess) -> Peer:
    document = configuration(gateway) | {
        "namespaces": {"test": "http://test.example/"},
        "updates": {
            "SIMPLE": {"sparql": "INSERT DATA { test:a test:b 'simple' }"},
            "DEFAULTS": {
                "sparql": "INSERT DATA { ?subject test:b ?value }",
                "forcedBindings": {
                    "subject": {"type": "uri", "value": "test:default"},
                    "value": {"type": "literal", "value": "default"},
                },
            },
            "OVERRIDDEN": {
                "sparql": "INSERT DATA { test:a test:b 'overridden' }",
                "sparql11protocol": {"protocol": "http", "port": gateway.http_port, "update": {"path": "/update"}},
            },
        },
        "queries": {
            "EVERYTHING": {"sparql": "SELECT ?a ?b ?c { ?a ?b ?c }"},
            "OF_SUBJECT": {
                "sparql": "SELECT ?value { ?subject test:b ?value }",
                "forcedBindings": {"subject": {"type": "uri", "value": "test:default"}},
            },
            "ELSEWHERE": {
                "sparql": "SELECT ?a { ?a ?b ?c }",
                "sparql11seprotocol": configuration(gateway)["sparql11seprotocol"],
            },
        },
    }
    document["sparql11protocol"]["port"] = gateway.http_port
    client.call("profile", document=json.dumps(document))
    return client


@pytest.mark.parametrize(
    ("key", "bindings", "value"),
    [
        ("SIMPLE", None, {"a": "http://test.example/a", "c": "simple"}),
        ("DEFAULTS", None, {"a": "http://test.example/default", "c": "default"}),
        ("DEFAULTS", {"value": "given"}, {"a": "http://test.example/default", "c": "given"}),
        ("OVERRIDDEN", None, {"a": "http://test.example/a", "c": "overridden"}),
    ],
)
def test_a_producer_updates(profile: Peer, key: str, bindings: dict[str, str] | None, value: dict[str, str]) -> None:
    assert profile.call("produce", key=key, bindings=bindings or {})["status"] == 200
    [row] = values(profile.call("query", sparql=ALL))
    assert row == {**value, "b": "http://test.example/b"}


@pytest.mark.parametrize("key", ["EVERYTHING", "OF_SUBJECT", "ELSEWHERE"])
def test_a_consumer_begins_with_the_sequence_0(profile: Peer, name: str, key: str) -> None:
    profile.call("consume", name=name, key=key, bindings={})
    assert profile.notification(name)["sequence"] == 0
    ended(profile, name)


def test_what_a_producer_adds_reaches_the_consumer(profile: Peer, name: str) -> None:
    profile.call("consume", name=name, key="OF_SUBJECT", bindings={"subject": "test:lamp"})
    assert profile.notification(name)["sequence"] == 0
    profile.call("produce", key="DEFAULTS", bindings={"subject": "test:other", "value": "no"})
    profile.call("produce", key="DEFAULTS", bindings={"subject": "test:lamp", "value": "on"})
    data = profile.notification(name)
    assert (data["sequence"], values(data["addedResults"])) == (1, [{"value": "on"}])
    assert values(profile.call("ask", key="OF_SUBJECT", bindings={"subject": "test:lamp"})) == [{"value": "on"}]
    ended(profile, name)


# --- restarts -----------------------------------------------------------------------------------------


def test_a_subscription_survives_kills_of_the_gateway(client: Peer, gateway: GatewayProcess, name: str) -> None:
    client.call("subscribe", name=name, sparql=ALL)
    spuids = {client.notification(name)["spuid"]}
    for round_ in range(2):
        client.call("update", sparql=f"INSERT DATA {{ <a:s> <a:p> {round_} }}")
        assert client.notification(name)["sequence"] == 1
        gateway.end(signal.SIGKILL)
        gateway.start()
        event, data = client.event(name, "subscribed", "notification")  # the client comes back by itself
        assert (event, data["sequence"]) == ("subscribed", 0)
        assert client.notification(name)["sequence"] == 0  # which it tells twice
        assert {row["c"] for row in values(data["addedResults"])} == {str(number) for number in range(round_ + 1)}
        spuids.add(data["spuid"])
    assert len(spuids) == 3
    ended(client, name)


def test_a_client_that_is_earlier_than_the_gateway_is_served_when_it_is_there(
    node: Peer, gateway: GatewayProcess, name: str
) -> None:
    gateway.end(signal.SIGTERM)
    node.call("open", config=configuration(gateway))
    node.call("subscribe", name=name, sparql="SELECT * { <a:none> ?b ?c }")
    with pytest.raises(PeerError, match="ECONNREFUSED"):
        node.call("query", sparql=ALL)
    gateway.start()
    assert node.notification(name)["sequence"] == 0
    ended(node, name)
