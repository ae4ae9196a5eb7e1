"""Uplinks of ChirpStack (version 4) -> devices.

``application/<id>/device/<DevEUI>/event/up`` has the values that the codec of the device profile decodes in ``object``,
and ``.../event/status`` its battery. Devices are only read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lamplighter.adapters.devices.draft import plain
from lamplighter.adapters.mqtt.discovery.announced import Announced, Format, Group, Joined, json_object
from lamplighter.adapters.mqtt.discovery.declared import Declared
from lamplighter.adapters.mqtt.discovery.learned import MessageOrigin, learned_device, learned_parts, settle
from lamplighter.adapters.mqtt.discovery.measured import Meaning

NAME = "chirpstack"
_TOPIC = re.compile(r"application/[^/]+/device/([0-9a-fA-F]{16})/event/(up|status)")
_HARMLESS = frozenset(
    {
        # of the network, and of the message itself
        "deduplicationId", "time", "devAddr", "adr", "dr", "fCnt", "fPort", "confirmed", "data", "txInfo",
        "regionConfigId", "tenantId", "tenantName", "applicationId", "applicationName", "deviceProfileId",
        "deviceClassEnabled", "tags", "externalPowerSource", "batteryLevelUnavailable", "relay", "joinServerContext",
        # of each gateway that heard it
        "gatewayId", "uplinkId", "gwTime", "nsTime", "timeSinceGpsEpoch", "fineTimeSinceGpsEpoch", "channel", "board",
        "antenna", "location", "context", "crcStatus", "metadata", "rfChain",
    }
)  # fmt: skip
_KNOWN = {
    "rssi": Meaning("gateway:signalStrength", "number", "dBm"),
    "snr": Meaning("property/snr", "number", "dB"),
    "margin": Meaning("property/margin", "number", "dB"),
    "batteryLevel": Meaning("gateway:battery", "number", "%"),
}


def covers(topic: str) -> bool:
    return topic.startswith("application/") and _TOPIC.fullmatch(topic) is not None


def read_event(broker: str, topic: str, payload: bytes) -> Announced:
    """The values of an uplink or a status. Raises ValueError."""
    match = _TOPIC.fullmatch(topic)
    assert match is not None
    if not payload:
        return Announced(adds=True)
    event = json_object(payload)
    info = event.get("deviceInfo")
    if not isinstance(info, Declared) or str(info.get("devEui")).lower() != match[1].lower():
        raise ValueError("deviceInfo.devEui is not that of the topic")
    about = {"name": plain(info.get("deviceName")), "model": plain(info.get("deviceProfileName"))}
    values = Declared({name: event.get(name) for name in ("margin", "batteryLevel") if match[2] == "status"})
    decoded, heard = event.get("object"), event.get("rxInfo")
    if isinstance(heard, list) and heard and isinstance(heard[0], Declared):
        values["rxInfo"] = [Declared({name: heard[0].get(name) for name in ("rssi", "snr")})]
        settle(heard[1:])
    settle([decoded])
    left_out = list(event.omissions(_HARMLESS))
    if isinstance(decoded, Declared):
        values["object"] = decoded
    elif match[2] == "up":
        left_out.append("data, since the device profile has no codec that decodes it")
    return learned_parts(match[1].lower(), about, MessageOrigin(topic), values, left_out)


def make_device(broker: str, group: Group, parts: Mapping[str, Any]) -> Joined:
    return learned_device(NAME, broker, group, parts, within=("object",), known=_KNOWN)


FORMAT = Format(
    NAME,
    ("application/+/device/+/event/up", "application/+/device/+/event/status"),
    covers=covers,
    announced=read_event,
    joined=make_device,
)
