"""Devices and bridges of MQTT ecosystems as scripts: what they announce, what they publish, and how they obey.

The messages follow the documentation of each ecosystem, and have the members that matter to discovery.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

Messages = Sequence[tuple[str, bytes | str]]


@dataclass(frozen=True)
class Script:
    """announces: retained, at the connection. says: not retained, as often as somebody looks. asked: topic and payload
    -> what the device publishes then. obeys: filters of its commands."""

    announces: Messages = ()
    says: Messages = ()
    asked: dict[tuple[str, str], Messages] = field(default_factory=dict)
    obeys: Sequence[str] = ()


class SimulatedDevice:
    """A client of a broker that follows a script while the context is open. heard: topics and payloads of commands."""

    def __init__(self, script: Script, port: int, username: str, password: str) -> None:
        self.heard: list[tuple[str, str]] = []
        self._script = script
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2)
        self._client.username_pw_set(username, password)
        self._client.on_connect = self._connected
        self._client.on_message = self._message
        self._client.connect("127.0.0.1", port)

    def __enter__(self) -> SimulatedDevice:
        self._client.loop_start()
        return self

    def __exit__(self, *exception: object) -> None:
        for topic, _ in self._script.announces:
            self._client.publish(topic, b"", qos=1, retain=True).wait_for_publish(120)
        self._client.disconnect()
        self._client.loop_stop()

    def speak(self) -> None:
        for topic, payload in self._script.says:
            self._client.publish(topic, payload, qos=1).wait_for_publish(120)

    def _connected(self, client: mqtt.Client, *_: object) -> None:
        for topic in (*self._script.obeys, *(topic for topic, _ in self._script.asked)):
            client.subscribe(topic, qos=1)
        for topic, payload in self._script.announces:
            client.publish(topic, payload, qos=1, retain=True)

    def _message(self, client: mqtt.Client, _: object, message: mqtt.MQTTMessage) -> None:
        said = message.topic, message.payload.decode()
        self.heard.append(said)
        for topic, payload in self._script.asked.get(said, ()):
            client.publish(topic, payload, qos=1)


def zigbee2mqtt(base: str) -> Script:
    """A bridge with a climate sensor and a lamp."""

    def exposed(name: str, unit: str | None = None, access: int = 1) -> dict[str, object]:
        return {"type": "numeric", "name": name, "property": name, "access": access} | ({"unit": unit} if unit else {})

    state = {"type": "binary", "name": "state", "property": "state", "value_on": "ON", "value_off": "OFF", "access": 7}
    lamp = {"type": "light", "features": [state, exposed("brightness", access=7) | {"value_min": 0, "value_max": 254}]}
    devices = [
        (
            "0x00158d0001e82a4c",
            "hall",
            "Aqara",
            "WSDCGQ11LM",
            [exposed("temperature", "°C"), exposed("humidity", "%")],
        ),
        ("0x000b57fffe3e40c1", "lamp", "IKEA", "LED1545G12", [lamp]),
    ]
    listed = [{"ieee_address": "0x00124b0000000001", "type": "Coordinator", "friendly_name": "Coordinator"}] + [
        {
            "ieee_address": address,
            "type": "EndDevice",
            "friendly_name": name,
            "disabled": False,
            "definition": {"vendor": vendor, "model": model, "exposes": exposes},
        }
        for address, name, vendor, model, exposes in devices
    ]
    return Script(
        announces=[
            (f"{base}/bridge/state", '{"state":"online"}'),
            (f"{base}/bridge/devices", json.dumps(listed)),
            (f"{base}/hall/availability", '{"state":"online"}'),
        ],
        says=[(f"{base}/hall", '{"temperature":21.5,"humidity":48,"linkquality":120}')],
        asked={(f"{base}/lamp/set", '{"state": "ON"}'): [(f"{base}/lamp", '{"state":"ON"}')]},
        obeys=[f"{base}/lamp/set"],
    )


def tasmota(topic: str) -> Script:
    """A plug with a meter."""
    config = {
        "dn": "Kettle",
        "fn": ["Kettle", None],
        "hn": f"{topic}-8022",
        "mac": "E09806F17F56",
        "md": "Athom Plug V2",
        "ofln": "Offline",
        "onln": "Online",
        "state": ["OFF", "ON", "TOGGLE", "HOLD"],
        "t": topic,
        "ft": "%prefix%/%topic%/",
        "tp": ["cmnd", "stat", "tele"],
        "rl": [1, 0],
        "so": {"30": 0},
        "lt_st": 0,
        "ver": 1,
    }
    telemetry = {"Time": "2026-11-20T08:39:31", "ENERGY": {"Power": 2210, "Voltage": 231}}
    return Script(
        announces=[
            (f"tele/{topic}/LWT", "Online"),
            ("tasmota/discovery/E09806F17F56/config", json.dumps(config)),
            ("tasmota/discovery/E09806F17F56/sensors", json.dumps({"sn": telemetry, "ver": 1})),
        ],
        says=[(f"tele/{topic}/SENSOR", json.dumps(telemetry))],
        asked={
            (f"cmnd/{topic}/POWER", "ON"): [(f"stat/{topic}/RESULT", '{"POWER":"ON"}'), (f"stat/{topic}/POWER", "ON")]
        },
    )


def shelly_first() -> Script:
    """A relay with a meter."""
    name = "shellyswitch25-B929CC"
    announce = {"id": name, "model": "SHSW-25", "mac": "98F4ABB929CC", "ip": "192.0.2.20", "fw_ver": "v1.14.0"}
    states: Messages = [(f"shellies/{name}/relay/0", "on"), (f"shellies/{name}/relay/0/power", "12.5")]
    said: Messages = [("shellies/announce", json.dumps(announce)), *states]
    command = f"shellies/{name}/relay/0/command"
    return Script(
        says=said,
        asked={
            ("shellies/command", "announce"): said,
            (command, "off"): [(f"shellies/{name}/relay/0", "off")],
        },
        obeys=[command],
    )


def shelly_later() -> Script:
    """A relay with a meter."""
    name = "shellyplus1pm-a8032abe54dc"

    def notification(**status: object) -> tuple[str, str]:
        params = {"ts": 1763700000.12, "switch:0": {"id": 0, **status}}
        event = {"src": name, "dst": f"{name}/events", "method": "NotifyStatus", "params": params}
        return f"{name}/events/rpc", json.dumps(event)

    call = '{"id": 1, "src": "lamplighter", "method": "Switch.Set", "params": {"id": 0, "on": false}}'
    return Script(
        says=[notification(output=True, apower=8.9)],
        asked={(f"{name}/rpc", call): [notification(output=False, source="MQTT")]},
    )


def esphome(name: str, *, announced: bool) -> Script:
    """A board with a sensor and a relay."""
    device = {"ids": "a8032abe54aa", "name": name, "sw": "2026.11.0", "mdl": "esp32dev", "mf": "espressif"}
    common = {"avty_t": f"{name}/status", "dev": device}
    sensor, relay = ("temperature", "pump") if announced else ("temperature", "fan")
    configs = [
        (
            f"homeassistant/sensor/{name}/{sensor}/config",
            {
                "dev_cla": "temperature",
                "unit_of_meas": "°C",
                "stat_cla": "measurement",
                "name": "Temperature",
                "stat_t": f"{name}/sensor/{sensor}/state",
                "uniq_id": "ESPsensortemperature",
            },
        ),
        (
            f"homeassistant/switch/{name}/{relay}/config",
            {
                "name": relay.capitalize(),
                "stat_t": f"{name}/switch/{relay}/state",
                "cmd_t": f"{name}/switch/{relay}/command",
                "uniq_id": f"ESPswitch{relay}",
            },
        ),
    ]
    return Script(
        announces=[
            (f"{name}/status", "online"),
            *((topic, json.dumps(config | common)) for topic, config in configs if announced),
        ],
        says=[(f"{name}/sensor/{sensor}/state", "24.3" if announced else "9.8")],
        asked={(f"{name}/switch/{relay}/command", "ON"): [(f"{name}/switch/{relay}/state", "ON")]},
    )


def sparkplug() -> Script:
    """An edge node with a device: one metric, by name in the birth, and by alias in data."""

    def payload(sequence: int, *metrics: bytes) -> bytes:
        """The wire format of Protocol Buffers; all lengths are below 128."""
        packed = b"".join(b"\x12" + bytes([len(metric)]) + metric for metric in metrics)
        return b"\x08\x01" + packed + b"\x18" + bytes([sequence])

    name, alias = b"\x0a\x0btemperature", b"\x10\x07"
    number = b"\x20\x0a\x69" + struct.pack("<d", 61.5)  # datatype Double, double_value
    return Script(
        says=[
            ("spBv1.0/plant/NBIRTH/press1", payload(0)),
            ("spBv1.0/plant/DBIRTH/press1/motor", payload(1, name + alias + number)),
            ("spBv1.0/plant/DDATA/press1/motor", payload(2, alias + number)),
        ]
    )
