"""Segments -> bronze, one row per record: `lamplighter-fleet ingest`, a Structured Streaming query over landed files.

Each micro-batch becomes one batch of the table, named by the query and the micro-batch's number. Repeated after a
crash, it replaces itself. Segments of other batches are left out, so records count once even if the checkpoint is lost.
Segments that cannot be read completely are left out and reported; the stream continues.
"""

from __future__ import annotations

import argparse
import contextlib
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from lamplighter.cloud_sync.fleet import session
from lamplighter.cloud_sync.fleet.lake import Batches, Lake, Refused, TableBatch, locks
from lamplighter.cloud_sync.fleet.lake.forgotten import ForgottenGateways
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.lazy import F
from lamplighter.cloud_sync.fleet.local.session import LocalSession
from lamplighter.cloud_sync.fleet.subcommands import add_lake_command
from lamplighter.cloud_sync.fleet.tables.segment_rows import SegmentRows, segment_rows
from lamplighter.engine.change_log import VERSION, SegmentName, segment_name
from lamplighter.engine.errors import ConfigurationError, GatewayError, UpstreamError
from lamplighter.engine.tables import count_text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from lamplighter.cloud_sync.fleet.local.frames import LocalFrame

_QUADS = "ARRAY<ARRAY<STRING>>"
# A line of a segment; other members are ignored. Nested members that are text here stay JSON.
LINE = f"""
    v INT, type STRING, gw STRING, epoch INT, seq BIGINT, ts TIMESTAMP, trusted BOOLEAN, boot STRING,
    boottime_us BIGINT,
    cause STRUCT<kind: STRING, id: STRING, seq: BIGINT>, request STRING,
    graphs STRUCT<created: ARRAY<STRING>, dropped: ARRAY<STRING>>, d {_QUADS}, a {_QUADS}, k {_QUADS},
    timer STRING, cancel STRING, gap STRING, subscribe STRING, unsubscribe STRING
"""

# One bad file must not stop the stream. Missing rows are detected afterwards.
_OPTIONS = {"ignoreCorruptFiles": "true", "ignoreMissingFiles": "true"}

FILES_PER_BATCH = 2000


def records(lines: DataFrame) -> DataFrame:
    """LINE and its `_metadata` -> BRONZE. Lines that are not records give rows with gw null."""

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
    )


class Ingest:
    """Writes batches of bronze. say: receives progress lines."""

    def __init__(self, lake: Lake, say: Callable[[str], None] = lambda line: None) -> None:
        self.lake = lake
        self.bronze: Batches = table(lake, "bronze")
        self._say = say
        self._known: set[str] | None = None
        self._forgotten = ForgottenGateways.of(lake)

    def batch(self, lines: DataFrame, name: str) -> TableBatch | None:
        """Writes a batch with the segments of these lines. None if they have nothing new."""
        frame = records(lines)
        staged = self.bronze.stage(frame, TableBatch(id=name, files=[], rows=0))
        rows = segment_rows(self.bronze, staged)
        others = self._segments_of_others(name)
        refused = [Refused(segment, why) for segment, row in rows.items() if (why := _wrong(segment, row)) is not None]
        # Of a forgotten gateway nothing is written, not even a name.
        unwanted = {segment for segment in rows if segment.partition("/")[0] in self._forgotten}
        refused = [one for one in refused if one.segment not in unwanted]
        left_out = {one.segment for one in refused} | rows.keys() & others | unwanted
        new = sorted(rows.keys() - left_out)
        for one in refused:
            self._say(f"refused {one.segment}: {one.reason}")
        if not new and not refused:
            return None
        if left_out:
            staged = self.bronze.stage(_without(frame, left_out), TableBatch(id=name, files=[], rows=0))
        batch = self.bronze.commit(
            TableBatch(
                id=name,
                files=staged.files,
                rows=staged.rows,
                segments=new,
                refused=refused,
                quads_max=max((row.quads_max for row in rows.values()), default=0),
            )
        )
        others.update(new)
        self._say(f"batch {name}: {count_text(batch.rows, 'record', ',')} of {count_text(len(new), 'segment', ',')}")
        return batch

    def refuse(self, one: Refused, name: str) -> None:
        """Writes a batch that has no rows, but why a segment is in none."""
        self._say(f"refused {one.segment}: {one.reason}")
        self.bronze.commit(TableBatch(id=name, files=[], rows=0, refused=[one]))

    def _segments_of_others(self, name: str) -> set[str]:
        """Segments of batches with other names."""
        # Read once, because there is one writer.
        if self._known is None:
            self._known = {segment for one in self.bronze.all() if one.id != name for segment in one.segments}
        return self._known


def unread(lake: Lake) -> list[str]:
    """Landed segments that are in no batch: refused ones, and those of which nothing could be read.

    Those of forgotten gateways are not among them.
    """
    known = {segment for batch in table(lake, "bronze").all() for segment in batch.segments}
    forgotten = ForgottenGateways.of(lake)
    landed = [
        f"{gateway}/{name}"
        for gateway in lake.names("segments")
        if gateway not in forgotten
        for name in lake.names("segments", gateway)
        if segment_name(name) is not None
    ]
    return [segment for segment in landed if segment not in known]


def records_named(segments: Iterable[str]) -> int:
    """The number of records in segments, by their names."""
    names = [segment_name(segment.rpartition("/")[2]) for segment in segments]
    return sum(name.last - name.first + 1 for name in names if name is not None and name.last is not None)


def ingest_again(
    spark: SparkSession, lake: Lake, segments: Sequence[str], say: Callable[[str], None] = lambda line: None
) -> TableBatch | None:
    """Ingests segments that the stream left out and that were repaired since."""
    lines = spark.read.schema(LINE).options(**_OPTIONS).json([lake.spark("segments", segment) for segment in segments])
    return Ingest(lake, say).batch(lines.select("*", "_metadata"), _new_name("again"))


def ingest_landed(
    engine: LocalSession,
    lake: Lake,
    *,
    files_per_batch: int = FILES_PER_BATCH,
    again: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Ingests, without a stream, what has landed and is in no batch. again: also what was refused before."""
    known = {one.segment for batch in table(lake, "bronze").all() for one in batch.refused}
    new = [segment for segment in unread(lake) if again or segment not in known]
    landing = Ingest(lake, say)
    for begin in range(0, len(new), files_per_batch):
        _ingest_files(engine, landing, new[begin : begin + files_per_batch])


def _ingest_files(engine: LocalSession, landing: Ingest, segments: Sequence[str]) -> None:
    """Writes a batch. Files that cannot be read are refused, in batches of their own."""

    def lines(names: Sequence[str]) -> LocalFrame:
        found: LocalFrame = engine.read.schema(LINE).json([landing.lake.spark("segments", name) for name in names])
        return found

    try:
        landing.batch(lines(segments).select("*", "_metadata"), _new_name("local"))
    except engine.error:
        # It may have been the disk; so each file is read by itself before one is refused.
        reasons = {name: engine.unreadable(lines([name])) for name in segments}
        if not any(reasons.values()):
            raise
        for name, reason in reasons.items():
            if reason is not None:
                landing.refuse(Refused(name, reason), _new_name("local"))
        if left := [name for name, reason in reasons.items() if reason is None]:
            _ingest_files(engine, landing, left)


def _new_name(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(6)}"


def quad_count(name: str) -> Column:
    """The number of quads; 0 if the member is missing."""
    # Counting one member of the quads, so that Parquet need not read the others.
    return F.coalesce(F.size(F.col(f"{name}.p")), F.lit(0))


def _without(frame: DataFrame, segments: Iterable[str]) -> DataFrame:
    # A frame of the names would start Python on the executors, which may have none.
    return frame.where(~F.col("segment").isin(*segments))


def _wrong(segment: str, rows: SegmentRows) -> str | None:
    """Why a segment's rows do not match its name. The collector has checked the checksums of lines."""
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
    lines = spark.read.schema(schema).options(**_OPTIONS).json([lake.spark("snapshots", name) for name in snapshots])
    return lines.select("*", "_metadata")


def ingest(
    spark: SparkSession,
    lake: Lake,
    *,
    continuous_s: float | None = None,
    files_per_batch: int = FILES_PER_BATCH,
    say: Callable[[str], None] = lambda line: None,
) -> StreamingQuery:
    """Starts the stream: everything that has landed, once. continuous_s: run for ever, with this interval."""
    lake.fs.makedirs(lake.path("segments"), exist_ok=True)
    landing = Ingest(lake, say)
    lines = (
        spark.readStream.schema(LINE)
        .options(**_OPTIONS)
        .option("recursiveFileLookup", "true")
        .option("pathGlobFilter", "*.ndjson.zst")
        .option("maxFilesPerTrigger", files_per_batch)
        # By default Spark ignores files a week older than the newest one, such as those of a gateway that was off.
        .option("maxFileAge", "36500d")
        .json(lake.spark("segments"))
    )
    lines = lines.select("*", "_metadata")
    _remove_unbegun_checkpoint(lake)
    run = _run_name(lake)

    def write(batch: DataFrame, number: int) -> None:
        landing.batch(batch, f"{run}-{number:06d}")

    query = (
        lines.writeStream.foreachBatch(write)
        .option("checkpointLocation", lake.spark("checkpoint", "ingest"))
        .queryName("lamplighter ingest")
    )
    if continuous_s is None:
        return query.trigger(availableNow=True).start()
    return query.trigger(processingTime=f"{int(continuous_s * 1000)} milliseconds").start()


def _remove_unbegun_checkpoint(lake: Lake) -> None:
    """Removes the checkpoint of a stream that was killed before its first batch. No batch can be of that checkpoint."""
    # Spark never begins if there is an unfinished file of it (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY).
    if not any(name.isdecimal() for name in lake.names("checkpoint", "ingest", "offsets")):
        with contextlib.suppress(FileNotFoundError):
            lake.fs.rm(lake.path("checkpoint", "ingest"), recursive=True)


def _run_name(lake: Lake) -> str:
    """A name that is made with the checkpoint. If the checkpoint is lost, older batches keep their names."""
    path = lake.path("checkpoint", "ingest", "run")
    if lake.fs.exists(path):
        return str(lake.fs.cat_file(path).decode())
    name = secrets.token_hex(4)
    lake.write(name.encode(), "checkpoint", "ingest", "run")
    return name


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

    before = unread(lake)
    # A stream that stays reads more than what has landed now.
    rows = records_named(before) if arguments.every is None else None
    with session.engine_of(arguments, "ingest", lake, rows=rows) as engine:
        if isinstance(engine, LocalSession):
            _ingest_by_rounds(engine, lake, arguments, say)
        else:
            _ingest_by_stream(engine, lake, arguments, before, say)
    left = sorted(set(before) & set(unread(lake)))
    for segment in left:
        say(f"not in bronze: {segment}; put a good copy in its place and run ingest --again")
    print(f"bronze has {count_text(sum(batch.rows for batch in table(lake, 'bronze').live()), 'record', ',')}")
    return 1 if left else 0


def _ingest_by_stream(
    spark: SparkSession, lake: Lake, arguments: argparse.Namespace, before: Sequence[str], say: Callable[[str], None]
) -> None:
    if arguments.again and before:
        ingest_again(spark, lake, before, say)
    query = ingest(spark, lake, continuous_s=arguments.every, files_per_batch=arguments.files_per_batch, say=say)
    try:
        await_end(query)
    except KeyboardInterrupt:
        query.stop()


def _ingest_by_rounds(
    engine: LocalSession, lake: Lake, arguments: argparse.Namespace, say: Callable[[str], None]
) -> None:
    again = arguments.again
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            ingest_landed(engine, lake, files_per_batch=arguments.files_per_batch, again=again, say=say)
            if arguments.every is None:
                return
            again = False
            time.sleep(arguments.every)


def await_end(query: StreamingQuery) -> None:
    """Waits for the end of a stream. Raises UpstreamError with what stopped it."""
    from pyspark.errors import StreamingQueryException

    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        if isinstance(error.__cause__, GatewayError):
            raise error.__cause__ from error
        raise UpstreamError(f"the stream stopped: {error}; run the command again to continue") from error
