"""Makes the index of values (`history.series_index`), newest segments first, and larger files of small ones."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from heapq import merge
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from lamplighter.engine.errors import ChangeLogError
from lamplighter.gateway.history.series_index import (
    FOLDER,
    INDEX_BYTES_MAX,
    IndexedSegment,
    IndexedSeries,
    IndexFile,
    SegmentSeries,
    SeriesIndex,
    index_bytes,
    index_files,
    values_of,
)
from lamplighter.gateway.log.reader import Segment, ends, segments
from lamplighter.gateway.log.snapshots import Place

MERGED = 24
"""Segments of a merged index: of a day, where each has an hour."""
MERGED_BYTES_MAX = INDEX_BYTES_MAX // 4


class IndexStep(msgspec.Struct, frozen=True):
    """What is to be done next. name: of the file that was made, "" for none; more: whether something is left to do;
    obsolete: files that are not needed."""

    name: str
    more: bool
    obsolete: list[str]


def next_step(data: Path) -> tuple[IndexStep, bytes]:
    """The next file of the folder with its content: of the newest segments that have none, or a merged one."""
    sealed = {segment.begin: segment for segment in segments(data / "log") if segment.is_sealed}
    usable: dict[IndexFile, int] = {}  # with the number of its segments; their contents would fill the memory
    indexed: set[Place] = set()
    for file in index_files(data):
        with suppress(ValueError):
            covered = SeriesIndex(file.path).head.segments
            some = [one for one in covered if one.begin in sealed]
            if some and all(_is_current(one, sealed[one.begin]) for one in some):
                usable[file] = len(covered)
                indexed.update(one.begin for one in some)
    needed = {file.path.name for file in usable}
    folder = data / FOLDER
    obsolete = sorted({path.name for path in folder.iterdir()} - needed) if folder.is_dir() else []
    missing = [segment for begin, segment in sealed.items() if begin not in indexed]
    made: list[_SegmentTable] = []
    while missing and not made:
        epoch_ends = ends(sealed.values())
        for segment in _newest_run(missing):
            with suppress(ChangeLogError, OSError):  # its charts say that it cannot be read, or it is gone
                made.append(_table_of(segment, epoch_ends.get(segment.name.epoch)))
    if not made:
        run = _mergeable([file for file, count in usable.items() if count == 1])
        try:
            made = [_table_in(SeriesIndex(file.path)) for file in run]
        except ValueError:  # one of them is damaged, and made again
            return IndexStep("", True, sorted({*obsolete, *(file.path.name for file in run)})), b""
    if not made:
        return IndexStep("", False, obsolete), b""
    name = f"{made[0].indexed.epoch}-{made[0].indexed.first:012d}-{made[-1].indexed.last:012d}.idx"
    content = _index_bytes(made)
    if len(content) > INDEX_BYTES_MAX:  # nothing would read it; its charts read the segments
        content = _index_bytes([_SegmentTable(replace(table.indexed, whole=False), []) for table in made])
    return IndexStep(name, True, [one for one in obsolete if one != name]), content


class _SegmentTable(NamedTuple):
    """What one segment has. series: by key."""

    indexed: IndexedSegment
    series: list[SegmentSeries]


def _is_current(indexed: IndexedSegment, segment: Segment) -> bool:
    with suppress(OSError):
        return segment.name.last == indexed.last and segment.path.stat().st_size == indexed.bytes
    return False


def _newest_run(missing: list[Segment]) -> list[Segment]:
    """Takes the newest segments, oldest first, that follow each other and have few bytes together."""
    run = [missing.pop()]
    size = _size(run[0])
    while missing and len(run) < MERGED:
        before = missing[-1]
        size += _size(before)
        if (before.name.epoch, (before.name.last or 0) + 1) != run[0].begin or size > MERGED_BYTES_MAX:
            break
        run.insert(0, missing.pop())
    return run


def _size(segment: Segment) -> int:
    with suppress(OSError):
        return segment.path.stat().st_size
    return 0


def _table_of(segment: Segment, end: int | None) -> _SegmentTable:
    """Reads a sealed segment. Raises ChangeLogError, OSError."""
    size = segment.path.stat().st_size
    found = values_of(segment, end)
    epoch, first, last = segment.name
    indexed = IndexedSegment(
        epoch,
        first,
        last or 0,
        size,
        found.begin_us,
        found.end_us,
        found.from_us,
        found.to_us,
        found.whole,
        found.breaks,
        found.damage,
    )
    return _SegmentTable(indexed, sorted(found.series.values(), key=lambda one: one.key))


def _table_in(index: SeriesIndex) -> _SegmentTable:
    """Of an index of one segment. Raises ValueError if it is damaged."""
    return _SegmentTable(index.head.segments[0], [series.parts[0][1] for series in index.all_series()])


def _mergeable(files: Sequence[IndexFile]) -> list[IndexFile]:
    """The first `MERGED` files of one segment that follow each other and are not too large together; else none."""
    run: list[IndexFile] = []
    for file in files:
        if run and (run[-1].epoch, run[-1].last + 1) != (file.epoch, file.first):
            run.clear()
        run.append(file)
        del run[:-MERGED]
        if len(run) == MERGED and sum(one.path.stat().st_size for one in run) <= MERGED_BYTES_MAX:
            return run
    return []


def _index_bytes(tables: Sequence[_SegmentTable]) -> bytes:
    numbered = [[(one.key, number, one) for one in table.series] for number, table in enumerate(tables)]
    rows = groupby(merge(*numbered, key=lambda row: row[:2]), key=lambda row: row[0])
    series = (IndexedSeries(key, [(number, one) for _, number, one in some]) for key, some in rows)
    return index_bytes([table.indexed for table in tables], series)
