"""The web page as the HTTP gate serves it."""

from __future__ import annotations

import csv
import gzip
import io
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from lamplighter.gateway.addresses import Addresses
from lamplighter.gateway.gates.http import page
from lamplighter.gateway.gates.http.page import VIEWS
from tests.support.components import require_page
from tests.support.running_gateway import http, running_gateway, update

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


def at(gateway: Addresses, path: str) -> str:
    return f"http://{urlsplit(gateway.query).netloc}{path}"


async def test_browsers_get_the_page_and_programs_the_list_of_paths(gateway: Addresses) -> None:
    require_page()
    for accept in ("", "*/*", "text/plain", "application/json"):
        answer = await http(at(gateway, "/"), headers={"Accept": accept} if accept else {})
        assert (answer.status, answer.media_type) == (200, "text/plain")
        assert b"/page/" in answer.body
    answer = await http(at(gateway, "/"), headers={"Accept": BROWSER})
    assert (answer.status, answer.headers["location"]) == (303, "page/")
    assert "Accept" in answer.headers["vary"]
    answer = await http(at(gateway, "/page"))
    assert (answer.status, answer.headers["location"]) == (308, "page/")


@pytest.mark.parametrize("view", ["", *VIEWS])
async def test_each_view_is_the_same_index(gateway: Addresses, view: str) -> None:
    page = require_page()
    answer = await http(at(gateway, f"/page/{view}"))
    assert (answer.status, answer.media_type, answer.body) == (200, "text/html", page.index.plain)
    assert answer.headers["cache-control"] == "no-cache"


async def test_the_policy_permits_own_scripts_and_the_own_websocket_only(gateway: Addresses) -> None:
    require_page()
    port = urlsplit(gateway.subscribe).port
    for host in ("127.0.0.1", "localhost", "[::1]"):
        answer = await http(at(gateway, "/page/now"), headers={"Host": f"{host}:8000"})
        policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
        assert policy == {
            "default-src": "'none'",
            "script-src": "'self'",
            "style-src": "'self'",
            "img-src": "'self' data:",
            "connect-src": f"'self' ws://{host}:{port}",
            "manifest-src": "'self'",
            "base-uri": "'none'",
            "form-action": "'self'",
            "frame-ancestors": "'none'",
        }
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        session = (await http(at(gateway, "/page/session.json"), headers={"Host": host})).json
        assert session["subscribe"] == f"ws://{host}:{port}/subscribe"
        assert (session["query"], session["update"]) == ("/query", "/update")


async def test_assets_are_immutable_and_packed_where_the_client_takes_it(gateway: Addresses) -> None:
    page = require_page()
    for name, asset in page.files.items():
        url = at(gateway, f"/page/assets/{name}")
        plain = await http(url)
        assert (plain.status, plain.body, plain.media_type) == (200, asset.plain, asset.media_type)
        assert "immutable" in plain.headers["cache-control"] and "Accept-Encoding" in plain.headers["vary"]
        packed = await http(url, headers={"Accept-Encoding": "gzip, br"})
        assert (packed.headers["content-encoding"], gzip.decompress(packed.body)) == ("gzip", asset.plain)
        assert packed.headers["etag"] != plain.headers["etag"]
        known = await http(url, headers={"Accept-Encoding": "gzip", "If-None-Match": f'"x", {packed.headers["etag"]}'})
        assert (known.status, known.body) == (304, b"")
        refused = await http(url, headers={"Accept-Encoding": "gzip;q=0"})
        assert "content-encoding" not in refused.headers
        head = await http(url, "HEAD")
        assert (head.status, head.body, head.headers["content-length"]) == (200, b"", str(len(asset.plain)))


@pytest.mark.parametrize(
    "path", ["/page/nothing", "/page/assets/", "/page/assets/../index.html", "/page/index.html", "/page/assets/x.js"]
)
async def test_there_is_nothing_else(gateway: Addresses, path: str) -> None:
    require_page()
    answer = await http(at(gateway, path))
    assert (answer.status, answer.json["error"]) == (404, "not_found")


async def test_a_gateway_without_the_built_page_serves_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("gates.http.gate", "service.process"):
        monkeypatch.setattr(f"lamplighter.gateway.{module}.built_assets", lambda: None)
    async with running_gateway(tmp_path) as running:
        answer = await http(at(running, "/"), headers={"Accept": BROWSER})
        assert (answer.status, answer.media_type) == (200, "text/plain")
        assert b"gateway/page/build.sh" in answer.body
        answer = await http(at(running, "/page/now"))
        assert answer.status == 404 and "build.sh" in answer.json["error_description"]


READING = """PREFIX sosa: <http://www.w3.org/ns/sosa/> PREFIX gateway: <http://lamplighter.example/ns/gateway#>
PREFIX qudt: <http://qudt.org/schema/qudt/> PREFIX : <http://lamplighter.local/> INSERT DATA {
:reading sosa:madeBySensor :sensor ; sosa:hasFeatureOfInterest :hall ; sosa:observedProperty :temperature ;
  sosa:hasSimpleResult 20.5 ; sosa:resultTime "2026-01-01T00:00:00Z"^^<http://www.w3.org/2001/XMLSchema#dateTime> .
:stream gateway:liveObservation :reading ; qudt:hasUnit <http://qudt.org/vocab/unit/DEG_C> .
:lamp gateway:desiredState true ; gateway:reportedState false . :hall sosa:hosts :lamp }"""


async def test_now_has_rows_for_programs(gateway: Addresses) -> None:
    assert (await update(gateway, READING)).status == 200
    lamp, reading = (await http(at(gateway, "/page/now.json"))).json
    assert lamp["kind"] == "actuator" and (lamp["desired"], lamp["value"]) == (True, False)
    assert lamp["feature"] == reading["feature"] == "http://lamplighter.local/hall"
    assert (reading["value"], reading["unit"]) == (20.5, "http://qudt.org/vocab/unit/DEG_C")
    answer = await http(at(gateway, "/page/now.csv"))
    assert answer.media_type == "text/csv"
    rows = list(csv.DictReader(io.StringIO(answer.body.decode())))
    assert [row["kind"] for row in rows] == ["actuator", "reading"]
    assert rows[1]["value"] == "20.5"


STREET = """PREFIX sosa: <http://www.w3.org/ns/sosa/> PREFIX gateway: <http://lamplighter.example/ns/gateway#>
PREFIX lighting: <http://lamplighter.example/ns/lighting#> PREFIX : <http://lamplighter.local/> INSERT DATA {
:post1 lighting:hasLamp :lamp1 . :lamp1 lighting:hasStatus "ON" ; gateway:reportedState "OFF" .
:post2 lighting:hasLamp :lamp2 .
:seen sosa:hasFeatureOfInterest :post1 ; sosa:observedProperty lighting:presence ; sosa:hasSimpleResult true ;
  sosa:resultTime "2026-01-01T00:00:00Z"^^<http://www.w3.org/2001/XMLSchema#dateTime> .
:warm sosa:hasFeatureOfInterest :post2 ; sosa:observedProperty lighting:temperature ; sosa:hasSimpleResult 9.5 }"""


async def test_the_street_has_a_row_for_each_post(gateway: Addresses) -> None:
    assert (await update(gateway, STREET)).status == 200
    first, second = (await http(at(gateway, "/page/street.json"))).json
    assert (first["post"], first["lamp"]) == ("http://lamplighter.local/post1", "http://lamplighter.local/lamp1")
    assert (first["desired"], first["reported"], first["presence"]) == ("ON", "OFF", True)
    assert second["post"] == "http://lamplighter.local/post2"
    assert [second[name] for name in ("desired", "reported", "presence", "time")] == [None] * 4
    answer = await http(at(gateway, "/page/street.csv"))
    assert answer.media_type == "text/csv"
    rows = list(csv.DictReader(io.StringIO(answer.body.decode())))
    assert [(row["presence"], row["desired"]) for row in rows] == [("true", "ON"), ("", "")]


async def test_a_query_has_rows_for_programs(gateway: Addresses) -> None:
    query = "SELECT ?x ?y { VALUES ?x { 1 2.5 'a' } }"
    answer = await http(at(gateway, "/page/query.json"), query=query)
    assert answer.json == [{"x": 1, "y": None}, {"x": 2.5, "y": None}, {"x": "a", "y": None}]
    answer = await http(at(gateway, "/page/query.csv"), query=query)
    assert re.split(r"\r?\n", answer.body.decode().strip()) == ["x,y", "1,", "2.5,", "a,"]
    assert (await http(at(gateway, "/page/query.json"), query="ASK {}")).json == [{"boolean": True}]
    for path in ("/page/query.json", "/page/query.csv"):
        for wrong in ("SELECT", "CONSTRUCT { ?s ?p ?o } { ?s ?p ?o }"):
            refused = await http(at(gateway, path), query=wrong)
            assert (refused.status, refused.media_type) == (400, "application/json")
        assert (await http(at(gateway, path))).status == 400


async def test_timers_subscriptions_and_health_have_rows_for_programs(gateway: Addresses) -> None:
    assert (await update(gateway, "INSERT DATA { <http://x> <http://p> 1 }", delay="PT1H")).status == 202
    (timer,) = (await http(at(gateway, "/page/timers.json"))).json
    (row,) = csv.DictReader(io.StringIO((await http(at(gateway, "/page/timers.csv"))).body.decode()))
    assert (row["id"], row["state"]) == (timer["id"], "pending")
    assert (await http(at(gateway, "/page/subscriptions.json"))).json == []
    assert (await http(at(gateway, "/page/subscriptions.csv"))).status == 200
    states = {row["name"]: row["state"] for row in (await http(at(gateway, "/page/health.json"))).json}
    assert states["engine"] == states["log"] == "ok"
    rows = csv.DictReader(io.StringIO((await http(at(gateway, "/page/health.csv"))).body.decode()))
    assert {row["name"]: row["state"] for row in rows} == states


async def test_the_log_devices_and_explanations_have_rows_for_programs(gateway: Addresses) -> None:
    lamp = "<http://lamplighter.local/actuator/hall>"
    time = "'2026-11-21T10:00:00Z'^^<http://www.w3.org/2001/XMLSchema#dateTime>"
    prefixes = "PREFIX gateway: <http://lamplighter.example/ns/gateway#> PREFIX sosa: <http://www.w3.org/ns/sosa/> "
    device = "<http://lamplighter.local/actuator/hall/actuation>"
    acknowledged = f"{device} sosa:hasSimpleResult true ; sosa:resultTime {time} ; gateway:followed '1/1'"
    for text in (f"{lamp} gateway:desiredState true", acknowledged):
        assert (await update(gateway, f"{prefixes} INSERT DATA {{ {text} }}")).status == 200
    first, second = (await http(at(gateway, "/page/log.json"))).json
    assert (first["record"], second["record"]) == ("1/1", "1/2")
    assert (first["cause"], first["removed"], first["added"]) == ("http", 0, 1)
    [row] = csv.DictReader(io.StringIO((await http(at(gateway, "/page/log.csv?last=1"))).body.decode()))
    assert (row["record"], row["added"]) == ("1/2", "3")
    assert (await http(at(gateway, "/page/log.csv?last=x"))).status == 400
    assert (await http(at(gateway, "/page/devices.json"))).json == []
    assert (await http(at(gateway, "/page/devices.csv"))).media_type == "text/csv"
    [outcome] = (await http(at(gateway, "/page/explain.json"))).json
    assert (outcome["actuator"], outcome["record"]) == (lamp, "1/2")
    links = (await http(at(gateway, "/page/explain.json"), actuation=lamp)).json
    assert [link["link"] for link in links] == ["update", "notification", "rule", "request", "acknowledgement"]
    body = (await http(at(gateway, "/page/explain.csv"), actuation=lamp)).body.decode()
    assert [row["said"] for row in csv.DictReader(io.StringIO(body))] == [link["said"] for link in links]
    assert (await http(at(gateway, "/page/explain.json"), actuation="nothing")).status == 404


async def test_rows_that_are_far_longer_than_their_result_are_refused(gateway: Addresses) -> None:
    names = " ".join(f"?v{number}" for number in range(1_000))
    values = " ".join(str(number) for number in range(50))
    asked = f"SELECT {names} {{ VALUES ?x {{ {values} }} VALUES ?y {{ {values} }} }}"
    answer = await http(at(gateway, "/page/query.json"), query=f"{asked} LIMIT 10")
    assert (answer.status, len(answer.json), len(answer.json[0])) == (200, 10, 1_000)
    answer = await http(at(gateway, "/page/query.json"), query=asked)
    assert (answer.status, answer.json["error"]) == (403, "limit_exceeded")


async def test_views_have_bounded_texts(gateway: Addresses, monkeypatch: pytest.MonkeyPatch) -> None:
    await update(gateway, f"INSERT DATA {{ <http://a> <http://b> '{'x' * 1_000}' }}", delay="PT1H")
    for form in ("json", "csv"):
        assert (await http(at(gateway, f"/page/timers.{form}"))).status == 200
    monkeypatch.setattr(page, "TEXTS_MAX", 1_000)
    for form in ("json", "csv"):
        answer = await http(at(gateway, f"/page/timers.{form}"))
        assert (answer.status, answer.json["error"]) == (403, "limit_exceeded")
