"""Vacuums, mowers, alarm panels, water heaters, updates, triggers and Z-Wave devices of Home Assistant's discovery."""

from __future__ import annotations

import json
import time
from typing import Any

from lamplighter.adapters.devices.device import Device
from lamplighter.adapters.mqtt.discovery.announcements import Announcements
from tests.support.announced_readings import mapping_of, sent, values_of
from tests.support.tables import each_row

VACUUM = {"stat_t": "v/state", "cmd_t": "v/cmd", "set_fan_spd_t": "v/fan", "fanspd_lst": ["low", "max"]}
ALARM = {"stat_t": "a/state", "cmd_t": "a/set", "sup_feat": ["arm_home", "arm_away"], "cod_arm_req": False}
MOWER = {"act_stat_t": "m/a", "act_val_tpl": "{{ value_json.a }}", "dock_cmd_t": "m/d", "strt_mw_cmd_t": "m/s"}
HEATER = {
    "curr_temp_t": "w/c",
    "temp_stat_t": "w/t",
    "temp_cmd_t": "w/t/set",
    "mode_stat_t": "w/m",
    "mode_cmd_t": "w/m/set",
    "modes": ["off", "eco"],
    "pow_cmd_t": "w/p",
}
UPDATE = {"stat_t": "u", "cmd_t": "u/set", "pl_inst": "install"}
VERSIONS = '{"installed_version":"{{ value_json.a }}","latest_version":"{{ value_json.b }}"}'
EVENT = "{{ {'event_type': value_json.a} | tojson }}"
TRIGGER = {"atype": "trigger", "t": "b", "type": "button_short_press", "stype": "button_1", "pl": "on.press"}
THERMOSTAT = {
    "mode_stat_t": "z/64",
    "mode_stat_tpl": "{{ {0: 'off', 1: 'heat'}[value_json.value] | default('off') }}",
    "mode_cmd_t": "z/64/set",
    "mode_cmd_tpl": "{{ {'off': 0, 'heat': 1}[value] | default(0) }}",
    "modes": ["off", "heat"],
    "temp_stat_t": "z/67",
    "temp_stat_tpl": "{{ value_json.value }}",
    "temp_cmd_t": "z/67/set",
    "act_t": "z/66",
    "act_tpl": "{{ {0: 'idle', 1: 'heating'}.get(value_json.value) }}",
}
BLIND = {
    "stat_t": "z/38",
    "pos_t": "z/38",
    "pos_tpl": "{{ value_json.value | round(0) }}",
    "cmd_t": "z/38/set",
    "set_pos_t": "z/38/set",
    "pos_open": 99,
    "pos_clsd": 0,
    "pl_open": 99,
    "pl_cls": 0,
}
HALF_BLIND = BLIND | {"set_pos_tpl": "{{ (position / 2) | int }}", "pos_open": 100}


def announce(component: str, config: dict[str, Any]) -> tuple[Device, list[str]]:
    """The device of an entity, and what is told of it."""
    topic = f"homeassistant/{component}/e/config"
    payload = json.dumps({"name": "e", "dev": {"ids": ["d"]}} | config).encode()
    changes = Announcements(["homeassistant"], devices_max=5).read("", topic, payload)
    (device,) = changes.devices
    return device, [problem.reason for problem in (*changes.problems, *changes.left_out)]


def readings(device: Device, topic: str, payload: str) -> dict[str, str]:
    """What a message says, by the keys of the sensors."""
    values, refused = values_of(mapping_of([device]), topic, payload.encode())
    assert not refused
    return {name.rpartition("/")[2]: value for name, value in values.items()}


@each_row(
    ("component", "config", "topic", "payload", "said"),
    [
        ("vacuum", VACUUM, "v/state", '{"state": "docked", "battery_level": 61, "fan_speed": "max"}',
         {"e": "docked", "e.battery_level": "61", "e.fan_speed": "max"}),
        ("alarm_control_panel", ALARM, "a/state", "armed_home", {"e": "armed_home"}),
        ("lawn_mower", MOWER, "m/a", '{"a": "mowing"}', {"e": "mowing"}),
        ("water_heater", HEATER, "w/c", "51.5", {"e.temperature": "51.5"}),
        ("water_heater", HEATER, "w/m", "eco", {"e.mode": "eco"}),
        ("update", UPDATE, "u", '{"installed_version": "1.2", "latest_version": "1.3"}',
         {"e": "true", "e.installed": "1.2", "e.latest": "1.3"}),
        ("update", UPDATE, "u", '{"installed_version": "1.3", "latest_version": "1.3", "title": "x"}',
         {"e": "false", "e.installed": "1.3", "e.latest": "1.3"}),
        ("update", UPDATE | {"val_tpl": VERSIONS}, "u", '{"a": "1", "b": "2"}', {"e.installed": "1", "e.latest": "2"}),
        ("update", UPDATE | {"l_ver_t": "u/l"}, "u", "2.0.1", {"e.installed": "2.0.1"}),
        ("update", UPDATE | {"l_ver_t": "u/l"}, "u/l", "2.0.2", {"e.latest": "2.0.2"}),
        ("device_automation", TRIGGER, "b", "on.press", {"e": "button_1 button_short_press"}),
        ("device_automation", TRIGGER, "b", "onxpress", {}),
        ("event", {"stat_t": "b", "val_tpl": EVENT}, "b", '{"a": "single"}', {"e": "single"}),
        ("climate", THERMOSTAT, "z/64", '{"time": 1, "value": 1}', {"e.mode": "heat"}),
        ("climate", THERMOSTAT, "z/64", '{"time": 1, "value": 7}', {"e.mode": "off"}),
        ("climate", THERMOSTAT, "z/66", '{"value": 1}', {"e.action": "heating"}),
        ("cover", BLIND, "z/38", '{"value": 99}', {"e.position": "100"}),
    ],
)  # fmt: skip
def test_what_appliances_say(
    component: str, config: dict[str, Any], topic: str, payload: str, said: dict[str, str]
) -> None:
    device, told = announce(component, config)
    assert not told
    assert readings(device, topic, payload) == said


@each_row(
    ("component", "config", "key", "state", "message"),
    [
        ("vacuum", VACUUM, "e", "return_to_base", ("v/cmd", "return_to_base")),
        ("vacuum", VACUUM | {"pl_strt": "go"}, "e", "start", ("v/cmd", "go")),
        ("vacuum", VACUUM, "e.fan_speed", "low", ("v/fan", "low")),
        ("alarm_control_panel", ALARM, "e", "armed_away", ("a/set", "ARM_AWAY")),
        ("alarm_control_panel", ALARM | {"cmd_tpl": "a {{ action }}"}, "e", "disarmed", ("a/set", "a DISARM")),
        ("lawn_mower", MOWER, "e.dock", "PRESS", ("m/d", "dock")),
        ("water_heater", HEATER, "e.target", "55", ("w/t/set", "55")),
        ("water_heater", HEATER, "e.mode", "off", ("w/m/set", "off")),
        ("water_heater", HEATER, "e.power", "true", ("w/p", "ON")),
        ("update", UPDATE, "e", "INSTALL", ("u/set", "install")),
        ("climate", THERMOSTAT, "e.mode", "heat", ("z/64/set", "1")),
        ("climate", THERMOSTAT, "e.target", "21", ("z/67/set", "21")),
        ("cover", BLIND, "e", "OPEN", ("z/38/set", "99")),
        ("cover", BLIND, "e.position", "50", ("z/38/set", "50")),
        ("cover", HALF_BLIND, "e.position", "50", ("z/38/set", "25")),
    ],
)  # fmt: skip
def test_what_appliances_are_told(
    component: str, config: dict[str, Any], key: str, state: str, message: tuple[str, str]
) -> None:
    device, _ = announce(component, config)
    assert sent(device, key, state) == message


def test_an_alarm_that_takes_its_code_is_read_only() -> None:
    device, told = announce(
        "alarm_control_panel", ALARM | {"code": "REMOTE_CODE", "cmd_tpl": "{{ action }} {{ code }}"}
    )
    assert [sensor.kind for sensor in device.sensors] == ["gateway:alarm"] and not device.actuators
    assert any("'code', which is not supported" in reason for reason in told)


def test_a_vacuum_has_what_it_supports_only() -> None:
    device, told = announce("vacuum", VACUUM | {"sup_feat": ["start", "return_home"], "send_cmd_t": "v/send"})
    (activity,) = [one for one in device.actuators if one.kind == "gateway:activity"]
    assert list(activity.command["values"]) == ["start", "return_to_base"]
    assert told == ["not used: e: send_command_topic"]


@each_row(
    ("config", "reason"),
    [
        ({"atype": "action", "t": "b"}, "automations of another type than trigger"),
        ({"atype": "trigger"}, "topic is missing"),
        ({"atype": "trigger", "t": "b", "pl": "x" * 200}, "the payload of the trigger cannot be used"),
    ],
)
def test_triggers_that_cannot_be_read(config: dict[str, Any], reason: str) -> None:
    payload = json.dumps({"dev": {"ids": ["d"]}} | config).encode()
    changes = Announcements(["homeassistant"], devices_max=5).read(
        "", "homeassistant/device_automation/e/config", payload
    )
    assert [reason in problem.reason for problem in changes.problems] == [True]


def test_a_command_template_is_given_the_texts_of_the_announcement() -> None:
    template = "{{ {'1': 'eco', '2': 'boost'}[value] }}"
    device, problems = announce("select", {"cmd_t": "s/set", "ops": ["1", "2"], "cmd_tpl": template})
    assert not problems
    assert [one.command["values"] for one in device.actuators] == [{"1": "eco", "2": "boost"}]


@each_row("end", ["!", "}}", "(", "|"])
def test_an_announced_command_template_takes_no_time(end: str) -> None:
    before = time.thread_time()
    template = "{{ value" + "| int    " * 1_000 + end
    announcement = {"name": "e", "cmd_t": "s/set", "cmd_tpl": template, "dev": {"ids": ["d"]}}
    Announcements(["homeassistant"], devices_max=5).read(
        "", "homeassistant/number/e/config", json.dumps(announcement).encode()
    )
    assert time.thread_time() - before < 1.0


@each_row(
    ("template", "state", "told"),
    [
        ("{{ value }}", "21.46", "21.46"),
        ("{{ value | int }}", "21.46", "21"),
        ("{{ value | int }}", "50.0", "50"),
        ("{{ value | round(1) }}", "21.46", "21.5"),
        ('{"t": {{ value | round | int }} }', "21.5", '{"t": 22 }'),
    ],
)
def test_a_number_is_sent_as_its_template_rounds_it(template: str, state: str, told: str) -> None:
    device, problems = announce("number", {"cmd_t": "n/set", "cmd_tpl": template})
    assert not problems and sent(device, "e", state) == ("n/set", told)
