"""Query options of a request (SensorThings 1.1, 9.3), and those inside of ``$expand``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from lamplighter.gateway.gates.http.parameters import Parameters
from lamplighter.gateway.gates.sensorthings.entities import ENTITY_SETS, EntityType
from lamplighter.gateway.gates.sensorthings.expressions import Expression, SortKey, filter_expression, order_keys
from lamplighter.gateway.gates.sensorthings.patterns import single
from lamplighter.gateway.gates.sensorthings.tokens import EXPRESSION_CHARS_MAX, ExpressionError

PAGE: Final = 100  # entities of one page, if the request does not say
PAGE_MAX: Final = 1_000
EXPANSION_DEPTH_MAX: Final = 4
EXPANSIONS_MAX: Final = 20  # of one request
SKIP_MAX: Final = 2**31 - 1

NAMES = ("$filter", "$orderby", "$top", "$skip", "$count", "$select", "$expand", "$resultFormat")
_OF_MANY = ("$filter", "$orderby", "$top", "$skip", "$count", "$resultFormat")
_UNSUPPORTED = {
    **{name.removeprefix("$"): f"write {name}" for name in NAMES},
    **dict.fromkeys(("$search", "$apply", "$compute", "$format", "$skiptoken"), f"use {', '.join(NAMES)}"),
}
MANY: Final = Parameters(NAMES, unsupported=_UNSUPPORTED)  # of a collection
# Of an entity.
ONE: Final = Parameters(
    ("$select", "$expand"),
    unsupported={**_UNSUPPORTED, **dict.fromkeys(_OF_MANY, "it is for collections, and this is one entity")},
)
IDENTITY = {"id": "@iot.id", "@iot.id": "@iot.id", "selfLink": "@iot.selfLink", "@iot.selfLink": "@iot.selfLink"}
_NUMBER = re.compile(r"[0-9]{1,10}")


@dataclass(frozen=True)
class QueryOptions:
    """What a request asks of a collection or of one entity. texts: the options as written, for links to further pages.
    select: names of members, of `IDENTITY` and navigation; empty: all. expand: options by navigation."""

    filter: Expression | None = None
    order: tuple[SortKey, ...] = ()
    top: int = PAGE
    skip: int = 0
    count: bool = False
    select: tuple[str, ...] = ()
    expand: Mapping[str, QueryOptions] = field(default_factory=dict)
    data_array: bool = False
    texts: Mapping[str, str] = field(default_factory=dict)

    def selects(self, name: str) -> bool:
        return not self.select or name in self.select

    def further(self) -> dict[str, str]:
        return {**self.texts, "$skip": str(self.skip + self.top)}


def options(texts: Mapping[str, str], kind: EntityType, *, many: bool) -> QueryOptions:
    """The options of a URL. kind: of the entities; many: whether a collection. Raises ExpressionError."""
    parser = _OptionsParser()
    return parser.read({name: (text, 0) for name, text in texts.items()}, kind, many, 0)


class _OptionsParser:
    """Reads the options of one request. State: how many expansions it has."""

    def __init__(self) -> None:
        self._expansions = 0

    def read(self, texts: Mapping[str, tuple[str, int]], kind: EntityType, many: bool, depth: int) -> QueryOptions:
        """texts: each option's text, and its offset in the option of the URL that it is part of."""
        found = QueryOptions(texts={name: text for name, (text, _) in texts.items()})
        for name, (text, offset) in texts.items():
            if not many and name in _OF_MANY:
                raise ExpressionError(name, offset, "it is for collections, and this is one entity; leave it out")
            if len(text) > EXPRESSION_CHARS_MAX:
                raise ExpressionError(name, offset, f"it is longer than {EXPRESSION_CHARS_MAX} characters")
            match name:
                case "$filter":
                    found = replace(found, filter=filter_expression(text, offset))
                case "$orderby":
                    found = replace(found, order=order_keys(text, offset))
                case "$top":
                    found = replace(found, top=min(PAGE_MAX, _number(name, text, offset)))
                case "$skip":
                    found = replace(found, skip=_number(name, text, offset))
                case "$count":
                    if text not in ("true", "false"):
                        raise ExpressionError(name, offset, "write true or false")
                    found = replace(found, count=text == "true")
                case "$select":
                    found = replace(found, select=_selection(text, offset, kind))
                case "$expand":
                    found = replace(found, expand=self._expansion(text, offset, kind, depth))
                case "$resultFormat":
                    found = replace(found, data_array=_result_format(text, kind, depth))
        return found

    def _expansion(self, text: str, offset: int, kind: EntityType, depth: int) -> Mapping[str, QueryOptions]:
        if depth >= EXPANSION_DEPTH_MAX:
            raise ExpressionError("$expand", offset, f"it is nested more than {EXPANSION_DEPTH_MAX} deep")
        found: dict[str, QueryOptions] = {}
        for item, start in _segments(text, offset, ","):
            self._expansions += 1
            if self._expansions > EXPANSIONS_MAX:
                raise ExpressionError(
                    "$expand", start, f"there are more than {EXPANSIONS_MAX} expansions; ask for less"
                )
            path, opened, inner = item.partition("(")
            first, slash, rest = path.strip().partition("/")
            if first not in kind.navigation:
                known = ", ".join(kind.navigation)
                raise ExpressionError("$expand", start, f"{kind.name} has no {first[:50]!r} to expand; it has {known}")
            if opened and not inner.rstrip().endswith(")"):
                raise ExpressionError("$expand", start, "the parenthesis is not closed; write )")
            way = kind.navigation[first]
            target = ENTITY_SETS[way.target]
            body, place = inner.rstrip()[:-1], start + len(path) + 1
            if slash:  # a path is short for nested expansions, whose options are those of the last
                texts = {"$expand": (rest + opened + inner, start + item.index("/") + 1)}
            else:
                texts = _inner(body, place) if opened else {}
            one = self.read(texts, target, not single(kind, first), depth + 1)
            found[first] = _merge(found[first], one) if first in found else one
        return found


def _merge(one: QueryOptions, other: QueryOptions) -> QueryOptions:
    """The options of a navigation that is expanded twice: those of the last that has any; expansions of both."""
    own = other if other.texts.keys() - {"$expand"} else one
    expansions = [found.texts["$expand"] for found in (one, other) if "$expand" in found.texts]
    texts = {**own.texts, **({"$expand": ",".join(expansions)} if expansions else {})}
    return replace(own, expand={**one.expand, **other.expand}, texts=texts)


def _inner(body: str, offset: int) -> dict[str, tuple[str, int]]:
    texts: dict[str, tuple[str, int]] = {}
    for part, start in _segments(body, offset, ";"):
        name, equals, text = part.partition("=")
        name = name.strip()
        if name not in NAMES or not equals:
            raise ExpressionError(
                "$expand", start, f"{part[:50]!r} is no option; use {', '.join(NAMES)} with = and a ;"
            )
        if name in texts:
            raise ExpressionError("$expand", start, f"{name} occurs twice; write it once")
        texts[name] = (text, start + part.index("=") + 1)
    return texts


def _segments(text: str, offset: int, separator: str) -> Iterator[tuple[str, int]]:
    """The parts of a text outside of strings and parentheses, with their offsets. Empty parts are an error."""
    depth, quoted, begun = 0, False, 0
    for place, sign in enumerate(text + separator):
        if place == len(text) and (quoted or depth):
            missing = "the string is not closed; write '" if quoted else "the parenthesis is not closed; write )"
            raise ExpressionError("$expand", offset + begun, missing)
        if sign == "'":
            quoted = not quoted
        elif quoted:
            continue
        elif sign == "(":
            depth += 1
        elif sign == ")":
            depth -= 1
            if depth < 0:
                raise ExpressionError("$expand", offset + place, "unexpected )")
        elif sign == separator and depth == 0:
            part = text[begun:place]
            if not part.strip():
                raise ExpressionError("$expand", offset + begun, f"something is missing here, before a {separator}")
            yield part, offset + begun
            begun = place + 1


def _number(name: str, text: str, offset: int) -> int:
    if not _NUMBER.fullmatch(text) or int(text) > SKIP_MAX:
        raise ExpressionError(name, offset, f"{text[:30]!r} is no number from 0 to {SKIP_MAX}")
    return int(text)


def _result_format(text: str, kind: EntityType, depth: int) -> bool:
    if text != "dataArray" or kind.set != "Observations" or depth:
        raise ExpressionError("$resultFormat", 0, "it can be dataArray, and for a collection of Observations only")
    return True


def _selection(text: str, offset: int, kind: EntityType) -> tuple[str, ...]:
    found = []
    for part in text.split(","):
        name = part.strip()
        if name not in kind.properties and name not in kind.navigation and name not in IDENTITY:
            known = ", ".join(("id", *kind.properties, *kind.navigation))
            raise ExpressionError("$select", offset, f"{kind.name} has no {name[:50]!r}; it has {known}")
        found.append(IDENTITY.get(name, name))
        offset += len(part) + 1
    return tuple(found)
