"""The cases of the OGC's conformance classes A.1 (sensing entities) and A.3 (requesting data) of SensorThings 1.1."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lamplighter.gateway.addresses import Addresses
from lamplighter.gateway.gates.sensorthings import reading
from tests.support.running_gateway import Answer, http, update
from tests.support.small_house import PREFIXES

Ask = Callable[..., Awaitable[Answer]]

MANDATORY = {
    "Things": ("name", "description"),
    "Locations": ("name", "description", "encodingType", "location"),
    "Datastreams": ("name", "description", "unitOfMeasurement", "observationType"),
    "Sensors": ("name", "description", "encodingType", "metadata"),
    "ObservedProperties": ("name", "definition", "description"),
    "Observations": ("phenomenonTime", "result", "resultTime"),
    "FeaturesOfInterest": ("name", "description", "encodingType", "feature"),
}
NAVIGATION = {
    "Things": ("Locations", "HistoricalLocations", "Datastreams"),
    "Locations": ("Things", "HistoricalLocations"),
    "Datastreams": ("Thing", "Sensor", "ObservedProperty", "Observations"),
    "Sensors": ("Datastreams",),
    "ObservedProperties": ("Datastreams",),
    "Observations": ("Datastream", "FeatureOfInterest"),
    "FeaturesOfInterest": ("Observations",),
}


async def value(ask: Ask, target: str) -> Any:
    answer = await ask(target)
    assert answer.status == 200, answer.body
    return answer.json


async def test_the_service_root_lists_the_entity_sets(ask: Ask) -> None:
    root = await value(ask, "")
    names = {one["name"] for one in root["value"]}
    assert names == {*MANDATORY, "HistoricalLocations"}
    assert any(one.endswith("/datamodel/thing") for one in root["serverSettings"]["conformance"])
    for one in root["value"]:
        assert (await http(one["url"])).status == 200, one
    assert root == await value(ask, "/")


@pytest.mark.parametrize("kind", MANDATORY)
async def test_each_entity_has_its_mandatory_members_and_links(ask: Ask, kind: str) -> None:
    found = (await value(ask, f"/{kind}"))["value"]
    assert found
    for one in found:
        assert all(one[name] is not None for name in MANDATORY[kind]), one
        alone = (await http(one["@iot.selfLink"])).json
        assert alone == one
        for name in NAVIGATION[kind]:
            answer = await http(one[f"{name}@iot.navigationLink"])
            assert answer.status == 200, (one, name)
            assert ("value" in answer.json) == name.endswith("s")
        for name in MANDATORY[kind]:
            assert (await http(f"{one['@iot.selfLink']}/{name}")).json == {name: one[name]}


async def test_values_are_those_of_the_dataset(ask: Ask) -> None:
    one = await value(ask, "/Datastreams('stream~1')?$expand=Observations,Thing,Sensor,ObservedProperty")
    assert one["unitOfMeasurement"] == {
        "name": "DEG_C",
        "symbol": "Cel",
        "definition": "http://qudt.org/vocab/unit/DEG_C",
    }
    assert one["observationType"].endswith("OM_Measurement")
    assert (one["Thing"]["name"], one["Sensor"]["name"]) == ("Post one", "1")
    assert one["ObservedProperty"]["name"] == "Temperatur", "the first of several labels"
    [observation] = one["Observations"]
    assert observation["result"] == 20.5
    assert observation["resultTime"] == observation["phenomenonTime"] == "2026-11-26T10:00:00Z"
    [place] = (await value(ask, "/Things('platform~1')/Locations"))["value"]
    assert place["location"] == {"type": "Point", "coordinates": [11.25, 44.5]}


async def test_properties_values_and_references(ask: Ask) -> None:
    assert (await ask("/Observations('observation~1')/result/$value")).body == b"20.5"
    named = await ask("/Datastreams('stream~1')/Thing/name/$value")
    assert (named.body, named.media_type) == (b"Post one", "text/plain")
    references = (await value(ask, "/Things('platform~1')/Datastreams/$ref?$top=1"))["value"]
    assert [list(one) for one in references] == [["@iot.selfLink"]]
    assert (await http(references[0]["@iot.selfLink"])).status == 200
    assert "Things('platform~1')" in (await value(ask, "/Datastreams('stream~1')/Thing/$ref"))["@iot.selfLink"]


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("result gt 20", ["observation~1"]),
        ("result eq true", ["observation~2~first"]),
        ("resultTime ge 2026-11-26T11:00:00+00:00", ["observation~2~second"]),
        ("hour(resultTime) eq 10 and Datastream/id eq 'stream~1'", ["observation~1"]),
        ("Datastream/Thing/id ne 'platform~1'", []),
        ("startswith(Datastream/ObservedProperty/name,'Temp')", ["observation~1"]),
        ("date(resultTime) eq 2026-11-26 and time(resultTime) gt 10:30", ["observation~2~second"]),
        ("parameters/iri eq 'http://lamplighter.local/observation/1'", ["observation~1"]),
        ("resultTime sub 2026-11-26T10:00:00Z gt duration'PT59M'", ["observation~2~second"]),
        ("result div 0.5 eq 41 and 0 div 0.5 eq 0 and (10 mod 4) div 5 eq 0 and -7 div 2 eq -3", ["observation~1"]),
        ("resultTime lt now() and resultTime gt mindatetime() and resultTime lt maxdatetime()", None),
        ("result lt 99999999999999999999 and result gt -9223372036854775809", ["observation~1"]),
        ("result gt 0.1234567890123456789", ["observation~1"]),
    ],
)
async def test_filter(ask: Ask, condition: str, found: list[str] | None) -> None:
    answer = await value(ask, f"/Observations?$filter={condition.replace('+', '%2B')}&$select=id".replace("%2B", "+"))
    assert found is None or [one["@iot.id"] for one in answer["value"]] == found


@pytest.mark.parametrize(
    ("target", "status", "told"),
    [
        ("/Nothing", 404, "there are Things"),
        ("/Things('nothing')", 404, "there is no Thing"),
        ("/Things('nothing')/Datastreams", 404, "there is no Thing at Things('nothing')"),
        ("/Things('platform~1')/Datastreams('stream~3')", 404, "there is no Datastream"),
        ("/Things(1 2)", 400, "is no id"),
        ("/Things/name", 404, "with its id in parentheses"),
        ("/Things('platform~1')/colour", 404, "Thing has name"),
        ("/Things?$filter=name eq", 400, "$filter, position 8: expected a property"),
        ("/Things\n", 404, "nothing at 'Things\\n'"),
        ("/Things('platform~1')\n", 404, "there is nothing at"),
        ("/Observations?$filter=resultTime gt 2026-11-26T10:00:00 01:00", 400, "a + in a URL is written %2B"),
        ("/Things?$filter=name gt 5", 400, "$filter, position 6: a string cannot be compared with a number"),
        ("/Things?$filter=colour eq 'x'", 400, "Thing has no property 'colour'; it has name"),
        ("/Things?$filter=geo.distance(location, geography'POINT(1 1)') lt 5", 400, "geo.distance is not supported"),
        ("/Observations?$filter=during(resultTime, resultTime)", 400, "during is not supported: times here"),
        ("/Observations?$filter=resultTime gt 2026-11-26T10:00:00", 400, "no time zone; append Z"),
        ("/Observations?$filter=resultTime gt 2026-13-26T10:00:00Z", 400, "is no datetime"),
        ("/Things?$filter=name", 400, "a condition is expected, and this is a string"),
        ("/Things?$filter=id gt 'a'", 400, "an id can only be compared"),
        ("/Things?$orderby=Datastreams/name", 400, "$orderby, position 1: Datastreams may be several"),
        ("/Things?$orderby=name up", 400, "write asc or desc"),
        ("/Things?$top=-1", 400, "$top, position 1: '-1' is no number"),
        ("/Things?$expand=Datastreams($top=1,Locations", 400, "parenthesis is not closed"),
        ("/Things?$expand=Datastreams($filter=result eq 1)", 400, "position 21: Datastream has no property"),
        ("/Things?$select=colour", 400, "$select, position 1: Thing has no 'colour'"),
        ("/Things?top=1", 400, "write $top"),
        ("/Things?$top=1&$top=2", 400, "occurs 2 times"),
        ("/Things('platform~1')?$top=1", 400, "this is one entity"),
        ("/Things?$resultFormat=dataArray", 400, "Observations only"),
        ("?$top=1", 400, "there are none here"),
    ],
)
async def test_errors_name_place_and_cure(ask: Ask, target: str, status: int, told: str) -> None:
    answer = await ask(target)
    members = answer.json
    assert (answer.status, members["code"], members["status_code"]) == (status, status, status), members
    assert told in members["message"], members
    assert members["message"] == members["error_description"]


async def test_a_position_inside_of_expand_counts_from_the_beginning_of_the_option(ask: Ask) -> None:
    option = "Datastreams($expand=Observations($filter=result gr 1))"
    told = (await ask(f"/Things?$expand={option}")).json["message"]
    assert told.startswith(f"$filter, position {option.index('gr') + 1}: ")


async def test_values_do_not_break_out_of_their_place(ask: Ask) -> None:
    """No constant changes the query; the second condition would be true of each."""
    for text in (
        '" || "" = "',
        "\\",
        '") || true || ("',
        "'' or ''1'' eq ''1",
        "}",
        "\n\r\t",
        "\x01",
        "<\x01>",
        "%e %vraw",
    ):
        answer = await ask(f"/Things?$filter=name eq '{text}' or contains('{text}', 'no such text')")
        assert answer.status == 200, (text, answer.body)
        assert answer.json == {"value": []}, text


async def test_other_methods_are_refused_with_those_that_are_allowed(ask: Ask) -> None:
    for method in ("PUT", "PATCH", "DELETE"):
        answer = await ask("/Things('platform~1')", method, "{}")
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD"), method


async def test_expanded_entities_are_paged_by_links(ask: Ask) -> None:
    one = await value(ask, "/Datastreams('stream~2')?$expand=Observations($top=1;$count=true;$orderby=resultTime desc)")
    assert (one["Observations@iot.count"], len(one["Observations"])) == (2, 1)
    following = (await http(one["Observations@iot.nextLink"])).json
    assert [first["@iot.id"] for first in one["Observations"] + following["value"]] == [
        "observation~2~second",
        "observation~2~first",
    ]
    assert "@iot.nextLink" not in following


async def test_data_arrays_have_a_row_for_each_observation(ask: Ask) -> None:
    found = (await value(ask, "/Observations?$resultFormat=dataArray&$select=id,result&$orderby=id"))["value"]
    assert [one["dataArray"] for one in found] == [
        [["observation~1", 20.5]],
        [["observation~2~first", True], ["observation~2~second", False]],
    ]
    assert {tuple(one["components"]) for one in found} == {("id", "result")}


async def test_ids_lead_back_to_iris_of_any_form(at: Addresses, ask: Ask) -> None:
    iris = ("http://elsewhere.example/a?b=c&d#é", "urn:x:'quoted'", "a//b", "http://lamplighter.local/")
    for one in iris:
        assert (await update(at, f"{PREFIXES} INSERT DATA {{ <{one}> a sosa:Platform }}")).status == 200
    found = (await value(ask, "/Things?$filter=id ne 'platform~1'"))["value"]
    assert len(found) == len(iris)
    for one in found:
        assert (await http(one["@iot.selfLink"])).json == one
        assert (await value(ask, f"/Things?$filter=id eq '{one['@iot.id']}'"))["value"] == [one]


async def test_results_of_every_kind_are_json(at: Addresses, ask: Ask) -> None:
    results = {
        "0.10": 0.1,
        "1e400": "INF",
        '"NaN"^^xsd:double': "NaN",
        '"hello"@en': "hello",
        "<state/on>": "http://lamplighter.local/state/on",
        '"007"^^xsd:unsignedByte': 7,
        "false": False,
        "<<( <a> <b> 5 )>>": None,
    }
    for number, text in enumerate(results):
        stream = f"<stream/1> gateway:liveObservation <result/{number}> . <result/{number}> sosa:hasSimpleResult {text}"
        assert (await update(at, f"{PREFIXES} INSERT DATA {{ {stream} }}")).status == 200, text
    for number, (text, expected) in enumerate(results.items()):
        one = await value(ask, f"/Observations('result~{number}')")
        assert expected is None or one["result"] == expected, text


async def test_the_door_is_off_by_default(gateway: Addresses) -> None:
    assert (await http(gateway.query.removesuffix("/query") + "/v1.1")).status == 404


def test_a_door_that_is_off_is_not_loaded() -> None:
    program = (
        "import sys; from pathlib import Path; from lamplighter.gateway.settings import Settings; "
        "from lamplighter.gateway.gates.apis import api_routes; api_routes(Settings(), Path()); "
        "print([name for name in sys.modules if 'gates.sensorthings' in name])"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "[]\n"


async def test_an_answer_has_a_largest_number_of_entities(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "ENTITIES_MAX", 4)
    assert (await ask("/Observations")).status == 200
    refused = await ask("/Datastreams?$expand=Observations")
    assert (refused.status, "more than 4 entities; write $top" in refused.json["message"]) == (403, True), refused.body


async def test_many_related_entities_are_refused_with_the_cure(at: Addresses, ask: Ask) -> None:
    lines = "".join(
        f"<stream/{stream}> a gateway:Stream ; gateway:liveObservation <many/{stream}/{n}> . "
        f"<many/{stream}/{n}> sosa:hasSimpleResult {n} . "
        for stream in range(10, 12)
        for n in range(5_100)
    )
    assert (await update(at, f"{PREFIXES} INSERT DATA {{ {lines} }}")).status == 200
    refused = await ask("/Datastreams?$expand=Observations($top=1)")
    assert (refused.status, "ask for fewer with $top" in refused.json["message"]) == (403, True), refused.body
    one = (await ask("/Datastreams?$top=1&$skip=2&$expand=Observations($top=2;$orderby=result desc)")).json["value"][0]
    assert [found["result"] for found in one["Observations"]] == [5_099, 5_098]
