"""Merges batches of `matches`. A live stream writes one for each second in which something matched.

Neighbours become one batch, whose manifest has the segments of all of them and names them with their numbers of rows.
So every position of a cursor keeps its meaning, and no event is matched again. The rows stay as they are, in the same
order. Spark is not needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from lamplighter.cloud_sync.fleet.lake import Batches, TableBatch
from lamplighter.cloud_sync.fleet.lake.batches import MergedBatch
from lamplighter.cloud_sync.fleet.lake.match_batches import match_schema, match_span
from lamplighter.cloud_sync.fleet.lazy import pa
from lamplighter.engine.errors import UpstreamError

# Of a merged batch; a larger one stays alone. They bound its manifest, and what delivery loses sight of if its file is
# damaged.
BATCHES_MAX, ROWS_MAX, SEGMENTS_MAX = 5_000, 500_000, 50_000
# Of a row group, which delivery reads as a whole.
GROUP_ROWS_MAX, GROUP_BYTES_MAX = 8_192, 4 * 1024 * 1024
_ROWS_AT_ONCE = 256


class _UnreadableError(UpstreamError):
    """A batch that cannot be merged. id: its own."""

    def __init__(self, id: str, reason: str) -> None:
        super().__init__(reason)
        self.id = id


def merge_matches(matches: Batches) -> list[str]:
    """Merges neighbours as far as the bounds allow. Returns a line for each batch with a file that cannot be read.

    Such a batch stays as it is. No other process may read or write. After a kill, a repetition continues: a merged
    batch counts when its manifest is there, and replaces the others from then on.
    """
    matches.sweep()
    live = sorted(matches.live(), key=lambda batch: batch.id)
    unreadable: dict[str, str] = {}
    while group := next((one for one in _groups(live, unreadable) if len(one) > 1), None):
        try:
            merged = _merge(matches, group)
        except _UnreadableError as error:
            unreadable[error.id] = str(error)
            continue
        first = live.index(group[0])
        live[first : first + len(group)] = [merged]
    matches.sweep()
    return list(unreadable.values())


def _groups(live: Sequence[TableBatch], unreadable: dict[str, str]) -> Iterator[list[TableBatch]]:
    """Neighbours that fit into one batch, from the oldest on. A merged batch is not divided."""
    group: list[TableBatch] = []
    for batch in live:
        if batch.id in unreadable or match_span(batch.id) is None:
            yield group
            group = []
        elif group and not _fits([*group, batch]):
            yield group
            group = [batch]
        else:
            group.append(batch)
    yield group


def _fits(group: Sequence[TableBatch]) -> bool:
    return (
        sum(len(one.merged) or 1 for one in group) <= BATCHES_MAX
        and sum(one.rows for one in group) <= ROWS_MAX
        and sum(len(one.segments) for one in group) <= SEGMENTS_MAX
    )


def _merge(matches: Batches, group: Sequence[TableBatch]) -> TableBatch:
    """One batch for several. Raises _UnreadableError."""
    first, last = match_span(group[0].id), match_span(group[-1].id)
    assert first is not None and last is not None
    ahead: dict[str, int] = {}
    for batch in group:
        for gateway, number in batch.ahead.items():
            ahead[gateway] = max(ahead.get(gateway, 0), number)
    whole = TableBatch(
        id=f"{first.first}-{last.last}",
        files=[],
        rows=0,
        replaces=[one.id for one in group],
        segments=sorted({segment for one in group for segment in one.segments}),
        caught_up=[version for one in group for version in one.caught_up],
        ahead=ahead,
        compared=dict(sum((Counter(one.compared) for one in group), Counter())),
        merged=[part for one in group for part in _parts(matches, one)],
    )
    staged = matches.stage_parts(_row_groups(_rows(matches, group)), match_schema(), whole)
    assert staged.rows == sum(part.rows for part in whole.merged), "each row has its place"
    return matches.commit(staged)


def _parts(matches: Batches, batch: TableBatch) -> list[MergedBatch]:
    """The batches with rows that a batch consists of."""
    if batch.merged or not batch.rows:
        return batch.merged
    written = matches.lake.modification_time(matches.name, "_batches", f"{batch.id}.json")
    return [MergedBatch(batch.id, batch.rows, written, bool(batch.ahead))]


def _rows(matches: Batches, group: Sequence[TableBatch]) -> Iterator[pa.Table]:
    """The rows of batches in their order, a few at a time."""
    from pyarrow.parquet import ParquetFile

    schema = match_schema()
    for batch in group:
        found = 0
        for name in batch.files:
            path = matches.lake.path(matches.name, name)
            try:
                with matches.lake.fs.open(path, "rb") as opened:
                    for part in ParquetFile(opened).iter_batches(_ROWS_AT_ONCE, columns=schema.names):
                        found += part.num_rows
                        yield pa.Table.from_batches([part]).select(schema.names).cast(schema)
            except (pa.ArrowException, FileNotFoundError, KeyError, ValueError) as error:
                raise _UnreadableError(batch.id, _problem_text(path, str(error))) from error
            except OSError as error:
                if error.errno is not None:  # of the file system; those of a damaged file have no number
                    raise
                raise _UnreadableError(batch.id, _problem_text(path, str(error))) from error
        if found != batch.rows:
            path = matches.lake.path(matches.name, "_batches", f"{batch.id}.json")
            raise _UnreadableError(
                batch.id, _problem_text(path, f"its files have {found} rows instead of {batch.rows}")
            )


def _problem_text(path: str, reason: str) -> str:
    return f"{path}: not merged: {reason.rstrip('. ')}; restore the file, or remove the manifest of its batch"


def _row_groups(parts: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in tables of the size of a row group."""
    held: list[pa.Table] = []
    rows = size = 0
    for part in parts:
        held.append(part)
        rows, size = rows + part.num_rows, size + part.nbytes
        if rows >= GROUP_ROWS_MAX or size >= GROUP_BYTES_MAX:
            yield pa.concat_tables(held)
            held, rows, size = [], 0, 0
    if held:
        yield pa.concat_tables(held)
