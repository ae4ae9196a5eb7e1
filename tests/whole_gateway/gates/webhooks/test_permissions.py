"""Webhooks in secure mode: the permissions of the client that registered one hold for it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.receivers import HttpReceiver
from tests.support.running_gateway import Answer
from tests.support.secure_gateway import JSON, SecureGateway

GRAPH, OTHER = "http://e/mine", "http://e/other"
QUERY = "SELECT ?v { GRAPH ?g { ?s <http://e/p> ?v } }"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureGateway]:
    folder: Path = tmp_path_factory.mktemp("secure")
    webhooks = {"enabled": True, "networks": ["127.0.0.0/8"], "ports": [], "backoff_ms": 10}
    with SecureGateway(folder, {"webhooks": webhooks}) as running:
        yield running


def ask(gateway: SecureGateway, token: str, method: str, target: str, **members: Any) -> Answer:
    body = json.dumps(members) if members else ""
    return gateway.https(method, target, body, {**JSON, "Authorization": token})


def registered(gateway: SecureGateway, token: str, receiver: HttpReceiver) -> dict[str, Any]:
    answer = ask(gateway, token, "POST", "/webhooks", query=QUERY, callback=receiver.url())
    assert answer.status == 201, answer.body
    return dict(answer.json)


def client(gateway: SecureGateway, name: str, *graphs: str) -> str:
    return gateway.bearer(name, gateway.client(name, subscribe=list(graphs), read=list(graphs)))


def put(gateway: SecureGateway, token: str, graph: str, value: object) -> None:
    text = f"INSERT DATA {{ GRAPH <{graph}> {{ <http://e/s> <http://e/p> {value} }} }}"
    headers = {"Authorization": token, "Content-Type": "application/sparql-update"}
    answer = gateway.https("POST", "/secure/update", text, headers)
    assert answer.status == 200, answer.body


def values(receiver: HttpReceiver) -> list[str]:
    found = [request.json["notification"]["addedResults"]["results"]["bindings"] for request in receiver.posted]
    return [row["v"]["value"] for rows in found for row in rows]


def wait(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)  # the gateway runs in another thread


@pytest.fixture(scope="module")
def writer(gateway: SecureGateway) -> str:
    return gateway.bearer("writer", gateway.client("writer", write=["*"], read=["*"], subscribe=["*"]))


def test_without_a_token_there_is_no_webhook(gateway: SecureGateway) -> None:
    for method, target in (("POST", "/webhooks"), ("GET", "/webhooks"), ("DELETE", "/webhooks/x")):
        assert gateway.https(method, target, "{}", JSON).status == 401


def test_only_permitted_graphs_are_delivered_and_nobody_sees_those_of_others(
    gateway: SecureGateway, writer: str
) -> None:
    mine, other = client(gateway, "mine", GRAPH), client(gateway, "other", OTHER)
    with HttpReceiver() as receiver:
        one = registered(gateway, mine, receiver)
        put(gateway, writer, OTHER, 1)
        put(gateway, writer, GRAPH, 2)
        receiver.wait(lambda: "2" in values(receiver))
        assert "1" not in values(receiver)
        assert ask(gateway, mine, "GET", "/webhooks").json["total"] == 1
        assert ask(gateway, other, "GET", "/webhooks").json["total"] == 0
        for method in ("GET", "DELETE", "POST"):
            assert ask(gateway, other, method, f"/webhooks/{one['id']}", lease="P1D").status == 404
        [seen] = gateway.local("GET", "/webhooks").json["webhooks"]
        assert (seen["id"], seen["client"]) == (one["id"], "mine")
        assert ask(gateway, mine, "DELETE", f"/webhooks/{one['id']}").status == 200


@pytest.mark.parametrize("how", ["less", "removed"])
def test_it_ends_when_its_client_may_see_less_or_is_removed(gateway: SecureGateway, writer: str, how: str) -> None:
    token = client(gateway, how, GRAPH, OTHER)
    with HttpReceiver() as receiver, HttpReceiver() as witness:
        registered(gateway, token, receiver)
        registered(gateway, writer, witness)
        receiver.wait_posted(1)
        witness.wait_posted(1)
        if how == "less":
            permissions = json.dumps({"read": [OTHER], "write": [], "subscribe": [OTHER]})
            assert gateway.local("PUT", f"/clients/{how}", permissions).status == 200
        else:
            assert gateway.local("DELETE", f"/clients/{how}").status == 200
        receiver.wait(lambda: len(receiver.asked) == 2)
        assert receiver.asked[1].parameters["hub.mode"] == "denied"
        wait(lambda: gateway.local("GET", "/webhooks").json["total"] == 1)
        before = len(receiver.posted)
        put(gateway, writer, GRAPH, f"'after {how}'")
        put(gateway, writer, OTHER, f"'after {how}'")
        witness.wait(lambda: values(witness).count(f"after {how}") == 2)
        assert len(receiver.posted) == before
        [seen] = gateway.local("GET", "/webhooks").json["webhooks"]
        assert gateway.local("DELETE", f"/webhooks/{seen['id']}").status == 200


def test_one_client_leaves_places_to_the_others(tmp_path: Path) -> None:
    table = {"enabled": True, "networks": ["127.0.0.0/8"], "ports": [], "deliveries_max": 6}
    with SecureGateway(tmp_path, {"webhooks": table}) as gateway, HttpReceiver() as receiver:

        def refused_after(token: str) -> int:
            """How many webhooks the client gets."""
            for count in range(7):
                answer = ask(gateway, token, "POST", "/webhooks", query=QUERY, callback=receiver.url())
                if answer.status != 201:
                    assert (answer.status, answer.json["error"]) == (403, "limit_exceeded")
                    assert "webhooks.deliveries_max" in answer.json["error_description"]
                    return count
            raise AssertionError("it may have all places")

        greedy, other, last = (client(gateway, name, GRAPH) for name in ("greedy", "other", "last"))
        assert refused_after(greedy) == 3
        assert refused_after(other) == 2
        assert refused_after(greedy) == 0
        assert refused_after(last) == 1
