"""`lamplighter-fleet compact`: merges many small files into few, also those of landed segments that are in bronze. The
rows of the tables stay the same.

A table's batches become one batch, whose manifest names the batches that it replaces. Readers see either the new batch
or the old ones. The old batches are removed at the end, when every table is done. Until then an interrupted run can be
repeated.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lamplighter.cloud_sync.fleet import session
from lamplighter.cloud_sync.fleet.collection.ledger import set_packed
from lamplighter.cloud_sync.fleet.lake import Batches, Lake, TableBatch, locks, quads_max
from lamplighter.cloud_sync.fleet.lake.delta_log import DELTA_TABLES, follow_all
from lamplighter.cloud_sync.fleet.lake.landed_segments import LandedSegments
from lamplighter.cloud_sync.fleet.lake.tables import SCHEMAS, table
from lamplighter.cloud_sync.fleet.subcommands import add_lake_command
from lamplighter.cloud_sync.fleet.tables.facts import name_of
from lamplighter.cloud_sync.fleet.tables.merged_matches import merge_matches
from lamplighter.cloud_sync.fleet.tables.silver import Silver
from lamplighter.engine.tables import count_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_PER_FILE = 2_000_000


def compact(
    spark: SparkSession,
    lake: Lake,
    say: Callable[[str], None] = lambda line: None,
    now: float | None = None,
    check: Callable[[], None] = lambda: None,
) -> bool:
    """Brings silver up to date, then merges each table into one batch, and matches into few; packs what has landed
    before today. False: some files of matches cannot be read; say has told which. now: in seconds since 1970; check:
    raises if another process may write.

    No other process may write or read.
    """
    Silver(spark, lake, say).update()
    done: dict[str, TableBatch | None] = {"bronze": _compact_table(spark, table(lake, "bronze"), None)}
    for name in ("facts", *(name for name in SCHEMAS if name not in ("bronze", "facts", "matches"))):
        # All of the table's sources are in one batch now.
        source = done["facts" if name == "streams" else "bronze"]
        done[name] = _compact_table(spark, table(lake, name), None if source is None else [source.id])
        say(f"{name}: {count_text(sum(len(batch.files) for batch in table(lake, name).live()), 'file')}")
    unreadable = merge_matches(table(lake, "matches"))
    for line in unreadable:
        say(line)
    follow_all(lake, DELTA_TABLES, say, data_change=False)
    for name in SCHEMAS:
        table(lake, name).sweep()
    ingested = {segment for batch in table(lake, "bronze").all() for segment in batch.segments}

    segments = LandedSegments(lake)

    @functools.cache
    def say_packed() -> None:
        _set_packed(lake, True)

    def before_pack() -> None:
        check()
        say_packed()

    if lake.local and segments.has_packs():  # a ledger that was restored from a backup may not say so
        say_packed()
    segments.pack(ingested, now, say, before_pack)
    return not unreadable


def unpack(lake: Lake, say: Callable[[str], None], check: Callable[[], None] = lambda: None) -> None:
    """Makes files of packed segments, so that earlier versions see them. check: as in `compact`."""
    _set_packed(lake, True)  # it refuses the ledger of a newer version before a pack is removed
    LandedSegments(lake).unpack_all(say, check)
    _set_packed(lake, False)


def _set_packed(lake: Lake, packed: bool) -> None:
    if lake.local:
        set_packed(Path(lake.path()), packed)


def _compact_table(spark: SparkSession, batches: Batches, sources: list[str] | None) -> TableBatch | None:
    """Merges the batches of a table. Returns the resulting batch; None for an empty table."""
    live = batches.live()
    if not live:
        return None
    if len(live) == 1 and (sources is None or live[0].sources == sources):
        return live[0]
    rows = sum(batch.rows for batch in live)
    frame = batches.frame(spark, live)
    order = [name for name in ("gw", "epoch", "seq", "hour") if name in frame.columns]
    ordered = frame.repartitionByRange(max(1, rows // ROWS_PER_FILE), *order)
    return batches.write(
        ordered.sortWithinPartitions(*order),
        TableBatch(
            id=f"compact-{name_of(batch.id for batch in live)}",
            files=[],
            rows=0,
            replaces=sorted({batch.id for batch in live} | {name for batch in live for name in batch.replaces}),
            segments=sorted({segment for batch in live for segment in batch.segments}),
            landings={segment: number for batch in live for segment, number in sorted(batch.landings.items())},
            sources=sorted({source for batch in live for source in batch.sources}) if sources is None else sources,
            refused=[one for batch in live for one in batch.refused],
            quads_max=quads_max(live),
        ),
    )


# --- the command --------------------------------------------------------------------------------------------


def add_commands(commands: Any) -> None:
    """Declares `compact`."""
    parser = add_lake_command(
        commands, "compact", "merge small files of the tables; no reader may be active", _run_compact
    )
    parser.add_argument(
        "--unpack",
        action="store_true",
        help="only make files of packed landed segments again, before an earlier version works on the lake",
    )
    session.add_arguments(parser)


def _run_compact(arguments: argparse.Namespace) -> int:
    lake = Lake.existing(arguments.lake)
    with locks.writing(lake, "compact", locks.BRONZE, locks.SILVER, locks.MATCHES, locks.DELIVERY) as held:
        if arguments.unpack:
            unpack(lake, _say, held.check)
            return 0
        rows = sum(batch.rows for batch in table(lake, "bronze").live())
        with session.engine_of(arguments, "compact", lake, rows=rows) as engine:
            whole = compact(engine, lake, _say, check=held.check)
    return 0 if whole else 1


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
