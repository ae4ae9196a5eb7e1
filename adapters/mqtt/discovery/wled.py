"""Topics of WLED -> lamps.

``wled/<name>/g`` has the brightness, 0 for off, and ``.../c`` the colour. Messages to ``wled/<name>`` switch and dim,
those to ``.../col`` colour. The topic is the default one, with the end of the address or another name of one level.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lamplighter.adapters.devices.draft import DeviceTexts, Draft
from lamplighter.adapters.mqtt.discovery.announced import Announced, Format, Group, Joined

NAME = "wled"
BASE = "wled"
_TOPIC = re.compile(rf"{BASE}/([^/]+)/(g|c)")
_BRIGHTNESS_MAX = 255


def covers(topic: str) -> bool:
    return topic.startswith(f"{BASE}/") and _TOPIC.fullmatch(topic) is not None


def read_topic(broker: str, topic: str, payload: bytes) -> Announced:
    match = _TOPIC.fullmatch(topic)
    assert match is not None
    return Announced({(match[1], match[2]): None} if payload and match[1] != "all" else {}, adds=True)


def make_device(broker: str, group: Group, parts: Mapping[str, Any]) -> Joined:
    base = f"{BASE}/{group}"
    try:
        draft = Draft(NAME, group, broker=broker, topic=f"{base}/g", about=DeviceTexts(group, "WLED", "LED strip"))
    except ValueError as error:
        return Joined(None, [str(error)])
    lamp = {"of": "light", "order": 1}
    draft.online(f"{base}/status", ["online"], ["offline"])
    if "g" in parts:
        # Each brightness but 0 is a lamp that is on.
        words = {"on": [str(level) for level in range(1, _BRIGHTNESS_MAX + 1)]}
        place = f"{base}/g"
        state = draft.sensor(
            "light", "gateway:light", place, "boolean", label="light", on=["1"], off=["0"], instead=words
        )
        values = {"true": "ON", "false": "OFF"}
        draft.actuator("light", "gateway:light", base, values=values, state=state, lamp=lamp | {"role": "switch"})
        state = draft.sensor("brightness", "gateway:brightness", f"{base}/g", "number", label="brightness")
        part = lamp | {"role": "part", "order": 2}
        draft.actuator(
            "brightness", "gateway:brightness", base, state=state, minimum=0, maximum=_BRIGHTNESS_MAX, lamp=part
        )
    if "c" in parts:
        state = draft.sensor("color", "gateway:color", f"{base}/c", "text", label="color")
        draft.actuator("color", "gateway:color", f"{base}/col", state=state, lamp=lamp | {"role": "mode"})
    return Joined.of(draft, draft.problems, whole=False)


FORMAT = Format(NAME, (f"{BASE}/+/g", f"{BASE}/+/c"), covers=covers, announced=read_topic, joined=make_device)
