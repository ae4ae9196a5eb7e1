"""Rules that change while the adapter runs: by the dataset and by a reload. Against a real mosquitto."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from lamplighter.adapters.mapping import Mapping
from lamplighter.adapters.mapping.dataset_rules import DatasetRules
from lamplighter.adapters.mqtt.adapter import MqttAdapter
from lamplighter.adapters.mqtt.settings import FIRST_BROKER, MqttSettings
from lamplighter.adapters.parts import AdapterContext
from lamplighter.engine.errors import GatewayError
from tests.support.brokers import Mosquitto, mosquitto, subscribed
from tests.support.dataset_rules import A, B, RulesGateway
from tests.support.event_loops import beside, until
from tests.support.mapping_rules import BASE, rules

TIMEOUT_S = 60.0


@asynccontextmanager
async def running(
    broker: Mosquitto, gateway: RulesGateway, mapping: Mapping, **changes: object
) -> AsyncIterator[MqttAdapter]:
    settings = msgspec.convert({"host": "127.0.0.1", "port": broker.port} | changes, MqttSettings)
    adapter = MqttAdapter(settings, mapping, AdapterContext(gateway), rules=DatasetRules(BASE), feed=gateway)  # type: ignore[arg-type]
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
        gateway = RulesGateway()
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


@pytest.mark.parametrize("refused", [False, True])
async def test_messages_of_a_kept_session_wait_for_the_rules_of_the_dataset(refused: bool) -> None:
    with mosquitto() as broker:
        gateway = RulesGateway()
        gateway.notify(1, {"a": A})
        async with running(broker, gateway, Mapping([]), client_id="kept") as adapter:
            inbox = adapter.brokers[FIRST_BROKER].inbox
            await until(lambda: inbox.filters == ["a/+"] and inbox.has_all_filters)
        await publish(broker, *(("a/1", str(number)) for number in range(10)))
        gateway = RulesGateway()
        gateway.queue.get_nowait()
        async with running(broker, gateway, Mapping([]), client_id="kept") as adapter:
            await until(lambda: adapter.counters.received == 10)
            if refused:
                gateway.queue.put_nowait(GatewayError("it is not permitted"))
            else:
                gateway.notify(0, {"a": A})
            await until(lambda: adapter.counters.committed + adapter.counters.dropped_unmapped == 10)
            assert adapter.counters.dropped_unmapped == 10 * refused


async def test_reload_changes_rules_without_a_new_connection_and_without_a_gap() -> None:
    table = '[[stream]]\ntopic = "{topic}"\npayload = "number"\nproperty = "ex:p"\nsensor = "s/{{x}}"\n'
    with mosquitto() as broker:
        gateway = RulesGateway()
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
        gateway = RulesGateway()
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
    gateway = RulesGateway()
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
        gateway = RulesGateway()
        async with running(broker, gateway, Mapping([])) as adapter:
            gateway.notify(1, {"lamp": {"command": {"topic": "lamp/set"}}})
            await until(lambda: [command.table.topic for command in adapter._mapping.commands] == ["lamp/set"])


async def test_a_rule_that_a_wider_one_covers_reads_what_is_retained() -> None:
    """Its topics are subscribed to already, so that the broker would not send their retained messages again."""
    wide = rules('[[stream]]\ntopic = "{x}/{y}"\npayload = "number"\nproperty = "ex:p"\nsensor = "wide/{x}/{y}"\n')
    with mosquitto() as broker:
        await asyncio.to_thread(broker.publish, ("a/1", "20"), retain=True)
        gateway = RulesGateway()

        def readings() -> int:
            return sum("lamplighter-" in one and "-retained disconnected" in one for one in broker.log)

        async with running(broker, gateway, wide) as adapter:
            inbox = adapter.brokers[FIRST_BROKER].inbox
            await until(lambda: readings() == 1, "the first reading of what is retained")
            gateway.notify(1, {"a": A})
            await until(lambda: gateway.count("sensor/a/1") > 0)
            assert inbox.filters == ["+/+"]


@pytest.mark.parametrize(
    ("topic", "ended"),
    [
        ("former/sensor/x/config", "former/+/+/config"),
        ("former/house/sensor/node/x/config", "former/house/+/+/+/config"),
        ("gone/t", "gone/t"),
    ],
)
async def test_subscriptions_of_an_earlier_configuration_in_a_kept_session_end(topic: str, ended: str) -> None:
    former = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="adapter", clean_session=False)
    with mosquitto() as broker:
        with subscribed(former, broker, "former/+/+/config", "former/house/+/+/+/config", "gone/t"):
            pass
        gateway = RulesGateway()
        async with running(broker, gateway, Mapping([]), client_id="adapter") as adapter:
            gateway.notify(1, {"a": A})
            await until(lambda: adapter.brokers[FIRST_BROKER].mapping.filters == ("a/+",))
            await publish(broker, (topic, "{}"))
            await until(lambda: adapter.counters.dropped_unmapped == 1)
            await until(lambda: any(line.endswith(f"\t{ended}") for line in broker.log))
            await publish(broker, (topic, "{}"), ("a/1", "1"))
            await until(lambda: adapter.counters.committed == 1)
            assert adapter.counters.dropped_unmapped == 1


async def test_former_subscription_ends_in_the_next_connection_if_the_request_is_lost() -> None:
    former = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="adapter", clean_session=False)
    with mosquitto(settings=("allow_anonymous true", "persistence true")) as broker:
        with subscribed(former, broker, "gone/t"):
            pass
        async with running(broker, RulesGateway(), Mapping([]), client_id="adapter") as adapter:
            inbox = adapter.brokers[FIRST_BROKER].inbox
            with pytest.MonkeyPatch.context() as lost:
                lost.setattr(inbox, "leave", lambda filters: None)
                await publish(broker, ("gone/t", "1"))
                await until(lambda: adapter.counters.dropped_unmapped == 1)
            broker.stop()
            await until(lambda: not inbox.subscribed.is_set())
            broker.start()
            await until(inbox.subscribed.is_set)
            await publish(broker, ("gone/t", "2"))
            await until(lambda: any(line.endswith("\tgone/t") for line in broker.log))
