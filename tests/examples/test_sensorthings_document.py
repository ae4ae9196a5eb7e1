"""docs/sensorthings.md and docs/grafana.md say what is so: their requests are sent, and answered as they show."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lamplighter.gateway.gates.sensorthings.compilation import FUNCTIONS
from tests.support.components import require_command
from tests.support.places import ROOT
from tests.support.running_gateway import http, running_gateway, update
from tests.support.small_house import PREFIXES, SMALL_HOUSE

SENSORTHINGS = (ROOT / "docs" / "sensorthings.md").read_text()
GRAFANA = (ROOT / "docs" / "grafana.md").read_text()
FROM, TO = "2026-11-26T09:00:00.000Z", "2026-11-26T12:00:00.000Z"
"""A range of times as Grafana writes it for ${__from:date:iso}."""


def calls() -> Iterator[tuple[str, str]]:
    """Each curl command and what it prints."""
    for block in re.findall(r"```console\n(.*?)```", SENSORTHINGS, re.S):
        yield from re.findall(r"^\$ (curl .*)\n(.*)$", block, re.M)


async def test_the_requests_are_answered_as_shown(tmp_path: Path) -> None:
    require_command("curl")
    found = list(calls())
    assert len(found) == 5
    async with running_gateway(tmp_path, sensorthings={"enabled": True}) as at:
        assert (await update(at, SMALL_HOUSE)).status == 200
        place = at.query.removeprefix("http://").removesuffix("/query")
        for command, shown in found:
            line = command.replace("127.0.0.1:8000", place)
            made = await asyncio.to_thread(
                subprocess.run, ["sh", "-c", line], capture_output=True, text=True, check=True
            )
            answer = made.stdout.replace(place, "127.0.0.1:8000")
            assert json.loads(answer) == json.loads(shown), command


def test_every_function_is_listed() -> None:
    rows = re.findall(r"^\| (?:strings|times|numbers) \| (.*) \|$", SENSORTHINGS, re.M)
    assert set(" ".join(re.findall(r"`([^`]*)`", " ".join(rows))).split()) - {"duration'PT1H'"} == set(FUNCTIONS)


def selected(value: Any, selector: str) -> Any:
    """What a selector of Infinity leads to."""
    for name in selector.split("."):
        value = value[name]
    return value


async def chart(root: str, query: dict[str, Any]) -> list[list[Any]]:
    """The rows of a chart: what Infinity asks for, and what its selectors find."""
    options = query["url_options"]
    filled = [
        (one["key"], one["value"].replace("${__from:date:iso}", FROM).replace("${__to:date:iso}", TO))
        for one in options["params"]
    ]
    target = "&".join(f"{quote(key)}={quote(text)}" for key, text in filled)
    headers = {one["key"]: one["value"] for one in options.get("headers", ())}
    answer = await http(f"{root}{query['url']}?{target}", options["method"], None, headers)
    assert answer.status == 200, answer.body
    rows = []
    if query["type"] == "csv":
        answered: Any = list(csv.DictReader(io.StringIO(answer.body.decode())))
    else:
        answered = selected(answer.json, query["root_selector"])
    for found in answered:
        row = []
        for column in query["columns"]:
            value = selected(found, column["selector"])
            if column["type"] == "timestamp":
                value = datetime.fromisoformat(value).isoformat()
            row.append(float(value) if column["type"] == "number" else value)
        rows.append(row)
    return rows


async def test_grafana_gets_the_points_of_its_charts(tmp_path: Path) -> None:
    by_history, by_sensorthings, by_sparql = (
        json.loads(text) for text in re.findall(r"```json\n(.*?)```", GRAFANA, re.S)
    )
    readings = "".join(
        f"GRAPH <stream/2/2026-11-26T10:{minute}:00Z/0> {{ <point/{minute}> sosa:hasSimpleResult {minute}.5 ; "
        f'sosa:resultTime "2026-11-26T10:{minute}:00Z"^^xsd:dateTime ; sosa:madeBySensor <sensor/2> . '
        f"<stream/2> gateway:liveObservation <point/{minute}> }} "
        for minute in (10, 20, 30)
    )
    late = '<point/late> sosa:hasSimpleResult 99 ; sosa:resultTime "2026-11-26T13:00:00Z"^^xsd:dateTime .'
    async with running_gateway(tmp_path, sensorthings={"enabled": True}) as at:
        text = f"{PREFIXES} INSERT DATA {{ <stream/2> a gateway:Stream . {readings} {late} }}"
        assert (await update(at, text)).status == 200
        root = at.query.removesuffix("/query")
        points = [[f"2026-11-26T10:{minute}:00+00:00", minute + 0.5] for minute in (10, 20, 30)]
        assert await chart(root, by_sensorthings) == points
        sensor = "http://lamplighter.local/sensor/2"
        described = "<stream/2> sosa:madeBySensor <sensor/2> ; rdfs:label 'kitchen temperature'"
        assert (await update(at, f"{PREFIXES} INSERT DATA {{ {described} }}")).status == 200
        assert await chart(root, by_history) == points
        assert await chart(root, by_sparql) == [[*point, sensor] for point in points]
