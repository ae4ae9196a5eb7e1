"""Creation of Observations: class A.2 of SensorThings 1.1 as far as it is offered, and data arrays (A.10)."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lamplighter.gateway.addresses import Addresses
from lamplighter.gateway.gates.sensorthings.creation import ROWS_MAX
from tests.support.running_gateway import Answer, http, update
from tests.support.small_house import PREFIXES

Ask = Callable[..., Awaitable[Answer]]
NOON = "2026-11-26T12:00:00Z"


async def test_a_stream_with_a_live_observation_gets_the_new_result(ask: Ask) -> None:
    before = (await ask("/Observations('observation~1')")).json
    made = await ask("/Datastreams('stream~1')/Observations", "POST", json.dumps({"result": 21.50, "resultTime": NOON}))
    assert made.status == 201, made.body
    after = await http(made.headers["location"])
    changed = {"result": 21.5, "resultTime": NOON, "phenomenonTime": NOON}
    assert after.json == before | changed


async def test_a_stream_of_events_gets_one_more(ask: Ask) -> None:
    body = {"result": True, "phenomenonTime": "2026-11-26T13:00:00+01:00", "Datastream": {"@iot.id": "stream~2"}}
    made = [await ask("/Observations", "POST", json.dumps(body)) for _ in range(2)]
    assert [one.status for one in made] == [201, 201]
    places = [one.headers["location"] for one in made]
    assert len(set(places)) == 2
    for place in places:
        one = (await http(f"{place}?$expand=Datastream,FeatureOfInterest")).json
        assert (one["result"], one["resultTime"], one["Datastream"]["@iot.id"]) == (True, NOON, "stream~2")
        assert one["FeatureOfInterest"]["@iot.id"] == "post~1"
    listed = (await ask("/Datastreams('stream~2')/Observations?$count=true&$top=0")).json
    assert listed["@iot.count"] == 4


async def test_a_stream_of_events_keeps_the_newest(ask: Ask) -> None:
    for minute in range(12):
        body = json.dumps({"result": minute, "resultTime": f"2026-11-26T12:{minute:02}:00Z"})
        assert (await ask("/Datastreams('stream~2')/Observations", "POST", body)).status == 201
    kept = (await ask("/Datastreams('stream~2')/Observations?$orderby=resultTime desc&$select=result")).json["value"]
    assert [one["result"] for one in kept] == list(range(11, 1, -1)), "mqtt.events_kept is 10"


@pytest.mark.parametrize(
    ("text", "datatype"),
    [("7", "integer"), ("7.50", "decimal"), ("7e2", "double"), ("true", "boolean"), ('"a \\" } b"', "string")],
)
async def test_results_are_written_as_they_came(at: Addresses, ask: Ask, text: str, datatype: str) -> None:
    body = f'{{"result": {text}}}'
    assert (await ask("/Datastreams('stream~1')/Observations", "POST", body)).status == 201
    query = f"{PREFIXES} SELECT (DATATYPE(?v) AS ?t) {{ <observation/1> sosa:hasSimpleResult ?v }}"
    [row] = (await http(at.query, query=query)).json["results"]["bindings"]
    assert row["t"]["value"].endswith(f"#{datatype}")
    [one] = (await ask("/Datastreams('stream~1')/Observations")).json["value"]
    assert one["result"] == json.loads(text)


async def test_a_quantity_gets_the_number_too(at: Addresses, ask: Ask) -> None:
    described = (
        f"{PREFIXES} INSERT DATA {{ <observation/1> sosa:hasResult <result/1> . <result/1> a qudt:QuantityValue }}"
    )
    assert (await update(at, described)).status == 200
    assert (await ask("/Datastreams('stream~1')/Observations", "POST", '{"result": 3}')).status == 201
    asked = await http(at.query, query=f"{PREFIXES} ASK {{ <result/1> qudt:numericValue 3 }}")
    assert asked.json["boolean"]


@pytest.mark.parametrize(
    ("target", "body", "status", "told"),
    [
        ("/Observations", {"result": 1}, 400, "Datastream is missing"),
        ("/Observations", {"result": 1, "Datastream": {"@iot.id": "nothing"}}, 404, "no Datastream 'nothing'"),
        ("/Observations", {"result": 1, "Datastream": {"name": "new"}}, 501, "only Observations are created"),
        ("/Datastreams('stream~1')/Observations", {}, 400, "result is missing"),
        ("/Datastreams('stream~1')/Observations", [], 400, "no JSON object"),
        ("/Datastreams('stream~1')/Observations", {"result": None}, 501, "are not kept"),
        (
            "/Datastreams('stream~1')/Observations",
            {"result": 1, "resultQuality": "x"},
            501,
            "'resultQuality' is not kept",
        ),
        ("/Datastreams('stream~1')/Observations", {"result": 1, "resultTime": "noon"}, 400, "with a zone"),
        ("/Datastreams('stream~1')/Observations", {"result": 1, "resultTime": "2999-01-01T00:00:00Z"}, 400, "future"),
        (
            "/Datastreams('stream~1')/Observations",
            {"result": 1, "resultTime": f"{NOON}/{NOON}"},
            501,
            "not an interval",
        ),
        (
            "/Datastreams('stream~1')/Observations",
            {"result": 1, "resultTime": NOON, "phenomenonTime": "2026-11-26T10:30:00Z"},
            501,
            "has one time",
        ),
        ("/Datastreams('stream~1')/Observations", {"result": 1, "resultTime": "2020-01-01T00:00:00Z"}, 409, "newest"),
        ("/Datastreams('stream~1')/Observations", {"result": 1, "Datastream": {"@iot.id": "stream~2"}}, 400, "another"),
        (
            "/Datastreams('stream~1')/Observations",
            {"result": 1, "FeatureOfInterest": {"@iot.id": "x"}},
            501,
            "'post~1'",
        ),
        ("/Things", {"name": "new"}, 405, "Observations are created with POST"),
        ("/Sensors('sensor~1')/Datastreams", {"name": "new"}, 405, "Observations are created with POST"),
    ],
)
async def test_refusals_name_the_cure_and_change_nothing(
    ask: Ask, target: str, body: Any, status: int, told: str
) -> None:
    before = (await ask("/Observations")).json
    answer = await ask(target, "POST", json.dumps(body))
    assert (answer.status, told in answer.json["message"]) == (status, True), answer.body
    assert (await ask("/Observations")).json == before


async def test_data_arrays_create_what_they_can(ask: Ask) -> None:
    body = [
        {
            "Datastream": {"@iot.id": "stream~2"},
            "components": ["phenomenonTime", "result", "FeatureOfInterest/id"],
            "dataArray@iot.count": 3,
            "dataArray": [[NOON, 1, "post~1"], ["noon", 2, "post~1"], ["2026-11-26T12:01:00Z", 3, "post~1"]],
        }
    ]
    made = await ask("/CreateObservations", "POST", json.dumps(body))
    assert made.status == 201, made.body
    first, failed, third = made.json
    assert failed.startswith("error: phenomenonTime")
    assert [(await http(one)).json["result"] for one in (first, third)] == [1, 3]
    assert (await ask("/CreateObservations", "POST", "{}")).status == 400


async def test_a_data_array_has_a_largest_number_of_rows(ask: Ask) -> None:
    group = {"Datastream": {"@iot.id": "stream~2"}, "components": ["result"], "dataArray": [[1]] * (ROWS_MAX // 2)}
    refused = await ask("/CreateObservations", "POST", json.dumps([group, group, {**group, "dataArray": [[1]]}]))
    assert (refused.status, "send several" in refused.json["message"]) == (400, True), refused.body
    assert (await ask("/Observations?$count=true&$top=0")).json["@iot.count"] == 3


async def test_an_observation_of_a_data_array_that_is_older_than_the_one_before_is_told(ask: Ask) -> None:
    """A stream with a live observation keeps the newest one, whichever request it came in."""
    rows = [["2026-11-26T12:01:00Z", 1], [NOON, 2], ["2026-11-26T12:02:00Z", 3]]
    body = [{"Datastream": {"@iot.id": "stream~1"}, "components": ["resultTime", "result"], "dataArray": rows}]
    first, older, last = (await ask("/CreateObservations", "POST", json.dumps(body))).json
    assert first == last and older.startswith("error: this Datastream keeps its newest Observation only"), older
    assert (await http(last)).json["result"] == 3
