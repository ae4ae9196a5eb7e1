"""Events of rtl_433 -> devices.

All devices that a radio hears are at one topic, ``rtl_433/<host>/events``: model, id and channel in the message say
which. Devices are only read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lamplighter.adapters.devices.draft import json_text, plain
from lamplighter.adapters.mqtt.discovery.announced import Announced, Format, Group, Joined, json_object
from lamplighter.adapters.mqtt.discovery.learned import MessageOrigin, learned_device, learned_parts
from lamplighter.adapters.mqtt.discovery.measured import Meaning

NAME = "rtl433"
TOPIC = "rtl_433/+/events"
_TOPIC = re.compile(r"rtl_433/[^/]+/events")
_NAMES = ("model", "id", "channel", "subtype")
"""Members that tell a device from others."""
_HARMLESS = frozenset(
    {
        "time",
        "mic",
        "mod",
        "freq",
        "freq1",
        "freq2",
        "protocol",
        "seq",
        "sequence_num",
        "msg_type",
        "data",
        "raw",
        "codes",
    }
    | {"rows", "transmit", "flags", "description", "type", "count", "num_rows", "len", "exception", "raw_msg"}
)  # fmt: skip
"""Members that say how a message was received."""
_SWITCH = (("on", ("1", "true", "on")), ("off", ("0", "false", "off")))
_EVENT = (("on_repeat", "event"),)
_KNOWN = {
    "alarm": Meaning("gateway:fault", "boolean", None, _SWITCH),
    "battery_ok": Meaning("gateway:batteryLow", "boolean", None, (("on", ("0",)), ("off", ("1",)))),
    "button": Meaning("gateway:event", "text", None, _EVENT),
    "cmd": Meaning("gateway:event", "text", None, _EVENT),
    "code": Meaning("gateway:event", "text", None, _EVENT),
    "event": Meaning("gateway:event", "text", None, _EVENT),
    "light_lux": Meaning("gateway:illuminance", "number", "lx"),
    "moisture": Meaning("gateway:soilMoisture", "number", "%"),
    "motion": Meaning("gateway:motion", "boolean", None, _SWITCH),
    "noise": Meaning("property/noise", "number", "dB"),
    "rain_mm": Meaning("gateway:precipitation", "number", "mm"),
    "rssi": Meaning("gateway:signalStrength", "number", "dB"),
    "snr": Meaning("property/snr", "number", "dB"),
    "tamper": Meaning("gateway:tamper", "boolean", None, _SWITCH),
    "wind_dir_deg": Meaning("gateway:windDirection", "number", "deg"),
}


def covers(topic: str) -> bool:
    return topic.startswith("rtl_433/") and _TOPIC.fullmatch(topic) is not None


def read_event(broker: str, topic: str, payload: bytes) -> Announced:
    """The values of an event. Raises ValueError."""
    if not payload:
        return Announced(adds=True)
    event = json_object(payload)
    model = event.get("model")
    if not isinstance(model, str) or not model or plain(model) != model:
        raise ValueError("model is missing")
    where = {name: event.get(name) for name in _NAMES if json_text(event.get(name))}
    if "id" not in where and "channel" not in where:
        raise ValueError("the event has neither id nor channel; devices of this model cannot be told from each other")
    group = "-".join(plain(json_text(word)) for word in where.values())
    event.mark(_HARMLESS | set(_NAMES))
    for name in _HARMLESS | set(_NAMES):
        event.pop(name, None)
    return learned_parts(group, {"name": group, "model": model}, MessageOrigin(TOPIC, where), event, [])


def make_device(broker: str, group: Group, parts: Mapping[str, Any]) -> Joined:
    return learned_device(NAME, broker, group, parts, known=_KNOWN)


FORMAT = Format(NAME, (TOPIC,), covers=covers, announced=read_event, joined=make_device)
