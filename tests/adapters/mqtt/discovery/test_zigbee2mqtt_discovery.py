from __future__ import annotations

import json
from typing import Any

from lamplighter.adapters.devices.device import Device
from lamplighter.adapters.mqtt.discovery.announcements import Announcements
from tests.support.announcements import announcements, zigbee_house
from tests.support.tables import each_row

LIST = "zigbee2mqtt/bridge/devices"


def known() -> Announcements:
    return Announcements(["zigbee2mqtt"], devices_max=500)


def house() -> dict[str, Device]:
    ((topic, payload),) = announcements("zigbee2mqtt")
    changes = known().read("home", topic, payload)
    assert not changes.problems
    return {device.name: device for device in changes.devices}


def renamed(payload: bytes, names: dict[str, str]) -> bytes:
    listed: list[dict[str, Any]] = json.loads(payload)
    for entry in listed:
        entry["friendly_name"] = names.get(entry["friendly_name"], entry["friendly_name"])
    return json.dumps(listed).encode()


def test_coordinator_disabled_and_unknown_devices_are_left_out() -> None:
    assert set(house()) == {"hall/motion", "window kitchen", "lamp hall", "two plugs", "button", "radiator"}


def test_a_motion_sensor_by_its_address() -> None:
    motion = house()["hall/motion"]
    assert motion.identity == "zigbee2mqtt/0x00158d0001e82a4c"
    assert {sensor.kind for sensor in motion.sensors} == {
        "gateway:battery",
        "gateway:motion",
        "gateway:illuminance",
        "gateway:deviceTemperature",
        "gateway:linkQuality",
    }
    (occupancy,) = [sensor for sensor in motion.sensors if sensor.kind == "gateway:motion"]
    assert occupancy.table["topic"] == "zigbee2mqtt/hall/motion"
    assert (occupancy.table["member"], occupancy.table["on"], occupancy.table["off"]) == (
        "occupancy",
        ["true"],
        ["false"],
    )
    assert motion.availability is not None
    assert [table["topic"] for table in motion.availability.topics] == [
        "zigbee2mqtt/bridge/state",
        "zigbee2mqtt/hall/motion/availability",
    ]


def test_a_closed_contact_is_true() -> None:
    (contact,) = [one for one in house()["window kitchen"].sensors if one.kind == "gateway:contact"]
    assert (contact.table["on"], contact.table["off"]) == (["true"], ["false"])


def test_a_lamp_is_switched_by_set_with_json() -> None:
    lamp = {actuator.key: actuator for actuator in house()["lamp hall"].actuators}
    assert lamp["state"].command["topic"] == "zigbee2mqtt/lamp hall/set"
    assert lamp["state"].command["payload"] == '{"state": {value}}'
    assert lamp["state"].command["values"] == {"true": '"ON"', "false": '"OFF"'}
    assert lamp["state"].state is not None and lamp["state"].state["member"] == "state"
    assert (lamp["brightness"].minimum, lamp["brightness"].maximum) == (0, 254)
    assert lamp["effect"].state is None, "it is only set"
    assert lamp["color"].command["payload"] == '{"color": {"hex": {json}}}'


def test_endpoints_composites_and_modes() -> None:
    devices = house()
    assert [one.key for one in devices["two plugs"].actuators] == ["child_lock", "state_l1", "state_l2"]
    lock = devices["two plugs"].actuators[0]
    assert lock.command["values"] == {"true": "true", "false": "false"}
    radiator = {one.kind: one for one in devices["radiator"].actuators}
    assert set(radiator) == {"gateway:targetTemperature", "gateway:climateMode", "gateway:childLock"}
    (action,) = devices["button"].sensors
    assert (action.kind, action.table["on_repeat"]) == ("gateway:event", "event")


def test_a_cover_takes_words_that_it_does_not_report() -> None:
    state = {"name": "state", "property": "state", "type": "enum", "access": 7, "values": ["OPEN", "CLOSE", "STOP"]}
    device = exposing({"type": "cover", "features": [state]})
    (actuator,) = device.actuators
    assert (actuator.kind, list(actuator.command["values"])) == ("gateway:cover", ["OPEN", "CLOSE", "STOP"])
    assert [sensor.key for sensor in device.sensors] == ["state"] and actuator.state is None


def test_a_renamed_device_keeps_its_identity_and_its_iris() -> None:
    ((topic, payload),) = announcements("zigbee2mqtt")
    state = known()
    before = {device.id: device for device in state.read("", topic, payload).devices}
    changes = state.read("", topic, renamed(payload, {"lamp hall": "lamp stairs"}))
    (lamp,) = changes.devices
    assert (lamp.name, changes.gone, changes.problems) == ("lamp stairs", [], [])
    assert lamp.actuators[0].command["topic"] == "zigbee2mqtt/lamp stairs/set"
    assert [one.table["sensor"] for one in lamp.sensors] == [one.table["sensor"] for one in before[lamp.id].sensors]


def test_two_devices_may_swap_their_names() -> None:
    state, payload = known(), zigbee_house(2)
    state.read("", LIST, payload)
    changes = state.read("", LIST, renamed(payload, {"room1/lamp": "room2/lamp", "room2/lamp": "room1/lamp"}))
    assert not changes.problems
    assert sorted(device.name for device in changes.devices) == ["room1/lamp", "room2/lamp"]


def test_a_device_that_is_not_in_the_list_any_more_is_gone() -> None:
    state = known()
    state.read("", LIST, zigbee_house(2))
    assert len(state.read("", LIST, zigbee_house(1)).gone) == 4
    assert len(state.read("", LIST, b"").gone) == 4


def test_an_unchanged_list_changes_nothing() -> None:
    state = known()
    assert len(state.read("", LIST, zigbee_house(10)).devices) == 40
    changes = state.read("", LIST, zigbee_house(10))
    assert not changes.devices and not changes.gone and not changes.problems


def test_devices_of_an_earlier_run_that_the_list_does_not_have_are_gone() -> None:
    before = known().read("", LIST, zigbee_house(2)).devices
    state = known()
    state.restore(before)
    changes = state.read("", LIST, zigbee_house(1))
    assert len(changes.gone) == 4
    assert len(changes.devices) == 4, "devices that were restored are told once; the registry sees that they are equal"
    state = known()
    state.restore(before)
    assert not state.read("another broker", LIST, b"[]").gone


@each_row(
    ("entry", "reason"),
    [
        ({"ieee_address": "x", "friendly_name": "a", "definition": {}}, "not an IEEE address"),
        ({"ieee_address": "0x00158d0001e82a4c", "friendly_name": "bridge/x", "definition": {}}, "that of the bridge"),
        ({"ieee_address": "0x00158d0001e82a4c", "friendly_name": 3, "definition": {}}, "friendly_name is missing"),
        (7, "it is not an object"),
    ],
)
def test_entries_that_cannot_be_read_are_problems(entry: object, reason: str) -> None:
    changes = known().read("", LIST, json.dumps([entry]).encode())
    assert not changes.devices
    assert [reason in problem.reason for problem in changes.problems] == [True]


def test_a_name_with_a_wildcard_makes_no_topic() -> None:
    payload = renamed(zigbee_house(1), {"room1/lamp": "#"})
    changes = known().read("", LIST, payload)
    assert "room1/lamp" not in [device.name for device in changes.devices]
    assert len(changes.devices) == 3
    assert all("wildcard" in problem.reason for problem in changes.problems)


def test_exposes_are_bounded_in_number_and_depth() -> None:
    deep: dict[str, Any] = {"type": "numeric", "name": "n", "property": "n", "access": 1}
    for _ in range(50):
        deep = {"type": "composite", "name": "c", "property": "c", "features": [deep]}
    many = [{"type": "numeric", "name": f"n{i}", "property": f"n{i}", "access": 1} for i in range(1000)]
    entry = {"ieee_address": "0x00158d0001e82a4c", "friendly_name": "a", "definition": {"exposes": [deep, *many]}}
    (device,) = known().read("", LIST, json.dumps([entry]).encode()).devices
    assert len(device.sensors) == 100

    def keys(*exposes: dict[str, Any]) -> list[str]:
        entry["definition"] = {"exposes": exposes}
        changes = known().read("", LIST, json.dumps([entry]).encode())
        assert [problem.reason for problem in changes.problems] == (
            ["the device exposes more than 300 values"] if len(exposes) > 300 else []
        )
        return [sensor.key for device in changes.devices for sensor in device.sensors]

    assert keys(many[0], *[{"type": "list"}] * 299, many[1]) == ["n0"]
    level: dict[str, Any] = {"type": "numeric", "name": "n", "property": "n", "access": 1}
    for _ in range(3):
        level = {"type": "composite", "name": "c", "property": "c", "features": [level]}
    assert keys(level) == ["c.c.c.n"]
    assert keys({"type": "composite", "name": "c", "property": "c", "features": [level]}) == []


def exposing(*exposes: dict[str, Any]) -> Device:
    """A device with these values, without a problem."""
    (entry,) = json.loads(zigbee_house(1))[:1]
    entry["definition"]["exposes"] = exposes
    changes = known().read("", LIST, json.dumps([entry]).encode())
    assert not changes.problems
    (device,) = changes.devices
    return device


def light(endpoint: str) -> dict[str, Any]:
    color = {"name": "color_xy", "property": f"color_{endpoint}", "type": "composite", "access": 7, "features": []}
    state = {"name": "state", "property": f"state_{endpoint}", "type": "binary", "access": 7}
    return {"type": "light", "endpoint": endpoint, "features": [state | {"value_on": "ON", "value_off": "OFF"}, color]}


def test_each_light_of_a_device_has_its_colour() -> None:
    device = exposing(light("l1"), light("l2"))
    colors = {one.key: one.command["payload"] for one in device.actuators if one.kind == "gateway:color"}
    assert colors == {"color_l1": '{"color_l1": {"hex": {json}}}', "color_l2": '{"color_l2": {"hex": {json}}}'}
    assert {one.key for one in device.sensors} >= {"color_xy_l1.x", "color_xy_l2.y"}


@each_row(
    ("name", "kind"),
    [
        ("power_phase_b", "gateway:power"),
        ("current_c", "gateway:current"),
        ("energy_l2", "gateway:energy"),
        ("temperature_1", "gateway:temperature"),
        ("energy_tier_1", "property/energy_tier_1"),
        ("gas", "property/gas"),
    ],
)
def test_kind_of_a_number(name: str, kind: str) -> None:
    """Channels and phases have the kind of what is measured; a number is no alarm."""
    device = exposing({"name": name, "property": name, "type": "numeric", "access": 1})
    assert [one.kind for one in device.sensors] == [kind]


def test_the_longest_device_of_the_bounds_is_known() -> None:
    number = {"type": "numeric", "access": 7, "value_max": 9}
    exposes = [number | {"name": f"n{n}", "property": f"setting_of_the_device_{n}"} for n in range(60)]
    number = {"type": "numeric", "access": 1}
    read = [number | {"name": f"r{n}", "property": f"reading_of_the_device_{n}"} for n in range(40)]
    device = exposing(*exposes, *read)
    assert (len(device.sensors), len(device.actuators)) == (100, 60)
    assert len(device.to_json()) > 80_000
