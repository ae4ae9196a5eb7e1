"""Applications from templates: options -> JSAP profile and mapping rules. Pure: no files, no terminal.

All templates wait in the same way (docs/applications.md): a note in the dataset says since when, a subscription to the
note sets the delayed update, and the delayed update does nothing once the note is gone or is another one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lamplighter.ontology.vocabulary import GATEWAY, MAPPING, RULE, SOSA

_COLUMNS = 118
_SINCE = {"type": "literal", "datatype": "xsd:dateTime", "value": ""}
_DOOR = {"type": "uri", "value": ""}

Document = dict[str, Any]


@dataclass(frozen=True)
class DailySpan:
    """A period of local time, as `gateway.local_time` reads it. weekdays: on which it begins; empty: all."""

    begins: str
    ends: str
    weekdays: Sequence[str] = ()

    @property
    def name(self) -> str:
        """In SPARQL. Other times have another name, so that a changed file is noticed."""
        text = json.dumps([self.begins, self.ends, sorted(self.weekdays)])
        return f"app:period-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Dimming:
    """dimmers: IRIs of the actuators of brightness; levels: during the span and at other times, as SPARQL."""

    dimmers: Sequence[str]
    levels: tuple[str, str]
    span: DailySpan


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What an application is made of. actuator: what it switches, in one word; actuators: their IRIs. room: IRI of the
    room whose sensors count; sensors: IRIs of those that count; with neither, all sensors of the gateway count.
    confirmed: only confirmed values count (docs/mqtt-devices.md). delay: ISO 8601. states: desired states of the
    actuators while the condition holds and otherwise, as SPARQL. span: when they have the first of them, of a template
    without sensors; of one with sensors, when these count; None: always. dimming: None: brightness is left alone."""

    name: str
    base_iri: str
    actuator: str
    actuators: Sequence[str]
    delay: str = ""
    states: tuple[str, str] = ("true", "false")
    room: str | None = None
    sensors: Sequence[str] = ()
    confirmed: bool = False
    span: DailySpan | None = None
    dimming: Dimming | None = None

    @property
    def kept_spans(self) -> list[DailySpan]:
        """The periods that the application declares."""
        dimmed = None if self.dimming is None else self.dimming.span
        return [one for one in (self.span, dimmed) if one is not None]


@dataclass(frozen=True, kw_only=True)
class Template:
    """summary: one line for people. actuator: what it switches, which is the name of the option. actuates: the kinds of
    actuators that fit. properties: of the
    sensors; the first is that of a sensor that is mapped by hand; none: it follows the time. words: options with the
    payloads for true and false. delay: option, its default and its explanation. span: of a template that follows the
    time, its default. states: options of the desired states with their defaults; none: true and false. lights: whether
    it can set brightness too, and act at some times only."""

    summary: str
    actuator: str
    actuates: tuple[str, ...]
    profile: Callable[[Choice, Sequence[str]], Document]
    properties: tuple[str, ...] = ()
    words: tuple[str, str] = ("on", "off")
    delay: tuple[str, str, str] | None = None
    span: DailySpan | None = None
    states: Mapping[str, str] = field(default_factory=dict)
    lights: bool = False


# --- profiles ---


def _while(choice: Choice, properties: Sequence[str], *, query: str, updates: tuple[str, str]) -> Document:
    """Sets the first state at once when a sensor says true, the second one when none has said so for the delay."""
    begin, end = updates
    first, second = choice.states
    note = "app:wait app:since ?since"
    queries = {
        query: _query(
            "SELECT DISTINCT ?detected WHERE { VALUES ?detected { true } "
            f"VALUES ?property {{ {' '.join(properties)} }} {_limit(choice)}{_confirmation(choice)}"
            f"?reading sosa:observedProperty ?property ; sosa:hasSimpleResult ?detected{_sensors(choice)} }}"
        ),
        "WAITING": _query(f"SELECT ?since WHERE {{ {note} }}"),
    }
    set_first = _set_state(choice, first, f"OPTIONAL {{ {note} }} ", note)
    updates_of_dimming, aggregators_of_dimming = {}, {}
    if choice.dimming is not None:
        levels = _set_levels(choice, choice.dimming)
        # Before it is lit, so that what was lit can be told. The level of what dims itself is its state.
        own = set(choice.actuators).intersection(choice.dimming.dimmers)
        set_first = f"{set_first} ; {levels}" if own else f"{levels} ; {set_first}"
        # A new period is known a moment after the first results, which may have lit already.
        known = f"{choice.dimming.span.name} gateway:active ?active"
        queries["KNOWN"] = _query(f"SELECT DISTINCT ?known WHERE {{ VALUES ?known {{ true }} {known} }}")
        updates_of_dimming = {"DIM": {"sparql": _set_levels(choice, choice.dimming, _lit(choice))}}
        aggregators_of_dimming = {"dim": {"query": "KNOWN", "added": "DIM"}}
    return _document(
        choice,
        queries,
        {
            **updates_of_dimming,
            begin: {"sparql": set_first},
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
            **aggregators_of_dimming,
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


def _during(choice: Choice, properties: Sequence[str]) -> Document:
    """Sets the first state when a period begins, and the second one when it ends."""
    first, second = choice.states
    assert choice.span is not None
    active = f"VALUES ?active {{ true }} {choice.span.name} gateway:active ?active"
    return _document(
        choice,
        {"ACTIVE": _query(f"SELECT ?active WHERE {{ {active} }}")},
        {"BEGIN": {"sparql": _set_state(choice, first)}, "END": {"sparql": _set_state(choice, second)}},
        {"period": {"query": "ACTIVE", "added": "BEGIN", "removed": "END", "firstResults": True}},
    )


def _document(choice: Choice, queries: Document, updates: Document, aggregators: Document) -> Document:
    if choice.kept_spans:
        queries, updates, aggregators = _with_spans(choice.kept_spans, queries, updates, aggregators)
    namespaces = {"sosa": SOSA, "gateway": GATEWAY, "app": _namespace(choice.name, choice.base_iri)}
    extended = {"lamplighter": {"aggregators": aggregators}}
    return {"namespaces": namespaces, "queries": queries, "updates": updates, "extended": extended}


def _with_spans(
    spans: Sequence[DailySpan], queries: Document, updates: Document, aggregators: Document
) -> tuple[Document, Document, Document]:
    """With what declares the periods whenever one is not declared: at first, and if somebody has deleted it."""
    declaration = " . ".join(map(_declaration, spans))
    undeclared = f"VALUES ?undeclared {{ true }} FILTER NOT EXISTS {{ {declaration} }}"
    # Another period of this application is that of an earlier file.
    declare = f"DELETE {{ ?period ?property ?value }} INSERT {{ {declaration} }} WHERE {{ OPTIONAL {{ {_DECLARED} }} }}"
    return (
        {**queries, "UNDECLARED": _query(f"SELECT ?undeclared WHERE {{ {undeclared} }}")},
        {**updates, "DECLARE": {"sparql": declare}},
        {**aggregators, "declare": {"query": "UNDECLARED", "added": "DECLARE", "firstResults": True}},
    )


_DECLARED = (
    "VALUES ?property { gateway:begins gateway:ends gateway:onWeekday } ?period ?property ?value "
    "FILTER(STRSTARTS(STR(?period), STR(app:period-)))"
)
"""The periods that an application has declared."""


def periods_removal(name: str, base_iri: str) -> str:
    """The update that removes the periods of an application."""
    prefixes = f"PREFIX gateway: <{GATEWAY}> PREFIX app: <{_namespace(name, base_iri)}> "
    return f"{prefixes}DELETE {{ ?period ?property ?value }} WHERE {{ {_DECLARED} }}"


def rules_removal(name: str, base_iri: str) -> str:
    """The update that removes the mapping rules that came with an application."""
    node = rules_node(name, base_iri)
    return f"DELETE {{ {node} a <{MAPPING}> ; <{RULE}> ?rule }} WHERE {{ {node} <{RULE}> ?rule }}"


def rules_node(name: str, base_iri: str) -> str:
    """What has the mapping rules of an application in the dataset, as a term of SPARQL."""
    return f"<{base_iri}mapping/application/{name}>"


def _namespace(name: str, base_iri: str) -> str:
    return f"{base_iri}application/{name}#"


def _declaration(span: DailySpan) -> str:
    days = f" ; gateway:onWeekday {', '.join(map(_text, span.weekdays))}" if span.weekdays else ""
    return f"{span.name} gateway:begins {_text(span.begins)} ; gateway:ends {_text(span.ends)}{days}"


def _query(sparql: str) -> Document:
    return {"sparql": sparql}


def _limit(choice: Choice) -> str:
    """The pattern without which no reading counts: the period is active."""
    return "" if choice.span is None else f"{choice.span.name} gateway:active true . "


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


def _set_levels(choice: Choice, dimming: Dimming, condition: str = "") -> str:
    """An update that sets the brightness that is right at this time. While that is not known, what is lit keeps the one
    that it has: it would be changed to that of other times, and back in a moment."""
    during, otherwise = dimming.levels
    before, active = "?dimmer gateway:desiredState ?before", f"{dimming.span.name} gateway:active"
    dimmers = f"VALUES ?dimmer {{ {_iris(dimming.dimmers)} }}"
    return (
        f"DELETE {{ {before} }} INSERT {{ ?dimmer gateway:desiredState ?level }} WHERE {{ {condition}{dimmers} "
        f"{{ {active} true BIND({during} AS ?level) }} UNION {{ {active} false BIND({otherwise} AS ?level) }} UNION "
        f"{{ {dimmers} FILTER NOT EXISTS {{ {active} ?known }} "
        f"FILTER NOT EXISTS {{ {_lit(choice)}?dimmer gateway:desiredState ?kept }} BIND({otherwise} AS ?level) }} "
        f"OPTIONAL {{ {before} }} }}"
    )


def _lit(choice: Choice) -> str:
    """The pattern without which none of the actuators has the first state."""
    return f"VALUES ?lit {{ {_iris(choice.actuators)} }} ?lit gateway:desiredState {choice.states[0]} . "


def _text(value: str) -> str:
    """A literal of SPARQL; a string of JSON is one."""
    return json.dumps(value)


def _iris(iris: Sequence[str]) -> str:
    return " ".join(f"<{iri}>" for iri in iris)


TEMPLATES = {
    "motion-light": Template(
        summary="switch a light on with motion, and off when nobody came for a while",
        actuator="light",
        actuates=("light", "switch"),
        properties=("gateway:motion", "gateway:occupancy"),
        delay=("off-after", "PT30S", "how long no motion is detected before the light goes off"),
        profile=partial(_while, query="MOTION", updates=("SWITCH_ON", "SWITCH_OFF")),
        lights=True,
    ),
    "leak-alarm": Template(
        summary="switch an alarm on when a sensor finds water, and off when all have been dry for a while",
        actuator="alarm",
        actuates=("siren", "switch", "light"),
        properties=("gateway:leak",),
        words=("wet", "dry"),
        delay=("off-after", "PT1M", "how long all sensors are dry before the alarm ends"),
        profile=partial(_while, query="LEAK", updates=("ALARM_ON", "ALARM_OFF")),
    ),
    "presence-heating": Template(
        summary="heat while somebody is there, and lower the temperature when everybody has left",
        actuator="thermostat",
        actuates=("targetTemperature",),
        properties=("gateway:occupancy", "gateway:motion"),
        delay=("lower-after", "PT15M", "how long nobody is there before the temperature is lowered"),
        profile=partial(_while, query="PRESENCE", updates=("HEAT", "LOWER")),
        states={"present": "21", "absent": "17"},
    ),
    "door-left-open": Template(
        summary="switch an alarm on when a door or window has been open for a while, and off when it is closed",
        actuator="alarm",
        actuates=("siren", "switch", "light"),
        properties=("gateway:contact",),
        words=("closed", "open"),
        delay=("open-for", "PT5M", "how long a door is open before the alarm begins"),
        profile=_left_open,
    ),
    "light-by-time": Template(
        summary="switch a light on at a time of day or with the sun, and off at another",
        actuator="light",
        actuates=("light", "switch"),
        span=DailySpan("sunset", "23:00"),
        profile=_during,
    ),
    "blinds-by-sun": Template(
        summary="close blinds when it gets dark, and open them in the morning",
        actuator="blind",
        actuates=("position",),
        span=DailySpan("dusk", "sunrise"),
        states={"closed": "0", "open": "100"},
        profile=_during,
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
