"""Announcements of Shelly devices -> devices, of both generations.

First generation: ``shellies/announce`` says who a device is; what it has is learnt from the topics below
``shellies/<prefix>/`` on which it publishes. Second generation and later: ``<prefix>/events/rpc`` has notifications
with the device's identifier and the status of its components; what it has is learnt from them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from lamplighter.adapters.devices.device import Problem
from lamplighter.adapters.devices.draft import DeviceTexts, Draft, plain
from lamplighter.adapters.mqtt.discovery.announced import Announced, Format, Group, Joined, json_object
from lamplighter.adapters.mqtt.discovery.declared import Declared
from lamplighter.adapters.mqtt.discovery.shelly_components import COMPONENTS, add_actuator, has_member, path_of

NAME = "shelly"
COMPONENTS_MAX = 64
"""Of one device of the second generation."""
PART_CHARS_MAX = 120

_LEFT_OUT = "-"
"""Begins the names of parts that are not used."""
_WHOLE = "NotifyFullStatus"
"""The part of a device that has told all of its components."""
_ON, _OFF = ["on", "true", "1"], ["off", "false", "0"]
PREFIX_LEVELS_MAX = 8
"""Of the prefix of a later device."""
_PREFIX = re.compile(rf"[A-Za-z0-9._ -]{{1,64}}(?:/[A-Za-z0-9._ -]{{1,64}}){{0,{PREFIX_LEVELS_MAX - 1}}}")
_ADDRESS = re.compile(r"[0-9A-Fa-f]{12}")
_IDENTIFIER = re.compile(r"[A-Za-z0-9]{1,40}-([0-9A-Fa-f]{12})")
_COMPONENT = re.compile(r"([a-z][a-z0-9]{0,20}):([0-9]{1,3})")

_FIRST = (
    ("relay/{n}", "gateway:switch", "switch", None),
    ("relay/{n}/power", "gateway:power", "number", "W"),
    ("relay/{n}/energy", "gateway:energy", "number", "J"),
    ("roller/{n}", "gateway:cover", "cover", None),
    ("roller/{n}/pos", "gateway:position", "position", "%"),
    ("roller/{n}/power", "gateway:power", "number", "W"),
    ("roller/{n}/energy", "gateway:energy", "number", "J"),
    ("light/{n}", "gateway:light", "switch", None),
    ("light/{n}/status", "gateway:brightness", "level", "%"),
    ("light/{n}/power", "gateway:power", "number", "W"),
    ("color/{n}", "gateway:light", "switch", None),
    ("color/{n}/status", "gateway:brightness", "gain", "%"),
    ("white/{n}", "gateway:light", "switch", None),
    ("white/{n}/status", "gateway:brightness", "level", "%"),
    ("input/{n}", "gateway:input", "boolean", None),
    ("emeter/{n}/power", "gateway:power", "number", "W"),
    ("emeter/{n}/voltage", "gateway:voltage", "number", "V"),
    ("emeter/{n}/current", "gateway:current", "number", "A"),
    ("emeter/{n}/pf", "gateway:powerFactor", "number", None),
    ("emeter/{n}/total", "gateway:energy", "number", "Wh"),
    ("emeter/{n}/total_returned", "gateway:energyProduced", "number", "Wh"),
    ("temperature", "gateway:deviceTemperature", "number", "°C"),
    ("overtemperature", "gateway:heatAlarm", "boolean", None),
    ("voltage", "gateway:voltage", "number", "V"),
    ("adc/{n}", "gateway:voltage", "number", "V"),
    ("ext_temperature/{n}", "gateway:temperature", "number", "°C"),
    ("ext_humidity/{n}", "gateway:humidity", "number", "%"),
    ("sensor/temperature", "gateway:temperature", "number", "°C"),
    ("sensor/humidity", "gateway:humidity", "number", "%"),
    ("sensor/battery", "gateway:battery", "number", "%"),
    ("sensor/lux", "gateway:illuminance", "number", "lx"),
    ("sensor/motion", "gateway:motion", "boolean", None),
    ("sensor/vibration", "gateway:vibration", "boolean", None),
    ("sensor/flood", "gateway:leak", "boolean", None),
    ("sensor/smoke", "gateway:smoke", "boolean", None),
    ("sensor/gas", "gateway:gasAlarm", "alarm", None),
    ("sensor/state", "gateway:contact", "contact", None),
    ("sensor/tilt", "gateway:angle", "number", "deg"),
    ("sensor/charger", "gateway:charging", "boolean", None),
)
"""Topics of the first generation below ``shellies/<prefix>/``: kind, how it is read, unit. Energy is counted in watt
minutes there, of 60 J."""
_WITH_ERROR_CODE = ("sensor/temperature", "sensor/humidity", "ext_temperature/", "ext_humidity/")
"""Topics of sensors that send 999 for a failed measurement."""
_FIRST_HARMLESS = re.compile(
    r"online|info|command|announce|status|settings|temperature_f|temperature_status|overpower|sensor/(?:act_reasons|error)"
    r"|(?:.*/)?(?:command(?:/.*)?|set|overpower_value|status)|(?:relay|roller|light)/[0-9]/(?:stop_reason|source)"
)
"""Topics below ``shellies/<prefix>/`` that have no value of their own: commands, the same values again, and the
device's description of itself."""
_HARMLESS = frozenset(
    {
        "ip", "new_fw", "fw_ver", "gen", "auth_en", "name", "app", "ver",
    }
)  # fmt: skip
"""Keys of ``announce`` that say nothing of values, states and commands."""
_SECOND_HARMLESS_COMPONENTS = re.compile(
    r"ts|sys|wifi|eth|ble|cloud|mqtt|ws|ui|plugs_ui|modbus|knx|matter|script:[0-9]+|schedule:[0-9]+"
)
_SECOND_HARMLESS = frozenset(
    {
        "id", "source", "by_minute", "minute_ts", "tF", "timer_started_at", "timer_duration", "move_started_at",
        "move_timeout", "target_pos", "errors", "flags", "last_direction", "pos_control", "slat_pos_control",
        "calibration", "state_counts", "xpercent", "external", "present", "packet_id",
        "last_updated_ts", "paired", "connected", "rpc", "rsv", "schedule_rev", "fw_ver",
    }
)  # fmt: skip
"""Components and members of the later generations: the device's own parts, and what says why or since when."""
_FIRST_TOPICS = [
    (re.compile(template.replace("{n}", "[0-9]")), (kind, how, unit)) for template, kind, how, unit in _FIRST
]


@lru_cache(maxsize=4_096)
def _first_kind(below: str) -> tuple[str, str, str | None] | None:
    """What a topic of the first generation tells: kind, how it is read, unit."""
    return next((about for pattern, about in _FIRST_TOPICS if pattern.fullmatch(below)), None)


def covers(topic: str) -> bool:
    return topic.startswith("shellies/") or topic.endswith("/events/rpc")


def announced(broker: str, topic: str, payload: bytes) -> Announced:
    """Who a device is, a topic of it, or components of it. Raises ValueError."""
    if topic.endswith("/events/rpc"):
        return _notified(broker, topic, payload)
    below = topic.removeprefix("shellies/")
    if below in ("announce", "command"):
        return _introduced(broker, topic, payload) if below == "announce" else Announced(adds=True)
    prefix, _, rest = below.partition("/")
    if rest == "announce" and _PREFIX.fullmatch(prefix):
        return _introduced(broker, topic, payload)
    if not payload or not _PREFIX.fullmatch(prefix) or (_FIRST_HARMLESS.fullmatch(rest) and not _first_kind(rest)):
        return Announced(adds=True)
    return Announced({(f"shellies/{prefix}", rest[:PART_CHARS_MAX]): None}, adds=True)


def joined(broker: str, group: Group, parts: Mapping[str, Any]) -> Joined:
    return _first(broker, group, parts) if group.startswith("shellies/") else _second(broker, group, parts)


FORMAT = Format(
    NAME,
    ("shellies/#", *("+/" * levels + "events/rpc" for levels in range(1, PREFIX_LEVELS_MAX + 1))),
    covers=covers,
    announced=announced,
    joined=joined,
    asks=(("shellies/command", "announce"),),
    state_asks=(("shellies/command", "update"),),
)


def _introduced(broker: str, topic: str, payload: bytes) -> Announced:
    """`announce` of the first generation; a newer device answers there too, and says what it has elsewhere."""
    if not payload:
        return Announced(adds=True)
    document = json_object(payload)
    if isinstance(document.get("gen"), int) and document["gen"] > 1:
        return Announced(adds=True)
    prefix, address = document.get("id"), document.get("mac")
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix) or "/" in prefix:
        raise ValueError("id is missing, or cannot be used in a topic")
    if not isinstance(address, str) or not _ADDRESS.fullmatch(address):
        raise ValueError("mac is not an address")
    if topic not in ("shellies/announce", f"shellies/{prefix}/announce"):
        raise ValueError("the payload has another id than the topic")
    about: dict[str, Any] = {"address": address.upper(), "model": plain(document.get("model"))}
    document.get("mode")  # what it has now is learnt from its topics
    about["left_out"] = list(document.omissions(_HARMLESS))
    return Announced({(f"shellies/{prefix}", "announce"): about}, adds=True)


def _notified(broker: str, topic: str, payload: bytes) -> Announced:
    prefix = topic.removesuffix("/events/rpc")
    if not payload:
        return Announced(adds=True)
    document = json_object(payload)
    source, params = document.get("src"), document.get("params")
    if not isinstance(document.get("method"), str):
        raise ValueError("method is missing")
    if document.get("method") not in ("NotifyStatus", "NotifyFullStatus"):
        return Announced(adds=True)  # events, whose values have no state
    if not isinstance(params, Declared):
        raise ValueError("params is not an object with the status of components")
    if not isinstance(source, str) or not (found := _IDENTIFIER.fullmatch(source)) or not _PREFIX.fullmatch(prefix):
        raise ValueError("src is not the identifier of a device, or its topic cannot be used")
    left_out = [name for name in document.omissions({"dst"}) if not name.startswith("params.")]
    if len(params) > COMPONENTS_MAX:
        raise ValueError(f"the notification has more than {COMPONENTS_MAX} components")
    parts: dict[tuple[Group, str], Any] = {(prefix, f"{_LEFT_OUT}{plain(name)}"): None for name in left_out}
    for name, status in params.read_all():
        component = _COMPONENT.fullmatch(name)
        if component is None or component[1] not in COMPONENTS or not isinstance(status, Declared):
            if not _SECOND_HARMLESS_COMPONENTS.fullmatch(name):
                parts[prefix, f"{_LEFT_OUT}{plain(name)}"] = None
            continue
        for member, _, _, _ in COMPONENTS[component[1]]:
            if has_member(status, path_of(member)):
                parts[prefix, f"{name}.{member}"] = None
        for member in status.omissions(_SECOND_HARMLESS):
            parts[prefix, f"{_LEFT_OUT}{plain(f'{name}.{member}')}"] = None
    if document["method"] == "NotifyFullStatus":
        parts[prefix, _WHOLE] = None
    if parts:
        parts[prefix, "src"] = {"address": found[1].upper(), "model": source.partition("-")[0]}
    return Announced(parts, adds=True)


def _first(broker: str, group: Group, parts: Mapping[str, Any]) -> Joined:
    about = parts.get("announce")
    if about is None:
        return Joined(None, ["its topics, until it announces itself"])
    prefix = group.removeprefix("shellies/")
    draft = Draft(
        NAME,
        about["address"],
        broker=broker,
        topic=f"{group}/announce",
        about=DeviceTexts(name=prefix, manufacturer="Shelly", model=about["model"]),
    )
    draft.online(f"{group}/online", ["true"], ["false"])
    draft.leave_out(about["left_out"], "announce")
    known = {below: found for below in sorted(parts) if (found := _first_kind(below)) is not None}
    draft.leave_out(set(parts) - known.keys() - {"announce"}, "topics")
    for below, (kind, how, unit) in known.items():
        key, topic = below.replace("/", "."), f"{group}/{below}"
        if how in ("number", "position"):
            more: dict[str, Any] = {"scale": 60} if unit == "J" else {}
            if below.startswith(_WITH_ERROR_CODE):
                more["no_value"] = ["999"]
            state = draft.sensor(key, kind, topic, "number", unit=unit, **more)
            if how == "position":
                draft.actuator(
                    key, kind, f"{topic.removesuffix('/pos')}/command/pos", state=state, minimum=0, maximum=100
                )
        elif how == "level":
            lamp = {"of": key.removesuffix(".status")}
            state = draft.sensor(key, kind, topic, "number", member=("brightness",), unit=unit)
            payload, to = '{"brightness": {value}}', f"{topic.removesuffix('/status')}/set"
            draft.actuator(key, kind, to, payload=payload, state=state, minimum=0, maximum=100, lamp=lamp)
        elif how == "gain":
            lamp, to = {"of": key.removesuffix(".status")}, f"{topic.removesuffix('/status')}/set"
            state = draft.sensor(key, kind, topic, "number", member=("gain",), unit=unit)
            payload = '{"gain": {value}}'
            draft.actuator(key, kind, to, payload=payload, state=state, minimum=0, maximum=100, lamp=lamp)
            payload, mode = '{"red": {red}, "green": {green}, "blue": {blue}}', lamp | {"role": "mode", "name": "rgb"}
            draft.actuator(f"{lamp['of']}.color", "gateway:color", to, payload=payload, lamp=mode)
        elif how == "cover":
            draft.sensor(key, kind, topic, "text")
            words = {"OPEN": "open", "CLOSE": "close", "STOP": "stop"}
            draft.actuator(key, kind, f"{topic}/command", values=words)
        elif how == "contact":
            draft.sensor(key, kind, topic, "boolean", on=["close", "0"], off=["open", "1"])
        elif how == "alarm":
            draft.sensor(key, kind, topic, "boolean", on=["mild", "heavy"], off=["none", "test"])
        else:
            state = draft.sensor(key, kind, topic, "boolean", on=_ON, off=_OFF)
            if how == "switch":
                words = {"true": "on", "false": "off"}
                lamp = {"of": key, "role": "switch"}
                if f"{below}/status" in parts:  # a light that takes all of its states in one object
                    payload, to = '{"turn": "{value}"}', f"{topic}/set"
                    draft.actuator(key, kind, to, payload=payload, values=words, state=state, lamp=lamp)
                else:
                    draft.actuator(key, kind, f"{topic}/command", values=words, state=state)
    return Joined.of(draft, draft.problems, whole=False)


def _second(broker: str, group: Group, parts: Mapping[str, Any]) -> Joined:
    about = parts["src"]
    topic = f"{group}/events/rpc"
    try:
        draft = Draft(
            NAME,
            about["address"],
            broker=broker,
            topic=topic,
            about=DeviceTexts(name=group, manufacturer="Shelly", model=about["model"]),
        )
    except ValueError as error:
        return Joined(None, (), [Problem(NAME, broker, topic, str(error))])
    draft.online(f"{group}/online", ["true"], ["false"])
    # It answers on <src>/rpc, so each device has a topic of its own for its answers.
    draft.ask(f"{group}/rpc", f'{{"id": 1, "src": "{group}/lamplighter", "method": "Shelly.GetStatus"}}')
    left_out = {part for part in parts if part.startswith(_LEFT_OUT)}
    draft.leave_out(part.removeprefix(_LEFT_OUT) for part in left_out)
    for part in sorted(parts.keys() - left_out - {"src", _WHOLE}):
        component, _, member = part.partition(".")
        name = component.partition(":")[0]
        kind, payload, unit = next((k, p, u) for m, k, p, u in COMPONENTS[name] if m == member)
        key, path = f"{component.replace(':', '.')}.{member}", path_of(member)
        words: dict[str, Any] = {"on": ["true"], "off": ["false"]} if payload == "boolean" else {}
        state = draft.sensor(
            key,
            kind,
            topic,
            "number" if payload == "number" else "boolean" if payload == "boolean" else "text",
            label=key.replace(".", " "),
            member=("params", component, *path),
            unit=unit,
            also=((f"{group}/status/{component}", path), (f"{group}/lamplighter/rpc", ("result", component, *path))),
            **words,
        )
        add_actuator(draft, f"{group}/rpc", component, key, kind, state)
    return Joined.of(draft, draft.problems, whole=_WHOLE in parts)
