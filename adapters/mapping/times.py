"""When a reading was taken: by its payload or by its arrival. Impossible times are replaced, and the reading is marked.

A mark is a short text that `gateway:timeProblem` gives on the observation:

- ``retained``: the broker stored the message; the time of the reading is unknown, so it has no result time;
- ``future``, ``past``: the payload's time is later than the arrival, or from before `EARLIEST`; arrival is used;
- ``unreadable``: the payload's time is missing or is no time, or has no time zone and the rule names none;
- ``clock``: the gateway's own clock is not synchronised.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from zoneinfo import ZoneInfo

from lamplighter.adapters.mapping.payloads import Found

RETAINED, FUTURE, PAST, UNREADABLE, CLOCK = "retained", "future", "past", "unreadable", "clock"
EARLIEST = datetime(2015, 1, 1, tzinfo=UTC)
"""Devices without a clock count from 1970 or 2000."""
AHEAD_MAX = timedelta(seconds=2)
"""A payload's time may be so much later than its arrival; arrival is used then, without a mark."""

_ISO = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?(?:Z|[+-][0-9]{2}:?[0-9]{2})?"
)
_EPOCH = re.compile(r"[0-9]{9,20}(?:\.[0-9]{0,9})?")
_EPOCH_UNITS = ((Decimal(10) ** 11, 0), (Decimal(10) ** 14, 3), (Decimal(10) ** 17, 6), (Decimal(10) ** 20, 9))
_OFFSET = re.compile(r"([+-])([0-9]{2}):([0-9]{2})")


def time_zone(name: str) -> tzinfo:
    """The zone of a name such as ``Europe/Rome``, ``UTC`` or ``+02:00``. Raises ValueError."""
    offset = _OFFSET.fullmatch(name)
    if offset:
        delta = timedelta(hours=int(offset[2]), minutes=int(offset[3]))
        return timezone(delta if offset[1] == "+" else -delta)
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError) as error:  # ZoneInfoNotFoundError is a KeyError
        raise ValueError("write a zone such as 'Europe/Rome', 'UTC' or '+02:00'") from error


def moment(found: Found | Decimal, zone: tzinfo | None) -> datetime | None:
    """The time that a value means: ISO 8601, or seconds, ms, us or ns since 1970 by its size; None if it is no time.

    zone: of ISO times that name none.
    """
    text = str(found).strip()
    if len(text) > 40:
        return None
    if _EPOCH.fullmatch(text):
        return epoch(Decimal(text))
    if not _ISO.fullmatch(text):
        return None
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is None:
            if zone is None:
                return None
            time = time.replace(tzinfo=zone)
        return time.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def epoch(value: Decimal) -> datetime | None:
    """The time so long after 1970, in seconds, ms, us or ns by its size; None if it is out of range."""
    for limit, exponent in _EPOCH_UNITS:
        if value < limit:
            return seconds(value.scaleb(-exponent))
    return None


def seconds(value: Decimal) -> datetime | None:
    """The time so many seconds after 1970; None if it is out of range."""
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(value * 1_000_000))
    except (OverflowError, ValueError):
        return None


def result_time(time: datetime | None, received: datetime, *, trusted: bool) -> tuple[datetime, str | None]:
    """The result time and its mark, if any.

    time: of the payload, None if it has none; received: by the gateway's clock; trusted: whether that is synchronised.
    """
    if time is None:
        return received, UNREADABLE if trusted else CLOCK
    if time < EARLIEST:
        return received, PAST if trusted else CLOCK
    if trusted and time > received:
        return received, None if time - received <= AHEAD_MAX else FUTURE
    return time, None
