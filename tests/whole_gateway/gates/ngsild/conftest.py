"""A running gateway with the NGSI-LD door, a small house, and a building."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from lamplighter.gateway.addresses import Addresses
from tests.support.running_gateway import Answer, http, running_gateway, update
from tests.support.small_house import SMALL_HOUSE

Ask = Callable[..., Awaitable[Answer]]
WEATHER = "https://smartdatamodels.example/weather.jsonld"
SUBSCRIBED = {"enabled": True, "networks": ["127.0.0.0/8"], "ports": [], "backoff_ms": 10, "attempts_max": 2}
BUILDING: dict[str, Any] = {
    "id": "urn:ngsi-ld:Building:1",
    "type": "Building",
    "name": {"type": "Property", "value": 'Tower " } \\ <x>'},
    "temperature": {"type": "Property", "value": 20.5, "unitCode": "CEL", "observedAt": "2026-11-26T10:00:00Z"},
    "owner": {"type": "Relationship", "object": "urn:ngsi-ld:Person:1"},
    "location": {"type": "GeoProperty", "value": {"type": "Point", "coordinates": [11.25, 44.5]}},
    "address": {"type": "Property", "value": {"street": "Main", "numbers": [1, 2.5]}},
    "opened": {"type": "Property", "value": {"@type": "DateTime", "@value": "2020-01-01T00:00:00Z"}},
}


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[Addresses]:
    (tmp_path / "weather.jsonld").write_text(
        '{"@context": {"weather": "http://weather.example/", "rain": "weather:r"}}'
    )
    ngsild = {"enabled": True, "contexts": {WEATHER: "weather.jsonld"}, "subscriptions": SUBSCRIBED}
    async with running_gateway(tmp_path, ngsild=ngsild) as found:
        assert (await update(found, SMALL_HOUSE)).status == 200
        yield found


@pytest.fixture
async def ask(at: Addresses) -> Ask:
    """Sends a request, after the building was created. target: below the root, not encoded."""

    async def asked(
        method: str, target: str, body: Any = None, media_type: str = "application/json", **headers: str
    ) -> Answer:
        path, mark, query = target.partition("?")
        url = at.query.removesuffix("/query") + "/ngsi-ld/v1" + quote(path, safe="/:%") + mark + quote(query, safe="=&")
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is None:
            return await http(url, method, None, named)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await http(url, method, data, {"Content-Type": media_type, **named})

    assert (await asked("POST", "/entities", BUILDING)).status == 201
    return asked
