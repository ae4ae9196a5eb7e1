"""Time in request texts: NOW(), and the clock functions, the engine's time as a value.

``<http://lamplighter.example/ns/gateway#clock>()`` is the time of the request in microseconds since 1970 (UTC),
an xsd:integer, with one value in a request; ``gateway:now()`` is the same time as an xsd:dateTime. In the projection
of a subscription, ``SELECT ?x (gateway:clock() AS ?since)``, it is the time of the commit that added the row. The row
keeps it. In a FILTER of a subscription the two are the engine's instant (`engine.sparql.clock_conditions`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime

import pyoxigraph as ox

from lamplighter.engine.errors import UnsupportedRequestError
from lamplighter.engine.sparql.lexer import Token, line_and_column, tokens
from lamplighter.engine.sparql.limits import outside_data
from lamplighter.engine.terms import XSD, Term

CLOCK = "<http://lamplighter.example/ns/gateway#clock>"
CLOCK_TIME = "<http://lamplighter.example/ns/gateway#now>"
# The clock functions, and the value that `at` puts in their place.
CLOCKS = {CLOCK: "CLOCK", CLOCK_TIME: "NOW"}
# Custom functions for the store's parser, so that it accepts the clock functions. They are never called.
FUNCTIONS: dict[ox.NamedNode, Callable[..., ox.NamedNode | ox.BlankNode | ox.Literal | ox.Triple | None]] = {
    ox.NamedNode(name[1:-1]): lambda: ox.Literal(0) for name in CLOCKS
}

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# A text in pieces, to be joined by `at`. The second, the fourth, ... are the names of functions: NOW or CLOCK.
TimedText = Sequence[str]


def microseconds(instant: datetime) -> int:
    """Microseconds since 1970. instant: a time with a zone."""
    since = instant - EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def date_time(instant: datetime) -> Term:
    """The time as an xsd:dateTime. instant: UTC."""
    return f'"{instant.isoformat(timespec="microseconds").removesuffix("+00:00")}Z"^^<{XSD}dateTime>'


def may_call(text: str) -> bool:
    """Whether a text may contain a call of a clock function. False is certain."""
    return "clock" in text or "now" in text


def calls(prologue: str, found: Sequence[Token]) -> dict[int, Term]:
    """The calls of the clock functions: the position of the name, which the two brackets follow -> the function.

    None for a text that is not SPARQL, whose error the parser reports.
    """
    asked = [
        position
        for position, token in enumerate(found[:-2])
        if token.kind in ("iri", "name")
        and may_call(token.text)
        and found[position + 1].text == "("
        and found[position + 2].text == ")"
    ]
    if not asked:
        return {}
    names = list({found[position].text for position in asked})
    full = dict(zip(names, _full(prologue, names), strict=False))
    functions = {position: full.get(found[position].text, "") for position in asked}
    return {position: function for position, function in functions.items() if function in CLOCKS}


def _full(prologue: str, names: Sequence[str]) -> list[Term]:
    """The full names, read at once because a prologue may be long; empty if one is invalid."""
    scratch = ox.Store()
    data = " ; ".join(f"<urn:{number}> {name}" for number, name in enumerate(names))
    with suppress(SyntaxError):
        scratch.update(f"{prologue} INSERT DATA {{ <urn:x> {data} }}")
    found = {str(quad.predicate): str(quad.object) for quad in scratch}
    return [found[f"<urn:{number}>"] for number in range(len(found))]


def cut_at_clock(text: str, prologue: str, found: Sequence[Token], *, now: bool) -> TimedText:
    """The text of the tokens, cut at the calls of the clock functions. now: whether to cut it at those of NOW() too."""
    functions = {position: CLOCKS[function] for position, function in calls(prologue, found).items()}
    if now:
        functions |= {index: "NOW" for index, token in enumerate(found) if token.is_word("NOW")}
    pieces, position = [], found[0].start
    for call, function in sorted(functions.items()):
        pieces += [text[position : found[call].start], function]
        position = found[call + 2].end
    return (*pieces, text[position : found[-1].end])


def at(text: TimedText, instant: datetime) -> str:
    """The text with the time in place of each call. instant: UTC."""
    if len(text) == 1:
        return text[0]
    values = {"CLOCK": str(microseconds(instant)), "NOW": date_time(instant)}
    return "".join(values[piece] if index % 2 else piece for index, piece in enumerate(text))


def without_clock(
    text: str, prologue: str, body: Sequence[Token], columns: Sequence[str]
) -> tuple[list[Token], dict[int, str]]:
    """The tokens of a subscribed query without its clock columns, and these as index of the column -> name.

    Calls behind the projection stay. Raises UnsupportedRequestError for another call in the projection.
    """
    projection = next(index for index, token in enumerate(body) if token.text == "{" or token.is_word("WHERE", "FROM"))
    gone: set[int] = set()
    names: dict[int, str] = {}
    for call, function in calls(prologue, body).items():
        if call > projection:
            continue
        item = body[call - 1 : call + 6]
        texts = [token.text for token in item]
        alone = len(item) == 7 and texts[0] == "(" and item[4].is_word("AS") and texts[6] == ")"
        if not alone or function != CLOCK:
            line, column = line_and_column(text, body[call].start)
            raise UnsupportedRequestError(
                f"line {line}, column {column}: in a subscription gateway:clock() stands alone in the projection, "
                "as in SELECT ?x (gateway:clock() AS ?since); elsewhere let the update write the time and select that"
            )
        name = texts[5][1:]
        if sum(token.kind == "variable" and token.text[1:] == name for token in body) > 1:
            raise UnsupportedRequestError(f"?{name} is the time at which a row appears, and cannot be used elsewhere")
        names[list(columns).index(name)] = name
        gone |= set(range(call - 1, call + 6))
    if names and len(names) == len(columns):
        raise UnsupportedRequestError("SELECT something besides the clock, which tells when that appeared")
    return [token for index, token in enumerate(body) if index not in gone], names


def query_at(text: str, instant: datetime) -> str:
    """The query with each call of a clock function replaced by the time. instant: UTC."""
    if not may_call(text):
        return text
    found = list(outside_data(tokens(text)))
    end = 0
    while end < len(found) and found[end].is_word("PREFIX", "BASE", "VERSION"):
        end += 3 if found[end].is_word("PREFIX") else 2
    if end >= len(found):
        return text  # no query; the parser reports it
    prologue = text[: found[end].start]
    return prologue + at(cut_at_clock(text, prologue, found[end:], now=False), instant)
