"""Formats of announcements by their documentation: what devices have, say and are told, and fuzzed messages.

What a message says is written down here a second time, from the documentation of each ecosystem.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from random import Random
from typing import Any

import pytest

from lamplighter.adapters.mapping import units
from lamplighter.adapters.mqtt.discovery.announcements import FORMATS, Announcements
from lamplighter.adapters.mqtt.discovery.measured import _QUANTITIES, _UNITS, meaning
from tests.support.amounts import Amounts
from tests.support.announced_readings import devices_of, mapping_of, sent, values_of
from tests.support.announcements import announcements
from tests.support.mutations import mutated
from tests.support.tables import each_row

NAMES = (
    "homie", "homie5", "chirpstack", "thethings", "rtl433", "theengs", "wled", "opendtu", "ahoydtu", "evcc", "victron",
)  # fmt: skip
UPLINK = "application/5f7a1c1e-7d0f-4a5e-9f51-0a5b1f1d2c3b/device/a84041000181c061/event/up"
BOILER, GREENHOUSE = "homie/boiler-room/heating", "homie/5/greenhouse-1"
GX = "victron/c0619ab1c2d3_system_0~4086cf114914"
Row = tuple[str, str, str, str]
SAID: dict[str, list[Row]] = {
    "homie": [
        ("homie/boiler-room/heating.flow-temperature", f"{BOILER}/flow-temperature", "48.5", "48.5"),
        ("homie/boiler-room/heating.mode", f"{BOILER}/mode", "eco", "eco"),
        ("homie/boiler-room/heating.pump", f"{BOILER}/pump", "true", "true"),
        ("homie/boiler-room/door.bell", "homie/boiler-room/door/bell", "ring", "ring"),
    ],
    "homie5": [
        ("homie5/greenhouse-1/climate.temperature", f"{GREENHOUSE}/climate/temperature", "-3.5", "-3.5"),
        ("homie5/greenhouse-1/vent.power", f"{GREENHOUSE}/vent/power", "false", "false"),
        ("homie5/greenhouse-1/vent.knob", f"{GREENHOUSE}/vent/knob", "double", "double"),
    ],
    "wled": [
        ("wled/a1b2c3/light", "wled/a1b2c3/g", "7", "true"),
        ("wled/a1b2c3/light", "wled/a1b2c3/g", "0", "false"),
        ("wled/a1b2c3/brightness", "wled/a1b2c3/g", "255", "255"),
        ("wled/a1b2c3/color", "wled/a1b2c3/c", "#0000FF", "#0000FF"),
    ],
    "opendtu": [
        ("opendtu/116183211204/0.power", "solar/116183211204/0/power", "301.5", "301.5"),
        ("opendtu/116183211204/status.producing", "solar/116183211204/status/producing", "0", "false"),
    ],
    "victron": [
        (
            f"{GX}/Dc.Battery.Soc",
            "N/c0619ab1c2d3/system/0/Dc/Battery/Soc",
            '{"value": 81.5}',
            "81.5",
        ),
        (
            f"{GX}/Relay.0.State",
            "N/c0619ab1c2d3/system/0/Relay/0/State",
            '{"value": 1}',
            "true",
        ),
    ],
    "ahoydtu": [("ahoydtu/HM-600/ch0.P_AC", "inverter/HM-600/ch0/P_AC", "0.0", "0.0")],
    "evcc": [
        ("evcc/site/grid.power", "evcc/site/grid/power", "-12.5", "-12.5"),
        ("evcc/loadpoints_1~786bb5f7395e/connected", "evcc/loadpoints/1/connected", "true", "true"),
        ("evcc/loadpoints_1~786bb5f7395e/mode", "evcc/loadpoints/1/mode", "minpv", "minpv"),
    ],
}
"""Sensor, topic, payload and value, of formats with a topic for each value."""
BRIGHT = {str(level) for level in range(1, 256)}
MEMBERS: dict[str, list[tuple[str, tuple[str | int, ...], str | None]]] = {
    "chirpstack": [
        ("chirpstack/a84041000181c061/temperature", ("object", "temperature"), "°C"),
        ("chirpstack/a84041000181c061/tamper", ("object", "tamper"), None),
        ("chirpstack/a84041000181c061/rxInfo.0.rssi", ("rxInfo", 0, "rssi"), "dBm"),
        ("chirpstack/a84041000181c061/batteryLevel", ("batteryLevel",), "%"),
    ],
    "thethings": [
        ("thethings/70b3d57ed0051c22/humidity", ("uplink_message", "decoded_payload", "humidity"), "%"),
        ("thethings/70b3d57ed0051c22/text", ("uplink_message", "decoded_payload", "text"), None),
    ],
    "rtl433": [
        ("rtl433/Acurite-Tower-11524-A/temperature_C", ("temperature_C",), "°C"),
        ("rtl433/Acurite-Tower-11524-A/humidity", ("humidity",), "%"),
        ("rtl433/Bresser-7in1-50412/temperature_F", ("temperature_F",), "°F"),
        ("rtl433/Bresser-7in1-50412/wind_avg_m_s", ("wind_avg_m_s",), "m/s"),
        ("rtl433/Honeywell-Security-291004-8/state", ("state",), None),
    ],
    "theengs": [
        ("theengs/A4C138A1B2C3/tempc", ("tempc",), "°C"),
        ("theengs/C47C8D6A5B4C/moi", ("moi",), "%"),
    ],
}
"""Sensor, path in the message of its device, and unit, of formats with JSON messages."""


@pytest.mark.parametrize("name", SAID)
def test_what_a_topic_says(name: str) -> None:
    devices, problems = devices_of(announcements(name))
    assert not problems
    mapping = mapping_of(devices.values())
    for sensor, topic, payload, value in SAID[name]:
        values, refused = values_of(mapping, topic, payload.encode())
        assert (values.get(sensor), refused) == (value, 0), sensor


@pytest.mark.parametrize("name", MEMBERS)
def test_what_a_message_says(name: str) -> None:
    messages = list(announcements(name))
    devices, problems = devices_of(messages)
    assert not problems
    mapping = mapping_of(devices.values())
    for sensor, path, unit in MEMBERS[name]:
        found = [(values_of(mapping, *message)[0], message) for message in messages]
        ((said, true),) = [
            (values[sensor], member(json.loads(message[1]), path)) for values, message in found if sensor in values
        ]
        assert same(said, true), sensor
        tables = [one.table for device in devices.values() for one in device.sensors]
        (table,) = [table for table in tables if table["sensor"] == f"sensor/{sensor}"]
        assert table.get("unit") == unit


@each_row(
    ("name", "identity", "key", "state", "message"),
    [
        ("homie", "homie/boiler-room", "heating.mode", "comfort", (f"{BOILER}/mode/set", "comfort")),
        ("homie", "homie/boiler-room", "heating.pump", "false", (f"{BOILER}/pump/set", "false")),
        ("homie5", "homie5/greenhouse-1", "vent.position", "35", (f"{GREENHOUSE}/vent/position/set", "35")),
        ("homie5", "homie5/greenhouse-1", "vent.light", "true", (f"{GREENHOUSE}/vent/light/set", "true")),
        ("wled", "wled/a1b2c3", "light", "true", ("wled/a1b2c3", "ON")),
        ("wled", "wled/a1b2c3", "brightness", "99", ("wled/a1b2c3", "99")),
        ("wled", "wled/a1b2c3", "color", "#00ff00", ("wled/a1b2c3/col", "#00ff00")),
        ("opendtu", "opendtu/116183211204", "limit", "60",
         ("solar/116183211204/cmd/limit_nonpersistent_relative", "60")),
        ("evcc", "evcc/loadpoints_1~786bb5f7395e", "mode", "now", ("evcc/loadpoints/1/mode/set", "now")),
        ("victron", GX, "Relay.0.State", "true",
         ("W/c0619ab1c2d3/system/0/Relay/0/State", '{"value": 1}')),
        ("evcc", "evcc/site", "prioritySoc", "40", ("evcc/site/prioritySoc/set", "40")),
    ],
)  # fmt: skip
def test_what_devices_are_told(name: str, identity: str, key: str, state: str, message: tuple[str, str]) -> None:
    devices, _ = devices_of(announcements(name))
    assert sent(devices[identity], key, state) == message


@each_row(
    ("name", "identity", "online", "offline"),
    [
        ("homie", "homie/boiler-room", ("homie/boiler-room/$state", "ready"), ("homie/boiler-room/$state", "lost")),
        ("homie5", "homie5/greenhouse-1", (f"{GREENHOUSE}/$state", "sleeping"), (f"{GREENHOUSE}/$state", "lost")),
        ("wled", "wled/a1b2c3", ("wled/a1b2c3/status", "online"), ("wled/a1b2c3/status", "offline")),
        ("opendtu", "opendtu/116183211204", ("solar/dtu/status", "online"),
         ("solar/116183211204/status/reachable", "0")),
        ("ahoydtu", "ahoydtu/HM-600", ("inverter/HM-600/available", "1"), ("inverter/mqtt", "not connected")),
        ("evcc", "evcc/site", ("evcc/status", "online"), ("evcc/status", "offline")),
    ],
)  # fmt: skip
def test_whether_devices_are_online(
    name: str, identity: str, online: tuple[str, str], offline: tuple[str, str]
) -> None:
    availability = devices_of(announcements(name))[0][identity].availability
    assert availability is not None
    for (topic, word), key in ((online, "on"), (offline, "off")):
        (table,) = [one for one in availability.topics if one["topic"] == topic]
        assert word in table[key]


@each_row(
    ("topic", "payload", "reason"),
    [
        (UPLINK, {"object": {}}, "deviceInfo.devEui is not that of the topic"),
        ("v3/a@b/devices/c/up", {"end_device_ids": {"device_id": "d"}}, "device_id is not that of the topic"),
        ("rtl_433/h/events", {"id": 1}, "model is missing"),
        ("rtl_433/h/events", {"model": "X", "t": 1}, "neither id nor channel"),
        ("homie/5/x/$description", {"homie": "4.0", "nodes": {}}, "homie is not a version"),
        ("homie/5/x/$description", {"homie": "5.0", "nodes": []}, "nodes is not an object"),
        ("homie/x/a/b/$datatype", "y" * 2_000, "more than 1000 bytes"),
        ("homie/x y/$homie", "4.0", "an identifier that Homie does not permit"),
    ],
)
def test_messages_that_cannot_be_read(topic: str, payload: Any, reason: str) -> None:
    data = payload.encode() if isinstance(payload, str) else json.dumps(payload).encode()
    changes = Announcements(FORMATS, devices_max=5).read("", topic, data)
    assert [reason in problem.reason for problem in changes.problems] == [True]


@each_row(
    ("topic", "payload", "told"),
    [
        (UPLINK, {"deviceInfo": {"devEui": "a84041000181c061"}, "data": "AQ=="}, "has no codec"),
        ("v3/a@b/devices/c/up", {"end_device_ids": {"device_id": "c"}, "uplink_message": {"frm_payload": "AQ=="}},
         "no payload formatter"),
        ("homie/5/x/$description", {"homie": "5.0", "nodes": {"n": {"properties": {"p": {"datatype": "json"}}}}},
         "n.p: the property of the type json"),
    ],
)  # fmt: skip
def test_what_is_not_decoded_is_told(topic: str, payload: Any, told: str) -> None:
    changes = Announcements(FORMATS, devices_max=5).read("", topic, json.dumps(payload).encode())
    assert told in str([problem.reason for problem in changes.left_out])


def test_an_unknown_bluetooth_device_is_left_alone() -> None:
    devices, problems = devices_of([("home/gw/BTtoMQTT/D0D1D2D3D4D5", b'{"id": "D0:D1", "rssi": -90}')])
    assert not devices and not problems


def test_a_device_that_two_radios_hear_is_one_device() -> None:
    messages = list(announcements("rtl433"))
    devices, problems = devices_of([*messages, ("rtl_433/other/events", messages[0][1])])
    assert len(devices) == len(messages) and not problems


def test_a_value_that_changes_its_kind_changes_the_device_once() -> None:
    known = Announcements(FORMATS, devices_max=5)
    changes = [
        known.read("", "rtl_433/h/events", json.dumps({"model": "X", "id": 1, "level": level}).encode())
        for level in (1, "low", 2, "high", 3, True, None, 4)
    ]
    assert [len(one.devices) for one in changes] == [1, 1, 0, 0, 0, 0, 0, 0]
    (sensor,) = changes[1].devices[0].sensors
    assert sensor.table["payload"] == "text"


@each_row(
    ("first", "then", "kind", "payload"),
    [
        ({"temperature_C": 21.5}, {"temperature_C": "error"}, "gateway:temperature", "number"),
        ({"temperature_C": "error"}, {"temperature_C": 21.5}, "gateway:temperature", "number"),
        ({"occupied": "?"}, {"occupied": True}, "gateway:occupancy", "boolean"),
        ({"mode": 1}, {"mode": "eco"}, "property/mode", "text"),
    ],
)
def test_an_odd_payload_makes_no_texts_of_a_usual_value(first: Any, then: Any, kind: str, payload: str) -> None:
    event = {"model": "X", "id": 1}
    messages = [("rtl_433/h/events", json.dumps(event | one).encode()) for one in (first, then)]
    (device,) = devices_of(messages)[0].values()
    (sensor,) = device.sensors
    assert (sensor.kind, sensor.table["payload"]) == (kind, payload)


def test_the_parts_of_a_device_have_one_order() -> None:
    names = ("residualPower", "prioritySoc", "bufferSoc", "gridPower")
    (device,) = devices_of([(f"evcc/site/{name}", b"1") for name in names])[0].values()
    assert [one.key for one in device.actuators] == ["bufferSoc", "prioritySoc", "residualPower"]


def test_a_homie_device_is_withdrawn_with_its_description() -> None:
    known = Announcements(FORMATS, devices_max=5)
    (topic, payload), *_ = announcements("homie5")
    known.read("", topic, payload)
    assert known.read("", topic, b"").gone == ["homie5/greenhouse-1"]


def test_units_of_usual_names_are_known() -> None:
    codes = {*_UNITS.values(), *(unit for _, unit in _QUANTITIES.values() if unit)}
    assert {code for code in codes if units.qudt(code) is None} == set()


@each_row(
    ("name", "payload", "kind", "unit"),
    [
        ("temperature_C", "number", "gateway:temperature", "°C"),
        ("temperature2", "number", "gateway:temperature", "°C"),
        ("flow-temperature", "number", "gateway:temperature", "°C"),
        ("pm2_5", "number", "gateway:pm25", "µg/m³"),
        ("BatV", "number", "gateway:voltage", "V"),
        ("wind_avg_km_h", "number", "gateway:windSpeed", "km/h"),
        ("waterLeak", "boolean", "gateway:leak", None),
        ("door_open", "number", "gateway:contact", None),
        ("frobnicated", "number", "property/frobnicated", None),
    ],
)
def test_usual_names(name: str, payload: Any, kind: str, unit: str | None) -> None:
    found = meaning(name, payload)
    assert (found.kind, found.unit) == (kind, unit)


@pytest.mark.parametrize("name", NAMES)
def test_fuzzed_messages_give_no_wrong_value(name: str, amounts: Amounts) -> None:
    seed = random.randrange(2**32)
    chance = Random(seed)
    messages = list(announcements(name))
    mapping = mapping_of(devices_of(messages)[0].values())
    for case in range(amounts.of(6_000)):
        topic, payload = chance.choice(messages)
        payload = mutated(payload, chance)
        about = seed, case, topic, payload
        changed = [one for one in messages if one[0] != topic] + [(topic, payload)]
        if case % 20 == 0:  # any announcement makes rules that can be used
            mapping_of(devices_of(changed)[0].values())
        if topic.count("$"):
            continue
        values, _ = values_of(mapping, topic, payload)
        for sensor, path, _ in MEMBERS.get(name, ()):
            if sensor in values:
                assert same(values[sensor], member(json.loads(payload, parse_float=Decimal), path)), about
        if name == "victron":
            text = str(json.loads(payload, parse_float=Decimal)["value"]) if values else ""
        elif name in SAID:
            text = payload.decode(errors="replace").strip()
        if name in SAID:
            for sensor, said in values.items():
                # Each brightness but 0 is a lamp that is on.
                true = "1" if sensor == "wled/a1b2c3/light" and text in BRIGHT else text
                assert same(said, true), (about, sensor, said)


def member(document: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        document = document[step]
    return document


def same(said: str, true: Any) -> bool:
    """Whether a value is what a message has: a boolean, a number or a text."""
    if said in ("true", "false"):
        return str(true).strip().lower() in (("true", "1", "on") if said == "true" else ("false", "0", "off"))
    try:
        return Decimal(said) == Decimal(true) or said == str(true)
    except (InvalidOperation, TypeError, ValueError):
        return said.strip() == str(true).strip()


def _topics() -> Iterator[str]:
    for name in NAMES:
        yield from (topic for topic, _ in announcements(name))


def test_no_other_format_takes_a_message() -> None:
    for topic in _topics():
        assert sum(one.covers(topic) for one in FORMATS.values()) <= 1, topic
