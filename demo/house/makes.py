"""The makes of the simulated house: announcements, reports and commands. No network, no clock.

Each follows the documentation of its ecosystem, also in what the broker keeps: a make whose states are not retained
tells a newcomer nothing until it reports. Nothing here is shared with the gateway, so that the house can be its oracle.
"""

from __future__ import annotations

import json
import random
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

Value = bool | float | str
MADE_AT = "2026-11-20T08:39:31"
"""The time in telemetry that has one; nobody reads it."""


class DeviceMessage(NamedTuple):
    topic: str
    payload: str | bytes
    retain: bool = False


class HouseDevice(ABC):
    """One device. number: makes it unique in the house.

    truth: what it measures and what state it has, by the names that the gateway gives them. identity: format and
    identifier of its announcement. title: what people called it, if they did. retained: whether the broker keeps its
    states. is_silent: without power: it says and obeys nothing.
    """

    source: ClassVar[str]
    retained: ClassVar[bool] = False

    def __init__(self, number: int) -> None:
        self.number = number
        self.title = ""
        self.truth: dict[str, Value] = {}
        self.is_silent = False

    @property
    @abstractmethod
    def identity(self) -> tuple[str, str]: ...

    def announcements(self) -> Sequence[DeviceMessage]:
        """What it says of itself when it connects."""
        return ()

    @abstractmethod
    def report(self) -> Sequence[DeviceMessage]:
        """All of its state, as it says it when it connects."""

    def changed(self, name: str) -> Sequence[DeviceMessage]:
        """What it says after a change of one value."""
        return self.report()

    def online(self, is_online: bool) -> Sequence[DeviceMessage]:
        """What it, or the broker in its stead, says of its connection."""
        return ()

    def commands(self) -> Sequence[str]:
        """Topics that it obeys."""
        return ()

    def obey(self, topic: str, payload: str) -> str | None:
        """Takes a command. Returns the name of what it has changed, None if it is no command of the device."""
        return None

    def questions(self) -> Sequence[str]:
        """Topics at which it is asked for its state; those of all devices of a make too."""
        return ()

    def answer(self, topic: str, payload: str) -> Sequence[DeviceMessage]:
        """What it says to a question; nothing if it does not understand it."""
        return ()

    def settable(self) -> dict[str, Sequence[Value]]:
        """What people and commands can set, with some states."""
        return {}

    def measured(self) -> dict[str, Callable[[random.Random], Value]]:
        """What changes by itself."""
        return {}


class ZigbeeLamp(HouseDevice):
    """A lamp of Zigbee2MQTT, whose list of devices the house publishes."""

    source = "zigbee2mqtt"

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.name = f"lamp{number}"
        self.topic = f"zigbee2mqtt/{self.name}"
        self.truth = {"state": False, "brightness": 254}

    @property
    def identity(self) -> tuple[str, str]:
        return self.source, f"0x00158d01{self.number:08x}"

    def listed(self) -> dict[str, Any]:
        """Its entry in the list of the bridge."""
        state = {"type": "binary", "name": "state", "property": "state", "access": 7, "value_on": "ON"}
        level = {"type": "numeric", "name": "brightness", "property": "brightness", "access": 7}
        features = [state | {"value_off": "OFF", "value_toggle": "TOGGLE"}, level | {"value_min": 0, "value_max": 254}]
        return self._entry("LED1", [{"type": "light", "features": features}])

    def _entry(self, model: str, exposes: list[dict[str, Any]]) -> dict[str, Any]:
        definition = {"model": model, "vendor": "House", "description": model, "exposes": exposes, "options": []}
        return {
            "ieee_address": self.identity[1],
            "type": "Router",
            "friendly_name": self.name,
            "disabled": False,
            "supported": True,
            "definition": definition,
        }

    def report(self) -> Sequence[DeviceMessage]:
        state = {"state": "ON" if self.truth["state"] else "OFF", "brightness": self.truth["brightness"]}
        return [DeviceMessage(self.topic, json.dumps(state | {"linkquality": 80}))]

    def online(self, is_online: bool) -> Sequence[DeviceMessage]:
        word = json.dumps({"state": "online" if is_online else "offline"})
        return [DeviceMessage(f"{self.topic}/availability", word, True)]

    def commands(self) -> Sequence[str]:
        return [f"{self.topic}/set"]

    def obey(self, topic: str, payload: str) -> str | None:
        asked = json.loads(payload)
        if "brightness" in asked:
            self.truth["brightness"] = asked["brightness"]
        if "state" in asked:
            self.truth["state"] = asked["state"] == "ON"
        return "state"

    def questions(self) -> Sequence[str]:
        return [f"{self.topic}/get"]

    def answer(self, topic: str, payload: str) -> Sequence[DeviceMessage]:
        return self.report() if "state" in json.loads(payload) else ()

    def settable(self) -> dict[str, Sequence[Value]]:
        return {"state": (True, False), "brightness": (1, 127, 254)}


class ZigbeeMotion(ZigbeeLamp):
    """A motion sensor of Zigbee2MQTT. Its battery lets it answer no questions."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.name = f"hall/motion{number}"
        self.topic = f"zigbee2mqtt/{self.name}"
        self.truth = {"occupancy": False, "illuminance": 12}

    def listed(self) -> dict[str, Any]:
        occupancy = {"type": "binary", "name": "occupancy", "property": "occupancy", "access": 1}
        light = {"type": "numeric", "name": "illuminance", "property": "illuminance", "access": 1, "unit": "lx"}
        return self._entry("PIR1", [occupancy | {"value_on": True, "value_off": False}, light])

    def report(self) -> Sequence[DeviceMessage]:
        return [DeviceMessage(self.topic, json.dumps(self.truth))]

    def commands(self) -> Sequence[str]:
        return ()

    def questions(self) -> Sequence[str]:
        return ()

    def settable(self) -> dict[str, Sequence[Value]]:
        return {}

    def measured(self) -> dict[str, Callable[[random.Random], Value]]:
        return {"occupancy": lambda chance: chance.random() < 0.5, "illuminance": lambda chance: chance.randrange(900)}


class TasmotaPlug(HouseDevice):
    """A plug with a meter. Its states are not retained (PowerRetain is off by default)."""

    source = "tasmota"

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.topic = f"plug{number}"
        self.truth = {"POWER": False, "ENERGY.Power": 0}

    @property
    def identity(self) -> tuple[str, str]:
        return self.source, f"E0980{self.number:07X}"

    def announcements(self) -> Sequence[DeviceMessage]:
        config = self._config([1, 0])
        sensors = {"sn": {"Time": MADE_AT, "ENERGY": {"Power": 0}}, "ver": 1}
        below = f"tasmota/discovery/{self.identity[1]}"
        return [
            DeviceMessage(f"{below}/config", json.dumps(config), True),
            DeviceMessage(f"{below}/sensors", json.dumps(sensors), True),
        ]

    def _config(self, relays: list[int]) -> dict[str, Any]:
        words = {"ofln": "Offline", "onln": "Online", "state": ["OFF", "ON", "TOGGLE", "HOLD"]}
        topics = {"t": self.topic, "ft": "%prefix%/%topic%/", "tp": ["cmnd", "stat", "tele"]}
        name = {
            "dn": self.title or self.topic,
            "fn": [self.topic],
            "hn": self.topic,
            "mac": self.identity[1],
            "md": "Plug",
        }
        return name | words | topics | {"rl": relays, "so": {"30": 0}, "lt_st": 0, "ver": 1}

    def report(self) -> Sequence[DeviceMessage]:
        return [*self.changed("POWER"), *self.changed("ENERGY.Power")]

    def changed(self, name: str) -> Sequence[DeviceMessage]:
        if name == "POWER":
            word = "ON" if self.truth["POWER"] else "OFF"
            return [
                DeviceMessage(f"stat/{self.topic}/RESULT", json.dumps({"POWER": word})),
                DeviceMessage(f"stat/{self.topic}/POWER", word),
            ]
        return [DeviceMessage(f"tele/{self.topic}/SENSOR", json.dumps(self._sensor_state()))]

    def online(self, is_online: bool) -> Sequence[DeviceMessage]:
        return [DeviceMessage(f"tele/{self.topic}/LWT", "Online" if is_online else "Offline", True)]

    def commands(self) -> Sequence[str]:
        return [f"cmnd/{self.topic}/POWER"]

    def obey(self, topic: str, payload: str) -> str | None:
        self.truth["POWER"] = payload == "ON"
        return "POWER"

    def questions(self) -> Sequence[str]:
        return [f"cmnd/{self.topic}/STATUS"]

    def answer(self, topic: str, payload: str) -> Sequence[DeviceMessage]:
        members = {"10": {"StatusSNS": self._sensor_state()}, "11": {"StatusSTS": self._switch_state()}}.get(payload)
        return [] if members is None else [DeviceMessage(f"stat/{self.topic}/STATUS{payload}", json.dumps(members))]

    def _switch_state(self) -> dict[str, Any]:
        return {"Time": MADE_AT, "POWER": "ON" if self.truth["POWER"] else "OFF"}

    def _sensor_state(self) -> dict[str, Any]:
        return {"Time": MADE_AT, "ENERGY": {"Power": self.truth["ENERGY.Power"]}}

    def settable(self) -> dict[str, Sequence[Value]]:
        return {"POWER": (True, False)}

    def measured(self) -> dict[str, Callable[[random.Random], Value]]:
        return {"ENERGY.Power": lambda chance: chance.randrange(2_000)}


class TasmotaShutter(TasmotaPlug):
    """A shutter on two relays. Every second one is inverted: 100 is closed there."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.topic = f"shutter{number}"
        self.truth = {"ShutterPosition1": 100}
        self.is_inverted = number % 2 == 1

    def announcements(self) -> Sequence[DeviceMessage]:
        config = self._config([3, 3]) | {"sho": [int(self.is_inverted)]}
        return [DeviceMessage(f"tasmota/discovery/{self.identity[1]}/config", json.dumps(config), True)]

    def report(self) -> Sequence[DeviceMessage]:
        return [DeviceMessage(f"stat/{self.topic}/RESULT", json.dumps(self._shutter()))]

    def _shutter(self) -> dict[str, Any]:
        position = int(self.truth["ShutterPosition1"])
        said = 100 - position if self.is_inverted else position
        return {"Shutter1": {"Position": said, "Direction": 0, "Target": said}}

    def _switch_state(self) -> dict[str, Any]:
        return {"Time": MADE_AT}

    def _sensor_state(self) -> dict[str, Any]:
        return {"Time": MADE_AT} | self._shutter()

    def changed(self, name: str) -> Sequence[DeviceMessage]:
        return self.report()

    def commands(self) -> Sequence[str]:
        return [f"cmnd/{self.topic}/ShutterPosition1"]

    def obey(self, topic: str, payload: str) -> str | None:
        asked = int(payload)
        self.truth["ShutterPosition1"] = 100 - asked if self.is_inverted else asked
        return "ShutterPosition1"

    def settable(self) -> dict[str, Sequence[Value]]:
        return {"ShutterPosition1": (0, 30, 100)}

    def measured(self) -> dict[str, Callable[[random.Random], Value]]:
        return {}


class FirstShelly(HouseDevice):
    """A relay of the first generation. Its states are not retained by default."""

    source = "shelly"

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.name = f"shelly1pm-{number:06X}"
        self.truth = {"relay.0": False, "relay.0.power": 0.0}

    @property
    def identity(self) -> tuple[str, str]:
        return self.source, f"98F4AB{self.number:06X}"

    def announcements(self) -> Sequence[DeviceMessage]:
        about = {"id": self.name, "model": "SHSW-PM", "mac": self.identity[1], "ip": "192.0.2.20", "fw_ver": "v1.14"}
        return [DeviceMessage("shellies/announce", json.dumps(about))]

    def report(self) -> Sequence[DeviceMessage]:
        return [*self.changed("relay.0"), *self.changed("relay.0.power")]

    def changed(self, name: str) -> Sequence[DeviceMessage]:
        value = self.truth[name]
        said = ("on" if value else "off") if isinstance(value, bool) else f"{value:.2f}"
        return [DeviceMessage(f"shellies/{self.name}/{name.replace('.', '/')}", said)]

    def online(self, is_online: bool) -> Sequence[DeviceMessage]:
        return [DeviceMessage(f"shellies/{self.name}/online", "true" if is_online else "false", True)]

    def commands(self) -> Sequence[str]:
        return [f"shellies/{self.name}/relay/0/command"]

    def obey(self, topic: str, payload: str) -> str | None:
        self.truth["relay.0"] = payload == "on"
        return "relay.0"

    def questions(self) -> Sequence[str]:
        return ["shellies/command"]

    def answer(self, topic: str, payload: str) -> Sequence[DeviceMessage]:
        answers = {"announce": self.announcements, "update": self.report}
        return answers[payload]() if payload in answers else ()

    def settable(self) -> dict[str, Sequence[Value]]:
        return {"relay.0": (True, False)}

    def measured(self) -> dict[str, Callable[[random.Random], Value]]:
        return {"relay.0.power": lambda chance: float(chance.randrange(900))}


class LaterShelly(HouseDevice):
    """A plug of the second generation: notifications, and remote procedure calls."""

    source = "shelly"

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.name = f"shellyplusplugs-{number:012x}"
        self.truth = {"switch.0.output": False, "switch.0.apower": 0}

    @property
    def identity(self) -> tuple[str, str]:
        return self.source, f"{self.number:012X}"

    def report(self) -> Sequence[DeviceMessage]:
        return [self._notify("NotifyFullStatus", output=self.truth["switch.0.output"], apower=self._power)]

    def changed(self, name: str) -> Sequence[DeviceMessage]:
        member = name.rpartition(".")[2]
        return [self._notify("NotifyStatus", **{member: self.truth[name]})]

    @property
    def _power(self) -> Value:
        return self.truth["switch.0.apower"]

    def _notify(self, method: str, **status: Value) -> DeviceMessage:
        params = {"ts": 1763700000.12, "switch:0": {"id": 0, "source": "button"} | status}
        event = {"src": self.name, "dst": f"{self.name}/events", "method": method, "params": params}
        return DeviceMessage(f"{self.name}/events/rpc", json.dumps(event))

    def online(self, is_online: bool) -> Sequence[DeviceMessage]:
        return [DeviceMessage(f"{self.name}/online", "true" if is_online else "false", True)]

    def commands(self) -> Sequence[str]:
        return [f"{self.name}/rpc"]

    def obey(self, topic: str, payload: str) -> str | None:
        call = json.loads(payload)
        if call["method"] != "Switch.Set":
            return None
        self.truth["switch.0.output"] = call["params"]["on"]
        return "switch.0.output"

    def questions(self) -> Sequence[str]:
        return self.commands()

    def answer(self, topic: str, payload: str) -> Sequence[DeviceMessage]:
        call = json.loads(payload)
        if call["method"] != "Shelly.GetStatus":
            return ()
        result = {"switch:0": {"id": 0, "output": self.truth["switch.0.output"], "apower": self._power}}
        answer = {"id": call["id"], "src": self.name, "dst": call["src"], "result": result}
        return [DeviceMessage(f"{call['src']}/rpc", json.dumps(answer))]

    def settable(self) -> dict[str, Sequence[Value]]:
        return {"switch.0.output": (True, False)}

    def measured(self) -> dict[str, Callable[[random.Random], Value]]:
        return {"switch.0.apower": lambda chance: chance.randrange(2_000)}


class Entities(HouseDevice):
    """A device in the format of Home Assistant's discovery."""

    source = "homeassistant"

    @property
    def name(self) -> str:
        return f"{type(self).__name__.lower()}{self.number}"

    @property
    def identity(self) -> tuple[str, str]:
        return self.source, self.name

    @abstractmethod
    def configs(self) -> dict[str, dict[str, Any]]:
        """Its entities by component, each with what only it has."""

    def announcements(self) -> Sequence[DeviceMessage]:
        device = {"ids": [self.name], "name": self.title or self.name, "mf": "House", "sw": "1.0"}
        return [
            DeviceMessage(f"homeassistant/{component}/{self.name}/config", json.dumps(config | {"dev": device}), True)
            for component, config in self.configs().items()
        ]


class EsphomeBoard(Entities):
    """A board with a relay and a thermometer. Its states are retained."""

    retained = True

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.truth = {f"{self.name}relay": False, f"{self.name}t": 20.0}

    def configs(self) -> dict[str, dict[str, Any]]:
        common = {"avty_t": f"{self.name}/status"}
        relay = {"stat_t": f"{self.name}/switch/relay/state", "cmd_t": f"{self.name}/switch/relay/command"}
        heat = {"dev_cla": "temperature", "unit_of_meas": "°C", "stat_t": f"{self.name}/sensor/t/state"}
        return {
            "switch": common | relay | {"name": "Relay", "uniq_id": f"{self.name}relay"},
            "sensor": common | heat | {"name": "T", "uniq_id": f"{self.name}t", "stat_cla": "measurement"},
        }

    def report(self) -> Sequence[DeviceMessage]:
        relay, heat = self.truth.values()
        return [
            DeviceMessage(f"{self.name}/switch/relay/state", "ON" if relay else "OFF", True),
            DeviceMessage(f"{self.name}/sensor/t/state", f"{heat}", True),
        ]

    def online(self, is_online: bool) -> Sequence[DeviceMessage]:
        return [DeviceMessage(f"{self.name}/status", "online" if is_online else "offline", True)]

    def commands(self) -> Sequence[str]:
        return [f"{self.name}/switch/relay/command"]

    def obey(self, topic: str, payload: str) -> str | None:
        self.truth[f"{self.name}relay"] = payload == "ON"
        return f"{self.name}relay"

    def settable(self) -> dict[str, Sequence[Value]]:
        return {f"{self.name}relay": (True, False)}

    def measured(self) -> dict[str, Callable[[random.Random], Value]]:
        return {f"{self.name}t": lambda chance: chance.randrange(150, 300) / 10}


class JsonLamp(Entities):
    """A home-made lamp with the JSON schema. Its states are not retained: it introduces itself to whoever is born."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.truth = {self.name: False, f"{self.name}.brightness": 1}

    def configs(self) -> dict[str, dict[str, Any]]:
        topics = {"~": f"lamps/{self.name}", "cmd_t": "~/set", "stat_t": "~", "avty": [{"t": "~/status"}]}
        about = {"schema": "json", "sup_clrm": ["brightness"], "bri_scl": 100, "uniq_id": self.name}
        return {"light": topics | about | {"name": "Lamp"}}

    def report(self) -> Sequence[DeviceMessage]:
        is_on, level = self.truth.values()
        state = {"state": "ON" if is_on else "OFF", "color_mode": "brightness", "brightness": level}
        return [DeviceMessage(f"lamps/{self.name}", json.dumps(state))]

    def online(self, is_online: bool) -> Sequence[DeviceMessage]:
        return [DeviceMessage(f"lamps/{self.name}/status", "online" if is_online else "offline", True)]

    def commands(self) -> Sequence[str]:
        return [f"lamps/{self.name}/set"]

    def obey(self, topic: str, payload: str) -> str | None:
        asked = json.loads(payload)
        if "brightness" in asked:
            self.truth[f"{self.name}.brightness"] = asked["brightness"]
        self.truth[self.name] = asked.get("state", "ON" if self.truth[self.name] else "OFF") == "ON"
        return self.name

    def questions(self) -> Sequence[str]:
        return ["homeassistant/status"]

    def answer(self, topic: str, payload: str) -> Sequence[DeviceMessage]:
        return [*self.announcements(), *self.online(True), *self.report()] if payload == "online" else ()

    def settable(self) -> dict[str, Sequence[Value]]:
        return {self.name: (True, False), f"{self.name}.brightness": (10, 55, 100)}


class Curtain(Entities):
    """A curtain that counts from 0, open, to 255, closed, and has words of its own. Its states are retained."""

    retained = True

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.truth = {f"{self.name}.position": 100, self.name: "open"}

    def configs(self) -> dict[str, dict[str, Any]]:
        topics = {"~": f"curtains/{self.name}", "cmd_t": "~/set", "stat_t": "~/state", "avty_t": "~/status"}
        scale = {"pos_t": "~/pos", "set_pos_t": "~/pos/set", "pos_open": 0, "pos_clsd": 255}
        words = {"stat_open": "auf", "stat_clsd": "zu", "name": "Curtain", "uniq_id": self.name}
        return {"cover": topics | scale | words}

    def report(self) -> Sequence[DeviceMessage]:
        position = int(self.truth[f"{self.name}.position"])
        self.truth[self.name] = "open" if position else "closed"
        return [
            DeviceMessage(f"curtains/{self.name}/pos", f"{round(255 * (100 - position) / 100)}", True),
            DeviceMessage(f"curtains/{self.name}/state", "auf" if position else "zu", True),
        ]

    def online(self, is_online: bool) -> Sequence[DeviceMessage]:
        return [DeviceMessage(f"curtains/{self.name}/status", "online" if is_online else "offline", True)]

    def commands(self) -> Sequence[str]:
        return [f"curtains/{self.name}/pos/set", f"curtains/{self.name}/set"]

    def obey(self, topic: str, payload: str) -> str | None:
        whole = {"OPEN": 0, "CLOSE": 255}
        raw = whole[payload] if topic.endswith(f"{self.name}/set") else int(payload)
        self.truth[f"{self.name}.position"] = round(100 - raw * 100 / 255)
        return self.name

    def settable(self) -> dict[str, Sequence[Value]]:
        return {f"{self.name}.position": (0, 30, 77, 100)}


class RadioThermometer(Entities):
    """A Bluetooth thermometer that two radios hear, as with Theengs: its state has a topic of each radio."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.truth = {f"{self.name}-tempc": 20.0}

    def configs(self) -> dict[str, dict[str, Any]]:
        state = {"stat_t": f"+/+/BTtoMQTT/{self.name}", "val_tpl": "{{ value_json.tempc }}", "unit_of_meas": "°C"}
        return {"sensor": state | {"dev_cla": "temperature", "name": "T", "uniq_id": f"{self.name}-tempc"}}

    def report(self) -> Sequence[DeviceMessage]:
        (heat,) = self.truth.values()
        payload = json.dumps({"id": self.name, "rssi": -60, "tempc": heat})
        return [DeviceMessage(f"home/radio{radio}/BTtoMQTT/{self.name}", payload) for radio in (1, 2)]

    def measured(self) -> dict[str, Callable[[random.Random], Value]]:
        return {f"{self.name}-tempc": lambda chance: chance.randrange(150, 300) / 10}


class SparkplugMotor(HouseDevice):
    """A device at an edge node of Sparkplug B: named in its birth, by alias in its data. Births are not retained."""

    source = "sparkplug"

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.edge = f"edge{number}"
        self.truth = {"temperature": 60.0}

    @property
    def identity(self) -> tuple[str, str]:
        return self.source, f"plant/{self.edge}/motor"

    def report(self) -> Sequence[DeviceMessage]:
        name, alias = b"\x0a\x0btemperature", b"\x10\x07"
        place = f"spBv1.0/plant/{{}}/{self.edge}"
        return [
            DeviceMessage(place.format("NBIRTH"), _sparkplug(0)),
            DeviceMessage(f"{place.format('DBIRTH')}/motor", _sparkplug(1, name + alias + self._number)),
        ]

    def commands(self) -> Sequence[str]:
        return [f"spBv1.0/plant/NCMD/{self.edge}"]

    def obey(self, topic: str, payload: str) -> str | None:
        return "birth"  # it is asked for nothing else

    def changed(self, name: str) -> Sequence[DeviceMessage]:
        if name == "birth":
            return self.report()
        return [DeviceMessage(f"spBv1.0/plant/DDATA/{self.edge}/motor", _sparkplug(2, b"\x10\x07" + self._number))]

    @property
    def _number(self) -> bytes:
        return b"\x20\x0a\x69" + struct.pack("<d", float(self.truth["temperature"]))  # datatype Double, double_value

    def measured(self) -> dict[str, Callable[[random.Random], Value]]:
        return {"temperature": lambda chance: chance.randrange(400, 900) / 10}


def _sparkplug(sequence: int, *metrics: bytes) -> bytes:
    """The wire format of Protocol Buffers; all lengths are below 128."""
    packed = b"".join(b"\x12" + bytes([len(metric)]) + metric for metric in metrics)
    return b"\x08\x01" + packed + b"\x18" + bytes([sequence])


MAKES: tuple[type[HouseDevice], ...] = (
    ZigbeeLamp, ZigbeeMotion, TasmotaPlug, TasmotaShutter, FirstShelly, LaterShelly, EsphomeBoard, JsonLamp, Curtain,
    RadioThermometer, SparkplugMotor,
)  # fmt: skip
