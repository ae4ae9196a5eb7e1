"""Reads the table `matches` in the order of its batches, with pyarrow."""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from lamplighter.cloud_sync.fleet.delivery.match_files import BatchRows, DamagedMatchesError, MatchFiles, RowGroup
from lamplighter.cloud_sync.fleet.delivery.notifications import ALL_ROWS, Match, MatchNotification, MatchPosition
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.lake.match_batches import MatchSpan, match_id, match_spans
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.lazy import pa, pc

# Of decoded row groups in memory. The one that is being read may be larger.
DECODED_BYTES_MAX = 64 * 1024 * 1024
# Batches whose layout and numbers of matches stay in memory; those of one file may be more.
BATCHES_KEPT = 10_000
# Damaged batches that are told of.
DAMAGED_MAX = 20
# Interval of listings of the folder.
LISTED_S = 60.0
# Batches that one `MatchTable.chunk` passes at most.
WALKED_MAX = 200
# What a match takes besides its terms.
_ROW_BYTES = 400
_ROWS_AT_ONCE = 128


class ChunkBounds(NamedTuple):
    """What is delivered at once: at most so many matches, and at most so many characters or one match. written: whether
    it is asked when they were written."""

    matches: int
    characters: int
    written: bool = False


class MatchChunk(NamedTuple):
    """The next matches of a subscription, all from one batch.

    position: after the batches without matches that were passed, if there are no matches.
    """

    notifications: list[MatchNotification]
    position: MatchPosition


class MatchTable:
    """The table `matches` of a lake. It is for one thread at a time, and only reads.

    monotonic: a clock in seconds. Every method may raise DamagedMatchesError, UpstreamError or OSError.
    """

    def __init__(self, lake: Lake, monotonic: Callable[[], float]) -> None:
        self._lake = lake
        self._batches = table(lake, "matches")
        self._files = MatchFiles(self._batches)
        self._monotonic = monotonic
        self._contents: OrderedDict[str, Mapping[str, BatchRows]] = OrderedDict()
        # The keys of the contents, sorted.
        self._ids: dict[str, list[str]] = {}
        self._decoded: OrderedDict[tuple[str, int], pa.Table] = OrderedDict()
        self._spans: list[MatchSpan] = []
        self._listed_at: float | None = None
        self._damaged: dict[str, str] = {}

    @property
    def read_errors(self) -> list[str]:
        """Why batches could not be read when they were read last."""
        return list(self._damaged.values())

    def after(self, batch: str) -> str | None:
        """The id of the batch after one; None if there is none yet. "" stands before the first batch.

        The ids are ascending numbers, mostly without holes. So the next number is looked up first. Only if it does not
        exist is the folder listed, at most every `LISTED_S`.
        """
        while batch.isdecimal():
            following = match_id(int(batch) + 1)
            span = self._span(following)
            if span.first == span.last:
                if following in self._contents or self._content(span):
                    return following
                break
            if (inside := self._within(span, batch)) is not None:
                return inside
            batch = span.last
        now = self._monotonic()
        if self._listed_at is None or now - self._listed_at >= LISTED_S or not self._spans:
            self._list()
        for span in self._spans[bisect_right(self._spans, batch, key=lambda one: one.last) :]:
            inside = span.first if span.first == span.last else self._within(span, batch)
            if inside is not None:
                return inside
        return None

    def last(self) -> str:
        """The number of the last batch; "" if there is none. Lists the folder."""
        self._list()
        return self._spans[-1].last if self._spans else ""

    def counts(self, batch: str) -> Mapping[str, int]:
        """The number of matches in a batch by subscription."""
        return self._rows(batch).counts

    def write_time(self, batch: str) -> float | None:
        """When a batch was written, in seconds since 1970; None if the file system does not tell."""
        if (span := self._span(batch)).id != batch:
            return self._content(span).get(batch, BatchRows.none()).written
        return self._lake.modification_time(self._batches.name, "_batches", f"{batch}.json")

    def waiting(self, subscription: str, position: MatchPosition, until: str) -> int:
        """The number of matches of a subscription after a position, up to the end of a batch, without damaged ones."""
        found, batch = 0, position.batch
        try:
            if batch:
                found = sum(len(rows) for _, rows in self._places(subscription, position))
        except DamagedMatchesError as error:
            batch = error.last
        while True:
            try:
                following = self.after(batch)
                if following is None or following > until:
                    return found
                found, batch = found + self.counts(following).get(subscription, 0), following
            except DamagedMatchesError as error:
                batch = error.last

    def chunk(
        self, subscription: str, position: MatchPosition, bounds: ChunkBounds, until: str | None = None
    ) -> MatchChunk:
        """The next matches of a subscription. until: the last batch to look at.

        The end of a chunk depends on its begin and on the table only.
        """
        for _ in range(WALKED_MAX):
            if position.batch:
                found = self._chunk_in_batch(subscription, position, bounds)
                if found:
                    return MatchChunk(found, position)
            following = self.after(position.batch)
            if until is not None and (following is None or following > until):
                position = max(position, MatchPosition(until, ALL_ROWS))
                break
            if following is None:
                break
            position = MatchPosition(following, 0)
        return MatchChunk([], position)

    def _chunk_in_batch(
        self, subscription: str, position: MatchPosition, bounds: ChunkBounds
    ) -> list[MatchNotification]:
        found: list[MatchNotification] = []
        characters = 0
        written = self.write_time(position.batch) if bounds.written else None
        for group, rows in self._places(subscription, position):
            for row, match in self._matches(position.batch, group, rows):
                characters += _ROW_BYTES + sum(len(term) for terms in match.rows for term in terms if term is not None)
                if found and characters > bounds.characters:
                    return found
                found.append(MatchNotification(match, MatchPosition(position.batch, group.row_of(row) + 1), written))
                if len(found) == bounds.matches:
                    return found
        return found

    def _matches(self, batch: str, group: RowGroup, rows: list[int]) -> Iterator[tuple[int, Match]]:
        """Some rows of a row group, each with its number in the group."""
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            numbers = rows[start : start + _ROWS_AT_ONCE]
            for number, values in zip(numbers, self._decode(batch, group).take(numbers).to_pylist(), strict=True):
                yield number, Match(**values)

    def _places(self, subscription: str, position: MatchPosition) -> Iterator[tuple[RowGroup, list[int]]]:
        """The matches of a subscription in a batch after a position: row groups, and rows in them."""
        if position.row >= ALL_ROWS:  # a batch that was passed need not be readable
            return
        found = self._rows(position.batch)
        if subscription not in found.counts:
            return
        for group in found.groups:
            begin = max(group.begin, group.begin + position.row - group.first)
            if begin < group.end:
                column = self._decode(position.batch, group).column("subscription").slice(begin, group.end - begin)
                yield group, [begin + row for row in pc.indices_nonzero(pc.equal(column, subscription)).to_pylist()]

    # --- what was read

    def _list(self) -> None:
        self._spans, self._listed_at = match_spans(self._batches.ids()), self._monotonic()

    def _span(self, batch: str) -> MatchSpan:
        """The batch that has the rows of one: a merged one, or itself."""
        number = bisect_left(self._spans, batch, key=lambda one: one.last)
        if number < len(self._spans) and self._spans[number].first <= batch:
            return self._spans[number]
        return MatchSpan(batch, batch, batch)

    def _within(self, span: MatchSpan, batch: str) -> str | None:
        """The first batch behind a number within a merged one; None if it has none."""
        self._content(span)
        ids = self._ids.get(span.id, [])
        number = bisect_right(ids, batch)
        return ids[number] if number < len(ids) else None

    def _rows(self, batch: str) -> BatchRows:
        """Of a batch that was removed: none."""
        return self._content(self._span(batch)).get(batch) or BatchRows.none()

    def _content(self, span: MatchSpan) -> Mapping[str, BatchRows]:
        found = self._contents.get(span.id)
        if found is None:
            with self._damage(span):
                found = self._files.content(span)
            if not found:
                return {}
            self._contents[span.id], self._ids[span.id] = found, list(found)
            while len(self._contents) > 1 and sum(map(len, self._contents.values())) > BATCHES_KEPT:
                del self._ids[self._contents.popitem(last=False)[0]]
        return found

    def _decode(self, batch: str, group: RowGroup) -> Any:
        key = group.path, group.number
        found = self._decoded.get(key)
        if found is None:
            span = self._span(batch)
            with self._damage(span):
                found = self._files.rows(group, span)
            self._decoded[key] = found
            while len(self._decoded) > 1 and sum(rows.nbytes for rows in self._decoded.values()) > DECODED_BYTES_MAX:
                self._decoded.popitem(last=False)
        else:
            self._decoded.move_to_end(key)
        return found

    @contextlib.contextmanager
    def _damage(self, span: MatchSpan) -> Iterator[None]:
        """Keeps why a batch cannot be read, until it can."""
        try:
            yield
        except DamagedMatchesError as error:
            self._damaged.pop(span.id, None)
            if len(self._damaged) < DAMAGED_MAX:
                self._damaged[span.id] = str(error)
            raise
        self._damaged.pop(span.id, None)
