"""Rules that change while the adapter runs: by the dataset and by a reload. Against a real mosquitto."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from lamplighter.adapters.mapping import Mapping, rule_feed
from lamplighter.adapters.mapping.dataset_rules import FORGET_PROBLEMS, QUERY, DatasetRules
from lamplighter.adapters.mapping.rule_feed import follow_rules
from lamplighter.adapters.mqtt.adapter import MqttAdapter
from lamplighter.adapters.mqtt.settings import FIRST_BROKER, MqttSettings
from lamplighter.engine.client import Notification, UpdateAnswer, UpdateRequest
from lamplighter.engine.errors import GatewayError, QueueFullError, RefusedError, UpstreamError
from lamplighter.engine.terms import Bag, iri, literal
from tests.support.brokers import Mosquitto, mosquitto
from tests.support.event_loops import beside, until
from tests.support.mapping_rules import BASE, rules

TIMEOUT_S = 60.0
A = {"stream": {"topic": "a/{x}", "payload": "number", "property": "gateway:temperature"}}
B = {"stream": {"topic": "b/#", "payload": "number", "property": "gateway:temperature", "sensor": "b"}}


class Gateway:
    """Stands in for the engine client: notifies of rules, and keeps the updates."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.errors: list[GatewayError] = []
        self.queue: asyncio.Queue[Notification | GatewayError] = asyncio.Queue()
        self.notify(0)

    def notify(self, sequence: int, added: dict[str, Any] | None = None, removed: dict[str, Any] | None = None) -> None:
        self.queue.put_nowait(Notification("spu", sequence, bag(added or {}), bag(removed or {})))

    async def subscribe(self, sparql: str) -> AsyncGenerator[Notification, None]:
        if sparql != QUERY:
            await asyncio.Event().wait()  # the desired states of actuators, of which there are none
        while True:
            found = await self.queue.get()
            if isinstance(found, GatewayError):
                raise found
            yield found

    async def updates(self, requests: Sequence[UpdateRequest]) -> list[UpdateAnswer | GatewayError]:
        answers: list[UpdateAnswer | GatewayError] = []
        for request in requests:
            if self.errors:
                answers.append(self.errors.pop(0))
            else:
                self.texts.append(request.sparql)
                answers.append(UpdateAnswer(sequence=len(self.texts)))
        return answers

    def count(self, part: str) -> int:
        return sum(part in text for text in self.texts)


def bag(rules: dict[str, Any]) -> Bag:
    rows = [(iri(f"{BASE}mapping/{name}"), literal(json.dumps(rule))) for name, rule in rules.items()]
    return Bag(("mapping", "rule"), rows)


@asynccontextmanager
async def running(
    broker: Mosquitto, gateway: Gateway, mapping: Mapping, **changes: object
) -> AsyncIterator[MqttAdapter]:
    settings = msgspec.convert({"host": "127.0.0.1", "port": broker.port} | changes, MqttSettings)
    adapter = MqttAdapter(settings, mapping, gateway, rules=DatasetRules(BASE), feed=gateway)  # type: ignore[arg-type]
    async with beside(adapter.run()) as task:
        inbox = adapter.brokers[FIRST_BROKER].inbox
        async with asyncio.timeout(TIMEOUT_S):
            await inbox.subscribed.wait()
        yield adapter
    assert task.cancelled()


async def publish(broker: Mosquitto, *messages: tuple[str, str]) -> None:
    await asyncio.to_thread(broker.publish, *messages)


@pytest.mark.parametrize("version", ["3.1.1", "5"])
async def test_rule_of_the_dataset_is_applied_at_once_and_forgotten_with_its_triples(version: str) -> None:
    with mosquitto() as broker:
        gateway = Gateway()
        async with running(broker, gateway, Mapping([]), protocol=version) as adapter:
            granted = adapter.brokers[FIRST_BROKER].inbox
            gateway.notify(1, {"a": A})
            await until(lambda: granted._filters_granted and adapter.brokers[FIRST_BROKER].mapping.filters == ("a/+",))
            await publish(broker, ("a/1", "20"), ("b/1", "21"))
            await until(lambda: adapter.counters.committed == 1)
            gateway.notify(2, {"b": B}, {"a": A})
            await until(lambda: granted._filters_granted and adapter.brokers[FIRST_BROKER].mapping.filters == ("b/#",))
            await publish(broker, ("a/1", "22"), ("b/1", "23"))
            await until(lambda: adapter.counters.committed == 2)
            assert gateway.count('"23"') == 1 and gateway.count('"22"') == 0
            assert adapter.counters.connections == 1


async def test_reload_changes_rules_without_a_new_connection_and_without_a_gap() -> None:
    table = '[[stream]]\ntopic = "{topic}"\npayload = "number"\nproperty = "ex:p"\nsensor = "s/{{x}}"\n'
    with mosquitto() as broker:
        gateway = Gateway()
        async with running(broker, gateway, rules(table.format(topic="t/{x}"))) as adapter:
            await publish(broker, ("t/1", "1"))
            await until(lambda: adapter.counters.committed == 1)
            for number in range(2, 12):
                adapter.remap(
                    rules(table.format(topic="t/{x}" if number % 2 else "{y}/{x}").replace("ex:p", f"ex:p{number}"))
                )
                await publish(broker, ("t/1", str(number)))
            await until(lambda: adapter.counters.received == 11)
            await until(lambda: adapter.counters.committed == 11)
            assert adapter.counters.connections == 1
            assert adapter.counters.refused == 0


async def test_changed_rule_describes_its_streams_again() -> None:
    table = '[[stream]]\ntopic = "t/{x}"\npayload = "number"\nproperty = "ex:p"\nlabel = "LABEL"\n'
    with mosquitto() as broker:
        gateway = Gateway()
        async with running(broker, gateway, rules(table)) as adapter:
            await publish(broker, ("t/1", "1"))
            await until(lambda: adapter.counters.committed == 1)
            adapter.remap(rules(table))
            await publish(broker, ("t/1", "2"))
            await until(lambda: adapter.counters.committed == 2)
            assert gateway.count("gateway#Stream>") == 1
            adapter.remap(rules(table.replace("LABEL", "other")))
            await publish(broker, ("t/1", "3"))
            await until(lambda: adapter.counters.committed == 3)
            assert gateway.count("other") == 1


@pytest.mark.parametrize("session", ["false", "true"])
async def test_filters_that_change_without_a_connection_are_those_of_the_next_one(session: str) -> None:
    gateway = Gateway()
    with mosquitto(settings=("allow_anonymous true", f"persistence {session}")) as broker:
        async with running(
            broker, gateway, rules('[[stream]]\ntopic = "a"\npayload = "number"\nproperty = "ex:p"')
        ) as adapter:
            inbox = adapter.brokers[FIRST_BROKER].inbox
            broker.stop()
            await until(lambda: not inbox.subscribed.is_set())
            adapter.remap(rules('[[stream]]\ntopic = "b"\npayload = "number"\nproperty = "ex:p"'))
            broker.start()
            await until(inbox.subscribed.is_set)
            await publish(broker, ("a", "1"), ("b", "2"))
            await until(lambda: adapter.counters.committed == 1)
            assert gateway.count('"2"') == 1


async def test_commands_of_files_and_of_the_dataset() -> None:
    with mosquitto() as broker:
        gateway = Gateway()
        async with running(broker, gateway, Mapping([])) as adapter:
            gateway.notify(1, {"lamp": {"command": {"topic": "lamp/set"}}})
            await until(lambda: [command.table.topic for command in adapter._mapping.commands] == ["lamp/set"])


# The feed alone


async def follow(gateway: Gateway, changes: list[int]) -> asyncio.Task[None]:
    found = DatasetRules(BASE)
    task = asyncio.create_task(follow_rules(gateway, found, lambda: changes.append(len(found.streams()))))
    await until(lambda: bool(changes))
    return task


async def test_problem_is_written_even_if_the_gateway_is_busy() -> None:
    gateway, changes = Gateway(), list[int]()
    gateway.errors = [QueueFullError("full"), QueueFullError("full")]
    task = await follow(gateway, changes)
    assert gateway.texts == [FORGET_PROBLEMS]
    gateway.errors = [QueueFullError("full")]
    gateway.notify(1, {"bad": {"stream": {"topic": "a/{x"}}})
    await until(lambda: gateway.count("problem") == 2)
    gateway.notify(2, {}, {"bad": {"stream": {"topic": "a/{x"}}})
    await until(lambda: gateway.count("problem") == 3)
    assert "INSERT" not in gateway.texts[-1]
    task.cancel()
    await asyncio.wait([task])


async def test_many_changes_are_applied_together(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway, changes = Gateway(), list[int]()
    task = await follow(gateway, changes)
    for number in range(50):
        gateway.notify(number + 1, {str(number): A})
    await until(lambda: changes[-1] == 50)
    applied = len(changes)
    assert applied < 10
    monkeypatch.setattr(rule_feed, "SETTLE_S", 1_000.0)
    for number in range(50):
        gateway.notify(number + 51, {f"later{number}": A})
        for _ in range(10):
            await asyncio.sleep(0)
    assert gateway.queue.empty() and len(changes) == applied
    task.cancel()
    await asyncio.wait([task])


async def test_refused_subscription_leaves_the_adapter_running(caplog: pytest.LogCaptureFixture) -> None:
    gateway, changes = Gateway(), list[int]()
    task = await follow(gateway, changes)
    gateway.queue.put_nowait(RefusedError("permission_denied", 403, "no"))
    await asyncio.wait_for(task, TIMEOUT_S)
    assert "not followed" in caplog.text


async def test_closed_client_ends_the_feed() -> None:
    gateway, changes = Gateway(), list[int]()
    task = await follow(gateway, changes)
    gateway.queue.put_nowait(UpstreamError("the client was closed"))
    with pytest.raises(ExceptionGroup):
        await asyncio.wait_for(task, TIMEOUT_S)
