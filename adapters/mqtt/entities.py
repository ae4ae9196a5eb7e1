"""What the gateway has -> entities in the format of Home Assistant's MQTT discovery. Pure.

An on/off actuator becomes a light or a switch, a live observation a binary sensor or a sensor. A device that announces
itself is left out: Home Assistant finds it by its own announcement.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import Any, NamedTuple
from urllib.parse import unquote

from lamplighter.adapters.devices.desired import desired_update, same_state, status_update
from lamplighter.adapters.literals import FALSE, NUMBERS, TRUE
from lamplighter.adapters.mqtt.discovery.homeassistant import PREFIX
from lamplighter.adapters.mqtt.discovery.homeassistant_keys import device_classes
from lamplighter.engine.client import Notification
from lamplighter.engine.terms import Term, is_iri, is_literal, lexical, literal
from lamplighter.ontology.vocabulary import (
    CONTROLS,
    DESIRED_STATE,
    GATEWAY,
    HAS_SIMPLE_RESULT,
    HAS_STATUS,
    HAS_UNIT,
    HOSTS,
    LIVE_OBSERVATION,
    MADE_BY_ACTUATOR,
    MADE_BY_SENSOR,
    OBSERVED_PROPERTY,
    PRESENCE,
    RDFS_LABEL,
    REPORTED_STATE,
    TEMPERATURE,
    UNIT,
)

STATE_CHARS_MAX = 255
"""Of a text; Home Assistant takes no longer ones."""
NAME_CHARS_MAX = 100
UNKNOWN = "None"
"""The payload for a state that is not known."""
SELF_ANNOUNCING = ("homeassistant", "shelly", "tasmota", "zigbee2mqtt")
"""Sources of devices that Home Assistant finds without the gateway."""

_KEYS = ("desired", "status", "reported", "recorded", "controls", "value", "property", "unit", "label", "host")


def _query(*patterns: str) -> str:
    """The engine maintains a UNION of up to ten patterns incrementally."""
    names = " ".join(f"?{name}" for name in _KEYS if any(f"?{name}" in pattern for pattern in patterns))
    return f"SELECT ?thing {names} WHERE {{ {' UNION '.join(f'{{ {one} }}' for one in patterns)} }}"


QUERIES = (
    _query(
        f"?thing <{DESIRED_STATE}> ?desired",
        f"?thing <{HAS_STATUS}> ?status",
        f"?thing <{REPORTED_STATE}> ?reported",
        f"?actuation <{MADE_BY_ACTUATOR}> ?thing ; <{HAS_SIMPLE_RESULT}> ?recorded",
        f"?thing <{CONTROLS}> ?controls",
        f"?thing <{DESIRED_STATE}> ?state ; <{RDFS_LABEL}> ?label",
        f"?thing <{HAS_STATUS}> ?state ; <{RDFS_LABEL}> ?label",
        f"?host <{HOSTS}> ?thing",
    ),
    _query(
        f"?thing <{MADE_BY_SENSOR}> ?sensor ; <{HAS_SIMPLE_RESULT}> ?value",
        f"?thing <{MADE_BY_SENSOR}> ?sensor ; <{OBSERVED_PROPERTY}> ?property",
        f"?stream <{LIVE_OBSERVATION}> ?thing ; <{HAS_UNIT}> ?unit",
        f"?stream <{LIVE_OBSERVATION}> ?thing ; <{RDFS_LABEL}> ?label",
        f"?thing <{MADE_BY_SENSOR}> ?sensor . ?host <{HOSTS}> ?sensor",
        f"?thing <{HOSTS}> ?part ; <{RDFS_LABEL}> ?label",
    ),
)
"""Of actuators, and of observations and platforms. Each row has a thing and one value."""

_UNITS = {
    UNIT + name: unit
    for name, unit in {
        "DEG_C": "°C",
        "DEG_F": "°F",
        "K": "K",
        "PERCENT": "%",
        "PERCENT_RH": "%",
        "LUX": "lx",
        "PA": "Pa",
        "HectoPA": "hPa",
        "KiloPA": "kPa",
        "BAR": "bar",
        "MilliBAR": "mbar",
        "W": "W",
        "KiloW": "kW",
        "W-HR": "Wh",
        "KiloW-HR": "kWh",
        "MegaW-HR": "MWh",
        "V": "V",
        "MilliV": "mV",
        "A": "A",
        "MilliA": "mA",
        "HZ": "Hz",
        "PPM": "ppm",
        "PPB": "ppb",
        "MicroGM-PER-M3": "µg/m³",
        "MilliGM-PER-M3": "mg/m³",
        "DeciB": "dB",
        "DeciB_M": "dBm",
        "M-PER-SEC": "m/s",
        "KiloM-PER-HR": "km/h",
        "MilliM": "mm",
        "CentiM": "cm",
        "M": "m",
        "KiloM": "km",
        "GM": "g",
        "KiloGM": "kg",
        "W-PER-M2": "W/m²",
        "M3": "m³",
        "L": "L",
        "SEC": "s",
        "MIN": "min",
        "HR": "h",
        "DEG": "°",
    }.items()
}
"""The spellings of Home Assistant."""
_CLASS_UNITS = {
    "temperature": ("°C", "°F", "K"),
    "humidity": ("%",),
    "moisture": ("%",),
    "battery": ("%",),
    "illuminance": ("lx",),
    "pressure": ("Pa", "hPa", "kPa", "bar", "mbar"),
    "power": ("W", "kW"),
    "energy": ("Wh", "kWh", "MWh"),
    "voltage": ("V", "mV"),
    "current": ("A", "mA"),
    "frequency": ("Hz",),
    "carbon_dioxide": ("ppm",),
    "carbon_monoxide": ("ppm",),
    "pm1": ("µg/m³",),
    "pm25": ("µg/m³",),
    "pm10": ("µg/m³",),
    "volatile_organic_compounds": ("µg/m³",),
    "signal_strength": ("dB", "dBm"),
    "wind_speed": ("m/s", "km/h"),
    "distance": ("mm", "cm", "m", "km"),
    "weight": ("g", "kg"),
    "irradiance": ("W/m²",),
}
"""Device classes of sensors -> their units. Home Assistant refuses a class with another unit."""
_LIGHT = GATEWAY + "light"


class HomeTopics(NamedTuple):
    """Where an adapter announces. session: its client id at the broker; topics: what its own topics begin with; prefix:
    of the topics of announcements; announce: whether anything is announced."""

    session: str
    topics: str
    prefix: str = PREFIX
    announce: bool = True

    @property
    def node(self) -> str:
        """The level of its discovery topics that no other adapter at the broker has."""
        return f"lamplighter-{_short_hash(self.session)}"

    @property
    def filters(self) -> tuple[str, str]:
        """What it reads there: commands, and its own announcements of earlier runs."""
        return f"{self.topics}things/+/set", f"{self.prefix}/+/{self.node}/+/config"

    def covers(self, topic: str) -> bool:
        """Whether messages of the topic are for what is announced, and for nothing else."""
        return self.announces(topic) or (self.announce and self.commanded(topic) is not None)

    def announces(self, topic: str) -> bool:
        """Whether a topic is that of an announcement of its own."""
        if not topic.startswith(f"{self.prefix}/"):
            return False
        levels = topic.removeprefix(f"{self.prefix}/").split("/", 4)
        return len(levels) == 4 and levels[1] == self.node and levels[3] == "config"

    def state_of(self, announcement: str) -> str:
        """The topic of the state of an entity. announcement: the topic of its configuration."""
        return f"{self.topics}things/{announcement.split('/')[-2]}/state"

    def commanded(self, topic: str) -> str | None:
        """The key of the entity that a topic commands."""
        before, _, rest = topic.partition(f"{self.topics}things/")
        key, _, end = rest.partition("/")
        return key if not before and end == "set" else None


class Entity(NamedTuple):
    """key: unique and stable; words: the states of an actuator by their payloads; status: they are its
    lighting:hasStatus."""

    thing: Term
    key: str
    component: str
    config: dict[str, Any]
    state: str
    words: dict[str, Term]
    status: bool = False

    def messages(self, place: HomeTopics) -> dict[str, bytes]:
        """The retained messages that announce it, by topic."""
        config = json.dumps(self.config, ensure_ascii=False, sort_keys=True)
        return {
            f"{place.prefix}/{self.component}/{place.node}/{self.key}/config": config.encode(errors="replace"),
            f"{place.topics}things/{self.key}/state": self.state.encode(errors="replace"),
        }

    def command(self, payload: bytes) -> str | None:
        """The update that a command makes; None: it is no word of the entity."""
        state = self.words.get(payload.decode(errors="replace"))
        if state is None:
            return None
        update, name = (status_update, HAS_STATUS) if self.status else (desired_update, DESIRED_STATE)
        return update(self.thing, state, f"{self.thing} <{name}> ?any . ")


class Things:
    """The rows of `QUERIES`, and the entities that they make."""

    def __init__(self, base_iri: str, place: HomeTopics, version: str) -> None:
        self._base_iri = base_iri
        self._place = place
        self._version = version
        self._sources = tuple(f"<{base_iri}device/{source}/" for source in SELF_ANNOUNCING)
        self._rows: tuple[dict[Term, dict[str, Counter[Term]]], ...] = tuple({} for _ in QUERIES)
        self._hosted: dict[Term, Counter[Term]] = {}
        """Things by their host."""

    def take(self, number: int, notification: Notification) -> set[Term]:
        """Takes a notification of a query; the things whose entities may have changed. Sequence 0 replaces all."""
        rows = self._rows[number]
        touched: set[Term] = set()
        if notification.sequence == 0:
            touched.update(rows)
            for thing, keys in rows.items():
                for host, count in keys.get("host", {}).items():
                    self._host(host, thing, -count)
            rows.clear()
        for bag, sign in ((notification.removed, -1), (notification.added, 1)):
            for row in bag.bindings():
                thing = row.pop("thing", "")
                for key, term in row.items():
                    if not is_iri(thing) or not (is_iri(term) or is_literal(term)):
                        continue
                    found = rows.setdefault(thing, {}).setdefault(key, Counter())
                    found[term] += sign
                    if found[term] <= 0:
                        del found[term]
                    if key == "host":
                        self._host(term, thing, sign)
                    touched.add(thing)
        for thing in touched & rows.keys():
            if not any(rows[thing].values()):
                del rows[thing]
        return touched.union(*(self._hosted.get(thing, ()) for thing in touched))

    def _host(self, host: Term, thing: Term, count: int) -> None:
        found = self._hosted.setdefault(host, Counter())
        found[thing] += count
        if found[thing] <= 0:
            del found[thing]
        if not found:
            del self._hosted[host]

    def _terms(self, thing: Term, key: str) -> list[Term]:
        return sorted(term for rows in self._rows for term in rows.get(thing, {}).get(key, ()))

    def _one(self, thing: Term, key: str) -> Term | None:
        return next(reversed(self._terms(thing, key)), None)

    def entity(self, thing: Term) -> Entity | None:
        """None: the thing is no entity, or announces itself."""
        if any(host.startswith(self._sources) for host in self._terms(thing, "host")):
            return None
        desired, status, value = (self._one(thing, key) for key in ("desired", "status", "value"))
        if status is not None or desired in (TRUE, FALSE):
            return self._switch(thing, status=status is not None)
        return None if value is None else self._sensor(thing, value)

    def _switch(self, thing: Term, *, status: bool) -> Entity:
        controls = [lexical(one) for one in self._terms(thing, "controls")]
        component = "light" if status or _LIGHT in controls else "switch"
        words = {"ON": literal("ON"), "OFF": literal("OFF")} if status else {"ON": TRUE, "OFF": FALSE}
        known = self._one(thing, "reported") or self._one(thing, "recorded")
        state = next((word for word, one in words.items() if known is not None and same_state(known, one)), UNKNOWN)
        own = {"payload_on": "ON", "payload_off": "OFF", "command_topic": self._topic(thing, "set"), "qos": 1}
        return Entity(thing, self._key(thing), component, self._config(thing, own), state, words, status)

    def _sensor(self, thing: Term, value: Term) -> Entity:
        kind = lexical(self._one(thing, "property") or literal(""))
        kind = {PRESENCE: GATEWAY + "occupancy", TEMPERATURE: GATEWAY + "temperature"}.get(kind, kind)
        classes = device_classes(kind.removeprefix(GATEWAY)) if kind.startswith(GATEWAY) else None
        own: dict[str, Any] = {}
        if value in (TRUE, FALSE):
            state, component = ("ON" if value == TRUE else "OFF"), "binary_sensor"
            if classes is not None and classes.binary:
                own["device_class"] = classes.binary
                if classes.inverted:
                    state = "OFF" if state == "ON" else "ON"
            own |= {"payload_on": "ON", "payload_off": "OFF"}
        else:
            state, component = lexical(value)[:STATE_CHARS_MAX], "sensor"
            if value.endswith(NUMBERS):
                unit = _UNITS.get(lexical(self._one(thing, "unit") or literal("")))
                measured = () if classes is None else classes.measured
                name = next((one for one in measured if unit in _CLASS_UNITS.get(one, ())), None)
                own["state_class"] = "total_increasing" if name == "energy" else "measurement"
                own |= {"unit_of_measurement": unit} if unit else {}
                own |= {"device_class": name} if name else {}
        return Entity(thing, self._key(thing), component, self._config(thing, own), state, {})

    def _config(self, thing: Term, own: dict[str, Any]) -> dict[str, Any]:
        host = self._one(thing, "host") or thing
        return own | {
            "name": self._name(thing) if host != thing else None,
            "unique_id": f"lamplighter_{self._key(thing)}",
            "state_topic": self._topic(thing, "state"),
            "availability_topic": f"{self._place.topics}status",
            "payload_available": "online",
            "payload_not_available": "offline",
            "device": {
                "identifiers": [f"lamplighter_{self._key(host)}"],
                "name": self._name(host),
                "manufacturer": "Lamplighter",
            },
            "origin": {"name": "Lamplighter", "sw_version": self._version},
        }

    def _topic(self, thing: Term, what: str) -> str:
        return f"{self._place.topics}things/{self._key(thing)}/{what}"

    def _name(self, thing: Term) -> str:
        label = self._one(thing, "label")
        text = lexical(label) if label is not None else unquote(lexical(thing).removeprefix(self._base_iri))
        plain = "".join(character if character.isprintable() else " " for character in text)
        return plain.strip()[:NAME_CHARS_MAX] or self._key(thing)

    def _key(self, thing: Term) -> str:
        return _short_hash(f"{self._base_iri} {thing}")


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:20]
