"""Feeds hostile messages through the adapter into an engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any, cast

from lamplighter.adapters.mapping import Mapping
from lamplighter.adapters.mqtt.adapter import Broker, MqttAdapter
from lamplighter.adapters.mqtt.messages import Message, MessageQueue
from lamplighter.adapters.mqtt.settings import MqttSettings
from lamplighter.adapters.parts import AdapterContext
from lamplighter.engine.client import UpdateAnswer, UpdateRequest
from lamplighter.engine.core import Engine
from lamplighter.engine.errors import GatewayError
from tests.support.fuzzed_messages import RULES, messages
from tests.support.mapping_rules import rules

BATCH = 200
GOOD = 'SELECT ?value { ?stream <http://lamplighter.example/ns/gateway#mqttTopic> "number/good" ; '
GOOD += "<http://lamplighter.example/ns/gateway#liveObservation>/<http://www.w3.org/ns/sosa/hasSimpleResult> ?value }"


class EngineGateway:
    """The gateway: applies updates to an engine. rejected: updates that the engine refused."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.rejected: list[str] = []

    async def updates(self, requests: Sequence[UpdateRequest]) -> list[UpdateAnswer | GatewayError]:
        answers: list[UpdateAnswer | GatewayError] = []
        for request in requests:
            try:
                answers.append(UpdateAnswer(sequence=self.engine.update(str(request.sparql)).sequence))
            except GatewayError as error:
                self.rejected.append(f"{error}: {request.sparql[:300]}")
                answers.append(error)
        return answers


class _Inbox:
    """Gives out batches, and notes which messages were acknowledged."""

    filters: Sequence[str] = ()

    def __init__(self, batches: list[list[Message]]) -> None:
        self.queue = MessageQueue(clock=lambda: datetime.now(UTC))  # which is empty, so batches are taken in turn
        self.acknowledged = 0
        self._batches = iter(batches)
        self.over = asyncio.Event()

    def __aiter__(self) -> AsyncIterator[list[Message]]:
        return self

    async def __anext__(self) -> list[Message]:
        batch = next(self._batches, None)
        if batch is None:
            self.over.set()
            await asyncio.Event().wait()
        assert batch is not None
        return batch

    def acknowledge(self, batch: Sequence[Message]) -> None:
        self.acknowledged += len(batch)

    def leave(self, filters: Sequence[str]) -> None:
        assert all(0 < len(one.encode()) <= 65_535 for one in filters)  # else paho raises, or cannot encode them


async def feed(count: int, seed: int) -> None:
    """Asserts that each message is acknowledged, each reading counted, and good ones among them committed."""
    received = datetime(2026, 11, 21, 12, tzinfo=UTC)
    gateway = EngineGateway()
    adapter = MqttAdapter(
        MqttSettings(host="127.0.0.1"), rules(RULES), AdapterContext(cast(Any, gateway), now=lambda: received)
    )
    (broker,) = adapter.brokers.values()
    portion: list[tuple[str, bytes]] = []
    fed = good = 0
    for message in [*messages(count, seed), None]:
        if message is not None:
            portion.append(message)
            if len(portion) < BATCH:
                continue
        good += 1
        portion.append(("number/good", str(good).encode()))
        expected = _counted(adapter) + sum(_outcomes(broker.mapping, received, *message) for message in portion)
        made = [Message(topic, payload, False, received, {}, 1, 0, 0) for topic, payload in portion]
        inbox = _Inbox([made])
        object.__setattr__(broker, "inbox", inbox)
        committing = asyncio.create_task(_read(adapter, broker))
        over = asyncio.create_task(inbox.over.wait())
        await asyncio.wait([committing, over], return_when=asyncio.FIRST_COMPLETED, timeout=120)
        assert not committing.done(), committing.exception()
        committing.cancel()
        await asyncio.wait([committing])
        assert inbox.acknowledged == len(portion)
        assert _counted(adapter) == expected
        found: Any = gateway.engine.query(GOOD).to_json()
        assert [row["value"]["value"] for row in found["results"]["bindings"]] == [str(good)]
        fed += len(portion) - 1
        portion = []
    assert fed == count
    assert gateway.rejected == []
    counters = adapter.counters
    assert min(counters.dropped_payload, counters.dropped_unmapped, counters.committed) > count // 50
    named: Any = gateway.engine.query("SELECT ?g { GRAPH ?g { ?s ?p ?o } } LIMIT 1").to_json()
    assert named["results"]["bindings"] == []
    foreign: Any = gateway.engine.query('SELECT ?s { ?s ?p ?o FILTER(STRSTARTS(STR(?s), "http://evil")) }').to_json()
    assert foreign["results"]["bindings"] == []


async def _read(adapter: MqttAdapter, broker: Broker) -> None:
    async with asyncio.TaskGroup() as tasks:
        await adapter._take_batches(broker, tasks)


def _outcomes(mapping: Mapping, received: datetime, topic: str, payload: bytes) -> int:
    """How many readings and errors a message has. Only one with none of its optional values, or a SenML or
    Sparkplug payload without a value, has none."""
    found = mapping.readings(topic, payload, retained=False, received=received)
    if not found and not mapping.covering(topic):
        return 1
    assert found or topic.startswith(("json/", "senml/", "spBv1.0/")), (topic, payload[:100])
    return len(found)


def _counted(adapter: MqttAdapter) -> int:
    """Messages and readings that were committed or dropped with a reason."""
    one = adapter.counters
    return one.committed + one.dropped_payload + one.dropped_unmapped + one.refused + one.rejected + one.repeated
