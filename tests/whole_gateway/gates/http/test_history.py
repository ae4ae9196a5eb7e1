"""History and logbook over HTTP and on the command line: who is meant, what is told, who may read it."""

from __future__ import annotations

import asyncio
import csv
import io
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from lamplighter.gateway.addresses import Addresses
from lamplighter.gateway.history.subjects import Subjects
from lamplighter.ontology.vocabulary import PREFIXES
from tests.support.commands import command
from tests.support.running_gateway import Answer, http, update
from tests.support.secure_gateway import SecureGateway

_PREFIXES = " ".join(f"PREFIX {name}: <{iri}>" for name, iri in PREFIXES.items())
_SITE = f"""{_PREFIXES} BASE <urn:> INSERT DATA {{
  <urn:kitchen> a gateway:Device ; rdfs:label "Küche" ; gateway:inArea <urn:ground> ;
    sosa:hosts <urn:sensor/t>, <urn:lamp> .
  <urn:ground> rdfs:label "Ground floor" .
  <urn:stream/t> gateway:liveObservation <urn:observation/t> ; qudt:hasUnit unit:DEG_C ;
    gateway:receivedFrom <urn:broker> .
  <urn:observation/t> sosa:madeBySensor <urn:sensor/t> ; sosa:observedProperty gateway:temperature ;
    sosa:hasFeatureOfInterest <urn:kitchen> .
  <urn:stream/m> gateway:liveObservation <urn:observation/m> .
  <urn:observation/m> sosa:madeBySensor <urn:sensor/m> ; sosa:observedProperty gateway:motion ;
    sosa:hasFeatureOfInterest <urn:hall> . <urn:hall> rdfs:label "Hall" .
  <urn:lamp> rdfs:label "Küche lamp" }}"""


async def run(*words: str) -> CompletedProcess[str]:
    return await asyncio.to_thread(command, *words)


async def put(addresses: Addresses, subject: str, property_: str, value: str) -> None:
    text = (
        f"{_PREFIXES} DELETE {{ <{subject}> {property_} ?x }} INSERT {{ <{subject}> {property_} {value} }} "
        f"WHERE {{ OPTIONAL {{ <{subject}> {property_} ?x }} }}"
    )
    assert (await update(addresses, text)).status == 200


async def site(addresses: Addresses) -> None:
    assert (await update(addresses, _SITE)).status == 200
    for value in ("20.5", "21.5", "21.5"):
        await put(addresses, "urn:observation/t", "sosa:hasSimpleResult", value)
    for value in ("true", "false"):
        await put(addresses, "urn:observation/m", "sosa:hasSimpleResult", value)
    await put(addresses, "urn:lamp", "gateway:desiredState", "'ON'")
    await put(addresses, "urn:lamp", "gateway:desiredState", "'OFF'")
    await put(addresses, "urn:lamp", "gateway:reportedState", "'OFF'")


async def test_readings_and_actuators_are_described_anew_only_when_one_comes_or_goes(
    gateway: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0

    class Counted(Subjects):
        def __init__(self, *arguments: Any) -> None:
            nonlocal made
            made += 1
            super().__init__(*arguments)

    monkeypatch.setattr("lamplighter.gateway.gates.http.history.Subjects", Counted)
    await site(gateway)
    for value in ("'ON'", "'OFF'", "'ON'"):
        await put(gateway, "urn:lamp", "gateway:desiredState", value)
        await put(gateway, "urn:lamp", "gateway:reportedState", value)
        assert (await history(gateway, name="Küche lamp"))["states"][-1]["value"] == value.strip("'")
    assert made == 1
    await put(gateway, "urn:fan", "gateway:desiredState", "'ON'")
    assert (await history(gateway, name="fan"))["iri"] == "urn:fan"
    assert made == 2


async def ask(addresses: Addresses, path: str, **parameters: Any) -> Answer:
    return await http(addresses.query.replace("/query", path), **parameters)


async def history(addresses: Addresses, **parameters: Any) -> dict[str, Any]:
    answer = await ask(addresses, "/history", **parameters)
    assert answer.status == 200, answer.body
    return dict(answer.json)


async def test_the_logbook_says_of_which_device_a_part_is(gateway: Addresses) -> None:
    await site(gateway)
    state = (
        f"{_PREFIXES} INSERT DATA {{ <urn:sensor/s> rdfs:label 'state' . <urn:hall> sosa:hosts <urn:sensor/s> . "
        "<urn:observation/s> sosa:madeBySensor <urn:sensor/s> ; sosa:hasFeatureOfInterest <urn:hall> }"
    )
    assert (await update(gateway, state)).status == 200
    await put(gateway, "urn:observation/s", "sosa:hasSimpleResult", "true")
    entries = (await ask(gateway, "/logbook")).json["entries"]
    assert entries[0]["text"] == "Hall state: true"
    assert any("Küche lamp" in one["text"] and "Küche Küche" not in one["text"] for one in entries)


async def test_a_new_name_is_seen_at_once(gateway: Addresses) -> None:
    await site(gateway)
    for given in ("Flur", "Diele"):
        text = f"{_PREFIXES} DELETE {{ <urn:hall> rdfs:label ?x }} INSERT {{ <urn:hall> rdfs:label '{given}' }} "
        text += "WHERE { <urn:hall> rdfs:label ?x }"
        assert (await update(gateway, text)).status == 200
        texts = [one["text"] for one in (await ask(gateway, "/logbook", kind="state")).json["entries"]]
        assert texts == [f"{given} motion: false (was true)", f"{given} motion: true"]
        assert (await history(gateway, name=f"{given} motion"))["label"] == f"{given} motion"
        await put(gateway, "urn:observation/t", "sosa:hasSimpleResult", "3")


async def test_a_reading_is_found_by_its_words_and_by_its_iris(gateway: Addresses) -> None:
    await site(gateway)
    found = await history(gateway, name="küche temperature")
    assert (found["kind"], found["step_s"], found["label"]) == ("number", 0, "Küche temperature")
    assert (found["area"], found["name"]) == ("Ground floor", "Küche")
    assert found["iri"] == "urn:stream/t" and found["unit"].endswith("/DEG_C")
    assert [point[1:] for point in found["points"]] == [
        [20.5, 20.5, 20.5, 1],
        [21.5, 21.5, 21.5, 1],
        [21.5, 21.5, 21.5, 1],
    ]
    assert found["since"] < found["complete_since"] < found["points"][0][0] < found["until"]
    for iri in ("urn:stream/t", "urn:observation/t", "<urn:sensor/t>"):
        assert (await history(gateway, iri=iri))["points"] == found["points"]
    assert (await history(gateway, name="urn:stream/t"))["points"] == found["points"]
    assert (await history(gateway, name="Küche temperature", until=found["points"][0][0]))["points"] == found["points"][
        :1
    ]


async def test_states_are_intervals_that_end_now(gateway: Addresses) -> None:
    await site(gateway)
    found = await history(gateway, name="hall")
    assert found["kind"] == "state" and found["points"] == [] and "reported" in found and found["reported"] is None
    first, second = found["states"]
    assert (first["value"], second["value"]) == ("true", "false")
    assert first["to"] == second["from"] and second["to"] == found["until"]
    lamp = await history(gateway, iri="urn:lamp", since="7d")
    assert [one["value"] for one in lamp["states"]] == ["ON", "OFF"]
    assert [one["value"] for one in lamp["reported"]] == ["OFF"]


async def test_a_name_of_several_or_of_none_is_refused_with_those_that_exist(gateway: Addresses) -> None:
    await site(gateway)
    answer = await ask(gateway, "/history", name="küche")
    assert answer.status == 400 and "Küche temperature" in answer.body.decode() and "Küche lamp" in answer.body.decode()
    assert (await history(gateway, name="KUCHE  Temperature"))["iri"] == "urn:stream/t"
    assert (await ask(gateway, "/logbook", device="kuche")).status == 200
    answer = await ask(gateway, "/history", name="kuchen temperatur")
    assert answer.status == 404 and "there are Küche temperature" in answer.body.decode()
    silent = f"{_PREFIXES} INSERT DATA {{ <urn:window> rdfs:label 'Window' ; sosa:hosts <urn:sensor/w> }}"
    assert (await update(gateway, silent)).status == 200
    answer = await ask(gateway, "/history", name="window")
    assert answer.status == 404 and "'window' has reported nothing yet" in answer.body.decode()
    answer = await ask(gateway, "/history", iri="urn:nobody")
    assert answer.status == 404 and "no value of <urn:nobody>" in answer.body.decode()
    for parameters, reason in (
        ({}, "either iri"),
        ({"iri": "urn:lamp", "name": "lamp"}, "either iri"),
        ({"name": "hall", "since": "yesterday"}, "since: "),
        ({"name": "hall", "since": "P1Y"}, "since: "),
        ({"name": "hall", "since": "2040-01-01T00:00:00Z"}, "since has to be before until"),
        ({"name": "hall", "points": "1"}, "points: "),
    ):
        answer = await ask(gateway, "/history", **parameters)
        assert answer.status == 400 and reason in answer.body.decode(), answer.body.decode()


async def test_a_reading_is_called_like_its_sensor_or_its_iri(gateway: Addresses) -> None:
    await site(gateway)
    text = f"""{_PREFIXES} INSERT DATA {{
      <urn:observation/a> sosa:hasSimpleResult 3 ; sosa:madeBySensor <urn:sensor/a> .
      <urn:sensor/a> rdfs:label "Sonde =1+1 \\u001B[2J" .
      <urn:observation/b> sosa:hasSimpleResult 4 ; sosa:madeBySensor <urn:sensor/b> }}"""
    assert (await update(gateway, text)).status == 200
    found = await history(gateway, name="sonde")
    assert (found["iri"], found["label"]) == ("urn:observation/a", "Sonde =1+1 \\u001B[2J")
    assert (await history(gateway, iri="urn:observation/b"))["label"] == "urn:observation/b"
    # Words of people go before those of paths.
    text = f"""{_PREFIXES} INSERT DATA {{ <urn:plug> a gateway:Device ; rdfs:label "Plug" ;
      sosa:hosts <urn:sensor/p>, <urn:actuator/POWER> .
      <urn:actuator/POWER> rdfs:label 'relay' ; gateway:reportedState true .
      <urn:observation/p> sosa:hasSimpleResult 60 ; sosa:madeBySensor <urn:sensor/p> ;
      sosa:observedProperty gateway:power ; sosa:hasFeatureOfInterest <urn:plug> }}"""
    assert (await update(gateway, text)).status == 200
    assert (await history(gateway, name="power plug"))["iri"] == "urn:observation/p"
    assert (await history(gateway, name="plug actuator"))["iri"] == "urn:actuator/POWER"
    for name in ("", " "):
        answer = await ask(gateway, "/history", name=name)
        assert answer.status == 404 and "urn:observation/b" in answer.body.decode()


async def test_a_chart_is_csv_where_that_is_asked_for(gateway: Addresses) -> None:
    await site(gateway)
    answer = await ask(gateway, "/history", headers={"Accept": "text/csv"}, name="küche temperature")
    rows = list(csv.DictReader(io.StringIO(answer.body.decode())))
    assert [row["mean"] for row in rows] == ["20.5", "21.5", "21.5"] and set(rows[0]) == {
        "time",
        "mean",
        "min",
        "max",
        "count",
    }
    answer = await ask(gateway, "/history", headers={"Accept": "text/csv"}, name="hall")
    assert [row["state"] for row in csv.DictReader(io.StringIO(answer.body.decode()))] == ["true", "false"]


async def test_the_logbook_tells_what_happened_in_words(gateway: Addresses) -> None:
    await site(gateway)
    page = (await ask(gateway, "/logbook")).json
    texts = [entry["text"] for entry in page["entries"]]
    assert texts[0].startswith("Client ") and page["next"] is None
    assert "switched Küche lamp to" in texts[1] and "(was ON)" in texts[1]
    assert texts[3] == "Hall motion: false (was true)"
    assert page["entries"][1]["explain"] == "urn:lamp"
    assert not any("21.5" in text for text in texts)
    for parameters, kinds in (
        ({"device": "Küche", "kind": "switch"}, ["switch", "switch"]),
        ({"room": "Ground floor", "kind": ["switch", "state"]}, ["switch", "switch"]),
        ({"device": "urn:observation/m", "kind": "state"}, ["state", "state"]),
        ({"application": "none"}, []),
        ({"person": "nobody"}, []),
    ):
        answer = await ask(gateway, "/logbook", **parameters)
        assert [entry["kind"] for entry in answer.json["entries"]] == kinds, answer.body.decode()
    first = (await ask(gateway, "/logbook", last="2")).json
    rest = (await ask(gateway, "/logbook", before=first["next"])).json
    assert first["entries"] + rest["entries"] == page["entries"]
    assert (await ask(gateway, "/logbook", room="cellar")).status == 404
    assert (await ask(gateway, "/logbook", kind="gossip")).status == 400


def test_who_may_not_read_a_graph_has_no_history_of_it(tmp_path: Path) -> None:
    with SecureGateway(tmp_path) as gateway:
        operator = {
            "Authorization": gateway.bearer("anna", gateway.client("anna", read=["*"], write=["*"], operate=True))
        }
        reader = {"Authorization": gateway.bearer("jo", gateway.client("jo", read=["default"]))}
        stranger = {"Authorization": gateway.bearer("max", gateway.client("max", read=["urn:other"]))}
        value = "sosa:hasSimpleResult"
        for text in (_SITE, f"{_PREFIXES} INSERT DATA {{ <urn:observation/t> {value} 20.5 }}"):
            headers = {**operator, "Content-Type": "application/sparql-update"}
            assert gateway.https("POST", "/update", text, headers).status == 200
        secret = f"{_PREFIXES} INSERT DATA {{ GRAPH <urn:secret> {{ <urn:observation/s> {value} 1 }} }}"
        assert gateway.https("POST", "/update", secret, headers).status == 200
        target = "/history?iri=urn:observation/t"
        for who, status in ((operator, 200), (reader, 200), (stranger, 404), ({}, 401)):
            assert gateway.https("GET", target, headers=who).status == status
        for who, status in ((operator, 200), (stranger, 404), (reader, 200)):
            assert gateway.https("GET", "/history?name=temperature", headers=who).status == status
        # Names that others have read are not told.
        assert "there are none yet" in gateway.https("GET", "/history?name=nothing", headers=stranger).body.decode()
        for who, status in ((operator, 404), (reader, 404)):
            assert gateway.https("GET", "/history?iri=urn:observation/s", headers=who).status == status
        insider = {"Authorization": gateway.bearer("ida", gateway.client("ida", read=["urn:secret"]))}
        assert gateway.https("GET", "/history?iri=urn:observation/s", headers=insider).status == 200
        for who, status in ((operator, 200), (reader, 403), ({}, 401)):
            assert gateway.https("GET", "/logbook", headers=who).status == status


async def test_the_commands_show_history_and_logbook(gateway: Addresses) -> None:
    await site(gateway)
    url = ("--url", gateway.query.removesuffix("/query"))
    shown = await run("history", "küche", "temperature", *url)
    assert (
        shown.returncode == 0
        and "Küche temperature, Ground floor, unit:DEG_C\n" in shown.stdout
        and "20.5 to 21.5" in shown.stdout
    ), shown
    assert "21.5" in (await run("history", "küche", "temperature", "--csv", *url)).stdout
    lamp = await run("history", "urn:lamp", "--since", "7d", *url)
    assert "OFF" in lamp.stdout and "reported:" in lamp.stdout
    part = f"{_PREFIXES} INSERT DATA {{ <urn:sensor/m> rdfs:label 'motion' . <urn:hall> sosa:hosts <urn:sensor/m> }}"
    assert (await update(gateway, part)).status == 200
    assert (await run("history", "motion", *url)).stdout.startswith("Hall motion\n")
    refused = await run("history", "küche", *url)
    assert refused.returncode == 4 and "Küche lamp" in refused.stderr
    book = await run("logbook", "--device", "Küche", "--kind", "switch", *url)
    assert book.returncode == 0 and book.stdout.count("switched Küche lamp to") == 2
