"""Applications from templates: options -> JSAP profile and mapping rules. Pure: no files, no terminal.

All templates wait in the same way (docs/applications.md): a note in the dataset says since when, a subscription to the
note sets the delayed update, and the delayed update does nothing once the note is gone or is another one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from lamplighter.ontology.vocabulary import GATEWAY, SOSA

_COLUMNS = 118
_SINCE = {"type": "literal", "datatype": "xsd:dateTime", "value": ""}
_DOOR = {"type": "uri", "value": ""}

Document = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What an application is made of. actuator: what it switches, in one word; actuators: their IRIs. room: IRI of the
    room whose sensors count; sensors: IRIs of those that count; with neither, all sensors of the gateway count.
    confirmed: only values count that are confirmed (docs/devices.md). delay: ISO 8601. states: desired states of the
    actuators while the condition holds and otherwise, as SPARQL."""

    name: str
    base_iri: str
    actuator: str
    actuators: Sequence[str]
    delay: str
    states: tuple[str, str] = ("true", "false")
    room: str | None = None
    sensors: Sequence[str] = ()
    confirmed: bool = False


@dataclass(frozen=True)
class Template:
    """summary: one line for people. actuator: what it switches, which is the name of the option. properties: of the
    sensors; the first is that of a sensor that is mapped by hand. words: options with the payloads for true and false.
    delay: option, its default and its explanation. temperatures: options of the desired states with their defaults."""

    summary: str
    actuator: str
    properties: tuple[str, ...]
    words: tuple[str, str]
    delay: tuple[str, str, str]
    profile: Callable[[Choice, Sequence[str]], Document]
    temperatures: Mapping[str, str]


# --- profiles ---


def _while(choice: Choice, properties: Sequence[str], *, query: str, updates: tuple[str, str]) -> Document:
    """Sets the first state at once when a sensor says true, the second one when none has said so for the delay."""
    begin, end = updates
    first, second = choice.states
    note = "app:wait app:since ?since"
    queries = {
        query: _query(
            "SELECT DISTINCT ?detected WHERE { VALUES ?detected { true } "
            f"VALUES ?property {{ {' '.join(properties)} }} {_confirmation(choice)}"
            f"?reading sosa:observedProperty ?property ; sosa:hasSimpleResult ?detected{_sensors(choice)} }}"
        ),
        "WAITING": _query(f"SELECT ?since WHERE {{ {note} }}"),
    }
    return _document(
        choice,
        queries,
        {
            begin: {"sparql": _set_state(choice, first, f"OPTIONAL {{ {note} }} ", note)},
            "BEGIN_WAITING": {
                "sparql": f"DELETE {{ {note} }} INSERT {{ app:wait app:since ?now }} "
                f"WHERE {{ OPTIONAL {{ {note} }} BIND(NOW() AS ?now) }}"
            },
            end: {
                "sparql": _set_state(choice, second, f"{note} ", note),
                "forcedBindings": {"since": _SINCE},
                "delay": choice.delay,
            },
        },
        {
            "begin": {"query": query, "added": begin, "removed": "BEGIN_WAITING", "firstResults": True},
            "end": {"query": "WAITING", "added": end},
        },
    )


def _left_open(choice: Choice, properties: Sequence[str]) -> Document:
    """Sets the first state when a door has been open for the delay, the second one when no such door is open."""
    first, second = choice.states
    note = "?door app:openSince ?since"
    queries = {
        "OPEN": _query(
            f"SELECT DISTINCT ?door WHERE {{ VALUES ?property {{ {' '.join(properties)} }} {_confirmation(choice)}"
            "?reading sosa:observedProperty ?property ; sosa:hasSimpleResult false ; "
            f"sosa:madeBySensor ?door{_sensors(choice, '?door')} }}"
        ),
        "WAITING": _query(f"SELECT ?door ?since WHERE {{ {note} }}"),
        "LEFT_OPEN": _query("SELECT DISTINCT ?leftOpen WHERE { ?door app:leftOpen ?leftOpen }"),
    }
    return _document(
        choice,
        queries,
        {
            "BEGIN_WAITING": {
                "sparql": f"DELETE {{ {note} }} INSERT {{ ?door app:openSince ?now }} "
                f"WHERE {{ OPTIONAL {{ {note} }} BIND(NOW() AS ?now) }}",
                "forcedBindings": {"door": _DOOR},
            },
            "REPORT": {
                "sparql": f"INSERT {{ ?door app:leftOpen true }} WHERE {{ {note} }}",
                "forcedBindings": {"door": _DOOR, "since": _SINCE},
                "delay": choice.delay,
            },
            "FORGET": {
                "sparql": f"DELETE {{ {note} ; app:leftOpen ?leftOpen }} "
                f"WHERE {{ {note} OPTIONAL {{ ?door app:leftOpen ?leftOpen }} }}",
                "forcedBindings": {"door": _DOOR},
            },
            "ALARM_ON": {"sparql": _set_state(choice, first)},
            "ALARM_OFF": {"sparql": _set_state(choice, second)},
        },
        {
            "open": {"query": "OPEN", "added": "BEGIN_WAITING", "removed": "FORGET", "firstResults": True},
            "wait": {"query": "WAITING", "added": "REPORT"},
            "alarm": {"query": "LEFT_OPEN", "added": "ALARM_ON", "removed": "ALARM_OFF"},
        },
    )


def _document(choice: Choice, queries: Document, updates: Document, aggregators: Document) -> Document:
    namespaces = {"sosa": SOSA, "gateway": GATEWAY, "app": f"{choice.base_iri}application/{choice.name}#"}
    extended = {"lamplighter": {"aggregators": aggregators}}
    return {"namespaces": namespaces, "queries": queries, "updates": updates, "extended": extended}


def _query(sparql: str) -> Document:
    return {"sparql": sparql}


def _confirmation(choice: Choice) -> str:
    """The pattern without which ?reading does not count: nothing that its stream comes through came back since."""
    if not choice.confirmed:
        return ""
    return (
        "?stream gateway:liveObservation ?reading . ?reading sosa:resultTime ?last "
        "FILTER NOT EXISTS { ?stream gateway:receivedFrom/gateway:since ?back FILTER(?back > ?last) } "
    )


def _sensors(choice: Choice, sensor: str = "?sensor") -> str:
    """The pattern that limits ?reading to the sensors that count."""
    if choice.sensors:
        made = "" if sensor == "?door" else f" ; sosa:madeBySensor {sensor}"
        return f"{made} VALUES {sensor} {{ {_iris(choice.sensors)} }}"
    if choice.room is not None:
        room = f"<{choice.room}>"
        return (
            f" {{ ?reading sosa:hasFeatureOfInterest {room} }} UNION "
            f"{{ ?reading sosa:hasFeatureOfInterest ?device . ?device gateway:inArea {room} }}"
        )
    return ""


def _set_state(choice: Choice, state: str, condition: str = "", note: str = "") -> str:
    """An update that sets the desired state of the actuators, and deletes the note."""
    actuator = f"?{choice.actuator}"
    before = f"{actuator} gateway:desiredState ?before"
    return (
        f"DELETE {{ {f'{note} . ' if note else ''}{before} }} INSERT {{ {actuator} gateway:desiredState {state} }} "
        f"WHERE {{ {condition}VALUES {actuator} {{ {_iris(choice.actuators)} }} OPTIONAL {{ {before} }} }}"
    )


def _iris(iris: Sequence[str]) -> str:
    return " ".join(f"<{iri}>" for iri in iris)


TEMPLATES = {
    "motion-light": Template(
        "switch a light on with motion, and off when nobody came for a while",
        "light",
        ("gateway:motion", "gateway:occupancy"),
        ("on", "off"),
        ("off-after", "PT30S", "how long no motion is detected before the light goes off"),
        partial(_while, query="MOTION", updates=("SWITCH_ON", "SWITCH_OFF")),
        {},
    ),
    "leak-alarm": Template(
        "switch an alarm on when a sensor finds water, and off when all have been dry for a while",
        "alarm",
        ("gateway:leak",),
        ("wet", "dry"),
        ("off-after", "PT1M", "how long all sensors are dry before the alarm ends"),
        partial(_while, query="LEAK", updates=("ALARM_ON", "ALARM_OFF")),
        {},
    ),
    "presence-heating": Template(
        "heat while somebody is there, and lower the temperature when everybody has left",
        "thermostat",
        ("gateway:occupancy", "gateway:motion"),
        ("on", "off"),
        ("lower-after", "PT15M", "how long nobody is there before the temperature is lowered"),
        partial(_while, query="PRESENCE", updates=("HEAT", "LOWER")),
        {"present": "21", "absent": "17"},
    ),
    "door-left-open": Template(
        "switch an alarm on when a door or window has been open for a while, and off when it is closed",
        "alarm",
        ("gateway:contact",),
        ("closed", "open"),
        ("open-for", "PT5M", "how long a door is open before the alarm begins"),
        _left_open,
        {},
    ),
}


# --- texts ---


def profile_text(document: Document) -> str:
    """The JSON of a profile: an object that fits into a line is on one line."""
    return _pretty(document, 0) + "\n"


def _pretty(value: Any, indent: int) -> str:
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict) or (indent and indent + len(line) <= _COLUMNS and "sparql" not in value):
        return line
    pad = " " * (indent + 2)
    members = [f"{pad}{json.dumps(name)}: {_pretty(member, indent + 2)}" for name, member in value.items()]
    return "{\n" + ",\n".join(members) + f"\n{' ' * indent}}}"


def mapping_text(tables: Mapping[str, Mapping[str, object]], comment: str) -> str:
    """A mapping file with one table of each kind, such as ``{"stream": {"topic": ...}}``."""
    parts = [f"# {comment}\n"]
    for kind, table in tables.items():
        keys = "".join(f"{name} = {_toml(value)}\n" for name, value in table.items())
        parts.append(f"[[{kind}]]\n{keys}")
    return "\n".join(parts)


def _toml(value: object) -> str:
    """Text, lists of texts, and tables of texts. A JSON string is a TOML string."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_toml(name)} = {_toml(member)}' for name, member in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
