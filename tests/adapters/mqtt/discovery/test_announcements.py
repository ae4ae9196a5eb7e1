from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from lamplighter.adapters.devices.device import Device
from lamplighter.adapters.devices.draft import ACTUATORS_MAX
from lamplighter.adapters.devices.stored import check_record
from lamplighter.adapters.mqtt.discovery.announcements import FORMATS, Announcements
from tests.support.announcements import announcements, zigbee_house
from tests.support.tables import each_row


def switch(identifier: str, **keys: Any) -> bytes:
    return json.dumps({"cmd_t": f"{identifier}/set", "uniq_id": identifier, "dev": {"ids": identifier}} | keys).encode()


def topic(name: str) -> str:
    return f"homeassistant/switch/{name}/config"


def known(devices_max: int = 100) -> Announcements:
    return Announcements(FORMATS, devices_max=devices_max)


def test_no_device_gets_the_command_topic_of_another() -> None:
    state = known()
    state.read("", topic("a"), switch("a"))
    changes = state.read("", topic("b"), switch("b", cmd_t="a/set"))
    assert not changes.devices
    assert changes.problems[0].reason == "b: the topic a/set belongs to homeassistant/a, which announced it first"
    state.read("", topic("a"), b"")
    assert state.read("", topic("b"), switch("b", cmd_t="a/set", name="again")).devices, "withdrawn, so it is free"


def test_no_device_writes_where_another_is_read() -> None:
    state = known()
    state.read("", topic("a"), switch("a", stat_t="a/state"))
    assert not state.read("", topic("b"), switch("b", cmd_t="a/state")).devices


def test_no_device_is_read_where_another_is() -> None:
    state = known()
    sensor = {"stat_t": "a/t", "uniq_id": "x", "dev": {"ids": "a"}}
    state.read("", "homeassistant/sensor/a/config", json.dumps(sensor).encode())
    forged = json.dumps(sensor | {"dev": {"ids": "b"}}).encode()
    assert not state.read("", "homeassistant/sensor/b/config", forged).devices


def test_brokers_have_topics_of_their_own_but_a_device_is_at_one() -> None:
    state = known()
    (first,) = state.read("home", topic("a"), switch("a")).devices
    (second,) = state.read("shed", topic("b"), switch("b", cmd_t="a/set")).devices
    assert (first.broker, second.broker) == ("home", "shed")
    changes = state.read("shed", topic("a"), switch("a"))
    assert not changes.devices
    assert changes.problems[0].reason == "another announcement is already of this device, and is kept"


def test_a_second_entity_of_one_name_is_left_out() -> None:
    state = known()
    state.read("", topic("a"), switch("a"))
    changes = state.read("", topic("a2"), switch("a", cmd_t="a/other"))
    assert [actuator.command["topic"] for device in changes.devices for actuator in device.actuators] in ([], ["a/set"])
    assert any("already has one of this name" in problem.reason for problem in changes.problems)


def test_the_same_device_in_two_formats_is_said_once() -> None:
    state = known()
    for message in announcements("tasmota"):
        state.read("", *message)
    entity = {"cmd_t": "cmnd/tasmota_F17F56/POWER", "stat_t": "stat/tasmota_F17F56/POWER", "uniq_id": "F17F56_RL_1"}
    config = json.dumps(entity | {"dev": {"ids": ["F17F56"]}}).encode()
    changes = state.read("", topic("F17F56"), config)
    assert not changes.devices
    assert [problem.reason for problem in changes.problems] == [
        "some of its topics belong to tasmota/E09806F17F56, which announced them first; they are used there"
    ]


def test_devices_of_an_earlier_run_keep_what_they_own() -> None:
    (device,) = known().read("home", topic("a"), switch("a")).devices
    state = known()
    state.restore([device, device])
    assert not state.read("home", topic("b"), switch("b", cmd_t="a/set")).devices
    assert not state.read("shed", topic("a"), switch("a")).devices
    assert state.read("home", topic("a"), switch("a", cmd_t="a/new")).devices
    assert state.read("home", topic("b"), switch("b", cmd_t="a/set")).devices, "its owner does not use it any more"


def test_devices_are_bounded() -> None:
    state = known(devices_max=5)
    changes = state.read("", "zigbee2mqtt/bridge/devices", zigbee_house(3))
    assert len(changes.devices) == 5
    assert [problem.reason for problem in changes.problems] == [
        "there are more than 5 devices (mqtt.devices_max), or too many parts"
    ]


def test_a_device_of_an_earlier_run_keeps_its_place() -> None:
    (device,) = known().read("", topic("a"), switch("a")).devices
    state = known(devices_max=5)
    state.restore([device])
    for number in range(10):
        state.read("", topic(f"f{number}"), switch(f"f{number}"))
    assert [one.name for one in state.read("", topic("a"), switch("a", name="Lamp")).devices] == ["Lamp"]


@pytest.mark.parametrize("part", ["config", "sensors"])
def test_what_waits_for_the_rest_of_a_device_takes_little_memory(part: str) -> None:
    state = known()
    tracemalloc.start()
    try:
        for number in range(50):
            members = {"mac": f"{number:012X}", "sn": [[]] * 5_000}
            state.read("", f"tasmota/discovery/{number:012X}/{part}", json.dumps(members).encode())
        assert tracemalloc.get_traced_memory()[0] < 4_000_000
    finally:
        tracemalloc.stop()


def test_what_is_held_of_all_announcements_is_bounded() -> None:
    state = known(devices_max=1_000)
    words = [f"{word:x}" for word in range(199)]
    reasons = set()
    for number in range(300):
        entities = {f"k{e}": {"p": "select", "cmd_t": f"{number}/{e}", "ops": words} for e in range(12)}
        payload = json.dumps({"dev": {"ids": f"{number}"}, "cmps": entities}).encode()
        reasons |= {one.reason for one in state.read("", f"homeassistant/device/{number}/config", payload).problems}
    assert reasons == {
        "there are too many devices",
        "there are more than 1000 devices (mqtt.devices_max), or too many parts",
    }


def test_what_is_held_of_one_device_is_bounded() -> None:
    state = known()
    words = [f"{word:0100}" for word in range(199)]
    reasons = set()
    for number in range(20):
        config = {"cmd_t": f"x/{number}", "ops": words, "uniq_id": f"u{number}", "dev": {"ids": "one"}}
        changes = state.read("", f"homeassistant/select/{number}/config", json.dumps(config).encode())
        reasons |= {problem.reason for problem in changes.problems}
    assert any("too many parts" in reason for reason in reasons), reasons


@each_row("value", [b"[]", b'{"":0}', b'""', b"0"])
def test_a_list_that_takes_much_memory_is_refused(value: bytes) -> None:
    payload = b"[" + b",".join([value] * (4_000_000 // (len(value) + 1))) + b"]"
    tracemalloc.start()
    try:
        (problem,) = known().read("", "zigbee2mqtt/bridge/devices", payload).problems
        assert tracemalloc.get_traced_memory()[1] < 48_000_000
    finally:
        tracemalloc.stop()
    assert problem.reason == "the payload has too many values"


def test_parts_of_one_device_are_bounded() -> None:
    state = known()
    for number in range(150):
        state.read("", topic(f"a{number}"), switch("a", uniq_id=f"a{number}", cmd_t=f"a/{number}/set"))
    (device,) = state.read("", topic("a0"), switch("a", uniq_id="a0", cmd_t="a/other/set")).devices
    assert len(device.actuators) == ACTUATORS_MAX
    check_record(Device.from_json(device.to_json()))
    (said,) = [one.reason for one in state.read("", topic("a1"), b"").left_out if one.reason]
    assert said.endswith(f"{149 - ACTUATORS_MAX} of 149 actuators, since a device has at most {ACTUATORS_MAX}")


def test_an_identifier_of_any_characters_is_one_segment() -> None:
    state = known()
    seen: set[str] = set()
    for identifier in ("a b", "a_b", "a/b", "..", "é", "x" * 300, "<http://e/>", 'a"b', "a\u202eb", "%41"):
        (device,) = state.read(
            "", topic(str(len(seen))), switch(identifier, cmd_t=f"t{len(seen)}/set", uniq_id="u")
        ).devices
        assert "/" not in device.id and len(device.id) <= 96
        assert all(sign.isascii() and (sign.isalnum() or sign in "._~@=+,-") for sign in device.id)
        seen.add(device.id)
    assert len(seen) == 10


def test_records_survive_json() -> None:
    state = known()
    found: list[Device] = []
    for name in ("homeassistant", "zigbee2mqtt", "tasmota", "shelly"):
        for message in announcements(name):
            found += state.read("", *message).devices
    assert len(found) > 15
    for device in found:
        assert Device.from_json(device.to_json()) == device


def test_filters_are_those_of_the_formats_named() -> None:
    assert known().filters[0] == "+/bridge/devices"
    assert Announcements(["tasmota"], devices_max=1).filters == [
        "tasmota/discovery/+/config",
        "tasmota/discovery/+/sensors",
    ]
    assert Announcements([], devices_max=1).filters == []
    assert known().asks == [("shellies/command", "announce")]


def test_topics_that_are_no_announcements_are_passed_over() -> None:
    assert not known().covers("zigbee2mqtt/lamp")
    assert not known().read("", "zigbee2mqtt/lamp", b"{}").problems
