"""Rewrites the batches of a table without the removed rows, with pyarrow.

A batch keeps its id, so what refers to it stays valid. New files are written beside the old ones; then the manifest is
replaced, which is atomic; then files that no manifest names are removed. After a kill, a repetition continues.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import msgspec

from lamplighter.cloud_sync.fleet.deletion.selection import OfGateway, OutdatedRecords, Selection
from lamplighter.cloud_sync.fleet.lake import Batches, Lake, TableBatch
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.lazy import pa, pc
from lamplighter.cloud_sync.fleet.tables.facts import name_of
from lamplighter.engine.errors import UpstreamError

_FACT = ("gw", "s", "p", "o", "g")


def rows_to_remove(lake: Lake, name: str, selection: Selection) -> int:
    """The number of rows of a table that a selection removes."""
    batches = table(lake, name)
    return sum(_count(batches, file, name, selection) for batch in batches.live() for file in batch.files)


def rewrite(lake: Lake, name: str, selection: Selection) -> int:
    """Removes rows and segments from every batch of a table. Returns the number of changed rows."""
    # Rows of `matches` are blanked, because the cursors of delivery count rows.
    batches = table(lake, name)
    removed = 0
    for batch in batches.all():
        files: list[str] = []
        rows = batch.rows
        for file in batch.files:
            count = _count(batches, file, name, selection)
            if count == 0:
                files.append(file)
                continue
            removed += count
            rests: list[int] = []
            files += write_parts(batches, file.rpartition("/")[0], _rests(batches, file, name, selection, rests))
            rows += sum(rests)
        kept = msgspec.structs.replace(
            batch,
            files=files,
            rows=rows,
            segments=[one for one in batch.segments if not _leaves(name, one, selection)],
            landings={one: number for one, number in batch.landings.items() if not selection.segment(one)},
            refused=[one for one in batch.refused if not selection.segment(one.segment)],
            ahead=_other_gateways(batch.ahead, selection),
        )
        if kept != batch:
            batches.commit(kept)
    remove_unnamed(batches)
    return removed


def _rests(batches: Batches, file: str, name: str, selection: Selection, growth: list[int]) -> Iterator[pa.Table]:
    """The row groups of a file as they shall be. growth: gets the difference of their numbers of rows."""
    for rows in _row_groups(batches, file):
        rest = selection.rest(name, rows)
        growth.append(rest.num_rows - rows.num_rows)
        yield rest


def _leaves(name: str, segment: str, selection: Selection) -> bool:
    # The segments of facts are snapshots.
    return selection.snapshot(segment) if name == "facts" else selection.segment(segment)


def _other_gateways(ahead: dict[str, int], selection: Selection) -> dict[str, int]:
    gone = selection.gateway if isinstance(selection, OfGateway) else None
    return {gateway: number for gateway, number in ahead.items() if gateway != gone}


def _count(batches: Batches, file: str, name: str, selection: Selection) -> int:
    columns = selection.columns(name)
    if not columns:
        return 0
    found = 0
    for rows in _row_groups(batches, file, columns):
        found += int(pc.sum(selection.removal_mask(name, rows)).as_py() or 0)
    return found


def write_parts(batches: Batches, folder: str, parts: Iterator[pa.Table]) -> list[str]:
    """Writes rows to a new file in a folder of the table. Returns its name; none without rows."""
    from pyarrow.parquet import ParquetWriter

    name = f"{folder}/part-{uuid4().hex}.parquet"
    with contextlib.ExitStack() as opened:
        writer: Any = None
        for part in parts:
            if part.num_rows:
                if writer is None:
                    batches.lake.fs.makedirs(batches.lake.path(batches.name, folder), exist_ok=True)
                    file = opened.enter_context(batches.lake.fs.open(batches.lake.path(batches.name, name), "wb"))
                    writer = opened.enter_context(ParquetWriter(file, part.schema, compression="zstd"))
                writer.write_table(part)
    return [] if writer is None else [name]


def _row_groups(batches: Batches, file: str, columns: list[str] | None = None) -> Iterator[pa.Table]:
    from pyarrow.parquet import ParquetFile

    path = batches.lake.path(batches.name, file)
    try:
        with batches.lake.fs.open(path, "rb") as opened:
            parquet = ParquetFile(opened)
            for number in range(parquet.num_row_groups):
                yield parquet.read_row_group(number, columns).replace_schema_metadata(None)
    except (pa.ArrowException, FileNotFoundError) as error:
        raise UpstreamError(
            f"{path}: not readable: {error}; restore it, or remove the manifest of its batch"
        ) from error


def remove_unnamed(batches: Batches) -> None:
    """Removes the files of a table that no manifest names. No other process may read or write."""
    fs, lake = batches.lake.fs, batches.lake
    named = {file for batch in batches.all() for file in batch.files}
    for folder in [name for name in lake.names(batches.name) if name.startswith("batch=")]:
        names = lake.names(batches.name, folder)
        live = {name for name in names if f"{folder}/{name}" in named}
        if not live:
            fs.rm(lake.path(batches.name, folder), recursive=True)
            continue
        for name in names:
            of = name.removeprefix(".").removesuffix(".crc")
            if name not in live and of not in live and not name.startswith("_"):
                fs.rm(lake.path(batches.name, folder, name), recursive=True)


# --- descriptions --------------------------------------------------------------------------------------------


def collapse(lake: Lake, selection: OutdatedRecords, *, dry_run: bool = False) -> int:
    """Replaces the facts up to the cuts by those that still hold there, stated at the cut. Returns how many go.

    One manifest replaces all others, so a kill leaves the old facts or the new ones.
    """
    facts = table(lake, "facts")
    live = facts.live()
    parts = [part for batch in live for file in batch.files for part in _row_groups(facts, file)]
    if not parts or not selection.cuts:
        return 0
    before = pa.concat_tables(parts)
    after = _still_valid(before, selection)
    if not dry_run and after != before:
        id = f"retained-{name_of(one.id for one in live)}"
        facts.commit(
            TableBatch(
                id=id,
                files=write_parts(facts, f"batch={id}", iter([after])),
                rows=after.num_rows,
                replaces=sorted({one.id for one in live} | {name for one in live for name in one.replaces}),
                segments=sorted({name for one in live for name in one.segments if not selection.snapshot(name)}),
                sources=sorted({name for one in live for name in one.sources}),
            )
        )
    if not dry_run:
        facts.sweep()
    return int(before.num_rows - after.num_rows)


def collapse_streams(lake: Lake, selection: OutdatedRecords) -> None:
    """Lets the versions of streams that are valid at a cut begin there, as their facts do."""
    # Otherwise `silver` would find them changed, and write all observations again.
    streams = table(lake, "streams")
    for batch in streams.all():
        parts = [part for file in batch.files for part in _row_groups(streams, file)]
        moved = [_move_cuts(part, selection) for part in parts]
        if parts != moved:
            files = write_parts(streams, f"batch={batch.id}", iter(moved))
            streams.commit(msgspec.structs.replace(batch, files=files))
    remove_unnamed(streams)


def _still_valid(rows: pa.Table, selection: OutdatedRecords) -> pa.Table:
    """FACTS: of those up to a cut, the quads that hold there, each as it was added."""
    old = selection.up_to(rows, "epoch", "seq").to_pylist()
    values = list(zip(*(rows.column(name).to_pylist() for name in (*_FACT, "epoch", "seq", "added")), strict=True))
    first: dict[tuple[Any, ...], int] = {}
    for number in sorted((number for number, is_old in enumerate(old) if is_old), key=lambda one: values[one][5:]):
        if values[number][7]:
            first.setdefault(values[number][:5], number)  # snapshots state it again
        else:
            first.pop(values[number][:5], None)
    stay = set(first.values())
    kept = rows.filter(pa.array([not is_old or number in stay for number, is_old in enumerate(old)], pa.bool_()))
    return _move_cuts(kept, selection)


def _move_cuts(rows: pa.Table, selection: OutdatedRecords) -> pa.Table:
    """The rows, with the place of the cut instead of an earlier one."""
    if not selection.cuts:
        return rows
    cuts = selection.cuts
    places = [
        max((epoch, seq), cuts[gw].records) if gw in cuts else (epoch, seq)
        for gw, epoch, seq in zip(*(rows.column(name).to_pylist() for name in ("gw", "epoch", "seq")), strict=True)
    ]
    for part, name in enumerate(("epoch", "seq")):
        number = rows.schema.get_field_index(name)
        field = rows.schema.field(number)
        rows = rows.set_column(number, field, pa.chunked_array([pa.array([one[part] for one in places], field.type)]))
    return rows
