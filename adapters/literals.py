"""Literals that the adapters write: booleans, numbers, times in UTC; and the absence of a value."""

from __future__ import annotations

from datetime import UTC, datetime

from lamplighter.engine.terms import XSD, Term, lexical, literal
from lamplighter.ontology.vocabulary import NIL_REASON

TRUE, FALSE = (literal(word, datatype=XSD + "boolean") for word in ("true", "false"))
# What literals end with that are numbers.
NUMBERS = tuple(f"^^<{XSD}{name}>" for name in ("integer", "decimal", "double"))
# What terms end with that stand for no value. Models write their text as gateway:nilReason, and no result.
NIL = f'"^^<{NIL_REASON}>'
UNKNOWN, ERROR, OFFLINE = (literal(reason, datatype=NIL_REASON) for reason in ("unknown", "error", "offline"))
EXPIRED = literal("expired")
_TIME_END = f'"^^<{XSD}dateTime>'


def datetime_term(time: datetime, timespec: str = "microseconds") -> Term:
    """xsd:dateTime in UTC, so that texts of one length sort by time. time: an aware datetime; timespec: as for
    `datetime.isoformat`."""
    if time.tzinfo is not UTC:
        time = time.astimezone(UTC)
    return f'"{time.isoformat(timespec=timespec)[:-6]}Z{_TIME_END}'


def nil_reason(value: Term) -> Term | None:
    """Why there is no value, as a literal; None for a value."""
    return literal(lexical(value)) if value.endswith(NIL) else None
