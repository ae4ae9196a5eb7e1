"""Desired states -> devices, with the engine in this process, by each way of sending."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest

from lamplighter.adapters.devices import output
from lamplighter.adapters.devices.output import QUERY, ActuatorStates, Attempt, Output, ReportedState, Sender
from lamplighter.adapters.mapping import CommandRule
from lamplighter.adapters.mapping.command_payloads import command_payload
from lamplighter.adapters.mqtt.sender import MqttSender
from lamplighter.adapters.mqtt.settings import COMMANDS
from lamplighter.engine import Engine
from lamplighter.engine.terms import XSD, literal
from lamplighter.ontology.vocabulary import DESIRED_STATE
from tests.support.desired_states import LAMP, REFUSED, StatesGateway, rule, running
from tests.support.event_loops import settled
from tests.support.noted_messages import NotingBroker

TRUE, FALSE = (literal(word, datatype=XSD + "boolean") for word in ("true", "false"))


class PlainSender(Sender):
    """The smallest one: it hands payloads to a broker that only notes them."""

    def __init__(self, broker: NotingBroker) -> None:
        self._broker = broker

    def target(self, rule: CommandRule) -> str:
        return rule.place

    async def ready(self, rule: CommandRule) -> None:
        await self._broker.subscribed.wait()

    async def send(self, attempt: Attempt) -> None:
        await self._broker.publish("", command_payload(attempt.rule, attempt.state), 1, retain=False)


class Peer(NamedTuple):
    """A sender, and what notes its messages."""

    sender: Sender
    broker: NotingBroker


SENDERS: dict[str, Callable[[NotingBroker], Sender]] = {
    "plain": PlainSender,
    "mqtt": lambda broker: MqttSender({"default": broker}, COMMANDS),
}


@pytest.fixture(params=SENDERS)
def peer(request: pytest.FixtureRequest) -> Peer:
    broker = NotingBroker()
    return Peer(SENDERS[request.param](broker), broker)


@asynccontextmanager
async def switched_on(peer: Peer) -> AsyncIterator[tuple[StatesGateway, NotingBroker, Output]]:
    """The lamp is desired to be on, and its message is sent."""
    gateway, broker = StatesGateway(), peer.broker
    async with running(gateway, peer.sender, rule()) as one:
        gateway.desire("true")
        await settled()
        yield gateway, broker, one


async def test_a_state_is_sent_and_recorded(peer: Peer) -> None:
    async with switched_on(peer) as (gateway, broker, one):
        assert broker.payloads() == ['{"state": "ON"}']
        assert gateway.found(f"?a sosa:madeByActuator {LAMP} ; sosa:hasSimpleResult ?x") == ["true"]
        gateway.desire("false")
        await settled()
        assert broker.payloads()[1:] == ['{"state": "OFF"}']
        assert one.counters.acknowledged == 2
        assert one.counters.sent == 2
        assert one.states() == ActuatorStates(1, disagreeing=0, waiting=0, refused=0)


@pytest.mark.parametrize("known", ["gateway:reportedState", "recorded", None])
async def test_at_a_start_only_a_state_that_the_device_may_lack_is_sent(peer: Peer, known: str | None) -> None:
    gateway, broker = StatesGateway(), peer.broker
    gateway.desire("true")
    if known == "recorded":
        gateway.write(f"INSERT DATA {{ <x:a> sosa:madeByActuator {LAMP} ; sosa:hasSimpleResult true }}")
    elif known:
        gateway.write(f"INSERT DATA {{ {LAMP} {known} true }}")
    async with running(gateway, peer.sender, rule()) as one:
        assert broker.payloads() == ([] if known else ['{"state": "ON"}'])
        await one.take([ReportedState(rule(), FALSE, retained=True)])
        await settled()
        assert len(broker.messages) == (known is None)
        assert gateway.found(f"{LAMP} gateway:reportedState ?x") == ["false"]
        assert one.states().disagreeing == 1


async def test_newest_state_wins_while_nothing_can_be_sent(peer: Peer) -> None:
    gateway, broker = StatesGateway(), peer.broker
    broker.subscribed.clear()
    async with running(gateway, peer.sender, rule()) as one:
        for state in ("true", "false", "true", "false"):
            gateway.desire(state)
            await settled()
        assert broker.messages == []
        assert one.states().waiting == 1
        broker.subscribed.set()
        await settled()
        assert broker.payloads() == ['{"state": "OFF"}']


async def test_newest_state_wins_during_a_message(peer: Peer) -> None:
    gateway, broker = StatesGateway(), peer.broker
    broker.acknowledging.clear()
    async with running(gateway, peer.sender, rule()):
        for state in ("true", "false", "true", "false"):
            gateway.desire(state)
            await settled()
        broker.acknowledging.set()
        await settled()
        assert broker.payloads() == ['{"state": "ON"}', '{"state": "OFF"}']


async def test_a_failed_message_is_repeated(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "RETRY_MIN_S", 0.001)
    gateway, broker = StatesGateway(), peer.broker
    broker.failures = 2
    async with running(gateway, peer.sender, rule()) as one:
        gateway.desire("true")
        async with asyncio.timeout(120):
            while not one.counters.acknowledged:
                await asyncio.sleep(0.001)
        await settled()
    assert broker.payloads() == ['{"state": "ON"}'] * 3
    assert (one.counters.sent, one.counters.failed) == (3, 2)


async def test_a_failed_message_waits_and_another_state_does_not(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "RETRY_MIN_S", 1_000.0)
    monkeypatch.setattr(output, "RETRY_MAX_S", 1_000.0)
    async with switched_on(peer) as (gateway, broker, _):
        broker.failures = 1
        gateway.desire("false")
        await settled()
        assert broker.payloads() == ['{"state": "ON"}', '{"state": "OFF"}']
        gateway.desire("true")  # the device may have got the message without its acknowledgement
        await settled()
        assert broker.payloads() == ['{"state": "ON"}', '{"state": "OFF"}', '{"state": "ON"}']


async def test_a_device_that_reports_another_state_is_told_again_once_per_pause(
    peer: Peer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with switched_on(peer) as (gateway, broker, one):
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
    peer: Peer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with switched_on(peer) as (_, broker, one):
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


async def test_reassert_s_0_leaves_the_device_alone(peer: Peer) -> None:
    gateway, broker = StatesGateway(), peer.broker
    quiet = rule(reassert_s=0)
    async with running(gateway, peer.sender, quiet) as one:
        gateway.desire("true")
        await settled()
        await one.take([ReportedState(quiet, FALSE, retained=False)])
        await settled()
    assert len(broker.messages) == 1


async def test_reassert_s_repeats_until_the_device_reports_the_state(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, broker = StatesGateway(), peer.broker
    often = rule(reassert_s=0.001)
    async with running(gateway, peer.sender, often) as one:
        gateway.desire("true")
        async with asyncio.timeout(120):
            while len(broker.messages) < 5:
                await asyncio.sleep(0.001)
        await one.take([ReportedState(often, TRUE, retained=False)])
        await settled()
        count = len(broker.messages)
        await asyncio.sleep(0.01)
        assert len(broker.messages) == count


async def test_a_device_that_comes_back_online_is_told_again(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "SETTLE_S", 0.0)
    gateway, broker = StatesGateway(), peer.broker
    async with running(gateway, peer.sender, rule()):
        gateway.write(f"INSERT DATA {{ {LAMP} a sosa:Actuator . <x:device> sosa:hosts {LAMP} ; gateway:online true }}")
        gateway.desire("true")
        await settled()
        for was, now in (("true", "false"), ("false", "true")):
            gateway.write(
                f"DELETE DATA {{ <x:device> gateway:online {was} }} ; INSERT DATA {{ <x:device> gateway:online {now} }}"
            )
            await settled()
    assert broker.payloads() == ['{"state": "ON"}'] * 2


async def test_a_refused_state_is_recorded_until_another_one_is_sent(peer: Peer) -> None:
    gateway, broker = StatesGateway(), peer.broker
    notes: list[tuple[str, str]] = []
    async with running(gateway, peer.sender, rule(), note=lambda target, reason: notes.append((target, reason))) as one:
        gateway.desire("'dim'")
        await settled()
        reason = 'the state "dim" is not one of the rule\'s values: true, false'
        assert gateway.found(REFUSED) == [reason]
        assert notes == [(peer.sender.target(rule()), reason)]
        assert one.states().refused == 1
        gateway.desire("true")
        await settled()
        assert gateway.found(REFUSED) == []
        gateway.desire("'dim'")
        await settled()
        assert gateway.found(REFUSED) == [reason]
        assert broker.payloads() == ['{"state": "ON"}']
        assert (one.counters.refused, one.counters.sent) == (2, 1)


async def test_a_refusal_leaves_what_is_known_of_the_device(peer: Peer) -> None:
    async with switched_on(peer) as (gateway, broker, _):
        gateway.desire("'dim'")
        await settled()
        assert gateway.found(REFUSED)
        gateway.desire("true")
        await settled()
        assert broker.payloads() == ['{"state": "ON"}'], "the device still has this state"


async def test_a_rule_of_the_dataset_may_be_named_by_its_actuator(peer: Peer) -> None:
    gateway, broker = StatesGateway(), peer.broker
    gateway.desire("true")
    async with running(gateway, peer.sender, rule(actuator=None)):
        assert broker.messages == []
        gateway.write(f"INSERT DATA {{ {LAMP} gateway:command <http://e/rule> }}")
        await settled()
        assert len(broker.messages) == 1


async def test_an_actuator_without_rule_is_left_to_others(peer: Peer) -> None:
    gateway, broker = StatesGateway(), peer.broker
    async with running(gateway, peer.sender) as one:
        gateway.desire("true")
        await settled()
        assert one.states().known == 0
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


async def test_a_conflict_is_logged_in_few_words(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    gateway = StatesGateway()
    for letter in "ab":
        gateway.engine.update(f'INSERT DATA {{ <http://e/x> <{DESIRED_STATE}> "{letter * 100_000}" }}')
    async with running(gateway, peer.sender):
        await settled()
    (line,) = [record.getMessage() for record in caplog.records if "conflict" in record.getMessage()]
    assert len(line) < 500


def test_the_query_is_maintained_incrementally() -> None:
    assert Engine().subscribe(QUERY).spu_class == "telescoped"


async def test_actuator_that_is_switched_without_an_end_is_sent_few_messages_and_is_told_of(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "PAUSE_S", 3_600.0)
    monkeypatch.setattr(output, "AT_ONCE", 5)
    gateway = StatesGateway()
    noted: list[tuple[str, str]] = []
    async with running(gateway, peer.sender, rule(), note=lambda *one: noted.append(one)):
        for number in range(20):
            gateway.desire("true" if number % 2 else "false")
            await settled()
    assert len(peer.broker.messages) == 5
    [(target, reason)] = noted
    assert target == peer.sender.target(rule())
    assert reason.startswith("<http://e/rule>: more than 5 messages in a short time, now one in 3600 s at most: ")
