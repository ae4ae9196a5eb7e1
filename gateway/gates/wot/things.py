"""Things as the dataset has them: platforms with what they host, and actuators that no platform hosts.

A thing has a property for each stream of its sensors, and for each of its actuators one that can be written. Nothing is
stored: each request asks the dataset, within the permissions of its caller.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec
import pyoxigraph as ox

from lamplighter.adapters.devices.desired import desired_pattern
from lamplighter.adapters.devices.draft import THING, segment
from lamplighter.adapters.devices.kinds import KINDS, Kind
from lamplighter.engine.errors import LimitExceededError
from lamplighter.engine.matching.values import order_key
from lamplighter.engine.sharing import portions
from lamplighter.engine.terms import Term, iri, is_iri, is_literal, lexical
from lamplighter.gateway.gates.wot.values import Schema, common_type, json_type
from lamplighter.ontology import vocabulary as v

Row = tuple[Term | None, ...]

THINGS_MAX = 10_000  # things of a directory
PROPERTIES_MAX = 1_000  # of one thing; further ones are left out
ID_CHARS_MAX = 2_048  # of the id of a thing
FEW, ROWS_FEW = 10, 500  # things that are made, and rows that are read, in the event loop
PORTION_CHARS_MAX = 40_000  # of a query about several things. It names them in each of its branches.
RULE_CHARS_MAX = 65_536  # of a rule that is read for the states that an actuator takes
WORDS_MAX = 200  # states of an actuator that a schema lists
TEXT_CHARS_MAX = 300  # of a title
STATUSES = ("ON", "OFF")  # what a lamp's lighting:hasStatus may be set to; BROKEN is for those who maintain it

_OF_SERIES = (v.RDF_TYPE, v.OBSERVED_PROPERTY, v.HAS_SIMPLE_RESULT, v.HAS_UNIT, v.UNKNOWN_UNIT, v.RDFS_LABEL)
_OF_STREAMS = (v.HAS_UNIT, v.UNKNOWN_UNIT, v.RDFS_LABEL)
_OF_PARTS = (
    v.RDF_TYPE,
    v.RDFS_LABEL,
    v.OBSERVES,
    v.CONTROLS,
    v.MINIMUM,
    v.MAXIMUM,
    v.DESIRED_STATE,
    v.REPORTED_STATE,
    v.HAS_STATUS,
)
_OF_THINGS = (v.THING_ID, v.MANUFACTURER, v.MODEL, *_OF_PARTS)


class ReadableDataset(Protocol):
    async def rows(self, query: str) -> list[Row]: ...


@dataclass(frozen=True)
class ThingProperty:
    """One property of a thing. name: unique in it; kind: what is observed or controlled; values: the pattern of its
    values, as ?value; timed: and of their times, as ?time; condition: the pattern that matches as long as the thing has
    the property; actuator: whose state it is, if it can be written; status: that state is its lighting:hasStatus;
    written: the schema of a state that is to be set."""

    name: str
    title: str
    kind: Term | None
    schema: Schema
    values: str
    condition: str
    timed: bool = False
    actuator: Term | None = None
    status: bool = False
    written: Schema = field(default_factory=dict)

    @property
    def query(self) -> str:
        return f"SELECT {self._variables} WHERE {{ {self.values} }}"

    @property
    def observed_query(self) -> str:
        """Its values, and a row without a value as long as the thing has the property."""
        return f"SELECT {self._variables} WHERE {{ {{ {self.values} }} UNION {{ {self.condition} }} }}"

    @property
    def _variables(self) -> str:
        return "?value ?time" if self.timed else "?value"


@dataclass(frozen=True)
class Thing:
    """id: of its description; node: in the dataset; texts: maker, model; area: IRI, label; properties: by name."""

    id: str
    node: Term
    title: str
    texts: tuple[str, ...]
    area: tuple[Term, str] | None
    properties: dict[str, ThingProperty]


async def thing_nodes(dataset: ReadableDataset, base_iri: str) -> list[Term]:
    """All things, by id. Raises LimitExceededError for more than `THINGS_MAX`."""
    alone = " UNION ".join(
        f"{{ ?thing <{name}> ?state FILTER NOT EXISTS {{ ?host <{v.HOSTS}> ?thing }} }}"
        for name in (v.DESIRED_STATE, v.HAS_STATUS)
    )
    query = (
        f"SELECT DISTINCT ?thing ?id WHERE {{ {{ ?thing <{v.HOSTS}> ?part }} UNION {alone} "
        f"FILTER(isIRI(?thing)) OPTIONAL {{ ?thing <{v.THING_ID}> ?id }} }} LIMIT {THINGS_MAX + 1}"
    )
    rows = await dataset.rows(query)

    def nodes() -> list[Term]:
        found: dict[Term, set[Term]] = {}
        for thing, identifier in rows:
            if thing is not None:
                found.setdefault(thing, set()).update([] if identifier is None else [identifier])
        return sorted(found, key=lambda node: _id(node, found[node], base_iri))

    found = nodes() if len(rows) <= ROWS_FEW else await asyncio.to_thread(nodes)
    if len(found) > THINGS_MAX:
        raise LimitExceededError(
            f"there are more than {THINGS_MAX} things, which a directory does not list; ask /query for some of them"
        )
    return found


def _id(node: Term, said: Iterable[Term], base_iri: str) -> str:
    """The id of a thing: that of the description that it was adopted by, or its IRI. said: what the dataset says, which
    any client may write."""
    texts = (lexical(one) for one in sorted(said) if is_literal(one))
    return next((text for text in texts if described_node(text, base_iri) == node), lexical(node))


def described_node(identifier: str, base_iri: str) -> Term | None:
    """The node of a device that a description with this id was submitted of; None if it cannot be one."""
    try:
        return iri(f"{base_iri}device/{THING}/{segment(identifier)}")
    except ValueError:
        return None


async def read_things(dataset: ReadableDataset, nodes: Sequence[Term], base_iri: str) -> list[Thing]:
    """What the dataset says about things, in order. One of which it says nothing is left out."""
    found: dict[Term, _Facts] = {}

    def read(rows: Iterable[Row]) -> None:
        for thing, part, key, value in rows:
            if thing and part and key and value and is_iri(part):
                found.setdefault(thing, {}).setdefault(part, {}).setdefault(lexical(key), set()).add(value)

    for portion in portions(nodes, lambda node: len(node) * _BRANCHES, PORTION_CHARS_MAX):
        rows = await dataset.rows(_facts_query(portion))
        if len(rows) <= ROWS_FEW:
            read(rows)
        else:
            await asyncio.to_thread(read, rows)

    def things() -> list[Thing]:
        made = (_thing(node, found[node], base_iri) for node in nodes if node in found)
        return [thing for thing in made if thing.properties]

    return things() if len(nodes) <= FEW else await asyncio.to_thread(things)


def _keys(names: Iterable[str]) -> str:
    return f"VALUES ?key {{ {' '.join(map(iri, names))} }}"


def _is(variable: str, name: str) -> str:
    return f"BIND(<{name}> AS ?{variable})"


_SERIES = f"?thing <{v.HOSTS}> ?sensor . ?part <{v.MADE_BY_SENSOR}> ?sensor"
_FACTS = (
    f"{_keys(_OF_THINGS)} ?thing ?key ?value BIND(?thing AS ?part)",
    f"?thing <{v.COMMAND}>/<{v.RULE}> ?value BIND(?thing AS ?part) {_is('key', v.RULE)}",
    f"?thing <{v.IN_AREA}> ?part . ?part <{v.RDFS_LABEL}> ?value {_is('key', v.IN_AREA)}",
    f"{_SERIES} BIND(?sensor AS ?value) {_is('key', v.MADE_BY_SENSOR)}",
    f"{_SERIES} . {_keys(_OF_SERIES)} ?part ?key ?value",
    f"{_SERIES} . ?stream <{v.LIVE_OBSERVATION}> ?part {_keys(_OF_STREAMS)} ?stream ?key ?value",
    f"{_SERIES} . GRAPH ?event {{ ?part <{v.LIVE_OBSERVATION}> ?made . ?made <{v.HAS_SIMPLE_RESULT}> ?value }} "
    f"{_is('key', v.LIVE_OBSERVATION)}",
    f"?thing <{v.HOSTS}> ?part . {_keys(_OF_PARTS)} ?part ?key ?value",
    f"?thing <{v.HOSTS}> ?part . ?part <{v.COMMAND}>/<{v.RULE}> ?value {_is('key', v.RULE)}",
)
_BRANCHES = len(_FACTS)


def _facts_query(nodes: Sequence[Term]) -> str:
    things = f"VALUES ?thing {{ {' '.join(nodes)} }}"
    branches = " UNION ".join(f"{{ {things} {branch} }}" for branch in _FACTS)
    return f"SELECT ?thing ?part ?key ?value WHERE {{ {branches} }}"


_Facts = dict[Term, dict[str, set[Term]]]  # of a thing: its parts, and the values of each by their keys


def _thing(node: Term, facts: _Facts, base_iri: str) -> Thing:
    own = facts.get(node, {})
    title = _text(own, v.RDFS_LABEL) or _local(lexical(node), base_iri)
    texts = tuple(filter(None, (_text(own, v.MANUFACTURER), _text(own, v.MODEL))))
    areas = sorted((area, _text(found, v.IN_AREA)) for area, found in facts.items() if v.IN_AREA in found)
    properties: dict[str, ThingProperty] = {}
    for one in [*_actuators(node, facts, base_iri), *_sensors(node, facts, base_iri)]:
        if len(properties) < PROPERTIES_MAX:
            properties[one.name] = one
    return Thing(
        _id(node, own.get(v.THING_ID, ()), base_iri),
        node,
        title,
        texts,
        areas[0] if areas else None,
        dict(sorted(properties.items())),
    )


def _actuators(node: Term, facts: _Facts, base_iri: str) -> Iterator[ThingProperty]:
    names = _Names(node, base_iri, "actuator/")
    for part, found in sorted(facts.items()):
        status = v.HAS_STATUS in found
        if not status and v.DESIRED_STATE not in found and iri(v.ACTUATOR) not in found.get(v.RDF_TYPE, ()):
            continue
        kind = _iri_among(found, v.CONTROLS)
        name = ("status" if status else "state") if part == node else names.of(part)
        written: Schema = {"type": "string", "enum": list(STATUSES)} if status else _state_schema(found, kind)
        schema = {"type": "string"} if status else written
        title = _text(found, v.RDFS_LABEL) or name
        condition = (
            _host_pattern(node, part)
            if part != node
            else f"{node} <{v.HAS_STATUS if status else v.DESIRED_STATE}> ?any . "
        )
        yield ThingProperty(
            name, title, kind, schema, _states(part), condition, actuator=part, status=status, written=written
        )


def _sensors(node: Term, facts: _Facts, base_iri: str) -> Iterator[ThingProperty]:
    taken = {one.name for one in _actuators(node, facts, base_iri)}
    names = _Names(node, base_iri, "sensor/")
    series: dict[Term, list[Term]] = defaultdict(list)
    for part, found in sorted(facts.items()):
        if v.MADE_BY_SENSOR in found:
            series[min(found[v.MADE_BY_SENSOR])].append(part)
        elif _iri_among(found, v.OBSERVES) is not None:
            series[part]  # it may have reported nothing yet
    for sensor, parts in sorted(series.items()):
        name = names.of(sensor)
        if not parts and name not in taken:
            observed = _iri_among(facts[sensor], v.OBSERVES)
            values = f"?made <{v.MADE_BY_SENSOR}> {sensor} ; <{v.HAS_SIMPLE_RESULT}> ?value"
            title = _text(facts[sensor], v.RDFS_LABEL) or name
            yield ThingProperty(name, title, observed, _usual(observed), values, _host_pattern(node, sensor))
        for part in parts:
            found = facts[part]
            kind = _iri_among(found, v.OBSERVED_PROPERTY)
            own = name if len(parts) == 1 else f"{name}/{_local(lexical(kind), base_iri) if kind else ''}"
            # Names are keys of JSON objects, and of the URLs of forms.
            if own in taken:
                own = f"{own}/{_local(lexical(part), base_iri)}"
            taken.add(own)
            live = iri(v.STREAM) not in found.get(v.RDF_TYPE, ())
            # The values of now decide, and what the kind usually has where there are none: a client may have written
            # others.
            known = found.get(v.HAS_SIMPLE_RESULT if live else v.LIVE_OBSERVATION, set())
            schema = common_type(known) or _usual(kind)
            units = found.get(v.HAS_UNIT) or found.get(v.UNKNOWN_UNIT)
            if units and schema.get("type") == "number":
                schema["unit"] = lexical(min(units))
            title = _text(found, v.RDFS_LABEL) or _text(facts.get(sensor, {}), v.RDFS_LABEL) or own
            values = _live_value(part) if live else _event_values(part)
            yield ThingProperty(own, title, kind, schema, values, _host_pattern(node, sensor), timed=not live)


class _Names:
    """The names of the parts of a thing: their IRIs without what they have in common. They stay."""

    def __init__(self, node: Term, base_iri: str, folder: str) -> None:
        self._base_iri = base_iri
        self._folder = folder
        self._own = _local(lexical(node), base_iri).partition("/")[2] + "/"

    def of(self, part: Term) -> str:
        local = _local(lexical(part), self._base_iri)
        if not local.startswith(self._folder):
            return local
        inside = local.removeprefix(self._folder)
        return inside.removeprefix(self._own) or inside


def _local(text: str, base_iri: str) -> str:
    """An IRI without the base IRI, or without the namespace of the gateway."""
    for beginning in (base_iri, v.GATEWAY):
        if text.startswith(beginning) and text != beginning:
            return text.removeprefix(beginning)
    return text


def _text(found: dict[str, set[Term]], key: str) -> str:
    texts = sorted(lexical(term) for term in found.get(key, ()) if is_literal(term))
    return "".join(sign for sign in texts[0][:TEXT_CHARS_MAX] if sign.isprintable()) if texts else ""


def _iri_among(found: dict[str, set[Term]], key: str) -> Term | None:
    """The first IRI among the values; others are no types in a description."""
    return min(filter(is_iri, found.get(key, ())), default=None)


def _kind_of(kind: Term | None) -> Kind | None:
    return None if kind is None else KINDS.get(lexical(kind).removeprefix(v.GATEWAY))


def _usual(kind: Term | None) -> Schema:
    """The schema of what a property usually has."""
    known = _kind_of(kind)
    names = {"number": "number", "boolean": "boolean", "text": "string"}
    return {"type": names[known.value]} if known is not None and known.value in names else {}


class _Takes(NamedTuple):
    """Which states a command takes: its words, and its bounds."""

    words: list[str]
    minimum: float | None
    maximum: float | None


def _takes(rules: Iterable[Term]) -> _Takes:
    """By the rules of the dataset, which any client may write."""
    for term in sorted(rules):
        text = lexical(term)
        try:
            rule: Any = msgspec.json.decode(text) if len(text) <= RULE_CHARS_MAX else None
        except (msgspec.DecodeError, RecursionError):
            continue
        table = rule.get("command") if isinstance(rule, dict) else None
        if isinstance(table, dict):
            values = table.get("values")
            words = list(values)[:WORDS_MAX] if isinstance(values, dict) else []
            # The first table that has the form, in the order of the texts, so that the description does not change with
            # the order of the store.
            return _Takes(words, _finite(table.get("minimum")), _finite(table.get("maximum")))
    return _Takes([], None, None)


def _finite(value: object) -> float | None:
    return (
        float(value) if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15 else None
    )


def _state_schema(found: dict[str, set[Term]], kind: Term | None) -> Schema:
    """The schema of the states that an actuator takes."""
    takes = _takes(found.get(v.RULE, ()))
    # Words of the command are all that the device takes.
    if takes.words:
        if set(takes.words) <= {"true", "false"}:
            return {"type": "boolean"}
        return {"type": "string", "enum": sorted(takes.words)}
    bounds = {
        name: _limit(found.get(key, ())) if own is None else own
        for name, key, own in (("minimum", v.MINIMUM, takes.minimum), ("maximum", v.MAXIMUM, takes.maximum))
    }
    bounds = {name: bound for name, bound in bounds.items() if bound is not None}
    if bounds:
        return {"type": "number", **bounds}
    return common_type(found.get(v.DESIRED_STATE, ())) or _usual(kind)


def _limit(terms: Iterable[Term]) -> float | None:
    for term in sorted(terms):
        if json_type(term) == "number":
            try:
                return _finite(float(lexical(term)))
            except ValueError:
                continue
    return None


def _host_pattern(node: Term, part: Term) -> str:
    return f"{node} <{v.HOSTS}> {part} . "


def _states(actuator: Term) -> str:
    """What the device reports, or else the state that it is to have."""
    desired = desired_pattern("value").replace("?actuator", actuator)
    return (
        f"{{ {actuator} <{v.REPORTED_STATE}> ?value }} UNION {{ {desired} "
        f"FILTER NOT EXISTS {{ {actuator} <{v.REPORTED_STATE}> ?reported }} }}"
    )


def _live_value(series: Term) -> str:
    return f"{series} <{v.HAS_SIMPLE_RESULT}> ?value"


def _event_values(series: Term) -> str:
    return (
        f"GRAPH ?event {{ {series} <{v.LIVE_OBSERVATION}> ?made . "
        f"?made <{v.HAS_SIMPLE_RESULT}> ?value OPTIONAL {{ ?made <{v.RESULT_TIME}> ?time }} }}"
    )


def in_order(rows: Iterable[Row]) -> list[Term]:
    """The values of rows of `ThingProperty.query`, the newest last."""
    # A row of a live observation has no time; the value then decides, so that the order does not depend on the store.
    ordered = sorted(rows, key=lambda row: (order_key(row[1] if len(row) > 1 else None), order_key(row[0])))
    return [row[0] for row in ordered if row[0] is not None]


def thing_term(text: str) -> Term | None:
    """The node of an id; None if it is no absolute IRI."""
    if len(text) > ID_CHARS_MAX:
        return None
    try:
        return iri(ox.NamedNode(text).value)
    except ValueError:
        return None
