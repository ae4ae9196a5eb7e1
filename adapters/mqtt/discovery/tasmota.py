"""Tasmota's discovery -> devices.

``tasmota/discovery/<MAC>/config`` has the topics and the relays of a device, ``.../sensors`` an example of its
telemetry with the members that it sends. Both are retained; the device is known once the first one is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from lamplighter.adapters.devices.device import Problem, Table
from lamplighter.adapters.devices.draft import DeviceTexts, Draft, own_kind, plain
from lamplighter.adapters.mqtt.discovery.announced import Announced, Format, Group, Joined, json_object
from lamplighter.adapters.mqtt.discovery.declared import Declared

NAME = "tasmota"
PREFIX = "tasmota/discovery"
RELAYS_MAX = 32
MEMBERS_MAX = 200
"""Of the telemetry."""
PHASES_MAX = 4

_TOPIC = re.compile(r"tasmota/discovery/([0-9A-F]{12})/(config|sensors)")
_RELAY, _LIGHT, _SHUTTER = 1, 2, 3
_WHITES, _COLORS = (2, 5), (3, 4, 5)
"""Kinds of lights (`lt_st`) with two whites, and with colours. All can be dimmed."""

_HARMLESS = frozenset(
    {
        "ip", "hn", "mac", "sw", "ver", "lk", "swn", "bat", "dslp", "cam",
    }
)  # fmt: skip
"""Keys of the configuration that say nothing of a value, a state or a command. `lk`: whether the channels of a light
are one; `bat` and `dslp`: that it runs on a battery and sleeps."""
_OPTIONS_HARMLESS = frozenset(
    {
        "11", "13", "20", "114", "117",
    }
)  # fmt: skip
"""Options (`so`) of buttons, and of what happens at the device."""
_TELEMETRY_HARMLESS = frozenset(
    {
        "Time", "TotalStartTime", "Id", "TempUnit", "PressureUnit", "SpeedUnit",
    }
)  # fmt: skip

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
_BUTTONS_ALONE, _SWITCHES_ALONE = "73", "114"
"""Options (`so`) by which buttons and switches send messages."""
_FOLLOWING = (1, 2, 9, 10, 13, 14)
"""Modes of switches (`swc`) that have a state; the others are pushed."""
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
        return Joined(None, ["its telemetry, until its configuration is announced"])
    try:
        configuration = json_object(config)
        sent = Declared({}) if telemetry is None else json_object(telemetry)
        draft = _configured(broker, topic, group, configuration, sent.get("sn"))
    except ValueError as error:
        return Joined(None, (), [Problem(NAME, broker, topic, str(error), f"{NAME}/{group}")])
    draft.leave_out(configuration.omissions(_HARMLESS))
    draft.leave_out(sent.omissions(_HARMLESS), "sensors")
    return Joined.of(draft, draft.problems)


FORMAT = Format(NAME, (f"{PREFIX}/+/config", f"{PREFIX}/+/sensors"), covers=covers, announced=announced, joined=joined)


def _configured(broker: str, topic: str, address: str, config: Declared, telemetry: object) -> Draft:
    draft = Draft(
        NAME,
        address,
        broker=broker,
        topic=topic,
        about=DeviceTexts(name=config.get("dn"), manufacturer="Tasmota", model=config.get("md")),
    )
    command, status, sent = (_topic(config, number) for number in range(3))
    words = config.get("state")
    has_words = isinstance(words, list) and len(words) >= 2
    off, on = words[:2] if has_words else ("OFF", "ON")
    if words is not None and not has_words:
        draft.leave_out(["state"])
    for telemetry_and_state in ("10", "11"):
        draft.ask(f"{command}STATUS", telemetry_and_state)
    draft.online(f"{sent}LWT", [config.get("onln", "Online")], [config.get("ofln", "Offline")])

    relays = (_integers(draft, config, "rl") or [])[:RELAYS_MAX]
    names = config.get("fn")
    names = names if isinstance(names, list) else []
    switched = [number for number, relay in enumerate(relays, 1) if relay in (_RELAY, _LIGHT)]
    options = config.get("so")
    if not isinstance(options, Declared):
        draft.leave_out(["so"] if options is not None else [])
        options = Declared({})
    all_lights = options.get("30") == 1
    wide = options.get("82") == 1
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
        _light(draft, config.get("lt_st"), (command, status, sent), (200, 380) if wide else (153, 500), one_light)
    _shutters(draft, config, relays.count(_SHUTTER) // 2, (command, status, sent))
    _inputs(draft, config, options, f"{status}RESULT")
    if isinstance(telemetry, Declared):
        changes = f"{status}RESULT" if options.get(_SWITCHES_ALONE) == 1 else None
        _telemetry(draft, f"{sent}SENSOR", (f"{status}STATUS10", changes), telemetry, (on, off))
    elif telemetry is not None:
        draft.leave_out(["sn, which is not an object"], "sensors")
    _leave_out(draft, config, options, relays)
    return draft


def _shutters(draft: Draft, config: Declared, count: int, topics: tuple[str, str, str]) -> None:
    """topics: of commands, status and telemetry."""
    command, status, sent = topics
    shutters = _integers(draft, config, "sho")
    # Without its options, it is not known which end of a shutter is 100.
    for number in range(1, count + 1) if shutters is not None else ():
        key = f"ShutterPosition{number}"
        member = (f"Shutter{number}", "Position")
        # The first bit of the shutter's options: 100 is closed.
        is_inverted = any(bits & 1 for bits in (shutters or ())[number - 1 : number])
        percent: dict[str, Any] = {"scale": -1, "offset": 100} if is_inverted else {}
        also = ((f"{sent}SENSOR", member), (f"{status}STATUS10", ("StatusSNS", *member)))
        state = draft.sensor(
            key, "gateway:position", f"{status}RESULT", "number", member=member, unit="%", also=also, **percent
        )
        draft.actuator(key, "gateway:position", f"{command}{key}", state=state, minimum=0, maximum=100, **percent)


def _inputs(draft: Draft, config: Declared, options: Declared, topic: str) -> None:
    """Buttons and switches that send what is done with them, instead of switching the relays. topic: of messages such
    as ``{"Button1": {"Action": "SINGLE"}}``."""
    for key, option, name, is_one in (
        ("btn", _BUTTONS_ALONE, "Button", lambda mode: mode == 1),
        ("swc", _SWITCHES_ALONE, "Switch", lambda mode: mode not in (-1, *_FOLLOWING)),
    ):
        modes = _integers(draft, config, key) if options.get(option) == 1 else None
        for number, mode in enumerate((modes or [])[:RELAYS_MAX], 1):
            if is_one(mode):
                member, label = (f"{name}{number}", "Action"), f"{name} {number}"
                event = f"{name}{number}.Action"
                draft.sensor(event, "gateway:event", topic, "text", label=label, member=member, on_repeat="event")


def _leave_out(draft: Draft, config: Declared, options: Declared, relays: list[int]) -> None:
    """What the configuration turns on and is not read: numbers that are not those of something that is off."""
    for key, off, option, what in (
        ("swc", -1, _SWITCHES_ALONE, "switches (swc), but for those in the telemetry, without SetOption114"),
        ("btn", 0, _BUTTONS_ALONE, "buttons (btn), which send nothing without SetOption73"),
        ("sht", 0, "", "the slats of shutters (sht)"),
        ("if", 0, "", "the speed of the fan (if)"),
        ("ty", 0, "", "the Tuya module (ty)"),
    ):
        if any(number != off for number in _numbers_in(config.get(key))) and options.get(option) != 1:
            draft.leave_out([what])
    on = [name for name, value in options.read_all() if value not in (0, None)]
    draft.leave_out(
        [f"so.{name}" for name in on if name not in ("30", "82", _BUTTONS_ALONE) and name not in _OPTIONS_HARMLESS]
    )
    draft.leave_out([f"relays of the kind {kind} (rl)" for kind in set(relays) - {0, _RELAY, _LIGHT, _SHUTTER}])
    if config.get("lt_st") and _LIGHT not in relays:
        draft.leave_out(["the light (lt_st), since no relay is one"])


def _periodic(sent: str, status: str, member: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Where a member of the state is beside the topic of its changes: in the periodic state, and in the answer."""
    return (f"{sent}STATE", (member,)), (f"{status}STATUS11", ("StatusSTS", member))


def _lamp(role: str, order: int) -> Table:
    """Colour and brightness come before the power, so that the lamp comes on as it is to be."""
    return {"of": "light", "role": role, "order": order}


def _light(
    draft: Draft, lights: object, topics: tuple[str, str, str], mireds: tuple[int, int], one_light: bool
) -> None:
    """topics: of commands, status and telemetry. mireds: bounds of the colour temperature."""
    command, status, sent = topics
    part, mode = (_lamp("part", 1), _lamp("mode", 0)) if one_light else (None, None)
    result = f"{status}RESULT"

    def sensor(name: str, kind: str, payload: Literal["number", "text"], unit: str | None = None) -> Table | None:
        return draft.sensor(name, kind, result, payload, member=(name,), unit=unit, also=_periodic(sent, status, name))

    state = sensor("Dimmer", "gateway:brightness", "number", "%")
    draft.actuator("Dimmer", "gateway:brightness", f"{command}Dimmer", state=state, minimum=0, maximum=100, lamp=part)
    if lights in _WHITES:
        state = sensor("CT", "gateway:colorTemperature", "number", "mired")
        kind, (coldest, warmest) = "gateway:colorTemperature", mireds
        draft.actuator("CT", kind, f"{command}CT", state=state, minimum=coldest, maximum=warmest, lamp=mode)
    if lights in _COLORS:
        state = sensor("HSBColor", "gateway:color", "text")
        draft.actuator("HSBColor", "gateway:color", f"{command}HSBColor", state=state, lamp=mode)


def _telemetry(
    draft: Draft, topic: str, others: tuple[str, str | None], telemetry: Declared, words: tuple[object, object]
) -> None:
    """topic: of the telemetry; others: of the answer to a question for it, and of changes of switches, if they send
    them; words: on and off."""
    (on, off), (answer, changes) = words, others
    for count, path in enumerate(_members(telemetry)):
        if count >= MEMBERS_MAX:
            draft.problem(f"the telemetry has more than {MEMBERS_MAX} members")
            return
        value: Any = telemetry
        for step in path:
            value = value[step]
        last = next(str(step) for step in reversed(path) if isinstance(step, str))
        key = ".".join(map(str, path))
        also: tuple[tuple[str, tuple[str | int, ...]], ...] = ((answer, ("StatusSNS", *path)),)
        if len(path) == 1 and _SWITCH.fullmatch(last):
            if changes is not None:
                also = (*also, (changes, (last, "Action")))
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
        elif isinstance(value, Declared):
            draft.leave_out([key], "sensors")
            value.settle()
        elif last not in _TELEMETRY_HARMLESS and value not in (None, ""):
            draft.leave_out([key], "sensors")
        elif value is None and last not in _TELEMETRY_HARMLESS:
            draft.leave_out([f"{key}, which has no value yet"], "sensors")


def _members(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths to single values, three levels deep, lists of phases included; and to what is deeper or longer."""
    if isinstance(value, Declared) and len(path) < 3:
        for name, inner in value.read_all():
            yield from _members(inner, (*path, name))
    elif isinstance(value, list) and path:
        for number in range(min(len(value), PHASES_MAX)):
            yield (*path, number)
        if len(value) > PHASES_MAX:
            yield path
    elif path:
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


def _numbers_in(found: object) -> Iterator[int]:
    if isinstance(found, list):
        for one in found:
            yield from _numbers_in(one)
    elif isinstance(found, int):
        yield found


def _integers(draft: Draft, config: Declared, key: str) -> list[int] | None:
    """A list of numbers, empty if there is none; None for anything else, which is left out."""
    found = config.get(key)
    if found is None or (isinstance(found, list) and all(type(one) is int for one in found)):
        return found or []
    draft.leave_out([f"{key}, which is not a list of numbers"])
    return None
