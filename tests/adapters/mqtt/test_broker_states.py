"""The updates that keep the states of brokers, applied to an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lamplighter.adapters import lasting_updates
from lamplighter.adapters.mqtt import broker_states
from lamplighter.adapters.mqtt.broker_states import PAUSE_MAX_S, PAUSE_MIN_S, BrokerStates, next_pause_s
from lamplighter.adapters.mqtt.settings import BrokerSettings
from lamplighter.engine.client import UpdateAnswer, UpdateRequest
from lamplighter.engine.core import Engine
from lamplighter.engine.errors import GatewayError, QueueFullError
from lamplighter.engine.terms import lexical
from tests.support.event_loops import settled

BASE = "http://gateway.example/"
BROKERS = {"default": BrokerSettings(host="broker.local"), "hall": BrokerSettings(host="10.0.0.2", port=8883)}
STATES = """PREFIX gateway: <http://lamplighter.example/ns/gateway#> PREFIX rdfs: <http://www.w3.org/2000/01/rdf-schema#>
SELECT ?label ?connected ?since ?reason { ?broker a gateway:Broker ; rdfs:label ?label ; gateway:connected ?connected ;
  gateway:since ?since OPTIONAL { ?broker gateway:reason ?reason } } ORDER BY ?label"""


class Gateway:
    """Applies updates to an engine. refuses: batches that are refused before."""

    def __init__(self, refuses: int = 0) -> None:
        self.engine = Engine()
        self.batches: list[int] = []
        self._refuses = refuses

    async def updates(self, requests: Sequence[UpdateRequest]) -> list[UpdateAnswer | GatewayError]:
        self.batches.append(len(requests))
        await asyncio.sleep(0)
        if self._refuses:
            self._refuses -= 1
            return [QueueFullError("full") for _ in requests]
        assert all(request.cause is not None and request.cause.kind == "mqtt" for request in requests)
        return [UpdateAnswer(sequence=self.engine.update(str(request.sparql)).sequence) for request in requests]

    @property
    def states(self) -> list[tuple[str, ...]]:
        found: Any = self.engine.query(STATES).to_json()
        names = ("label", "connected", "since", "reason")
        return [tuple(row.get(name, {"value": ""})["value"] for name in names) for row in found["results"]["bindings"]]


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 11, 21, 2, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


async def test_states_are_written_at_the_start_and_when_they_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_states, "PAUSE_MIN_S", 0.0)
    gateway, clock = Gateway(), Clock()
    gateway.engine.update(
        "PREFIX gateway: <http://lamplighter.example/ns/gateway#> INSERT DATA { "
        f"<{BASE}broker/old> a gateway:Broker ; gateway:connected true . <http://mine> a gateway:Broker }}"
    )
    states = BrokerStates(gateway, BASE, BROKERS, clock)
    running = asyncio.create_task(states.run())
    try:
        await settled()
        begun = "2026-11-21T02:00:00Z"
        assert gateway.states == [
            ("10.0.0.2:8883", "false", begun, "the adapter starts"),
            ("broker.local:1883", "false", begun, "the adapter starts"),
        ]
        ours = gateway.engine.query("SELECT ?b { ?b a <http://lamplighter.example/ns/gateway#Broker> }")
        names = sorted(lexical(row["b"]) for row in ours)
        assert names == [f"{BASE}broker/default", f"{BASE}broker/hall", "http://mine"]
        clock.now += timedelta(minutes=1)
        states.changed("default", connected=False, reason="[Errno 111] Connection refused")
        states.changed("hall", connected=True, reason="")
        await settled()
        later = "2026-11-21T02:01:00Z"
        assert gateway.states == [
            ("10.0.0.2:8883", "true", later, ""),
            ("broker.local:1883", "false", begun, "connection refused"),
        ]
        written = list(gateway.batches)
        for _ in range(3):
            states.changed("default", connected=False, reason="[Errno 111] Connection refused")
            await settled()
        assert gateway.batches == written
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_a_state_that_keeps_changing_is_written_ever_less_often() -> None:
    gateway, clock = Gateway(), Clock()
    states = BrokerStates(gateway, BASE, BROKERS, clock)
    running = asyncio.create_task(states.run())
    try:
        await settled()
        for number in range(100):
            states.changed("default", connected=number % 2 == 0, reason='a "quoted"\nline')
            await settled()
        assert len(gateway.batches) == 2
        assert gateway.states[1][1] == "true"  # the state when the pause began
    finally:
        running.cancel()
        await asyncio.wait([running])


def test_the_pause_doubles_while_states_keep_changing() -> None:
    assert next_pause_s(PAUSE_MIN_S, 0.0) == 2 * PAUSE_MIN_S
    assert next_pause_s(PAUSE_MAX_S, 0.0) == PAUSE_MAX_S
    assert next_pause_s(PAUSE_MAX_S, PAUSE_MAX_S + 1) == PAUSE_MIN_S


async def test_a_state_that_the_gateway_cannot_take_now_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lasting_updates, "RETRY_MIN_S", 0.001)
    gateway = Gateway(refuses=2)
    states = BrokerStates(gateway, BASE, BROKERS, Clock())
    running = asyncio.create_task(states.run())
    try:
        async with asyncio.timeout(60):
            while len(gateway.batches) < 3:
                await asyncio.sleep(0.001)
        await settled()
        assert len(gateway.states) == 2
    finally:
        running.cancel()
        await asyncio.wait([running])
