"""Periods of local time: when they are active and when that changes, in several places of the world."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from random import Random

import pytest

from lamplighter.gateway.local_time.periods import Period, next_midnight
from lamplighter.gateway.local_time.times import EVENTS, LocalPlace, TimeOfDay
from lamplighter.gateway.settings.place import PlaceSettings
from lamplighter.ontology.vocabulary import WEEKDAYS
from tests.support.tables import each_row

BERLIN = LocalPlace.of(PlaceSettings(time_zone="Europe/Berlin", position="52.52, 13.4"))
TROMSO = LocalPlace.of(PlaceSettings(time_zone="Europe/Oslo", position="69.65, 18.96"))
PLACES = {
    "Berlin": BERLIN,
    "Honolulu": LocalPlace.of(PlaceSettings(time_zone="Pacific/Honolulu", position="21.3, -157.86")),
    "Auckland": LocalPlace.of(PlaceSettings(time_zone="Pacific/Auckland", position="-36.85, 174.76")),
    "Kiritimati": LocalPlace.of(PlaceSettings(time_zone="Pacific/Kiritimati", position="1.87, -157.4")),
    "Kashgar, by Beijing": LocalPlace.of(PlaceSettings(time_zone="Asia/Shanghai", position="39.47, 75.99")),
}


def at(text: str, place: LocalPlace = BERLIN) -> datetime:
    """Local time -> UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=place.zone).astimezone(UTC)


def local(moment: datetime | None, place: LocalPlace = BERLIN) -> str:
    return "never" if moment is None else moment.astimezone(place.zone).strftime("%a %d %H:%M")


def period(begins: str, ends: str, *days: str) -> Period:
    return Period.parse([begins], [ends], days)


STATES = [
    # period, local time, active, next change
    (period("22:00", "07:00"), "2026-11-29T21:59", False, "Sun 29 22:00"),
    (period("22:00", "07:00"), "2026-11-29T22:00", True, "Mon 30 07:00"),
    (period("22:00", "07:00"), "2026-11-30T03:00", True, "Mon 30 07:00"),
    (period("22:00", "07:00"), "2026-11-30T07:00", False, "Mon 30 22:00"),
    (period("08:00", "18:00", "Monday"), "2026-11-29T09:00", False, "Mon 30 08:00"),
    (period("08:00", "18:00", "Sunday"), "2026-11-29T18:00", False, "Sun 06 08:00"),
    # It is the day on which it begins that counts.
    (period("22:00", "07:00", "Saturday"), "2026-11-29T06:59", True, "Sun 29 07:00"),
    (period("22:00", "07:00", "Sunday"), "2026-11-29T06:59", False, "Sun 29 22:00"),
    (period("00:00", "00:00"), "2026-11-29T12:00", True, "never"),
    (period("00:00", "00:00", "Saturday", "Sunday"), "2026-11-28T12:00", True, "Mon 30 00:00"),
    # The sun in Berlin: it rises at 7:53 and sets at 15:57.
    (period("sunset", "07:00"), "2026-11-29T15:50", False, "Sun 29 15:57"),
    (period("sunset", "07:00"), "2026-11-29T16:00", True, "Mon 30 07:00"),
    (period("sunset-PT30M", "sunrise+PT1H"), "2026-11-29T15:28", True, "Mon 30 08:53"),
    (period("dusk", "dawn"), "2026-06-21T21:53", False, "Sun 21 22:24"),
    # On 29 March the clock skips 2:00 to 3:00, and on 25 October it has that hour twice.
    (period("01:30", "03:30"), "2026-03-29T01:30", True, "Sun 29 03:30"),
    (period("02:30", "05:00"), "2026-03-29T03:29", False, "Sun 29 03:30"),
    (period("02:30", "05:00"), "2026-10-25T01:00", False, "Sun 25 02:30"),
]


@each_row("one, when, active, changes", STATES)
def test_states(one: Period, when: str, active: bool, changes: str) -> None:
    state = one.state(at(when), BERLIN)
    assert (state.active, local(state.changes)) == (active, changes)


def test_clock_that_is_put_back_makes_a_period_longer() -> None:
    night = period("01:00", "04:00")
    begin = night.state(at("2026-10-24T23:00"), BERLIN).changes
    assert begin is not None
    end = night.state(begin, BERLIN).changes
    assert end is not None
    assert end - begin == timedelta(hours=4)


def test_sun_of_a_polar_night_neither_rises_nor_sets() -> None:
    day = period("sunrise", "sunset")
    assert day.state(at("2026-12-21T12:00", TROMSO), TROMSO) == (False, None)
    assert not period("sunset", "sunrise").state(at("2026-12-21T12:00", TROMSO), TROMSO).active
    # Civil twilight is there at noon all the same.
    assert period("dawn", "dusk").state(at("2026-12-21T11:30", TROMSO), TROMSO).active


def test_each_event_is_on_the_local_date_that_was_asked_for() -> None:
    for name, place in PLACES.items():
        for offset in range(0, 366, 5):
            day = date(2026, 1, 1) + timedelta(days=offset)
            instants = [TimeOfDay.parse(event).on(day, place) for event in EVENTS]
            assert None not in instants, (name, day)
            dated = [place.local_date(instant) for instant in instants if instant is not None]
            assert dated == [day] * len(EVENTS), (name, day)
            assert sorted(instants, key=str) == instants, (name, day)


def test_next_change_is_the_first_minute_at_which_the_state_differs() -> None:
    random = Random(41)
    for _ in range(60):
        place = random.choice([*PLACES.values()])
        ends = [
            random.choice([f"{random.randrange(24):02}:{random.randrange(60):02}", random.choice(EVENTS)])
            for _ in range(2)
        ]
        one = period(*ends, *random.sample(WEEKDAYS, random.randrange(0, 3)))
        now = datetime(2026, random.randrange(1, 13), random.randrange(1, 29), random.randrange(24), tzinfo=UTC)
        active, changes = one.state(now, place)
        until = changes or now + timedelta(days=7)
        steps = (until - now) // timedelta(minutes=17)
        assert {one.state(now + timedelta(minutes=17) * n, place).active for n in range(steps)} <= {active}, (one, now)
        if changes is not None:
            assert one.state(changes - timedelta(microseconds=1), place).active == active, (one, now)
            assert one.state(changes, place).active != active, (one, now)


def test_midnight_is_that_of_the_place() -> None:
    now = datetime(2026, 11, 29, 12, tzinfo=UTC)
    assert next_midnight(now, BERLIN) == datetime(2026, 11, 29, 23, tzinfo=UTC)
    assert next_midnight(now, PLACES["Honolulu"]) == datetime(2026, 11, 30, 10, tzinfo=UTC)


NO_TIMES = ["7:00", "24:00", "sunset-30m", "sunset -PT30M", "sunset+PT13H", "sunset+P1M", "", "moonrise"]


@each_row("text", NO_TIMES)
def test_text_that_is_no_time_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"sunset|duration|hours"):
        TimeOfDay.parse(text)


def test_period_that_is_not_whole_is_named() -> None:
    for begins, ends, days, what in (
        ([], ["07:00"], [], "gateway:begins"),
        (["07:00"], ["08:00", "09:00"], [], "gateway:ends"),
        (["07:00"], ["08:00"], ["Mon"], "Monday"),
    ):
        with pytest.raises(ValueError, match=what):
            Period.parse(begins, ends, days)
