"""The clocks of the machine: wall time and whether it is trusted, and CLOCK_BOOTTIME, which is never stepped."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple, Protocol

from lamplighter.cloud_sync.settings import Trust, clock_trusted

TRUST_S = 0.1  # how long the state of synchronisation is taken for unchanged: each record asks for it
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class RecordClocks(NamedTuple):
    """All clocks at one moment, as a record has them; see `Clock`."""

    wall: datetime
    trusted: bool
    boottime_us: int


class Clock(Protocol):
    """The clocks that the gateway needs. boot: an id that changes with each start of the machine."""

    boot: str

    def wall(self) -> datetime:
        """Now, in UTC, with microseconds."""
        ...

    def boottime_us(self) -> int:
        """Microseconds since the machine started, including suspension."""
        ...

    def trusted(self) -> bool:
        """Whether the wall clock is synchronised."""
        ...

    def sample(self) -> RecordClocks: ...


class MachineClock:
    def __init__(self, trust: Trust = "auto") -> None:
        self.boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._trust = trust
        self._trusted = False
        self._looked = -TRUST_S

    def wall(self) -> datetime:
        return datetime.fromtimestamp(time.time(), UTC)  # exact to the microsecond until the year 2242

    def boottime_us(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000

    def trusted(self) -> bool:
        return self.sample().trusted

    def sample(self) -> RecordClocks:
        # Without further calls, because each record has it.
        now, asked = datetime.fromtimestamp(time.time(), UTC), time.monotonic()
        if asked - self._looked >= TRUST_S:
            self._looked, self._trusted = asked, clock_trusted(self._trust)
        return RecordClocks(now, self._trusted, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000)


def iso(moment: datetime) -> str:
    """xsd:dateTime in UTC with microseconds, as the change log writes it."""
    # Not strftime, which writes the year 1 as "1" on Linux.
    if moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC)
    return moment.isoformat(timespec="microseconds")[:-6] + "Z"


def moment(text: str) -> datetime:
    """The moment that `iso` wrote."""
    return datetime.fromisoformat(text)


def foreign_moment(text: str) -> datetime | None:
    """The moment in UTC that a text of a client or device names; None if it names none, or has no time zone."""
    try:
        found = datetime.fromisoformat(text)
        return found.astimezone(UTC) if found.tzinfo is not None else None
    except (ValueError, OverflowError):  # OverflowError: in UTC it is before the year 1 or behind 9999
        return None


def since_1970_us(moment: datetime) -> int:
    """Microseconds since 1970 in UTC, without leap seconds, as clock_gettime(2) counts CLOCK_REALTIME."""
    return (moment - _EPOCH) // _MICROSECOND


def moment_of_us(us: int) -> datetime:
    """The moment of `since_1970_us`."""
    return _EPOCH + us * _MICROSECOND
