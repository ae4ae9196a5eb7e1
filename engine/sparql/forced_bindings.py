"""Values -> checked terms -> SPARQL text: forced bindings (SEPA protocol 4.4; Roffia 2018, 3.3).

A variable is replaced only where it is a token: not in strings, comments or IRIs, nor as part of a longer name. Values
are terms in N-Triples syntax, whose escapes are valid in SPARQL, so no value can inject SPARQL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import msgspec

from lamplighter.engine.errors import ForcedBindingError, LimitExceededError
from lamplighter.engine.sparql.lexer import tokens
from lamplighter.engine.term_bounds import TERM_BYTES_MOST, check_term
from lamplighter.engine.terms import XSD, Term, iri, is_blank, lexical, literal, term_from_json

Value = str | bool | int | float | Decimal | datetime | Mapping[str, Any]
"""A value for a variable: text or a number, interpreted by the declaration of its forced binding, or a member of a
SPARQL results document (``{"type": "uri", "value": ...}``), which has its own type."""

REMEMBERED_MAX = 64
"""Texts whose variables are remembered: a reaction of many rows has the same text for each of them."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_LEXICAL = {
    "integer": re.compile(r"[+-]?[0-9]+"),
    "decimal": re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)"),
    "double": re.compile(r"[+-]?(([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|INF)|NaN"),
    "boolean": re.compile(r"true|false|0|1"),
    "dateTime": re.compile(
        r"-?[0-9]{4,}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})?"
    ),
}
_LEXICAL["float"] = _LEXICAL["double"]
_LEXICAL["dateTimeStamp"] = re.compile(_LEXICAL["dateTime"].pattern.removesuffix("?"))
"""The lexical forms of these XML Schema datatypes. Other values are refused."""


class ForcedBinding(msgspec.Struct, frozen=True):
    """The declaration of a variable for which the caller gives a value.

    value: the default; an empty text if the caller must give a value; None if the variable otherwise stays a variable.
    description: what the value is, in words for people and language models.
    """

    type: Literal["uri", "literal", "bnode"] = "literal"
    value: str | int | float | bool | None = None
    datatype: str | None = None
    language: str | None = None
    description: str = ""

    def term(self, value: Value, expanded: Callable[[str], str]) -> Term:
        """The term of a value by this declaration.

        expanded: prefixed name -> full name; other text is returned unchanged. Raises ValueError for a value that does
        not fit the declaration.
        """
        if isinstance(value, Mapping):
            own = {"xml:lang": value["language"]} if "language" in value else {}  # SEPA's name for it
            return _checked(term_from_json({**own, **value}))
        if self.type == "literal":
            return _checked(self._literal(value, expanded))
        if not isinstance(value, str):
            raise ValueError(f"an IRI must be text, not {value!r}")
        if value.startswith("_:"):
            return _checked(value)
        name = expanded(value)
        if not _SCHEME.match(name):
            raise ValueError(f"{value!r} is neither an absolute IRI nor a name with a prefix of the profile")
        return _checked(iri(name))

    def _literal(self, value: Value, expanded: Callable[[str], str]) -> Term:
        text, own = _text_and_datatype(value)
        if self.language is not None and own is None:
            return literal(text, language=self.language)
        if own is None and self.value is not None and not isinstance(self.value, str):
            own = _text_and_datatype(self.value)[1]  # a text given for a numeric default is a number
        datatype = own if self.datatype is None else expanded(self.datatype)
        if datatype is not None and datatype.startswith(XSD):
            name = datatype.removeprefix(XSD)
            if name == "decimal" and isinstance(value, float):
                text = format(Decimal(text), "f") if text not in ("NaN", "INF", "-INF") else text
            form = _LEXICAL.get(name)
            if form is not None and not form.fullmatch(text):
                raise ValueError(f"{text!r} is not an xsd:{name}")
        return literal(text, datatype=datatype)


def _text_and_datatype(value: Value) -> tuple[str, str | None]:
    """The lexical form of a value, and its own datatype; None for text."""
    if isinstance(value, str):
        return value, None
    if isinstance(value, bool):
        return str(value).lower(), XSD + "boolean"
    if isinstance(value, int):
        return str(value), XSD + "integer"
    if isinstance(value, float):
        return {"nan": "NaN", "inf": "INF", "-inf": "-INF"}.get(text := repr(value), text), XSD + "double"
    if isinstance(value, Decimal):
        return format(value, "f"), XSD + "decimal"
    if isinstance(value, datetime):
        return value.isoformat(), XSD + "dateTime"
    raise ValueError(f"a value must be text, a number, a boolean or a time, not {type(value).__name__}")


def _checked(term: Term) -> Term:
    """The term, if it can be a value in a request. Raises ValueError."""
    if is_blank(term):
        raise ValueError(
            f"{term} is a blank node, which in a request would stand for anything; give an IRI or a literal"
        )
    try:
        term.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"it has half of a surrogate pair at {error.start}, which is no character") from error
    try:
        check_term(term, TERM_BYTES_MOST)  # the gateway checks its own limit
    except LimitExceededError as error:
        raise ValueError(str(error)) from error
    return term


def bound(sparql: str, values: Mapping[str, Term]) -> str:
    """The text with each ``?name`` and ``$name`` of values replaced by its term.

    Raises ForcedBindingError for a blank node, which would be a variable in a request.
    """
    for name, term in values.items():
        try:
            _checked(term)
        except ValueError as error:
            raise ForcedBindingError(f"?{name}: {error}") from error
    places, rest = _places(sparql)
    parts: list[str] = []
    for place in places:
        name = place.variable[1:]
        if name not in values:
            parts += [place.before, place.variable]
            continue
        term = values[name]
        if place.counts and term.endswith(f"^^<{XSD}integer>"):
            term = lexical(term)  # LIMIT and OFFSET take no literal
        # With spaces around it, since `?a<?b` must not become `<a><<b>`.
        parts += [place.before, " ", term, " "]
    return "".join([*parts, rest])


class _VariablePlace(NamedTuple):
    """A variable in a text. before: the text from the variable before it; counts: whether LIMIT or OFFSET does."""

    before: str
    variable: str
    counts: bool


@lru_cache(REMEMBERED_MAX)
def _places(sparql: str) -> tuple[list[_VariablePlace], str]:
    """The variables of a text, and what is behind the last."""
    places, position, counts = [], 0, False
    for token in tokens(sparql):
        if token.kind == "variable":
            places.append(_VariablePlace(sparql[position : token.start], token.text, counts))
            position = token.end
        counts = token.is_word("LIMIT", "OFFSET")
    return places, sparql[position:]
