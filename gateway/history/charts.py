"""The history of a series for a chart: means of a number or intervals of a state, and where nothing is known."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from lamplighter.engine.access import Graphs
from lamplighter.engine.errors import ChangeLogError
from lamplighter.engine.terms import Term
from lamplighter.gateway.clock import foreign_moment, iso, moment_of_us, since_1970_us
from lamplighter.gateway.history.samples import DESIRED, EVENTS, READING, REPORTED, RETAINED, SOURCE, SeriesKey
from lamplighter.gateway.history.series_index import (
    BUCKET_US,
    Change,
    IndexedSegment,
    LogBreak,
    SegmentSeries,
    SegmentValues,
    SeriesIndex,
    index_files,
    values_of,
)
from lamplighter.gateway.log.reader import Segment, ends, segments
from lamplighter.gateway.log.snapshots import Place

POINTS_MAX, POINTS_DEFAULT = 5_000, 1_500
STEPS_S = (600, 3_600, 21_600, 86_400)
SINGLE_US = 25 * 3_600_000_000
"""The longest range whose readings are told singly."""
SCANNED_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of segments without an index, and of those whose readings are told singly, that a chart reads, each."""
BEFORE_MAX = 2_000
"""Segments before the range in which the value at its begin is looked for."""
BEHIND_MAX = 24
"""Segments before the range that are read whatever is known: where the clock was set back, others are behind them."""


class ChartRange(msgspec.Struct, frozen=True):
    """subject: of the series; sources: what its readings come through. readable: the graphs whose values may be told.
    points: how many points or intervals at most. newest: the last record that may be shown. now_us: until when what is
    known now lasts."""

    subject: Term
    since_us: int
    until_us: int
    points: int
    readable: Graphs
    newest: Place
    now_us: int
    sources: tuple[Term, ...] = ()


class UnknownSpan(NamedTuple):
    begin_us: int
    end_us: int
    reason: str
    text: str = ""


class Stay(NamedTuple):
    """A time in one state. changes: more than 1 where the state changed that often in it."""

    begin_us: int
    end_us: int
    value: str
    changes: int = 1


class Chart(msgspec.Struct, frozen=True):
    """What `GET /history` tells of values; see docs/protocol.md."""

    kind: str
    step_s: int
    points: list[tuple[str, float, float, float, int]]
    states: list[dict[str, Any]]
    reported: list[dict[str, Any]] | None
    gaps: list[dict[str, Any]]
    complete_since: str | None


def chart_of(data: Path, wanted: ChartRange) -> Chart | None:
    """The chart of a range; None if the log has no value of the subject that may be told. Raises ChangeLogError."""
    found = _Values(data, wanted)
    found.load()
    if not found.changes.keys() - {SOURCE}:
        return None
    actuator = bool(found.changes.keys() & {DESIRED, REPORTED})
    if READING in found.changes and not actuator and found.numeric:
        step_s, points = found.points()
        timeline = found.timeline(READING)
        gaps = [*found.breaks(), *_without_value(timeline, found.end_us), *found.unconfirmed_spans(timeline)]
        return Chart("number", step_s, points, [], None, _gap_rows(gaps, wanted), found.complete_since())
    role = DESIRED if actuator else READING
    timeline = found.timeline(role)
    gaps = [*found.breaks(), *_without_value(timeline, found.end_us)]
    reported = None
    if actuator:
        reports = found.timeline(REPORTED)
        gaps += found.unconfirmed_spans(reports)
        reported = _state_rows(reports, wanted, found.end_us)
    else:
        gaps += found.unconfirmed_spans(timeline)
    states = _state_rows(timeline, wanted, found.end_us)
    return Chart("state", 0, [], states, reported, _gap_rows(gaps, wanted), found.complete_since())


@dataclass
class _ReadSegment:
    """A segment. begin_us, end_us, breaks: of its records, once they are known; pending: they are not read now."""

    segment: Segment
    begin_us: int = 0
    end_us: int = 0
    breaks: list[LogBreak] = field(default_factory=list)
    damage: str = ""
    pending: bool = False


class _Indexes:
    """What the index has of some series, by segment. It opens a file when one of its segments is asked for."""

    def __init__(self, data: Path, keys: Iterable[str]) -> None:
        self._files = index_files(data)
        self._begins = [(file.epoch, file.first) for file in self._files]
        self._keys = list(keys)
        self._opened: dict[int, dict[Place, tuple[IndexedSegment, list[SegmentSeries]]]] = {}

    def of(self, segment: Segment) -> tuple[IndexedSegment, list[SegmentSeries]] | None:
        """None if it has no usable index."""
        number = bisect_right(self._begins, segment.begin) - 1
        if number < 0 or not segment.is_sealed:
            return None
        if number not in self._opened:
            self._opened = {number: self._open(number)}  # segments are asked for one after the other
        found = self._opened[number].get(segment.begin)
        return found if found is not None and found[0].last == segment.name.last else None

    def _open(self, number: int) -> dict[Place, tuple[IndexedSegment, list[SegmentSeries]]]:
        try:
            index = SeriesIndex(self._files[number].path)
            series = index.series(self._keys)
        except ValueError:
            return {}  # it is made again
        return {one.begin: (one, series.get(place, [])) for place, one in enumerate(index.head.segments)}


class _Values:
    """The values of a range. changes: by role, with the last one before the range; buckets: of numbers. end_us: of the
    range, or until when what is known now lasts."""

    def __init__(self, data: Path, wanted: ChartRange) -> None:
        self._wanted = wanted
        # Buckets are told whole, so the values of the first and the last one are all read.
        self._from_us = wanted.since_us // BUCKET_US * BUCKET_US
        self._to_us = (wanted.until_us // BUCKET_US + 1) * BUCKET_US
        self._kept = segments(data / "log")
        self._ends = ends(self._kept)
        self._subjects = (wanted.subject, *wanted.sources)
        self._parts: list[_ReadSegment] = []
        self._scanned = 0
        self.changes: dict[str, list[Change]] = {}
        self.buckets: dict[int, tuple[int, float, float, float]] = {}
        self._single: list[tuple[int, float]] = []
        self._single_parts: list[_ReadSegment] = []
        self.numeric = False
        self.end_us = wanted.until_us
        self._before = 0
        graphs = [name for name in wanted.readable.names or () if name is not None]
        roles = (READING, DESIRED, REPORTED)
        keys = [SeriesKey(wanted.subject, role) for role in roles] if None in wanted.readable else []
        if wanted.readable.names is None:
            keys.append(SeriesKey(wanted.subject, READING, EVENTS))
        keys += [SeriesKey(wanted.subject, role, name) for role in roles for name in graphs]
        self._keys = {key.text(): key for key in keys}
        self._keys |= {key.text(): key for key in (SeriesKey(source, SOURCE) for source in wanted.sources)}
        self._indexes = _Indexes(data, self._keys)

    def load(self) -> None:
        """Reads the segments, newest first, until the value at the begin of the range is known."""
        wanted = self._wanted
        for segment in reversed(self._kept):
            if segment.begin > wanted.newest:
                continue
            if not self._read_part(segment):
                break
        self._parts.reverse()
        # Where the clock was set back, there are records of later than now.
        self.end_us = min(wanted.until_us, max(wanted.now_us, *(part.end_us for part in self._parts), 0))
        for some in self.changes.values():
            some.sort(key=lambda change: change[0])
        self._read_single()

    def _read_part(self, segment: Segment) -> bool:
        """Whether earlier segments are to be read, too."""
        part = _ReadSegment(segment)
        self._parts.append(part)
        indexed = self._indexes.of(segment)
        if indexed is None:
            self._scan(part)
            to_us = part.end_us
        else:
            head, series = indexed
            part.begin_us, part.end_us, part.breaks, part.damage = head.begin_us, head.end_us, head.breaks, head.damage
            to_us = max(head.end_us, head.to_us)
            if head.from_us >= self._to_us:
                return True
            if all(one.complete for one in series) and (head.whole or _has(series, self._wanted.subject)):
                self._take(part, series)
            else:
                self._scan(part)
        if not part.begin_us or to_us >= self._from_us:
            return True
        self._before += 1
        return self._before <= BEHIND_MAX or (not self._begin_is_known() and self._before < BEFORE_MAX)

    def _begin_is_known(self) -> bool:
        """Whether the value at the begin of the range is known, or is not asked for."""
        if self.numeric and self.changes.keys() <= {READING, SOURCE}:
            return True
        roles = self.changes.keys() - {SOURCE}
        return bool(roles) and all(
            any(change[0] <= self._wanted.since_us for change in self.changes[role]) for role in roles
        )

    def _values_of(self, part: _ReadSegment, subjects: Sequence[Term]) -> SegmentValues:
        wanted, segment = self._wanted, part.segment
        span = wanted.since_us, wanted.until_us
        return values_of(segment, self._ends.get(segment.name.epoch), subjects, wanted.newest, span)

    def _scan(self, part: _ReadSegment) -> None:
        """Reads the values of a segment from its records, if that is not too much."""
        try:
            size = part.segment.path.stat().st_size
        except OSError:
            return  # it was sealed, or removed to free space, meanwhile
        if self._scanned + size > SCANNED_BYTES_MAX and self._scanned and part.segment.is_sealed:
            part.pending = True
            return
        self._scanned += size
        try:
            found = self._values_of(part, self._subjects)
        except ChangeLogError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            return
        part.begin_us, part.end_us = found.begin_us, found.end_us
        part.breaks, part.damage = found.breaks, found.damage
        some = [series for key, series in found.series.items() if key in self._keys]
        for series in some:
            if not series.complete:
                times = [change[0] for change in series.changes] + [bucket[0] * BUCKET_US for bucket in series.buckets]
                part.breaks.append(LogBreak(max(times) + 1, part.end_us, "one segment has too many values"))
        self._take(part, some)

    def _take(self, part: _ReadSegment, series: Iterable[SegmentSeries]) -> None:
        newest = not self.changes.keys() & {READING}
        for one in series:
            role = self._keys[one.key].role
            self.changes.setdefault(role, []).extend(one.changes)
            if role != READING:
                continue
            if newest:
                self.numeric = one.numeric
            for bucket, count, total, least, most in one.buckets:
                if bucket in self.buckets:
                    others, sum_, low, high = self.buckets[bucket]
                    count, total, least, most = count + others, total + sum_, min(least, low), max(most, high)
                self.buckets[bucket] = count, total, least, most
            if one.raw:
                self._single += one.raw
            elif one.buckets:
                self._single_parts.append(part)

    # --- numbers ---

    def _read_single(self) -> None:
        """Reads the readings of a short range, if they are few and stand in few segments."""
        wanted = self._wanted
        some = [number for number in self.buckets if wanted.since_us < (number + 1) * BUCKET_US]
        some = [number for number in some if number * BUCKET_US <= wanted.until_us]
        count = sum(self.buckets[number][0] for number in some)
        parts = [part for part in self._single_parts if not part.end_us < wanted.since_us]
        try:
            size = sum(part.segment.path.stat().st_size for part in parts)
        except OSError:
            size = SCANNED_BYTES_MAX + 1
        short = wanted.until_us - wanted.since_us <= SINGLE_US
        self.single = short and count <= wanted.points and size <= SCANNED_BYTES_MAX
        if not self.single:
            return
        try:
            for part in parts:
                for key, series in self._values_of(part, (wanted.subject,)).series.items():
                    if key in self._keys:
                        self._single += series.raw
        except ChangeLogError:
            self.single = False  # the means are known

    def points(self) -> tuple[int, list[tuple[str, float, float, float, int]]]:
        wanted = self._wanted
        if self.single:
            found = sorted(self._single)
            begin = bisect_left(found, (wanted.since_us, float("-inf")))
            end = bisect_right(found, (wanted.until_us, float("inf")))
            return 0, [(_time(at), value, value, value, 1) for at, value in found[begin:end]]
        length_s = (wanted.until_us - wanted.since_us) // 1_000_000
        step_s = next((step for step in STEPS_S if length_s // step + 2 <= wanted.points), 0)
        while not step_s or length_s // step_s + 2 > wanted.points:
            step_s = 2 * (step_s or STEPS_S[-1])
        step_us = step_s * 1_000_000
        sums: dict[int, tuple[int, float, float, float]] = {}
        for number, (count, total, least, most) in sorted(self.buckets.items()):
            at_us = number * BUCKET_US
            if at_us + BUCKET_US <= wanted.since_us or at_us > wanted.until_us:
                continue
            step = at_us // step_us
            if step in sums:
                others, sum_, low, high = sums[step]
                count, total, least, most = count + others, total + sum_, min(least, low), max(most, high)
            sums[step] = count, total, least, most
        return step_s, [
            (_time(step * step_us), min(max(total / count, least), most), least, most, count)
            for step, (count, total, least, most) in sums.items()
        ]

    # --- what is not known ---

    def timeline(self, role: str) -> list[Change]:
        """The changes of a role in order; records that are lost end what was known."""
        found = self.changes.get(role, [])
        lost = [(span.begin_us, None, "") for span in self.breaks() if span.reason in ("lost", "pending")]
        # What began before the loss and is asserted after it is another change.
        return sorted([*found, *lost], key=lambda change: (change[0], change[1] is not None))

    def breaks(self) -> list[UnknownSpan]:
        found: list[UnknownSpan] = []
        first = next((part for part in self._parts if part.begin_us), None)
        if first is not None and first.segment.begin == self._kept[0].begin != (1, 1):
            found.append(UnknownSpan(0, first.begin_us, "removed"))
        before_us = 0
        for part in self._parts:
            for one in part.breaks:
                found.append(UnknownSpan(one.from_us or before_us or one.to_us, one.to_us, "lost", one.reason))
            before_us = part.end_us or before_us
        for number, part in enumerate(self._parts):
            before_us = next((one.end_us for one in reversed(self._parts[:number]) if one.end_us), 0)
            after_us = next((one.begin_us for one in self._parts[number + 1 :] if one.begin_us), self.end_us)
            if part.pending:
                found.append(UnknownSpan(before_us, after_us, "pending"))
            elif part.damage:
                found.append(UnknownSpan(part.end_us or before_us, after_us, "lost", part.damage))
        return found

    def unconfirmed_spans(self, timeline: Sequence[Change]) -> list[UnknownSpan]:
        """From the return of a source to the next report; and a value of unknown age."""
        found = []
        times = [change[0] for change in timeline]
        ends = [change[0] for change in timeline if change[2] != RETAINED]
        for logged_us, value, reason in self.changes.get(SOURCE, []):
            returned = foreign_moment(value or "")
            at_us = logged_us if returned is None else since_1970_us(returned)
            number = bisect_left(times, at_us)
            if value is None or reason or not number or timeline[number - 1][1] is None:
                continue
            end = bisect_left(ends, at_us)
            found.append(UnknownSpan(at_us, ends[end] if end < len(ends) else self.end_us, "unconfirmed"))
        for at_us, value, reason in timeline:
            if reason == RETAINED and value is not None:
                end = bisect_right(ends, at_us)
                found.append(UnknownSpan(at_us, ends[end] if end < len(ends) else self.end_us, "unconfirmed"))
        return found

    def complete_since(self) -> str | None:
        kept = self._kept
        if not kept:
            return None
        for part in self._parts[:1]:
            if part.segment.begin == kept[0].begin and part.begin_us:
                return _time(part.begin_us)
        indexed = self._indexes.of(kept[0])
        begin_us = self._values_of(_ReadSegment(kept[0]), ()).begin_us if indexed is None else indexed[0].begin_us
        return _time(begin_us) if begin_us else None


def _has(series: Iterable[SegmentSeries], subject: Term) -> bool:
    return any(one.key.startswith(f"{subject} ") for one in series)


# --- states ---------------------------------------------------------------------------------------------------


def _without_value(timeline: Sequence[Change], known_until_us: int) -> Iterator[UnknownSpan]:
    for number, (at_us, value, reason) in enumerate(timeline):
        if value is None and reason:
            end = next((change[0] for change in timeline[number + 1 :][:1]), known_until_us)
            yield UnknownSpan(at_us, end, "no value", reason)


def _stays(timeline: Sequence[Change], wanted: ChartRange, known_until_us: int) -> list[Stay]:
    """The states of a range, each until the next one."""
    found: list[Stay] = []
    ends = [change[0] for change in timeline[1:]] + [known_until_us]
    for (at_us, value, _), end_us in zip(timeline, ends, strict=False):
        begin_us, end_us = max(at_us, wanted.since_us), min(end_us, wanted.until_us)
        if value is None or end_us <= begin_us:
            continue
        if found and found[-1].value == value and found[-1].end_us == begin_us:
            found[-1] = found[-1]._replace(end_us=end_us)
        else:
            found.append(Stay(begin_us, end_us, value))
    return found


def _merge_short(stays: list[Stay], wanted: ChartRange) -> list[Stay]:
    """The same with not more than the wanted number: states that are too short to be drawn become one."""
    count = wanted.points
    if len(stays) <= count:
        return stays
    # At most one stay of several states and one whole one for each width.
    width = max(1, 2 * (wanted.until_us - wanted.since_us) // count)
    found: list[Stay] = []
    group: list[Stay] = []

    def close() -> None:
        if group:
            lasting: dict[str, int] = {}
            for one in group:
                lasting[one.value] = lasting.get(one.value, 0) + one.end_us - one.begin_us
            value = max(lasting, key=lambda name: (lasting[name], name))
            found.append(Stay(group[0].begin_us, group[-1].end_us, value, len(group)))
            group.clear()

    for one in stays:
        gap = bool(group) and group[-1].end_us != one.begin_us
        if gap or (group and one.begin_us // width != group[0].begin_us // width):
            close()
        group.append(one)
    close()
    return found[-count:]


def _state_rows(timeline: Sequence[Change], wanted: ChartRange, known_until_us: int) -> list[dict[str, Any]]:
    return [
        {"from": _time(one.begin_us), "to": _time(one.end_us), "value": one.value}
        | ({"changes": one.changes} if one.changes > 1 else {})
        for one in _merge_short(_stays(timeline, wanted, known_until_us), wanted)
    ]


def _gap_rows(gaps: Iterable[UnknownSpan], wanted: ChartRange) -> list[dict[str, Any]]:
    """Within the range, in order; those of a reason and text that touch are one. The newest, as many as wanted."""
    clipped = []
    for one in gaps:
        begin, end = max(one.begin_us, wanted.since_us), min(one.end_us, wanted.until_us)
        if begin < end:
            clipped.append(UnknownSpan(begin, end, one.reason, one.text))
    found: list[UnknownSpan] = []
    for one in sorted(clipped, key=lambda span: (span.reason, span.text, span.begin_us)):
        last = found[-1] if found else None
        if last and (last.reason, last.text) == (one.reason, one.text) and one.begin_us <= last.end_us:
            found[-1] = last._replace(end_us=max(last.end_us, one.end_us))
        else:
            found.append(one)
    found.sort()
    return [
        {"from": _time(one.begin_us), "to": _time(one.end_us), "reason": one.reason}
        | ({"text": one.text} if one.text else {})
        for one in found[-wanted.points :]
    ]


def _time(us: int) -> str:
    return iso(moment_of_us(us))
