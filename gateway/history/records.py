"""Reads the past from a data folder: ranges of records, and the state of the gateway at any record.

Nothing is written and no lock is needed. A gateway may use the folder, so segments may be sealed or removed while they
are read. A place is (epoch, sequence), the permanent name of a record, written ``1/17``.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from lamplighter.engine.access import FULL, Access
from lamplighter.engine.change_log import Followed, Record, check, decode
from lamplighter.engine.errors import (
    ChangeLogError,
    ConfigurationError,
    MalformedRequestError,
    NotKeptError,
    StoreError,
)
from lamplighter.engine.protocol import Results
from lamplighter.engine.terms import Quad
from lamplighter.gateway.clock import Clock, iso
from lamplighter.gateway.log.reader import CheckedLines, LogReader, Segment, ends, segments
from lamplighter.gateway.log.snapshots import Place, Snapshot, label, place_of, read_snapshot, snapshots
from lamplighter.gateway.state.delayed import DelayedUpdates, at_moment
from lamplighter.gateway.state.knowledge import Knowledge
from lamplighter.gateway.state.resumption import Retained, outlives_process, visible_graphs

if TYPE_CHECKING:
    from lamplighter.engine.core import Engine

_TRIES = 100  # how often files may disappear without one more record being read
_SHOWN_MAX = 100
_PLACE = re.compile(r"(?:([0-9]{1,9})/)?([0-9]{1,12})")


# --- state ------------------------------------------------------------------------------------------------


class _Subscriptions:
    """The resumable subscriptions, in the engine of a replay. wanted: otherwise there are none."""

    def __init__(self, engine: Engine, *, wanted: bool) -> None:
        self._engine = engine
        self._wanted = wanted
        self._handles: dict[str, str] = {}  # spuid -> the engine's name of it
        self._delivered: dict[str, str] = {}  # id of a delivery -> spuid of its subscription

    def follow(self, record: Record, begun: tuple[str, object] | None = None) -> None:
        if record.subscribe is not None:
            self._subscribe(record.subscribe)
        if record.unsubscribe in self._handles:
            self._engine.unsubscribe(self._handles.pop(record.unsubscribe))

    def restore(self, retained: Sequence[Retained], boot: str) -> None:
        for one in retained:
            self._subscribe(one.followed)

    def state(self) -> list[Retained]:
        return []

    def _subscribe(self, followed: Followed) -> None:
        replaced = followed.spuid
        if followed.delivery is not None:
            replaced = self._delivered.get(followed.delivery.id, replaced)
            self._delivered[followed.delivery.id] = followed.spuid
        for spuid in {followed.spuid, replaced} & self._handles.keys():
            self._engine.unsubscribe(self._handles.pop(spuid))
        if self._wanted and outlives_process(followed):
            access = Access(FULL.read, FULL.write, visible_graphs(followed))
            with suppress(Exception):  # a start skips it, too
                subscription = self._engine.subscribe(
                    followed.sparql,
                    default_graphs=followed.default_graphs,
                    named_graphs=followed.named_graphs,
                    access=access,
                )
                self._handles[followed.spuid] = subscription.spuid


class Replay:
    """The state of a gateway at a record, without its subscriptions. clock: of the machine that asks; subscriptions:
    whether the resumable ones are followed as well, to check that they can be."""

    def __init__(self, clock: Clock, *, subscriptions: bool = False) -> None:
        self._clock = clock
        self._subscriptions = subscriptions
        self._clear()

    def _clear(self) -> None:
        from lamplighter.engine.core import Engine  # most commands on the log replay nothing

        self.engine = Engine()
        self.knowledge = Knowledge(self._clock, _Subscriptions(self.engine, wanted=self._subscriptions))
        self.place: Place = (1, 0)

    @property
    def delayed_updates(self) -> DelayedUpdates:
        return self.knowledge.delayed

    def restore(self, head: Record, batches: Iterable[tuple[Quad, ...]]) -> None:
        """Replaces the state by a snapshot. Raises the errors of reading it; then the state is empty."""
        self._clear()
        graphs = head.graphs.created if head.graphs else ()
        try:
            self.engine.restore(batches, graphs, head.seq)
        except BaseException:
            self._clear()
            raise
        self.knowledge.restore(head)
        self.place = place_of(head)

    def follow(self, record: Record) -> None:
        self.knowledge.follow(record)
        if record.type == "commit":
            commit = self.engine.commit(record.delta, record.seq)
            for notification in commit.notifications:
                # A row that cannot be written as JSON would fail at the start too.
                Results(notification.added, notification.removed).members  # noqa: B018 - it must be possible
        self.place = place_of(record)


# --- the log ----------------------------------------------------------------------------------------------


class _Stamp(msgspec.Struct):
    epoch: int
    seq: int
    ts: str
    trusted: bool


_stamp = msgspec.json.Decoder(_Stamp).decode


@dataclass(frozen=True)
class Found:
    """A record. ts: its time, "" if no longer kept; doubt: why that may be wrong, "" without a reason."""

    place: Place
    ts: str
    doubt: str


def is_time(text: str) -> bool:
    return "T" in text


def check_named(text: str) -> None:
    """Raises MalformedRequestError unless a text names a record or a time."""
    if is_time(text):
        at_moment(text)
    elif not _PLACE.fullmatch(text):
        raise MalformedRequestError(
            f"at: {text[:_SHOWN_MAX]!r} is no record; write its sequence, such as 17, 1/17 for epoch 1, or a time such "
            "as 2026-11-21T10:00:00Z"
        )


class History:
    """The change log and the snapshots of a data folder. Raises ConfigurationError if there are none."""

    def __init__(self, data: Path, clock: Clock) -> None:
        self.data = data
        self.log = data / "log"
        self._clock = clock
        if not self.log.is_dir() or not (data / "snapshots").is_dir():
            raise ConfigurationError(f"data folder {data}: it has no change log; name another with --data")

    # --- places ---

    def segments(self) -> list[Segment]:
        return segments(self.log)

    def first(self) -> Place | None:
        """The oldest record that is kept, None if there is none."""
        for segment in self.segments():
            if (lines := self._good_lines(segment)) is not None and lines:
                return place_of(decode(lines[0]))
        return None

    def last(self) -> Place | None:
        """The newest record that can be read, None if there is none."""
        for segment in reversed(self.segments()):
            if (lines := self._good_lines(segment)) is not None and lines:
                return place_of(decode(lines[-1]))
        return None

    def place(self, text: str) -> Place:
        """The place for ``1/17``, or for ``17``: in the newest epoch with such a record. Raises ChangeLogError."""
        named = _PLACE.fullmatch(text)
        if named is None:
            raise ConfigurationError(
                f"{text!r} is not a record; write its sequence, such as 17, or 1/17 for that of epoch 1"
            )
        sequence = int(named[2])
        if named[1] is not None:
            return int(named[1]), sequence
        for segment in reversed(self.segments()):
            # From the newest epoch: after damage, an older one may have the same sequence.
            lines = self._good_lines(segment) if segment.name.first <= sequence else None
            if lines and sequence <= decode(lines[-1]).seq:
                return segment.name.epoch, sequence
        raise self._error(f"no record {sequence} is kept", self._extent())

    def record_of(self, text: str) -> Found:
        """The record that a text names: as `place`, or as the last one up to an xsd:dateTime. Raises ChangeLogError,
        MalformedRequestError."""
        if is_time(text):
            return self.at(at_moment(text))
        place = self.place(text)
        record = None
        with suppress(ChangeLogError):  # a snapshot may still have its state
            record = next(self.records((place[0], place[1] - 1), place), None)
        return Found(place, "" if record is None else record.ts, "")

    def _extent(self) -> str:
        first, last = self.first(), self.last()
        return f"the log has {label(first)} to {label(last)}" if first and last else "the log is empty"

    def at(self, moment: datetime) -> Found:
        """The last record, in the order of the log, whose time is not after a moment. Raises ChangeLogError."""
        wanted = iso(moment)
        following: _Stamp | None = None
        for segment in reversed(self.segments()):
            try:
                stamps = [_stamp(check(line) + b"}") for line in self._good_lines(segment) or ()]
            except msgspec.DecodeError as error:
                hint = "`lamplighter verify` has details; name a sequence instead of a time"
                raise ChangeLogError(f"not a record: {error}", path=segment.path, hint=hint) from error
            # From the end: where a clock was set back, times are not sorted, and the last record with an earlier time
            # counts.
            for number in range(len(stamps) - 1, -1, -1):
                stamp = stamps[number]
                if stamp.ts <= wanted:
                    doubt = ""
                    if not stamp.trusted or (following is not None and not following.trusted):
                        doubt = "the clock was not synchronised around it"
                    # Within the segment; a step between two segments is not seen.
                    elif any(earlier.ts > wanted for earlier in stamps[:number]):
                        doubt = "the clock was set back before it"
                    return Found((stamp.epoch, stamp.seq), stamp.ts, doubt)
                following = stamp
        if following is None:
            raise self._error("it has no records", "name another folder with --data")
        raise self._error(
            f"nothing from {wanted} or before is kept",
            f"the oldest record is {following.epoch}/{following.seq} of {following.ts}",
        )

    @staticmethod
    def _good_lines(segment: Segment) -> list[bytes] | None:
        """None if it was removed in the meantime."""
        try:
            return list(CheckedLines(segment, ends(segments(segment.path.parent)).get(segment.name.epoch)))
        except ChangeLogError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    # --- records ---

    def records(self, after: Place | None = None, to: Place | None = None) -> Iterator[Record]:
        """The records behind one place, up to another one with it. after: None for all that are kept. Raises
        ChangeLogError where records are damaged or removed, after those before. An unreadable end of the log is skipped
        if it may be an interrupted write."""
        # A segment is renamed when it is sealed, and removed for space; a reader of another process may meet that.
        position = after
        begun = after is not None
        tries = 0
        while True:
            if position is None:
                found = self.segments()
                if not found:
                    return
                position = found[0].name.epoch, found[0].name.first - 1
            reader = LogReader(self.log, *position)
            try:
                for record in reader:
                    if to is not None and place_of(record) > to:
                        return
                    position, begun, tries = place_of(record), True, 0
                    yield record
            except ChangeLogError as error:
                if not isinstance(error.__cause__, FileNotFoundError) or tries == _TRIES:
                    raise
                tries += 1  # it was sealed, or removed to free space
                # Begun, it goes on behind the last record; if not, it looks for the new beginning.
                position = position if begun else None
                continue
            if reader.damage is not None and (to is None or position < to):
                raise self._unreadable(reader, position)
            return

    def _unreadable(self, reader: LogReader, position: Place) -> ChangeLogError:
        first = reader.segments[0]
        if first.begin > (position[0], position[1] + 1):
            return self._error(
                f"the records behind {label(position)} were removed to free space",
                f"the oldest that is kept is {label(first.begin)}",
            )
        assert reader.damage is not None
        return ChangeLogError(
            f"damaged behind record {label(position)}: {reader.damage.reason}",
            path=reader.damage.aside[0].path,
            hint="`lamplighter verify` has details",
        )

    def newest(
        self, count: int, wanted: Callable[[Record], bool], after: Place | None = None, to: Place | None = None
    ) -> list[Record]:
        """The last wanted records of those from `records`, oldest first. Raises ChangeLogError."""
        # Twice as many segments each time: the newest records are near the end, as a rule.
        back = 1
        while True:
            found = self.segments()
            # Just before the segment, so that its first record is read.
            begin = (0, 0) if back >= len(found) else (found[-back].name.epoch, found[-back].name.first - 1)
            whole = begin <= (after or (0, 0))
            result = deque(filter(wanted, self.records(after if whole else begin, to)), maxlen=count)
            if len(result) == count or whole:
                return list(result)
            back *= 2

    def latest(
        self, holding: str, wanted: Callable[[Record], bool], after: Place | None = None, to: Place | None = None
    ) -> Record | None:
        """The last wanted one of the records in a range whose lines hold a text. Raises ChangeLogError."""
        # It decodes these records only, so that it is fast where they are few.
        for _ in range(_TRIES):
            try:
                return self._latest(holding.encode(), wanted, after, to)
            except ChangeLogError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise  # else it was sealed, or removed to free space
        raise self._error("its files change all the time", "try again")

    def _latest(
        self, holding: bytes, wanted: Callable[[Record], bool], after: Place | None, to: Place | None
    ) -> Record | None:
        found = self.segments()
        limits = ends(found)
        for segment in reversed(found):
            if to is not None and segment.begin > to:
                continue
            lines = [line for line in CheckedLines(segment, limits.get(segment.name.epoch)) if holding in line]
            for record in map(decode, reversed(lines)):
                place = place_of(record)
                if (after is None or place > after) and (to is None or place <= to) and wanted(record):
                    return record
            # Older segments have nothing behind it.
            if after is not None and segment.begin <= after:
                break
        return None

    # --- what was known ---

    def snapshots(self) -> list[Snapshot]:
        return snapshots(self.data / "snapshots")

    def complete(self) -> bool:
        """Whether the log goes back to the first record ever."""
        found = self.segments()
        return found[0].begin == (1, 1) if found else not self.snapshots()

    def replay_bytes(self) -> int:
        """Bytes of the files from which `replay` makes the newest state. Raises OSError."""
        newest = max(self.snapshots(), key=lambda one: one.place, default=None)
        begin = (1, 0) if newest is None else newest.place
        behind = [one.path for one in self.segments() if one.name.last is None or (one.begin[0], one.name.last) > begin]
        return sum(path.stat().st_size for path in (*behind, *([] if newest is None else [newest.path])))

    def replay(self, to: Place | None = None, passed_over: Callable[[ChangeLogError], None] | None = None) -> Replay:
        """The state at a record; None: at the last readable one. passed_over: called with damaged snapshots, which do
        no harm if there is an older one, and for None with damage in the log. Raises ChangeLogError, which names the
        oldest record that can be restored."""
        replay = Replay(self._clock)
        tell = passed_over or (lambda error: None)
        if not self._begin(replay, to, tell):
            oldest = self.oldest()
            raise self._error(
                f"the history that leads to {'its end' if to is None else label(to)} is no longer kept",
                "no snapshot is left"
                if oldest is None
                else f"the oldest record that can be restored is {label(oldest)}",
            )
        try:
            for record in self.records(replay.place, to):
                self._follow(replay, record)
        except ChangeLogError as error:
            if to is not None:
                raise
            tell(error)
        if to is not None and replay.place != to:
            raise self._error(f"there is no record {label(to)}", self._extent())
        return replay

    def _follow(self, replay: Replay, record: Record) -> None:
        """Raises StoreError for a record that cannot be applied, whatever the error."""
        try:
            replay.follow(record)
        except Exception as error:
            raise StoreError(
                f"{self.log}: record {label(place_of(record))} cannot be applied: {error!r}; start the gateway, which "
                "sets it aside, or name an earlier record"
            ) from error

    def _begin(self, replay: Replay, to: Place | None, tell: Callable[[ChangeLogError], None]) -> bool:
        """Begins with the nearest complete snapshot, or with an empty state where the log has everything."""
        for snapshot in reversed(self.snapshots()):
            # A snapshot cannot be taken back.
            if to is not None and snapshot.place > to:
                continue
            try:
                replay.restore(*read_snapshot(snapshot.path, snapshot.place))
            except ChangeLogError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    tell(error)
            else:
                return True
        # An empty dataset is the state before record 1/1.
        return self.complete()

    def oldest(self) -> Place | None:
        """The oldest record whose state can be restored."""
        if self.complete():
            return self.first()
        for snapshot in self.snapshots():
            try:
                for _ in read_snapshot(snapshot.path, snapshot.place)[1]:
                    pass
            except ChangeLogError:
                continue
            return snapshot.place
        return None

    def _error(self, what: str, hint: str) -> NotKeptError:
        return NotKeptError(what, path=self.log, hint=hint)
