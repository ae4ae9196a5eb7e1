"""Changes of the dataset behind a position of the change log, for those who replicate it within their permissions.

A position is a record, and a mark of its content. The mark tells it from a record of the same place in another history:
that of another data folder, of an older copy of this one, or of a log that lost its end in a power cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import NamedTuple

from lamplighter.engine.access import Graphs
from lamplighter.engine.change_log import Record
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import ChangeLogError, RequestError
from lamplighter.gateway.history.records import History
from lamplighter.gateway.log.snapshots import Place, place_of

CHANGES_MAX = 1_000  # changes of one part
PART_CHARACTERS_MAX = 1024 * 1024  # characters of the terms of a part, unless a single change has more
# Characters of the terms of a change; a longer one is a reset. In a snapshot they can be streamed.
CHANGE_CHARACTERS_MAX = 8 * 1024 * 1024
SCANNED_MAX = 20_000  # records that are read for one part, whether they are in it or not

REMOVED = "the records behind this position were removed from the change log to free space (log.bytes_max)"
LOST = (
    "the change log has no record of this position: a part of it was lost or replaced, or it is that of another gateway"
)
DAMAGED = "the records behind this position are damaged"
TOO_LARGE = "the next change is too large for the feed, or takes longer to read than query.time_ms_max"
PERMISSIONS = "other graphs than at this position may be read now"
_CURE = "fetch /changes/snapshot, replace the dataset by it, and continue from its position"


class ResetError(RequestError):
    """What was received so far cannot be continued; the dataset has to be replaced."""

    code = "reset"
    status = 410

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}; {_CURE}")
        self.reason = reason


class LogPosition(NamedTuple):
    """The position behind a record. mark: of its content; "" before the first record."""

    place: Place
    mark: str = ""


class LoggedChange(NamedTuple):
    """What a commit changed in some graphs. at: the position behind it; ts, trusted: those of the record."""

    at: LogPosition
    ts: str
    trusted: bool
    delta: QuadDelta


class ChangesPart(NamedTuple):
    """Changes in the order of the log. at: the position behind all records that were read; ended: whether these were
    all; reset: why there is no part, "" if there is one."""

    changes: list[LoggedChange]
    at: LogPosition
    ended: bool
    reset: str = ""


def position_of(record: Record) -> LogPosition:
    """The position behind a record. Its boot and clocks are those of no other record of the same place."""
    written = f"{record.boot} {record.boottime_us} {record.ts}"
    return LogPosition(place_of(record), blake2b(written.encode(), digest_size=4).hexdigest())


def visible_delta(delta: QuadDelta, visible: Graphs) -> QuadDelta:
    """What a delta changes in some graphs."""
    if visible.every:
        return delta._replace(kept=())
    return QuadDelta(
        tuple(quad for quad in delta.removed if quad.g in visible),
        tuple(quad for quad in delta.added if quad.g in visible),
        (),
        tuple(name for name in delta.created if name in visible),
        tuple(name for name in delta.dropped if name in visible),
    )


def part_of(records: Iterable[Record], after: LogPosition, newest: Place, visible: Graphs, limit: int) -> ChangesPart:
    """The first changes of records behind a position, as many as limit. An error of the records ends them."""
    changes: list[LoggedChange] = []
    at, size, scanned = after, 0, 0
    try:
        for record in records:
            if record.type == "commit":
                delta = visible_delta(record.delta, visible)
                if delta.changes:
                    length = _characters(delta)
                    if changes and (len(changes) == limit or size + length > PART_CHARACTERS_MAX):
                        return ChangesPart(changes, at, ended=False)
                    if length > CHANGE_CHARACTERS_MAX:
                        return ChangesPart([], after, ended=False, reset=TOO_LARGE)
                    changes.append(LoggedChange(position_of(record), record.ts, record.trusted, delta))
                    size += length
            at = position_of(record)
            scanned += 1
            if scanned == SCANNED_MAX:
                break
    except ChangeLogError:
        if at == after:
            raise
    ended = at.place >= newest
    if at == after and not ended:
        return ChangesPart([], after, ended=False, reset=DAMAGED)
    return ChangesPart(changes, at, ended)


def part_behind(history: History, after: LogPosition, newest: Place, visible: Graphs, limit: int) -> ChangesPart:
    """As `part_of`, from the files. A position that the log does not have any more is a reset."""
    try:
        if after.mark:
            records = history.records(before(after.place), newest)
            if next(_positions(records), None) != after:
                return _unavailable(history, after, LOST)
        else:
            if not history.complete():
                return _unavailable(history, after, LOST)
            records = history.records(after.place, newest)
    except ChangeLogError:
        return _unavailable(history, after, LOST)
    try:
        return part_of(records, after, newest, visible, limit)
    except ChangeLogError:
        return _unavailable(history, after, DAMAGED)


def before(place: Place) -> Place:
    """The place before a record, whether there is a record or not."""
    return place[0], place[1] - 1


def _positions(records: Iterator[Record]) -> Iterator[LogPosition]:
    return (position_of(record) for record in records)


def _unavailable(history: History, after: LogPosition, reason: str) -> ChangesPart:
    segments = history.segments()
    removed = bool(segments) and after.place < segments[0].begin
    return ChangesPart([], after, ended=False, reset=REMOVED if removed else reason)


def _characters(delta: QuadDelta) -> int:
    quads = sum(len(s) + len(p) + len(o) + len(g or "") for part in delta[:2] for s, p, o, g in part)
    return quads + sum(map(len, delta.created)) + sum(map(len, delta.dropped))
