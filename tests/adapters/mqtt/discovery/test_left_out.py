"""Each key of an announcement is understood, harmless, or told as left out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from lamplighter.adapters.devices.device import Device, Problem
from lamplighter.adapters.devices.problems import REASON_CHARS_MAX, REASONS_MAX
from lamplighter.adapters.mapping import protobuf
from lamplighter.adapters.mqtt.discovery.announcements import FORMATS, Announcements
from lamplighter.adapters.mqtt.discovery.declared import Declared
from tests.support.announcements import announcements, zigbee_house
from tests.support.tables import each_row

NEW = "frobnicate"
Message = tuple[str, bytes]


def messages_of(name: str) -> list[Message]:
    """Announcements of a format, whose devices use all of them."""
    if name == "sparkplug":
        return [("spBv1.0/plant/NBIRTH/press", birth())]
    return list(announcements(name))


def birth(**properties: bytes) -> bytes:
    """One metric. properties: names with their values, as texts."""
    name = protobuf.bytes_field(1, b"speed") + protobuf.varint_field(4, 3) + protobuf.varint_field(10, 7)
    keys = b"".join(protobuf.bytes_field(1, key.encode()) for key in properties)
    values = b"".join(protobuf.bytes_field(2, protobuf.bytes_field(8, value)) for value in properties.values())
    return protobuf.bytes_field(2, name + protobuf.bytes_field(9, keys + values))


def left_out(*messages: Message, formats: tuple[str, ...] = tuple(FORMATS)) -> dict[str, list[str]]:
    """What is told at the end of each device, by identity or topic."""
    known = Announcements(formats, devices_max=100)
    lasting: dict[tuple[str, str], Problem] = {}
    for message in messages:
        for problem in known.read("", *message).left_out:
            key = problem.device or problem.topic, problem.about
            lasting.pop(key, None)
            if problem.reason:
                lasting[key] = problem
    told: dict[str, list[str]] = {}
    for (device, _), problem in lasting.items():
        told.setdefault(device, []).append(problem.reason)
    return told


def entity(component: str, **keys: Any) -> Message:
    config = {"uniq_id": "e", "dev": {"ids": ["d"]}} | keys
    return f"homeassistant/{component}/e/config", json.dumps(config).encode()


def only(reasons: Mapping[str, list[str]]) -> str:
    ((reason,),) = reasons.values()
    return reason.removeprefix("not used: ")


def device_of(message: Message) -> Device:
    (device,) = Announcements(FORMATS, devices_max=10).read("", *message).devices
    return device


def test_of_the_usual_announcements_nothing_else_is_left_out() -> None:
    told = {name: left_out(*messages_of(name)) for name in FORMATS}
    assert {name: reasons for name, reasons in told.items() if reasons} == {
        "zigbee2mqtt": {
            "zigbee2mqtt/0xa4c13895af2c1df3": ["not used: schedule: the value of the type list"],
            "zigbee2mqtt/0x00158d00cafe0001": ["not used: the device, which Zigbee2MQTT does not know"],
        }
    }


TOPIC_TREES = {
    "opendtu": "solar/116183211204/", "ahoydtu": "inverter/HM-600/", "evcc": "evcc/site/",
    "victron": "N/c0619ab1c2d3/system/0/",
}  # fmt: skip
"""Formats whose values have a topic each, and the beginning of the topics of a device."""
LEARNT = ("chirpstack", "rtl433", "theengs", "thethings")
"""Formats of which a new member is a value."""


@pytest.mark.parametrize("name", TOPIC_TREES)
def test_a_new_topic_is_told(name: str) -> None:
    reasons = left_out(*messages_of(name), (f"{TOPIC_TREES[name]}{NEW}/x", b'{"value": 1}'))
    assert NEW in str(reasons) and len(reasons) == 1
    assert not left_out(*messages_of(name), (f"other/{NEW}", b"1"))


@pytest.mark.parametrize("name", LEARNT)
def test_a_new_member_is_told_or_a_value(name: str) -> None:
    usual = messages_of(name)
    told = values = untold = 0
    for number, (topic, payload) in enumerate(usual):
        for changed in with_key(json.loads(payload)):
            messages = [*usual[:number], (topic, json.dumps(changed).encode()), *usual[number + 1 :]]
            known = Announcements(FORMATS, devices_max=20)
            found = [known.read("", *message) for message in messages]
            is_told = NEW in str([one.left_out for one in found])
            is_value = NEW in str([device.sensors for one in found for device in one.devices])
            told, values, untold = told + is_told, values + is_value, untold + (not is_told and not is_value)
    assert values >= 1 and untold == UNTOLD.get(name, 0), (told, values, untold)


@pytest.mark.parametrize("name", sorted(FORMATS.keys() - {*TOPIC_TREES, *LEARNT, "wled", "homie"}))
def test_a_new_key_of_any_object_is_told(name: str) -> None:
    """The mechanism for all formats: nothing has to be done for a key to be told, but for it to be harmless."""
    if name == "sparkplug":
        assert NEW in str(left_out(("spBv1.0/plant/NBIRTH/press", birth(frobnicate=b"1"))))
        return
    usual = messages_of(name)
    told = untold = 0
    for number, (topic, payload) in enumerate(usual):
        document = json.loads(payload) if payload[:1] in (b"{", b"[") else None
        for changed in with_key(document):
            messages = [*usual[:number], (topic, json.dumps(changed).encode()), *usual[number + 1 :]]
            told += (found := NEW in str(left_out(*messages)))
            untold += not found
    assert told >= 3, told
    # Descriptions of what is harmless: the coordinator and disabled devices, components, settings of other systems.
    assert untold == UNTOLD.get(name, 0), (told, untold)


UNTOLD = {"zigbee2mqtt": 10, "homeassistant": 5, "shelly": 8, "chirpstack": 7, "thethings": 7, "theengs": 1}
"""Objects in which a new key says nothing: of devices that are not used, and within keys that are harmless."""


def with_key(document: Any) -> Iterator[Any]:
    """The document with a new key in each of its objects, one at a time."""
    if isinstance(document, dict):
        yield document | {NEW: "x"}
        for name, value in document.items():
            for changed in with_key(value):
                yield document | {name: changed}
    elif isinstance(document, list):
        for number, value in enumerate(document):
            for changed in with_key(value):
                yield [*document[:number], changed, *document[number + 1 :]]


def test_a_key_is_read_by_asking_for_it() -> None:
    declared = Declared({"a": {"b": 1, "c": 2}, "d": [{"e": 1}], "f": None, "g": [None], "h": False})
    assert list(declared.omissions({"h"})) == ["a", "d"], "null and lists of it say nothing"
    declared.get("a").get("b")
    assert list(declared.omissions({"h"})) == ["a.c", "d"]
    assert [item["e"] for item in declared["d"]] == [1]
    assert declared.get("missing") is None and list(declared.omissions({"c"})) == ["h"]
    declared.settle()
    assert not list(declared.omissions(()))


@each_row(
    ("component", "keys", "reason"),
    [
        ("sensor", {"stat_t": "a", "lrst_val_tpl": "{{ value }}"}, "e: last_reset_value_template"),
        ("sensor", {"stat_t": "a", "json_attr_t": "a/attributes", "enc": "x"}, "e: enc, json_attributes_topic"),
        ("fan", {"cmd_t": "a", "osc_cmd_t": "a/osc"}, "e: oscillation_command_topic"),
        ("climate", {"mode_cmd_t": "a", "temp_hi_cmd_t": "a/high"}, "e: temperature_high_command_topic"),
        ("switch", {"cmd_t": "a", "dev": {"ids": ["d"], "colour": "red"}}, "e: device.colour"),
        ("switch", {"cmd_t": "a", "avty": [{"t": "x", "pl": 1}]}, "e: availability.payload"),
    ],
)
def test_a_part_of_an_entity_that_is_not_used_is_told(component: str, keys: dict[str, Any], reason: str) -> None:
    assert only(left_out(entity(component, **keys))) == reason


def test_keys_that_entities_share_are_left_out_if_none_uses_them() -> None:
    entities = {"a": {"p": "sensor", "uniq_id": "a", "val_tpl": "{{ value_json.a }}", "what": 1}}
    document = {"dev": {"ids": ["d"]}, "o": {"name": "x"}, "stat_t": "d", "pl_on": "1", "cmps": entities}
    topic = "homeassistant/device/d/config"
    assert only(left_out((topic, json.dumps(document).encode()))) == "a: what; payload_on"
    entities["b"] = {"p": "binary_sensor", "uniq_id": "b", "val_tpl": "{{ value_json.b }}"}
    assert only(left_out((topic, json.dumps(document).encode()))) == "a: what"


def test_what_is_told_ends_with_its_announcement() -> None:
    known = Announcements(FORMATS, devices_max=10)
    topic, payload = entity("switch", cmd_t="a", what=1)
    (problem,) = known.read("home", topic, payload).left_out
    assert (problem.source, problem.broker, problem.topic) == ("homeassistant", "home", topic)
    assert (problem.device, problem.about) == ("homeassistant/d", "left out 1")
    assert not known.read("home", topic, payload).left_out, "nothing has changed"
    other = entity("switch", cmd_t="a", another=1)[1]
    assert [one.reason for one in known.read("home", topic, other).left_out] == ["not used: e: another"]
    (ended,) = known.read("home", topic, entity("switch", cmd_t="a")[1]).left_out
    assert (ended.reason, ended.device, ended.about) == ("", problem.device, problem.about)
    known.read("home", topic, payload)
    assert [one.reason for one in known.read("home", topic, b"").left_out] == [""]


def test_what_is_told_of_a_device_is_bounded() -> None:
    keys = {f"key_with_a_long_name_{number:04}": 1 for number in range(5_000)}
    entities = {f"e{n}": {"p": "sensor", "uniq_id": f"e{n}", "stat_t": f"s{n}"} | keys for n in range(3)}
    payload = json.dumps({"dev": {"ids": ["d"]}, "cmps": entities}).encode()
    assert len(payload) > 65_536
    keys = dict(list(keys.items())[:300])
    entities = {f"e{n}": {"p": "sensor", "uniq_id": f"e{n}", "stat_t": f"s{n}"} | keys for n in range(5)}
    payload = json.dumps({"dev": {"ids": ["d"]}, "cmps": entities}).encode()
    (reasons,) = left_out(("homeassistant/device/d/config", payload)).values()
    assert len(reasons) <= REASONS_MAX
    assert all(len(reason) < REASON_CHARS_MAX + 20 for reason in reasons)


def test_a_device_without_any_part_is_told() -> None:
    (entry,) = json.loads(zigbee_house(1))[:1]
    entry["definition"]["exposes"] = []
    assert only(left_out(("zigbee2mqtt/bridge/devices", json.dumps([entry]).encode()))) == (
        "it has no value that can be read and no state that can be set"
    )


def test_an_announcement_that_waits_for_another_one_is_told() -> None:
    config, sensors = list(announcements("tasmota"))[:2]
    assert only(left_out(sensors)) == "its telemetry, until its configuration is announced"
    assert not left_out(sensors, config)
    assert only(left_out(("shellies/x/relay/0", b"on"))) == "its topics, until it announces itself"


@each_row(
    ("change", "reason"),
    [
        ({"swc": [0, -1]}, "switches (swc), but for those in the telemetry, without SetOption114"),
        ({"btn": [1, 0]}, "buttons (btn), which send nothing without SetOption73"),
        ({"if": 1}, "the speed of the fan (if)"),
        ({"sht": [[-90, 90, 3]]}, "the slats of shutters (sht)"),
        ({"so": {"4": 1, "17": 0, "30": 0}}, "so.4"),
        ({"rl": [1, 7]}, "relays of the kind 7 (rl)"),
        ({"lt_st": 3}, "the light (lt_st), since no relay is one"),
    ],
)
def test_what_a_tasmota_turns_on_and_is_not_read_is_told(change: dict[str, Any], reason: str) -> None:
    topic, payload = next(announcements("tasmota"))
    assert only(left_out((topic, json.dumps(json.loads(payload) | change).encode()))) == reason


def test_members_of_telemetry_that_are_no_numbers_are_told() -> None:
    config = next(announcements("tasmota"))
    sample = {"sn": {"Time": "x", "A": {"State": "open", "Odd": None, "B": {"C": {"D": 1}}, "L": [1, 2, 3, 4, 5]}}}
    topic = config[0].replace("/config", "/sensors")
    told = only(left_out(config, (topic, json.dumps(sample).encode())))
    assert told == "sensors: A.State; sensors: A.Odd, which has no value yet; sensors: A.B.C; sensors: A.L"


def test_topics_and_components_of_a_shelly_that_are_not_read_are_told() -> None:
    usual = list(announcements("shelly"))
    told = left_out(*usual, ("shellies/shellyswitch25-B929CC/longpush/0", b"1"))
    assert told == {"shelly/98F4ABB929CC": ["not used: topics: longpush/0"]}
    params = {"ts": 1.0, "dali:0": {"id": 0}, "switch:0": {"id": 0, "output": True, "phase": 2}, "wifi": {"rssi": -1}}
    event = {"src": "shellyx-000000000001", "method": "NotifyStatus", "params": params}
    assert only(left_out(("a/events/rpc", json.dumps(event).encode()))) == "dali:0, switch:0.phase"


def test_metrics_of_other_types_are_told() -> None:
    metric = protobuf.bytes_field(1, b"table") + protobuf.varint_field(4, 16) + protobuf.bytes_field(17, b"")
    payload = birth(engUnit=b"Hz", engHigh=b"50") + protobuf.bytes_field(2, metric)
    assert only(left_out(("spBv1.0/plant/NBIRTH/press", payload))) == "speed: property engHigh; table: data set"


# What scales, bounds and modes mean


def test_a_cover_whose_numbers_are_not_percent() -> None:
    message = entity("cover", cmd_t="c", pos_t="c/pos", set_pos_t="c/pos/set", pos_open=0, pos_clsd=255)
    device = device_of(message)
    (position,) = [one for one in device.actuators if one.kind == "gateway:position"]
    assert (position.minimum, position.maximum) == (0, 100)
    assert position.state is not None and position.state["unit"] == "%"
    for table in (position.command, position.state):
        assert (255 * table["scale"] + table["offset"], table["offset"]) == (pytest.approx(0, abs=1e-9), 100)
    assert position.state["digits"] == 0 and not left_out(message)


def test_a_cover_with_words_of_its_own_tells_the_usual_ones() -> None:
    message = entity("cover", cmd_t="c", stat_t="c/s", stat_open="auf", stat_clsd="zu")
    (state,) = device_of(message).sensors
    assert state.table["words"] == {
        "auf": "open",
        "opening": "opening",
        "zu": "closed",
        "closing": "closing",
        "stopped": "stopped",
    }


@each_row(
    ("keys", "unit", "bounds"),
    [
        ({"min_mireds": 150, "max_mireds": 500}, "mired", (150, 500)),
        ({"min_kelvin": 2000, "max_kelvin": 4000}, "mired", (250, 500)),
        ({"clr_temp_k": True, "min_kelvin": 2000, "max_kelvin": 6500}, "K", (2000, 6500)),
        ({"clr_temp_k": True, "min_mireds": 200, "max_mireds": 500}, "K", (2000, 5000)),
    ],
)
@pytest.mark.parametrize("schema", ["default", "json"])
def test_bounds_of_the_colour_temperature(
    schema: str, keys: dict[str, Any], unit: str, bounds: tuple[float, float]
) -> None:
    lamp: dict[str, Any] = {"schema": schema, "cmd_t": "l/set", "stat_t": "l"}
    topics = {"clr_temp_cmd_t": "l/t/set", "clr_temp_stat_t": "l/t"}
    lamp |= {"sup_clrm": ["color_temp"]} if schema == "json" else topics
    message = entity("light", **lamp, **keys)
    (warm,) = [one for one in device_of(message).actuators if one.kind == "gateway:colorTemperature"]
    assert (warm.minimum, warm.maximum) == bounds
    assert warm.state is not None and warm.state["unit"] == unit and not left_out(message)


def test_colours_and_effects_of_a_json_lamp() -> None:
    modes = ["hs", "color_temp", "rgbww"]
    message = entity("light", schema="json", cmd_t="l/set", stat_t="l", sup_clrm=modes, effect=True, fx_list=["fire"])
    device = device_of(message)
    members = {sensor.table["member"] for sensor in device.sensors}
    assert members >= {"color_mode", "effect", *(f"color.{part}" for part in ("h", "s", "r", "g", "b", "c", "w"))}
    (effect,) = [one for one in device.actuators if one.kind == "gateway:effect"]
    assert effect.command["payload"] == '{"state": "ON", "effect": {json}}'
    assert effect.command["values"] == {"fire": "fire"} and not left_out(message)


def test_a_fan_with_four_speeds_has_percent() -> None:
    message = entity("fan", cmd_t="f", pct_cmd_t="f/s/set", pct_stat_t="f/s", spd_rng_min=1, spd_rng_max=4)
    (speed,) = [one for one in device_of(message).actuators if one.kind == "gateway:fanSpeed"]
    assert (speed.command["scale"], speed.command.get("offset", 0)) == (25, 0)
    plain = entity("fan", cmd_t="f", pct_cmd_t="f/s/set", pct_stat_t="f/s")
    (speed,) = [one for one in device_of(plain).actuators if one.kind == "gateway:fanSpeed"]
    assert "scale" not in speed.command


@each_row("ends", [(5, 5), ("a", 100), (True, 100)])
def test_ends_that_are_no_range_are_a_problem(ends: tuple[Any, Any]) -> None:
    message = entity("cover", cmd_t="c", pos_t="c/pos", pos_open=ends[1], pos_clsd=ends[0])
    changes = Announcements(FORMATS, devices_max=10).read("", *message)
    assert ["position_closed and position_open are not two numbers" in one.reason for one in changes.problems] == [True]


def test_an_inverted_shutter_of_tasmota_and_a_wide_range_of_white() -> None:
    topic, payload = list(announcements("tasmota"))[-1]
    config = json.loads(payload) | {"sho": [1]}
    device = device_of((topic, json.dumps(config).encode()))
    (position,) = device.actuators
    assert position.state is not None
    for table in (position.command, position.state):
        assert (table["scale"], table["offset"]) == (-1, 100)
    strip = json.loads(list(announcements("tasmota"))[2][1])
    strip["so"] |= {"82": 1}
    message = list(announcements("tasmota"))[2][0], json.dumps(strip).encode()
    (warm,) = [one for one in device_of(message).actuators if one.key == "CT"]
    assert (warm.minimum, warm.maximum) == (200, 380)
