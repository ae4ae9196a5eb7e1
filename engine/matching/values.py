"""Terms -> values that compare: numbers of all types, and SPARQL's order of terms (SPARQL 1.1 Query, section 15.1).

SPARQL orders unbound variables, blank nodes, IRIs and literals, and literals of one kind by ``<``. What it leaves open
is fixed here, so that the order is total and the same after a restart. Literals of different kinds follow each other in
the order of `_NUMBER` to `_TEXT`. A time without a time zone counts as UTC, and a month in a duration as 30.436875
days. All other literals are compared by text, datatype and language, as the store compares them.
"""

from __future__ import annotations

import re
from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache
from math import isinf, isnan
from struct import pack, unpack
from typing import Any, Literal

from lamplighter.engine.matching.expressions import number
from lamplighter.engine.terms import XSD, Term, lexical

Inexact = Literal["float", "double"]

_UNBOUND, _BLANK, _IRI, _NUMBER, _BOOLEAN, _DATE_TIME, _DATE, _TIME, _DURATION, _TEXT, _TRIPLE = range(11)
# The key before those of all literals.
FIRST_LITERAL = (_NUMBER,)
_INEXACT: dict[str, Inexact] = {f'"^^<{XSD}double>': "double", f'"^^<{XSD}float>': "float"}
_REAL = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?|[+-]?INF|NaN")
_DECIMAL = re.compile(rf'"(-?\d+(?:\.\d{{1,18}})?)"\^\^<{XSD}decimal>')
# The store keeps a decimal in 128 bits, with 18 places. A larger one is no number to it.
_DECIMAL_MAX = Decimal(2**127 - 1).scaleb(-18, Context(prec=50))
# Characters of the longest term whose key is cached.
_CACHED_MAX = 256

_ZONE = r"(?P<zone>Z|[+-]\d\d:\d\d)?"
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d(?:\.\d{1,18})?)"
_DAY = r"(?P<year>-?\d{4,9})-(?P<month>\d\d)-(?P<day>\d\d)"
_INSTANTS = {
    "dateTime": (_DATE_TIME, re.compile(f"{_DAY}T{_CLOCK}{_ZONE}")),
    "date": (_DATE, re.compile(f"{_DAY}{_ZONE}")),
    "time": (_TIME, re.compile(f"{_CLOCK}{_ZONE}")),
}
_DURATION_FORM = re.compile(
    r"(?P<sign>-?)P(?:(?P<years>\d{1,18})Y)?(?:(?P<months>\d{1,18})M)?(?:(?P<days>\d{1,18})D)?"
    r"(?:T(?:(?P<hours>\d{1,18})H)?(?:(?P<minutes>\d{1,18})M)?(?:(?P<seconds>\d{1,18}(?:\.\d{1,18})?)S)?)?"
)
_DURATIONS = ("duration", "dayTimeDuration", "yearMonthDuration")
_DAY_SECONDS = 86_400
# The mean of 400 years. It agrees with the order of durations wherever that is defined (XML Schema 1.1, 3.3.6.2).
_MONTH_SECONDS = Fraction(146_097 * _DAY_SECONDS, 4_800)


def exact(term: Term) -> int | Decimal | None:
    """The value of an xsd:integer or xsd:decimal that is a number to the store; None for any other term."""
    found = number(term)
    if found is None and term.endswith(f'"^^<{XSD}decimal>'):
        form = _DECIMAL.fullmatch(term)
        if form and abs(value := Decimal(form[1])) <= _DECIMAL_MAX:
            return value
    return found


def real(term: Term) -> tuple[Inexact, float] | None:
    """The type and value of an xsd:float or xsd:double; None for any other term."""
    for ending, kind in _INEXACT.items():
        if term.endswith(ending) and _REAL.fullmatch(text := term[1 : -len(ending)]):
            return (kind, float(text)) if kind == "double" else (kind, single(float(text)))
    return None


def real_term(kind: Inexact, value: float) -> Term:
    """The term of an xsd:float or xsd:double, in the spelling of the store: the fewest digits, and no exponent."""
    if isnan(value):
        text = "NaN"
    elif isinf(value):
        text = "INF" if value > 0 else "-INF"
    else:
        digits = repr(value) if kind == "double" else _digits(value)
        text = f"{Decimal(digits):f}".removesuffix(".0")
    return f'"{text}"^^<{XSD}{kind}>'


def _digits(value: float) -> str:
    """The fewest digits that mean this number among those that an xsd:float can hold."""
    # Nine digits tell all numbers of 32 bits apart.
    return next(text for places in range(1, 10) if single(float(text := f"{value:.{places}g}")) == value)


def single(value: float) -> float:
    """The nearest number that an xsd:float can hold."""
    try:
        found: float = unpack("f", pack("f", value))[0]
    except OverflowError:  # `pack` refuses what rounds to infinity
        return float("inf") if value > 0 else float("-inf")
    return found


def comparable(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether two keys are of one kind, all of whose terms compare."""
    return bool(one[0] == other[0] != _TRIPLE)


def order_key(term: Term | None) -> tuple[Any, ...]:
    """A key that sorts terms in SPARQL's order; None is an unbound variable. Equal keys are ties, such as 1 and 1.0."""
    if term is None:
        return (_UNBOUND,)
    return _order_key(term) if len(term) <= _CACHED_MAX else _order_key.__wrapped__(term)


@lru_cache(maxsize=8192)
def _order_key(term: Term) -> tuple[Any, ...]:
    if term.startswith("<<"):
        return (_TRIPLE, term)
    if term[0] == "<":
        return (_IRI, term[1:-1])
    if term[0] == "_":
        return (_BLANK, term)
    precise = exact(term)
    if precise is not None:
        return (_NUMBER, 0, precise)
    inexact = real(term)
    if inexact is not None:
        # NaN compares with no number, so it has a place of its own behind them.
        return (_NUMBER, 1, 0) if isnan(inexact[1]) else (_NUMBER, 0, inexact[1])
    return _other_literal(term)


def _other_literal(term: Term) -> tuple[Any, ...]:
    text = lexical(term)
    suffix = term[term.rindex('"') + 1 :]
    datatype = suffix[3:-1] if suffix.startswith("^^") else ""
    name = datatype.removeprefix(XSD)
    if name != datatype:
        if name == "boolean":
            return (_BOOLEAN, text in ("true", "1"))
        if name in _INSTANTS:
            kind, form = _INSTANTS[name]
            found = form.fullmatch(text)
            if found:
                return (kind, _instant(found.groupdict()))
        if name in _DURATIONS:
            found = _DURATION_FORM.fullmatch(text)
            if found:
                return (_DURATION, _length(found.groupdict()))
    if suffix.startswith("@"):
        datatype = "http://www.w3.org/1999/02/22-rdf-syntax-ns#" + ("dirLangString" if "--" in suffix else "langString")
    return (_TEXT, text, datatype or f"{XSD}string", suffix)


def _instant(found: dict[str, str | None]) -> Decimal:
    """Seconds since 1970 in UTC."""
    days = 0
    if found.get("day"):
        days = _days(int(found["year"] or 0), int(found["month"] or 0), int(found["day"] or 0))
    seconds = days * _DAY_SECONDS + int(found.get("hour") or 0) * 3600 + int(found.get("minute") or 0) * 60
    zone = found["zone"]
    if zone and zone != "Z":
        offset = int(zone[1:3]) * 3600 + int(zone[4:6]) * 60
        seconds -= offset if zone[0] == "+" else -offset
    return seconds + Decimal(found.get("second") or 0)


def _days(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 in the proleptic Gregorian calendar, for any year."""
    # Years that begin in March, so that the leap day is the last one (Hinnant, days_from_civil).
    year -= month <= 2
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return year * 365 + year // 4 - year // 100 + year // 400 + of_year - 719_468


def _length(found: dict[str, str | None]) -> Fraction:
    """Seconds of a duration."""
    months = int(found["years"] or 0) * 12 + int(found["months"] or 0)
    minutes = (int(found["days"] or 0) * 24 + int(found["hours"] or 0)) * 60 + int(found["minutes"] or 0)
    seconds = months * _MONTH_SECONDS + minutes * 60 + Fraction(found["seconds"] or 0)
    return -seconds if found["sign"] else seconds
