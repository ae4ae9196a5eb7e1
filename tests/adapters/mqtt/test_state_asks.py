"""When devices are asked for their states, and by which messages."""

from __future__ import annotations

import asyncio

import pytest

from lamplighter.adapters.mqtt import state_asks
from lamplighter.adapters.mqtt.discovery.announcements import Announcements
from lamplighter.adapters.mqtt.state_asks import StateAsks, is_question
from lamplighter.engine.errors import UpstreamError
from tests.support.announcements import announced_devices
from tests.support.event_loops import beside, until
from tests.support.tables import each_row


class Session:
    """Takes messages while it is connected."""

    def __init__(self) -> None:
        self.subscribed = asyncio.Event()
        self.filters = ()
        self.sent: list[tuple[str, str]] = []

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool) -> None:
        assert (qos, retain) == (0, False)
        if topic == "fails":
            raise UpstreamError("the broker is not connected")
        if topic == "invalid":
            raise ValueError("Publish topic is too long.")  # as paho does
        self.sent.append((topic, payload.decode()))


@pytest.fixture(autouse=True)
def asks_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_asks, "PORTION_S", 0.0)
    monkeypatch.setattr(state_asks, "AGAIN_S", 600.0)


@each_row(
    ("topic", "payload", "question"),
    [
        ("cmnd/plug/STATUS", "10", True),
        ("cmnd/plug/STATUS", "0", False),
        ("cmnd/plug/POWER", "10", False),
        ("zigbee2mqtt/lamp/get", '{"state": ""}', True),
        ("zigbee2mqtt/lamp/set", '{"state": ""}', False),
        ("zigbee2mqtt/lamp/get", '{"state": "ON"}', False),
        ("plug/rpc", '{"id": 1, "src": "plug/lamplighter", "method": "Shelly.GetStatus"}', True),
        ("plug/rpc", '{"id": 1, "src": "x", "method": "Shelly.Reboot"}', False),
        ("plug/rpc", '{"id": 1, "src": "x", "method": "Switch.Set", "b": "", "method": "Shelly.GetStatus"}', False),
        ("+/rpc", '{"id": 1, "src": "x", "method": "Shelly.GetStatus"}', False),
        ("$SYS/get", '{"state": ""}', False),
        ("#/get", '{"state": ""}', False),
        ("R/c0619ab1c2d3/keepalive", "", True),
        ("R/c0619ab1c2d3/keepalive", "[]", False),
        ("R/c0619ab1c2d3/system/0/Serial", "", False),
    ],
)
def test_only_questions_are_sent(topic: str, payload: str, question: bool) -> None:
    assert is_question(topic, payload) is question


@each_row("source", ["tasmota", "zigbee2mqtt", "shelly", "victron"])
def test_what_formats_ask_is_a_question(source: str) -> None:
    asks = [one for device in announced_devices(source) for one in device.asks]
    assert asks and all(is_question(one.topic, one.payload) for one in asks)


def test_question_at_the_topic_of_another_device_is_left_out() -> None:
    known = Announcements(["tasmota"], devices_max=10)
    config = (
        b'{"dn":"Plug","mac":"%s","ofln":"Offline","onln":"Online","state":["OFF","ON"],"t":"plug","rl":[1],'
        b'"ft":"%%prefix%%/%%topic%%/","tp":["%s","stat","tele"]}'
    )
    (first,) = known.read("", "tasmota/discovery/0A1B2C3D4E5F/config", config % (b"0A1B2C3D4E5F", b"cmnd")).devices
    assert [one.topic for one in first.asks] == ["cmnd/plug/STATUS"] * 2
    hostile = config % (b"0A1B2C3D4E60", b"zigbee2mqtt/bridge/request")
    changes = known.read("", "tasmota/discovery/0A1B2C3D4E60/config", hostile.replace(b'"t":"plug"', b'"t":"x"'))
    assert [device.asks for device in changes.devices] == [()]


async def test_questions_are_sent_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_asks, "PAUSE_MIN_S", 0.3)
    session = Session()
    asks = StateAsks(lambda broker: [])
    asks.follow({"home": session})
    async with beside(asks.send_due()):
        asks.demand("home", [("a/get", "0")])  # not connected: the connection will ask
        session.subscribed.set()
        asks.demand("home", [("a/get", "1"), ("fails", "2"), ("invalid", "2"), ("b/get", "3")])
        asks.demand("gone", [("d/get", "5")])
        await until(lambda: len(session.sent) >= 2, "both")
        began = asyncio.get_running_loop().time()
        asks.demand("home", [("a/get", "1"), ("c/get", "4")])
        await until(lambda: ("c/get", "4") in session.sent, "the new one")
        await until(lambda: session.sent.count(("a/get", "1")) == 2, "the repeated one")
        assert asyncio.get_running_loop().time() - began >= 0.2
    assert session.sent[-1] == ("a/get", "1")


async def test_devices_are_asked_a_second_time_in_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_asks, "AGAIN_S", 0.1)
    session = Session()
    session.subscribed.set()
    asks = StateAsks(lambda broker: [("a/get", "1")])
    asks.follow({"home": session})
    async with beside(asks.send_due()):
        asks.note_connection("home", connected=True)
        asks.note_connection("home", connected=True)  # a problem of the connection has changed
        await until(lambda: len(session.sent) == 1, "the second question")
        asks.note_connection("home", connected=False)
        asks.note_connection("home", connected=True)
        await until(lambda: len(session.sent) == 2, "that of the next connection")


async def test_what_is_due_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_asks, "ASKS_MAX", 5)
    asks = StateAsks(lambda broker: [])
    for number in range(100):
        asks.demand("home", [(f"{number}/get", "")])
    assert len(asks._due) == 5
