"""Segments -> bronze, one row per record: `lamplighter-fleet ingest` reads the landing log from its frontier on.

While nothing lands, that costs one look at one file, and no Spark. A batch counts when its manifest is there, and the
manifests say which segments are ingested. So records count once, wherever a run is killed, and also if the frontier or
the log is lost. Segments that cannot be read completely are left out and reported; the others go on. A lake without a
landing log, because no collector works on it, is listed instead.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import secrets
import sys
import threading
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from lamplighter.cloud_sync.fleet import session
from lamplighter.cloud_sync.fleet.lake import Batches, Lake, Refused, TableBatch, locks
from lamplighter.cloud_sync.fleet.lake.delta_log import DeltaLog
from lamplighter.cloud_sync.fleet.lake.forgotten import ForgottenGateways
from lamplighter.cloud_sync.fleet.lake.frontier import Frontier
from lamplighter.cloud_sync.fleet.lake.landed_segments import LandedSegments
from lamplighter.cloud_sync.fleet.lake.landings import LandingLine, LandingLog
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.lazy import F
from lamplighter.cloud_sync.fleet.local.session import LocalSession
from lamplighter.cloud_sync.fleet.subcommands import add_lake_command
from lamplighter.cloud_sync.fleet.tables.segment_rows import SegmentRows, segment_rows
from lamplighter.engine.change_log import VERSION, SegmentName, segment_name
from lamplighter.engine.errors import ConfigurationError
from lamplighter.engine.tables import count_text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_QUADS = "ARRAY<ARRAY<STRING>>"
# A line of a segment; other members are ignored. Nested members that are text here stay JSON.
LINE = f"""
    v INT, type STRING, gw STRING, epoch INT, seq BIGINT, ts TIMESTAMP, trusted BOOLEAN, boot STRING,
    boottime_us BIGINT,
    cause STRUCT<kind: STRING, id: STRING, seq: BIGINT>, request STRING,
    graphs STRUCT<created: ARRAY<STRING>, dropped: ARRAY<STRING>>, d {_QUADS}, a {_QUADS}, k {_QUADS},
    timer STRING, cancel STRING, gap STRING, subscribe STRING, unsubscribe STRING
"""

# One bad file must not stop the others. Missing rows are detected afterwards.
_OPTIONS = {"ignoreCorruptFiles": "true", "ignoreMissingFiles": "true"}

FILES_PER_BATCH = 2000

NO_REASONS: Mapping[str, str] = MappingProxyType({})


def records(lines: DataFrame) -> DataFrame:
    """LINE, its `_metadata` and `landed` -> BRONZE. Lines that are not records give rows with gw null."""

    def quads(name: str) -> Column:
        def quad(terms: Column) -> Column:
            return F.struct(*(F.get(terms, F.lit(place)).alias(name) for place, name in enumerate("spog")))

        return F.transform(name, quad).alias(name)

    whole = F.col("v") == VERSION
    for name in ("epoch", "seq", "ts", "type"):
        whole &= F.col(name).isNotNull()
    return lines.select(
        F.when(whole, F.col("gw")).alias("gw"),
        "epoch",
        "seq",
        "ts",
        "trusted",
        "boot",
        "boottime_us",
        "type",
        F.col("cause.kind").alias("cause_kind"),
        F.col("cause.id").alias("cause_id"),
        F.col("cause.seq").alias("cause_seq"),
        "request",
        quads("d"),
        quads("a"),
        quads("k"),
        F.col("graphs.created").alias("created"),
        F.col("graphs.dropped").alias("dropped"),
        "timer",
        "cancel",
        "gap",
        "subscribe",
        "unsubscribe",
        F.substring_index("_metadata.file_path", "/", -2).alias("segment"),
        "landed",
    )


class NewSegments(NamedTuple):
    """Landed segments that are not in bronze. until: the line of the landing log up to which they are all; None: the
    frontier stays where it is."""

    landed: list[LandingLine]
    until: LandingLine | None

    @property
    def segments(self) -> list[str]:
        return [one.segment for one in self.landed]


class Ingest:
    """Writes batches of bronze. say: receives progress lines. files_per_batch: segments of one batch."""

    def __init__(
        self, lake: Lake, say: Callable[[str], None] = lambda line: None, files_per_batch: int = FILES_PER_BATCH
    ) -> None:
        self.lake = lake
        self.bronze: Batches = table(lake, "bronze")
        self.frontier = Frontier(lake)
        self._say = say
        self._files_per_batch = files_per_batch
        self._log = LandingLog(lake)
        self._landed = LandedSegments(lake)
        self._delta_log = DeltaLog(self.bronze, say)
        self._ingested: set[str] | None = None
        self._forgotten = ForgottenGateways.of(lake)
        self.frontier.check(self._log)

    def pending(self) -> NewSegments | None:
        """The segments of the next batch. None: nothing new has landed."""
        if not self._log.exists():
            # What is packed was in bronze, so it is looked for only if the table is lost.
            listed = unread(self.lake, self._segments(), packs=not self._segments())
            waiting = (LandingLine(0, one) for one in listed if one not in self.frontier.unread)
            some = sorted(waiting, key=lambda one: one.segment)[: self._files_per_batch]
            return NewSegments(some, None) if some else None
        while lines := self._log.after(self.frontier.number, self._files_per_batch):
            new = [one for one in lines if self._is_new(one.segment)]
            if new:
                return NewSegments(new, lines[-1])
            self.frontier.advance(lines[-1], self.frontier.unread.values())
        return None

    def take(self, engine: session.Session, new: NewSegments) -> None:
        """Ingests some segments, and moves the frontier behind them."""
        there = []
        for one in new.landed:
            path = self.lake.path("segments", *one.segment.split("/"))
            if self.lake.fs.exists(path) or self._landed.unpack(one.segment):
                there.append(one)
            else:
                self._say(f"gone: {one.segment}; retention has removed it, it is lost, or it is not copied yet")
        if there:
            self._ingest(engine, there)
        # A file that is gone may come: a copy of a lake may have the log before the file.
        waiting = {one.segment: one for one in [*self.frontier.unread.values(), *new.landed]}
        self.frontier.advance(new.until, [one for name, one in waiting.items() if name not in self._segments()])

    def _ingest(self, engine: session.Session, some: Sequence[LandingLine]) -> None:
        """Writes a batch. DuckDB leaves out no file that it cannot read; such files are refused by its reason."""
        try:
            self.batch(self._lines(engine, some), some)
        except Exception as error:
            if not isinstance(engine, LocalSession) or not isinstance(error, engine.error):
                raise
            # It may have been the disk; so each file is read by itself before one is refused.
            said = {one.segment: engine.unreadable(self._lines(engine, [one])) for one in some}
            reasons = {segment: reason for segment, reason in said.items() if reason is not None}
            if not reasons:
                raise
            whole = [one for one in some if one.segment not in reasons]
            self.batch(self._lines(engine, whole) if whole else None, some, reasons)

    def _lines(self, engine: session.Session, some: Sequence[LandingLine]) -> DataFrame:
        files = [self.lake.spark_input("segments", one.segment) for one in some]
        lines = engine.read.schema(LINE).options(**_OPTIONS).json(files).select("*", "_metadata")
        # The collector gives a file the time of its landing.
        landed = F.col("_metadata.file_modification_time") if self._log.exists() else F.lit(None)
        return lines.withColumn("landed", landed.cast("timestamp"))

    def batch(
        self, lines: DataFrame | None, landed: Sequence[LandingLine], unreadable: Mapping[str, str] = NO_REASONS
    ) -> TableBatch:
        """Writes a batch with these segments. lines: LINE; None without any; unreadable: segments of which they are
        none, with the reason."""
        # A name of its own: what a killed run has left, or committed, stays what it is.
        draft = TableBatch(id=f"{landed[0].number:012d}-{secrets.token_hex(4)}", files=[], rows=0)
        frame = None if lines is None else records(lines)
        staged = draft if frame is None else self.bronze.stage(frame, draft)
        rows = {} if frame is None else segment_rows(frame.sparkSession, self.bronze, staged)
        faults = ((one, unreadable.get(one) or _fault(one, rows.get(one))) for one in (line.segment for line in landed))
        refused = [Refused(segment, why) for segment, why in faults if why is not None]
        for one in refused:
            self._say(f"refused {one.segment}: {one.reason}")
        left_out = {one.segment for one in refused}
        if frame is not None and not left_out.isdisjoint(rows):
            staged = self.bronze.stage(_without(frame, left_out), draft)
        taken = {one.segment: one.number for one in landed if one.segment not in left_out}
        batch = self.bronze.commit(
            msgspec.structs.replace(
                staged,
                segments=sorted(taken),
                landings={segment: number for segment, number in taken.items() if number},
                refused=refused,
                quads_max=max((row.quads_max for row in rows.values()), default=0),
            )
        )
        self._delta_log.add(batch)
        self._segments().update(taken)
        self._say(
            f"batch {batch.id}: {count_text(batch.rows, 'record', ',')} of {count_text(len(taken), 'segment', ',')}"
        )
        return batch

    def left_out(self) -> NewSegments | None:
        """All landed segments before the frontier that are not in bronze, by a listing; None without any."""
        known = self.frontier.unread
        coming = {one.segment for one in self._log.after(self.frontier.number, sys.maxsize)}
        listed = (one for one in unread(self.lake, self._segments()) if one not in coming)
        found = [known.get(one, LandingLine(0, one)) for one in listed]
        return NewSegments(found, None) if found else None

    def missing_segments(self) -> list[str]:
        """Segments before the frontier that are not in bronze, and whose files are there."""
        files = ((one, self.lake.path("segments", *one.split("/"))) for one in sorted(self.frontier.unread))
        return [one for one, path in files if self.lake.fs.exists(path)]

    def _is_new(self, segment: str) -> bool:
        if not segment or segment in self._segments() or segment in self.frontier.unread:
            return False
        return segment.partition("/")[0] not in self._forgotten

    def _segments(self) -> set[str]:
        """The segments in bronze."""
        # Read once, because there is one writer; and not before something has landed.
        if self._ingested is None:
            self._ingested = {segment for one in self.bronze.all() for segment in one.segments}
        return self._ingested


def unread(lake: Lake, ingested: Container[str] | None = None, *, packs: bool = True) -> list[str]:
    """Landed segments that are in no batch, by a listing. ingested: those of all batches, if they are known; packs:
    look into packs too.

    Those of forgotten gateways are not among them.
    """
    if ingested is None:
        ingested = {segment for batch in table(lake, "bronze").all() for segment in batch.segments}
    forgotten = ForgottenGateways.of(lake)
    landed = (one for one in LandedSegments(lake).names(packs=packs) if one not in ingested)
    return [segment for segment in landed if segment.partition("/")[0] not in forgotten]


def records_named(segments: Iterable[str]) -> int:
    """The number of records in segments, by their names."""
    names = [segment_name(segment.rpartition("/")[2]) for segment in segments]
    return sum(name.last - name.first + 1 for name in names if name is not None and name.last is not None)


def _without(frame: DataFrame, segments: Iterable[str]) -> DataFrame:
    # A frame of the names would start Python on the executors, which may have none.
    return frame.where(~F.col("segment").isin(*segments))


def _fault(segment: str, rows: SegmentRows | None) -> str | None:
    """Why a segment's rows do not match its name. The collector has checked the checksums of lines."""
    if rows is None:
        return "nothing of it can be read"
    folder, _, text = segment.rpartition("/")
    name: SegmentName | None = segment_name(text)
    if name is None or name.last is None:
        return "its name is not that of a sealed segment"
    if rows.records < rows.lines:
        return f"{rows.lines - rows.records} lines are no records of version {VERSION}"
    if others := sorted(rows.gateways - {folder}):
        return f"it has records of {others[0]}"
    if epochs := sorted(rows.epochs - {name.epoch}):
        return f"it has records of epoch {epochs[0]}"
    if (rows.first, rows.last, rows.lines) != (name.first, name.last, name.last - name.first + 1):
        return f"it has {count_text(rows.lines, 'record')}, {rows.first} to {rows.last}"
    return None


def read_snapshots(spark: SparkSession, lake: Lake, snapshots: Sequence[str]) -> DataFrame:
    """The lines of landed snapshots, `<gw>/<name>`, as input of `records`."""
    schema = f"{LINE}, snapshot STRING"
    lines = (
        spark.read.schema(schema).options(**_OPTIONS).json([lake.spark_input("snapshots", name) for name in snapshots])
    )
    return lines.select("*", "_metadata", F.lit(None).cast("timestamp").alias("landed"))


def ingest(
    engine: session.Session,
    lake: Lake,
    *,
    files_per_batch: int = FILES_PER_BATCH,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Ingests everything that has landed."""
    landing = Ingest(lake, say, files_per_batch)
    while (new := landing.pending()) is not None:
        landing.take(engine, new)


def ingest_again(
    engine: session.Session, lake: Lake, segments: Iterable[str], say: Callable[[str], None] = lambda line: None
) -> None:
    """Ingests segments that were left out and that were repaired since."""
    landing, wanted = Ingest(lake, say), set(segments)
    if (missing := landing.left_out()) is not None:
        some = [one for one in missing.landed if one.segment in wanted]
        if some:
            landing.take(engine, NewSegments(some, None))


def keep_ingesting(
    landing: Ingest,
    every_s: float,
    stopping: threading.Event,
    start: Callable[[], session.Session],
    engine: session.Session | None = None,
) -> None:
    """Ingests what lands, until it is told to stop. start: is asked for the session when something has landed, unless
    there is one already. Raises what py4j raises if the JVM of the session has ended."""
    while not stopping.is_set():
        new = landing.pending()
        if new is not None:
            engine = engine or start()
            landing.take(engine, new)
            continue
        if engine is not None:
            engine.version  # noqa: B018 - asks the JVM, so that a supervisor learns that it has ended
        stopping.wait(every_s)


# --- the command --------------------------------------------------------------------------------------------


def add_commands(commands: Any) -> None:
    """Declares `ingest`."""
    parser = add_lake_command(commands, "ingest", "read landed segments into bronze", _run_ingest)
    parser.add_argument("--every", type=float, metavar="S", help="repeat every S seconds until interrupted")
    parser.add_argument("--again", action="store_true", help="read again the segments that failed before")
    parser.add_argument(
        "--files-per-batch",
        type=int,
        default=FILES_PER_BATCH,
        metavar="N",
        help="segments per batch (default %(default)s)",
    )
    session.add_arguments(parser)


def _run_ingest(arguments: argparse.Namespace) -> int:
    lake = Lake(arguments.lake)
    if arguments.every is None and not lake.names("segments"):
        raise ConfigurationError(
            f"lake {lake.url!r}: nothing has landed there; run lamplighter-fleet collect SOURCE {lake.url}"
        )
    with locks.writing(lake, "ingest", locks.BRONZE):
        return _ingest(arguments, lake)


def _ingest(arguments: argparse.Namespace, lake: Lake) -> int:
    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    landing = Ingest(lake, say, arguments.files_per_batch)
    some = [one for one in (landing.left_out() if arguments.again else None, landing.pending()) if one is not None]
    # One that stays reads more than what has landed now.
    rows = None if arguments.every is not None else sum(records_named(one.segments) for one in some)
    with contextlib.ExitStack() as stack:
        start = functools.cache(lambda: stack.enter_context(session.engine_of(arguments, "ingest", lake, rows=rows)))
        for new in some[:1]:
            landing.take(start(), new)
        if arguments.every is not None:
            with contextlib.suppress(KeyboardInterrupt):
                keep_ingesting(landing, arguments.every, threading.Event(), start)
        else:
            while some and (more := landing.pending()) is not None:
                landing.take(start(), more)
    left = landing.missing_segments()
    for segment in left:
        say(f"not in bronze: {segment}; put a good copy in its place and run ingest --again")
    if some or arguments.every is not None:
        print(f"bronze has {count_text(sum(batch.rows for batch in table(lake, 'bronze').live()), 'record', ',')}")
    else:
        print("nothing new has landed")
    return 1 if left else 0
