"""The entity types of SensorThings 1.1 (OGC 18-088, 8.2) as graph patterns over the SOSA graph.

Patterns are texts with tokens: ``%e`` is the entity, ``%vNAME`` a variable of its own, and in navigation ``%a`` and
``%b`` are the two entities. `docs/sensorthings.md` has the mapping as a table. What a stream is about stands on the
stream itself (model "event") or on its live observation (model "latest"); descriptions are in the default graph.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from lamplighter.adapters.mapping.units import ucum
from lamplighter.engine.terms import XSD, Term, iri, is_literal, lexical, term_to_json
from lamplighter.gateway.gates.sensorthings.geometry import point, wkt
from lamplighter.ontology import vocabulary as v

# The type of an expression; "any": that of a result, which the dataset decides.
Type = Literal["boolean", "number", "string", "datetime", "date", "time", "duration", "any", "null"]
Row = Mapping[str, Term]  # the variables of an entity's parts that are bound, by name

MEASUREMENT: Final = "http://www.opengis.net/def/observationType/OGC-OM/2.0/OM_Measurement"
GENERAL: Final = "http://www.opengis.net/def/observationType/OGC-OM/2.0/OM_Observation"
GEOJSON: Final = "application/geo+json"
GEO = "http://www.opengis.net/ont/geosparql#"
WGS84 = "http://www.w3.org/2003/01/geo/wgs84_pos#"
PHENOMENON_TIME = v.SOSA + "phenomenonTime"

_LOCAL = re.compile(r"^.*[/#]([^/#]+)[/#]?$")
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMBERS = frozenset(
    XSD + name
    for name in (
        *("integer", "decimal", "double", "float", "long", "int", "short", "byte"),
        *("unsignedLong", "unsignedInt", "unsignedShort", "unsignedByte"),
        *("nonNegativeInteger", "positiveInteger", "nonPositiveInteger", "negativeInteger"),
    )
)


@dataclass(frozen=True)
class EntityProperty:
    """A property in an expression. expression: in SPARQL; None where it cannot be used, for the reason `refused`.
    parts: of its entity's patterns that the expression needs; members: its own properties."""

    type: Type
    parts: tuple[str, ...] = ()
    expression: str | None = None
    refused: str = ""
    members: Mapping[str, EntityProperty] = field(default_factory=dict)


@dataclass(frozen=True)
class Navigation:
    """How one leads from an entity to others. many: whether there may be several; back: name of the way back. One of:
    pattern, text of ``%a`` and ``%b``; of_source, the variable of the source's patterns that is the target; of_target,
    the variable of the target's patterns that is the source. None of them: there are never any."""

    target: str
    many: bool
    pattern: str = ""
    of_source: str = ""
    of_target: str = ""


@dataclass(frozen=True)
class EntityType:
    """core: the pattern of all entities of the type; parts: patterns by name, each of which may find nothing.
    in_graphs: core and parts are together in the default graph or in one named graph; members: the JSON members of one,
    in order; variables: those of each part, by its name."""

    name: str
    set: str
    core: str
    parts: Mapping[str, str]
    properties: Mapping[str, EntityProperty]
    navigation: Mapping[str, Navigation]
    members: Callable[[str, Row], dict[str, Any]]
    variables: Mapping[str, tuple[str, ...]]
    in_graphs: bool = False


def _value(predicate: str, name: str) -> str:
    return f"%e {iri(predicate)} %v{name} ."


def _smallest(predicate: str, name: str) -> str:
    """Of several, such as labels in several languages, the first by their text."""
    other = f"%v{name}x"
    return (
        f"%e {iri(predicate)} %v{name} . "
        f"FILTER NOT EXISTS {{ %e {iri(predicate)} {other} FILTER(STR({other}) < STR(%v{name})) }}"
    )


_LABEL = {"label": _smallest(v.RDFS_LABEL, "label"), "comment": _smallest(v.RDFS + "comment", "comment")}
_LOCAL_NAME = 'REPLACE(STR(%e), "^.*[/#]([^/#]+)[/#]?$", "$1")'
_NAME = EntityProperty("string", ("label",), f"COALESCE(STR(%vlabel), {_LOCAL_NAME})")
_DESCRIPTION = EntityProperty("string", ("comment", "label"), f"COALESCE(STR(%vcomment), STR(%vlabel), {_LOCAL_NAME})")
_IRI = EntityProperty("string", (), "STR(%e)")
_NAMED = {"name": _NAME, "description": _DESCRIPTION}
_PLACE_TYPES = f"%e a %vtype . FILTER(%vtype IN ({iri(v.PLATFORM)}, {iri(v.FEATURE_OF_INTEREST)}))"
_LATITUDE = f"{iri(v.LIGHTING + 'hasLatitude')}|{iri(WGS84 + 'lat')}"
_LONGITUDE = f"{iri(v.LIGHTING + 'hasLongitude')}|{iri(WGS84 + 'long')}"
_WKT = f"{iri(GEO + 'asWKT')}|({iri(GEO + 'hasGeometry')}/{iri(GEO + 'asWKT')})"
_POSITION = {"position": f"%e {_LATITUDE} %vlatitude . %e {_LONGITUDE} %vlongitude .", "wkt": f"%e {_WKT} %vwkt ."}
_ABOUT_STREAM = {
    name: f"{iri(predicate)}|({iri(v.LIVE_OBSERVATION)}/{iri(predicate)})"
    for name, predicate in (("sensor", v.MADE_BY_SENSOR), ("property", v.OBSERVED_PROPERTY))
}
_THING_STREAM = f"%thing {iri(v.HOSTS)} %vs . %stream {_ABOUT_STREAM['sensor']} %vs ."
_HOSTED_FEATURE = f"{iri(v.HOSTS)}/^{iri(v.MADE_BY_SENSOR)}/{iri(v.HAS_FEATURE_OF_INTEREST)}"
_THING_LOCATION = f"%thing ({_HOSTED_FEATURE})? %place . %thing a {iri(v.PLATFORM)} ."
_GEOMETRY = "write a condition on name, description or properties; geometries cannot be compared"
_VARIABLES = {"label": ("label",), "comment": ("comment",), "position": ("latitude", "longitude"), "wkt": ("wkt",)}


def _between(pattern: str, first: str, second: str) -> str:
    return pattern.replace(first, "%a").replace(second, "%b")


def local_name(value: str) -> str:
    """The last part of an IRI; as the filters compute it."""
    return _LOCAL.sub(r"\1", value, count=1)


def number_text(term: Term) -> str | None:
    """A number as JSON writes it, digit by digit as in the dataset; None for other terms, INF and NaN."""
    if not is_literal(term):
        return None
    member = term_to_json(term)
    datatype = member.get("datatype", "")
    if datatype not in _NUMBERS:
        return None
    text: str = member["value"].removeprefix("+")
    return text if _JSON_NUMBER.fullmatch(text) else None


def result_value(term: Term) -> Any:
    """A result in JSON: numbers and booleans as such, all else as text."""
    number = number_text(term)
    if number is not None:
        return msgspec.Raw(number.encode())
    if is_literal(term) and term_to_json(term).get("datatype") == XSD + "boolean":
        return lexical(term) in ("true", "1")
    return term if term.startswith("<<(") else lexical(term)


def _text(row: Row, name: str) -> str | None:
    return lexical(row[name]) if name in row else None


def _name_and_description(value: str, row: Row) -> dict[str, Any]:
    name = _text(row, "label")
    name = local_name(value) if name is None else name
    description = _text(row, "comment")
    return {"name": name, "description": name if description is None else description}


def _geometry(row: Row) -> dict[str, Any] | None:
    found = wkt(lexical(row["wkt"])) if "wkt" in row else None
    if found is None and "latitude" in row and "longitude" in row:
        found = point(lexical(row["latitude"]), lexical(row["longitude"]))
    return found


def _thing(value: str, row: Row) -> dict[str, Any]:
    more = {"manufacturer": _text(row, "manufacturer"), "model": _text(row, "model")}
    return {
        **_name_and_description(value, row),
        "properties": {"iri": value, **{name: text for name, text in more.items() if text is not None}},
    }


def _location(value: str, row: Row) -> dict[str, Any]:
    return {
        **_name_and_description(value, row),
        "encodingType": GEOJSON,
        "location": _geometry(row),
        "properties": {"iri": value},
    }


def _historical_location(value: str, row: Row) -> dict[str, Any]:
    return {"time": None}


def _datastream(value: str, row: Row) -> dict[str, Any]:
    unit, code = _text(row, "unit"), _text(row, "code")
    name = code if unit is None else local_name(unit)
    return {
        **_name_and_description(value, row),
        "observationType": GENERAL if unit is None and code is None else MEASUREMENT,
        "unitOfMeasurement": {"name": name, "symbol": code if unit is None else ucum(unit) or name, "definition": unit},
        "properties": {"iri": value, **({"topic": _text(row, "topic")} if "topic" in row else {})},
    }


def _sensor(value: str, row: Row) -> dict[str, Any]:
    return {
        **_name_and_description(value, row),
        "encodingType": "text/html",
        "metadata": value,
        "properties": {"iri": value},
    }


def _observed_property(value: str, row: Row) -> dict[str, Any]:
    return {**_name_and_description(value, row), "definition": value, "properties": {"iri": value}}


def _observation(value: str, row: Row) -> dict[str, Any]:
    time = _text(row, "time")
    phenomenon = _text(row, "phenomenon")
    return {
        "phenomenonTime": time if phenomenon is None else phenomenon,
        "result": result_value(row["raw"]),
        "resultTime": time,
        "parameters": {"iri": value, **({"timeProblem": _text(row, "problem")} if "problem" in row else {})},
    }


def _feature(value: str, row: Row) -> dict[str, Any]:
    found = _geometry(row)
    return {
        **_name_and_description(value, row),
        "encodingType": GEOJSON,
        "feature": {"type": "Feature", "geometry": None, "properties": {}} if found is None else found,
        "properties": {"iri": value},
    }


_PROPERTIES_OF_IRI = EntityProperty("any", members={"iri": _IRI}, refused="name a member, such as properties/iri")
_BETWEEN_STREAM = f"%a {_ABOUT_STREAM['sensor']} %b ."
_TOPIC = "topic"

THINGS = EntityType(
    "Thing",
    "Things",
    f"%e a {iri(v.PLATFORM)} .",
    {**_LABEL, "manufacturer": _value(v.MANUFACTURER, "manufacturer"), "model": _value(v.MODEL, "model")},
    {
        **_NAMED,
        "properties": EntityProperty(
            "any",
            refused="name a member, such as properties/manufacturer",
            members={
                "iri": _IRI,
                "manufacturer": EntityProperty("string", ("manufacturer",), "STR(%vmanufacturer)"),
                "model": EntityProperty("string", ("model",), "STR(%vmodel)"),
            },
        ),
    },
    {
        "Datastreams": Navigation("Datastreams", True, _between(_THING_STREAM, "%thing", "%stream")),
        "Locations": Navigation("Locations", True, _between(_THING_LOCATION, "%thing", "%place")),
        "HistoricalLocations": Navigation("HistoricalLocations", True),
    },
    _thing,
    {**_VARIABLES, "manufacturer": ("manufacturer",), "model": ("model",)},
)
LOCATIONS = EntityType(
    "Location",
    "Locations",
    f"{_PLACE_TYPES} FILTER EXISTS {{ %e {_LATITUDE}|{_WKT} %vany }}",
    {**_LABEL, **_POSITION},
    {
        **_NAMED,
        "encodingType": EntityProperty("string", (), f'"{GEOJSON}"'),
        "location": EntityProperty("any", ("position", "wkt"), refused=_GEOMETRY),
        "properties": _PROPERTIES_OF_IRI,
    },
    {
        "Things": Navigation("Things", True, _between(_THING_LOCATION, "%place", "%thing")),
        "HistoricalLocations": Navigation("HistoricalLocations", True),
    },
    _location,
    _VARIABLES,
)
HISTORICAL_LOCATIONS = EntityType(
    "HistoricalLocation",
    "HistoricalLocations",
    "FILTER(false)",
    {},
    {"time": EntityProperty("datetime", (), "1/0")},
    {"Thing": Navigation("Things", False), "Locations": Navigation("Locations", True)},
    _historical_location,
    {},
)
DATASTREAMS = EntityType(
    "Datastream",
    "Datastreams",
    f"%e a {iri(v.STREAM)} .",
    {
        **_LABEL,
        "unit": _value(v.HAS_UNIT, "unit"),
        "code": _value(v.UNKNOWN_UNIT, "code"),
        _TOPIC: _smallest(v.MQTT_TOPIC, "topic"),
    },
    {
        **_NAMED,
        "observationType": EntityProperty(
            "string", ("unit", "code"), f'IF(BOUND(%vunit) || BOUND(%vcode), "{MEASUREMENT}", "{GENERAL}")'
        ),
        "unitOfMeasurement": EntityProperty(
            "any",
            refused="name a member, such as unitOfMeasurement/definition",
            members={
                "name": EntityProperty(
                    "string",
                    ("unit", "code"),
                    'COALESCE(REPLACE(STR(%vunit), "^.*[/#]([^/#]+)[/#]?$", "$1"), STR(%vcode))',
                ),
                "symbol": EntityProperty("string", ("unit", "code"), refused="use unitOfMeasurement/name"),
                "definition": EntityProperty("string", ("unit",), "STR(%vunit)"),
            },
        ),
        "properties": EntityProperty(
            "any",
            refused="name a member, such as properties/topic",
            members={"iri": _IRI, "topic": EntityProperty("string", (_TOPIC,), "STR(%vtopic)")},
        ),
    },
    {
        "Thing": Navigation("Things", False, _between(_THING_STREAM, "%stream", "%thing")),
        "Sensor": Navigation("Sensors", False, _BETWEEN_STREAM),
        "ObservedProperty": Navigation("ObservedProperties", False, f"%a {_ABOUT_STREAM['property']} %b ."),
        "Observations": Navigation("Observations", True, of_target="stream"),
    },
    _datastream,
    {**_VARIABLES, "unit": ("unit",), "code": ("code",), _TOPIC: ("topic",)},
)
SENSORS = EntityType(
    "Sensor",
    "Sensors",
    f"%e a {iri(v.SENSOR)} .",
    _LABEL,
    {
        **_NAMED,
        "encodingType": EntityProperty("string", (), '"text/html"'),
        "metadata": _IRI,
        "properties": _PROPERTIES_OF_IRI,
    },
    {"Datastreams": Navigation("Datastreams", True, f"%b {_ABOUT_STREAM['sensor']} %a .")},
    _sensor,
    _VARIABLES,
)
OBSERVED_PROPERTIES = EntityType(
    "ObservedProperty",
    "ObservedProperties",
    f"%e a {iri(v.OBSERVABLE_PROPERTY)} .",
    _LABEL,
    {**_NAMED, "definition": _IRI, "properties": _PROPERTIES_OF_IRI},
    {"Datastreams": Navigation("Datastreams", True, f"%b {_ABOUT_STREAM['property']} %a .")},
    _observed_property,
    _VARIABLES,
)
OBSERVATIONS = EntityType(
    "Observation",
    "Observations",
    f"%vstream {iri(v.LIVE_OBSERVATION)} %e . %e {iri(v.HAS_SIMPLE_RESULT)} %vraw .",
    {
        "time": _value(v.RESULT_TIME, "time"),
        "phenomenon": _value(PHENOMENON_TIME, "phenomenon"),
        "problem": _value(v.TIME_PROBLEM, "problem"),
        "feature": _value(v.HAS_FEATURE_OF_INTEREST, "feature"),
    },
    {
        "phenomenonTime": EntityProperty("datetime", ("time", "phenomenon"), "COALESCE(%vphenomenon, %vtime)"),
        "resultTime": EntityProperty("datetime", ("time",), "%vtime"),
        "result": EntityProperty(
            "any",
            (),
            "IF(ISLITERAL(%vraw) && (ISNUMERIC(%vraw) || DATATYPE(%vraw) = "
            f"{iri(XSD + 'boolean')}), %vraw, STR(%vraw))",
        ),
        "parameters": EntityProperty(
            "any",
            refused="name a member, such as parameters/timeProblem",
            members={"iri": _IRI, "timeProblem": EntityProperty("string", ("problem",), "STR(%vproblem)")},
        ),
    },
    {
        "Datastream": Navigation("Datastreams", False, of_source="stream"),
        "FeatureOfInterest": Navigation("FeaturesOfInterest", False, of_source="feature"),
    },
    _observation,
    {"": ("raw", "stream"), "time": ("time",), "phenomenon": ("phenomenon",), "problem": ("problem",)},
    in_graphs=True,
)
FEATURES = EntityType(
    "FeatureOfInterest",
    "FeaturesOfInterest",
    f"%e a {iri(v.FEATURE_OF_INTEREST)} .",
    {**_LABEL, **_POSITION},
    {
        **_NAMED,
        "encodingType": EntityProperty("string", (), f'"{GEOJSON}"'),
        "feature": EntityProperty("any", ("position", "wkt"), refused=_GEOMETRY),
        "properties": _PROPERTIES_OF_IRI,
    },
    {"Observations": Navigation("Observations", True, of_target="feature")},
    _feature,
    _VARIABLES,
)

ENTITY_SETS: Mapping[str, EntityType] = {
    one.set: one
    for one in (
        THINGS,
        LOCATIONS,
        HISTORICAL_LOCATIONS,
        DATASTREAMS,
        SENSORS,
        OBSERVED_PROPERTIES,
        OBSERVATIONS,
        FEATURES,
    )
}
