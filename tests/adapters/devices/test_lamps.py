"""Actuators of one lamp: one command, and nothing that would turn it on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from lamplighter.adapters.devices import actuator
from lamplighter.adapters.devices.output import Output, ReportedState
from lamplighter.adapters.devices.sender import RefusedByDevice
from lamplighter.adapters.mapping import CommandRule
from lamplighter.adapters.mqtt.sender import MqttSender
from lamplighter.adapters.mqtt.settings import COMMANDS
from lamplighter.engine.errors import UpstreamError
from lamplighter.engine.terms import XSD, Term, literal
from tests.support.desired_states import BASE, NOON, StatesGateway, rule, running
from tests.support.event_loops import settled, until
from tests.support.noted_messages import NotingBroker

TRUE, FALSE = (literal(word, datatype=XSD + "boolean") for word in ("true", "false"))
TOPIC = "zigbee2mqtt/lamp/set"


def part(name: str, role: str, payload: str, **more: Any) -> CommandRule:
    state = {"topic": "zigbee2mqtt/lamp", "member": name}
    table = {"actuator": f"actuator/{name}", "payload": payload, "values": {}, "state": state, "by_hand": "follow"}
    return rule(f"<http://e/{name}>", **(table | {"lamp": {"of": "lamp", "role": role}} | more))


SWITCH = part("state", "switch", '{"state": "{value}"}', values={"true": "ON", "false": "OFF"})
LEVEL = part("brightness", "part", '{"brightness": {value}}', maximum=254)
WARMTH = part("color_temp", "mode", '{"color_temp": {value}}')
COLOR = part("color", "mode", '{"color": {json}}')
FADE = part("transition", "transition", '{"transition": {value}}')
LAMP = (SWITCH, LEVEL, WARMTH, COLOR, FADE)


def number(value: int) -> Term:
    return literal(str(value), datatype=XSD + "integer")


def desire(gateway: StatesGateway, **states: str) -> None:
    """Sets desired states in one commit."""
    old = " ".join(f"<{BASE}actuator/{name}> gateway:desiredState ?{name} ." for name in states)
    new = " ".join(f"<{BASE}actuator/{name}> gateway:desiredState {state} ." for name, state in states.items())
    where = " ".join(f"OPTIONAL {{ <{BASE}actuator/{name}> gateway:desiredState ?{name} }}" for name in states)
    gateway.write(f"DELETE {{ {old} }} INSERT {{ {new} }} WHERE {{ {where} }}")


def desired(gateway: StatesGateway, name: str) -> list[str]:
    return gateway.found(f"<{BASE}actuator/{name}> gateway:desiredState ?x")


@asynccontextmanager
async def lamp() -> AsyncIterator[tuple[StatesGateway, NotingBroker, Output[CommandRule]]]:
    gateway, broker = StatesGateway(), NotingBroker()
    async with running(gateway, MqttSender({"default": broker}, COMMANDS), files=LAMP) as one:
        yield gateway, broker, one


async def report(one: Output[CommandRule], *states: tuple[CommandRule, Term]) -> None:
    await one.take([ReportedState(by, state, NOON, retained=False) for by, state in states])
    await settled()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actuator, "SETTLE_S", 0.0)


async def test_states_that_are_set_together_are_one_command_and_each_is_recorded() -> None:
    async with lamp() as (gateway, broker, one):
        desire(gateway, state="true", brightness="50", color_temp="300", transition="2")
        await settled()
        assert broker.payloads() == ['{"state": "ON", "brightness": 50, "color_temp": 300, "transition": 2}']
        made = gateway.found("?a sosa:madeByActuator ?x")
        assert made == [f"{BASE}actuator/{name}" for name in ("brightness", "color_temp", "state")]
        assert one.counters.acknowledged == 3


async def test_brightness_alone_goes_with_the_transition() -> None:
    async with lamp() as (gateway, broker, one):
        desire(gateway, state="true", transition="2")
        await settled()
        desire(gateway, brightness="9")
        await settled()
        assert broker.payloads()[1:] == ['{"brightness": 9, "transition": 2}']
        desire(gateway, transition="3")
        await settled()
        assert len(broker.messages) == 2, "it is never sent alone"
        assert one.states().waiting == 0


async def test_brightness_of_a_lamp_that_is_off_waits_until_it_is_on() -> None:
    async with lamp() as (gateway, broker, _):
        desire(gateway, state="false")
        await settled()
        desire(gateway, brightness="9")
        await settled()
        assert broker.payloads() == ['{"state": "OFF"}']
        desire(gateway, state="true")
        await settled()
        assert broker.payloads()[1:] == ['{"state": "ON", "brightness": 9}']


async def test_lamp_comes_on_as_it_is_desired_to_be() -> None:
    async with lamp() as (gateway, broker, _):
        desire(gateway, state="true", brightness="9")
        await settled()
        for state in ("false", "true"):
            desire(gateway, state=state)
            await settled()
        assert broker.payloads()[1:] == ['{"state": "OFF"}', '{"state": "ON", "brightness": 9}']


async def test_brightness_that_a_lamp_reports_while_it_is_off_is_neither_fought_nor_followed() -> None:
    async with lamp() as (gateway, broker, one):
        desire(gateway, state="true", brightness="9")
        await settled()
        await report(one, (SWITCH, TRUE), (LEVEL, number(9)))
        await report(one, (LEVEL, number(0)), (SWITCH, FALSE))  # by hand; many report 0
        assert (desired(gateway, "state"), desired(gateway, "brightness")) == (["false"], ["9"])
        assert len(broker.messages) == 1
        await report(one, (SWITCH, TRUE), (LEVEL, number(9)))
        assert desired(gateway, "state") == ["true"]
        assert len(broker.messages) == 1


async def test_dimmer_that_is_turned_by_hand_is_followed() -> None:
    async with lamp() as (gateway, broker, one):
        desire(gateway, state="true", brightness="9")
        await settled()
        await report(one, (SWITCH, TRUE), (LEVEL, number(9)))
        await report(one, (LEVEL, number(100)))
        assert desired(gateway, "brightness") == ["100"]
        assert len(broker.messages) == 1


async def test_of_colour_and_temperature_the_newest_counts() -> None:
    async with lamp() as (gateway, broker, one):
        desire(gateway, state="true", color_temp="300")
        await settled()
        await report(one, (SWITCH, TRUE), (WARMTH, number(300)))
        desire(gateway, color="'#ff0000'")
        await settled()
        assert broker.payloads()[1:] == ['{"color": "#ff0000"}']
        await report(one, (WARMTH, number(153)))  # what a coloured lamp says of it
        assert desired(gateway, "color_temp") == ["300"]
        assert len(broker.messages) == 2
        for state in ("false", "true"):
            desire(gateway, state=state)
            await settled()
        assert broker.payloads()[-1] == '{"state": "ON", "color": "#ff0000"}'


async def test_a_part_that_is_refused_does_not_stop_the_lamp() -> None:
    async with lamp() as (gateway, broker, one):
        desire(gateway, state="true", brightness="999")
        await settled()
        assert broker.payloads() == ['{"state": "ON"}']
        assert gateway.found("?a gateway:refused ?x") == ["the state is not between -inf and 254"]
        desire(gateway, brightness="99")
        await settled()
        assert broker.payloads()[1:] == ['{"brightness": 99}']
        assert one.states().refused == 0


async def test_topic_that_is_not_permitted_refuses_its_part_only() -> None:
    gateway, broker = StatesGateway(), NotingBroker()
    level = part("brightness", "part", '{"brightness": {value}}', topic="secret/topic")
    async with running(gateway, MqttSender({"default": broker}, COMMANDS), SWITCH, level):
        desire(gateway, state="true", brightness="9")
        await until(lambda: bool(gateway.found("?a gateway:refused ?x")))
        await settled()
        assert broker.payloads() == ['{"state": "ON"}']
        assert gateway.found("?x gateway:refused ?reason") == [f"{BASE}actuator/brightness/actuation"]


async def test_a_failed_command_is_repeated_with_all_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamplighter.adapters.devices.delivery.RETRY_MIN_S", 0.001)
    async with lamp() as (gateway, broker, one):
        broker.failures = 2
        desire(gateway, state="true", brightness="9")
        await until(lambda: one.counters.acknowledged >= 2)
        await settled()
        assert broker.payloads()[0] == broker.payloads()[-1] == '{"state": "ON", "brightness": 9}'
        assert one.states().waiting == 0
        assert gateway.found(f"?a sosa:madeByActuator <{BASE}actuator/brightness> ; sosa:hasSimpleResult ?x") == ["9"]


async def test_a_part_that_changes_during_a_command_is_sent_afterwards() -> None:
    async with lamp() as (gateway, broker, _):
        broker.acknowledging.clear()
        desire(gateway, state="true", brightness="9")
        await settled()
        desire(gateway, brightness="10")
        await settled()
        assert len(broker.messages) == 1
        broker.acknowledging.set()
        await settled()
        assert broker.payloads()[1:] == ['{"brightness": 10}']


async def test_rules_that_go_leave_the_lamp() -> None:
    async with lamp() as (gateway, broker, one):
        one.change_rules([SWITCH])
        desire(gateway, state="true", brightness="9")
        await settled()
        assert broker.payloads() == ['{"state": "ON"}']
        one.change_rules([])
        assert one._lamps == {}


class SimulatedLamp(NotingBroker):
    """Takes commands as Zigbee2MQTT does: any value turns it on. Some are lost, with or without an effect."""

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self.chance = chance
        self.reliable = False
        self.state: dict[str, Any] = {"state": "OFF"}

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool) -> None:
        for _ in range(self.chance.randrange(4)):
            await asyncio.sleep(0)
        what = 1.0 if self.reliable else self.chance.random()
        if what < 0.2:
            raise UpstreamError("no answer")
        if what < 0.3:
            raise RefusedByDevice("quota exceeded")
        self.state |= {"state": "ON"} | json.loads(payload)
        if what < 0.4:
            raise UpstreamError("the acknowledgement was lost")


@pytest.mark.parametrize("seed", range(20))
async def test_an_unreliable_lamp_ends_in_the_desired_states(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RETRY_MIN_S", "RETRY_MAX_S"):
        monkeypatch.setattr(f"lamplighter.adapters.devices.delivery.{name}", 1e-6)
    monkeypatch.setattr(actuator, "PAUSE_S", 1e-6)
    chance = Random(seed)
    gateway, broker = StatesGateway(), SimulatedLamp(chance)
    async with running(gateway, MqttSender({"default": broker}, COMMANDS), files=LAMP) as one:
        for _ in range(60):
            values = {"state": ("true", "false"), "brightness": ("1", "2", "999"), "color_temp": ("3", "4")}
            names = chance.sample(sorted(values), chance.randint(1, 3))
            desire(gateway, **{name: chance.choice(values[name]) for name in names})
            for _ in range(chance.randrange(20)):
                await asyncio.sleep(0)
        broker.reliable = True
        desire(gateway, state="true", brightness="7")
        warmth = desired(gateway, "color_temp")
        expected = {"state": "ON", "brightness": 7} | ({"color_temp": int(warmth[0])} if warmth else {})
        await until(lambda: broker.state == expected)
        await until(lambda: not any(each.worker for each in one._all()))
        assert broker.state == expected
        assert gateway.found("?a gateway:refused ?x") == []
        assert one.counters.sent == one.counters.acknowledged + one.counters.failed


async def test_lamp_that_comes_on_again_has_all_its_parts() -> None:
    """Some are switched on by their brightness."""
    async with lamp() as (gateway, broker, one):
        desire(gateway, state="true", brightness="50")
        await settled()
        await report(one, (SWITCH, TRUE), (LEVEL, number(50)))
        desire(gateway, state="false")
        await settled()
        await report(one, (SWITCH, FALSE))
        desire(gateway, state="true")
        await settled()
        assert json.loads(broker.messages[-1][1]) == {"state": "ON", "brightness": 50}


async def test_rule_of_the_dataset_joins_no_lamp_of_a_file() -> None:
    """Topics of rules of files are permitted; those of the dataset have to be in the setting."""
    foreign, own = [], []
    for count in range(8):
        shared = {"of": f"kitchen{count}", "role": "switch"}
        own.append(part(f"state{count}", "switch", "{value}", lamp=shared, topic=f"home/{count}/set"))
        more = {"lamp": {**shared, "role": "part"}, "topic": f"zigbee2mqtt/bridge/request/{count}"}
        foreign.append(part(f"foreign{count}", "part", "{value}", **more))
    gateway, broker = StatesGateway(), NotingBroker()
    async with running(gateway, MqttSender({"default": broker}, ()), *foreign, files=own):
        desire(gateway, **{f"{name}{count}": "true" for count in range(8) for name in ("state", "foreign")})
        await settled()
        assert {topic for topic, *_ in broker.messages} == {f"home/{count}/set" for count in range(8)}
