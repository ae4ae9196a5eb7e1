"""Tasmota's discovery -> devices.

``tasmota/discovery/<MAC>/config`` has the topics and the relays of a device, ``.../sensors`` an example of its
telemetry with the members that it sends. Both are retained; the device is known once the first one is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from lamplighter.adapters.devices.device import Problem, Table
from lamplighter.adapters.devices.draft import Draft, own_kind, plain
from lamplighter.adapters.mqtt.discovery.announced import Announced, Format, Group, Joined, json_object

NAME = "tasmota"
PREFIX = "tasmota/discovery"
RELAYS_MAX = 32
MEMBERS_MAX = 200
"""Of the telemetry."""

_TOPIC = re.compile(r"tasmota/discovery/([0-9A-F]{12})/(config|sensors)")
_RELAY, _LIGHT, _SHUTTER = 1, 2, 3
_WHITES, _COLORS = (2, 5), (3, 4, 5)
"""Kinds of lights (`lt_st`) with two whites, and with colours. All can be dimmed."""

_KINDS = {
    "AQI": ("airQuality", None),
    "ApparentPower": ("apparentPower", "VA"),
    "Battery": ("battery", "%"),
    "CarbonDioxide": ("carbonDioxide", "ppm"),
    "CO2": ("carbonDioxide", "ppm"),
    "Current": ("current", "A"),
    "DewPoint": ("dewPoint", None),
    "Distance": ("distance", "cm"),
    "Factor": ("powerFactor", None),
    "Frequency": ("frequency", "Hz"),
    "Humidity": ("humidity", "%"),
    "Illuminance": ("illuminance", "lx"),
    "Moisture": ("soilMoisture", "%"),
    "PM1": ("pm1", "µg/m³"),
    "PM10": ("pm10", "µg/m³"),
    "PM2.5": ("pm25", "µg/m³"),
    "Power": ("power", "W"),
    "Pressure": ("pressure", None),
    "ReactivePower": ("reactivePower", "var"),
    "SeaPressure": ("pressure", None),
    "Temperature": ("temperature", None),
    "Today": ("energy", "kWh"),
    "Total": ("energy", "kWh"),
    "UvIndex": ("uvIndex", None),
    "Voltage": ("voltage", "V"),
    "Weight": ("weight", "kg"),
    "Yesterday": ("energy", "kWh"),
}
"""By the member's name: property and unit. Those of temperatures and pressures are in the telemetry."""
_IN_TELEMETRY = {
    "DewPoint": "TempUnit",
    "Pressure": "PressureUnit",
    "SeaPressure": "PressureUnit",
    "Temperature": "TempUnit",
}
_SWITCH = re.compile(r"Switch[0-9]{1,2}")


def covers(topic: str) -> bool:
    return topic.startswith(f"{PREFIX}/")


def announced(broker: str, topic: str, payload: bytes) -> Announced:
    """The configuration or the telemetry of a device, as a part of it. Raises ValueError."""
    found = _TOPIC.fullmatch(topic)
    if found is None:
        raise ValueError("the topic is not tasmota/discovery/<MAC>/config or .../sensors")
    address, part = found[1], found[2]
    if not payload:
        return Announced()
    document = json_object(payload)
    if part == "config" and document.get("mac") != address:
        raise ValueError("the payload has another address than the topic")
    return Announced({(address, part): payload})  # its text takes less memory than its values


def joined(broker: str, group: Group, parts: Mapping[str, Any]) -> Joined:
    config, telemetry = parts.get("config"), parts.get("sensors")
    topic = f"{PREFIX}/{group}/config"
    if config is None:
        return Joined(None)
    try:
        sent = {} if telemetry is None else json_object(telemetry)
        draft = _configured(broker, topic, group, json_object(config), sent.get("sn"))
    except ValueError as error:
        return Joined(None, [Problem(NAME, broker, topic, str(error), f"{NAME}/{group}")])
    return Joined(draft.device(), draft.problems)


FORMAT = Format(NAME, (f"{PREFIX}/+/config", f"{PREFIX}/+/sensors"), covers=covers, announced=announced, joined=joined)


def _configured(broker: str, topic: str, address: str, config: Mapping[str, Any], telemetry: object) -> Draft:
    draft = Draft(
        NAME,
        address,
        broker=broker,
        topic=topic,
        name=config.get("dn"),
        manufacturer="Tasmota",
        model=config.get("md"),
    )
    command, status, sent = (_topic(config, number) for number in range(3))
    words = config.get("state")
    off, on = words[:2] if isinstance(words, list) and len(words) >= 2 else ("OFF", "ON")
    for telemetry_and_state in ("10", "11"):
        draft.ask(f"{command}STATUS", telemetry_and_state)
    draft.online(f"{sent}LWT", [config.get("onln", "Online")], [config.get("ofln", "Offline")])

    relays = _integers(config.get("rl"))[:RELAYS_MAX]
    names = config.get("fn")
    names = names if isinstance(names, list) else []
    switched = [number for number, relay in enumerate(relays, 1) if relay in (_RELAY, _LIGHT)]
    options = config.get("so")
    all_lights = isinstance(options, dict) and options.get("30") == 1
    one_light = relays.count(_LIGHT) == 1  # else it is not known which of them a dimmer is of
    for number in switched:
        light = relays[number - 1] == _LIGHT or all_lights
        kind = "gateway:light" if light else "gateway:switch"
        power = f"POWER{number}" if len(switched) > 1 else "POWER"
        label = plain(names[number - 1]) if number <= len(names) else ""
        also = _periodic(sent, status, power)
        state = draft.sensor(
            power, kind, f"{status}{power}", "boolean", label=label or power, on=[on], off=[off], also=also
        )
        values = {"true": on, "false": off}
        lamp = _lamp("switch", 2) if relays[number - 1] == _LIGHT and one_light else None
        draft.actuator(power, kind, f"{command}{power}", label=label or power, values=values, state=state, lamp=lamp)
    if _LIGHT in relays:
        _light(draft, config.get("lt_st"), (command, status, sent), one_light=one_light)
    for number in range(1, relays.count(_SHUTTER) // 2 + 1):
        key = f"ShutterPosition{number}"
        member = (f"Shutter{number}", "Position")
        also = ((f"{sent}SENSOR", member), (f"{status}STATUS10", ("StatusSNS", *member)))
        state = draft.sensor(key, "gateway:position", f"{status}RESULT", "number", member=member, unit="%", also=also)
        draft.actuator(key, "gateway:position", f"{command}{key}", state=state, minimum=0, maximum=100)
    if isinstance(telemetry, dict):
        _telemetry(draft, f"{sent}SENSOR", f"{status}STATUS10", telemetry, (on, off))
    return draft


def _periodic(sent: str, status: str, member: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Where a member of the state is beside the topic of its changes: in the periodic state, and in the answer."""
    return (f"{sent}STATE", (member,)), (f"{status}STATUS11", ("StatusSTS", member))


def _lamp(role: str, order: int) -> Table:
    """Colour and brightness come before the power, so that the lamp comes on as it is to be."""
    return {"of": "light", "role": role, "order": order}


def _light(draft: Draft, lights: object, topics: tuple[str, str, str], *, one_light: bool) -> None:
    """topics: of commands, status and telemetry."""
    command, status, sent = topics
    part, mode = (_lamp("part", 1), _lamp("mode", 0)) if one_light else (None, None)
    result = f"{status}RESULT"

    def sensor(name: str, kind: str, payload: Literal["number", "text"], unit: str | None = None) -> Table | None:
        return draft.sensor(name, kind, result, payload, member=(name,), unit=unit, also=_periodic(sent, status, name))

    state = sensor("Dimmer", "gateway:brightness", "number", "%")
    draft.actuator("Dimmer", "gateway:brightness", f"{command}Dimmer", state=state, minimum=0, maximum=100, lamp=part)
    if lights in _WHITES:
        state = sensor("CT", "gateway:colorTemperature", "number", "mired")
        kind = "gateway:colorTemperature"
        draft.actuator("CT", kind, f"{command}CT", state=state, minimum=153, maximum=500, lamp=mode)
    if lights in _COLORS:
        state = sensor("HSBColor", "gateway:color", "text")
        draft.actuator("HSBColor", "gateway:color", f"{command}HSBColor", state=state, lamp=mode)


def _telemetry(
    draft: Draft, topic: str, answer: str, telemetry: Mapping[str, Any], words: tuple[object, object]
) -> None:
    """topic: of the telemetry; answer: of the answer to a question for it; words: on and off."""
    on, off = words
    for count, path in enumerate(_members(telemetry)):
        if count >= MEMBERS_MAX:
            draft.problem(f"the telemetry has more than {MEMBERS_MAX} members")
            return
        value: Any = telemetry
        for step in path:
            value = value[step]
        last = next(str(step) for step in reversed(path) if isinstance(step, str))
        key = ".".join(map(str, path))
        also = ((answer, ("StatusSNS", *path)),)
        if len(path) == 1 and _SWITCH.fullmatch(last):
            draft.sensor(key, "gateway:input", topic, "boolean", member=path, on=[on], off=[off], also=also)
        elif (value is None and last in _KINDS) or (isinstance(value, int | float) and not isinstance(value, bool)):
            name, unit = _KINDS.get(last, (None, None))
            if last in _IN_TELEMETRY:
                unit = telemetry.get(_IN_TELEMETRY[last])
            try:
                kind = f"gateway:{name}" if name else own_kind(last)
            except ValueError as error:
                draft.problem(f"{plain(key)}: {error}")
                continue
            label = key.replace(".", " ")
            draft.sensor(key, kind, topic, "number", label=label, member=path, unit=unit, also=also)


def _members(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths to single values, three levels deep, lists of phases included."""
    if isinstance(value, dict) and len(path) < 3:
        for name, inner in value.items():
            yield from _members(inner, (*path, name))
    elif isinstance(value, list) and path:
        for number in range(min(len(value), 4)):
            if not isinstance(value[number], dict | list):
                yield (*path, number)
    elif path and not isinstance(value, dict | list):
        yield path


def _topic(config: Mapping[str, Any], number: int) -> str:
    """The full topic for commands (0), status (1) or telemetry (2), with a slash at the end."""
    full, topic, prefixes = config.get("ft"), config.get("t"), config.get("tp")
    if not isinstance(full, str) or not isinstance(topic, str) or not isinstance(prefixes, list):
        raise ValueError("the configuration has no full topic (ft), topic (t) or prefixes (tp)")
    if len(prefixes) != 3 or not all(isinstance(prefix, str) for prefix in prefixes) or len(full) > 200:
        raise ValueError("the prefixes (tp) are not three texts, or the full topic (ft) is too long")
    address = config.get("mac")
    texts = {"prefix": prefixes[number], "topic": topic, "hostname": config.get("hn"), "id": str(address)[-6:]}
    for name, text in texts.items():
        if f"%{name}%" in full:
            if not isinstance(text, str):
                raise ValueError(f"the full topic (ft) needs %{name}%, which is missing")
            full = full.replace(f"%{name}%", text)
    return full if full.endswith("/") else f"{full}/"


def _integers(found: object) -> list[int]:
    return [one for one in found if isinstance(one, int)] if isinstance(found, list) else []
