"""Literals that the adapters write: booleans, numbers, and times in UTC."""

from __future__ import annotations

from datetime import UTC, datetime

from lamplighter.engine.terms import XSD, Term, literal

TRUE, FALSE = (literal(word, datatype=XSD + "boolean") for word in ("true", "false"))
NUMBERS = tuple(f"^^<{XSD}{name}>" for name in ("integer", "decimal", "double"))
"""What literals end with that are numbers."""
_TIME_END = f'"^^<{XSD}dateTime>'


def datetime_term(time: datetime, timespec: str = "microseconds") -> Term:
    """xsd:dateTime in UTC, so that texts of one length sort by time. time: an aware datetime; timespec: as for
    `datetime.isoformat`."""
    if time.tzinfo is not UTC:
        time = time.astimezone(UTC)
    return f'"{time.isoformat(timespec=timespec)[:-6]}Z{_TIME_END}'
