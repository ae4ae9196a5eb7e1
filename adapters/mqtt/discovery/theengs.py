"""Bluetooth devices that Theengs Gateway and OpenMQTTGateway decode -> devices, without Home Assistant's announcements.

``<base>/<gateway>/BTtoMQTT/<address>`` has the values of one device. Devices that the decoder does not know are left
alone: each telephone that passes by is one. Devices are only read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lamplighter.adapters.devices.draft import plain
from lamplighter.adapters.mqtt.discovery.announced import Announced, Format, Group, Joined, json_object
from lamplighter.adapters.mqtt.discovery.learned import MessageOrigin, learned_device, learned_parts
from lamplighter.adapters.mqtt.discovery.measured import Meaning

NAME = "theengs"
_TOPIC = re.compile(r"[^/]+/[^/]+/BTtoMQTT/([0-9A-F]{12})")
_HARMLESS = frozenset(
    {
        # who the device is, and what it sent
        "id", "name", "mac", "mac_type", "adv_type", "brand", "model", "model_id", "type", "cidc", "acts", "cont",
        "track", "prmac", "manufacturerdata", "servicedata", "servicedatauuid", "encr", "ctr", "mic", "cipher",
        "txpower", "device", "location", "presence", "hidden", "unlocked", "tracker", "mfid", "uuid", "mjid", "mnid",
        "distance", "rssi_avg",
        # the same values in other units
        "tempf", "temp2_f", "tempf2", "volt_unit",
    }
)  # fmt: skip
_BITS = (("on", ("1", "true", "on")), ("off", ("0", "false", "off")))
_KNOWN = {
    "tempc": Meaning("gateway:temperature", "number", "°C"),
    "hum": Meaning("gateway:humidity", "number", "%"),
    "batt": Meaning("gateway:battery", "number", "%"),
    "volt": Meaning("gateway:voltage", "number", "V"),
    "lux": Meaning("gateway:illuminance", "number", "lx"),
    "moi": Meaning("gateway:soilMoisture", "number", "%"),
    "fer": Meaning("gateway:conductivity", "number", "uS/cm"),
    "pres": Meaning("gateway:pressure", "number", "hPa"),
    "pow": Meaning("gateway:power", "number", "W"),
    "motion": Meaning("gateway:motion", "boolean", None, _BITS),
    "open": Meaning("gateway:contact", "boolean", None, (("on", _BITS[1][1]), ("off", _BITS[0][1]))),
}


def covers(topic: str) -> bool:
    return "/BTtoMQTT/" in topic and _TOPIC.fullmatch(topic) is not None


def read_values(broker: str, topic: str, payload: bytes) -> Announced:
    """The values of a device. Raises ValueError."""
    match = _TOPIC.fullmatch(topic)
    assert match is not None
    if not payload:
        return Announced(adds=True)
    values = json_object(payload)
    if not isinstance(values.get("model_id"), str):
        return Announced(adds=True)  # the decoder does not know the device
    about = {
        "name": plain(values.get("name")) or match[1],
        "manufacturer": plain(values.get("brand")),
        "model": plain(values.get("model")) or plain(values.get("model_id")),
    }
    for name in _HARMLESS:
        values.pop(name, None)
    # Whichever radio hears it.
    return learned_parts(match[1], about, MessageOrigin(f"+/+/BTtoMQTT/{match[1]}"), values, [])


def make_device(broker: str, group: Group, parts: Mapping[str, Any]) -> Joined:
    return learned_device(NAME, broker, group, parts, known=_KNOWN)


FORMAT = Format(NAME, ("+/+/BTtoMQTT/+",), covers=covers, announced=read_values, joined=make_device)
