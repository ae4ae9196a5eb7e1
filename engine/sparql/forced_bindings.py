"""Values -> checked terms -> SPARQL text: forced bindings (SEPA protocol 4.4; Roffia 2018, 3.3).

A variable is replaced only where it is a token: not in strings, comments or IRIs, nor as part of a longer name. Values
are terms in N-Triples syntax, whose escapes are valid in SPARQL, so no value can inject SPARQL.

A blank node is a value where SPARQL gives it a meaning: for a variable that is declared as one, in INSERT DATA and in
the template of INSERT, where it is a new node. Elsewhere it would match anything, or break the syntax.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import msgspec

from lamplighter.engine.errors import ForcedBindingError, LimitExceededError
from lamplighter.engine.sparql.lexer import Token, tokens
from lamplighter.engine.term_bounds import TERM_BYTES_MOST, check_term
from lamplighter.engine.terms import XSD, Term, iri, is_blank, lexical, literal, term_from_json

# A value for a variable: text or a number, interpreted by the declaration of its forced binding, or a member of a
# SPARQL results document (``{"type": "uri", "value": ...}``), which has its own type.
Value = str | bool | int | float | Decimal | datetime | Mapping[str, Any]

# Texts whose variables are remembered: a reaction of many rows has the same text for each of them.
REMEMBERED_MAX = 64
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
# IRIs that need no look at the namespaces: hierarchical ones, and the schemes without a hierarchy that are in use. What
# else has a colon is taken for a name (SEPA protocol 4.4: a URI is hierarchical, or a ``urn:``).
_UNLIKE_A_PREFIX = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*:/|(urn|mailto|tel|tag|did|data|geo|info|acct|cid|mid|ni|sip|sips|sms|xmpp|coap|news|jid):",
    re.I,
)
_LABEL = re.compile(r"_:[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_-])?")
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
# The lexical forms of these XML Schema datatypes. Other values are refused.
_LEXICAL["dateTimeStamp"] = re.compile(_LEXICAL["dateTime"].pattern.removesuffix("?"))


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
        blank = self.type == "bnode"
        if isinstance(value, Mapping):
            return _check_term(term_from_json(_with_language(value)), blank)
        if self.type == "literal":
            return _check_term(self._literal(value, expanded))
        if not isinstance(value, str):
            raise ValueError(f"an IRI must be text, not {value!r}")
        if value.startswith("_:"):
            return _check_term(value, blank)
        return _check_term(iri(_absolute(value, expanded)))

    def _literal(self, value: Value, expanded: Callable[[str], str]) -> Term:
        text, own = _text_and_datatype(value)
        if self.language is not None and own is None:
            return literal(text, language=self.language)
        if own is None and self.value is not None and not isinstance(self.value, str):
            own = _text_and_datatype(self.value)[1]  # a text given for a numeric default is a number
        datatype = own if self.datatype is None else _absolute(self.datatype, expanded)
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


def _with_language(member: Mapping[str, Any]) -> Mapping[str, Any]:
    """A member of a results document with the standard's name of its language, if it has SEPA's. Raises ValueError."""
    if "language" not in member:
        return member
    language = member["language"]
    if member.get("xml:lang", language) != language:
        raise ValueError(f"language is {language!r} and xml:lang is {member['xml:lang']!r}; keep one of them")
    return {**member, "xml:lang": language}


def _absolute(value: str, expanded: Callable[[str], str]) -> str:
    """The IRI of a text: an absolute IRI, or a name with a prefix of the profile. Raises ValueError."""
    name = expanded(value)
    if not _SCHEME.match(name):
        raise ValueError(f"{value!r} is neither an absolute IRI nor a name with a prefix of the profile")
    if name == value and not _UNLIKE_A_PREFIX.match(value):
        prefix = value.partition(":")[0]
        raise ValueError(
            f"the prefix {prefix}: of {value!r} is not declared; add it to the namespaces of the profile, or, if "
            f'{prefix}: is the scheme of an IRI, give {{"type": "uri", "value": ...}}'
        )
    return name


def _check_term(term: Term, blank: bool = False) -> Term:
    """The term, if it can be a value in a request. blank: whether it may be a blank node. Raises ValueError."""
    if is_blank(term):
        if not blank:
            raise ValueError(
                f"{term} is a blank node, which in a request would stand for anything; give an IRI or a literal"
            )
        if not _LABEL.fullmatch(term):
            raise ValueError(f"not the label of a blank node: {term!r}")
    try:
        term.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"it has half of a surrogate pair at {error.start}, which is no character") from error
    try:
        check_term(term, TERM_BYTES_MOST)  # the gateway checks its own limit
    except LimitExceededError as error:
        raise ValueError(str(error)) from error
    return term


def bind(sparql: str, values: Mapping[str, Term], new_nodes: Collection[str] = ()) -> str:
    """The text with each ``?name`` and ``$name`` of values replaced by its term.

    new_nodes: the variables that may be blank nodes, in INSERT DATA and in templates of INSERT; there they are new
    nodes. Raises ForcedBindingError for any other blank node, which would be a variable in a request.
    """
    for name, term in values.items():
        try:
            _check_term(term, name in new_nodes)
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
        if is_blank(term) and not place.makes:
            raise ForcedBindingError(
                f"{place.variable}: {term} is a blank node, which a request cannot select by its label; it may stand "
                "in INSERT DATA and in the template of INSERT only, for a new node; find the node by its "
                "properties, or give an IRI"
            )
        if place.counts and term.endswith(f"^^<{XSD}integer>"):
            term = lexical(term)  # LIMIT and OFFSET take no literal
        # With spaces around it, since `?a<?b` must not become `<a><<b>`.
        parts += [place.before, " ", term, " "]
    return "".join([*parts, rest])


class _VariablePlace(NamedTuple):
    """A variable in a text. before: the text from the variable before it; counts: whether LIMIT or OFFSET does; makes:
    whether a blank node may stand there, for a new node."""

    before: str
    variable: str
    counts: bool
    makes: bool


@lru_cache(REMEMBERED_MAX)
def _places(sparql: str) -> tuple[list[_VariablePlace], str]:
    """The variables of a text, and what is behind the last."""
    places, position, counts, inserting = [], 0, False, _Inserting()
    for token in tokens(sparql):
        makes = inserting.after(token)
        if token.kind == "variable":
            places.append(_VariablePlace(sparql[position : token.start], token.text, counts, makes))
            position = token.end
        counts = token.is_word("LIMIT", "OFFSET")
    return places, sparql[position:]


class _Inserting:
    """Follows the tokens of an update: which of them are in the data or the template of an INSERT."""

    def __init__(self) -> None:
        self._depth = 0
        self._inserts = self._names = False

    def after(self, token: Token) -> bool:
        """Whether the token, which comes next, may be a blank node: it is in such a block, and names no graph."""
        makes = self._inserts and self._depth > 0 and not self._names
        self._names = token.is_word("GRAPH")
        if token.kind == "sign" and token.text in "{}":
            self._depth += 1 if token.text == "{" else -1
            self._inserts = self._inserts and self._depth > 0
        elif not self._depth and not token.is_word("DATA"):
            self._inserts = token.is_word("INSERT")
        return makes
