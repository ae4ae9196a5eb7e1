"""Announcements of toys -> devices: ``toys/<id>/announce`` names the topic of a temperature."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lamplighter.adapters.devices.draft import DeviceTexts, Draft
from lamplighter.adapters.mqtt.discovery.announced import NOT_ANNOUNCED, Announced, Format, Joined, json_object

NAME = "toy"
HARMLESS = frozenset({"colour"})
"""Keys that say nothing of values and states."""
_TOPIC = re.compile(r"toys/([a-z0-9]+)/announce")


def covers(topic: str) -> bool:
    return _TOPIC.fullmatch(topic) is not None


def announced(broker: str, topic: str, payload: bytes) -> Announced:
    match = _TOPIC.fullmatch(topic)
    assert match is not None
    draft = Draft(NAME, match[1], broker=broker, topic=topic, about=DeviceTexts(match[1]))
    announcement = json_object(payload)
    draft.sensor("temperature", "gateway:temperature", announcement["topic"], "number")
    draft.leave_out(announcement.omissions(HARMLESS))
    return Announced({(draft.id, "all"): Joined.of(draft)}, draft.problems)


def joined(broker: str, group: str, parts: Mapping[str, Any]) -> Joined:
    found: Joined = parts.get("all", NOT_ANNOUNCED)
    return found


FORMAT = Format(NAME, ("toys/+/announce",), covers=covers, announced=announced, joined=joined)
