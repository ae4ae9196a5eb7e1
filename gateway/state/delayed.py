"""Delayed updates (Roffia 2016, II.C): timers are records of the change log.

The pending ones are rebuilt from the log, so there is no second database; only the record of its effect ends a timer.
A delay lasts its real time: it is measured on CLOCK_BOOTTIME. ``at`` waits until the clock is trusted.

The first record after a boot of the machine fixes how much of each delay is left. The time that the machine was off
counts if the wall clock was trusted before and after and was not stepped in between. Otherwise only the time that it
was up counts, so a delay is never too short. For this the log needs the clocks: where nothing else is written,
`DelayedUpdates.news` says that a record is due.
"""

from __future__ import annotations

import heapq
import re
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Annotated, Any, NamedTuple, get_args

import isodate
import msgspec

from lamplighter.engine.change_log import INTEGER_MAX, JOINT, Cause, Count, Missed, Record, Timer
from lamplighter.engine.errors import MalformedRequestError
from lamplighter.engine.sharing import Usage
from lamplighter.gateway.clock import Clock, iso, moment, since_1970_us

CLOCK = "clock"  # the cause of a record that only logs the clocks; its id is the reason from `DelayedUpdates.news`
LISTED_MAX = 1000  # delayed updates that are listed at once, in a few milliseconds
# Drift of the wall clock against CLOCK_BOOTTIME, by leap seconds and corrections; a larger one is a step.
STEP_US = 2_000_000
SILENCE_US = 15 * 60 * 1_000_000  # uptime that the log may miss while a delay is pending
LOOK_US = 1_000_000  # the clocks are compared at one record in that time, so the check costs an update nothing

_DELAY_MAX = timedelta(days=3650)
DELAY_US_MAX = _DELAY_MAX // timedelta(microseconds=1)  # of a delayed update; an `at` may be later
_TEXT_MAX = 64

# xsd:duration (XML Schema 1.1 part 2, 3.3.6.2), and the weeks of ISO 8601.
_DURATION = re.compile(
    r"-?P(?:[0-9]+W|(?=[0-9T])(?:[0-9]+Y)?(?:[0-9]+M)?(?:[0-9]+D)?"
    r"(?:T(?=[0-9])(?:[0-9]+H)?(?:[0-9]+M)?(?:[0-9]+(?:\.[0-9]+)?S)?)?)"
)

# xsd:dateTime (XML Schema 1.1 part 2, 3.3.7.2).
_MOMENT = re.compile(
    r"-?(?:[1-9][0-9]{3,}|0[0-9]{3})-[0-9]{2}-[0-9]{2}"
    r"T(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?|24:00:00(?:\.0+)?)"
    r"(?P<zone>Z|[+-](?:(?:0[0-9]|1[0-3]):[0-5][0-9]|14:00))?"
)


def delay_us(text: str) -> int:
    """Microseconds of an xsd:dayTimeDuration, or of weeks. Raises MalformedRequestError."""
    if len(text) > _TEXT_MAX or not _DURATION.fullmatch(text):
        raise MalformedRequestError(f"delay: {text[:_TEXT_MAX]!r} is not an ISO 8601 duration such as PT30S or P1DT12H")
    try:
        duration = isodate.parse_duration(text)
    except OverflowError:
        duration = timedelta.max
    if not isinstance(duration, timedelta):
        raise MalformedRequestError(f"delay: {text!r} has years or months, whose length is not fixed; use days")
    if not timedelta(0) <= duration <= _DELAY_MAX:
        raise MalformedRequestError(f"delay: {text!r} is not between 0 and {_DELAY_MAX.days} days")
    return duration // timedelta(microseconds=1)


def at_moment(text: str) -> datetime:
    """The moment of an xsd:dateTime, which must name its time zone. Raises MalformedRequestError."""
    match = None if len(text) > _TEXT_MAX else _MOMENT.fullmatch(text)
    if match is None:
        hint = "; a + in a URL is written %2B" if " " in text else ""
        raise MalformedRequestError(
            f"at: {text[:_TEXT_MAX]!r} is not an xsd:dateTime such as 2030-01-01T08:00:00Z{hint}"
        )
    if match["zone"] is None:
        raise MalformedRequestError(f"at: {text!r} names no time zone; put a Z behind it for UTC")
    midnight = "T24:" in text  # 24:00 is the end of a day
    try:
        parsed: datetime = isodate.parse_datetime(text.replace("T24:", "T00:"))
        return (parsed + timedelta(days=midnight)).astimezone(UTC)
    except (isodate.ISO8601Error, ValueError, OverflowError) as error:
        raise MalformedRequestError(f"at: {text!r} is no day of the years 1 to 9999 in UTC") from error


def missed_policy(text: str | None) -> Missed | None:
    """The policy that a request's parameter names. Raises MalformedRequestError."""
    if text is None:
        return None
    for policy in get_args(Missed):
        if text == policy:
            return policy  # type: ignore[no-any-return]
    raise MalformedRequestError(f"missed: {text[:_TEXT_MAX]!r} is neither {' nor '.join(get_args(Missed))}")


@dataclass(frozen=True, slots=True)
class Pending:
    """A delayed update that has not happened yet. number: its place in the order of arrival; due_us: on the
    CLOCK_BOOTTIME of the last boot in the log, negative if it was due before that boot, None for `at`, which is a
    wall-clock time."""

    record: Record
    number: int
    due_us: int | None
    at: datetime | None

    @property
    def timer(self) -> Timer:
        assert self.record.timer is not None
        return self.record.timer

    @property
    def cause(self) -> Cause | None:
        return self.record.cause

    @property
    def sequence(self) -> int:
        return self.record.seq

    @property
    def set_at(self) -> str:
        return self.record.ts


class Miss(NamedTuple):
    """A delayed update that was due before the gateway started. late_s: how late it is now."""

    due: str
    late_s: float


_Microseconds = Annotated[int, msgspec.Meta(ge=-INTEGER_MAX, le=INTEGER_MAX)]
_NAME_CHARACTERS_MAX = 200


class BootState(msgspec.Struct):
    """What the log has of one boot of the machine.

    uptime_us, trusted: CLOCK_BOOTTIME of its last record, and whether the wall clock was trusted then; offset_us: wall
    clock (since 1970) less CLOCK_BOOTTIME, at the last check with a trusted clock; steady_since_us: the start of that
    offset, except for small corrections; looked_us: the time of the last check.
    """

    boot: str
    uptime_us: Count
    trusted: bool
    offset_us: _Microseconds | None
    steady_since_us: Count = 0
    looked_us: Count = 0


class DelayedState(msgspec.Struct, frozen=True):
    """The state of `DelayedUpdates`. pending: record and due time of each, in order."""

    pending: tuple[tuple[Record, _Microseconds | None], ...] = ()
    boot: BootState | None = None

    def check(self) -> None:
        """Raises ValueError with the place of an impossible value, since a file may contain anything."""
        names: set[str] = set()
        for number, (record, due_us) in enumerate(self.pending):
            try:
                name = _pending_id(record, due_us)
                if name in names:
                    raise ValueError("timer.id: another one has it too")
            except ValueError as error:
                raise ValueError(f"delayed.pending[{number}]: {error}") from error
            names.add(name)


def _pending_id(record: Record, due_us: int | None) -> str:
    """The id of a pending delayed update. Raises ValueError."""
    timer = record.timer
    if timer is None:
        raise ValueError("timer is missing")
    for member, text in (("timer.id", timer.id), ("timer.client", timer.client)):
        if text is not None and not (0 < len(text) <= _NAME_CHARACTERS_MAX and text.isprintable()):
            raise ValueError(f"{member} has not 1 to {_NAME_CHARACTERS_MAX} printable characters")
    checked_moment("ts", record.ts)
    if (timer.delay_us is None) == (timer.at is None):
        raise ValueError("timer must have one of delay_us and at")
    if (due_us is None) != (timer.delay_us is None):
        raise ValueError("the time at which it is due must be there for delay_us, and only then")
    if timer.at is not None:
        checked_moment("timer.at", timer.at)
    if JOINT.join(timer.texts) != timer.update:
        raise ValueError("timer.parts: they are not the lengths of the requests in timer.update")
    if timer.delay_us is not None and timer.delay_us > DELAY_US_MAX:
        raise ValueError(f"timer.delay_us: it is more than {_DELAY_MAX.days} days")
    return timer.id


def checked_moment(member: str, text: str) -> datetime:
    """The moment, in UTC, of a text that `clock.iso` may have written. Raises ValueError, which names the member."""
    try:
        found = moment(text)
        if found.tzinfo is None:
            raise ValueError("it names no time zone")
        return found.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"{member}: {text[:_TEXT_MAX]!r} is no moment of the years 1 to 9999: {error}"[:300]
        ) from error


class DelayedUpdates:
    """The pending delayed updates in memory, from the change log. Use: `restore` a snapshot, `follow` the records
    behind it, `rebase`, then `follow` each new record."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.pending: dict[str, Pending] = {}  # by name; read by others, changed here only
        # By client, of those that have names: how many are pending, and the bytes of their texts.
        self.usage, self.usage_bytes = Usage(), Usage()
        # (due, number, name), sorted; a hundred thousand of them are moved in some microseconds. Empty until `rebase`.
        self._by_boottime: list[tuple[int, int, str]] = []
        self._by_wall: list[tuple[int, int, str]] = []
        self._numbered = 0
        self.changes = 0  # grows when one is set or ends
        self._told: BootState | None = None
        self._unrecorded = False  # whether the log has no record of this boot yet
        self._start_us: int | None = None
        self._start_wall_us: int | None = None  # by the first trusted clock
        self._numbered_at_start = 0

    # --- from the log ---

    def follow(self, record: Record) -> None:
        """Follows a record: a timer, a cancellation, the commit of one that fired, and its clocks."""
        cause, told = record.cause, self._told
        if told is None or record.boot != told.boot:
            # The first record of another boot tells both of its clocks.
            told = self._carry(record.boot, record.boottime_us, _offset_us(record) if record.trusted else None)
        regained = record.trusted and not told.trusted
        told.uptime_us, told.trusted = record.boottime_us, record.trusted
        self._unrecorded = False
        if record.trusted and (
            # Now and then is enough, and where something was set by the clock.
            record.boottime_us - told.looked_us >= LOOK_US
            or regained
            or record.timer is not None
            or (cause is not None and cause.kind == CLOCK)
        ):
            offset_us = _offset_us(record)
            if told.offset_us is not None and abs(offset_us - told.offset_us) > STEP_US:
                # A step: what was measured by the wall clock before it is not comparable with what comes after.
                told.steady_since_us = record.boottime_us
            told.offset_us, told.looked_us = offset_us, record.boottime_us
        if record.timer is not None:
            self._add(record, None if record.timer.delay_us is None else record.boottime_us + record.timer.delay_us)
        if record.cancel is not None:
            self._forget(record.cancel)
        if cause is not None and cause.kind == "timer":
            self._forget(cause.id)

    def _add(self, record: Record, due_us: int | None) -> None:
        assert record.timer is not None
        at = None if record.timer.at is None else moment(record.timer.at)
        pending = Pending(record, self._numbered, due_us, at)
        self._numbered += 1
        self.pending[record.timer.id] = pending
        self.changes += 1
        if record.timer.client is not None:
            self.usage.add(record.timer.client)
            self.usage_bytes.add(record.timer.client, text_bytes(record.timer))
        if self._start_us is not None:
            # During a replay the lists are empty: `rebase` sorts once.
            insort(*self._place(pending))

    def _forget(self, name: str) -> None:
        pending = self.pending.pop(name, None)
        self.changes += 1
        if pending is not None and pending.timer.client is not None:
            self.usage.add(pending.timer.client, -1)
            self.usage_bytes.add(pending.timer.client, -text_bytes(pending.timer))
        if pending is not None and self._start_us is not None:
            entries, entry = self._place(pending)
            del entries[bisect_left(entries, entry)]

    def _place(self, pending: Pending) -> tuple[list[tuple[int, int, str]], tuple[int, int, str]]:
        """The list of a pending one, and its entry there."""
        if pending.at is not None:
            return self._by_wall, (since_1970_us(pending.at), pending.number, pending.timer.id)
        assert pending.due_us is not None
        return self._by_boottime, (pending.due_us, pending.number, pending.timer.id)

    def _carry(self, boot: str, uptime_us: int, offset_us: int | None) -> BootState:
        """Carries the delays over to the next boot, with its clocks; offset_us: None if not trusted."""
        told = self._told
        self._told = BootState(boot, uptime_us, offset_us is not None, offset_us, looked_us=uptime_us)
        if told is None:
            return self._told
        off_us = 0  # between the last record and the start of the machine, by the wall clock
        # Both clocks have to be trusted to know how long the machine was off. Else the time off does not count: a delay
        # is rather too long than too short.
        if offset_us is not None and told.trusted and told.offset_us is not None:
            off_us = max(0, offset_us - (told.offset_us + told.uptime_us))
        for name, pending in self.pending.items():
            if pending.due_us is not None:
                # One that was set after the last step of the wall clock can be measured by it; for others the step
                # would count.
                since_us = pending.record.boottime_us if pending.record.boot == told.boot else 0
                counts = since_us >= told.steady_since_us
                due_us = pending.due_us - told.uptime_us - (off_us if counts else 0)
                self.pending[name] = replace(pending, due_us=due_us)
        return self._told

    def rebase(self) -> None:
        """Sets all due times for this boot. Called between the replay and the first new record."""
        now_us = self._clock.boottime_us()
        if self._told is not None and self._told.boot != self._clock.boot:
            trusted = self._clock.trusted()
            self._carry(self._clock.boot, now_us, since_1970_us(self._clock.wall()) - now_us if trusted else None)
            self._unrecorded = True
        self._start_us, self._numbered_at_start = now_us, self._numbered
        for pending in self.pending.values():
            entries, entry = self._place(pending)
            entries.append(entry)
        self._by_boottime.sort()
        self._by_wall.sort()
        # Notes the wall time of the start, if it is known already.
        self._clock_is_trusted()

    def news(self) -> str | None:
        """Why the clocks should be logged now, by a record whose cause is CLOCK; None if they need not be."""
        # Only while a delay is pending, since only delays need them.
        told = self._told
        if not self._by_boottime or told is None:
            return None
        now_us = self._clock.boottime_us()
        if self._unrecorded:
            return "boot"
        trusted = self._clock.trusted()
        if trusted != told.trusted:
            return "trusted" if trusted else "untrusted"
        offset_us = since_1970_us(self._clock.wall()) - now_us
        if trusted and told.offset_us is not None and abs(offset_us - told.offset_us) > STEP_US:
            return "stepped"
        return "running" if now_us - told.uptime_us >= SILENCE_US else None

    def state(self) -> DelayedState:
        """Must not be modified."""
        told = self._told
        if told is not None:
            told = msgspec.structs.replace(told)
            if told.boot == self._clock.boot:
                # Now, since a snapshot is a reading of the clock as a record is.
                told.uptime_us = max(told.uptime_us, self._clock.boottime_us())
        return DelayedState(tuple((pending.record, pending.due_us) for pending in self.pending.values()), told)

    def restore(self, state: DelayedState) -> None:
        """Restores what `state` returned. Only before anything is followed."""
        assert self._told is None
        self._told = None if state.boot is None else msgspec.structs.replace(state.boot)
        for record, due_us in state.pending:
            self._add(record, due_us)

    # --- what is due ---

    def __len__(self) -> int:
        return len(self.pending)

    def _clock_is_trusted(self) -> bool:
        trusted = self._clock.trusted()
        if trusted and self._start_wall_us is None and self._start_us is not None:
            # By CLOCK_BOOTTIME, so that a step of the wall clock does not change whether one was missed.
            running_us = self._clock.boottime_us() - self._start_us
            self._start_wall_us = since_1970_us(self._clock.wall()) - running_us
        return trusted

    def _waits(self) -> Iterator[tuple[int, int, str]]:
        """(microseconds until it is due, number, name), the earliest first, of those whose due time is known."""
        now_us = self._clock.boottime_us()
        by_boottime = ((due_us - now_us, number, name) for due_us, number, name in self._by_boottime)
        # Without a trusted clock, an update with a time waits.
        if not self._clock_is_trusted() or not self._by_wall:
            return by_boottime
        wall_us = since_1970_us(self._clock.wall())
        return heapq.merge(by_boottime, ((at_us - wall_us, number, name) for at_us, number, name in self._by_wall))

    def due_updates(self, claimed: set[str], limit: int) -> list[Pending]:
        """Those that are due and not claimed, earliest first; of equal due times the first requested."""
        found: list[Pending] = []
        for wait_us, _, name in self._waits():
            if wait_us > 0 or len(found) == limit:
                break
            if name not in claimed:
                found.append(self.pending[name])
        return found

    def next_in(self, claimed: set[str]) -> timedelta | None:
        """Time until the next unclaimed one is due, as far as known; None when there is none."""
        return next(
            (timedelta(microseconds=wait_us) for wait_us, _, name in self._waits() if name not in claimed), None
        )

    def miss_of(self, name: str) -> Miss | None:
        """Whether a pending one was due before the gateway started; its policy then decides, and it is logged."""
        pending = self.pending.get(name)
        if pending is None or pending.number >= self._numbered_at_start:
            return None
        if pending.at is not None:
            start_us, now_us = self._start_wall_us, since_1970_us(self._clock.wall())
        else:
            start_us, now_us = self._start_us, self._clock.boottime_us()
        due_us = self._place(pending)[1][0]
        if start_us is None or due_us > start_us:
            return None
        return Miss(self._due_text(pending), (now_us - due_us) / 1_000_000)

    def _due_text(self, pending: Pending) -> str:
        if pending.at is not None:
            return iso(pending.at)
        assert pending.due_us is not None
        return iso(self._clock.wall() + timedelta(microseconds=pending.due_us - self._clock.boottime_us()))

    def of(self, client: str, name: str) -> Pending | None:
        """A delayed update of that client; another client's is not found."""
        pending = self.pending.get(name)
        return pending if pending is not None and pending.timer.client == client else None

    def names_of(self, client: str) -> list[str]:
        """The ids of that client's delayed updates."""
        return [name for name, pending in self.pending.items() if pending.timer.client == client]

    def table(
        self, client: str | None = None, limit: int | None = None, characters: int | None = None
    ) -> list[dict[str, Any]]:
        """The answer of `GET /delayed`: the earliest first, then those that wait for a trusted clock. client: only of
        that client; without it, of all. limit: rows, else `LISTED_MAX`. characters: of each text; a row whose text has
        more has their number. in_s: seconds until it is due, None while the clock is not trusted."""

        limit = limit or LISTED_MAX

        def is_current(entry: tuple[int, int, str]) -> bool:
            return client is None or self.pending[entry[2]].timer.client == client

        rows = [
            _row(self.pending[name], self._due_text(self.pending[name]), wait_us, characters)
            for wait_us, _, name in islice(filter(is_current, self._waits()), limit)
        ]
        if not self._clock_is_trusted():
            for _, _, name in islice(filter(is_current, self._by_wall), limit - len(rows)):
                rows.append(_row(self.pending[name], self._due_text(self.pending[name]), None, characters))
        return rows


def text_bytes(timer: Timer) -> int:
    return len(timer.update.encode())


def _offset_us(record: Record) -> int:
    """Wall clock less CLOCK_BOOTTIME when a record was written."""
    return since_1970_us(moment(record.ts)) - record.boottime_us


def _row(pending: Pending, due: str, wait_us: int | None, characters: int | None) -> dict[str, Any]:
    cause = pending.cause
    state = "waiting for a trusted clock" if wait_us is None else "pending" if wait_us > 0 else "late"
    row = {
        "id": pending.timer.id,
        "state": state,
        "due": due,
        "in_s": None if wait_us is None else round(wait_us / 1_000_000, 3),
        "set": pending.set_at,
        "sequence": pending.sequence,
        "cause": None if cause is None else {"kind": cause.kind, "id": cause.id, "seq": cause.seq},
        "client": pending.timer.client,
        "missed": pending.timer.missed,
        "update": pending.timer.update[:characters],
    }
    if characters is not None and len(pending.timer.update) > characters:
        row["update_characters"] = len(pending.timer.update)
    return row
