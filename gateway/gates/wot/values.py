"""JSON values of terms, and terms of JSON values, by data schemas (WoT Thing Description 1.1, section 5.3.2)."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from lamplighter.engine.errors import MalformedRequestError
from lamplighter.engine.terms import XSD, Term, is_literal, lexical, literal

Schema = dict[str, Any]  # a data schema

NUMBER_CHARS_MAX = 400  # of a number that becomes a JSON number: a double in its longest spelling
STATE_CHARS_MAX = 1024  # of a text that becomes a state
_INTEGERS = (
    *("integer", "long", "int", "short", "byte", "unsignedLong", "unsignedInt", "unsignedShort", "unsignedByte"),
    *("nonNegativeInteger", "positiveInteger", "nonPositiveInteger", "negativeInteger"),
)
_NUMBERS = (*_INTEGERS, "decimal", "double", "float")
_ENDS = {f"^^<{XSD}{name}>": "number" for name in _NUMBERS} | {f"^^<{XSD}boolean>": "boolean"}
_DECIMAL = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,9})?")
_EXACT = 2**53  # integers up to it are doubles, so every reader of JSON has them as they are


def json_type(term: Term) -> str:
    """The type of the JSON value of a term: boolean, number or string."""
    if is_literal(term):
        for end, name in _ENDS.items():
            if term.endswith(end):
                return name
    return "string"


def common_type(terms: Iterable[Term]) -> Schema:
    """The data schema of values such as these; without a type if there are none, or of several types."""
    found = {json_type(term) for term in terms}
    return {"type": found.pop()} if len(found) == 1 else {}


def json_value(term: Term) -> Any:
    """The JSON value of a term; None if JSON has none, as for an infinite number."""
    text, kind = lexical(term), json_type(term)
    if kind == "boolean":
        return text in ("true", "1")
    if kind == "number":
        if len(text) > NUMBER_CHARS_MAX:
            return None
        try:
            found = float(text)
        except ValueError:
            return None
        if not math.isfinite(found):
            return None
        return int(found) if found.is_integer() and abs(found) <= _EXACT else found
    return text


def state_term(value: object, schema: Schema) -> Term:
    """The desired state that a JSON value means, by a schema. Raises MalformedRequestError."""
    kind = schema.get("type")
    if isinstance(value, bool):
        found, sent = literal(str(value).lower(), datatype=XSD + "boolean"), "boolean"
    elif isinstance(value, int | float):
        found, sent = _number(value), "number"
    elif isinstance(value, str):
        if len(value) > STATE_CHARS_MAX or not value.isprintable():
            raise MalformedRequestError(
                f"the value is a text of at most {STATE_CHARS_MAX} characters without control characters"
            )
        found, sent = literal(value), "string"
    else:
        raise MalformedRequestError(f"the value is {_type_name(value)}; send {_expectation(schema)}")
    if kind is not None and kind != sent:
        raise MalformedRequestError(f"the value is a {sent}; send {_expectation(schema)}")
    if "enum" in schema and value not in schema["enum"]:
        raise MalformedRequestError(f"the value is {str(value)[:100]!r}; send {_expectation(schema)}")
    if sent == "number":
        assert isinstance(value, int | float)
        if value < schema.get("minimum", -math.inf) or value > schema.get("maximum", math.inf):
            raise MalformedRequestError(f"the value is {value:g}; send {_expectation(schema)}")
    return found


def _number(value: float) -> Term:
    if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT:
        value = int(value)
    text = str(value) if isinstance(value, int) else f"{value:.9f}".rstrip("0").rstrip(".")
    if not _DECIMAL.fullmatch(text):
        raise MalformedRequestError("the value is a number of at most 15 digits before the point, and 9 behind it")
    return literal(text, datatype=XSD + "decimal")


def _type_name(value: object) -> str:
    return {dict: "an object", list: "an array", type(None): "null"}.get(type(value), "no JSON value")


def _expectation(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return f"one of {', '.join(map(str, _some(schema['enum'])))}"
    text = f"a {schema.get('type', 'boolean, number or string')}"
    bounds = [f"{word} {schema[key]:g}" for key, word in (("minimum", "from"), ("maximum", "to")) if key in schema]
    return " ".join([text, *bounds])


def _some(values: Collection[Any]) -> list[Any]:
    return list(values)[:20]
