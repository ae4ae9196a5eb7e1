"""A time of day as people write it, ``07:00`` or ``sunset-PT30M``, and its instant on a date at a place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from typing import Final

from lamplighter.engine.errors import MalformedRequestError
from lamplighter.gateway.settings.place import PlaceSettings, time_zone
from lamplighter.gateway.state.delayed import delay_us

EVENTS: Final = ("dawn", "sunrise", "noon", "sunset", "dusk")
"""Of the sun: dawn and dusk are civil, with the sun 6 degrees below the horizon."""
_CLOCK: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")
_EVENT: Final = re.compile(rf"({'|'.join(EVENTS)})(?:([+-])(P\w{{1,16}}))?")
_OFFSET_MAX: Final = timedelta(hours=12)


@dataclass(frozen=True)
class LocalPlace:
    """Where the gateway is. position: latitude and longitude in degrees, north and east positive; None if the settings
    name none."""

    zone: tzinfo
    position: tuple[float, float] | None

    @classmethod
    def of(cls, settings: PlaceSettings) -> LocalPlace:
        """Raises ValueError for a time zone that is not known here."""
        return cls(time_zone(settings.time_zone), settings.coordinates())

    def local_date(self, moment: datetime) -> date:
        return moment.astimezone(self.zone).date()

    def midnight(self, day: date) -> datetime:
        """The instant at which a date begins, in UTC."""
        return datetime.combine(day, time(), self.zone).astimezone(UTC)


@dataclass(frozen=True)
class TimeOfDay:
    """clock: a time by the clock, or None; event: one of `EVENTS` where there is none; offset: added to the event."""

    clock: time | None
    event: str = ""
    offset: timedelta = timedelta(0)

    @classmethod
    def parse(cls, text: str) -> TimeOfDay:
        """Raises ValueError."""
        if found := _CLOCK.fullmatch(text):
            hour, minute, second = map(int, found.groups("0"))
            return cls(time(hour, minute, second))
        if found := _EVENT.fullmatch(text):
            event, sign, duration = found.groups()
            offset = timedelta(0)
            if duration is not None:
                try:
                    offset = timedelta(microseconds=delay_us(duration))
                except MalformedRequestError as error:
                    raise ValueError(f"{duration!r} is not an ISO 8601 duration such as PT30M") from error
                if offset > _OFFSET_MAX:
                    raise ValueError(f"{text!r} is more than 12 hours from {event}")
            return cls(None, event, -offset if sign == "-" else offset)
        raise ValueError(
            f"{text[:64]!r} is not a time such as 07:00, and not {', '.join(EVENTS)}, with or without an offset "
            "such as sunset-PT30M"
        )

    def on(self, day: date, place: LocalPlace) -> datetime | None:
        """The instant on a date, in UTC; None if the sun does not rise or set that day, or if the place is not known.

        A time that the clock skips in spring is that many minutes after midnight as if it did not; of one that comes
        twice in autumn, it is the first.
        """
        if self.clock is not None:
            return datetime.combine(day, self.clock, place.zone).astimezone(UTC)
        if place.position is None:
            return None
        instant = _sun(self.event, day, place)
        return None if instant is None else instant + self.offset


@lru_cache(maxsize=1024)
def _sun(event: str, day: date, place: LocalPlace) -> datetime | None:
    """An event of the sun on a local date, in whole seconds of UTC."""
    from astral import Observer, sun  # not above: it takes 10 ms, and only who names the sun needs it

    assert place.position is not None
    observer = Observer(*place.position)
    find = getattr(sun, event)
    # astral computes for a date of UTC and moves the result by a day where its local date is another. Near the date
    # line, and where an event falls close to midnight, that misses; so the neighbours are looked at, too.
    for candidate in (day, day - timedelta(days=1), day + timedelta(days=1)):
        try:
            found: datetime = find(observer, candidate, tzinfo=UTC)
        except ValueError:  # the sun does not reach that height on this date
            continue
        if place.local_date(found) == day:
            return found.replace(microsecond=0)
    return None
