"""Reads the table `matches` in the order of its batches, with pyarrow."""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from lamplighter.cloud_sync.fleet.delivery.notifications import Match, MatchNotification, MatchPosition
from lamplighter.cloud_sync.fleet.lake import Lake, TableBatch
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.engine.errors import UpstreamError

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_DIGITS = 12
DECODED_BYTES_MAX = 64 * 1024 * 1024
"""Of decoded row groups in memory. The one that is being read may be larger."""
BATCHES_KEPT = 2000
"""Batches whose layout and numbers of matches stay in memory."""
LISTED_S = 60.0
"""Interval of listings of the folder."""
WALKED_MAX = 200
"""Batches that one `MatchTable.chunk` passes at most."""
_ROW_BYTES = 400
"""What a match takes besides its terms."""
_ROWS_AT_ONCE = 128
_COLUMNS = list(Match.__struct_fields__)


class ChunkBounds(NamedTuple):
    """What is delivered at once: at most so many matches, and at most so many characters or one match."""

    matches: int
    characters: int


class MatchChunk(NamedTuple):
    """The next matches of a subscription, all from one batch.

    position: after the batches without matches that were passed, if there are no matches.
    """

    notifications: list[MatchNotification]
    position: MatchPosition


class _RowGroup(NamedTuple):
    """path: of its file; number: in the file; first: its first row, counted in the batch; rows: their number."""

    path: str
    number: int
    first: int
    rows: int


class _Layout(NamedTuple):
    """The row groups of a batch, and its number of matches by subscription."""

    groups: list[_RowGroup]
    counts: Mapping[str, int]


class MatchTable:
    """The table `matches` of a lake. It is for one thread at a time, and only reads.

    monotonic: a clock in seconds. Every method may raise UpstreamError, ConfigurationError or OSError.
    """

    def __init__(self, lake: Lake, monotonic: Callable[[], float]) -> None:
        self._lake = lake
        self._batches = table(lake, "matches")
        self._monotonic = monotonic
        self._layouts: OrderedDict[str, _Layout] = OrderedDict()
        self._decoded: OrderedDict[tuple[str, int], pa.Table] = OrderedDict()
        self._listed: list[str] = []
        self._listed_at: float | None = None

    def after(self, batch: str) -> str | None:
        """The id of the batch after one; None if there is none yet. "" stands before the first batch.

        The ids are ascending numbers, mostly without holes. So the next number is looked up first. Only if it does not
        exist is the folder listed, at most every `LISTED_S`.
        """
        if batch.isdecimal():
            following = f"{int(batch) + 1:0{BATCH_DIGITS}d}"
            if following in self._layouts or self._batches.find(following) is not None:
                return following
        now = self._monotonic()
        if self._listed_at is None or now - self._listed_at >= LISTED_S or not self._listed:
            self._listed, self._listed_at = self._batches.ids(), now
        place = bisect_right(self._listed, batch)
        return self._listed[place] if place < len(self._listed) else None

    def last(self) -> str:
        """The id of the last batch; "" if there is none. Lists the folder."""
        self._listed, self._listed_at = self._batches.ids(), self._monotonic()
        return self._listed[-1] if self._listed else ""

    def counts(self, batch: str) -> Mapping[str, int]:
        """The number of matches in a batch by subscription."""
        return self._layout(batch).counts

    def written(self, batch: str) -> float | None:
        """When a batch was written, in seconds since 1970; None if the file system does not tell."""
        return self._lake.modified(self._batches.name, "_batches", f"{batch}.json")

    def waiting(self, subscription: str, position: MatchPosition, until: str) -> int:
        """The number of matches of a subscription after a position, up to the end of a batch."""
        found, batch = 0, position.batch
        if batch:
            found = sum(len(rows) for _, rows in self._places(subscription, position))
        while (following := self.after(batch)) is not None and following <= until:
            found, batch = found + self.counts(following).get(subscription, 0), following
        return found

    def chunk(self, subscription: str, position: MatchPosition, bounds: ChunkBounds) -> MatchChunk:
        """The next matches of a subscription.

        The end of a chunk depends on its begin and on the table only.
        """
        for _ in range(WALKED_MAX):
            if position.batch:
                found = self._chunk_in_batch(subscription, position, bounds)
                if found:
                    return MatchChunk(found, position)
            following = self.after(position.batch)
            if following is None:
                break
            position = MatchPosition(following, 0)
        return MatchChunk([], position)

    def _chunk_in_batch(
        self, subscription: str, position: MatchPosition, bounds: ChunkBounds
    ) -> list[MatchNotification]:
        found: list[MatchNotification] = []
        characters = 0
        for group, rows in self._places(subscription, position):
            for row, match in self._matches(group, rows):
                characters += _ROW_BYTES + sum(len(term) for terms in match.rows for term in terms if term is not None)
                if found and characters > bounds.characters:
                    return found
                found.append(MatchNotification(match, MatchPosition(position.batch, group.first + row + 1)))
                if len(found) == bounds.matches:
                    return found
        return found

    def _matches(self, group: _RowGroup, rows: list[int]) -> Iterator[tuple[int, Match]]:
        """Some rows of a row group, each with its number in the group."""
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            numbers = rows[start : start + _ROWS_AT_ONCE]
            for number, values in zip(numbers, self._decode(group).take(numbers).to_pylist(), strict=True):
                yield number, Match(**values)

    def _places(self, subscription: str, position: MatchPosition) -> Iterator[tuple[_RowGroup, list[int]]]:
        """The matches of a subscription in a batch after a position: row groups, and rows in them."""
        layout = self._layout(position.batch)
        if subscription not in layout.counts:
            return
        import pyarrow.compute as pc

        for group in layout.groups:
            if group.first + group.rows > position.row:
                column = self._decode(group).column("subscription")
                rows = pc.indices_nonzero(pc.equal(column, subscription)).to_pylist()
                yield group, [row for row in rows if group.first + row >= position.row]

    def _layout(self, batch: str) -> _Layout:
        """Of a batch that was removed: without rows."""
        found = self._layouts.get(batch)
        if found is None:
            manifest = self._batches.find(batch)
            found = _Layout([], {}) if manifest is None else self._read_layout(manifest)
            self._layouts[batch] = found
            if len(self._layouts) > BATCHES_KEPT:
                self._layouts.popitem(last=False)
        return found

    def _read_layout(self, manifest: TableBatch) -> _Layout:
        import pyarrow.compute as pc
        from pyarrow.parquet import ParquetFile

        groups: list[_RowGroup] = []
        counts: Counter[str] = Counter()
        first = 0
        for name in manifest.files:
            path = self._lake.path(self._batches.name, name)
            with _errors(path), self._lake.fs.open(path, "rb") as opened:
                file = ParquetFile(opened)
                for number in range(file.num_row_groups):
                    rows = file.metadata.row_group(number).num_rows
                    groups.append(_RowGroup(path, number, first, rows))
                    first += rows
                    column = file.read_row_group(number, ["subscription"], use_threads=False).column(0)
                    for one in pc.value_counts(column).to_pylist():
                        counts[one["values"]] += one["counts"]
        return _Layout(groups, counts)

    def _decode(self, group: _RowGroup) -> Any:
        key = group.path, group.number
        found = self._decoded.get(key)
        if found is None:
            from pyarrow.parquet import ParquetFile

            with _errors(group.path), self._lake.fs.open(group.path, "rb") as opened:
                read = ParquetFile(opened).read_row_group(group.number, _COLUMNS, use_threads=False)
                found = _with_milliseconds(read.select(_COLUMNS))
            self._decoded[key] = found
            while len(self._decoded) > 1 and sum(rows.nbytes for rows in self._decoded.values()) > DECODED_BYTES_MAX:
                self._decoded.popitem(last=False)
        else:
            self._decoded.move_to_end(key)
        return found


def _with_milliseconds(rows: Any) -> Any:
    """The table with ``ts`` as milliseconds since 1970."""
    import pyarrow as pa

    number = rows.schema.get_field_index("ts")
    times = rows.column(number)
    rounded = times.cast(pa.timestamp("ms", times.type.tz), safe=False)
    return rows.set_column(number, "ts", rounded.cast(pa.int64()))


@contextlib.contextmanager
def _errors(path: str) -> Iterator[None]:
    """Turns the errors of a damaged or missing file into UpstreamError."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, KeyError, OSError, ValueError) as error:
        told = (getattr(error, "strerror", None) or str(error)).rstrip(". ")
        raise UpstreamError(
            f"{path}: the matches cannot be read: {told}; restore the file, or remove the manifest of its batch to "
            "skip its matches"
        ) from error
