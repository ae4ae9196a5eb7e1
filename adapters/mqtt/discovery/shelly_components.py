"""Components of later Shelly devices: what their members are, and the calls that switch them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lamplighter.adapters.devices.device import Table
from lamplighter.adapters.devices.draft import Draft

_LAMP = (
    ("output", "gateway:light", "boolean", None),
    ("brightness", "gateway:brightness", "number", "%"),
    ("apower", "gateway:power", "number", "W"),
    ("aenergy.total", "gateway:energy", "number", "Wh"),
)
_RGB = tuple((f"rgb.{n}", f"property/color_{name}", "number", None) for n, name in enumerate(("red", "green", "blue")))
_METHODS = {"light": "Light", "rgb": "RGB", "rgbw": "RGBW", "cct": "CCT", "switch": "Switch"}
"""Components that are switched -> the beginning of their methods."""

COMPONENTS: dict[str, tuple[tuple[str, str, str, str | None], ...]] = {
    "switch": (
        ("output", "gateway:switch", "boolean", None),
        ("apower", "gateway:power", "number", "W"),
        ("voltage", "gateway:voltage", "number", "V"),
        ("current", "gateway:current", "number", "A"),
        ("freq", "gateway:frequency", "number", "Hz"),
        ("pf", "gateway:powerFactor", "number", None),
        ("aenergy.total", "gateway:energy", "number", "Wh"),
        ("ret_aenergy.total", "gateway:energyProduced", "number", "Wh"),
        ("temperature.tC", "gateway:deviceTemperature", "number", "°C"),
    ),
    "light": _LAMP,
    "rgb": (*_LAMP, *_RGB),
    "rgbw": (*_LAMP, *_RGB, ("white", "property/white", "number", None)),
    "cct": (*_LAMP, ("ct", "gateway:colorTemperature", "number", "K")),
    "thermostat": (
        ("current_C", "gateway:temperature", "number", "°C"),
        ("target_C", "gateway:targetTemperature", "number", "°C"),
        ("enable", "gateway:switch", "boolean", None),
        ("output", "gateway:running", "boolean", None),
    ),
    "blutrv": (
        ("current_C", "gateway:temperature", "number", "°C"),
        ("target_C", "gateway:targetTemperature", "number", "°C"),
        ("pos", "gateway:valvePosition", "number", "%"),
        ("battery", "gateway:battery", "number", "%"),
        ("rssi", "gateway:signalStrength", "number", "dBm"),
    ),
    "bthomedevice": (
        ("battery", "gateway:battery", "number", "%"),
        ("rssi", "gateway:signalStrength", "number", "dBm"),
    ),
    "cover": (
        ("state", "gateway:cover", "text", None),
        ("current_pos", "gateway:position", "number", "%"),
        ("apower", "gateway:power", "number", "W"),
        ("aenergy.total", "gateway:energy", "number", "Wh"),
    ),
    "pm1": (
        ("apower", "gateway:power", "number", "W"),
        ("voltage", "gateway:voltage", "number", "V"),
        ("current", "gateway:current", "number", "A"),
        ("aenergy.total", "gateway:energy", "number", "Wh"),
    ),
    "em1": (
        ("act_power", "gateway:power", "number", "W"),
        ("voltage", "gateway:voltage", "number", "V"),
        ("current", "gateway:current", "number", "A"),
        ("pf", "gateway:powerFactor", "number", None),
    ),
    "em": (
        ("total_act_power", "gateway:power", "number", "W"),
        ("total_current", "gateway:current", "number", "A"),
        *(
            (f"{phase}_{name}", f"gateway:{kind}", "number", unit)
            for phase in "abc"
            for name, kind, unit in (
                ("act_power", "power", "W"),
                ("voltage", "voltage", "V"),
                ("current", "current", "A"),
            )
        ),
    ),
    "emdata": (
        ("total_act", "gateway:energy", "number", "Wh"),
        ("total_act_ret", "gateway:energyProduced", "number", "Wh"),
    ),
    "em1data": (
        ("total_act_energy", "gateway:energy", "number", "Wh"),
        ("total_act_ret_energy", "gateway:energyProduced", "number", "Wh"),
    ),
    "input": (
        ("state", "gateway:input", "boolean", None),
        ("percent", "property/input_percent", "number", "%"),
    ),
    "temperature": (("tC", "gateway:temperature", "number", "°C"),),
    "humidity": (("rh", "gateway:humidity", "number", "%"),),
    "illuminance": (("lux", "gateway:illuminance", "number", "lx"),),
    "voltmeter": (("voltage", "gateway:voltage", "number", "V"),),
    "devicepower": (
        ("battery.percent", "gateway:battery", "number", "%"),
        ("battery.V", "gateway:voltage", "number", "V"),
    ),
    "smoke": (("alarm", "gateway:smoke", "boolean", None),),
    "flood": (("alarm", "gateway:leak", "boolean", None),),
}
"""Members of the components of the second generation: kind, payload, unit."""


def path_of(member: str) -> tuple[str | int, ...]:
    return tuple(int(step) if step.isdigit() else step for step in member.split("."))


def has_member(status: Any, path: tuple[str | int, ...]) -> bool:
    for step in path:
        if isinstance(step, int):
            if not isinstance(status, list) or step >= len(status):
                return False
        elif not isinstance(status, dict) or step not in status:
            return False
        status = status[step]
    return status is not None


def add_actuator(draft: Draft, topic: str, component: str, key: str, kind: str, state: Table | None) -> None:
    """The commands of switches, lights, covers and thermostats, as remote procedure calls."""
    name, _, number = component.partition(":")

    def call(method: str, params: str = "") -> str:
        return f'{{"id": 1, "src": "lamplighter", "method": "{method}", "params": {{"id": {int(number)}{params}}}}}'

    if name in ("thermostat", "blutrv"):
        _thermostat(draft, topic, name, key, kind, state, call)
    elif name in _METHODS:
        _add_light(draft, topic, component, key, kind, state, lambda params: call(f"{_METHODS[name]}.Set", params))
    elif kind == "gateway:cover":
        calls = {"OPEN": call("Cover.Open"), "CLOSE": call("Cover.Close"), "STOP": call("Cover.Stop")}
        draft.actuator(key, kind, topic, values=calls)
    elif kind == "gateway:position":
        payload = call("Cover.GoToPosition", ', "pos": {value}')
        draft.actuator(key, kind, topic, payload=payload, state=state, minimum=0, maximum=100)


def _add_light(
    draft: Draft, topic: str, component: str, key: str, kind: str, state: Table | None, call: Callable[[str], str]
) -> None:
    """Switches and lights. call: the method with these parameters."""
    lamp: Table = {"of": component.replace(":", ".")}
    if kind in ("gateway:switch", "gateway:light"):
        values = {"true": "true", "false": "false"}
        part = lamp | {"role": "switch"} if kind == "gateway:light" else None
        draft.actuator(key, kind, topic, payload=call(', "on": {value}'), values=values, state=state, lamp=part)
    elif kind == "gateway:brightness":
        payload = call(', "brightness": {value}')
        draft.actuator(key, kind, topic, payload=payload, state=state, minimum=0, maximum=100, lamp=lamp)
        payload, rider = call(', "transition_duration": {value}'), lamp | {"role": "transition"}
        draft.actuator(f"{lamp['of']}.transition", "gateway:transition", topic, payload=payload, minimum=0, lamp=rider)
    elif kind == "gateway:colorTemperature":
        mode = lamp | {"role": "mode"}
        draft.actuator(key, kind, topic, payload=call(', "ct": {value}'), state=state, minimum=0, lamp=mode)
    elif kind == "property/color_red":
        payload, mode = call(', "rgb": [{red}, {green}, {blue}]'), lamp | {"role": "mode", "name": "rgb"}
        draft.actuator(f"{lamp['of']}.color", "gateway:color", topic, payload=payload, lamp=mode)
    elif kind == "property/white":
        payload = call(', "white": {value}')
        draft.actuator(key, kind, topic, payload=payload, state=state, minimum=0, maximum=255, lamp=lamp)


def _thermostat(
    draft: Draft, topic: str, name: str, key: str, kind: str, state: Table | None, call: Callable[[str, str], str]
) -> None:
    """Thermostats of walls, and of radiators that a gateway reaches."""
    coldest, warmest = 4, 35
    if kind == "gateway:targetTemperature" and name == "thermostat":
        payload = call("Thermostat.SetConfig", ', "config": {"target_C": {value}}')
        draft.actuator(key, kind, topic, payload=payload, state=state, minimum=coldest, maximum=warmest)
    elif kind == "gateway:targetTemperature":
        payload = call("BluTrv.Call", ', "method": "Trv.SetTarget", "params": {"id": 0, "target_C": {value}}')
        draft.actuator(key, kind, topic, payload=payload, state=state, minimum=coldest, maximum=warmest)
    elif kind == "gateway:switch":
        payload = call("Thermostat.SetConfig", ', "config": {"enable": {value}}')
        draft.actuator(key, kind, topic, payload=payload, values={"true": "true", "false": "false"}, state=state)
