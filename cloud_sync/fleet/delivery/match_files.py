"""The files of a batch of `matches`, read with pyarrow."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

from lamplighter.cloud_sync.fleet.delivery.notifications import Match
from lamplighter.cloud_sync.fleet.lake import Batches, TableBatch
from lamplighter.cloud_sync.fleet.lake.batches import MergedBatch
from lamplighter.cloud_sync.fleet.lake.match_batches import MatchSpan
from lamplighter.cloud_sync.fleet.lazy import pa, pc
from lamplighter.engine.errors import ConfigurationError, UpstreamError

_COLUMNS = list(Match.__struct_fields__)


class DamagedMatchesError(UpstreamError):
    """A file or a manifest is missing or damaged. first, last: numbers of the batches whose rows cannot be read."""

    def __init__(self, text: str, first: str, last: str) -> None:
        super().__init__(text)
        self.first = first
        self.last = last


class RowGroup(NamedTuple):
    """The rows of a batch in a row group of a file.

    path: of the file; number: in the file; begin, end: the rows of the batch in the group; first: the number of the
    first of them in the batch.
    """

    path: str
    number: int
    begin: int
    end: int
    first: int

    def row_of(self, row: int) -> int:
        """The number in the batch of a row of the group."""
        return self.first + row - self.begin


class BatchRows(NamedTuple):
    """Where the rows of a batch are, and its number of matches by subscription. written: seconds since 1970, of a
    merged batch."""

    groups: tuple[RowGroup, ...]
    counts: Mapping[str, int]
    written: float | None

    @classmethod
    def none(cls) -> BatchRows:
        return cls((), {}, None)


class MatchFiles:
    """Reads manifests and files of `matches`."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def content(self, span: MatchSpan) -> dict[str, BatchRows]:
        """The rows of each batch within one; of a batch that was not merged itself. Empty if it was removed.

        Raises DamagedMatchesError, OSError.
        """
        try:
            manifest = self._batches.find(span.id)
        except ConfigurationError as error:
            raise DamagedMatchesError(str(error), span.first, span.last) from error
        if manifest is None:
            return {}
        if span.first == span.last:
            return {span.id: _batch_rows(list(self._groups(manifest, span)), None)}
        return self._merged_rows(manifest, span)

    def _merged_rows(self, manifest: TableBatch, span: MatchSpan) -> dict[str, BatchRows]:
        path = self._batches.lake.path(self._batches.name, "_batches", f"{span.id}.json")
        names = [one.id for one in manifest.merged]
        groups = list(self._groups(manifest, span))
        rows = sum(group.end for group, _ in groups)
        if sorted(set(names)) != names or sum(one.rows for one in manifest.merged) != rows:
            raise DamagedMatchesError(
                f"{path}: not the manifest of a merged batch of {rows} rows; restore it", span.first, span.last
            )
        return dict(_divide(manifest.merged, groups))

    def _groups(self, manifest: TableBatch, span: MatchSpan) -> Iterator[tuple[RowGroup, Any]]:
        """The row groups of a batch, each with the subscriptions of its rows."""
        from pyarrow.parquet import ParquetFile

        first = 0
        for name in manifest.files:
            path = self._batches.lake.path(self._batches.name, name)
            with _damage(path, span), self._batches.lake.fs.open(path, "rb") as opened:
                file = ParquetFile(opened)
                for number in range(file.num_row_groups):
                    column = file.read_row_group(number, ["subscription"], use_threads=False).column(0)
                    yield RowGroup(path, number, 0, len(column), first), column
                    first += len(column)

    def rows(self, group: RowGroup, span: MatchSpan) -> pa.Table:
        """The rows of a row group, with ``ts`` as milliseconds since 1970. Raises DamagedMatchesError, OSError."""
        from pyarrow.parquet import ParquetFile

        with _damage(group.path, span), self._batches.lake.fs.open(group.path, "rb") as opened:
            read = ParquetFile(opened).read_row_group(group.number, _COLUMNS, use_threads=False)
            return _with_milliseconds(read.select(_COLUMNS))


def _divide(merged: list[MergedBatch], groups: list[tuple[RowGroup, Any]]) -> Iterator[tuple[str, BatchRows]]:
    """The rows of each merged batch."""
    rest = iter(groups)
    group, column = RowGroup("", 0, 0, 0, 0), cast("Any", None)
    begin = 0
    for one in merged:
        parts = []
        first = 0
        while first < one.rows:
            if begin == group.end:
                (group, column), begin = next(rest), 0
            end = min(group.end, begin + one.rows - first)
            parts.append((group._replace(begin=begin, end=end, first=first), column.slice(begin, end - begin)))
            first, begin = first + end - begin, end
        yield one.id, _batch_rows(parts, one.written)


def _batch_rows(parts: list[tuple[RowGroup, Any]], written: float | None) -> BatchRows:
    """parts: row groups, each with the subscriptions of the rows."""
    counts: Counter[str] = Counter()
    for _, column in parts:
        for one in pc.value_counts(column).to_pylist():
            counts[one["values"]] += one["counts"]
    return BatchRows(tuple(group for group, _ in parts), counts, written)


def _with_milliseconds(rows: Any) -> Any:
    """The table with ``ts`` as milliseconds since 1970."""
    number = rows.schema.get_field_index("ts")
    times = rows.column(number)
    rounded = times.cast(pa.timestamp("ms", times.type.tz), safe=False)
    return rows.set_column(number, "ts", rounded.cast(pa.int64()))


@contextlib.contextmanager
def _damage(path: str, span: MatchSpan) -> Iterator[None]:
    """Turns the errors of a damaged or missing file into DamagedMatchesError; others may pass by themselves."""
    try:
        yield
    except DamagedMatchesError:
        raise
    except (pa.ArrowException, KeyError, OSError, ValueError) as error:
        told = (getattr(error, "strerror", None) or str(error)).rstrip(". ")
        text = (
            f"{path}: the matches cannot be read: {told}; restore the file, or remove the manifest of its batch to "
            "skip its matches"
        )
        # Errors of a damaged file have no number, and those of a file system have one.
        lasting = not isinstance(error, OSError) or error.errno is None or isinstance(error, FileNotFoundError)
        if lasting:
            raise DamagedMatchesError(text, span.first, span.last) from error
        raise UpstreamError(text) from error
