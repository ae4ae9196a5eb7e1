"""Lamps of each format: announced, adopted, and switched by one command, with the engine in this process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lamplighter.adapters.devices.device import Device
from lamplighter.adapters.devices.registry import Registry
from lamplighter.adapters.devices.stored import check_record
from lamplighter.adapters.mapping import CommandRule
from lamplighter.adapters.mapping.dataset_rules import DatasetRules
from lamplighter.adapters.mqtt.discovery.announcements import Announcements
from lamplighter.adapters.mqtt.sender import MqttSender
from lamplighter.engine.terms import iri, literal
from tests.support.desired_states import BASE, StatesGateway, running
from tests.support.event_loops import settled
from tests.support.noted_messages import NotingBroker

Announcement = tuple[str, object]
DIMMER = {
    "type": "numeric",
    "name": "brightness",
    "property": "brightness",
    "access": 7,
    "value_min": 0,
    "value_max": 254,
}
ZIGBEE: list[Announcement] = [
    (
        "zigbee2mqtt/bridge/devices",
        [
            {
                "ieee_address": "0x000b57fffe8b5a01",
                "friendly_name": "lamp",
                "type": "Router",
                "definition": {
                    "exposes": [
                        {
                            "type": "light",
                            "features": [
                                {
                                    "type": "binary",
                                    "name": "state",
                                    "property": "state",
                                    "access": 7,
                                    "value_on": "ON",
                                    "value_off": "OFF",
                                },
                                DIMMER,
                                {"type": "numeric", "name": "color_temp", "property": "color_temp", "access": 7},
                                {
                                    "type": "composite",
                                    "name": "color_xy",
                                    "property": "color",
                                    "features": [{"type": "numeric", "name": "x", "property": "x", "access": 7}],
                                },
                            ],
                        }
                    ]
                },
            }
        ],
    )
]
TASMOTA: list[Announcement] = [
    (
        "tasmota/discovery/A8032ABE54DC/config",
        {
            "mac": "A8032ABE54DC",
            "dn": "lamp",
            "ft": "%prefix%/%topic%/",
            "t": "lamp",
            "tp": ["cmnd", "stat", "tele"],
            "rl": [2],
            "lt_st": 5,
            "state": ["OFF", "ON"],
        },
    )
]
SHELLY_2: list[Announcement] = [
    (
        "shellydimmer-a8032abe54dc/events/rpc",
        {
            "src": "shellyplusdimmer-a8032abe54dc",
            "method": "NotifyStatus",
            "params": {"light:0": {"output": True, "brightness": 50}},
        },
    )
]
SHELLY_1: list[Announcement] = [
    ("shellies/announce", {"id": "shellydimmer-1", "mac": "A8032ABE54DD", "model": "SHDM-1"}),
    ("shellies/shellydimmer-1/light/0", "on"),
    ("shellies/shellydimmer-1/light/0/status", {"ison": True, "brightness": 50}),
]
HOME = {
    "unique_id": "lamp",
    "command_topic": "lamp/switch",
    "brightness_command_topic": "lamp/brightness",
    "color_temp_command_topic": "lamp/ct",
    "rgb_command_topic": "lamp/rgb",
}
JSON_LIGHT = {
    "unique_id": "lamp",
    "schema": "json",
    "command_topic": "lamp/set",
    "state_topic": "lamp",
    "brightness": True,
    "supported_color_modes": ["color_temp", "rgb"],
}
TEMPLATE = {
    "unique_id": "lamp",
    "schema": "template",
    "command_topic": "lamp/set",
    "state_topic": "lamp/state",
    "state_template": "{{ value_json.state }}",
    "brightness_template": "{{ value_json.brightness }}",
    "command_on_template": '{"state": "on"{%- if brightness is defined -%}, "brightness": {{ brightness }}{%- endif -%}'
    '{%- if red is defined -%}, "color": [{{ red }}, {{ green }}, {{ blue }}]{%- endif -%}}',
    "command_off_template": '{"state": "off"}',
}


def home(config: dict[str, Any], **more: object) -> list[Announcement]:
    return [("homeassistant/light/lamp/config", config | more)]


RPC = '{"id": 1, "src": "lamplighter", "method": "Light.Set", "params": {"id": 0, '
ON = {"switch": "true", "level": "50"}
CASES: dict[str, tuple[str, list[Announcement], dict[str, str], list[tuple[str, str]]]] = {
    "zigbee2mqtt": (
        "zigbee2mqtt",
        ZIGBEE,
        ON | {"warmth": "300", "fade": "2"},
        [("zigbee2mqtt/lamp/set", '{"state": "ON", "brightness": 50, "color_temp": 300, "transition": 2}')],
    ),
    "zigbee2mqtt colour": (
        "zigbee2mqtt",
        ZIGBEE,
        ON | {"color": "'#ff0000'"},
        [("zigbee2mqtt/lamp/set", '{"state": "ON", "brightness": 50, "color": {"hex": "#ff0000"}}')],
    ),
    "tasmota": (
        "tasmota",
        TASMOTA,
        ON | {"warmth": "300"},
        [("cmnd/lamp/CT", "300"), ("cmnd/lamp/Dimmer", "50"), ("cmnd/lamp/POWER", "ON")],
    ),
    "shelly, later generations": (
        "shelly",
        SHELLY_2,
        ON | {"fade": "2"},
        [("shellydimmer-a8032abe54dc/rpc", RPC + '"on": true, "brightness": 50, "transition_duration": 2}}')],
    ),
    "shelly, first generation": (
        "shelly",
        SHELLY_1,
        ON,
        [("shellies/shellydimmer-1/light/0/set", '{"turn": "on", "brightness": 50}')],
    ),
    "home assistant": (
        "homeassistant",
        home(HOME),
        ON | {"warmth": "300"},
        [("lamp/brightness", "50"), ("lamp/ct", "300"), ("lamp/switch", "ON")],
    ),
    "home assistant, on first": (
        "homeassistant",
        home(HOME, on_command_type="first"),
        ON,
        [("lamp/switch", "ON"), ("lamp/brightness", "50")],
    ),
    "home assistant, on by brightness": (
        "homeassistant",
        home(HOME, on_command_type="brightness"),
        ON,
        [("lamp/brightness", "50")],
    ),
    "home assistant, JSON": (
        "homeassistant",
        home(JSON_LIGHT),
        ON | {"warmth": "300", "fade": "2"},
        [("lamp/set", '{"state": "ON", "brightness": 50, "color_temp": 300, "transition": 2}')],
    ),
    "home assistant, JSON colour": (
        "homeassistant",
        home(JSON_LIGHT),
        ON | {"color": "'#ff8800'"},
        [("lamp/set", '{"state": "ON", "brightness": 50, "color": {"r": 255, "g": 136, "b": 0}}')],
    ),
    "home assistant, template": (
        "homeassistant",
        home(TEMPLATE),
        ON | {"color": "'#ff8800'"},
        [("lamp/set", '{"state": "on", "brightness": 50, "color": [255, 136, 0]}')],
    ),
}
OFF = {
    "zigbee2mqtt": [("zigbee2mqtt/lamp/set", '{"state": "OFF", "transition": 2}')],
    "tasmota": [("cmnd/lamp/POWER", "OFF")],
    "shelly, later generations": [
        ("shellydimmer-a8032abe54dc/rpc", RPC + '"on": false, "transition_duration": 2}}'),
    ],
    "shelly, first generation": [("shellies/shellydimmer-1/light/0/set", '{"turn": "off"}')],
    "home assistant": [("lamp/switch", "OFF")],
    "home assistant, on by brightness": [("lamp/switch", "OFF")],
    "home assistant, JSON": [("lamp/set", '{"state": "OFF", "transition": 2}')],
    "home assistant, template": [("lamp/set", '{"state": "off"}')],
}
KINDS = {"switch": "light", "level": "brightness", "warmth": "colorTemperature", "color": "color", "fade": "transition"}


def announced(source: str, messages: list[Announcement]) -> Device:
    reader = Announcements([source], devices_max=10)
    found: list[Device] = []
    for topic, content in messages:
        payload = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        changes = reader.read("default", topic, payload)
        assert not changes.problems, changes.problems
        found += changes.devices
    return found[-1]


def commands(device: Device) -> list[CommandRule]:
    check_record(Device.from_json(device.to_json()))
    rules = DatasetRules(BASE)
    for path, rule in Registry(BASE).rules(device).items():
        rules.change([(iri(BASE + path), literal(json.dumps(rule)))], ())
    assert rules.problems() == {}
    return rules.commands()


@pytest.mark.parametrize("case", CASES)
async def test_states_of_a_lamp_go_in_one_command_in_the_order_of_the_device(case: str) -> None:
    source, messages, states, expected = CASES[case]
    device = announced(source, messages)
    actuators = {one.kind.removeprefix("gateway:"): f"<{BASE}{one.command['actuator']}>" for one in device.actuators}
    gateway, broker = StatesGateway(), NotingBroker()
    sender = MqttSender({"default": broker}, (), adopted=lambda rule: True)
    async with running(gateway, sender, *commands(device)) as output:
        new = " . ".join(f"{actuators[KINDS[name]]} gateway:desiredState {state}" for name, state in states.items())
        gateway.write(f"INSERT DATA {{ {new} }}")
        await settled()
        assert [(topic, payload) for topic, payload, _, _ in broker.messages] == expected
        assert output.states().refused == 0
        state = f"{actuators['light']} gateway:desiredState"
        gateway.write(f"DELETE DATA {{ {state} true }} ; INSERT DATA {{ {state} false }}")
        await settled()
        said = [(topic, payload) for topic, payload, _, _ in broker.messages[len(expected) :]]
        assert said == OFF.get(case, said)
        assert len(said) == 1


def test_light_of_several_endpoints_is_several_lamps() -> None:
    features = [
        {
            "type": "binary",
            "name": "state",
            "property": f"state_l{n}",
            "access": 7,
            "value_on": "ON",
            "value_off": "OFF",
        }
        for n in (1, 2)
    ]
    levels = [DIMMER | {"property": f"brightness_l{n}"} for n in (1, 2)]
    exposes = [{"type": "light", "features": [features[n], levels[n]]} for n in (0, 1)]
    entry = {"ieee_address": "0x000b57fffe8b5a01", "friendly_name": "x", "definition": {"exposes": exposes}}
    device = announced("zigbee2mqtt", [("zigbee2mqtt/bridge/devices", [entry])])
    lamps = {one.key: one.command["lamp"]["of"].rpartition("/")[2] for one in device.actuators}
    assert lamps == {
        **{f"{name}_l1": "light_l1" for name in ("state", "brightness", "transition")},
        **{f"{name}_l2": "light_l2" for name in ("state", "brightness", "transition")},
    }


def test_template_that_is_not_understood_is_a_problem() -> None:
    changes = Announcements(["homeassistant"], devices_max=10).read(
        "default",
        "homeassistant/light/lamp/config",
        json.dumps(TEMPLATE | {"command_on_template": "{% for x in y %}"}).encode(),
    )
    assert ["is not understood" in one.reason for one in changes.problems] == [True]


def test_effect_of_a_json_light_is_a_part_of_its_lamp() -> None:
    """Sent by itself, it would turn a lamp on that is to be off."""
    device = announced("homeassistant", home(JSON_LIGHT, effect=True, effect_list=["rainbow"]))
    [effect] = [one for one in device.actuators if one.kind == "gateway:effect"]
    assert effect.command["lamp"]["role"] == "mode"
