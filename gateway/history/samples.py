"""Values of readings and actuators in records of the change log: which series a record continues, and with what. Pure.

A series is a subject in a role: a live observation or an event stream (`READING`), an actuator (`DESIRED`, `REPORTED`),
or a source of readings (`SOURCE`), whose return makes older values unconfirmed. Its graph is the default graph,
`EVENTS` for readings that have a graph each, or a named graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Literal, NamedTuple

import msgspec

from lamplighter.engine.change_log import Gap
from lamplighter.engine.terms import XSD, Term, lexical, literal
from lamplighter.gateway.clock import foreign_moment, moment, since_1970_us
from lamplighter.gateway.texts import cut
from lamplighter.ontology import vocabulary as v

Role = Literal["reading", "desired", "reported", "source"]
READING, DESIRED, REPORTED, SOURCE = "reading", "desired", "reported", "source"
EVENTS = "*"
"""In place of the graph of a series whose readings have a graph each."""
REMOVED, RETAINED = "removed", "retained"
VALUE_CHARACTERS_MAX = 200
AHEAD_US_MAX = 60_000_000
"""A result time that is further ahead of its record is not used."""

_ROLES: dict[str, Role] = {
    f"<{v.HAS_SIMPLE_RESULT}>": "reading",
    f"<{v.NIL_REASON}>": "reading",
    f"<{v.DESIRED_STATE}>": "desired",
    f"<{v.HAS_STATUS}>": "desired",
    f"<{v.REPORTED_STATE}>": "reported",
    f"<{v.SINCE}>": "source",
}
_NIL, _TIME, _PROBLEM = f"<{v.NIL_REASON}>", f"<{v.RESULT_TIME}>", f"<{v.TIME_PROBLEM}>"
_LIVE = f"<{v.LIVE_OBSERVATION}>"
_RETAINED = literal("retained")
_NUMBERS = tuple(f'"^^<{XSD}{name}>' for name in ("integer", "decimal", "double", "float"))


class SeriesKey(NamedTuple):
    """graph: a named graph, "" for the default graph, or `EVENTS`."""

    subject: Term
    role: str
    graph: str = ""

    def text(self) -> str:
        return " ".join(self)


class Sample(NamedTuple):
    """at_us: microseconds since 1970. value: None if there is none; reason: why there is none, or `RETAINED` where the
    age of a value is unknown. number: the value, if it is a number of a reading."""

    key: SeriesKey
    at_us: int
    value: str | None
    reason: str = ""
    number: float | None = None


class LoggedValues(msgspec.Struct, frozen=True):
    """A record as far as series need it."""

    epoch: int
    seq: int
    ts: str
    d: tuple[tuple[Term, Term, Term, Term | None], ...] = ()
    a: tuple[tuple[Term, Term, Term, Term | None], ...] = ()
    k: tuple[tuple[Term, Term, Term, Term | None], ...] = ()
    gap: Gap | None = None

    @property
    def at_us(self) -> int:
        return since_1970_us(moment(self.ts))


decode_values = msgspec.json.Decoder(LoggedValues).decode


def samples_of(record: LoggedValues) -> Iterator[Sample]:
    """The values that a record asserts, changed or not, and those that it removes."""
    found: list[tuple[Term, Term, Term, Term | None]] = []
    times: dict[tuple[Term, Term | None], Term] = {}
    retained: set[tuple[Term, Term | None]] = set()
    streams: dict[tuple[Term, Term | None], Term] = {}
    for quads in (record.a, record.k):
        for quad in quads:
            s, p, o, g = quad
            if p in _ROLES:
                found.append(quad)
            elif p == _TIME:
                times[s, g] = o
            elif p == _LIVE and g is not None:
                streams[o, g] = s
            elif p == _PROBLEM and o == _RETAINED:
                retained.add((s, g))
    at_us = record.at_us if found or record.d else 0
    asserted = set()
    for s, p, o, g in found:
        role = _ROLES[p]
        stream = streams.get((s, g))
        key = SeriesKey(s, role, g or "") if stream is None else SeriesKey(stream, role, EVENTS)
        asserted.add(key)
        time = _time(times.get((s, g)), at_us) if role == READING else None
        if p == _NIL:
            yield Sample(key, at_us if time is None or stream is None else time, None, cut(lexical(o), 60))
            continue
        number = _number(o) if role == READING else None
        doubt = RETAINED if time is None and (s, g) in retained else ""
        yield Sample(key, at_us if time is None else time, _text(o), doubt, number)
    # A named graph that is dropped is an event that is not live any more, and no end of a value.
    for s, p, _, g in record.d:
        if g is None and p in _ROLES and (key := SeriesKey(s, _ROLES[p])) not in asserted:
            asserted.add(key)
            yield Sample(key, at_us, None, REMOVED)


def _time(term: Term | None, record_us: int) -> int | None:
    """A result time, unless it cannot be right."""
    if term is None or (found := foreign_moment(lexical(term))) is None or found.year < 2015:
        return None
    at_us = since_1970_us(found)
    return at_us if at_us <= record_us + AHEAD_US_MAX else None


def _number(term: Term) -> float | None:
    if not term.endswith(_NUMBERS):
        return None
    try:
        number = float(lexical(term))
    except ValueError:
        return None
    return number if isfinite(number) else None


def _text(term: Term) -> str:
    return cut(term[1:-1] if term.startswith("<") else lexical(term), VALUE_CHARACTERS_MAX)
