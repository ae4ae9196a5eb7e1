"""Subscriptions in secure mode: they belong to a client, and are told what it may subscribe to."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.receivers import HttpReceiver, Received
from tests.support.running_gateway import Answer
from tests.support.secure_gateway import JSON, SecureGateway
from tests.support.small_house import PREFIXES
from tests.whole_gateway.gates.ngsild.conftest import SUBSCRIBED

GRAPH = "http://lamplighter.local/ngsi-ld"
ROOT = "/secure/ngsi-ld/v1"


def wait(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)  # the gateway runs in another thread


def test_a_client_is_told_of_permitted_graphs_only(tmp_path: Path) -> None:
    quotas = {"resumable_max": 2}
    tables = {"ngsild": {"enabled": True, "subscriptions": SUBSCRIBED}, "quotas": quotas}
    with SecureGateway(tmp_path, tables) as gateway, HttpReceiver() as receiver:

        def bearer(name: str, **rights: list[str]) -> str:
            return gateway.bearer(name, gateway.client(name, **rights))

        def ask(token: str, method: str, target: str, body: Any = None) -> Answer:
            content = b"" if body is None else json.dumps(body).encode()
            return gateway.https(method, ROOT + target, content, {**JSON, "Authorization": token})

        def subscribe(token: str, name: str) -> Answer:
            body = {"id": f"urn:x:{name}", "type": "Subscription", "watchedAttributes": ["a"]}
            return ask(token, "POST", "/subscriptions", body | {"notification": {"endpoint": endpoint(name)}})

        def endpoint(name: str) -> dict[str, str]:
            return {"uri": receiver.url(f"/{name}")}

        def told(name: str) -> list[int]:
            return [one.json["data"][0]["a"]["value"] for one in receiver.posted if one.path == f"/{name}"]

        def two(one: Received) -> bool:
            return bool(one.json["data"][0]["a"]["value"] == 2)

        writer = bearer("writer", write=["*"], read=["*"])
        mine, other = bearer("mine", subscribe=[GRAPH]), bearer("other", subscribe=["default"], read=["*"])
        assert ask("Bearer x", "POST", "/subscriptions", {}).status == 401
        for name, token in (("mine", mine), ("other", other)):
            assert subscribe(token, name).status == 201
        assert subscribe(other, "mine").status == 409, "ids are the gateway's"
        assert subscribe(mine, "mine2").status == 201 and subscribe(mine, "mine3").status == 403, "quota"
        assert ask(writer, "POST", "/entities", {"id": "urn:x:1", "type": "T", "a": 1}).status == 201
        sparql = {"Authorization": writer, "Content-Type": "application/sparql-update"}
        stream = f"{PREFIXES} INSERT DATA {{ <urn:x:1> a gateway:Stream ; gateway:liveObservation <urn:x:o> . "
        stream += "<urn:x:o> sosa:hasSimpleResult 5 } ;"  # in the default graph
        value = "<https://uri.etsi.org/ngsi-ld/hasValue>"
        change = f"WITH <{GRAPH}> DELETE {{ ?n {value} ?v }} INSERT {{ ?n {value} 2 }} WHERE {{ ?n {value} ?v }}"
        assert gateway.https("POST", "/secure/update", (stream + change).encode(), sparql).status == 200
        receiver.wait(lambda: told("mine") == [1, 2])
        [seen] = [one.json["data"] for one in receiver.posted if one.path == "/mine" and two(one)]
        assert seen == [{"id": "urn:x:1", "type": "T", "a": {"type": "Property", "value": 2}}]
        assert [one["id"] for one in ask(other, "GET", "/subscriptions").json] == ["urn:x:other"]
        for method in ("GET", "DELETE", "PATCH"):
            body = {"isActive": False} if method == "PATCH" else None
            assert ask(other, method, "/subscriptions/urn:x:mine", body).status == 404
        assert gateway.https("POST", "/secure/update", b"DELETE WHERE { <urn:x:1> ?p ?o }", sparql).status == 200
        permissions = json.dumps({"read": [], "write": [], "subscribe": ["default"]})
        assert gateway.local("PUT", "/clients/mine", permissions).status == 200
        listed = lambda: gateway.local("GET", "/ngsi-ld/v1/subscriptions").json  # noqa: E731
        wait(lambda: [one["id"] for one in listed()] == ["urn:x:other"])
        assert ask(writer, "PATCH", "/entities/urn:x:1/attrs", {"a": 7}).status == 204
        permissions = json.dumps({"read": ["*"], "write": [], "subscribe": ["*"]})
        assert gateway.local("PUT", "/clients/other", permissions).status == 200
        wait(lambda: listed() == [])
        assert subscribe(other, "again").status == 201
        assert ask(writer, "PATCH", "/entities/urn:x:1/attrs", {"a": 3}).status == 204
        receiver.wait(lambda: told("again") == [3])
        assert told("mine") == [1, 2] and told("other") == [], "neither was told more"
