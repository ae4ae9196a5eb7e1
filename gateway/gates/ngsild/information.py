"""The information model (4.2, 4.5): attributes of entities, their JSON, and their terms.

Numbers, booleans and strings are literals; ``{"@type": "DateTime", "@value": ...}`` is an xsd:dateTime, and likewise
Date and Time; other objects and arrays are rdf:JSON; a geometry is a geo:geoJSONLiteral.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Any, Final, Literal

import msgspec

from lamplighter.engine.errors import MalformedRequestError
from lamplighter.engine.terms import XSD, Term, iri, is_iri, is_literal, lexical, literal, term_to_json
from lamplighter.gateway.gates.ngsild.contexts import NGSI, ContextNames, is_absolute
from lamplighter.gateway.gates.ngsild.problems import OperationNotSupportedError, excerpt
from lamplighter.gateway.gates.standards import JsonNumber

Kind = Literal["Property", "Relationship", "GeoProperty"]
KINDS: Final[tuple[Kind, ...]] = ("Property", "Relationship", "GeoProperty")
Form = Literal["normalized", "keyValues", "concise"]
_RDF_TYPE = "http://www.w3.org/1999/02/22-rdf-syntax-ns#type"
JSON_TYPE: Final = "http://www.w3.org/1999/02/22-rdf-syntax-ns#JSON"
GEOJSON_TYPE: Final = "http://www.opengis.net/ont/geosparql#geoJSONLiteral"
NULL: Final = "urn:ngsi-ld:null"  # the value that stands for deletion in a patch (4.5.0)
ATTRIBUTES_MAX: Final = 500
DEPTH_MAX: Final = 50  # of objects and arrays in a value
UNIT_CHARS_MAX: Final = 100
_OTHER_KINDS = (
    *("LanguageProperty", "VocabProperty", "VocabularyProperty", "JsonProperty", "ListProperty"),
    "ListRelationship",
)
# Geometry type -> levels of arrays around its positions.
_GEOMETRIES: Final = {
    "Point": 0,
    "MultiPoint": 1,
    "LineString": 1,
    "MultiLineString": 2,
    "Polygon": 2,
    "MultiPolygon": 3,
}
_TEMPORAL: Final = {"DateTime": "dateTime", "Date": "date", "Time": "time"}
_SYSTEM: Final = ("createdAt", "modifiedAt", "deletedAt")
_NUMBERS: Final = frozenset(XSD + name for name in ("integer", "decimal", "double", "float", "int", "long"))
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_DATETIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[+-]\d\d:\d\d)", re.A)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.A)
_TIME = re.compile(r"\d\d:\d\d:\d\d(?:\.\d{1,6})?Z?", re.A)


@dataclass(frozen=True)
class Attribute:
    """An attribute with one value. value: an IRI for a Relationship, else a literal; observed_at: xsd:dateTime."""

    kind: Kind
    value: Term
    observed_at: Term | None = None
    unit_code: str | None = None


@dataclass(frozen=True)
class Fragment:
    """What a partial update replaces (5.6.4): None where the request has no such member, "" where it deletes it."""

    kind: Kind | None
    value: Term | None
    observed_at: Term | None
    unit_code: str | None


# --- JSON -> terms ---


def attributes(members: Mapping[str, Any], names: ContextNames) -> dict[str, Attribute | None]:
    """The attributes of an entity or a fragment by IRI; None for one that is NULL. Raises RequestError."""
    found: dict[str, Attribute | None] = {}
    for name, value in members.items():
        if name in ("id", "type", "@id", "@type", "@context", *_SYSTEM):
            continue
        if name == "scope":
            raise OperationNotSupportedError("scope is not kept; leave it out")
        expanded = names.expand(name, "an attribute")
        if expanded == _RDF_TYPE:
            raise MalformedRequestError(f"{name[:100]!r} is no attribute; write type")
        if expanded in found:
            raise MalformedRequestError(f"{name[:100]!r}: another name of the request is the same attribute")
        found[expanded] = None if is_null(value) else attribute(value, name[:100])
        if len(found) > ATTRIBUTES_MAX:
            raise OperationNotSupportedError(f"an entity may have {ATTRIBUTES_MAX} attributes")
    return found


def attribute(value: Any, name: str) -> Attribute:
    """An attribute, normalized, concise or simplified. name: for errors. Raises RequestError."""
    if isinstance(value, list) and any(isinstance(one, dict) and one.get("type") in KINDS for one in value):
        raise OperationNotSupportedError(f"{name}: an attribute has one value here; datasetId is not supported")
    if not isinstance(value, dict) or "@value" in value:
        return Attribute("Property", value_term(value, name))
    kind = _kind(value, name)
    if kind is None:
        return Attribute("GeoProperty", geometry_term(value, name))
    read = fragment(value, name)
    if read.value is None:
        raise MalformedRequestError(f"{name}: {'object' if kind == 'Relationship' else 'value'} is missing")
    if read.observed_at == "" or read.unit_code == "":
        raise MalformedRequestError(f"{name}: {NULL} deletes a member of one attribute; leave the member out")
    return Attribute(kind, read.value, read.observed_at, read.unit_code)


def fragment(value: Mapping[str, Any], name: str) -> Fragment:
    """The members of an attribute that a request has. Raises RequestError."""
    named = value.get("type", value.get("@type"))
    kind = _kind(value, name) if named is not None or "value" in value or "object" in value else None
    found: Term | None = None
    observed_at: Term | None = None
    unit_code: str | None = None
    for member, inner in value.items():
        if member in ("type", "@type", "@context", *_SYSTEM):
            continue
        if member == "observedAt":
            observed_at = "" if inner == NULL else _datetime(inner, f"{name}.observedAt")
        elif member == "unitCode":
            if not isinstance(inner, str) or not 0 < len(inner) <= UNIT_CHARS_MAX or kind not in (None, "Property"):
                raise MalformedRequestError(f"{name}.unitCode: a code such as CEL, of a Property, not {excerpt(inner)}")
            unit_code = "" if inner == NULL else inner
        elif member == "object" and kind == "Relationship":
            if not isinstance(inner, str):
                raise OperationNotSupportedError(f"{name}.object: the URI of one entity, not {excerpt(inner)}")
            if not is_absolute(inner):
                raise MalformedRequestError(f"{name}.object: {inner[:100]!r} is no URI")
            found = iri(inner)
        elif member == "value" and kind in ("Property", "GeoProperty"):
            found = geometry_term(inner, name) if kind == "GeoProperty" else value_term(inner, name)
        else:
            raise OperationNotSupportedError(
                f"{name}.{member[:100]}: not kept of a {kind or 'Property'}; members are type, value or object, "
                "observedAt and unitCode"
            )
    return Fragment(kind, found, observed_at, unit_code)


def _kind(value: Mapping[str, Any], name: str) -> Kind | None:
    """The kind of an attribute; None for a bare geometry."""
    named = value.get("type", value.get("@type"))
    if named in KINDS:
        return next(one for one in KINDS if one == named)
    if named in _OTHER_KINDS:
        raise OperationNotSupportedError(f"{name}: {named} is not supported; use {', '.join(KINDS)}")
    if isinstance(named, str) and named in _GEOMETRIES and "coordinates" in value:
        return None
    if named is not None:
        raise MalformedRequestError(f"{name}: type {excerpt(named)} is none of {', '.join(KINDS)}")
    if "object" in value:
        return "Relationship"
    if "value" in value:
        inner = value["value"]
        is_geometry = isinstance(inner, dict) and inner.get("type") in list(_GEOMETRIES) and "coordinates" in inner
        return "GeoProperty" if is_geometry else "Property"
    raise MalformedRequestError(f'{name}: write {{"type": "Property", "value": ...}}, or another of {", ".join(KINDS)}')


def is_null(value: Any) -> bool:
    return value == NULL or (isinstance(value, dict) and value.get("value", value.get("object")) == NULL)


def value_term(value: Any, name: str) -> Term:
    """The literal of a Property's value. Raises MalformedRequestError, OperationNotSupportedError."""
    if isinstance(value, bool):
        return literal("true" if value else "false", datatype=XSD + "boolean")
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise MalformedRequestError(f"{name}: the number has more than 64 bits; write a string")
        return literal(str(value), datatype=XSD + "integer")
    if isinstance(value, JsonNumber):
        return _number(value, name)
    if isinstance(value, str):
        return literal(value)
    if value is None:
        raise MalformedRequestError(f"{name}: null is no value; to delete it write {NULL!r} in a PATCH")
    if isinstance(value, dict) and "@value" in value:
        datatype, text = _TEMPORAL.get(str(value.get("@type"))), value["@value"]
        if datatype is None or value.keys() != {"@type", "@value"}:
            raise OperationNotSupportedError(
                f"{name}: @type may be {', '.join(_TEMPORAL)}, with @value and nothing else"
            )
        if not isinstance(text, str) or not is_temporal(datatype, text):
            raise MalformedRequestError(f"{name}: {excerpt(text)} is no {value['@type']} (ISO 8601)")
        return literal(text, datatype=XSD + datatype)
    return literal(msgspec.json.encode(_plain(value, name)).decode(), datatype=JSON_TYPE)


def _number(text: JsonNumber, name: str) -> Term:
    if not math.isfinite(float(text)):
        raise MalformedRequestError(f"{name}: {text[:50]!r} is larger than any number")
    digits = sum(map(str.isdigit, text))
    if digits <= 18 and "e" not in text and "E" not in text and "." in text:
        return literal(text, datatype=XSD + "decimal")
    return literal(text, datatype=XSD + "double")


def _plain(value: Any, name: str, depth: int = 0) -> Any:
    """A JSON value with numbers as such."""
    if depth > DEPTH_MAX:
        raise MalformedRequestError(f"{name}: objects and arrays may be nested {DEPTH_MAX} deep")
    if isinstance(value, JsonNumber):
        number = float(value)
        if not math.isfinite(number):
            raise MalformedRequestError(f"{name}: {value[:50]!r} is larger than any number")
        return number
    if isinstance(value, list):
        return [_plain(one, name, depth + 1) for one in value]
    if isinstance(value, dict):
        return {key: _plain(one, name, depth + 1) for key, one in value.items()}
    return value


def geometry_term(value: Any, name: str) -> Term:
    """The literal of a GeoJSON geometry (RFC 7946). Raises MalformedRequestError."""
    plain = _plain(value, name)
    kind = plain.get("type") if isinstance(plain, dict) else None
    levels = _GEOMETRIES.get(kind) if isinstance(kind, str) else None
    if levels is None or plain.keys() != {"type", "coordinates"} or not _positions(plain["coordinates"], levels):
        raise MalformedRequestError(
            f'{name}: write a GeoJSON geometry such as {{"type": "Point", "coordinates": [11.25, 44.5]}}'
        )
    return literal(msgspec.json.encode(plain).decode(), datatype=GEOJSON_TYPE)


def _positions(value: Any, levels: int) -> bool:
    if not isinstance(value, list) or (levels and not value):
        return False
    if levels:
        return all(_positions(one, levels - 1) for one in value)
    return 2 <= len(value) <= 3 and all(isinstance(one, int | float) and not isinstance(one, bool) for one in value)


def is_temporal(datatype: str, text: str) -> bool:
    """Whether a text is a dateTime with a zone, a date or a time."""
    form, read = {
        "dateTime": (_DATETIME, datetime.fromisoformat),
        "date": (_DATE, date.fromisoformat),
        "time": (_TIME, time.fromisoformat),
    }[datatype]
    if not form.fullmatch(text):
        return False
    try:
        read(text)
    except ValueError:
        return False
    return not text.startswith("0000")


def _datetime(value: Any, name: str) -> Term:
    if not isinstance(value, str) or not is_temporal("dateTime", value):
        raise MalformedRequestError(f"{name}: write a time with a zone, such as 2026-11-26T10:00:00Z")
    return literal(value, datatype=XSD + "dateTime")


def types(members: Mapping[str, Any], names: ContextNames) -> list[str]:
    """The IRIs of an entity's types. Raises MalformedRequestError."""
    named = members.get("type", members.get("@type"))
    listed = named if isinstance(named, list) else [named]
    if not listed or not all(isinstance(one, str) and one for one in listed) or len(listed) > 20:
        raise MalformedRequestError("type is missing; write a name, or an array of names")
    found = list(dict.fromkeys(names.expand(one, "type") for one in listed))
    if any(one == NGSI + kind for one in found for kind in KINDS):
        raise MalformedRequestError(f"type: {', '.join(KINDS)} are types of attributes, not of entities")
    return found


# --- terms -> JSON ---


def attribute_json(found: Attribute, form: Form) -> Any:
    """An attribute in one of the representations (4.5.2 to 4.5.4, 4.5.21)."""
    value = value_json(found.value)
    if form == "keyValues":
        return value
    more: dict[str, Any] = {}
    if found.unit_code is not None:
        more["unitCode"] = found.unit_code
    if found.observed_at is not None:
        more["observedAt"] = lexical(found.observed_at)
    member = "object" if found.kind == "Relationship" else "value"
    if form == "normalized":
        return {"type": found.kind, member: value, **more}
    compound = isinstance(value, dict) or found.value.endswith(f"^^<{JSON_TYPE}>")
    if more or found.kind == "Relationship" or (found.kind == "Property" and compound):
        return {member: value, **more}
    return value


def value_json(term: Term) -> Any:
    """A value: numbers with the digits of the dataset; all that JSON does not have as text."""
    if not is_literal(term):
        return lexical(term) if is_iri(term) else term
    member = term_to_json(term)
    datatype, text = member.get("datatype", ""), member["value"]
    if datatype in _NUMBERS:
        number = text.removeprefix("+")
        return msgspec.Raw(number.encode()) if _JSON_NUMBER.fullmatch(number) else text
    if datatype == XSD + "boolean":
        return text in ("true", "1")
    if datatype in (JSON_TYPE, GEOJSON_TYPE):
        try:
            msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return text
        return msgspec.Raw(text.encode())
    for name, kind in _TEMPORAL.items():
        if datatype == XSD + kind:
            return {"@type": name, "@value": text}
    return text


def member_iri(name: str) -> Term:
    """The term of a name of the standard's own vocabulary."""
    return iri(NGSI + name)
