"""Desired states -> messages to a broker that only notes them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from lamplighter.adapters.devices.sender import Acknowledged, Attempt
from lamplighter.adapters.mapping import CommandRule
from lamplighter.adapters.mqtt.sender import MqttSender, output_status
from lamplighter.adapters.mqtt.settings import COMMANDS
from lamplighter.engine.errors import PayloadError, UpstreamError
from lamplighter.engine.terms import XSD, literal
from tests.support.desired_states import LAMP, REFUSED, StatesGateway, rule, running
from tests.support.event_loops import beside, settled
from tests.support.noted_messages import NotingBroker

TRUE = literal("true", datatype=XSD + "boolean")
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def attempt(made: CommandRule, *, from_file: bool = False, retried: bool = False) -> Attempt:
    return Attempt(LAMP, made, TRUE, "notification", lambda: True, from_file, retried)


def sender(broker: NotingBroker) -> MqttSender:
    return MqttSender({"default": broker}, COMMANDS)


async def test_a_state_is_published_as_its_rule_says() -> None:
    broker = NotingBroker()
    times = iter((NOON, NOON + timedelta(milliseconds=7)))
    answer = await MqttSender({"default": broker}, COMMANDS, lambda: next(times)).send(attempt(rule()))
    assert answer == Acknowledged(NOON, NOON + timedelta(milliseconds=7), "PUBACK")
    await sender(broker).send(attempt(rule(values={}, payload="{value}", retain=True, qos=0)))
    assert broker.messages == [
        ("zigbee2mqtt/lamp/set", '{"state": "ON"}', 1, False),
        ("zigbee2mqtt/lamp/set", "true", 0, True),
    ]


async def test_the_state_of_a_lamp_of_the_street_is_its_status() -> None:
    gateway, broker = StatesGateway(), NotingBroker()
    async with running(gateway, sender(broker), rule(values={}, payload="{value}", retain=True, qos=0)):
        gateway.write(f"INSERT DATA {{ {LAMP} lighting:hasStatus 'ON' }}")
        await settled()
    assert broker.messages == [("zigbee2mqtt/lamp/set", "ON", 0, True)]


async def test_qos_2_is_published_as_1() -> None:
    broker = NotingBroker()
    await sender(broker).send(attempt(rule(qos=2)))
    assert broker.messages == [("zigbee2mqtt/lamp/set", '{"state": "ON"}', 1, False)]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"topic": "zigbee2mqtt/bridge/request/restart"},
            "mqtt.commands does not permit the topic zigbee2mqtt/bridge/request/restart; add it to",
        ),
        ({"topic": "lamplighter/x/set"}, "the topic lamplighter/x/set is not one of a device"),
        ({"broker": "attic"}, r"\[mqtt.brokers\] has no broker 'attic'"),
    ],
)
async def test_rules_whose_topic_or_broker_is_refused(changes: dict[str, str], reason: str) -> None:
    broker = NotingBroker()
    with pytest.raises(PayloadError, match=reason):
        await sender(broker).send(attempt(rule(**changes)))
    assert broker.messages == []


async def test_the_operator_s_own_rules_may_publish_to_other_topics() -> None:
    broker = NotingBroker()
    await sender(broker).send(attempt(rule(topic="bridge/restart"), from_file=True))
    assert [message[0] for message in broker.messages] == ["bridge/restart"]
    with pytest.raises(PayloadError, match="not one of a device"):
        await sender(broker).send(attempt(rule(topic="lamplighter/x/set"), from_file=True))


async def test_a_rule_that_changes_is_judged_again() -> None:
    gateway, broker = StatesGateway(), NotingBroker()
    notes: list[tuple[str, str]] = []

    def note(target: str, reason: str) -> None:
        notes.append((target, reason))

    async with running(gateway, sender(broker), rule(topic="bridge/restart"), note=note) as one:
        gateway.desire("true")
        await settled()
        assert broker.messages == []
        assert notes == [("bridge/restart", *gateway.found(REFUSED))]
        one.change_rules([rule("home.toml line 7", topic="bridge/restart")], [])
        await settled()
        assert [message[0] for message in broker.messages] == ["bridge/restart"]
        assert gateway.found(REFUSED) == []
        one.change_rules([], [rule(broker="attic")])
        gateway.desire("false")
        await settled()
        assert gateway.found(REFUSED) == ["[mqtt.brokers] has no broker 'attic'"]


async def test_it_is_ready_while_the_broker_is_connected() -> None:
    broker = NotingBroker()
    broker.subscribed.clear()
    async with beside(sender(broker).ready(rule())) as waiting:
        await settled()
        assert not waiting.done()
        broker.subscribed.set()
        broker.subscribed.clear()
        await settled()
        assert not waiting.done(), "the connection is lost again"
        broker.subscribed.set()
        await settled()
        assert waiting.done()
    async with asyncio.timeout(120):
        await sender(broker).ready(rule(broker="attic"))  # which is refused at once


async def test_a_failure_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    broker = NotingBroker()
    broker.failures = 2
    for retried in (False, True):
        with pytest.raises(UpstreamError):
            await sender(broker).send(attempt(rule(), retried=retried))
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(" actuator")[0] for line in lines] == ["mqtt state not published"]


async def test_status() -> None:
    gateway, broker = StatesGateway(), NotingBroker()
    async with running(gateway, sender(broker)) as one:
        assert output_status(one) == ""
        one.change_rules((), [rule()])
        gateway.desire("true")
        await settled()
        assert output_status(one) == "1 actuator, 1 state published"
        broker.subscribed.clear()
        gateway.desire("false")
        await settled()
        assert output_status(one) == "1 actuator, 1 state published, 1 waiting for the broker"
        gateway.desire("'dim'")
        broker.subscribed.set()
        await settled()
        assert output_status(one) == "1 actuator, 1 state published, 1 with a refused state"
