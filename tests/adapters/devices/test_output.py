"""Desired states -> devices, with the engine in this process, by each way of sending."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import NamedTuple

import pytest

from lamplighter.adapters.devices import actuation_writer, actuator, delivery
from lamplighter.adapters.devices.output import QUERY, ActuatorStates, Output, ReportedState
from lamplighter.adapters.devices.sender import Acknowledged, Attempt, Outdated, RefusedByDevice, Sender
from lamplighter.adapters.mapping import CommandRule
from lamplighter.adapters.mapping.command_payloads import command_payload
from lamplighter.adapters.mqtt.sender import MqttSender
from lamplighter.adapters.mqtt.settings import COMMANDS
from lamplighter.engine import Engine
from lamplighter.engine.client import UpdateAnswer, UpdateRequest
from lamplighter.engine.errors import GatewayError, UpstreamError
from lamplighter.engine.terms import XSD, Term, iri, lexical, literal
from lamplighter.ontology.vocabulary import DESIRED_STATE
from tests.support.desired_states import BASE, LAMP, NOON, REFUSED, StatesGateway, rule, running
from tests.support.event_loops import settled, until
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

    def reassert_s(self, rule: CommandRule) -> float | None:
        return None

    async def send(self, attempt: Attempt) -> Acknowledged:
        await self._broker.publish("", command_payload(attempt.rule, attempt.state), 1, retain=False)
        return Acknowledged(NOON, NOON + timedelta(seconds=1), "2.04")


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
        await one.take([ReportedState(rule(), FALSE, NOON, retained=True)])
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
    monkeypatch.setattr(delivery, "RETRY_MIN_S", 0.001)
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
    monkeypatch.setattr(delivery, "RETRY_MIN_S", 1_000.0)
    monkeypatch.setattr(delivery, "RETRY_MAX_S", 1_000.0)
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
        monkeypatch.setattr(actuator, "SETTLE_S", 0.0)
        await one.take([ReportedState(rule(), FALSE, NOON, retained=False)])
        await settled()
        assert broker.payloads() == ['{"state": "ON"}'] * 2
        monkeypatch.setattr(actuator, "SETTLE_S", 1_000.0)
        for _ in range(3):
            await one.take([ReportedState(rule(), FALSE, NOON, retained=False)])
            await settled()
        assert len(broker.messages) == 2  # the next one is due later
        await one.take([ReportedState(rule(), TRUE, NOON, retained=False)])
        await settled()
        assert one.counters.reasserted == 1
        assert one.counters.reported == 2, "equal reports are stored once"
        assert gateway.found(f"{LAMP} gateway:reportedState ?x") == ["true"]
        [lamp] = one._actuators.values()
        assert lamp.due() is None


async def test_the_pause_doubles_while_the_device_goes_on_reporting_another_state(
    peer: Peer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with switched_on(peer) as (_, broker, one):
        [lamp] = one._actuators.values()
        for longest in (2.0, 4.0, 8.0):
            await one.take([ReportedState(rule(), FALSE, NOON, retained=False)])
            assert lamp.due() == lamp.sent_at + longest
            with monkeypatch.context() as at_once:
                at_once.setattr(actuator, "SETTLE_S", 0.0)
                lamp.wake.set()
                await settled()
        assert len(broker.messages) == 4
        lamp.repeats = 1_000
        await one.take([ReportedState(rule(), FALSE, NOON, retained=False)])
        assert lamp.due() == lamp.sent_at + actuator.REASSERT_MAX_S


async def test_reassert_s_0_leaves_the_device_alone(peer: Peer) -> None:
    gateway, broker = StatesGateway(), peer.broker
    quiet = rule(reassert_s=0)
    async with running(gateway, peer.sender, quiet) as one:
        gateway.desire("true")
        await settled()
        await one.take([ReportedState(quiet, FALSE, NOON, retained=False)])
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
        await one.take([ReportedState(often, TRUE, NOON, retained=False)])
        await settled()
        count = len(broker.messages)
        await asyncio.sleep(0.01)
        assert len(broker.messages) == count


async def test_a_device_that_comes_back_online_is_told_again(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actuator, "SETTLE_S", 0.0)
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
    monkeypatch.setattr(actuator, "PAUSE_S", 3_600.0)
    monkeypatch.setattr(actuator, "AT_ONCE", 5)
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


# --- what a sender is asked, and what it answers ---

LAMP_IS = f"?a sosa:madeByActuator {LAMP} ; "


@dataclass
class ScriptedSender(Sender):
    """answers: what `send` answers or raises, in turn; then it acknowledges. held: it waits while this is set."""

    answers: list[Acknowledged | Exception] = field(default_factory=list)
    interval_s: float | None = None
    attempts: list[Attempt] = field(default_factory=list)
    going_on: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.going_on.set()

    def target(self, rule: CommandRule) -> str:
        return f"coap://lamp/{rule.place}"

    async def ready(self, rule: CommandRule) -> None:
        pass

    def reassert_s(self, rule: CommandRule) -> float | None:
        return self.interval_s

    async def send(self, attempt: Attempt) -> Acknowledged:
        self.attempts.append(attempt)
        await self.going_on.wait()
        answer = self.answers.pop(0) if self.answers else Acknowledged(NOON, NOON + timedelta(seconds=1), "2.04")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def asked(self) -> list[tuple[Term, str]]:
        return [(one.state, one.cause) for one in self.attempts]


HOME = rule("home.toml line 7")
TARGET = "coap://lamp/home.toml line 7"


@asynccontextmanager
async def lamp_on(sender: ScriptedSender) -> AsyncIterator[tuple[StatesGateway, Output]]:
    gateway = StatesGateway()
    async with running(gateway, sender, files=[HOME]) as one:
        gateway.desire("true")
        await settled()
        yield gateway, one


def without_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RETRY_MIN_S", "RETRY_MAX_S"):
        monkeypatch.setattr(delivery, name, 0.0)
    monkeypatch.setattr(actuator, "SETTLE_S", 0.0)


async def test_an_actuation_has_its_times_cause_answer_rule_and_target() -> None:
    async with lamp_on(ScriptedSender()) as (gateway, _):
        found = {
            name: gateway.found(f"{LAMP_IS} {name} ?x")
            for name in (
                "sosa:resultTime",
                *(f"gateway:{one}" for one in ["sentTime", "cause", "answer", "byRule", "target"]),
            )
        }
    assert found == {
        "sosa:resultTime": ["2026-11-21T12:00:01Z"],
        "gateway:sentTime": ["2026-11-21T12:00:00Z"],
        "gateway:cause": ["notification"],
        "gateway:answer": ["2.04"],
        "gateway:byRule": ["home.toml line 7"],
        "gateway:target": [TARGET],
    }


async def test_an_actuation_names_the_commit_that_made_the_state_the_desired_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_waits(monkeypatch)
    followed = f"{LAMP_IS} gateway:followed ?x"
    async with lamp_on(ScriptedSender()) as (gateway, one):
        assert gateway.found(followed) == ["1/1"]
        gateway.write("INSERT DATA { <x:other> gateway:desiredState true }")
        await one.take([ReportedState(HOME, FALSE, NOON, retained=False)])
        await settled()
        assert gateway.found(f"{LAMP_IS} gateway:cause ?x") == ["client"]
        assert gateway.found(followed) == ["1/1"], "the state was not desired anew"
        before = gateway.engine.sequence
        gateway.desire("false")
        await settled()
        assert gateway.found(followed) == [f"1/{before + 1}"]


async def test_a_state_that_was_desired_before_the_start_has_no_commit() -> None:
    gateway = StatesGateway()
    gateway.desire("true")
    async with running(gateway, ScriptedSender(), files=[HOME]):
        await settled()
        assert gateway.found(f"{LAMP_IS} gateway:cause ?x") == ["notification"]
        assert gateway.found(f"{LAMP_IS} gateway:followed ?x") == []


async def test_a_device_that_reports_another_state_is_the_cause_of_what_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_waits(monkeypatch)
    sender = ScriptedSender()
    async with lamp_on(sender) as (gateway, one):
        await one.take([ReportedState(HOME, FALSE, NOON, retained=False)])
        await settled()
        assert sender.asked() == [(TRUE, "notification"), (TRUE, "client")]
        assert gateway.found(f"{LAMP_IS} gateway:cause ?x") == ["client"]


async def test_a_device_that_started_again_is_told_at_once() -> None:
    sender = ScriptedSender()
    async with lamp_on(sender) as (gateway, one):
        one.returned("coap://lamp/other")
        await settled()
        assert len(sender.attempts) == 1
        one.returned(TARGET)
        await settled()
        assert sender.asked() == [(TRUE, "notification"), (TRUE, "client")]
        assert gateway.found(f"{LAMP_IS} gateway:cause ?x") == ["client"]
        gateway.desire("false")
        await settled()
        assert sender.asked()[2:] == [(FALSE, "notification")]


async def test_a_device_that_starts_again_during_a_message_is_told_once_more() -> None:
    sender = ScriptedSender()
    sender.going_on.clear()
    async with lamp_on(sender) as (_, one):
        one.returned(TARGET)
        sender.going_on.set()
        await settled()
        assert [state for state, _ in sender.asked()] == [TRUE, TRUE]
        await settled()
        assert len(sender.attempts) == 2


async def test_a_device_that_is_heard_is_tried_at_once_and_not_if_it_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "RETRY_MIN_S", 1_000.0)
    monkeypatch.setattr(delivery, "RETRY_MAX_S", 1_000.0)
    sender = ScriptedSender([UpstreamError("no answer"), RefusedByDevice("4.00: want json")])
    async with lamp_on(sender) as (gateway, one):
        assert len(sender.attempts) == 1
        assert one.states() == ActuatorStates(1, disagreeing=0, waiting=1, refused=0)
        one.contact(TARGET)
        await settled()
        assert sender.asked() == [(TRUE, "notification")] * 2, "a repeated attempt has the cause of the first"
        assert [one.retried for one in sender.attempts] == [False, True]
        one.contact(TARGET)
        await settled()
        assert len(sender.attempts) == 2
        assert gateway.found(REFUSED) == ["4.00: want json"]
        assert one.states() == ActuatorStates(1, disagreeing=0, waiting=0, refused=1)
        one.returned(TARGET)
        await settled()
        assert len(sender.attempts) == 3
        assert gateway.found(REFUSED) == []


async def test_a_refusal_of_the_device_is_recorded_once_and_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    without_waits(monkeypatch)
    notes: list[tuple[str, str]] = []
    sender = ScriptedSender([RefusedByDevice("4.00: want json")] * 3 + [RefusedByDevice("5.03: busy")])
    gateway = StatesGateway()
    async with running(gateway, sender, files=[HOME], note=lambda *one: notes.append(one)) as one:
        gateway.desire("true")
        await until(lambda: one.counters.acknowledged == 1)
        await settled()
        assert notes == [(TARGET, "4.00: want json"), (TARGET, "5.03: busy")]
        assert (one.counters.sent, one.counters.failed, one.counters.refused) == (5, 4, 2)
        assert gateway.found(REFUSED) == []
        assert one.states() == ActuatorStates(1, disagreeing=0, waiting=0, refused=0)


async def test_another_state_is_tried_at_once_after_a_refusal() -> None:
    sender = ScriptedSender([RefusedByDevice("4.00: want json")])
    async with lamp_on(sender) as (gateway, _):
        gateway.desire("false")
        await settled()
        assert sender.asked() == [(TRUE, "notification"), (FALSE, "notification")]


@pytest.mark.parametrize("answer", [Outdated("another state"), UpstreamError("no answer"), None])
async def test_an_attempt_knows_that_its_state_is_outdated(answer: Exception | None) -> None:
    sender = ScriptedSender([answer] if answer else [])
    sender.going_on.clear()
    async with lamp_on(sender) as (gateway, one):
        assert sender.attempts[0].is_current()
        gateway.desire("false")
        await settled()
        assert not sender.attempts[0].is_current()
        sender.going_on.set()
        await settled()
        assert [state for state, _ in sender.asked()] == [TRUE, FALSE], (
            "the new state waits for no retry of the old one"
        )
        assert one.counters.outdated == isinstance(answer, Outdated)
        assert gateway.found(f"{LAMP_IS} sosa:hasSimpleResult ?x") == ["false"]


async def test_a_state_that_was_wanted_in_between_is_sent_again() -> None:
    sender = ScriptedSender([Outdated("another state")])
    sender.going_on.clear()
    async with lamp_on(sender) as (gateway, _):
        for state in ("false", "true"):
            gateway.desire(state)
            await settled()
        sender.going_on.set()
        await settled()
        assert [state for state, _ in sender.asked()] == [TRUE, TRUE], "the device may not have it"


async def test_a_state_is_asserted_at_the_sender_s_interval_and_recorded_once() -> None:
    sender = ScriptedSender(interval_s=0.001)
    async with lamp_on(sender) as (gateway, one):
        updates = gateway.updated
        await one.take([ReportedState(HOME, TRUE, NOON, retained=False)])
        await until(lambda: len(sender.attempts) >= 5)
        assert set(sender.asked()[1:]) == {(TRUE, "timer")}
        assert gateway.updated == updates + 1, "only the report"
        assert gateway.found(f"{LAMP_IS} gateway:cause ?x") == ["notification"]
        assert one.counters.reasserted == len(sender.attempts) - 1


async def test_the_interval_is_spread() -> None:
    sender = ScriptedSender(interval_s=1_000.0)
    async with lamp_on(sender) as (_, one):
        [lamp] = one._actuators.values()
        due = lamp.due()
        assert due is not None
        assert 899 < due - lamp.sent_at < 1_101


async def test_at_a_start_a_state_is_asserted_within_the_interval() -> None:
    gateway, sender = StatesGateway(), ScriptedSender(interval_s=1_000.0)
    gateway.desire("true")
    gateway.write(f"INSERT DATA {{ <x:a> sosa:madeByActuator {LAMP} ; sosa:hasSimpleResult true }}")
    async with running(gateway, sender, files=[HOME]) as one:
        [lamp] = one._actuators.values()
        due = lamp.due()
        assert due is not None
        assert lamp.sent_at <= due <= lamp.sent_at + 1_000
        assert sender.attempts == []


async def test_a_device_that_answers_again_is_recorded_although_its_state_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_waits(monkeypatch)
    sender = ScriptedSender(interval_s=0.001)
    async with lamp_on(sender) as (gateway, one):
        sender.answers.append(UpstreamError("no answer"))
        await until(lambda: one.counters.failed == 1 and not sender.answers)
        await until(lambda: gateway.found(f"{LAMP_IS} gateway:cause ?x") == ["timer"])
        assert sender.attempts[-1].cause == "timer"


async def test_rule_with_reassert_s_0_has_no_interval() -> None:
    sender = ScriptedSender(interval_s=0.001)
    gateway = StatesGateway()
    async with running(gateway, sender, rule(reassert_s=0)) as one:
        gateway.desire("true")
        await settled()
        [lamp] = one._actuators.values()
        assert lamp.due() is None


async def test_actuations_of_many_actuators_are_recorded_in_few_messages() -> None:
    gateway, count = StatesGateway(), 4 * actuation_writer.TOGETHER_MAX
    sizes: list[int] = []
    updates = gateway.updates

    async def counting(requests: Sequence[UpdateRequest]) -> list[UpdateAnswer | GatewayError]:
        sizes.append(len(requests))
        return await updates(requests)

    gateway.updates = counting  # type: ignore[method-assign]
    lamps = [rule(f"home.toml line {number}", actuator=f"actuator/{number}") for number in range(count)]
    async with running(gateway, ScriptedSender(), files=lamps) as one:
        states = " . ".join(f"<{BASE}actuator/{number}> gateway:desiredState true" for number in range(count))
        gateway.write(f"INSERT DATA {{ {states} }}")
        await until(lambda: sum(sizes) == count)
        assert one.counters.acknowledged == count
        assert len(sizes) <= 1 + count / actuation_writer.TOGETHER_MAX
        assert len(gateway.found("?x a sosa:Actuation")) == count


async def test_a_record_that_the_gateway_refuses_is_counted() -> None:
    gateway = StatesGateway()

    async def refusing(requests: Sequence[UpdateRequest]) -> list[UpdateAnswer | GatewayError]:
        return [GatewayError("not permitted") for _ in requests]

    gateway.updates = refusing  # type: ignore[method-assign]
    async with running(gateway, ScriptedSender(), files=[HOME]) as one:
        gateway.desire("true")
        await settled()
        assert (one.counters.acknowledged, one.counters.unrecorded) == (1, 1)


class UnreliableLamp(Sender):
    """A lamp that loses messages and acknowledgements, refuses, starts again, and is desired to change meanwhile."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.state: Term | None = None
        self.reliable = False
        self.output: Output | None = None

    def target(self, rule: CommandRule) -> str:
        return TARGET

    async def ready(self, rule: CommandRule) -> None:
        await asyncio.sleep(0)

    def reassert_s(self, rule: CommandRule) -> float | None:
        return 0.001

    def starts_again(self) -> None:
        self.state = None
        assert self.output is not None
        self.output.returned(TARGET)

    async def send(self, attempt: Attempt) -> Acknowledged:
        for _ in range(self.chance.randrange(4)):
            await asyncio.sleep(0)
        what = 1.0 if self.reliable else self.chance.random()
        if what < 0.2:
            raise UpstreamError("no answer")
        if what < 0.3:
            raise RefusedByDevice("5.03: busy")
        if not attempt.is_current():
            raise Outdated("another state")
        self.state = attempt.state
        if what < 0.4:
            raise UpstreamError("the acknowledgement was lost")
        if what < 0.5:
            self.starts_again()
        await asyncio.sleep(0)
        return Acknowledged(NOON, NOON, "2.04")


@pytest.mark.parametrize("seed", range(10))
async def test_an_unreliable_device_ends_in_the_desired_state(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    without_waits(monkeypatch)
    monkeypatch.setattr(actuator, "PAUSE_S", 1e-6)
    chance = Random(seed)
    gateway, lamp = StatesGateway(), UnreliableLamp(chance)
    async with running(gateway, lamp, files=[HOME]) as one:
        lamp.output = one
        for _ in range(100):
            gateway.desire(chance.choice(("true", "false")))
            if chance.random() < 0.2:
                lamp.starts_again()
            if chance.random() < 0.2:
                one.contact(TARGET)
            for _ in range(chance.randrange(20)):
                await asyncio.sleep(0)
        lamp.reliable = True
        desired = gateway.found(f"{LAMP} gateway:desiredState ?x")
        await until(lambda: lamp.state is not None and [lexical(lamp.state)] == desired)
        await until(lambda: one.states() == ActuatorStates(1, disagreeing=0, waiting=0, refused=0))
        await until(lambda: gateway.found(f"{LAMP_IS} sosa:hasSimpleResult ?x") == desired)
        await until(lambda: gateway.found(REFUSED) == [])
        assert lamp.state is not None and [lexical(lamp.state)] == desired
        counters = one.counters
        assert counters.sent == counters.acknowledged + counters.failed


async def test_state_that_a_device_counts_in_coarse_steps_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actuator, "SETTLE_S", 0.0)
    fan = rule(values={}, payload="{value}", scale=33.333, state={"topic": "fan", "payload": "number", "scale": 33.333})
    gateway, broker = StatesGateway(), NotingBroker()
    async with running(gateway, MqttSender({"default": broker}, COMMANDS), fan) as one:
        gateway.desire("50")
        await settled()
        assert broker.payloads() == ["2"]
        for said in ("66.666", "67"):
            await one.take([ReportedState(fan, literal(said, datatype=XSD + "decimal"), NOON, retained=False)])
            await settled()
        assert broker.payloads() == ["2"]
        assert gateway.found(f"{LAMP} gateway:reportedState ?x") == ["50"]
        await one.take([ReportedState(fan, literal("33.333", datatype=XSD + "decimal"), NOON, retained=False)])
        await settled()
        assert broker.payloads() == ["2", "2"], "the first speed is another state"


async def test_command_without_the_state_tells_no_states_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actuator, "SETTLE_S", 0.0)
    lamp = rule(payload="TOGGLE", state={"topic": "lamp", "payload": "boolean"})
    gateway, broker = StatesGateway(), NotingBroker()
    async with running(gateway, MqttSender({"default": broker}, COMMANDS), lamp) as one:
        gateway.desire("true")
        await settled()
        await one.take([ReportedState(lamp, FALSE, NOON, retained=False)])
        await settled()
        assert broker.payloads() == ["TOGGLE", "TOGGLE"]
        assert gateway.found(f"{LAMP} gateway:reportedState ?x") == ["false"]


async def test_a_repeated_report_is_written_once_a_minute_and_first_of_all_after_an_interruption() -> None:
    broker, gateway, source = NotingBroker(), StatesGateway(), iri(f"{BASE}broker/default")
    async with running(gateway, MqttSender({"default": broker}, COMMANDS), rule()) as one:

        async def times(*seconds: int, retained: bool = False) -> list[str]:
            """What the dataset has after reports at these seconds."""
            for second in seconds:
                at = NOON + timedelta(seconds=second)
                await one.take([ReportedState(rule(), TRUE, at, retained, (source,))])
            return [text[17:19] + text[14:17] for text in gateway.found(f"{LAMP} gateway:reportedTime ?x")]

        assert await times(0, retained=True) == []
        assert gateway.found(f"{LAMP} gateway:receivedFrom ?x") == [lexical(source)]
        assert await times(1, 2, 60) == ["0100:"], "one commit"
        assert gateway.updated == 2
        assert await times(61) == ["0101:"]
        one.interrupt(NOON + timedelta(seconds=70))
        assert await times(69) == ["0901:"], "it was received before, and is written, but ends nothing"
        assert await times(70, 71) == ["1001:"]
        assert gateway.updated == 5
        assert await times(72, retained=True) == ["1001:"], "what the broker had stored confirms nothing"
        assert gateway.updated == 5
