from __future__ import annotations

import json
from typing import Any

import msgspec
from paho.mqtt.client import topic_matches_sub

from lamplighter.adapters.devices.device import Device
from lamplighter.adapters.devices.draft import ACTUATORS_MAX, SENSORS_MAX
from lamplighter.adapters.devices.stored import check_record
from lamplighter.adapters.mapping import CommandTable, command_rule
from lamplighter.adapters.mapping.lamp_commands import command_messages
from lamplighter.adapters.mqtt.discovery.announcements import Announcements
from lamplighter.engine.terms import literal
from tests.support.announced_readings import devices_of, mapping_of, sent, values_of
from tests.support.announcements import announced_devices, announcements
from tests.support.tables import each_row


def devices() -> dict[str, Device]:
    return {device.identity: device for device in announced_devices("shelly")}


def test_the_first_generation_is_learnt_from_its_topics() -> None:
    switch = devices()["shelly/98F4ABB929CC"]
    assert (switch.name, switch.model) == ("shellyswitch25-B929CC", "SHSW-25")
    tables = {sensor.key: sensor.table for sensor in switch.sensors}
    assert set(tables) == {"relay.0", "relay.0.power", "relay.0.energy", "temperature"}
    assert (tables["relay.0.energy"]["unit"], tables["relay.0.energy"]["scale"]) == ("J", 60)
    (relay,) = switch.actuators
    assert relay.command["topic"] == "shellies/shellyswitch25-B929CC/relay/0/command"
    assert relay.command["values"]["true"] == "on"
    assert switch.availability is not None
    assert switch.availability.topics[0]["topic"] == "shellies/shellyswitch25-B929CC/online"


def test_later_generations_are_learnt_from_notifications() -> None:
    plug = devices()["shelly/A8032ABE54DC"]
    members = {sensor.key: sensor.table["member"] for sensor in plug.sensors}
    assert members == {
        "switch.0.output": "params.switch:0.output",
        "switch.0.apower": "params.switch:0.apower",
        "switch.0.voltage": "params.switch:0.voltage",
        "switch.0.aenergy.total": "params.switch:0.aenergy.total",
        "switch.0.temperature.tC": "params.switch:0.temperature.tC",
    }
    (relay,) = plug.actuators
    assert relay.command["topic"] == "shellyplus1pm-a8032abe54dc/rpc"
    call = relay.command["payload"].replace("{value}", relay.command["values"]["true"])
    assert json.loads(call) == {"id": 1, "src": "lamplighter", "method": "Switch.Set", "params": {"id": 0, "on": True}}


def test_a_prefix_may_have_two_levels_and_is_not_the_identity() -> None:
    climate = devices()["shelly/08B61FCB7F3C"]
    assert {sensor.kind for sensor in climate.sensors} == {
        "gateway:temperature",
        "gateway:humidity",
        "gateway:battery",
        "gateway:voltage",
    }
    assert climate.availability is not None
    assert climate.availability.topics[0]["topic"] == "garden/sensor/online"


def test_a_cover_is_opened_by_calls() -> None:
    status = {"cover:0": {"id": 0, "state": "open", "current_pos": 70}}
    message = {"src": "shellyplus2pm-5443b23d81f8", "method": "NotifyStatus", "params": status}
    known = Announcements(["shelly"], devices_max=10)
    (cover,) = known.read("", "blind/events/rpc", json.dumps(message).encode()).devices
    commands = {actuator.kind: actuator.command for actuator in cover.actuators}
    assert json.loads(commands["gateway:cover"]["values"]["STOP"])["method"] == "Cover.Stop"
    assert '"pos": {value}' in commands["gateway:position"]["payload"]


def test_a_second_device_cannot_take_a_prefix_over() -> None:
    known = Announcements(["shelly"], devices_max=10)
    for topic, payload in announcements("shelly"):
        known.read("", topic, payload)
    forged = {"id": "shellyswitch25-B929CC", "model": "SHSW-25", "mac": "000000000001"}
    changes = known.read("", "shellies/announce", json.dumps(forged).encode())
    assert not changes.devices and not changes.gone
    assert "as another device than before" in changes.problems[0].reason
    status = {"src": "shellyplus1pm-000000000001", "method": "NotifyStatus", "params": {"switch:0": {"output": True}}}
    changes = known.read("", "shellyplus1pm-a8032abe54dc/events/rpc", json.dumps(status).encode())
    assert not changes.devices and not changes.gone
    assert "as another device than before" in changes.problems[0].reason


def test_the_same_device_on_another_prefix_is_refused_while_the_first_is_known() -> None:
    known = Announcements(["shelly"], devices_max=10)
    for topic, payload in announcements("shelly"):
        known.read("", topic, payload)
    status = {"src": "shellyplus1pm-a8032abe54dc", "method": "NotifyStatus", "params": {"switch:0": {"output": True}}}
    changes = known.read("", "elsewhere/events/rpc", json.dumps(status).encode())
    assert not changes.devices
    assert "already of this device" in changes.problems[0].reason


def test_newer_devices_that_answer_like_old_ones_and_events_are_passed_over() -> None:
    known = Announcements(["shelly"], devices_max=10)
    newer = {"id": "shellyplus1-a8032abe54dc", "mac": "A8032ABE54DC", "gen": 2}
    event = {"src": "shellyplus1-a8032abe54dc", "method": "NotifyEvent", "params": {"events": []}}
    relay = "shellies/shellyplus1-a8032abe54dc/relay/0"
    for topic, payload in (
        ("shellies/announce", json.dumps(newer)),
        ("shellyplus1-a8032abe54dc/events/rpc", json.dumps(event)),
        (relay, "on"),
    ):
        changes = known.read("", topic, payload.encode())
        assert not changes.devices and not changes.problems


def test_messages_that_are_no_notifications_are_problems() -> None:
    known = Announcements(["shelly"], devices_max=10)
    assert known.read("", "a/events/rpc", b"{").problems
    message = {"src": "#", "method": "NotifyStatus", "params": {"switch:0": {"output": True}}}
    assert known.read("", "a/events/rpc", json.dumps(message).encode()).problems
    assert known.read("", "shellies/announce", b'{"id": "+", "mac": "98F4ABB929CC"}').problems
    assert known.read("", "shellies/b/announce", b'{"id": "a", "mac": "98F4ABB929CC"}').problems
    assert known.read("", "shellies/announce", b'{"id": "a", "mac": "#"}').problems


def test_code_of_a_failed_measurement_is_no_value() -> None:
    known = Announcements(["shelly"], devices_max=10)
    about = {"id": "shellyht-A4C1", "model": "SHHT-1", "mac": "98F4ABA4C1D2", "new_fw": False}
    known.read("", "shellies/shellyht-A4C1/announce", json.dumps(about).encode())
    (sensed,) = known.read("", "shellies/shellyht-A4C1/sensor/temperature", b"999.0").devices
    assert [sensor.table["no_value"] for sensor in sensed.sensors] == [["999"]]


def test_prefixes_have_up_to_eight_levels() -> None:
    status = {"src": "shellyplus1-a8032abe54dc", "method": "NotifyStatus", "params": {"switch:0": {"output": True}}}
    filters = Announcements(["shelly"], devices_max=10).filters
    for levels in range(1, 10):
        topic = f"{'/'.join('abcdefghi'[:levels])}/events/rpc"
        is_read = any(topic_matches_sub(one, topic) for one in filters)
        devices = Announcements(["shelly"], devices_max=10).read("", topic, json.dumps(status).encode()).devices
        assert is_read is bool(devices) is (levels <= 8), levels


def notification(method: str, **status: object) -> tuple[str, bytes]:
    message = {"src": "shellyplugs-a8032abe54dc", "method": method, "params": {"switch:0": {"id": 0, **status}}}
    return "plug/events/rpc", json.dumps(message).encode()


def test_device_keeps_what_it_had_in_an_earlier_run_until_it_tells_all() -> None:
    known = Announcements(["shelly"], devices_max=10)
    (before,) = known.read("", *notification("NotifyStatus", output=True, apower=9)).devices
    known = Announcements(["shelly"], devices_max=10)
    known.restore([before])
    (device,) = known.read("", *notification("NotifyStatus", apower=8)).devices
    assert device == before
    (device,) = known.read("", *notification("NotifyStatus", voltage=230)).devices
    assert {one.key for one in device.sensors} == {"switch.0.output", "switch.0.apower", "switch.0.voltage"}
    assert device.actuators == before.actuators
    (device,) = known.read("", *notification("NotifyFullStatus", apower=8)).devices
    assert {one.key for one in device.sensors} == {"switch.0.apower", "switch.0.voltage"}
    assert not device.actuators


def test_first_shelly_keeps_the_topics_of_an_earlier_run() -> None:
    before = devices()["shelly/98F4ABB929CC"]
    known = Announcements(["shelly"], devices_max=10)
    known.restore([before])
    about = {"id": "shellyswitch25-B929CC", "model": "SHSW-25", "mac": "98F4ABB929CC"}
    known.read("", "shellies/announce", json.dumps(about).encode())
    (device,) = known.read("", "shellies/shellyswitch25-B929CC/relay/0", b"on").devices or (None,)
    assert device in (None, before)
    assert (
        known.read("", "shellies/shellyswitch25-B929CC/relay/1", b"on").devices[0].actuators[0] == before.actuators[0]
    )


def test_device_keeps_of_an_earlier_run_what_a_record_has_room_for() -> None:
    def told(known: Announcements, first: int) -> Device:
        for number in range(first, first + 30):
            params = {f"switch:{number}": {"id": number, "output": True, "apower": 9}}
            message = {"src": "shellyplugs-a8032abe54dc", "method": "NotifyStatus", "params": params}
            (device,) = known.read("", "plug/events/rpc", json.dumps(message).encode()).devices
        check_record(device)
        return device

    before = told(Announcements(["shelly"], devices_max=10), 0)
    known = Announcements(["shelly"], devices_max=10)
    known.restore([before])
    device = told(known, 30)
    assert {one.key for one in device.sensors} > {f"switch.{number}.output" for number in (0, *range(30, 60))}
    assert len(device.sensors) == SENSORS_MAX and len(device.actuators) == ACTUATORS_MAX


LAMPS: dict[str, Any] = {
    "rgbw:0": {"id": 0, "output": True, "brightness": 40, "rgb": [255, 136, 0], "white": 10},
    "cct:1": {"id": 1, "output": False, "brightness": 80, "ct": 3500},
    "thermostat:0": {"id": 0, "enable": True, "target_C": 21.5, "current_C": 20.1, "output": True},
    "blutrv:200": {"id": 200, "target_C": 19, "current_C": 18.4, "pos": 30, "rssi": -60, "battery": 90},
    "bthomedevice:201": {"id": 201, "rssi": -70, "battery": 100, "packet_id": 7, "last_updated_ts": 1763628000},
}


def colored() -> Device:
    event = {"src": "shellyplusrgbwpm-0123456789AB", "method": "NotifyFullStatus", "params": LAMPS}
    devices, problems = devices_of([("strip/events/rpc", json.dumps(event).encode())])
    assert not problems
    return devices["shelly/0123456789AB"]


def test_colours_thermostats_and_radiators_of_later_generations() -> None:
    event = {"src": "shellyplusrgbwpm-0123456789AB", "method": "NotifyStatus", "params": LAMPS}
    values, refused = values_of(mapping_of([colored()]), "strip/events/rpc", json.dumps(event).encode())
    assert not refused
    assert {key.rpartition("/")[2]: value for key, value in values.items()} == {
        "rgbw.0.output": "true", "rgbw.0.brightness": "40", "rgbw.0.rgb.0": "255", "rgbw.0.rgb.1": "136",
        "rgbw.0.rgb.2": "0", "rgbw.0.white": "10", "cct.1.output": "false", "cct.1.brightness": "80",
        "cct.1.ct": "3500",
        "thermostat.0.enable": "true", "thermostat.0.target_C": "21.5", "thermostat.0.current_C": "20.1",
        "thermostat.0.output": "true", "blutrv.200.target_C": "19", "blutrv.200.current_C": "18.4",
        "blutrv.200.pos": "30",
        "blutrv.200.rssi": "-60", "blutrv.200.battery": "90", "bthomedevice.201.rssi": "-70",
        "bthomedevice.201.battery": "100",
    }  # fmt: skip


@each_row(
    ("key", "state", "method", "params"),
    [
        ("rgbw.0.color", "#ff8800", "RGBW.Set", {"id": 0, "rgb": [255, 136, 0]}),
        ("rgbw.0.white", "50", "RGBW.Set", {"id": 0, "white": 50}),
        ("rgbw.0.output", "true", "RGBW.Set", {"id": 0, "on": True}),
        ("cct.1.ct", "2700", "CCT.Set", {"id": 1, "ct": 2700}),
        ("cct.1.brightness", "10", "CCT.Set", {"id": 1, "brightness": 10}),
        ("thermostat.0.target_C", "22.5", "Thermostat.SetConfig", {"id": 0, "config": {"target_C": 22.5}}),
        ("thermostat.0.enable", "false", "Thermostat.SetConfig", {"id": 0, "config": {"enable": False}}),
        ("blutrv.200.target_C", "20", "BluTrv.Call",
         {"id": 200, "method": "Trv.SetTarget", "params": {"id": 0, "target_C": 20}}),
    ],
)  # fmt: skip
def test_calls_of_later_generations(key: str, state: str, method: str, params: dict[str, Any]) -> None:
    (command,) = [one.command for one in colored().actuators if one.key == key]
    table = msgspec.convert(command, CommandTable)
    rule = command_rule(table, prefixes={}, base_iri="http://e/", place=key)
    (message,) = command_messages([(rule, literal(state))])
    call = json.loads(message.payload)
    assert (message.topic, call["method"], call["params"]) == ("strip/rpc", method, params)


def test_a_colour_of_the_first_generation() -> None:
    announce = {"id": "shellyrgbw2-AABBCC", "mac": "8CAAB5AABBCC", "model": "SHRGBW2"}
    status = {"ison": True, "mode": "color", "red": 255, "green": 0, "blue": 0, "gain": 60}
    messages = [
        ("shellies/announce", json.dumps(announce).encode()),
        ("shellies/shellyrgbw2-AABBCC/color/0", b"on"),
        ("shellies/shellyrgbw2-AABBCC/color/0/status", json.dumps(status).encode()),
    ]
    devices, problems = devices_of(messages)
    device = devices["shelly/8CAAB5AABBCC"]
    assert not problems
    assert values_of(mapping_of([device]), *messages[2])[0] == {"shelly/8CAAB5AABBCC/color.0.status": "60"}
    assert sent(device, "color.0.status", "30") == ("shellies/shellyrgbw2-AABBCC/color/0/set", '{"gain": 30}')
    assert sent(device, "color.0", "true") == ("shellies/shellyrgbw2-AABBCC/color/0/set", '{"turn": "on"}')
    (color,) = [one for one in device.actuators if one.kind == "gateway:color"]
    assert color.command["payload"] == '{"red": {red}, "green": {green}, "blue": {blue}}'
