"""Things of the Web of Things at a whole gateway: descriptions, values, desired states, streams, the directory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from lamplighter.adapters.devices.desired import desired_update
from lamplighter.adapters.devices.registry import Entry, Registry
from lamplighter.adapters.literals import TRUE
from lamplighter.adapters.model.event import EventModel
from lamplighter.adapters.model.latest import LatestModel
from lamplighter.engine.terms import XSD
from lamplighter.gateway.addresses import Addresses
from lamplighter.ontology.vocabulary import (
    DESIRED_STATE,
    GATEWAY,
    HAS_SIMPLE_RESULT,
    HAS_STATUS,
    HOSTS,
    LIVE_OBSERVATION,
    REPORTED_STATE,
    RESULT_TIME,
    UNIT,
)
from tests.support.running_gateway import TIMEOUT_S, Answer, http, rows, running_gateway, update
from tests.support.thing_descriptions import (
    ACTUATORS,
    BASE,
    HALL_IRI,
    TOPIC,
    adoption,
    hall,
    reading_updates,
    schema_faults,
)

ON = {"wot": {"enabled": True}}
MESSAGE = '{"temperature": 21.5, "occupancy": true}'


class Site:
    """A gateway with the device `hall`, and what is asked of it."""

    def __init__(self, addresses: Addresses) -> None:
        self.addresses = addresses
        self.base = addresses.page
        self.model: LatestModel | EventModel = LatestModel()

    async def get(self, path: str, method: str = "GET", body: Any = None, **headers: str) -> Answer:
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body)
        sent = {"Content-Type": "application/json"} if data is not None else {}
        return await http(self.base + path, method, data, sent | {k.replace("_", "-"): v for k, v in headers.items()})

    async def thing(self, *below: str, method: str = "GET", body: Any = None, identifier: str = HALL_IRI) -> Answer:
        return await self.get(path(identifier, *below), method, body)

    async def publish(self, payload: str) -> None:
        for text in reading_updates(hall(), TOPIC, payload, self.model):
            assert (await update(self.addresses, text)).status == 200

    async def change(self, text: str) -> None:
        assert (await update(self.addresses, text)).status == 200

    @asynccontextmanager
    async def observing(self, *below: str, **headers: str) -> AsyncIterator[Events]:
        # Without TLS: reading the machine's authorities takes 25 ms.
        async with httpx.AsyncClient(timeout=TIMEOUT_S, verify=False) as client:
            url = self.base + path(HALL_IRI, *below)
            async with client.stream("GET", url, headers={"Accept": "text/event-stream", **headers}) as answer:
                assert answer.status_code == 200, await answer.aread()
                assert answer.headers["content-type"].startswith("text/event-stream")
                yield Events(answer.aiter_lines())


class Events:
    """The events of a stream, as WHATWG's algorithm reads them. last: the id of the newest one."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines
        self.last = ""

    async def next(self) -> tuple[str, Any]:
        """Type and data of the next event that is dispatched."""
        name, data = "message", ""
        async for line in self._lines:
            field, _, value = line.partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                data = value
            elif field == "id":
                self.last = value
            elif not line:
                if data:
                    return name, json.loads(data)
                name = "message"
        raise AssertionError("the stream ended")


def path(identifier: str, *below: str) -> str:
    return "/".join(["things", *(quote(part, safe="") for part in (identifier, *below))])


@asynccontextmanager
async def site(folder: Path, **tables: Any) -> AsyncIterator[Site]:
    async with running_gateway(folder, **{**ON, **tables}) as addresses:
        found = Site(addresses)
        await found.change(adoption(hall()))
        yield found


async def test_the_door_is_off_by_default(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as addresses:
        for one in (".well-known/wot", "things", "search/sparql"):
            assert (await http(addresses.page + one)).status == 404


async def test_descriptions_are_valid_by_the_published_schema(tmp_path: Path) -> None:
    async with site(tmp_path) as there:
        before = await there.thing()
        await there.publish(MESSAGE)
        lamp = f"<{BASE}lamp/1>"
        await there.change(f"INSERT DATA {{ {lamp} <{HAS_STATUS}> 'OFF' . <urn:x> <{DESIRED_STATE}> 3 }}")
        gateway, listed = await there.get(".well-known/wot"), await there.get("things")
        after = await there.thing()
    assert gateway.media_type == after.media_type == "application/td+json"
    assert {one["id"] for one in listed.json} == {HALL_IRI, f"{BASE}lamp/1", "urn:x"}
    assert schema_faults([gateway.json, before.json, after.json, *listed.json]) == [[]] * 6
    assert schema_faults([{**after.json, "security": 5}]) != [[]]


async def test_a_description_says_what_a_device_observes_and_takes(tmp_path: Path) -> None:
    async with site(tmp_path) as there:
        await there.publish(MESSAGE)
        found = (await there.thing()).json
    assert (found["id"], found["title"], found["description"]) == (HALL_IRI, "hall", "Aqara X1")
    assert found["gateway:inArea"]["rdfs:label"] == "Hall"
    assert (found["base"], found["securityDefinitions"]) == (there.base, {"nosec_sc": {"scheme": "nosec"}})
    properties = found["properties"]
    assert set(properties) == {"temperature", "motion", "light", "level", "effect"}
    temperature = properties["temperature"]
    assert (temperature["type"], temperature["unit"]) == ("number", f"{UNIT}DEG_C")
    assert (temperature["readOnly"], temperature["observable"]) == (True, True)
    assert temperature["@type"] == "gateway:temperature"
    assert properties["motion"]["type"] == "boolean"
    assert properties["light"]["type"] == "boolean" and not properties["light"]["readOnly"]
    assert (properties["level"]["minimum"], properties["level"]["maximum"]) == (0, 254)
    assert properties["effect"]["enum"] == ["blink", "okay"]
    assert {name: one["input"] for name, one in found["actions"].items()} == {
        "light": {"type": "boolean"},
        "level": {"type": "number", "minimum": 0, "maximum": 254},
        "effect": {"type": "string", "enum": ["blink", "okay"]},
    }


async def test_a_sensor_has_a_property_before_its_first_reading(tmp_path: Path) -> None:
    async with site(tmp_path) as there:
        assert (await there.thing()).json["properties"]["temperature"]["type"] == "number"
        missing = await there.thing("properties", "temperature")
        assert (missing.status, missing.media_type) == (404, "application/problem+json")
        assert missing.json["detail"].startswith("the property has no value yet")
        async with there.observing("properties", "temperature", "observe") as events:
            await there.publish(MESSAGE)
            assert await events.next() == ("message", 21.5)


async def test_properties_are_read(tmp_path: Path) -> None:
    async with site(tmp_path) as there:
        await there.publish(MESSAGE)
        assert (await there.thing("properties", "temperature")).json == 21.5
        assert (await there.thing("properties", "motion")).json is True
        assert (await there.thing("properties")).json == {"temperature": 21.5, "motion": True}
        await there.change(f"INSERT DATA {{ <{ACTUATORS}light> <{REPORTED_STATE}> false }}")
        assert (await there.thing("properties", "light")).json is False


async def test_a_written_property_and_an_action_are_desired_states(tmp_path: Path) -> None:
    async with site(tmp_path) as there:
        assert (await there.thing("properties", "light", method="PUT", body=True)).status == 204
        assert (await there.thing("properties", "light")).json is True
        assert (await there.thing("actions", "level", method="POST", body=12.5)).status == 204
        assert (await there.thing("actions", "effect", method="POST", body="blink")).status == 204
        found = await rows(there.addresses, f"SELECT ?a ?v {{ ?a <{DESIRED_STATE}> ?v }}")
        assert {row["a"].removeprefix(ACTUATORS): row["v"] for row in found} == {
            "light": "true",
            "level": "12.5",
            "effect": "blink",
        }
        await there.change(
            f"INSERT DATA {{ <{BASE}lamp/1> <{HAS_STATUS}> 'OFF' . <{BASE}lamp/2> <{HAS_STATUS}> 'BROKEN' }}"
        )
        for lamp in ("lamp/1", "lamp/2"):
            set_it = await there.thing("actions", "status", method="POST", body="ON", identifier=BASE + lamp)
            assert set_it.status == 204
        assert (await there.thing("properties", "status", identifier=f"{BASE}lamp/1")).json == "ON"
        assert (await there.thing("properties", "status", identifier=f"{BASE}lamp/2")).json == "BROKEN"


@pytest.mark.parametrize(
    ("name", "body", "expected"),
    [
        ("light", "5", "send a boolean"),
        ("light", '"true"', "send a boolean"),
        ("level", "255", "send a number from 0 to 254"),
        ("level", "1e400", "not JSON"),
        ("level", "true", "send a number"),
        ("effect", '"stop"', "send one of blink, okay"),
        ("effect", '{"a": 1}', "is an object"),
        ("effect", "null", "is null"),
        ("effect", "[" * 10_000, "not JSON"),
        ("effect", '"' + "a" * 20_000 + '"', "at most"),
        ("effect", "", "not JSON"),
    ],
)
async def test_a_value_that_an_actuator_does_not_take_is_refused(
    shared: Site, name: str, body: str, expected: str
) -> None:
    for below, method in (("properties", "PUT"), ("actions", "POST")):
        answer = await shared.thing(below, name, method=method, body=body.encode())
        assert answer.status in (400, 403) and answer.media_type == "application/problem+json", answer.body
        assert expected in answer.json["detail"]
    assert await rows(shared.addresses, f"SELECT ?v {{ ?a <{DESIRED_STATE}> ?v }}") == []


@pytest.mark.parametrize(
    ("below", "method", "status"),
    [
        (("properties", "none"), "GET", 404),
        (("properties", "temperature"), "PUT", 405),
        (("properties", "temperature"), "POST", 405),
        (("properties", "light", "observe"), "PUT", 405),
        (("properties", "light", "observe", "more"), "GET", 404),
        (("actions", "light"), "GET", 405),
        (("actions", "temperature"), "POST", 404),
        (("events",), "GET", 404),
        (("properties",), "POST", 405),
        ((), "POST", 405),
    ],
)
async def test_other_paths_and_methods_are_refused(
    shared: Site, below: tuple[str, ...], method: str, status: int
) -> None:
    answer = await shared.thing(*below, method=method, body=None if method == "GET" else True)
    assert (answer.status, answer.media_type) == (status, "application/problem+json")
    assert answer.json["status"] == answer.json["status_code"] == status


@pytest.mark.parametrize("identifier", ["urn:none", "", "a b", "http://[", "x'} UNION {?thing ?p ?o", "\\", "é" * 3000])
async def test_an_id_without_a_thing_is_not_found(shared: Site, identifier: str) -> None:
    answer = await shared.thing(identifier=identifier)
    assert (answer.status, answer.media_type) == (404, "application/problem+json")


async def test_no_stream_begins_without_a_reader(shared: Site) -> None:
    answer = await shared.thing("properties", "light", "observe", method="HEAD")
    assert (answer.status, answer.headers["allow"], answer.body) == (405, "GET", b"")


async def test_a_property_is_observed_and_resumed(tmp_path: Path) -> None:
    async with site(tmp_path) as there:
        await there.publish(MESSAGE)
        below = "properties", "temperature", "observe"
        async with there.observing(*below) as events:
            assert await events.next() == ("message", 21.5)
            await there.publish('{"temperature": 22}')
            assert await events.next() == ("message", 22)
        await there.publish('{"temperature": 23}')
        await there.publish('{"temperature": 24.5}')
        async with there.observing(*below, **{"Last-Event-ID": events.last}) as again:
            assert [await again.next(), await again.next()] == [("message", 23), ("message", 24.5)]
            await there.publish('{"temperature": 25}')
            assert await again.next() == ("message", 25)
        lost = events.last.replace(events.last[:8], "00000000")
        async with there.observing(*below, **{"Last-Event-ID": lost}) as anew:
            name, data = await anew.next()
            assert name == "reset" and "reason" in data
            assert await anew.next() == ("message", 25)
        refused = await there.get(path(HALL_IRI, *below), Last_Event_ID="x")
        assert (refused.status, refused.media_type) == (400, "application/problem+json")


async def test_the_state_of_an_actuator_is_observed(tmp_path: Path) -> None:
    light = f"<{ACTUATORS}light>"
    async with site(tmp_path) as there, there.observing("properties", "light", "observe") as events:
        await there.thing("properties", "light", method="PUT", body=True)
        assert await events.next() == ("message", True)
        await there.change(f"INSERT DATA {{ {light} <{REPORTED_STATE}> false }}")
        assert await events.next() == ("message", False)
        await there.change(
            f"DELETE DATA {{ {light} <{REPORTED_STATE}> false }} ; INSERT DATA {{ {light} <{REPORTED_STATE}> true }}"
        )
        assert await events.next() == ("message", True)


@pytest.mark.parametrize("name", ["temperature", "motion", "light", "effect"])
async def test_a_stream_of_a_removed_thing_ends(tmp_path: Path, name: str) -> None:
    """Of a property with and without a value, of a sensor and of an actuator; also for a client that comes back."""
    below = "properties", name, "observe"
    removal = Registry(BASE).removal(Entry(hall(), "adopted"))
    async with site(tmp_path) as there:
        await there.publish('{"temperature": 21.5}')
        await there.thing("properties", "light", method="PUT", body=True)
        async with there.observing(*below) as events, there.observing(*below) as other:
            if name in ("temperature", "light"):
                assert await events.next() == await other.next() == ("message", 21.5 if name == "temperature" else True)
            await there.change(removal)
            for one in (events, other):
                told, data = await one.next()
                assert (told, data) == ("ended", {"reason": "the thing has this property no more"})
                with pytest.raises(AssertionError, match="the stream ended"):
                    await one.next()
        assert (await there.get("things")).json == []


async def test_a_client_that_missed_the_removal_of_a_thing_is_told(tmp_path: Path) -> None:
    below = "properties", "temperature", "observe"
    async with site(tmp_path) as there:
        await there.publish(MESSAGE)
        async with there.observing(*below) as events:
            assert await events.next() == ("message", 21.5)
        await there.change(Registry(BASE).removal(Entry(hall(), "adopted")))
        gone = await there.get(path(HALL_IRI, *below), Last_Event_ID=events.last)
        assert gone.status == 404
        await there.change(adoption(hall()))
        await there.publish('{"temperature": 7}')
        async with there.observing(*below, **{"Last-Event-ID": events.last}) as again:
            assert (await again.next())[0] == "ended"
        async with there.observing(*below, **{"Last-Event-ID": again.last}) as anew:
            assert await anew.next() == ("message", 7)


async def test_no_state_is_set_of_a_thing_that_is_removed_meanwhile(tmp_path: Path) -> None:
    light = f"<{ACTUATORS}light>"
    async with site(tmp_path) as there:
        await there.change(Registry(BASE).removal(Entry(hall(), "adopted")))
        await there.change(desired_update(light, TRUE, f"<{HALL_IRI}> <{HOSTS}> {light} . "))
        assert await rows(there.addresses, f"SELECT ?o {{ {light} ?p ?o }}") == []


async def test_the_newest_event_is_the_value(tmp_path: Path) -> None:
    async with site(tmp_path) as there:
        there.model = EventModel(3, 10)
        for value in (3, 1, 2):
            await there.publish(f'{{"temperature": {value}}}')
        newer, older = "2999-01-01T10:00:00.5Z", "2999-01-01T10:00:00Z"
        for number, time in enumerate((newer, older)):
            await there.change(
                f"INSERT {{ GRAPH <urn:e{number}> {{ ?s <{LIVE_OBSERVATION}> <urn:m{number}> . <urn:m{number}> "
                f"<{HAS_SIMPLE_RESULT}> {40 - number} ; <{RESULT_TIME}> '{time}'^^<{XSD}dateTime> }} }} "
                f"WHERE {{ GRAPH ?g {{ ?s <{LIVE_OBSERVATION}> ?o . ?o <{HAS_SIMPLE_RESULT}> 2 }} }}"
            )
        assert (await there.thing("properties", "temperature")).json == 40
        await there.change("DROP GRAPH <urn:e0> ; DROP GRAPH <urn:e1>")
        assert (await there.thing()).json["properties"]["temperature"]["type"] == "number"
        assert (await there.thing("properties", "temperature")).json == 2
        async with there.observing("properties", "temperature", "observe") as events:
            assert await events.next() == ("message", 2)
            await there.publish('{"temperature": 2}')
            assert await events.next() == ("message", 2)


async def test_the_directory_is_listed_in_pages(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, **ON) as addresses:
        there = Site(addresses)
        ids = [f"{BASE}lamp/{number:03}" for number in range(250)]
        await there.change(
            f"INSERT DATA {{ {' '.join(f'<{one}> <{HAS_STATUS}> {chr(34)}ON{chr(34)} .' for one in ids)} }}"
        )
        found, target = [], "things?limit=100"
        while target:
            answer = await there.get(target)
            assert (answer.status, answer.media_type) == (200, "application/ld+json")
            found += [one["id"] for one in answer.json]
            links = answer.headers["link"]
            assert 'rel="canonical"; etag="' in links
            target = links.partition(">")[0].removeprefix("</") if 'rel="next"' in links else ""
        assert found == sorted(ids)
        assert len((await there.get("things")).json) == 100
        collection = (await there.get("things?offset=240&format=collection")).json
        assert (collection["@type"], collection["total"], len(collection["members"])) == ("ThingCollection", 250, 10)
        assert "next" not in collection
        assert collection["@context"] == "https://www.w3.org/2022/wot/discovery"
        assert (await there.get("things?offset=9999")).json == []
        for wrong, status in (
            ("limit=0", 400),
            ("offset=-1", 400),
            ("x=1", 400),
            ("sort_by=id", 501),
            ("limit=1&limit=2", 400),
        ):
            answer = await there.get(f"things?{wrong}")
            assert (answer.status, answer.media_type) == (status, "application/problem+json")


async def test_descriptions_have_entity_tags(tmp_path: Path) -> None:
    async with site(tmp_path) as there:
        for one in (".well-known/wot", path(HALL_IRI)):
            answer = await there.get(one)
            again = await there.get(one, If_None_Match=answer.headers["etag"])
            assert (again.status, again.body) == (304, b"")
            head = await there.get(one, method="HEAD")
            assert (head.status, head.headers["content-length"], head.body) == (
                200,
                answer.headers["content-length"],
                b"",
            )


TERMS = """PREFIX td: <https://www.w3.org/2019/wot/td#> PREFIX hctl: <https://www.w3.org/2019/wot/hypermedia#>
PREFIX js: <https://www.w3.org/2019/wot/json-schema#> PREFIX schema: <http://schema.org/> """


async def test_descriptions_are_searched_with_sparql(tmp_path: Path) -> None:
    async with site(tmp_path) as there:
        await there.publish(MESSAGE)

        async def search(text: str, **headers: str) -> Answer:
            return await there.get(f"search/sparql?query={quote(TERMS + text)}", **headers)

        found = await search(
            "SELECT ?thing ?name ?target { ?thing a td:Thing ; td:title 'hall' ; td:hasPropertyAffordance ?one . "
            f"?one td:name ?name ; a js:NumberSchema , <{GATEWAY}temperature> ; schema:unitCode <{UNIT}DEG_C> ; "
            "td:isObservable true ; td:hasForm [ hctl:hasOperationType td:readProperty ; hctl:hasTarget ?target ] }"
        )
        assert (found.status, found.media_type) == (200, "application/json")
        [row] = found.json["results"]["bindings"]
        assert {name: one["value"] for name, one in row.items()} == {
            "thing": HALL_IRI,
            "name": "temperature",
            "target": there.base + path(HALL_IRI, "properties", "temperature"),
        }
        actions = await search(
            "SELECT ?name { ?t td:hasActionAffordance [ td:name ?name ; td:hasInputSchema [ a js:BooleanSchema ] ] }"
        )
        assert [one["name"]["value"] for one in actions.json["results"]["bindings"]] == ["light"]
        graph = await search("CONSTRUCT { ?t td:title ?x } { ?t td:title ?x }")
        assert (graph.status, graph.media_type) == (200, "application/ld+json")
        turtle = await search("CONSTRUCT { ?t td:title ?x } { ?t td:title ?x }", Accept="text/turtle")
        assert turtle.media_type == "text/turtle"
        for wrong in (
            "SELECT",
            "INSERT DATA { <a:a> <a:b> <a:c> }",
            "SELECT * { SERVICE <http://127.0.0.1/> { ?s ?p ?o } }",
        ):
            answer = await search(wrong)
            assert (answer.status, answer.media_type) == (400, "application/problem+json"), answer.body
        assert (await there.get("search/sparql")).status == 400


async def test_odd_data_of_clients_makes_no_wrong_description(tmp_path: Path) -> None:
    """Whoever may write the graph chooses labels, rules, units and values."""
    part = f"<{ACTUATORS}light>"
    odd = f"""PREFIX gateway: <{GATEWAY}> PREFIX sosa: <http://www.w3.org/ns/sosa/>
      PREFIX xsd: <{XSD}> PREFIX rdfs: <http://www.w3.org/2000/01/rdf-schema#>
      INSERT DATA {{
        {part} gateway:command <urn:m> .
        <urn:m> gateway:rule '{{"command": ' , '[]' , '{{"command": {{"values": 5}}}}' .
        <urn:p> sosa:hosts <urn:s> , <urn:a> , 'text' , _:b .
        <urn:a> a sosa:Actuator ; gateway:minimum 'x' , 'NaN'^^xsd:double ; gateway:controls 'y' .
        <urn:o> sosa:madeBySensor <urn:s> ; sosa:hasSimpleResult 'INF'^^xsd:double , 'x'@en , <urn:iri> .
        <urn:o2> sosa:madeBySensor <urn:s> ; sosa:hasSimpleResult 1{"0" * 19} ; sosa:observedProperty <urn:q/r> .
        <urn:o> sosa:observedProperty '@list' , <urn:q> . <urn:a2> a sosa:Actuator ; gateway:controls '@id' , _:c .
        <urn:p> sosa:hosts <urn:a2> . <urn:s2> sosa:observes '@set' . <urn:p> sosa:hosts <urn:s2> .
        <urn:p> gateway:inArea 'no area' , <urn:area> . <urn:area> rdfs:label 'a\\nb' }}"""
    async with site(tmp_path) as there:
        await there.change(odd)
        listed = (await there.get("things")).json
        assert [one["id"] for one in listed] == [HALL_IRI, "urn:p"]
        assert schema_faults(listed) == [[], []]
        types = {one.get("@type") for one in listed[1]["properties"].values()}
        assert types == {None, "urn:q", "urn:q/r"}, "each is an IRI"
        for name in listed[1]["properties"]:
            answer = await there.thing("properties", name, identifier="urn:p")
            assert answer.status in (200, 404), answer.body
        assert (await there.thing("properties", "urn:s/urn:q/r", identifier="urn:p")).json == 1e19


@pytest.fixture(scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    async with site(tmp_path_factory.mktemp("wot")) as there:
        yield there


async def test_gateways_that_stop_end_streams(tmp_path: Path) -> None:
    async with site(tmp_path) as there:
        await there.publish(MESSAGE)
        stream = there.observing("properties", "temperature", "observe")
        events = await stream.__aenter__()
        await events.next()
    async with asyncio.timeout(TIMEOUT_S):
        with pytest.raises((AssertionError, httpx.HTTPError)):
            await events.next()
    await stream.__aexit__(None, None, None)
