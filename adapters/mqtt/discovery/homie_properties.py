"""Properties of Homie devices, of both versions of the convention, as parts of a device."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from lamplighter.adapters.devices.draft import Draft, Payload, own_kind, plain
from lamplighter.adapters.mqtt.discovery.measured import meaning

NAME_CHARS_MAX = 64
_ID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9-]{{0,{NAME_CHARS_MAX - 1}}}")
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_TYPES: dict[str, Payload] = {
    "integer": "number", "float": "number", "boolean": "boolean", "string": "text", "enum": "text", "color": "text",
    "datetime": "text", "duration": "text",
}  # fmt: skip
_SWITCHES = {"light": "light", "lamp": "light", "fan": "fan", "lock": "lock", "siren": "siren"}
"""Names of properties that can be set and are booleans; others are switches."""
_NUMBERS = {
    "brightness": "brightness", "dim": "brightness", "dimmer": "brightness", "position": "position",
    "targettemperature": "targetTemperature", "settemperature": "targetTemperature", "setpoint": "targetTemperature",
}  # fmt: skip
ONLINE, OFFLINE = ["ready", "sleeping", "alert", "init"], ["disconnected", "lost"]
"""Words of `$state`."""


class HomieProperty(NamedTuple):
    """As the device describes it. name: for people; retained: False: a value is an event."""

    node: str
    id: str
    name: str
    datatype: str
    format: str = ""
    unit: str = ""
    settable: bool = False
    retained: bool = True


def is_id(text: object) -> bool:
    """Whether a text can be the identifier of a device, a node or a property."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def add_property(draft: Draft, base: str, found: HomieProperty) -> None:
    """Adds a property of a device to its draft. base: the topic of the device."""
    key, topic = f"{found.node}.{found.id}", f"{base}/{found.node}/{found.id}"
    payload = _TYPES.get(found.datatype)
    if payload is None:
        draft.leave_out([f"the property of the type {plain(found.datatype) or 'unknown'}"], key)
        return
    try:
        kind = _kind(found, payload)
    except ValueError as error:
        draft.problem(f"{plain(key)}: {error}")
        return
    label = plain(found.name) or key
    more: dict[str, Any] = {"on": ["true"], "off": ["false"]} if payload == "boolean" else {}
    if not found.retained:
        more |= {"on_repeat": "event"}
    state = draft.sensor(key, kind, topic, payload, label=label, unit=_unit(found.unit), **more)
    if not found.settable:
        return
    target: dict[str, Any] = {"state": state if found.retained else None}
    if payload == "boolean":
        target["values"] = {"true": "true", "false": "false"}
    elif found.datatype == "enum":
        target["values"] = {word: word for word in found.format.split(",") if word}
    elif payload == "number":
        target |= dict(zip(("minimum", "maximum"), _bounds(found.format), strict=False))
    draft.actuator(key, kind, f"{topic}/set", label=label, **target)


def _kind(found: HomieProperty, payload: Payload) -> str:
    plain_id = found.id.replace("-", "").lower()
    if not found.retained and payload == "text":
        return "gateway:event"
    if found.settable and payload == "boolean":
        return f"gateway:{_SWITCHES.get(plain_id, 'switch')}"
    if found.settable and payload == "number":
        return f"gateway:{_NUMBERS[plain_id]}" if plain_id in _NUMBERS else own_kind(found.id)
    said = meaning(found.id, payload)
    return said.kind if said.payload == payload else own_kind(found.id)


def _unit(unit: str) -> str | None:
    return None if unit in ("", "#") else unit


def _bounds(form: str) -> tuple[float | None, float | None]:
    """The bounds of a format such as ``10:15``, ``:15`` or ``0:100:5``."""
    ends = [float(end) if _NUMBER.fullmatch(end) else None for end in form[:100].split(":")]
    return (ends[0], ends[1]) if len(ends) > 1 else (None, None)
