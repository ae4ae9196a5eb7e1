"""When a period is active: from a time of day to the next other one, on all days or on some of the week."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple

from lamplighter.gateway.local_time.times import LocalPlace, TimeOfDay
from lamplighter.ontology.vocabulary import WEEKDAYS

_AHEAD_DAYS: Final = 8  # a week, so that the next change of a period on one day of it is known
_DAY: Final = timedelta(days=1)
_WEEK: Final = timedelta(days=7)


class PeriodState(NamedTuple):
    """changes: when `active` changes next, in UTC; None if that is not within a week."""

    active: bool
    changes: datetime | None


@dataclass(frozen=True)
class Period:
    """days: the weekdays on which it begins, Monday is 0; empty: all."""

    begins: TimeOfDay
    ends: TimeOfDay
    days: frozenset[int] = frozenset()

    @classmethod
    def parse(cls, begins: Collection[str], ends: Collection[str], days: Collection[str]) -> Period:
        """From the values of its properties. Raises ValueError."""
        if len(begins) != 1 or len(ends) != 1:
            name, values = ("begins", begins) if len(begins) != 1 else ("ends", ends)
            raise ValueError(f"a period has one value of gateway:{name}; this one has {len(values)}")
        return cls(TimeOfDay.parse(*begins), TimeOfDay.parse(*ends), frozenset(map(_weekday, days)))

    @property
    def needs_position(self) -> bool:
        return self.begins.clock is None or self.ends.clock is None

    def state(self, now: datetime, place: LocalPlace) -> PeriodState:
        """now: in UTC."""
        active, changes = False, None
        for begin, end in _intervals(self, place.local_date(now) - 2 * _DAY, place):
            if begin > now and not active:
                return PeriodState(active, begin)
            if changes is not None and begin > changes:  # else it goes on where the one before ends
                break
            if end > now:
                active, changes = True, end if changes is None else max(end, changes)
        # One that ends where it begins again never changes; these are the intervals that were looked at.
        return PeriodState(active, changes if changes is not None and changes - now <= _WEEK else None)


def next_midnight(now: datetime, place: LocalPlace) -> datetime:
    """The next beginning of a local date, in UTC."""
    return place.midnight(place.local_date(now.astimezone(UTC)) + _DAY)


def _weekday(text: str) -> int:
    if text not in WEEKDAYS:
        raise ValueError(f"{text[:64]!r} is not a day of the week: {', '.join(WEEKDAYS)}")
    return WEEKDAYS.index(text)


@lru_cache(maxsize=2048)
def _intervals(period: Period, first: date, place: LocalPlace) -> tuple[tuple[datetime, datetime], ...]:
    """In order, from a date on. Each begins on one of the days, and ends with the next end."""
    # Kept, since a look at all periods would block the gateway for a tenth of a second, and many looks are on one date.
    found = []
    for offset in range(_AHEAD_DAYS + 3):
        day = first + offset * _DAY
        begin = period.begins.on(day, place)
        if begin is None or (period.days and day.weekday() not in period.days):
            continue
        ends = (period.ends.on(day + near * _DAY, place) for near in (-1, 0, 1, 2))
        end = next((end for end in ends if end is not None and end > begin), None)
        if end is not None:
            found.append((begin, end))
    return tuple(found)
