"""Devices that publish each value at a topic of its own: what they have is learnt from the topics.

A part is one topic below that of the device, or the first level of a topic that is not used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from lamplighter.adapters.devices.device import Table
from lamplighter.adapters.devices.draft import DeviceTexts, Draft, plain, segment
from lamplighter.adapters.mqtt.discovery.announced import Announced, Group, Joined
from lamplighter.adapters.mqtt.discovery.measured import Meaning

BELOW_CHARS_MAX = 120
TOPICS_MAX = 4_096
"""Of which it is remembered what they have."""
BITS: tuple[tuple[str, Any], ...] = (("on", ("1", "true")), ("off", ("0", "false")))
_LEFT_OUT, _TEXT = "-", "="
Leaves = tuple[tuple[str, Meaning], ...]
"""Regular expressions of topics below that of the device, and what is there."""


class TopicTree:
    """The topics of one kind of device. texts: topics with name, manufacturer or model; harmless: topics that say
    nothing of values and states."""

    def __init__(self, leaves: Leaves, *, texts: Mapping[str, str], harmless: str) -> None:
        self._leaves = [(re.compile(pattern), found) for pattern, found in leaves]
        self._meaning = lru_cache(TOPICS_MAX)(self._find)
        self._texts = texts
        self._harmless = re.compile(harmless)

    def parts(self, group: Group, below: str, payload: bytes) -> Announced:
        """What a message at a topic below that of the device shows. Raises ValueError."""
        segment(group)
        if below in self._texts:
            text = plain(payload.decode(errors="replace")[:BELOW_CHARS_MAX])
            return Announced({(group, _TEXT + self._texts[below]): text} if text else {}, adds=True)
        if self._harmless.fullmatch(below) or not payload:
            return Announced(adds=True)
        if len(below) > BELOW_CHARS_MAX or self._meaning(below) is None:
            return Announced({(group, _LEFT_OUT + plain(below.partition("/")[0])): None}, adds=True)
        return Announced({(group, below): None}, adds=True)

    def device(
        self,
        format_name: str,
        broker: str,
        group: Group,
        parts: Mapping[str, Any],
        base: str,
        about: DeviceTexts,
        complete: Callable[[Draft, Mapping[str, Table]], None],
    ) -> Joined:
        """The device of the parts. base: its topic; about: texts in the place of those that no message has; complete:
        adds what no message shows, such as commands, to the draft with these sensors by topic."""
        texts = about._replace(**{key[1:]: text for key, text in parts.items() if key.startswith(_TEXT)})
        draft = Draft(format_name, group, broker=broker, topic=base, about=texts)
        draft.leave_out(f"{name.removeprefix(_LEFT_OUT)}/..." for name in parts if name.startswith(_LEFT_OUT))
        sensors: dict[str, Table] = {}
        for below in sorted(name for name in parts if name[:1] not in (_LEFT_OUT, _TEXT)):
            found = self._meaning(below)
            if found is None:
                continue
            key, topic = below.replace("/", "."), f"{base}/{below}"
            label = below.replace("/", " ")
            table = draft.sensor(key, found.kind, topic, found.payload, label=label, unit=found.unit, **found.keys)
            if table is not None:
                sensors[below] = table
        if not sensors:
            return Joined(None, draft.left_out)
        complete(draft, sensors)
        return Joined.of(draft, draft.problems, whole=False)

    def _find(self, below: str) -> Meaning | None:
        return next((found for pattern, found in self._leaves if pattern.fullmatch(below)), None)
