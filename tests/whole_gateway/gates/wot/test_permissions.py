"""What a client in secure mode sees of the Web of Things: what it may read, and no more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from lamplighter.adapters.model.latest import LatestModel
from lamplighter.ontology.vocabulary import DESIRED_STATE
from tests.support.running_gateway import Answer
from tests.support.secure_gateway import SecureGateway
from tests.support.thing_descriptions import HALL_IRI, TOPIC, adoption, hall, reading_updates, schema_faults

THING = f"/things/{quote(HALL_IRI, safe='')}"
CLIENTS = {
    "everything": {"read": ["*"], "write": ["*"], "subscribe": ["*"]},
    "reader": {"read": ["default"]},
    "stranger": {"read": ["urn:other"], "write": ["urn:other"], "subscribe": ["urn:other"]},
    "writer": {"read": ["default"], "write": ["default"]},
}


class Site:
    def __init__(self, gateway: SecureGateway) -> None:
        self.gateway = gateway
        self._tokens = {
            name: gateway.bearer(name, gateway.client(name, **permissions)) for name, permissions in CLIENTS.items()
        }

    def ask(self, client: str, target: str, method: str = "GET", body: object = None) -> Answer:
        headers = {"Authorization": self._tokens[client]} if client else {}
        data = b"" if body is None else json.dumps(body)
        return self.gateway.https(method, target, data, headers | {"Content-Type": "application/json"})

    def update(self, client: str, text: str) -> None:
        headers = {"Authorization": self._tokens[client], "Content-Type": "application/sparql-update"}
        assert self.gateway.https("POST", "/update", text, headers).status == 200


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with SecureGateway(tmp_path_factory.mktemp("wot"), tables={"wot": {"enabled": True}}) as gateway:
        found = Site(gateway)
        for text in [adoption(hall()), *reading_updates(hall(), TOPIC, '{"temperature": 3}', LatestModel())]:
            found.update("everything", text)
        yield found


def test_without_a_token_only_the_gateway_itself_is_described(site: Site) -> None:
    answer = site.ask("", "/.well-known/wot")
    assert answer.status == 200 and schema_faults([answer.json]) == [[]]
    assert answer.json["security"] == "bearer_sc"
    assert "hall" not in answer.body.decode()
    for target in ("/things", THING, f"{THING}/properties/temperature", "/search/sparql?query=ASK%7B%7D"):
        assert site.ask("", target).status == 401


def test_who_may_not_read_the_graph_finds_no_thing(site: Site) -> None:
    assert site.ask("stranger", "/things").json == []
    for below in ("", "/properties", "/properties/temperature", "/properties/temperature/observe"):
        assert site.ask("stranger", THING + below).status == 404
    assert site.ask("stranger", f"{THING}/actions/light", "POST", True).status == 404
    found = site.ask("stranger", "/search/sparql?query=SELECT*%7B%3Fs%20%3Fp%20%3Fo%7D").json
    assert found["results"]["bindings"] == []


def test_who_may_only_read_changes_and_subscribes_nothing(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    assert [one["id"] for one in site.ask("reader", "/things").json] == [HALL_IRI]
    assert schema_faults([site.ask("reader", THING).json]) == [[]]
    assert site.ask("reader", f"{THING}/properties/temperature").json == 3
    for answer in (
        site.ask("reader", f"{THING}/properties/light", "PUT", True),
        site.ask("reader", f"{THING}/actions/light", "POST", True),
        site.ask("reader", f"{THING}/properties/temperature/observe"),
    ):
        assert (answer.status, answer.media_type, answer.json["error"]) == (
            403,
            "application/problem+json",
            "forbidden",
        )


def test_who_may_write_the_graph_sets_states(site: Site) -> None:
    assert site.ask("writer", f"{THING}/actions/light", "POST", True).status == 204
    found = site.ask("writer", f"/query?query={quote(f'SELECT ?v {{ ?a <{DESIRED_STATE}> ?v }}')}").json
    assert [row["v"]["value"] for row in found["results"]["bindings"]] == ["true"]
    last = site.gateway.local("GET", "/log?last=1").json["records"][-1]
    assert last["cause"]["kind"] == "http" and last["cause"]["id"].startswith("writer@")
