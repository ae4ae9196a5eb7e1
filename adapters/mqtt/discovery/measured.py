"""Usual names of values -> what is measured, and its unit: of decoders that describe themselves by names alone.

A name is a quantity, with a unit behind it in some formats: ``temperature_C``, ``wind_avg_km_h``, ``batteryVoltage``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

from lamplighter.adapters.devices.draft import Payload, own_kind

NAMES_MAX = 4_096
"""That are remembered."""


class Meaning(NamedTuple):
    """kind: prefixed name, or a path for what no kind fits. more: further keys of the rule's table."""

    kind: str
    payload: Payload
    unit: str | None = None
    more: tuple[tuple[str, Any], ...] = ()

    @property
    def keys(self) -> dict[str, Any]:
        return dict(self.more)


_UNITS = {
    "c": "°C", "degc": "°C", "f": "°F", "degf": "°F", "hpa": "hPa", "kpa": "kPa", "mbar": "mbar", "psi": "[psi]",
    "bar": "bar", "mm": "mm", "cm": "cm", "m": "m", "in": "[in_i]", "km": "km", "km_h": "km/h", "kmh": "km/h",
    "m_s": "m/s", "mi_h": "mph", "mph": "mph", "mm_h": "mm/h", "lux": "lx", "lx": "lx",
    "v": "V", "mv": "mV", "a": "A", "ma": "mA", "w": "W", "kw": "kW", "kwh": "kWh", "wh": "Wh", "hz": "Hz",
    "db": "dB", "dbm": "dBm", "ppm": "ppm", "ppb": "ppb", "ug_m3": "µg/m³", "deg": "deg", "kg": "kg", "g": "g",
    "s": "s", "percent": "%", "pct": "%", "m3": "m³", "l": "L",
}  # fmt: skip
"""Ends of names, in small letters."""
_QUANTITIES: dict[str, tuple[str, str | None]] = {
    "airtemperature": ("temperature", "°C"),
    "barometer": ("pressure", "hPa"),
    "batt": ("battery", "%"),
    "battery": ("battery", "%"),
    "batterylevel": ("battery", "%"),
    "batterypercent": ("battery", "%"),
    "batteryvoltage": ("voltage", "V"),
    "bat": ("battery", "%"),
    "batv": ("voltage", "V"),
    "carbondioxide": ("carbonDioxide", "ppm"),
    "co2": ("carbonDioxide", "ppm"),
    "conductivity": ("conductivity", "uS/cm"),
    "current": ("current", "A"),
    "dewpoint": ("dewPoint", "°C"),
    "distance": ("distance", None),
    "energy": ("energy", None),
    "frequency": ("frequency", "Hz"),
    "hum": ("humidity", "%"),
    "humidity": ("humidity", "%"),
    "illuminance": ("illuminance", "lx"),
    "illumination": ("illuminance", "lx"),
    "light": ("illuminance", "lx"),
    "lightlevel": ("property/light_level", None),
    "lux": ("illuminance", "lx"),
    "moisture": ("soilMoisture", "%"),
    "moi": ("soilMoisture", "%"),
    "pm1": ("pm1", "µg/m³"),
    "pm10": ("pm10", "µg/m³"),
    "pm25": ("pm25", "µg/m³"),
    "power": ("power", "W"),
    "pres": ("pressure", "hPa"),
    "pressure": ("pressure", None),
    "rain": ("precipitation", None),
    "rainrate": ("precipitationRate", None),
    "relativehumidity": ("humidity", "%"),
    "rh": ("humidity", "%"),
    "rssi": ("signalStrength", "dBm"),
    "soilmoisture": ("soilMoisture", "%"),
    "soiltemperature": ("temperature", "°C"),
    "strikedistance": ("distance", None),
    "temp": ("temperature", "°C"),
    "temperature": ("temperature", "°C"),
    "tvoc": ("volatileCompounds", None),
    "uv": ("uvIndex", None),
    "uvi": ("uvIndex", None),
    "vbat": ("voltage", "V"),
    "volt": ("voltage", "V"),
    "voltage": ("voltage", "V"),
    "waterlevel": ("distance", None),
    "weight": ("weight", None),
    "windavg": ("windSpeed", None),
    "winddir": ("windDirection", "deg"),
    "winddirection": ("windDirection", "deg"),
    "windmax": ("windSpeed", None),
    "windspeed": ("windSpeed", None),
}
"""Names without their unit, in small letters and without signs: kind and usual unit."""
_LAST_WORDS = frozenset({"battery", "current", "energy", "humidity", "power", "pressure", "temperature", "voltage"})
"""That mean the same behind other words, such as ``flow-temperature``."""
_BOOLEANS = {
    "alarm": "fault", "batterylow": "batteryLow", "closed": "contact", "contact": "contact", "leak": "leak",
    "lowbattery": "batteryLow", "motion": "motion", "occupancy": "occupancy", "occupied": "occupancy", "pir": "motion",
    "presence": "occupancy", "smoke": "smoke", "tamper": "tamper", "vibration": "vibration", "waterleak": "leak",
}  # fmt: skip
_OPEN = frozenset({"open", "dooropen", "contactopen", "reedopen", "windowopen"})
_WORDS = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
_BITS: tuple[tuple[str, Any], ...] = (("on", ("1", "true", "on")), ("off", ("0", "false", "off")))
_INVERTED_BITS: tuple[tuple[str, Any], ...] = (("on", _BITS[1][1]), ("off", _BITS[0][1]))


@lru_cache(NAMES_MAX)
def meaning(name: str, payload: Payload) -> Meaning:
    """What a value with this name is. payload: of an example. Raises ValueError for a name that no IRI can have."""
    words = [word.lower() for word in _WORDS.split(name) if word]
    plain = "".join(words)
    if payload == "boolean" or (payload == "number" and (plain in _OPEN or plain == "contact")):
        if plain in _OPEN:
            return Meaning("gateway:contact", "boolean", None, _INVERTED_BITS)
        if plain in _BOOLEANS:
            return Meaning(f"gateway:{_BOOLEANS[plain]}", "boolean", None, _BITS)
        return Meaning(own_kind(name), payload, None, _BITS if payload == "boolean" else ())
    if payload == "text":
        return Meaning(own_kind(name), "text")
    for length in range(min(2, len(words) - 1), -1, -1):
        unit = _UNITS.get("_".join(words[len(words) - length :])) if length else None
        stem = "".join(words[: len(words) - length])
        while stem not in _QUANTITIES and stem and stem[-1].isdigit():
            stem = stem[:-1]  # of several, such as temperature2
        if stem not in _QUANTITIES and words[len(words) - length - 1] in _LAST_WORDS:
            stem = words[len(words) - length - 1]
        if (unit or not length) and stem in _QUANTITIES:
            kind, usual = _QUANTITIES[stem]
            if kind == "battery" and unit in ("V", "mV"):
                kind = "voltage"
            return Meaning(kind if "/" in kind else f"gateway:{kind}", "number", unit or usual)
    return Meaning(own_kind(name), "number")
