from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from lamplighter.adapters.devices.device import Device
from lamplighter.adapters.devices.registry import Registry
from lamplighter.adapters.devices.stored import check_record
from lamplighter.adapters.mapping import Births, Mapping, StreamRule, StreamTable
from lamplighter.adapters.model.readings import Reading
from lamplighter.adapters.mqtt.discovery.announcements import Announcements, Changes, formats_of
from lamplighter.adapters.mqtt.discovery.homeassistant_templates import ValuePlace, command_keys, value_place
from lamplighter.engine.terms import lexical
from lamplighter.ontology.vocabulary import PREFIXES
from tests.support.announcements import announcements
from tests.support.tables import each_row


def discovered(*names: str) -> tuple[dict[str, Device], list[str]]:
    """The devices of the files by identity, and the reasons of all problems."""
    known = Announcements(["homeassistant", "zigbee2mqtt", "tasmota", "shelly"], devices_max=100)
    devices: dict[str, Device] = {}
    reasons: list[str] = []
    for name in names:
        for topic, payload in announcements(name):
            changes = known.read("", topic, payload)
            devices |= {device.identity: device for device in changes.devices}
            reasons += [problem.reason for problem in changes.problems]
    return devices, reasons


def one(config: dict[str, Any], component: str = "sensor") -> Changes:
    known = Announcements(["homeassistant"], devices_max=10)
    return known.read("home", f"homeassistant/{component}/thing/config", json.dumps(config).encode())


def test_entities_with_one_identifier_are_one_device() -> None:
    devices, _ = discovered("homeassistant")
    kitchen = devices["homeassistant/a8032abe54dc"]
    assert (kitchen.name, kitchen.manufacturer, kitchen.model, kitchen.area) == (
        "esp-kitchen",
        "espressif",
        "esp32dev",
        "Kitchen",
    )
    measured = {"gateway:temperature", "gateway:motion", "gateway:switch", "gateway:updateAvailable"}
    assert {sensor.kind for sensor in kitchen.sensors if sensor.kind.startswith("gateway")} == measured
    (relay,) = [one for one in kitchen.actuators if one.kind == "gateway:switch"]
    assert relay.command == {
        "topic": "esp-kitchen/switch/relay/command",
        "broker": "",
        "actuator": "actuator/homeassistant/a8032abe54dc/ESPswitchrelay",
        "payload": "{value}",
        "qos": 1,
        "retain": False,
        "values": {"true": "ON", "false": "OFF"},
    }
    assert relay.state is not None and relay.state["topic"] == "esp-kitchen/switch/relay/state"
    assert kitchen.availability is not None
    assert kitchen.availability.topics[0]["topic"] == "esp-kitchen/status"


def test_a_stream_table_has_unit_member_and_iris_under_the_identity() -> None:
    devices, _ = discovered("homeassistant")
    (humidity,) = [one for one in devices["homeassistant/ea334450945afc"].sensors if one.kind == "gateway:humidity"]
    assert humidity.table == {
        "topic": "sensorBedroom/state",
        "broker": "",
        "property": "gateway:humidity",
        "payload": "number",
        "sensor": "sensor/homeassistant/ea334450945afc/temp01ae_h",
        "feature": "device/homeassistant/ea334450945afc",
        "platform": "device/homeassistant/ea334450945afc",
        "label": "humidity",
        "member": "air.humidity",
        "optional": True,
        "unit": "%",
    }


def test_an_open_window_is_a_contact_that_is_false() -> None:
    devices, _ = discovered("homeassistant")
    (window,) = [one for one in devices["homeassistant/ea334450945afc"].sensors if one.kind == "gateway:contact"]
    assert (window.table["on"], window.table["off"]) == (["shut"], ["open"])


def test_base_topics_json_lights_and_lists_of_availability() -> None:
    devices, _ = discovered("homeassistant")
    (shed,) = [device for device in devices.values() if device.name == "Shed"]
    commands = {actuator.key: actuator.command for actuator in shed.actuators}
    assert commands["shed_lamp"]["topic"] == "shed/lamp/set"
    assert commands["shed_lamp"]["values"]["true"] == '{"state": "ON"}'
    assert commands["shed_lamp.brightness"]["payload"] == '{"state": "ON", "brightness": {value}}'
    assert shed.availability is not None and shed.availability.mode == "all"
    assert [table["topic"] for table in shed.availability.topics] == ["shed/lamp/status", "shed/bridge"]
    assert shed.availability.topics[1]["member"] == ["state"]


def test_climate_and_cover() -> None:
    devices, _ = discovered("homeassistant")
    living = {actuator.kind: actuator for actuator in devices["homeassistant/living-1"].actuators}
    assert (living["gateway:targetTemperature"].minimum, living["gateway:targetTemperature"].maximum) == (5, 30)
    assert living["gateway:climateMode"].command["values"] == {"off": "off", "heat": "heat"}
    blind = {actuator.kind: actuator for actuator in devices["homeassistant/blind-1"].actuators}
    assert blind["gateway:cover"].command["values"] == {"OPEN": "OPEN", "CLOSE": "CLOSE"}, "null: it cannot stop"
    assert blind["gateway:position"].command["topic"] == "blind/pos/set"


@each_row(
    ("component", "config", "keys"),
    [
        ("binary_sensor", {"dev_cla": "motion", "off_dly": 90}, {"off_delay_s": 90}),
        ("binary_sensor", {"off_delay": 1.5, "exp_aft": 3600}, {"off_delay_s": 1.5, "expire_after_s": 3600}),
        ("sensor", {"dev_cla": "power", "expire_after": 600}, {"expire_after_s": 600}),
        ("sensor", {"dev_cla": "power", "expire_after": 0}, {}),
        ("sensor", {}, {"no_value": ["None", "unavailable", "unknown"]}),
        ("select", {"command_topic": "c", "options": ["None", "unknown", "on"]}, {"no_value": ["unavailable"]}),
    ],
)
def test_states_that_end_and_words_for_none(component: str, config: dict[str, Any], keys: dict[str, Any]) -> None:
    (device,) = one({"name": "thing", "state_topic": "s"} | config, component).devices
    (sensor,) = device.sensors
    assert {key: sensor.table[key] for key in keys} == keys
    assert not {"off_delay_s", "expire_after_s", "no_value"} & (sensor.table.keys() - keys.keys())


@each_row(
    ("config", "reason"),
    [
        ({"dev_cla": "door", "off_delay": 5}, "off_delay of this device class is not used"),
        ({"expire_after": "soon"}, "expire_after is not a number of seconds up to 31536000"),
    ],
)
def test_state_that_does_not_end_as_announced_is_a_problem(config: dict[str, Any], reason: str) -> None:
    found = one({"name": "thing", "state_topic": "s"} | config, "binary_sensor")
    assert [problem.reason for problem in found.problems] == [f"thing: {reason}"]
    assert len(found.devices) == 1


def test_what_is_not_understood_is_a_problem_with_its_reason() -> None:
    _, reasons = discovered("homeassistant")
    assert sorted(reasons) == [
        "temp01ae_c: the template '{{ now() }}' is not understood: the template has a call that is not supported",
    ]


def test_devices_of_zigbee2mqtt_are_not_announced_twice() -> None:
    devices, _ = discovered("homeassistant", "zigbee2mqtt")
    assert [identity for identity in devices if "00158d0001e82a4c" in identity] == ["zigbee2mqtt/0x00158d0001e82a4c"]


def test_an_empty_payload_withdraws_an_entity_and_the_last_one_the_device() -> None:
    known = Announcements(["homeassistant"], devices_max=10)
    config = {"stat_t": "a/t", "uniq_id": "t", "dev": {"ids": ["a"]}}
    other = {"stat_t": "a/h", "uniq_id": "h", "dev": {"ids": ["a"]}}
    known.read("", "homeassistant/sensor/t/config", json.dumps(config).encode())
    known.read("", "homeassistant/sensor/h/config", json.dumps(other).encode())
    (left,) = known.read("", "homeassistant/sensor/t/config", b"").devices
    assert [sensor.key for sensor in left.sensors] == ["h"]
    changes = known.read("", "homeassistant/sensor/h/config", b"")
    assert (changes.gone, changes.devices) == (["homeassistant/a"], [])


@each_row(
    ("template", "path"),
    [
        (None, ()),
        ("{{ value }}", ()),
        ("{{value|float}}", ()),
        ("{{ value_json.a }}", ("a",)),
        ("{{ value_json['a b'].c[0] | int(0) }}", ("a b", "c", 0)),
        ('{{- value_json["a"]["b"] | is_defined -}}', ("a", "b")),
        ("{{ value_json.t | float | round(1) }}", ("t",)),
        ("{{ value_json.t | default('') }}", ("t",)),
    ],
)
def test_templates_that_are_paths(template: str | None, path: tuple[object, ...]) -> None:
    assert value_place(template) == ValuePlace(path)


@each_row(
    "template",
    [
        "{{ states('sensor.x') }}",
        "{{ value_json.a.__class__() }}",
        "{{ value_json['a\\'] }}",
        "{{ value | float",
        "value",
        "",
        "{{ value_json" + ".a" * 1000 + " }}",
        7,
        ["{{ value }}"],
    ],
)
def test_other_templates_are_refused(template: object) -> None:
    with pytest.raises(ValueError, match="is not understood"):
        value_place(template)


def test_a_template_that_computes_is_that_of_the_rule() -> None:
    config = {"stat_t": "a", "dev_cla": "temperature", "val_tpl": "{{ value_json.f | float * 5 }}"}
    (device,) = one(config).devices
    (sensor,) = device.sensors
    assert sensor.table["template"] == config["val_tpl"] and sensor.table["optional"] is True
    assert readings(device, "a", b'{"f": "4.5"}') == ["22.5"]
    assert readings(device, "a", b'{"g": 1}') == []


def readings(device: Device, topic: str, payload: bytes) -> list[str]:
    """The values that the rules of a device read."""
    rules = [
        StreamRule(
            msgspec.convert(sensor.table, StreamTable), prefixes=PREFIXES, base_iri="http://e/", place=sensor.key
        )
        for sensor in device.sensors
    ]
    found = Mapping(rules).readings(topic, payload, retained=False, received=datetime(2030, 1, 1, tzinfo=UTC))
    return [lexical(one.value) if isinstance(one, Reading) else str(one) for one in found]


def test_command_templates() -> None:
    assert command_keys(None, None) == {"payload": "{value}", "values": None}
    simple = '{"brightness": {{ value | string }} }'
    assert command_keys(simple, None)["payload"] == '{"brightness": {value} }'
    assert command_keys("{{ value * 2 }}", None) == {"template": "{{ value * 2 }}"}
    modes = "{{ {'off': 0, 'heat': 1}[value] | default(0) }}"
    assert command_keys(modes, {"off": "off", "heat": "heat"}) == {"values": {"off": "0", "heat": "1"}}
    for template in ("{% raw %}", "{{ code }}", 3):
        with pytest.raises(ValueError, match="is not understood"):
            command_keys(template, None)


@each_row(
    ("config", "reason"),
    [
        ({"cmd_t": "a/#", "dev": {"ids": "a"}}, "a wildcard, a brace or a control character"),
        ({"cmd_t": "a/+/set", "dev": {"ids": "a"}}, "a wildcard, a brace or a control character"),
        ({"cmd_t": "a/{x}", "dev": {"ids": "a"}}, "a wildcard, a brace or a control character"),
        ({"cmd_t": "$SYS/x", "dev": {"ids": "a"}}, "starts with '$'"),
        ({"cmd_t": "a/../b", "dev": {"ids": "a"}}, "a level '.' or '..'"),
        ({"cmd_t": "a\u0000b", "dev": {"ids": "a"}}, "a wildcard, a brace or a control character"),
        ({"cmd_t": "a" * 600, "dev": {"ids": "a"}}, "1 to 512 bytes"),
        ({"cmd_t": 5, "dev": {"ids": "a"}}, "the topic is not a text"),
        ({"cmd_t": "homeassistant/switch/b/config", "dev": {"ids": "a"}}, "is not one of a device"),
        ({"cmd_t": "zigbee2mqtt/bridge/request/restart", "dev": {"ids": "a"}}, "is not one of a device"),
        ({"cmd_t": "a", "pl_on": "x" * 500, "dev": {"ids": "a"}}, "too long"),
        ({"cmd_t": "a", "pl_on": {"a": 1}, "dev": {"ids": "a"}}, "neither text, number nor boolean"),
        ({"cmd_t": "a", "stat_t": "b", "stat_on": "1", "stat_off": "1", "dev": {"ids": "a"}}, "means on and off"),
    ],
)
def test_hostile_commands_are_refused(config: dict[str, Any], reason: str) -> None:
    changes = one(config, "switch")
    assert [reason in problem.reason for problem in changes.problems] == [True], changes.problems
    if "stat_t" not in config:
        assert not changes.devices


def test_an_entity_without_device_is_a_device_of_its_own() -> None:
    (device,) = one({"stat_t": "a/b", "name": "Outside", "uniq_id": "x1", "unit_of_meas": "hPa"}).devices
    assert (device.identity, device.name, device.broker) == ("homeassistant/x1", "Outside", "home")
    assert device.sensors[0].kind == "property/outside"


@each_row("key", ["device_class", "state_class", "platform", "unique_id", "name", "~", "qos", "unit_of_measurement"])
@each_row("value", [{}, [], {"a": []}, 1e308, True])
@each_row("component", ["sensor", "binary_sensor", "light", "number"])
def test_a_key_of_another_type_ends_nothing(component: str, key: str, value: object) -> None:
    config = {"name": "a", "stat_t": "a/state", "cmd_t": "a/set", "unit_of_meas": "W", "ids": ["a"]} | {key: value}
    one(config, component)


def test_identifiers_and_options_that_are_numbers_are_their_texts() -> None:
    known = Announcements(["homeassistant"], devices_max=5)
    for number, ids in enumerate((17, [17], ["17"], "17")):
        config = {"unique_id": number, "state_topic": f"a/{number}", "device": {"identifiers": ids}}
        known.read("", f"homeassistant/sensor/{number}/config", json.dumps(config).encode())
    config = {
        "unique_id": "speed",
        "command_topic": "a/set",
        "options": [1, 2.5, "off", None, True],
        "device": {"identifiers": 17},
    }
    (device,) = known.read("", "homeassistant/select/speed/config", json.dumps(config).encode()).devices
    assert device.id == "17" and sorted(sensor.key for sensor in device.sensors) == ["0", "1", "2", "3"]
    (actuator,) = device.actuators
    assert actuator.command["values"] == {"1": "1", "2.5": "2.5", "off": "off", "true": "true"}


def test_a_sensor_that_several_radios_hear_is_read_at_all_of_them() -> None:
    config = {"stat_t": "+/+/BTtoMQTT/A4C1380D2B77", "val_tpl": "{{ value_json.tempc }}", "dev_cla": "temperature"}
    (device,) = one(config | {"uniq_id": "A4C1380D2B77-tempc", "dev": {"ids": ["A4C1380D2B77"]}}).devices
    assert device.sensors[0].table["topic"] == "+/+/BTtoMQTT/A4C1380D2B77"
    check_record(device)
    rules = [
        StreamRule(msgspec.convert(rule["stream"], StreamTable), prefixes=PREFIXES, base_iri="http://e/", place=path)
        for path, rule in Registry("http://e/").rules(device).items()
    ]
    read = [
        reading
        for radio in ("home/kitchen", "home/shed", "home/kitchen/x")
        for reading in Mapping(rules).readings(
            f"{radio}/BTtoMQTT/A4C1380D2B77",
            b'{"tempc": 21.5}',
            retained=False,
            received=datetime.now(UTC),
            births=Births(),
        )
    ]
    assert [isinstance(reading, Reading) and reading.stream.sensor for reading in read] == (
        ["<http://e/sensor/homeassistant/A4C1380D2B77/A4C1380D2B77-tempc>"] * 2
    )


@each_row(
    "topic", ["+/+/+", "+/a", "+", "a/+b/c", "a/#", "$SYS/+/a", "a//+", "/".join(["a", "b", *"+" * 40]), "+/a/../b"]
)
def test_filters_that_are_too_wide_are_refused(topic: str) -> None:
    changes = one({"stat_t": topic, "uniq_id": "x"})
    assert not changes.devices and len(changes.problems) == 1, topic


def test_commands_have_no_wildcards() -> None:
    changes = one({"cmd_t": "a/+/b", "stat_t": "a/+/b/state", "uniq_id": "x"}, "switch")
    assert [sensor.key for device in changes.devices for sensor in device.sensors] == ["x"]
    assert not changes.devices[0].actuators and "a wildcard" in changes.problems[0].reason


def test_prefixes_of_discovery_are_those_of_the_settings() -> None:
    known = Announcements(formats_of(["homeassistant"], ["ha", "my/own"]), devices_max=5)
    assert known.filters == ["ha/+/+/config", "ha/+/+/+/config", "my/own/+/+/config", "my/own/+/+/+/config"]
    config = {"stat_t": "a/t", "uniq_id": "t", "dev": {"ids": ["a"]}}
    for topic, covered in (
        ("ha/sensor/t/config", True),
        ("my/own/sensor/node/t/config", True),
        ("homeassistant/sensor/t/config", False),
        ("my/sensor/t/config", False),
        ("ha/config", False),
    ):
        assert known.covers(topic) is covered, topic
        changes = known.read(topic, topic, json.dumps(config | {"dev": {"ids": [topic]}}).encode())
        assert bool(changes.devices) is covered
    config = {"cmd_t": "ha/switch/x/config", "uniq_id": "u", "dev": {"ids": ["u"]}}
    changes = known.read("", "ha/switch/u/config", json.dumps(config).encode())
    assert not changes.devices and "is not one of a device" in changes.problems[0].reason
