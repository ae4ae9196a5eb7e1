"""An index of the values in sealed segments of the change log, so that a chart of a month reads little of it.

::

    <data>/history/1-000000000001-000000000999.idx    of one segment, or of several that follow each other
    one line of JSON (`IndexHead`, with a checksum), then zstd frames of lines of JSON, an `IndexedSeries` each, by key

It has ten-minute buckets of numbers and the changes of states. It follows from the segments alone: it can be made again
at any time, and what it has of a segment that is gone is not used. What was left out for its limits is read from the
segment.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import google_crc32c
import msgspec
import zstandard

from lamplighter.engine.change_log import check
from lamplighter.engine.client.files import read_file
from lamplighter.engine.errors import ChangeLogError
from lamplighter.engine.terms import Term
from lamplighter.gateway.history.samples import SOURCE, LoggedValues, Sample, decode_values, samples_of
from lamplighter.gateway.log.reader import CheckedLines, Segment
from lamplighter.gateway.log.snapshots import Place

FOLDER = "history"
VERSION = 1
BUCKET_US = 600_000_000
SERIES_MAX = 10_000  # of a segment
CHANGES_MAX = 1_000  # of a series in a segment; buckets as well; a scan for one chart has only the next limit
ENTRIES_MAX = 200_000  # changes and buckets of all series in a segment
RAW_MAX = 20_000  # single numbers of a series that a scan keeps
INDEX_BYTES_MAX = 16 * 1024 * 1024
_BLOCK_SERIES = 64
_BLOCK_BYTES_MAX = 64 * 1024 * 1024

Bucket = tuple[int, int, float, float, float]
"""Its number since 1970, how many values it has, their sum, the least and the largest."""
Change = tuple[int, str | None, str]
"""Time, value, and why there is none or why it is doubtful: see `Sample`."""


class SegmentSeries(msgspec.Struct, array_like=True):
    """The values of a series in a segment. changes: the first value, each other one, and the first one after the return
    of any source; of numbers, only the first one after a time without a value. complete: whether it has all of them.
    numeric: whether the last value is a number of a reading; raw: single numbers, of a scan that keeps them."""

    key: str
    buckets: list[Bucket] = []
    changes: list[Change] = []
    complete: bool = True
    numeric: bool = False
    raw: list[tuple[int, float]] = []


class LogBreak(msgspec.Struct, frozen=True, array_like=True):
    """Records are lost before a time; from_us: 0 for the time of the last record of the segment before."""

    from_us: int
    to_us: int
    reason: str


class SegmentValues(msgspec.Struct):
    """begin_us, end_us: times of its first and last record; from_us, to_us: of all its values, too. whole: whether all
    series are in it; damage: why its end cannot be read."""

    begin_us: int = 0
    end_us: int = 0
    from_us: int = 0
    to_us: int = 0
    whole: bool = True
    breaks: list[LogBreak] = []
    series: dict[str, SegmentSeries] = {}
    damage: str = ""


class IndexedSegment(msgspec.Struct, frozen=True, array_like=True):
    """A segment of an index, by its name. bytes: its size; the other members are those of `SegmentValues`."""

    epoch: int
    first: int
    last: int
    bytes: int
    begin_us: int
    end_us: int
    from_us: int
    to_us: int
    whole: bool
    breaks: list[LogBreak]
    damage: str

    @property
    def begin(self) -> Place:
        return self.epoch, self.first


class IndexHead(msgspec.Struct, frozen=True):
    """segments: oldest first; blocks: first key, offset behind the head, and length."""

    v: int
    segments: list[IndexedSegment]
    blocks: list[tuple[str, int, int]]


class IndexedSeries(msgspec.Struct, array_like=True):
    """A series in the segments of an index. parts: by the number of the segment in the head."""

    key: str
    parts: list[tuple[int, SegmentSeries]]


# --- values of a segment ----------------------------------------------------------------------------------


class _Collector:
    """Takes samples in the order of the log. changes_max: of a series; span: times of numbers that are kept singly, for
    one chart."""

    def __init__(self, changes_max: int, span: tuple[int, int] | None) -> None:
        self.found = SegmentValues(breaks=[], series={})
        self._changes_max = changes_max
        self._span = span
        self._last: dict[str, tuple[str | None, str, int]] = {}  # value, reason, returns of sources before it
        self._returns = self._entries = 0

    def add(self, sample: Sample) -> None:
        key, found = sample.key.text(), self.found
        found.from_us, found.to_us = min(found.from_us, sample.at_us), max(found.to_us, sample.at_us)
        series = found.series.get(key)
        if series is None:
            if len(found.series) >= SERIES_MAX:
                found.whole = False
                return
            series = found.series[key] = SegmentSeries(key, [], [], True, False, [])
        number = sample.number
        series.numeric = number is not None or (series.numeric and sample.value is None)
        if number is not None:
            self._count(series, sample.at_us, number)
        value = sample.value if number is None else "number"
        if sample.key.role == SOURCE:
            self._returns += 1
        state = value, sample.reason, self._returns
        if self._last.get(key) == state:
            return
        # A value of unknown age confirms nothing: the next one still is the first after the return.
        self._last[key] = state if not sample.reason or value is None else (value, sample.reason, -1)
        if self._has_room(series, len(series.changes)):
            series.changes.append((sample.at_us, sample.value, sample.reason))

    def _count(self, series: SegmentSeries, at_us: int, number: float) -> None:
        bucket = at_us // BUCKET_US
        if self._span and self._span[0] <= at_us <= self._span[1] and len(series.raw) < RAW_MAX:
            series.raw.append((at_us, number))
        if series.buckets and series.buckets[-1][0] == bucket:
            _, count, total, least, most = series.buckets[-1]
            series.buckets[-1] = bucket, count + 1, total + number, min(least, number), max(most, number)
        elif self._has_room(series, len(series.buckets)):
            # Readings may come out of order; who reads them adds up buckets of the same number.
            series.buckets.append((bucket, 1, number, number, number))

    def _has_room(self, series: SegmentSeries, count: int) -> bool:
        self._entries += 1
        series.complete = series.complete and count < self._changes_max and self._entries <= ENTRIES_MAX
        return series.complete


def values_of(
    segment: Segment,
    end: int | None = None,
    subjects: Collection[Term] | None = None,
    newest: Place | None = None,
    span: tuple[int, int] | None = None,
) -> SegmentValues:
    """What a segment has, read from its records. end: as for `CheckedLines`. subjects: only these; newest: the last
    record that may be shown; span: times of numbers that are kept singly. Raises ChangeLogError."""
    lines = CheckedLines(segment, end)
    collector = _Collector(CHANGES_MAX if subjects is None else ENTRIES_MAX, span)
    found = collector.found
    wanted = None if subjects is None else [subject.encode() for subject in subjects]
    first = last = b""
    for line in lines:
        first, last = first or line, line
        if wanted is not None and b'"gap":' not in line and not any(subject in line for subject in wanted):
            continue
        record = _record(line, segment)
        if newest is not None and (record.epoch, record.seq) > newest:
            break
        if record.gap is not None and record.gap.last is None:
            found.breaks.append(LogBreak(found.end_us, record.at_us, record.gap.reason))
        if not found.begin_us:
            found.begin_us = found.from_us = found.to_us = _record(first, segment).at_us
        found.end_us = record.at_us
        found.from_us, found.to_us = min(found.from_us, found.end_us), max(found.to_us, found.end_us)
        for sample in samples_of(record):
            if subjects is None or sample.key.subject in subjects:
                collector.add(sample)
    if last:
        begin_us, found.end_us = _record(first, segment).at_us, _record(last, segment).at_us
        if not found.begin_us:
            found.begin_us = found.from_us = found.to_us = begin_us
        found.from_us, found.to_us = min(found.from_us, found.end_us), max(found.to_us, found.end_us)
    found.damage = lines.reason if segment.is_sealed else ""
    return found


def _record(line: bytes, segment: Segment) -> LoggedValues:
    try:
        return decode_values(check(line) + b"}")
    except msgspec.DecodeError as error:
        hint = "`lamplighter verify` has details"
        raise ChangeLogError(f"not a record: {error}", path=segment.path, hint=hint) from error


# --- the file ----------------------------------------------------------------------------------------------


class IndexFile(NamedTuple):
    """A file of the folder. name: the epoch, the first record of its first segment, the last one of its last."""

    path: Path
    epoch: int
    first: int
    last: int

    def covers(self, other: IndexFile) -> bool:
        return self.epoch == other.epoch and self.first <= other.first and other.last <= self.last


def index_files(data: Path) -> list[IndexFile]:
    """The files of the folder in the order of their records; none that another one covers."""
    found: list[IndexFile] = []
    with suppress(FileNotFoundError):
        for path in (data / FOLDER).iterdir():
            if (named := _NAME.fullmatch(path.name)) is not None:
                epoch, first, last = map(int, named.groups())
                found.append(IndexFile(path, epoch, first, last))
    found.sort(key=lambda file: (file.epoch, file.first, -file.last))
    widest: list[IndexFile] = []
    for file in found:
        if not widest or not widest[-1].covers(file):
            widest.append(file)
    return widest


class SeriesIndex:
    """An index, opened. Raises ValueError if it cannot be used."""

    def __init__(self, path: Path) -> None:
        try:
            self._content = read_file(path, INDEX_BYTES_MAX, follow=False)
        except OSError as error:
            raise ValueError(f"no index: {error}") from error
        end = self._content.find(b"\n")
        head = self._content[9:end]
        if end < 0 or self._content[:9] != b"%08x " % google_crc32c.value(head):
            raise ValueError("damaged")
        try:
            self.head = _decode_head(head)
        except msgspec.DecodeError as error:
            raise ValueError(f"not an index: {error}") from error
        if self.head.v != VERSION:
            raise ValueError("of another version")
        self._begin = end + 1

    def series(self, keys: Iterable[str]) -> dict[int, list[SegmentSeries]]:
        """Those of the keys that it has, by the number of the segment. Raises ValueError if it is damaged."""
        blocks: dict[int, list[str]] = {}
        firsts = [first for first, _, _ in self.head.blocks]
        for key in keys:
            number = bisect_right(firsts, key) - 1
            if number >= 0:
                blocks.setdefault(number, []).append(key)
        found: dict[int, list[SegmentSeries]] = {}
        for number, some in blocks.items():
            text = self._block(number)
            for key in some:
                # A quote within a string has a backslash before it, so only a line of this key has this text.
                begin = text.find(b'["%s",' % _encode(key)[1:-1])
                if begin >= 0:
                    end = text.find(b"\n", begin)
                    for segment, series in _decode(text[begin : None if end < 0 else end]).parts:
                        found.setdefault(segment, []).append(series)
        return found

    def all_series(self) -> Iterator[IndexedSeries]:
        """All of them, by key. Raises ValueError if it is damaged."""
        for number in range(len(self.head.blocks)):
            for line in self._block(number).split(b"\n"):
                yield _decode(line)

    def _block(self, number: int) -> bytes:
        _, offset, length = self.head.blocks[number]
        data = self._content[self._begin + offset : self._begin + offset + length]
        try:
            return _decompress(data, _BLOCK_BYTES_MAX)
        except zstandard.ZstdError as error:
            raise ValueError(f"damaged: {error}") from error


def index_bytes(covered: list[IndexedSegment], series: Iterable[IndexedSeries]) -> bytes:
    """The bytes of an index. series: by key."""
    blocks: list[tuple[str, int, int]] = []
    content = []
    offset = 0
    compressor = zstandard.ZstdCompressor(level=3, write_checksum=True)
    rest = iter(series)
    while some := list(islice(rest, _BLOCK_SERIES)):
        data = compressor.compress(b"\n".join(map(_encode, some)))
        blocks.append((some[0].key, offset, len(data)))
        content.append(data)
        offset += len(data)
    head = _encode(IndexHead(VERSION, covered, blocks))
    return b"".join([b"%08x " % google_crc32c.value(head), head, b"\n", *content])


def _decompress(data: bytes, most: int) -> bytes:
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=most)


_NAME = re.compile(r"([0-9]{1,9})-([0-9]{12})-([0-9]{12})\.idx")
_encode = msgspec.json.Encoder().encode
_decode_head = msgspec.json.Decoder(IndexHead).decode
_decode = msgspec.json.Decoder(IndexedSeries).decode
