"""Desired states -> messages, with the engine in this process and a broker that only notes messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest

from lamplighter.adapters.mapping import CommandRule, CommandTable, command_rule
from lamplighter.adapters.mqtt import output
from lamplighter.adapters.mqtt.output import QUERY, Output, ReportedState
from lamplighter.adapters.mqtt.settings import COMMANDS
from lamplighter.engine import Engine
from lamplighter.engine.client import Notification, UpdateAnswer, UpdateRequest
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.terms import XSD, Bag, lexical, literal
from lamplighter.ontology.vocabulary import DESIRED_STATE, PREFIXES
from tests.support.event_loops import beside, settled
from tests.support.noted_messages import NotingBroker

BASE = "http://gateway.example/"
LAMP = f"<{BASE}actuator/lamp>"
NAMES = "".join(f"PREFIX {name}: <{address}> " for name, address in PREFIXES.items())
TRUE, FALSE = (literal(word, datatype=XSD + "boolean") for word in ("true", "false"))


def rule(place: str = "<http://e/rule>", **changes: object) -> CommandRule:
    table = {
        "topic": "zigbee2mqtt/lamp/set",
        "actuator": "actuator/lamp",
        "payload": '{"state": {json}}',
        "values": {"true": "ON", "false": "OFF"},
        "state": {"topic": "zigbee2mqtt/lamp", "member": "state"},
    }
    return command_rule(msgspec.convert(table | changes, CommandTable), prefixes=PREFIXES, base_iri=BASE, place=place)


class Gateway:
    """Stands in for the engine client; one subscription."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.heard: asyncio.Queue[Notification] = asyncio.Queue()

    def write(self, text: str) -> None:
        for note in self.engine.update(NAMES + text).notifications:
            self.heard.put_nowait(Notification(note.spuid, note.sequence, note.added, note.removed))

    def desire(self, state: str) -> None:
        self.write(
            f"DELETE {{ {LAMP} gateway:desiredState ?was }} INSERT {{ {LAMP} gateway:desiredState {state} }} "
            f"WHERE {{ OPTIONAL {{ {LAMP} gateway:desiredState ?was }} }}"
        )

    def found(self, where: str) -> list[str]:
        rows = self.engine.query(f"{NAMES} SELECT ?x {{ {where} }}")
        return sorted(lexical(row["x"]) for row in rows)

    async def subscribe(self, sparql: str) -> AsyncGenerator[Notification, None]:
        first = self.engine.subscribe(sparql)
        yield Notification(first.spuid, 0, first.first, Bag(first.first.variables))
        while True:
            yield await self.heard.get()

    async def updates(self, requests: Sequence[UpdateRequest]) -> list[UpdateAnswer | GatewayError]:
        for request in requests:
            self.write(request.sparql)
        return [UpdateAnswer(sequence=1, delayed=None) for _ in requests]


@asynccontextmanager
async def running(
    gateway: Gateway,
    broker: NotingBroker,
    *rules: CommandRule,
    files: Sequence[CommandRule] = (),
    note: Callable[[str, str], None] = lambda topic, reason: None,
) -> AsyncIterator[Output]:
    one = Output(gateway, {"default": broker}, COMMANDS, note=note)
    one.change_rules(files, rules)
    async with beside(one.run()) as task:
        await settled()
        yield one
    assert task.cancelled()


@asynccontextmanager
async def switched_on() -> AsyncIterator[tuple[Gateway, NotingBroker, Output]]:
    """The lamp is desired to be on, and its message is sent."""
    gateway, broker = Gateway(), NotingBroker()
    async with running(gateway, broker, rule()) as one:
        gateway.desire("true")
        await settled()
        yield gateway, broker, one


async def test_a_state_is_published_and_recorded() -> None:
    async with switched_on() as (gateway, broker, one):
        assert broker.messages == [("zigbee2mqtt/lamp/set", '{"state": "ON"}', 1, False)]
        assert gateway.found(f"?a sosa:madeByActuator {LAMP} ; sosa:hasSimpleResult ?x") == ["true"]
        gateway.desire("false")
        await settled()
        assert broker.payloads()[1:] == ['{"state": "OFF"}']
        assert one.counters.acknowledged == 2
        assert one.status() == "1 actuator, 2 states published"


async def test_the_state_of_a_lamp_of_the_street_is_its_status() -> None:
    gateway, broker = Gateway(), NotingBroker()
    async with running(gateway, broker, rule(values={}, payload="{value}", retain=True, qos=0)):
        gateway.write(f"INSERT DATA {{ {LAMP} lighting:hasStatus 'ON' }}")
        await settled()
    assert broker.messages == [("zigbee2mqtt/lamp/set", "ON", 0, True)]


async def test_qos_2_is_published_as_1() -> None:
    gateway, broker = Gateway(), NotingBroker()
    async with running(gateway, broker, rule(qos=2)):
        gateway.desire("true")
        await settled()
    assert broker.messages == [("zigbee2mqtt/lamp/set", '{"state": "ON"}', 1, False)]


@pytest.mark.parametrize("known", ["gateway:reportedState", "recorded", None])
async def test_at_a_start_only_a_state_that_the_device_may_lack_is_sent(known: str | None) -> None:
    gateway, broker = Gateway(), NotingBroker()
    gateway.desire("true")
    if known == "recorded":
        gateway.write(f"INSERT DATA {{ <x:a> sosa:madeByActuator {LAMP} ; sosa:hasSimpleResult true }}")
    elif known:
        gateway.write(f"INSERT DATA {{ {LAMP} {known} true }}")
    async with running(gateway, broker, rule()) as one:
        assert broker.payloads() == ([] if known else ['{"state": "ON"}'])
        await one.take([ReportedState(rule(), FALSE, retained=True)])
        await settled()
        assert len(broker.messages) == (known is None)
        assert gateway.found(f"{LAMP} gateway:reportedState ?x") == ["false"]
        assert one.status().endswith("1 reporting another state")


async def test_newest_state_wins_while_the_broker_is_away() -> None:
    gateway, broker = Gateway(), NotingBroker()
    broker.subscribed.clear()
    async with running(gateway, broker, rule()) as one:
        for state in ("true", "false", "true", "false"):
            gateway.desire(state)
            await settled()
        assert broker.messages == []
        assert "1 waiting for the broker" in one.status()
        broker.subscribed.set()
        await settled()
        assert broker.payloads() == ['{"state": "OFF"}']


async def test_newest_state_wins_during_a_message() -> None:
    gateway, broker = Gateway(), NotingBroker()
    broker.acknowledging.clear()
    async with running(gateway, broker, rule()):
        for state in ("true", "false", "true", "false"):
            gateway.desire(state)
            await settled()
        broker.acknowledging.set()
        await settled()
        assert broker.payloads() == ['{"state": "ON"}', '{"state": "OFF"}']


async def test_a_failed_message_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "RETRY_MIN_S", 0.001)
    gateway, broker = Gateway(), NotingBroker()
    broker.failures = 2
    async with running(gateway, broker, rule()) as one:
        gateway.desire("true")
        async with asyncio.timeout(120):
            while not one.counters.acknowledged:
                await asyncio.sleep(0.001)
        await settled()
    assert broker.payloads() == ['{"state": "ON"}'] * 3
    assert (one.counters.published, one.counters.failed) == (3, 2)


async def test_a_failed_message_waits_and_another_state_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "RETRY_MIN_S", 1_000.0)
    monkeypatch.setattr(output, "RETRY_MAX_S", 1_000.0)
    async with switched_on() as (gateway, broker, _):
        broker.failures = 1
        gateway.desire("false")
        await settled()
        assert broker.payloads() == ['{"state": "ON"}', '{"state": "OFF"}']
        gateway.desire("true")  # the device may have got the message without its acknowledgement
        await settled()
        assert broker.payloads() == ['{"state": "ON"}', '{"state": "OFF"}', '{"state": "ON"}']


async def test_a_device_that_reports_another_state_is_told_again_once_per_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with switched_on() as (gateway, broker, one):
        monkeypatch.setattr(output, "SETTLE_S", 0.0)
        await one.take([ReportedState(rule(), FALSE, retained=False)])
        await settled()
        assert broker.payloads() == ['{"state": "ON"}'] * 2
        monkeypatch.setattr(output, "SETTLE_S", 1_000.0)
        for _ in range(3):
            await one.take([ReportedState(rule(), FALSE, retained=False)])
            await settled()
        assert len(broker.messages) == 2  # the next one is due later
        await one.take([ReportedState(rule(), TRUE, retained=False)])
        await settled()
        assert one.counters.reasserted == 1
        assert one.counters.reported == 2, "equal reports are stored once"
        assert gateway.found(f"{LAMP} gateway:reportedState ?x") == ["true"]
        [actuator] = one._actuators.values()
        assert actuator.due() is None


async def test_the_pause_doubles_while_the_device_goes_on_reporting_another_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with switched_on() as (_, broker, one):
        [actuator] = one._actuators.values()
        for longest in (2.0, 4.0, 8.0):
            await one.take([ReportedState(rule(), FALSE, retained=False)])
            assert actuator.due() == actuator.sent_at + longest
            with monkeypatch.context() as at_once:
                at_once.setattr(output, "SETTLE_S", 0.0)
                actuator.wake.set()
                await settled()
        assert len(broker.messages) == 4
        actuator.repeats = 1_000
        await one.take([ReportedState(rule(), FALSE, retained=False)])
        assert actuator.due() == actuator.sent_at + output.REASSERT_MAX_S


async def test_reassert_s_0_leaves_the_device_alone() -> None:
    gateway, broker = Gateway(), NotingBroker()
    quiet = rule(reassert_s=0)
    async with running(gateway, broker, quiet) as one:
        gateway.desire("true")
        await settled()
        await one.take([ReportedState(quiet, FALSE, retained=False)])
        await settled()
    assert len(broker.messages) == 1


async def test_reassert_s_repeats_until_the_device_reports_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway, broker = Gateway(), NotingBroker()
    often = rule(reassert_s=0.001)
    async with running(gateway, broker, often) as one:
        gateway.desire("true")
        async with asyncio.timeout(120):
            while len(broker.messages) < 5:
                await asyncio.sleep(0.001)
        await one.take([ReportedState(often, TRUE, retained=False)])
        await settled()
        count = len(broker.messages)
        await asyncio.sleep(0.01)
        assert len(broker.messages) == count


async def test_a_device_that_comes_back_online_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "SETTLE_S", 0.0)
    gateway, broker = Gateway(), NotingBroker()
    async with running(gateway, broker, rule()):
        gateway.write(f"INSERT DATA {{ {LAMP} a sosa:Actuator . <x:device> sosa:hosts {LAMP} ; gateway:online true }}")
        gateway.desire("true")
        await settled()
        for was, now in (("true", "false"), ("false", "true")):
            gateway.write(
                f"DELETE DATA {{ <x:device> gateway:online {was} }} ; INSERT DATA {{ <x:device> gateway:online {now} }}"
            )
            await settled()
    assert broker.payloads() == ['{"state": "ON"}'] * 2


async def test_refused_states_and_topics_are_recorded() -> None:
    gateway, broker = Gateway(), NotingBroker()
    refused = f"?a sosa:madeByActuator {LAMP} ; gateway:refused ?x"
    notes: list[tuple[str, str]] = []
    async with running(gateway, broker, rule(), note=lambda topic, reason: notes.append((topic, reason))) as one:
        gateway.desire("'dim'")
        await settled()
        assert gateway.found(refused) == ['the state "dim" is not one of the rule\'s values: true, false']
        gateway.desire("true")
        await settled()
        assert gateway.found(refused) == []
        gateway.desire("'dim'")
        await settled()
        assert len(gateway.found(refused)) == 1
        gateway.desire("true")
        await settled()
        for topic, permitted in (("zigbee2mqtt/bridge/request/restart", False), ("lamplighter/x/set", False)):
            one.change_rules((), [rule(topic=topic)])
            gateway.desire("false" if broker.messages[-1][1].endswith('"ON"}') else "true")
            await settled()
            assert len(gateway.found(refused)) == 1, (topic, permitted)
            assert notes[-1] == (topic, *gateway.found(refused))
        assert "mqtt.commands does not permit the topic zigbee2mqtt/bridge/request/restart; add it to" in notes[-2][1]
        assert len(broker.messages) == 1
        assert one.counters.refused == 4
        one.change_rules([rule(topic="bridge/restart")], [])
        await settled()
        assert broker.messages[-1][0] == "bridge/restart"  # the operator's own rule
        one.change_rules([], [rule(broker="attic")])
        gateway.desire("true")
        await settled()
        assert gateway.found(refused) == ["[mqtt.brokers] has no broker 'attic'"]


async def test_a_rule_of_the_dataset_may_be_named_by_its_actuator() -> None:
    gateway, broker = Gateway(), NotingBroker()
    gateway.desire("true")
    async with running(gateway, broker, rule(actuator=None)):
        assert broker.messages == []
        gateway.write(f"INSERT DATA {{ {LAMP} gateway:command <http://e/rule> }}")
        await settled()
        assert len(broker.messages) == 1


async def test_an_actuator_without_rule_is_left_to_others() -> None:
    gateway, broker = Gateway(), NotingBroker()
    async with running(gateway, broker) as one:
        gateway.desire("true")
        await settled()
        assert one.status() == ""
        one.change_rules((), [rule()])
        await settled()
        assert len(broker.messages) == 1
        one.change_rules(())
        gateway.desire("false")
        await settled()
        assert len(broker.messages) == 1
        gateway.write(f"DELETE WHERE {{ {LAMP} ?p ?o }} ; DELETE WHERE {{ ?a sosa:madeByActuator {LAMP} ; ?p ?o }}")
        await settled()
        assert one._actuators == {}


async def test_a_conflict_is_logged_in_few_words(caplog: pytest.LogCaptureFixture) -> None:
    gateway = Gateway()
    for letter in "ab":
        gateway.engine.update(f'INSERT DATA {{ <http://e/x> <{DESIRED_STATE}> "{letter * 100_000}" }}')
    async with running(gateway, NotingBroker()):
        await settled()
    (line,) = [record.getMessage() for record in caplog.records if "conflict" in record.getMessage()]
    assert len(line) < 500


def test_the_query_is_maintained_incrementally() -> None:
    assert Engine().subscribe(QUERY).spu_class == "telescoped"


async def test_actuator_that_is_switched_without_an_end_is_sent_few_messages_and_is_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(output, "PAUSE_S", 3_600.0)
    monkeypatch.setattr(output, "AT_ONCE", 5)
    gateway, broker = Gateway(), NotingBroker()
    noted: list[tuple[str, str]] = []
    async with running(gateway, broker, rule(), note=lambda *one: noted.append(one)):
        for number in range(20):
            gateway.desire("true" if number % 2 else "false")
            await settled()
    assert len(broker.messages) == 5
    [(topic, reason)] = noted
    assert topic == "zigbee2mqtt/lamp/set"
    assert reason.startswith("<http://e/rule>: more than 5 messages in a short time, now one in 3600 s at most: ")
