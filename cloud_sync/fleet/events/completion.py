"""Events -> events with the static descriptions of their streams, so that a subscription may name sensor, property,
feature or unit though a record changed value and time only.

The facts are those of silver's table `facts`, to which both `silver` and this add. Their versions are kept in the
driver, about 5 KB for each stream; a batch of events is joined with those that it needs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from sys import intern
from typing import TYPE_CHECKING, Any

from lamplighter.cloud_sync.fleet.events.described import DescribedStreams, DescriptionVersion
from lamplighter.cloud_sync.fleet.events.events import DELETED, TRIPLES
from lamplighter.cloud_sync.fleet.lake import Lake, TableBatch, live_of
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.lazy import F
from lamplighter.cloud_sync.fleet.tables import streams
from lamplighter.cloud_sync.fleet.tables.facts import RECORD, add_snapshots, fact_table, snapshot_facts, snapshots_of
from lamplighter.engine.change_log import segment_name
from lamplighter.engine.terms import Term

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Subjects of an event that are looked up without a shuffle. Most events are readings, with one to three subjects.
SUBJECTS_JOINED = 3
# Subjects of a batch of events, over all gateways, whose descriptions are chosen by name. With more, all are taken.
SUBJECTS_MAX = 200_000
# Versions of descriptions that are broadcast, with 2 to 3 KB each. More are joined by a shuffle.
BROADCAST_VERSIONS_MAX = 20_000
# Records and quads of which the driver makes facts. With more, Spark does.
FEW_RECORDS = 50_000
FEW_QUADS = 1_000_000
# Batches of bronze without descriptions before a manifest names them. After a crash they are looked at again.
UNNAMED_MAX = 100

_BARE = "ARRAY<STRUCT<s: STRING, p: STRING, o: STRING>>"
_VERSION = f"gw STRING, subject STRING, from_epoch INT, from_seq BIGINT, to_epoch INT, to_seq BIGINT, said {_BARE}"
_FACT = ("gw", "epoch", "seq", "added", "s", "p", "o", "g")
_EVENT_KEY = ("gw", "epoch", "seq", "change", "graph")
_Fact = tuple[str, int, int, bool, Term, Term, Term, Term | None]


class KnownDescriptions:
    """The descriptions of the streams that it has learnt, by gateway."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self._spark = spark
        self._lake = lake
        self._facts = table(lake, "facts")
        self.gateways: dict[str, DescribedStreams] = defaultdict(DescribedStreams)

    def learn(self, batch: TableBatch) -> None:
        """Learns the facts of a batch of the table `facts`."""
        self._learn_facts(self._rows(batch))
        self._learn_snapshots(batch.segments)

    def _learn_facts(self, rows: Iterable[_Fact]) -> None:
        for gateway, epoch, seq, added, s, p, o, graph in rows:
            if graph is None:
                triple = (intern(s), intern(p), intern(o))
                self.gateways[gateway].learn((epoch, seq), added, triple)

    def _learn_snapshots(self, snapshots: Iterable[str]) -> None:
        for text in snapshots:
            gateway, _, file = text.rpartition("/")
            name = segment_name(file)
            if name is not None:
                self.gateways[gateway].learn_snapshot((name.epoch, name.first))

    def _rows(self, batch: TableBatch) -> Iterator[_Fact]:
        """The facts of a batch."""
        # Read without Spark, whose jobs cost more.
        from pyarrow.parquet import ParquetFile

        for name in batch.files:
            with self._lake.fs.open(self._lake.path(self._facts.name, name), "rb") as file:
                for part in ParquetFile(file).iter_batches(columns=list(_FACT)):
                    yield from zip(*(part.column(column).to_pylist() for column in _FACT), strict=True)

    def complete(self, events: DataFrame) -> DataFrame:
        """EVENT -> EVENT, with the description of each subject that is a stream or the live observation of one.

        The added triples are not new. An event of added triples gets the description after its record, one of deleted
        triples the description before it. Events are read twice, so the caller may persist them. Other columns stay.

        The versions of at most `BROADCAST_VERSIONS_MAX` descriptions are broadcast; events are not shuffled then, but
        for those with more than `SUBJECTS_JOINED` subjects.
        """
        subjects = F.array_distinct("triples.s")
        many = F.size(subjects) > SUBJECTS_JOINED
        keys = events.select("gw", F.explode(subjects).alias("subject"), many.alias("many")).distinct()
        rows = keys.limit(SUBJECTS_MAX + 1).collect()
        named = None if len(rows) > SUBJECTS_MAX else {(row["gw"], row["subject"]) for row in rows}
        versions, count = self._frame(named)
        if count == 0:
            return events
        if count <= BROADCAST_VERSIONS_MAX:
            versions = F.broadcast(versions)
        if named is not None and not any(row["many"] for row in rows):
            return _by_slots(events, versions)
        few = _by_slots(events.where(~many), versions)
        return few.unionByName(_by_groups(events.where(many), versions))

    def _frame(self, named: set[tuple[str, Term]] | None) -> tuple[DataFrame, int]:
        """The versions of some subjects' descriptions, or of all; and their number."""
        import pyarrow

        chosen = list(self._of(named))
        columns = {
            "gw": [gateway for gateway, _, _ in chosen],
            "subject": [subject for _, subject, _ in chosen],
            "from_epoch": [one.valid.since[0] for _, _, one in chosen],
            "from_seq": [one.valid.since[1] for _, _, one in chosen],
            "to_epoch": [one.valid.until[0] for _, _, one in chosen],
            "to_seq": [one.valid.until[1] for _, _, one in chosen],
            "said": [[dict(zip("spo", triple, strict=True)) for triple in one.triples] for _, _, one in chosen],
        }
        text, big = pyarrow.string(), pyarrow.int64()
        bare = pyarrow.list_(pyarrow.struct([(name, text) for name in "spo"]))
        types = [text, text, pyarrow.int32(), big, pyarrow.int32(), big, bare]
        schema = pyarrow.schema(list(zip(columns, types, strict=True)))
        return self._spark.createDataFrame(pyarrow.table(columns, schema), _VERSION), len(chosen)

    def _of(self, named: set[tuple[str, Term]] | None) -> Iterator[tuple[str, Term, DescriptionVersion]]:
        if named is None:
            for gateway, described in self.gateways.items():
                for subject, versions in described.versions().items():
                    yield from ((gateway, subject, one) for one in versions)
            return
        for gateway, subject in named:
            if gateway in self.gateways:
                for one in self.gateways[gateway].versions().get(subject, ()):
                    yield gateway, subject, one


class Descriptions(KnownDescriptions):
    """The descriptions of all streams of a lake. `silver` may run at the same time; only one process may use this."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        super().__init__(spark, lake)
        self._ends: dict[tuple[str, int], int] = {}
        had = self._facts.all()
        self._named = {source for batch in had for source in batch.sources}
        self._snapshots = {segment for batch in had for segment in batch.segments}
        # A batch with the number of a replaced one would not count.
        names = {name for one in had for name in (one.id, *one.replaces)}
        self._batches = 1 + max((int(name[5:]) for name in names if name.startswith("live-")), default=0)
        self._unnamed: list[str] = []
        for batch in self._facts.live():
            self.learn(batch)
        self._add_snapshots(lake.names("snapshots"))

    def advance(self, ingested: Iterable[TableBatch]) -> None:
        """Learns what batches of bronze say of streams. ingested: those that count; the known ones are left out."""
        new = _not_in(ingested, self._named.union(self._unnamed))
        if not new:
            return
        sources = [*self._unnamed, *(one.id for one in new)]
        # A batch without rows stays without a manifest, and the next one takes its folder.
        batch = self._stage(new, TableBatch(id=f"live-{self._batches:09d}", files=[], rows=0, sources=sources))
        if batch.rows or len(sources) >= UNNAMED_MAX:
            self.learn(self._facts.commit(batch))
            self._named.update(sources)
            self._batches += 1
            self._unnamed = []
        else:
            self._unnamed = sources
        self._add_snapshots(sorted(self._behind_a_hole(new)))

    def _stage(self, ingested: Sequence[TableBatch], batch: TableBatch) -> TableBatch:
        """Writes the facts of batches of bronze."""
        bronze = table(self._lake, "bronze")
        records = bronze.few_rows(ingested, RECORD, rows_max=FEW_RECORDS, members_max=FEW_QUADS)
        if records is None:
            return self._facts.stage(streams.facts(bronze.frame(self._spark, ingested)), batch, files=1)
        return self._facts.stage_rows(fact_table(records), batch)

    def _behind_a_hole(self, batches: Iterable[TableBatch]) -> set[str]:
        """Gateways of which a new segment does not follow the known ones. Snapshots may have what is missing."""
        found = set()
        for text in sorted(segment for batch in batches for segment in batch.segments):
            gateway, _, file = text.rpartition("/")
            name = segment_name(file)
            if name is not None and name.last is not None:
                end = self._ends.get((gateway, name.epoch), 0)
                if name.first > end + 1:
                    found.add(gateway)
                self._ends[gateway, name.epoch] = max(end, name.last)
        return found

    def _add_snapshots(self, gateways: Sequence[str]) -> None:
        new = [one for one in snapshots_of(self._lake, gateways) if one not in self._snapshots]
        if new:
            self.learn(add_snapshots(self._spark, self._lake, new, "snapshots-live"))
            self._snapshots.update(new)


class PastDescriptions(KnownDescriptions):
    """The descriptions in some batches of bronze and in all snapshots. It writes nothing: facts that neither `silver`
    nor the matcher has found yet are looked for in bronze."""

    def __init__(self, spark: SparkSession, lake: Lake, ingested: Sequence[TableBatch]) -> None:
        super().__init__(spark, lake)
        had = self._facts.all()
        for batch in live_of(had):
            self.learn(batch)
        new = _not_in(ingested, {source for batch in had for source in batch.sources})
        if new:
            self._learn_frame(streams.facts(table(lake, "bronze").frame(spark, new)))
        known = {segment for batch in had for segment in batch.segments}
        snapshots = [one for one in snapshots_of(lake, lake.names("snapshots")) if one not in known]
        if snapshots:
            self._learn_frame(snapshot_facts(spark, lake, snapshots))
            self._learn_snapshots(snapshots)

    def _learn_frame(self, facts: DataFrame) -> None:
        rows: Iterable[Any] = facts.select(*_FACT).toLocalIterator()
        self._learn_facts(rows)


def _not_in(ingested: Iterable[TableBatch], known: set[str]) -> list[TableBatch]:
    """The batches of bronze that are neither known themselves nor made of known ones."""
    return [one for one in ingested if one.id not in known and not (one.replaces and known.issuperset(one.replaces))]


def _by_slots(events: DataFrame, versions: DataFrame) -> DataFrame:
    """Completes events with few subjects: a join for the first subject of each, one for the second, and so on."""
    found = events.withColumn("subjects", F.array_distinct("triples.s"))
    slots = range(SUBJECTS_JOINED)
    for slot in slots:
        here = versions.select(*(F.col(name).alias(f"{name}_{slot}") for name in versions.columns))
        same = (F.col("gw") == F.col(f"gw_{slot}")) & (F.get("subjects", F.lit(slot)) == F.col(f"subject_{slot}"))
        found = found.join(here, same & _valid(f"_{slot}"), "left")
    none = F.array().cast(_BARE)
    said = F.concat(*(F.coalesce(f"said_{slot}", none) for slot in slots))
    return _with_triples(found.withColumn("said", said), events.columns)


def _by_groups(events: DataFrame, versions: DataFrame) -> DataFrame:
    """Completes events with any number of subjects, by a shuffle."""
    exploded = events.select(
        *_EVENT_KEY, F.struct(*events.columns).alias("event"), F.explode(F.array_distinct("triples.s")).alias("about")
    )
    here = versions.select(*(F.col(name).alias(f"{name}_") for name in versions.columns))
    same = (F.col("gw") == F.col("gw_")) & (F.col("about") == F.col("subject_"))
    joined = exploded.join(here, same & _valid("_"), "left")
    grouped = joined.groupBy(*_EVENT_KEY).agg(
        F.first("event").alias("event"), F.flatten(F.collect_list("said_")).alias("said")
    )
    return _with_triples(grouped.select("event.*", "said"), events.columns)


def _valid(suffix: str) -> Column:
    """Whether a version is that of an event: after its record, or, if it has deleted triples, before it."""
    seq = F.when(F.col("change") == DELETED, F.col("seq") - 1).otherwise(F.col("seq"))

    def at_or_before(epoch: str, begin: str) -> Column:
        place = F.col(f"{epoch}{suffix}")
        return (place < F.col("epoch")) | ((place == F.col("epoch")) & (F.col(f"{begin}{suffix}") <= seq))

    return at_or_before("from_epoch", "from_seq") & ~at_or_before("to_epoch", "to_seq")


def _with_triples(found: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Adds the triples in `said` that an event does not have."""
    parts = [F.col(f"triples.{name}") for name in "spo"]
    more = F.array_except("said", F.arrays_zip(*parts).cast(_BARE))
    old = F.arrays_zip(*(more[name] for name in "spo"), F.array_repeat(F.lit(False), F.size(more))).cast(TRIPLES)
    triples = F.when(F.size("said") == 0, F.col("triples")).otherwise(F.concat("triples", old))
    return found.withColumn("triples", triples).select(*columns)
