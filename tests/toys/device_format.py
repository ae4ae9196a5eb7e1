"""Announcements of toys -> devices: ``toys/<id>/announce`` names the topic of a temperature."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lamplighter.adapters.devices.draft import Draft
from lamplighter.adapters.mqtt.discovery.announced import Announced, Format, Joined, json_object

NAME = "toy"
_TOPIC = re.compile(r"toys/([a-z0-9]+)/announce")


def covers(topic: str) -> bool:
    return _TOPIC.fullmatch(topic) is not None


def announced(broker: str, topic: str, payload: bytes) -> Announced:
    match = _TOPIC.fullmatch(topic)
    assert match is not None
    draft = Draft(NAME, match[1], broker=broker, topic=topic, name=match[1])
    draft.sensor("temperature", "gateway:temperature", json_object(payload)["topic"], "number")
    return Announced({(draft.id, "all"): draft.device()}, draft.problems)


def joined(broker: str, group: str, parts: Mapping[str, Any]) -> Joined:
    return Joined(parts.get("all"))


FORMAT = Format(NAME, ("toys/+/announce",), covers=covers, announced=announced, joined=joined)
