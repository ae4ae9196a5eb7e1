"""What a person means by an actuator and a state."""

from __future__ import annotations

import asyncio

import pytest

from lamplighter.adapters.coap.discovery import propose
from lamplighter.adapters.coap.links import parse_links
from lamplighter.adapters.devices.device import Device
from lamplighter.adapters.devices.registry import Entry
from lamplighter.adapters.mqtt.discovery.announcements import Announcements
from lamplighter.adapters.mqtt.settings import MqttSettings
from lamplighter.engine import Engine
from lamplighter.engine.terms import XSD, literal
from lamplighter.gateway.devices import decisions
from lamplighter.gateway.devices.decisions import Devices, Row, check_permitted, named_actuator, wanted_state
from lamplighter.ontology.vocabulary import BY_HAND, CONNECTED, SUBSCRIBED
from tests.support.announcements import announcements, zigbee_house
from tests.support.tables import each_row


def device(name: str, payload: bytes) -> Device:
    found = Announcements(["zigbee2mqtt"], devices_max=100).read("default", "z/bridge/devices", payload).devices
    return next(one for one in found if one.name == name)


LAMP, MOTION = (device(f"room1/{name}", zigbee_house(1)) for name in ("lamp", "motion"))
((_, _payload),) = announcements("zigbee2mqtt")
PLUGS, RADIATOR = device("two plugs", _payload), device("radiator", _payload)


_proposal = propose(parse_links(b"</3311/0/5850>,</3311/0/5851>"), base="coap://192.0.2.7", place="/.well-known/core")
assert _proposal.device is not None
COAP_LAMP = _proposal.device


@each_row(
    ("of", "text", "key"),
    [
        (LAMP, None, "state"),
        (LAMP, "light", "state"),
        (LAMP, "Brightness", "brightness"),
        (PLUGS, "state_l1", "state_l1"),
        (RADIATOR, "targetTemperature", "current_heating_setpoint"),
    ],
)
def test_actuator_by_what_it_controls_or_its_key(of: Device, text: str | None, key: str) -> None:
    assert named_actuator(of, text).key.endswith(key)


@each_row(
    ("of", "text", "reason"),
    [
        (LAMP, "colour", "write one of brightness, light, transition as ACTUATOR"),
        (PLUGS, None, "write one of state_l1, state_l2 as ACTUATOR"),
        (MOTION, None, "it has no actuators"),
    ],
)
def test_unclear_actuator_is_refused_with_what_to_write(of: Device, text: str | None, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        named_actuator(of, text)


@each_row(
    ("actuator", "text", "value", "datatype"),
    [
        ("light", "ON", "true", "boolean"),
        ("light", "false", "false", "boolean"),
        ("brightness", "100", "100", "decimal"),
        ("climateMode", "AUTO", "auto", None),
    ],
)
@each_row("lamp", [LAMP, COAP_LAMP], ids=["mqtt", "coap"])
def test_state_has_the_type_that_applications_write(
    lamp: Device, actuator: str, text: str, value: str, datatype: str | None
) -> None:
    found = named_actuator(RADIATOR if actuator == "climateMode" else lamp, actuator)
    assert wanted_state(found, text) == literal(value, datatype=datatype and XSD + datatype)


def test_state_that_the_device_does_not_take_is_refused() -> None:
    with pytest.raises(ValueError, match="true, false"):
        wanted_state(named_actuator(LAMP, "light"), "blue")
    with pytest.raises(ValueError, match="true, false"):
        wanted_state(named_actuator(COAP_LAMP, "light"), "blue")
    with pytest.raises(ValueError, match="between 0 and 100"):
        wanted_state(named_actuator(COAP_LAMP, "brightness"), "101")


def test_topic_that_the_settings_do_not_permit_is_refused() -> None:
    check_permitted("zigbee2mqtt/lamp/set", MqttSettings().commands)
    with pytest.raises(ValueError, match=r"does not permit the topic shelly-1/rpc; add it"):
        check_permitted("shelly-1/rpc", MqttSettings().commands)


class EngineDataset:
    """The dataset of an engine in this process."""

    def __init__(self) -> None:
        self.engine = Engine()

    async def rows(self, query: str) -> list[Row]:
        result = self.engine.query(query)
        assert not isinstance(result, bool)
        return [tuple(row.get(name) for name in result.variables) for row in result]

    async def update(self, text: str) -> None:
        self.engine.update(text)


async def test_what_becomes_of_a_state_that_is_given_by_hand_can_be_said_per_actuator() -> None:
    dataset = EngineDataset()
    devices = Devices(dataset, "http://gateway.example/", ())
    await devices.take(LAMP, None)
    lamp = await devices.entry(LAMP.identity)
    assert lamp is not None
    assert await devices.by_hand(lamp) == {"brightness": "follow", "state": "follow", "transition": "hold"}
    assert await devices.say_by_hand(lamp, None, "hold") == "hold"
    await devices.say_by_hand(lamp, "brightness", "follow")
    assert await devices.by_hand(lamp) == {"brightness": "follow", "state": "hold", "transition": "hold"}
    with pytest.raises(ValueError, match="write hold or follow"):
        await devices.say_by_hand(lamp, None, "fight")
    await devices.remove(lamp)
    assert not dataset.engine.query(f"ASK {{ ?actuator <{BY_HAND}> ?what }}")


async def test_actuators_that_must_not_be_moved_hold() -> None:
    devices = Devices(EngineDataset(), "http://gateway.example/", ())
    await devices.take(RADIATOR, None)
    radiator = await devices.entry(RADIATOR.identity)
    assert radiator is not None
    assert set((await devices.by_hand(radiator)).values()) == {"hold"}
    assert COAP_LAMP is not None
    await devices.take(COAP_LAMP, None)
    coap = await devices.entry(COAP_LAMP.identity)
    assert coap is not None
    assert set((await devices.by_hand(coap)).values()) == {"hold"}, "one that was rebooted reports another state"


async def test_adoption_waits_until_the_topics_are_read_where_the_broker_is_connected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dataset = EngineDataset()
    devices = Devices(dataset, "http://gateway.example/", ())
    text = devices.registry.announced(None, LAMP, "ask")
    assert text is not None
    await dataset.update(text)
    await dataset.update(f"INSERT DATA {{ <http://gateway.example/broker/default> <{CONNECTED}> true }}")
    [lamp], _ = await devices.entries()
    monkeypatch.setattr(decisions, "SUBSCRIBED_S", 0.0)
    [late] = await devices.adopt([lamp])
    assert isinstance(late, Entry)
    assert devices.refused_topics(late.device) == [decisions.NOT_READ]
    monkeypatch.setattr(decisions, "SUBSCRIBED_S", 60.0)
    adopting = asyncio.ensure_future(devices.adopt([late]))
    await asyncio.sleep(0.05)
    assert not adopting.done()
    await dataset.update(devices.registry.subscription(late))
    [adopted] = await adopting
    assert isinstance(adopted, Entry)
    assert devices.refused_topics(adopted.device) == []
    await dataset.update(devices.registry.ignoring(adopted))
    assert not dataset.engine.query(f"ASK {{ ?device <{SUBSCRIBED}> ?revision }}")
