"""The counters of adapters as triples, applied to an engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from lamplighter.adapters import counting
from lamplighter.adapters.counting import keep_counters
from lamplighter.engine.client import UpdateAnswer, UpdateRequest
from lamplighter.engine.core import Engine
from lamplighter.engine.errors import GatewayError, QueueFullError
from tests.support.event_loops import beside, until
from tests.support.mapping_rules import BASE

QUERY = """PREFIX gateway: <http://lamplighter.example/ns/gateway#>
SELECT ?adapter ?counters { GRAPH ?g { ?adapter a gateway:Adapter ; gateway:counters ?counters } }"""


class Gateway:
    """Applies updates to an engine. refuses: updates that are refused before."""

    def __init__(self, refuses: int = 0) -> None:
        self.engine = Engine()
        self.updated = 0
        self._refuses = refuses

    async def updates(self, requests: Sequence[UpdateRequest]) -> list[UpdateAnswer | GatewayError]:
        self.updated += 1
        if self.updated <= self._refuses:
            return [QueueFullError("full")]
        return [UpdateAnswer(sequence=self.engine.update(str(request.sparql)).sequence) for request in requests]

    @property
    def counters(self) -> dict[str, dict[str, int]]:
        found: Any = self.engine.query(QUERY).to_json()
        rows = found["results"]["bindings"]
        return {row["adapter"]["value"]: json.loads(row["counters"]["value"]) for row in rows}


async def test_counters_are_written_when_they_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "WRITE_S", 0.001)
    counts, gateway = {"messages": 0}, Gateway(refuses=1)
    async with beside(keep_counters(gateway, BASE, "mqtt", lambda: counts)):
        await asyncio.sleep(0.05)
        assert gateway.updated == 0, "nothing has changed"
        for number in (1, 2):
            counts["messages"] = number
            await until(lambda: gateway.counters == {f"{BASE}adapter/mqtt": counts})
        written = gateway.updated
        await asyncio.sleep(0.05)
        assert gateway.updated == written == 3, "one was refused, and newer counters followed"
    assert gateway.engine.quad_count == 2
