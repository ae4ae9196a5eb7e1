"""Uplinks of The Things Stack (version 3) -> devices.

``v3/<application>@<tenant>/devices/<device>/up`` has the values that a payload formatter decodes in
``uplink_message.decoded_payload``. Devices are only read.
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

NAME = "thethings"
_TOPIC = re.compile(r"v3/([^/]+)/devices/([^/]+)/up")
_HARMLESS = frozenset(
    {
        # of the device in the network, and of the message itself
        "application_ids", "join_eui", "dev_addr", "correlation_ids", "received_at", "simulated", "session_key_id",
        "f_port", "f_cnt", "frm_payload", "settings", "consumed_airtime", "network_ids", "packet_error_rate",
        "locations", "version_ids", "confirmed", "decoded_payload_warnings", "normalized_payload", "attributes",
        "last_battery_percentage", "last_battery_percentage_value", "normalized_payload_warnings",
        # of each gateway that heard it
        "gateway_ids", "time", "timestamp", "fine_timestamp", "channel_rssi", "signal_rssi", "location", "uplink_token",
        "channel_index", "gps_time", "packet_broker", "frequency_offset", "antenna_index",
    }
)  # fmt: skip
_KNOWN = {
    "rssi": Meaning("gateway:signalStrength", "number", "dBm"),
    "snr": Meaning("property/snr", "number", "dB"),
}
_VALUES = ("uplink_message", "decoded_payload")


def covers(topic: str) -> bool:
    return topic.startswith("v3/") and _TOPIC.fullmatch(topic) is not None


def read_uplink(broker: str, topic: str, payload: bytes) -> Announced:
    """The values of an uplink. Raises ValueError."""
    match = _TOPIC.fullmatch(topic)
    assert match is not None
    if not payload:
        return Announced(adds=True)
    document = json_object(payload)
    names, uplink = document.get("end_device_ids"), document.get("uplink_message")
    if not isinstance(names, Declared) or names.get("device_id") != match[2]:
        raise ValueError("end_device_ids.device_id is not that of the topic")
    if not isinstance(uplink, Declared):
        raise ValueError("uplink_message is not an object")
    address = names.get("dev_eui")
    group = address.lower() if isinstance(address, str) and address else f"{match[1]}/{match[2]}"
    decoded, heard = uplink.get("decoded_payload"), uplink.get("rx_metadata")
    message: dict[str, Any] = {}
    if isinstance(decoded, Declared):
        message["decoded_payload"] = decoded
    if isinstance(heard, list) and heard and isinstance(heard[0], Declared):
        message["rx_metadata"] = [Declared({name: heard[0].get(name) for name in ("rssi", "snr")})]
        settle(heard[1:])
    settle([decoded])
    left_out = [] if isinstance(decoded, Declared) else ["frm_payload, since no payload formatter decodes it"]
    left_out += document.omissions(_HARMLESS)
    about = {"name": plain(match[2]), "model": "LoRaWAN"}
    values = Declared({"uplink_message": Declared(message)})
    return learned_parts(group, about, MessageOrigin(topic), values, left_out)


def make_device(broker: str, group: Group, parts: Mapping[str, Any]) -> Joined:
    return learned_device(NAME, broker, group, parts, within=_VALUES, known=_KNOWN)


FORMAT = Format(NAME, ("v3/+/devices/+/up",), covers=covers, announced=read_uplink, joined=make_device)
