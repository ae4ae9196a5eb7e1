"""Entities over HTTP, clause by clause of ETSI GS CIM 009 V1.8.1."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from lamplighter.gateway.addresses import Addresses
from tests.support.amounts import Amounts
from tests.support.running_gateway import Answer, http, update
from tests.support.small_house import PREFIXES
from tests.whole_gateway.gates.ngsild.conftest import BUILDING, WEATHER

Ask = Callable[..., Awaitable[Answer]]
ONE = "/entities/urn:ngsi-ld:Building:1"
LINK = 'rel="http://www.w3.org/ns/json-ld#context"; type="application/ld+json"'


def problem(answer: Answer, status: int, name: str) -> str:
    """The detail of an error, which is of this type."""
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json["type"] == f"https://uri.etsi.org/ngsi-ld/errors/{name}" and answer.json["status"] == status
    assert answer.json["title"]
    detail: str = answer.json["detail"]
    return detail


async def test_an_entity_is_had_back_as_it_came(ask: Ask) -> None:  # 6.4.3.1, 6.5.3.1
    answer = await ask("GET", ONE)
    assert answer.json == BUILDING and answer.headers["content-type"] == "application/json"
    assert answer.headers["link"].endswith(LINK)
    detail = problem(await ask("POST", "/entities", BUILDING), 409, "AlreadyExists")
    assert "PATCH" in detail
    made = await ask("POST", "/entities", BUILDING | {"id": "urn:a/b#c"})
    assert made.headers["location"] == "/ngsi-ld/v1/entities/urn:a%2Fb%23c"
    assert (await ask("GET", "/entities/urn:a%2Fb%23c")).json["id"] == "urn:a/b#c"


async def test_representations(ask: Ask) -> None:  # 4.5.4, 4.5.21
    simple = {name: one.get("value", one.get("object")) for name, one in BUILDING.items() if isinstance(one, dict)}
    plain = {"id": BUILDING["id"], "type": "Building", **simple}
    assert (await ask("GET", f"{ONE}?options=keyValues")).json == plain
    assert (await ask("GET", f"{ONE}?format=simplified")).json == plain
    concise = (await ask("GET", f"{ONE}?options=concise")).json
    assert concise["name"] == simple["name"] and concise["owner"] == {"object": "urn:ngsi-ld:Person:1"}
    assert concise["temperature"] == {"value": 20.5, "unitCode": "CEL", "observedAt": "2026-11-26T10:00:00Z"}
    assert concise["location"] == simple["location"] and concise["address"] == {"value": simple["address"]}
    assert (await ask("POST", "/entities", concise | {"id": "urn:x:2"})).status == 201
    assert (await ask("GET", "/entities/urn:x:2")).json == BUILDING | {"id": "urn:x:2"}


QUERIES = (
    ("type=Building", True),
    ("type=Other,Building", True),
    ("type=Other", False),
    ("local=true&id=urn:ngsi-ld:Building:1,urn:x:y", True),
    ("local=true&idPattern=^urn:.*:Building:\\d$", True),
    ("local=true&idPattern=^building", False),
    ("attrs=owner", True),
    ("attrs=nothing", False),
    ("q=temperature>20;owner", True),
    ("q=temperature>20;nothing", False),
    ("q=nothing|temperature<21", True),
    ("q=(nothing|temperature);name", True),
    ("q=nothing;temperature|name", True),
    ("q=temperature==20..21", True),
    ("q=temperature!=20..21", False),
    ("q=temperature==1,20.5", True),
    ("q=nothing!=1", False),
    ("q=temperature.observedAt>=2026-11-26T11:00:00%2B01:00", True),
    ('q=temperature.unitCode=="CEL"', True),
    ("q=opened<2020-01-01T00:00:01Z", True),
    ("q=name~=^Tow", True),
    ("q=name!~=^Tow", False),
    ('q=name=="Tower \\" } \\\\ <x>"', True),
    ("q=owner==urn:ngsi-ld:Person:1", True),
    ("q=address", True),
    ("q=address==1", False),
    ("q=https://uri.etsi.org/ngsi-ld/default-context/temperature==20.5", True),
)


async def test_queries(ask: Ask, amounts: Amounts) -> None:  # 6.4.3.2, 4.9
    for query, found in amounts.some(QUERIES):
        answer = await ask("GET", f"/entities?{query}".replace("%2B", "+"))
        assert answer.status == 200, answer.body
        assert [one["id"] for one in answer.json] == ([BUILDING["id"]] if found else []), query


async def test_pages(ask: Ask) -> None:  # 6.3.10, 6.3.13
    for number in range(5):
        assert (await ask("POST", "/entities", {"id": f"urn:x:{number}", "type": "T", "n": number})).status == 201
    for number in range(20):  # more than the text of one query can name
        members = {"id": f"urn:x:{'y' * 480}{number}", "type": "Long", "n": number}
        assert (await ask("POST", "/entities", members)).status == 201
    long = await ask("GET", "/entities?type=Long&options=keyValues")
    assert {one["n"] for one in long.json} == set(range(20))
    first = await ask("GET", "/entities?type=T&limit=2&count=true&attrs=n&options=keyValues")
    assert first.json == [{"id": f"urn:x:{one}", "type": "T", "n": one} for one in (0, 1)]
    assert first.headers["ngsild-results-count"] == "5"
    following = first.headers["link"].partition(">")[0].removeprefix("<")
    assert 'rel="next"' in first.headers["link"]
    second = await ask("GET", following.removeprefix("/ngsi-ld/v1"))
    assert [one["n"] for one in second.json] == [2, 3]
    assert (await ask("GET", "/entities?type=T&limit=0&count=true")).json == []


async def test_attributes_are_updated(ask: Ask) -> None:  # 5.6.2
    later = {"type": "Property", "value": 21, "observedAt": "2026-11-26T11:00:00Z"}
    assert (await ask("PATCH", f"{ONE}/attrs", {"temperature": later, "owner": "urn:ngsi-ld:null"})).status == 204
    found = (await ask("GET", ONE)).json
    assert found["temperature"] == later and "owner" not in found and found["name"] == BUILDING["name"]
    partly = await ask("PATCH", f"{ONE}/attrs", {"temperature": 22, "nothing": 1})
    assert partly.status == 207 and partly.json["updated"] == ["temperature"]
    assert [one["attributeName"] for one in partly.json["notUpdated"]] == ["nothing"]
    problem(await ask("PATCH", "/entities/urn:x:none/attrs", {"a": 1}), 404, "ResourceNotFound")


async def test_attributes_are_appended(ask: Ask) -> None:  # 5.6.3
    assert (await ask("POST", f"{ONE}/attrs", {"type": "Shop", "name": "new", "open": True})).status == 204
    found = (await ask("GET", f"{ONE}?options=keyValues")).json
    assert (found["name"], found["open"], found["type"]) == ("new", True, ["Building", "Shop"])
    kept = await ask("POST", f"{ONE}/attrs?options=noOverwrite", {"name": "newer", "more": 1})
    assert kept.status == 207 and kept.json["updated"] == ["more"]
    assert (await ask("GET", f"{ONE}?attrs=name&options=keyValues")).json["name"] == "new"


async def test_one_attribute_is_changed(ask: Ask) -> None:  # 5.6.4, 5.6.5
    assert (await ask("PATCH", f"{ONE}/attrs/temperature", {"value": 30})).status == 204
    expected = BUILDING["temperature"] | {"value": 30}
    assert (await ask("GET", ONE)).json["temperature"] == expected
    assert (await ask("PATCH", f"{ONE}/attrs/temperature", {"unitCode": "urn:ngsi-ld:null"})).status == 204
    del expected["unitCode"]
    assert (await ask("GET", ONE)).json["temperature"] == expected
    fault = await ask("PATCH", f"{ONE}/attrs/temperature", {"type": "Relationship", "object": "urn:x:y"})
    assert "is a Property" in problem(fault, 400, "BadRequestData")
    assert (await ask("DELETE", f"{ONE}/attrs/temperature")).status == 204
    problem(await ask("DELETE", f"{ONE}/attrs/temperature"), 404, "ResourceNotFound")
    problem(await ask("PATCH", f"{ONE}/attrs/temperature", {"value": 1}), 404, "ResourceNotFound")


async def test_a_batch_creates_and_updates(ask: Ask) -> None:  # 5.6.8
    batch = "/entityOperations/upsert"
    one, two = {"id": BUILDING["id"], "type": "Building", "name": "new"}, {"id": "urn:x:2", "type": "T", "a": 1}
    made = await ask("POST", batch, [one, two])
    assert made.status == 201 and made.json == ["urn:x:2"], made.body
    assert (await ask("GET", f"{ONE}?options=keyValues")).json == one, "the rest of it is gone"
    assert (await ask("POST", f"{batch}?options=update", [two | {"type": "U", "b": 2, "a": 3}])).status == 204
    changed = (await ask("GET", "/entities/urn:x:2?options=keyValues")).json
    assert changed == {"id": "urn:x:2", "type": ["T", "U"], "a": 3, "b": 2}
    stream = {"id": "http://lamplighter.local/stream/1", "type": "T"}
    partly = await ask("POST", batch, [two, stream, {"id": "urn:x:3"}])
    assert partly.status == 207 and partly.json["success"] == ["urn:x:2"]
    told = [(error["entityId"], error["error"]["type"].rpartition("/")[2]) for error in partly.json["errors"]]
    assert told == [(stream["id"], "OperationNotSupported"), ("urn:x:3", "BadRequestData")]
    for body in ([], {}, [5]):
        problem(await ask("POST", batch, body), 400, "BadRequestData")
    problem(await ask("POST", batch, [two] * 101), 403, "TooComplexQuery")
    weather = [{"id": "urn:x:4", "type": "T", "rain": 1, "@context": WEATHER}, {"id": "urn:x:5", "type": "T"}]
    named = await ask("POST", batch, weather, "application/ld+json")
    assert named.status == 207 and named.json["success"] == ["urn:x:4"], "the second has no @context"


async def test_a_deleted_entity_leaves_nothing(at: Addresses, ask: Ask) -> None:  # 5.6.6
    assert (await ask("GET", "/types")).json["typeList"] == ["Building", "http://lamplighter.example/ns/gateway#Stream"]
    assert (await ask("DELETE", ONE)).status == 204
    problem(await ask("DELETE", ONE), 404, "ResourceNotFound")
    problem(await ask("GET", ONE), 404, "ResourceNotFound")
    left = await http(at.query, query="ASK { GRAPH <http://lamplighter.local/ngsi-ld> { ?s ?p ?o } }")
    assert left.json["boolean"] is False


async def test_contexts_give_names(ask: Ask) -> None:  # 5.5.7, 6.3.5, 6.3.6
    body = {"id": "urn:x:1", "type": "weather:Station", "rain": 1, "@context": [WEATHER, {"wind": "weather:w"}]}
    assert (await ask("POST", "/entities", body | {"wind": 2}, "application/ld+json")).status == 201
    by_iri = (await ask("GET", "/entities/urn:x:1?options=keyValues")).json
    assert by_iri.pop("id") == "urn:x:1" and by_iri.pop("type") == "http://weather.example/Station"
    assert by_iri == {"http://weather.example/r": 1, "http://weather.example/w": 2}
    named = await ask("GET", "/entities?q=rain==1&options=keyValues", Link=f"<{WEATHER}>; {LINK}")
    assert named.json[0]["rain"] == 1 and f"<{WEATHER}>" in named.headers["link"]
    inside = await ask("GET", "/entities/urn:x:1", Link=f"<{WEATHER}>; {LINK}", Accept="application/ld+json")
    assert inside.json["@context"][0] == WEATHER and inside.headers["content-type"] == "application/ld+json"


BAD, REFUSED = "BadRequestData", "OperationNotSupported"
IDENTITY = {"id": "urn:x:1", "type": "T"}
WRONG_BODIES: tuple[tuple[Any, int, str, str], ...] = (
    (b"{", 400, "InvalidRequest", "the body"),
    ([], 400, BAD, "no JSON object"),
    ({"type": "T"}, 400, BAD, "id is missing"),
    ({"id": "urn:x:1"}, 400, BAD, "type is missing"),
    ({"id": "nothing", "type": "T"}, 400, BAD, "write a URI"),
    ({"id": "urn:x:> } ; CLEAR ALL", "type": "T"}, 400, BAD, "write a URI"),
    ({"id": "urn:x:1", "type": "https://uri.etsi.org/ngsi-ld/Property"}, 400, BAD, "types of attributes"),
    (IDENTITY | {"a b": 1}, 400, BAD, "is no name"),
    (IDENTITY | {"a": None}, 400, BAD, "null is no value"),
    (IDENTITY | {"a": 10**30}, 400, BAD, "64 bits"),
    (IDENTITY | {"a": {"value": 1, "b": 2}}, 422, REFUSED, "a.b"),
    (IDENTITY | {"a": [{"type": "Property", "value": 1, "datasetId": "urn:d:1"}]}, 422, REFUSED, "datasetId"),
    (IDENTITY | {"a": {"type": "LanguageProperty", "languageMap": {}}}, 422, REFUSED, "LanguageProperty"),
    (IDENTITY | {"a": {"value": 1, "observedAt": "now"}}, 400, BAD, "with a zone"),
    (IDENTITY | {"a": {"type": "GeoProperty", "value": {"type": "Point", "coordinates": [1]}}}, 400, BAD, "GeoJSON"),
    (IDENTITY | {"a": {"type": "Relationship", "object": "x"}}, 400, BAD, "is no URI"),
    (IDENTITY | {"@context": []}, 400, BAD, "application/ld+json"),
)


async def test_wrong_entities_are_refused(ask: Ask) -> None:
    for body, status, name, told in WRONG_BODIES:
        assert told in problem(await ask("POST", "/entities", body), status, name)
    linked = "application/ld+json"
    assert "@context is missing" in problem(await ask("POST", "/entities", IDENTITY, linked), 400, BAD)
    unknown = IDENTITY | {"@context": "http://host/context.jsonld"}
    assert "[ngsild.contexts]" in problem(await ask("POST", "/entities", unknown, linked), 503, "LdContextNotAvailable")
    assert "Content-Type" in problem(await ask("POST", "/entities", IDENTITY, "text/plain"), 400, BAD)
    assert (await ask("GET", "/entities?type=T")).json == []


WRONG_QUERIES = (
    ("/entities", 400, "BadRequestData", "write type, attrs or q"),
    ("/entities?type=T&limit=1001", 403, "TooManyResults", "offset"),
    ("/entities?type=T&limit=x", 400, "BadRequestData", "limit"),
    ("/entities?type=T&georel=near", 422, "OperationNotSupported", "georel"),
    ("/entities?type=T&options=sysAttrs", 422, "OperationNotSupported", "sysAttrs"),
    ("/entities?type=T&x=1", 400, "BadRequestData", "unknown parameter 'x'"),
    ("/entities?q=a==Bob", 400, "BadRequestData", "character 4"),
    ("/entities?q=a>true", 400, "BadRequestData", "no order"),
    ("/entities?q=a==1..true", 400, "BadRequestData", "of one kind"),
    ("/entities?q=(a", 400, "BadRequestData", "close the parenthesis"),
    ("/entities?q=a[b]==1", 422, "OperationNotSupported", "members of values"),
    ('/entities?q=a~="(a"', 400, "BadRequestData", "character 4: no regular expression"),
    ('/entities?q=a~="(?=a)"', 400, "BadRequestData", "not supported in a pattern"),
    ("/entities?q=a~=a{9}{9}{9}", 400, "BadRequestData", "two {n,m}"),
    ("/entities?q=" + "|".join(["a"] * 21), 403, "TooComplexQuery", "20 terms"),
    ("/entities?q=" + "(" * 11 + "a" + ")" * 11, 403, "TooComplexQuery", "deep"),
    ("/nothing", 404, "ResourceNotFound", "there are"),
)


async def test_wrong_queries_are_refused(ask: Ask) -> None:
    for target, status, name, told in WRONG_QUERIES:
        assert told in problem(await ask("GET", target), status, name), target


async def test_other_methods_and_tenants_are_refused(ask: Ask) -> None:
    problem(await ask("PUT", ONE, BUILDING), 405, "OperationNotSupported")
    assert (await ask("PUT", ONE, BUILDING)).headers["allow"] == "DELETE, GET, HEAD"
    problem(await ask("GET", ONE, NGSILD_Tenant="x"), 501, "NoMultiTenantSupport")


async def test_streams_are_entities(at: Addresses, ask: Ask) -> None:
    names = f"<http://lamplighter.example/ns/ngsi-ld-streams.jsonld>; {LINK}"
    first, second = (await ask("GET", "/entities?type=Stream", Link=names)).json
    assert first == {
        "id": "http://lamplighter.local/stream/1",
        "type": "Stream",
        "result": {"type": "Property", "value": 20.5, "unitCode": "Cel", "observedAt": "2026-11-26T10:00:00Z"},
        "observedProperty": {"type": "Relationship", "object": "http://lamplighter.local/property/temperature"},
        "madeBySensor": {"type": "Relationship", "object": "http://lamplighter.local/sensor/1"},
        "hasFeatureOfInterest": {"type": "Relationship", "object": "http://lamplighter.local/post/1"},
    }
    assert second["result"] == {"type": "Property", "value": False, "observedAt": "2026-11-26T11:00:00Z"}, "the newest"

    async def found(query: str) -> list[str]:
        answer = await ask("GET", f"/entities?{query}&options=keyValues", Link=names)
        assert answer.status == 200, answer.body
        return [one["id"].removeprefix("http://lamplighter.local/") for one in answer.json]

    assert await found("q=result>20") == ["stream/1"]
    assert await found("q=result==true") == [], "an older event has it"
    assert await found("q=result==false;result.observedAt>2026-11-26T10:30:00Z") == ["stream/2"]
    assert await found("q=madeBySensor==http://lamplighter.local/sensor/2") == ["stream/2"]
    assert await found("attrs=observedProperty") == ["stream/1", "stream/2"]
    changed = f"""{PREFIXES} DELETE {{ <observation/1> sosa:hasSimpleResult ?v }}
INSERT {{ <observation/1> sosa:hasSimpleResult 5 }} WHERE {{ <observation/1> sosa:hasSimpleResult ?v }}"""
    assert (await update(at, changed)).status == 200
    assert await found("q=result==5") == ["stream/1"]
    for method, path, body in (("DELETE", "", None), ("PATCH", "/attrs", {"a": 1}), ("DELETE", "/attrs/a", None)):
        target = f"/entities/http:%2F%2Flamplighter.local%2Fstream%2F1{path}"
        problem(await ask(method, target, body), 422, "OperationNotSupported")
    problem(await ask("POST", "/entities", {"id": first["id"], "type": "T"}), 409, "AlreadyExists")
