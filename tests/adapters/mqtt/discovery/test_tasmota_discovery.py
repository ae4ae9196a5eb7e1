from __future__ import annotations

import json
from typing import Any

import pytest
from paho.mqtt.client import topic_matches_sub

from lamplighter.adapters.devices.device import Device
from lamplighter.adapters.mqtt.discovery.announcements import Announcements
from lamplighter.adapters.mqtt.settings import COMMANDS
from tests.support.announced_readings import devices_of, mapping_of, values_of
from tests.support.announcements import announced_devices, announcements
from tests.support.tables import each_row


def devices() -> dict[str, Device]:
    return {device.name: device for device in announced_devices("tasmota")}


def test_a_plug_with_energy_and_climate() -> None:
    plug = devices()["Plug"]
    assert (plug.identity, plug.model) == ("tasmota/E09806F17F56", "Athom Plug V2")
    tables = {sensor.key: (sensor.kind, sensor.table["topic"], sensor.table.get("unit")) for sensor in plug.sensors}
    assert tables == {
        "POWER": ("gateway:switch", "stat/tasmota_F17F56/POWER", None),
        "Switch1": ("gateway:input", "tele/tasmota_F17F56/SENSOR", None),
        "ENERGY.Total": ("gateway:energy", "tele/tasmota_F17F56/SENSOR", "kWh"),
        "ENERGY.Power": ("gateway:power", "tele/tasmota_F17F56/SENSOR", "W"),
        "ENERGY.Voltage.0": ("gateway:voltage", "tele/tasmota_F17F56/SENSOR", "V"),
        "ENERGY.Voltage.1": ("gateway:voltage", "tele/tasmota_F17F56/SENSOR", "V"),
        "ENERGY.Current": ("gateway:current", "tele/tasmota_F17F56/SENSOR", "A"),
        "AM2301.Temperature": ("gateway:temperature", "tele/tasmota_F17F56/SENSOR", "C"),
        "AM2301.Humidity": ("gateway:humidity", "tele/tasmota_F17F56/SENSOR", "%"),
        "AM2301.DewPoint": ("gateway:dewPoint", "tele/tasmota_F17F56/SENSOR", "C"),
    }
    assert {sensor.key: sensor.table.get("member") for sensor in plug.sensors}[
        "ENERGY.Voltage.1"
    ] == "ENERGY.Voltage[1]"
    (relay,) = plug.actuators
    assert (relay.label, relay.command["topic"]) == ("Kettle", "cmnd/tasmota_F17F56/POWER")
    assert plug.availability is not None
    assert plug.availability.topics == (
        {"topic": "tele/tasmota_F17F56/LWT", "broker": "", "on": ["Online"], "off": ["Offline"]},
    )


def test_a_light_with_colours_and_another_full_topic() -> None:
    strip = {actuator.key: actuator for actuator in devices()["Strip"].actuators}
    assert {key: actuator.command["topic"] for key, actuator in strip.items()} == {
        "POWER": "home/strip/cmnd/POWER",
        "Dimmer": "home/strip/cmnd/Dimmer",
        "CT": "home/strip/cmnd/CT",
        "HSBColor": "home/strip/cmnd/HSBColor",
    }
    assert strip["POWER"].kind == "gateway:light"
    assert strip["Dimmer"].state is not None
    assert strip["Dimmer"].state["topic"] == "home/strip/stat/RESULT"


def test_two_relays_of_a_shutter_are_one_position() -> None:
    (position,) = devices()["Blinds"].actuators
    assert (position.kind, position.command["topic"]) == ("gateway:position", "cmnd/blinds/ShutterPosition1")


@pytest.mark.parametrize("name", ["Plug", "Blinds"])
def test_the_default_settings_permit_the_commands_of_devices_with_the_usual_full_topic(name: str) -> None:
    for actuator in devices()[name].actuators:
        assert any(topic_matches_sub(one, actuator.command["topic"]) for one in COMMANDS), actuator.command["topic"]


def test_several_relays_are_numbered() -> None:
    topic, payload = next(announcements("tasmota"))
    config = json.loads(payload) | {"rl": [1, 1, 0]}
    (device,) = Announcements(["tasmota"], devices_max=10).read("", topic, json.dumps(config).encode()).devices
    assert [one.command["topic"].rpartition("/")[2] for one in device.actuators] == ["POWER1", "POWER2"]


def test_telemetry_may_come_before_the_configuration() -> None:
    known = Announcements(["tasmota"], devices_max=10)
    config, sensors = list(announcements("tasmota"))[:2]
    assert not known.read("", *sensors).devices
    (plug,) = known.read("", *config).devices
    assert len(plug.sensors) == 10


@each_row(
    ("change", "reason"),
    [
        ({"mac": "000000000000"}, "another address than the topic"),
        ({"ft": None}, "no full topic"),
        ({"tp": ["cmnd"]}, "not three texts"),
        ({"t": "#"}, "wildcard"),
        ({"t": "$SYS", "ft": "%topic%/%prefix%/"}, "starts with '$'"),
        ({"ft": "%prefix%/%hostname%/", "hn": 5}, "needs %hostname%"),
    ],
)
def test_hostile_configurations_make_no_device(change: dict[str, Any], reason: str) -> None:
    topic, payload = next(announcements("tasmota"))
    changes = Announcements(["tasmota"], devices_max=10).read(
        "", topic, json.dumps(json.loads(payload) | change).encode()
    )
    assert not changes.devices
    assert any(reason in problem.reason for problem in changes.problems), changes.problems


def test_other_topics_are_problems() -> None:
    known = Announcements(["tasmota"], devices_max=10)
    assert known.read("", "tasmota/discovery/zz/config", b"{}").problems
    assert known.read("", "tasmota/discovery/E09806F17F56/config", b"[]").problems


def test_a_sensor_that_has_no_reading_yet_is_one() -> None:
    """Its sample has null then; what a member of the name is, is known."""
    config = next(iter(announcements("tasmota")))
    known = Announcements(["tasmota"], devices_max=1)
    address = config[0].split("/")[2]
    sample = {"sn": {"DS18B20": {"Id": "0008", "Temperature": None, "Odd": None}, "TempUnit": "F"}}
    known.read("", *config)
    (device,) = known.read("", f"tasmota/discovery/{address}/sensors", json.dumps(sample).encode()).devices
    measured = {sensor.key: (sensor.kind, sensor.table.get("unit")) for sensor in device.sensors}
    assert measured.pop("DS18B20.Temperature") == ("gateway:temperature", "F")
    assert not [key for key in measured if key.startswith("DS18B20")]


def test_buttons_and_switches_that_send_what_is_done_with_them() -> None:
    (topic, payload), (sample_topic, sample), *_ = announcements("tasmota")
    config = json.loads(payload)
    config |= {"btn": [1, 0], "swc": [1, 3], "so": config["so"] | {"73": 1, "114": 1}}
    messages = [(topic, json.dumps(config).encode()), (sample_topic, sample)]
    devices, problems = devices_of(messages)
    assert not problems
    mapping = mapping_of(devices.values())
    result = "stat/tasmota_F17F56/RESULT"
    plug = "tasmota/E09806F17F56"
    for message, said in (
        ({"Button1": {"Action": "DOUBLE"}}, {f"{plug}/Button1.Action": "DOUBLE"}),
        ({"Switch2": {"Action": "TOGGLE"}}, {f"{plug}/Switch2.Action": "TOGGLE"}),
        ({"Switch1": {"Action": "OFF"}}, {f"{plug}/Switch1": "false"}),
        ({"POWER": "ON"}, {}),
    ):
        assert values_of(mapping, result, json.dumps(message).encode()) == (said, 0)
    known = Announcements(["tasmota"], devices_max=5)
    assert not [one for message in messages for one in known.read("", *message).left_out]
