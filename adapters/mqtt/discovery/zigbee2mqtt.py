"""The list of devices of Zigbee2MQTT -> devices.

``<base>/bridge/devices`` is a retained list with what each device exposes. A device is known by its IEEE address; its
topic, ``<base>/<friendly name>``, changes when it is renamed. A device that is not in the list any more is withdrawn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from lamplighter.adapters.devices.device import Problem, Table
from lamplighter.adapters.devices.draft import DeviceTexts, Draft, json_text, member_path, own_kind, plain
from lamplighter.adapters.devices.kinds import KINDS
from lamplighter.adapters.mqtt.discovery.announced import (
    ANNOUNCEMENT_BYTES_MAX,
    NOT_ANNOUNCED,
    Announced,
    Format,
    Group,
    Joined,
    json_document,
)
from lamplighter.adapters.mqtt.discovery.declared import Declared

NAME = "zigbee2mqtt"
DEVICES_MAX = 1_000
"""Of one list."""
EXPOSES_MAX = 300
"""Values of one device, with those in lights, switches and other composites."""
DEPTH_MAX = 4

_ADDRESS = re.compile(r"0x[0-9a-f]{16}")
_PUBLISHED, _SET, _GET = 1, 2, 4
"""Bits of `access`."""

_STATES = {
    "light": "gateway:light",
    "switch": "gateway:switch",
    "fan": "gateway:fan",
    "lock": "gateway:lock",
    "cover": "gateway:cover",
}
"""What `state` is in a specific type."""

_HARMLESS = frozenset(
    {
        # of the entry: the radio, and what people or the converter say of the device
        "type", "network_address", "supported", "description", "endpoints", "power_source", "date_code", "model_id",
        "scenes", "interviewing", "manufacturer", "interview_completed", "interview_state", "software_build_id",
        "group_id", "members", "options", "supports_ota", "icon", "source", "version",
        # of what is exposed: texts and steps of a user interface
        "label", "category", "endpoint", "value_min", "value_max", "value_step", "value_toggle", "presets",
        "features",
    }
)  # fmt: skip
"""Keys that say nothing of a value, a state or a command."""

_KINDS = {
    "ac_frequency": "frequency",
    "action": "event",
    "air_quality": "airQuality",
    "aqi": "airQuality",
    "battery": "battery",
    "battery_low": "batteryLow",
    "brightness": "brightness",
    "carbon_monoxide": "carbonMonoxideAlarm",
    "charging": "charging",
    "child_lock": "childLock",
    "co": "carbonMonoxide",
    "co2": "carbonDioxide",
    "color_hs": "color",
    "color_temp": "colorTemperature",
    "color_xy": "color",
    "contact": "contact",
    "cpu_temperature": "deviceTemperature",
    "current": "current",
    "current_heating_setpoint": "targetTemperature",
    "current_temperature": "temperature",
    "device_temperature": "deviceTemperature",
    "dew_point": "dewPoint",
    "distance": "distance",
    "effect": "effect",
    "energy": "energy",
    "fan_mode": "fanMode",
    "fan_speed": "fanSpeed",
    "fault": "fault",
    "flow": "volumeFlow",
    "formaldehyd": "formaldehyde",
    "formaldehyde": "formaldehyde",
    "gas": "gasAlarm",
    "hcho": "formaldehyde",
    "humidity": "humidity",
    "illuminance": "illuminance",
    "illuminance_lux": "illuminance",
    "input": "input",
    "internalTemperature": "deviceTemperature",
    "linkquality": "linkQuality",
    "local_temperature": "temperature",
    "lock_state": "lockState",
    "noise_detected": "soundDetected",
    "occupancy": "motion",
    "occupied_cooling_setpoint": "targetTemperature",
    "occupied_heating_setpoint": "targetTemperature",
    "pi_heating_demand": "valvePosition",
    "pm1": "pm1",
    "pm10": "pm10",
    "pm25": "pm25",
    "position": "position",
    "power": "power",
    "power_apparent": "apparentPower",
    "power_factor": "powerFactor",
    "power_reactive": "reactivePower",
    "presence": "occupancy",
    "preset": "preset",
    "pressure": "pressure",
    "produced_energy": "energyProduced",
    "rain": "rain",
    "room_temperature": "temperature",
    "running": "running",
    "running_state": "climateAction",
    "smoke": "smoke",
    "soil_moisture": "soilMoisture",
    "sound": "soundDetected",
    "system_mode": "climateMode",
    "tamper": "tamper",
    "target_distance": "distance",
    "target_temperature": "targetTemperature",
    "temperature": "temperature",
    "tilt": "tilt",
    "valve_position": "valvePosition",
    "vibration": "vibration",
    "voc": "volatileCompounds",
    "voltage": "voltage",
    "water_consumed": "waterVolume",
    "water_leak": "leak",
}
"""By the name of what is exposed. An `occupancy` is what a motion sensor sees; `presence` also is of people who do not
move."""
_CHANNEL = re.compile(r"_(?:(?:phase_)?[abc]|l?[0-9]{1,2})$")
"""At the end of a name: the phase or the channel that is measured."""


def covers(topic: str) -> bool:
    return topic.endswith("/bridge/devices")


def announced(broker: str, topic: str, payload: bytes) -> Announced:
    """The devices of a list. Raises ValueError."""
    base = topic.removesuffix("/bridge/devices")
    if not payload:
        return Announced()
    listed = json_document(payload, ANNOUNCEMENT_BYTES_MAX)
    if not isinstance(listed, list):
        raise ValueError("the payload is not a list of devices")
    parts: dict[tuple[Group, str], Any] = {}
    problems: list[Problem] = []
    if len(listed) > DEVICES_MAX:
        problems.append(Problem(NAME, broker, topic, f"the list has more than {DEVICES_MAX} devices"))
    for entry in listed[:DEVICES_MAX]:
        try:
            found = _device(broker, topic, base, entry)
        except ValueError as error:
            name = plain(entry.get("friendly_name")) if isinstance(entry, dict) else ""
            problems.append(Problem(NAME, broker, topic, f"{name or 'an entry'}: {error}"))
            continue
        if found is None:
            continue
        if isinstance(found, str):
            parts[found, "device"] = Joined(None, ["the device, which Zigbee2MQTT does not know"])
            continue
        problems += found.problems
        if (found.id, "device") in parts:
            problems.append(Problem(NAME, broker, topic, "the list has the address twice", found.identity))
        else:
            parts[found.id, "device"] = Joined.of(found)
    return Announced(parts, problems, below=f"{base}/")


def joined(broker: str, group: Group, parts: Mapping[str, Any]) -> Joined:
    found: Joined = parts.get("device", NOT_ANNOUNCED)
    return found


FORMAT = Format(NAME, ("+/bridge/devices", "+/+/bridge/devices"), covers=covers, announced=announced, joined=joined)


def _device(broker: str, topic: str, base: str, entry: object) -> Draft | str | None:
    """The device of an entry; its address if nothing is known of it; None for the coordinator, and for a device that is
    disabled."""
    if not isinstance(entry, Declared):
        raise ValueError("it is not an object")
    definition = entry.get("definition")
    if entry.get("type") == "Coordinator" or entry.get("disabled") is True:
        return None
    address, name = entry.get("ieee_address"), entry.get("friendly_name")
    if not isinstance(address, str) or not _ADDRESS.fullmatch(address):
        raise ValueError("ieee_address is not an IEEE address")
    if definition is None:
        return address
    if not isinstance(definition, Declared):
        raise ValueError("definition is not an object")
    if not isinstance(name, str) or not name or name.split("/")[0] == "bridge":
        raise ValueError("friendly_name is missing, or is that of the bridge")
    draft = Draft(
        NAME,
        address,
        broker=broker,
        topic=topic,
        about=DeviceTexts(name=name, manufacturer=definition.get("vendor"), model=definition.get("model")),
    )
    reader = _Reader(draft, f"{base}/{name}")
    exposes = definition.get("exposes")
    for count, (exposed, context, path) in enumerate(_exposed(exposes if isinstance(exposes, list) else [])):
        if count >= EXPOSES_MAX:
            draft.problem(f"the device exposes more than {EXPOSES_MAX} values")
            break
        reader.read(exposed, context, path)
    draft.leave_out(entry.omissions(_HARMLESS))
    # Version 1 may send the bare word, version 2 sends an object.
    for place in (f"{base}/bridge/state", f"{base}/{name}/availability"):
        draft.online(place, ["online"], ["offline"], ["state"], bare=True)
    return draft


def _exposed(
    exposes: list[Any], context: str = "", path: tuple[str, ...] = (), depth: int = 0
) -> Iterator[tuple[Declared, str, tuple[str, ...]]]:
    """The single values, each with the specific type that it is in, and the JSON path of what it is in; composites that
    are no values are without a type of those.

    A colour is one value, with its components as further ones.
    """
    for exposed in exposes:
        if not isinstance(exposed, Declared):
            exposed = Declared({})  # it is told as a value of an unknown type
        features, kind = exposed.get("features"), exposed.get("type")
        if not isinstance(features, list) or depth + 1 >= DEPTH_MAX:
            yield exposed, context, path
        elif kind == "composite":
            inner = exposed.get("property")
            if exposed.get("name") in ("color_xy", "color_hs") or not isinstance(inner, str):
                yield exposed, context, path
            else:
                yield from _exposed(features, context, (*path, inner), depth + 1)
        else:
            yield from _exposed(features, kind if isinstance(kind, str) else "", path, depth + 1)


class _Reader:
    """Adds what a device exposes to its draft. topic: of the device."""

    def __init__(self, draft: Draft, topic: str) -> None:
        self._draft, self._topic = draft, topic

    def read(self, exposed: Declared, context: str, path: tuple[str, ...]) -> None:
        name, inner = exposed.get("name"), exposed.get("property")
        label = plain(inner) or plain(name) or "a value"
        self._add(exposed, context, path, label)
        exposed.settle()

    def _add(self, exposed: Declared, context: str, path: tuple[str, ...], label: str) -> None:
        name, inner, access = exposed.get("name"), exposed.get("property"), exposed.get("access", 0)
        if name in ("color_xy", "color_hs") and isinstance(inner, str) and exposed.get("type") == "composite":
            self._color(name, inner)
            features = exposed.get("features")
            for component in features if isinstance(features, list) else ():
                if isinstance(component, Declared):
                    component.settle()  # they are always the same two numbers
            self._draft.leave_out(exposed.omissions(_HARMLESS), label)
            return
        kind = exposed.get("type")
        read = getattr(self, f"_{kind}", None) if isinstance(kind, str) and kind in _TYPES else None
        if not isinstance(name, str) or not isinstance(inner, str) or not name or not inner or read is None:
            self._draft.leave_out([f"the value of the type {plain(kind) or 'unknown'}"], label)
            return
        if not isinstance(access, int) or not access & (_PUBLISHED | _SET):
            self._draft.leave_out(["the value, which is neither published nor set"], label)
            return
        member = (*path, inner)
        try:
            member_path(member)
            kind = self._kind(name, context, inner)
            if not _fits(kind, exposed["type"]):
                kind = own_kind(name)  # such as a gas meter's `gas`, which is a number
            read(exposed, ".".join(member), kind, member, access)
            if access & _GET and name == "state" and not path:
                # Other values would take radio time, and change without people or rules.
                self._draft.ask(f"{self._topic}/get", json.dumps({inner: ""}))
            self._draft.leave_out(exposed.omissions(_HARMLESS), label)
        except ValueError as error:
            self._draft.problem(f"{plain(name)}: {error}")

    def _kind(self, name: str, context: str, inner: str) -> str:
        if context == "lock" and inner.startswith("child_lock"):
            return "gateway:childLock"
        if name == "state" and context in _STATES:
            return _STATES[context]
        if name == "mode" and context == "fan":
            return "gateway:fanMode"
        base = name if name in _KINDS else _CHANNEL.sub("", name)
        return f"gateway:{_KINDS[base]}" if base in _KINDS else own_kind(name)

    def _binary(self, exposed: Mapping[str, Any], key: str, kind: str, member: tuple[str, ...], access: int) -> None:
        on, off = exposed.get("value_on", True), exposed.get("value_off", False)
        if kind == "gateway:contact":
            # The exposed value is true while the contact is closed, and value_on is false.
            on, off = (on, off) if on is True else (off, on)
        state = self._sensor(key, kind, "boolean", member, access, on=[on], off=[off])
        if access & _SET:
            lamp = _lamp(exposed, kind)
            self._actuator(key, kind, member, state, values={"true": _json(on), "false": _json(off)}, lamp=lamp)

    def _numeric(self, exposed: Mapping[str, Any], key: str, kind: str, member: tuple[str, ...], access: int) -> None:
        state = self._sensor(key, kind, "number", member, access, unit=exposed.get("unit"))
        if access & _SET:
            bounds: dict[str, Any] = {"minimum": exposed.get("value_min"), "maximum": exposed.get("value_max")}
            lamp = _lamp(exposed, kind)
            self._actuator(key, kind, member, state, **bounds, lamp=lamp)
            if lamp is not None and kind == "gateway:brightness":
                name = f"transition{lamp['of'].removeprefix('light')}"
                rider = lamp | {"role": "transition"}
                self._actuator(name, "gateway:transition", ("transition",), None, minimum=0, lamp=rider)

    def _enum(self, exposed: Mapping[str, Any], key: str, kind: str, member: tuple[str, ...], access: int) -> None:
        more: dict[str, Any] = {"on_repeat": "event"} if kind == "gateway:event" else {}
        state = self._sensor(key, kind, "text", member, access, **more)
        listed = exposed.get("values")
        if not access & _SET:
            return
        if not isinstance(listed, list):
            raise ValueError("it has no list of values that can be set")
        values = {text: _json(one) for one in listed if (text := json_text(one))}
        # A blind that was told to stop reports another word.
        self._actuator(key, kind, member, None if kind == "gateway:cover" else state, values=values)

    def _text(self, exposed: Mapping[str, Any], key: str, kind: str, member: tuple[str, ...], access: int) -> None:
        more: dict[str, Any] = {"on_repeat": "event"} if kind == "gateway:event" else {}
        state = self._sensor(key, kind, "text", member, access, **more)
        if access & _SET:
            self._actuator(key, kind, member, state, value="{json}")

    def _color(self, name: str, inner: str) -> None:
        """Two numbers for reading, and a text such as #ff8800 for writing."""
        light = inner.removeprefix("color")  # `_l1`, `_l2` of a device with several lights
        first, second = ("x", "y") if name == "color_xy" else ("hue", "saturation")
        for component in (first, second):
            self._sensor(f"{name}{light}.{component}", f"property/{name}_{component}", "number", (inner, component), 1)
        if name == "color_xy":
            lamp = {"of": f"light{light}", "role": "mode"}
            self._actuator(f"color{light}", "gateway:color", (inner, "hex"), None, value="{json}", lamp=lamp)

    def _sensor(
        self, key: str, kind: str, payload: Any, member: tuple[str, ...], access: int, **more: Any
    ) -> Table | None:
        if not access & _PUBLISHED:
            return None
        label = key.replace("_", " ")
        return self._draft.sensor(key, kind, self._topic, payload, label=label, member=member, **more)

    def _actuator(
        self, key: str, kind: str, member: tuple[str, ...], state: Table | None, value: str = "{value}", **more: Any
    ) -> None:
        payload = value
        for name in reversed(member):
            payload = f"{{{_json(name)}: {payload}}}"
        self._draft.actuator(
            key, kind, f"{self._topic}/set", label=key.replace("_", " "), payload=payload, state=state, **more
        )


_TYPES = {"binary": "boolean", "numeric": "number", "enum": "text", "text": "text"}
"""Of exposed values, with what kinds call them."""


_LAMP_ROLES = {"gateway:light": "switch", "gateway:brightness": "part", "gateway:colorTemperature": "mode"}
"""What the parts of a light are. Zigbee2MQTT takes them in one object, in any order."""


def _lamp(exposed: Mapping[str, Any], kind: str) -> Table | None:
    """What an exposed value is of its light; those of one endpoint are one lamp."""
    name, inner, role = exposed.get("name"), exposed.get("property"), _LAMP_ROLES.get(kind)
    if role is None or name not in ("state", "brightness", "color_temp") or not str(inner).startswith(name):
        return None
    return {"of": f"light{str(inner).removeprefix(name)}", "role": role}


def _fits(kind: str, exposed_type: str) -> bool:
    """Whether a kind of the vocabulary has values of this type."""
    found = KINDS.get(kind.removeprefix("gateway:"))
    return found is None or found.value in ("any", _TYPES[exposed_type])


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
