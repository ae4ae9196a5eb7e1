"""Parameters of URLs and members of bodies: each has an effect, or is refused by name. None is ignored."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from lamplighter.gateway.addresses import Addresses
from lamplighter.gateway.gates.http import gate
from lamplighter.gateway.gates.http.routes import Route, Routes
from tests.support.running_gateway import Answer, http, running_gateway

DOORS: dict[str, dict[str, object]] = {
    name: {"enabled": True} for name in ("changes", "ldn", "mcp", "ngsild", "sensorthings", "webhooks", "wot")
} | {"ngsild": {"enabled": True, "subscriptions": {"enabled": True}}}
METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
ENTITY = "/ngsi-ld/v1/entities/urn:e:1"
SELECT, INSERT = "SELECT * { ?s ?p ?o }", "INSERT DATA {}"
QUERY, UPDATE = {"query": SELECT}, {"update": INSERT}


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[Addresses]:
    async with running_gateway(tmp_path, **DOORS) as at:
        yield at


async def ask(at: Addresses, method: str, path: str, body: Any = None, media_type: str = "application/json") -> Answer:
    root = at.query.removesuffix("/query")
    data = body if isinstance(body, str | None) else json.dumps(body)
    return await http(root + path, method, data, None if body is None else {"Content-Type": media_type})


@pytest.mark.parametrize("header", ["If-Match", "If-None-Match", "If-Unmodified-Since"])
async def test_a_precondition_of_a_change_is_refused_at_each_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: str
) -> None:
    """No change is made, whatever the condition: none is evaluated."""
    routes: list[Route] = []

    def recorded(served: list[Route], *arguments: Any) -> Routes:
        routes[:] = served  # a check of the paths makes routes too, before the gate opens
        return Routes(served, *arguments)

    monkeypatch.setattr(gate, "Routes", recorded)
    async with running_gateway(tmp_path, **DOORS) as at:
        root = at.query.removesuffix("/query")
        count = 0
        for route in routes:
            path = f"{route.path}x" if route.path.endswith("/") and len(route.path) > 1 else route.path
            for method in (route.methods or METHODS) - {"GET", "HEAD", "OPTIONS"}:
                for value in ("*", '"tag"'):
                    answer = await http(root + path, method, "{}", {header: value, "Content-Type": "application/json"})
                    assert (answer.status, header in answer.body.decode()) == (501, True), (method, path, answer)
                    count += 1
        assert count > 40
        assert (await http(root + "/log")).json["records"] == []
        assert (await http(root + "/delayed", headers={header: "*"})).status in (200, 304)


async def test_a_graph_is_not_replaced_under_a_condition(at: Addresses) -> None:
    root, turtle = at.query.removesuffix("/query"), {"Content-Type": "text/turtle"}
    target = root + "/graphs?graph=http://g"
    assert (await http(target, "PUT", "<http://a> <http://b> 1 .", turtle)).status == 201
    answer = await http(target, "PUT", "<http://a> <http://b> 2 .", {**turtle, "If-Match": '"old"'})
    assert (answer.status, answer.json["error"]) == (501, "precondition_not_supported")
    assert b'"1"' in (await http(target, headers={"Accept": "application/n-triples"})).body
    assert (await http(target, "PUT", "<http://a> <http://b> 2 .", turtle)).status == 204


async def test_an_unknown_parameter_is_refused_at_each_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    routes: list[Route] = []

    def recorded(served: list[Route], *arguments: Any) -> Routes:
        routes[:] = served  # a check of the paths makes routes too, before the gate opens
        return Routes(served, *arguments)

    monkeypatch.setattr(gate, "Routes", recorded)
    async with running_gateway(tmp_path, **DOORS) as at:
        assert len(routes) > 50
        free = [route.path for route in routes if route.parameters is None]
        assert free == ["/page/docs/", "/page/", "/query", "/update"], (
            "read by the page's script, and by the table of an operation"
        )
        for route in routes:
            if route.parameters is None or route.path == "/ngsi-ld/v1/":
                continue
            path = f"{route.path}x" if route.path.endswith("/") and len(route.path) > 1 else route.path
            path = f"{path.removesuffix('x')}Things" if route.path == "/v1.1/" else path
            for method in route.methods or METHODS:
                if method not in ("HEAD", "OPTIONS"):
                    answer = await ask(at, method, f"{path}?colour=red", {})
                    assert (answer.status, "'colour'" in answer.body.decode()) == (400, True), (method, path, answer)


SPARQL = [
    ("default-graph-uri", 200, 400),
    ("named-graph-uri", 200, 400),
    ("using-graph-uri", 400, 200),
    ("using-named-graph-uri", 400, 200),
    ("request_id", 400, 200),
    ("delay", 400, 202),
    ("missed", 400, 400),
    ("priority", 200, 200),
    ("at", 400, 400),
    ("format", 200, 400),
    ("output", 200, 400),
    ("results", 200, 400),
    ("timeout", 400, 400),
    ("colour", 400, 400),
]
"""A parameter, and the status of a query and of an update with it."""
VALUES = {"request_id": "a", "delay": "PT1H", "missed": "skip", "priority": "normal", "at": "x"} | dict.fromkeys(
    ("format", "output", "results"), "csv"
)


@pytest.mark.parametrize(("name", "of_query", "of_update"), SPARQL)
async def test_parameters_of_sparql(at: Addresses, name: str, of_query: int, of_update: int) -> None:
    more = {name: VALUES.get(name, "http://g")}
    for operation, texts, status in (("query", QUERY, of_query), ("update", UPDATE, of_update)):
        form, text_type = "application/x-www-form-urlencoded", f"application/sparql-{operation}"
        answers = [
            await ask(at, "POST", f"/{operation}", urlencode(texts | more), form),
            await ask(at, "POST", f"/{operation}?{urlencode(more)}", urlencode(texts), form),
            await ask(at, "POST", f"/{operation}?{urlencode(more)}", texts[operation], text_type),
        ]
        if operation == "query":
            answers.append(await ask(at, "GET", f"/query?{urlencode(texts | more)}"))
        for answer in answers:
            assert answer.status == status, answer
            assert status != 400 or name in answer.json["error_description"], answer
            if status == 200 and more[name] == "csv":
                assert answer.media_type == "text/csv"


async def test_names_of_formats(at: Addresses) -> None:
    construct = "CONSTRUCT { ?s ?p ?o } { ?s ?p ?o }"
    for sparql, name, outcome in (
        (SELECT, "json", "application/sparql-results+json"),
        (construct, "json", "application/ld+json"),
        (SELECT, "xml", "application/sparql-results+xml"),
        (construct, "turtle", "text/turtle"),
        (construct, "application/n-triples", "application/n-triples"),
        (SELECT, "turtle", 406),
        (SELECT, "colour", 400),
    ):
        answer = await ask(at, "GET", f"/query?{urlencode({'query': sparql, 'format': name})}")
        assert outcome in (answer.status, answer.media_type), (sparql, name, answer)
    both = await ask(at, "GET", f"/query?{urlencode(QUERY | {'format': 'json', 'output': 'xml'})}")
    assert both.status == 400


async def test_parameters_of_the_graph_store(at: Addresses) -> None:
    turtle = "<http://a> <http://b> 1 ."
    for method, target, status in (
        ("PUT", "?graph=http://g", 201),
        ("GET", "?graph=http://g", 200),
        ("GET", "?default", 200),
        ("GET", "?default=http://g", 400),
        ("DELETE", "?default=http://g", 400),
        ("DELETE", "?default&graph=http://g", 400),
        ("DELETE", "/x?graph=http://g", 400),
        ("DELETE", "/x?default", 400),
        ("DELETE", "?graph=http://g&colour=red", 400),
        ("GET", "?graph=http://g&priority=normal", 400),
        ("GET", "?graph=http://g&graph=http://h", 400),
        ("GET", "?graph=http://g", 200),
        ("DELETE", "?graph=http://g&priority=normal", 204),
    ):
        answer = await ask(at, method, f"/graphs{target}", turtle if method == "PUT" else None, "text/turtle")
        assert answer.status == status, (method, target, answer)


async def test_the_type_of_an_entity_is_a_condition_of_each_operation(at: Addresses) -> None:
    size = {"type": "Property", "value": 1}
    made = {"id": "urn:e:1", "type": "Shop", "size": size}
    assert (await ask(at, "POST", "/ngsi-ld/v1/entities", made)).status == 201
    operations = (
        ("GET", ENTITY, None, 200),
        ("PATCH", f"{ENTITY}/attrs", {"size": size | {"value": 2}}, 204),
        ("POST", f"{ENTITY}/attrs", {"colour": {"type": "Property", "value": "red"}}, 204),
        ("PATCH", f"{ENTITY}/attrs/size", {"value": 3}, 204),
        ("DELETE", f"{ENTITY}/attrs/size", None, 204),
        ("DELETE", ENTITY, None, 204),
    )
    for method, path, body, _ in operations:
        answer = await ask(at, method, f"{path}?type=Other", body)
        assert (answer.status, "Other" in answer.json["detail"]) == (404, True), (method, path, answer)
    assert (await ask(at, "GET", f"{ENTITY}?options=keyValues")).json == made | {"size": 1}
    for method, path, body, status in operations:
        answer = await ask(at, method, f"{path}?type=Other,Shop&local=true", body)
        assert answer.status == status, (method, path, answer)
    assert (await ask(at, "GET", ENTITY)).status == 404


NGSI_LD = [
    ("GET", "entities"),
    ("POST", "entities"),
    ("GET", "entities/urn:e:1"),
    ("DELETE", "entities/urn:e:1"),
    ("PATCH", "entities/urn:e:1/attrs"),
    ("POST", "entities/urn:e:1/attrs"),
    ("PATCH", "entities/urn:e:1/attrs/size"),
    ("DELETE", "entities/urn:e:1/attrs/size"),
    ("POST", "entityOperations/upsert"),
    ("GET", "types"),
    ("GET", "subscriptions"),
    ("POST", "subscriptions"),
    ("GET", "subscriptions/urn:s:1"),
    ("PATCH", "subscriptions/urn:s:1"),
    ("DELETE", "subscriptions/urn:s:1"),
]


@pytest.mark.parametrize(("method", "path"), NGSI_LD)
async def test_parameters_of_ngsi_ld_that_are_not_supported(at: Addresses, method: str, path: str) -> None:
    for name in ("georel", "scopeQ", "datasetId", "lang", "join", "pick", "omit", "orderBy", "csf", "details"):
        answer = await ask(at, method, f"/ngsi-ld/v1/{path}?{name}=x", {})
        assert (answer.status, answer.json["detail"].startswith(name)) == (422, True), (name, answer)
    answer = await ask(at, method, f"/ngsi-ld/v1/{path}?colour=red", {})
    assert (answer.status, answer.headers["content-type"]) == (400, "application/problem+json")
    assert "'colour'" in answer.json["detail"] and "local" in answer.json["detail"]


OTHERS = [
    ("GET", "/v1.1/Things?$search=x", 400, "$search"),
    ("GET", "/v1.1/Things?$apply=x", 400, "$apply"),
    ("GET", "/v1.1/Things?$format=json", 400, "$format"),
    ("GET", "/v1.1/Things?filter=x", 400, "write $filter"),
    ("GET", "/v1.1/Things?$top=1&$skip=0&$count=true&$select=name&$orderby=name&$filter=name eq 'x'", 200, ""),
    ("GET", "/v1.1/Things('x')?$filter=name eq 'x'", 400, "$filter"),
    ("POST", "/v1.1/Observations?$select=id", 400, "$select"),
    ("GET", "/things?sort_by=id", 501, "sort_by"),
    ("GET", "/things?sort_order=asc", 501, "sort_order"),
    ("GET", "/things?offset=0&limit=1&format=array", 200, ""),
    ("POST", "/things?limit=1", 400, "limit"),
    ("PUT", "/things/urn:t?limit=1", 400, "limit"),
    ("GET", "/things/urn:t?keep=true", 400, "keep"),
    ("GET", "/changes?limit=1&wait=0", 200, ""),
    ("GET", "/changes/snapshot?after=1", 400, "after"),
    ("GET", "/subscribe?query=x&$a=1", 400, "$a"),
    ("GET", "/subscribe/a/b?query=x", 400, "query"),
    ("GET", "/log?last=1&after=1", 400, "after"),
    ("GET", "/delayed?limit=1&characters=10", 200, ""),
    ("GET", "/settings/check?config=/etc/passwd", 400, "config"),
    ("GET", "/page/query.json?query=ASK%7B%7D&format=csv", 400, "format"),
    ("POST", "/inbox/?colour=red", 400, "colour"),
    ("POST", "/mcp?session=1", 400, "session"),
    ("POST", "/oauth/register?client_id=x", 400, "client_id"),
    ("POST", "/oauth/token?client_id=x", 400, "client_id"),
]


@pytest.mark.parametrize(("method", "target", "status", "named"), OTHERS)
async def test_parameters_of_other_doors(at: Addresses, method: str, target: str, status: int, named: str) -> None:
    answer = await ask(at, method, quote(target, safe="/?&=$(),'%:"), {} if method != "GET" else None)
    assert (answer.status, named in answer.body.decode()) == (status, True), answer


MEMBERS = [
    ("/webhooks", {"query": SELECT, "callback": "http://127.0.0.1:1/"}),
    ("/ldn", {"query": SELECT, "inbox": "http://127.0.0.1:1/"}),
    ("/devices/x", {"action": "adopt"}),
    ("/mapping/try", {"topic": "a", "payload": "1"}),
    (
        "/ngsi-ld/v1/subscriptions",
        {
            "type": "Subscription",
            "entities": [{"type": "Shop"}],
            "notification": {"endpoint": {"uri": "http://127.0.0.1:1/"}},
        },
    ),
    ("/v1.1/Observations", {"result": 1, "Datastream": {"@iot.id": "x"}}),
]


@pytest.mark.parametrize(("path", "body"), MEMBERS)
async def test_an_unknown_member_of_a_body_is_refused(at: Addresses, path: str, body: Any) -> None:
    answer = await ask(at, "POST", path, body | {"colour": "red"})
    assert (answer.status in (400, 422, 501), "colour" in answer.body.decode()) == (True, True), answer
