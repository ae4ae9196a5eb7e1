"""The matcher: new records of bronze -> the table `matches`, exactly once.

A batch of the table is named by an ascending number, and its manifest names the segments whose events are matched in
it. A batch counts when its manifest is there, so after a crash the same segments are matched again and the batch is
replaced. Subscriptions are read at the beginning of each batch: one that is registered before a segment lands is
honoured for all events in it. One that begins now does not see what had landed before.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from lamplighter.cloud_sync.destinations import Destination
from lamplighter.cloud_sync.fleet.events.completion import Descriptions
from lamplighter.cloud_sync.fleet.events.events import events
from lamplighter.cloud_sync.fleet.events.single_events import RECORD
from lamplighter.cloud_sync.fleet.lake import Lake, TableBatch, live_of
from lamplighter.cloud_sync.fleet.lake.landings import LandingLog
from lamplighter.cloud_sync.fleet.lake.match_batches import following_id, match_span
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.lazy import F
from lamplighter.cloud_sync.fleet.sparql.supported import FleetQuery, fleet_query
from lamplighter.cloud_sync.fleet.subscriptions.early_rows import (
    EarlyMatches,
    behind,
    behind_frame,
    compare,
    compare_rows,
)
from lamplighter.cloud_sync.fleet.subscriptions.matching import (
    FollowedSubscription,
    MatchRow,
    in_order,
    match_table,
    matches,
)
from lamplighter.cloud_sync.fleet.subscriptions.records import SubscriptionRecord
from lamplighter.cloud_sync.fleet.subscriptions.registry import SubscriptionRegistry
from lamplighter.cloud_sync.fleet.subscriptions.segment_order import (
    ORDER_WAIT_S,
    ChosenSegment,
    SegmentOrder,
    landed_between,
)
from lamplighter.cloud_sync.fleet.subscriptions.single_matching import SingleMatches
from lamplighter.engine.errors import ConfigurationError, GatewayError
from lamplighter.engine.tables import count_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Segments of one batch.
SEGMENTS_MAX = 2000
# Records, for each shape of the queries, that the driver matches in the time in which Spark plans and begins; and by
# the record, their quads, and the pairs of an event and a subscription that may match it. Spark plans each shape again
# for each batch. If it had the batches of a stream that is behind for a moment, the stream would stay behind.
FEW_RECORDS, QUADS_A_RECORD, PAIRS_A_RECORD = 5000, 20, 4
# Shapes that count for the limit above, so that one batch takes the driver half a minute at most.
SHAPES_MAX = 10
_SEGMENTS_OF_EMPTY_MAX = 10_000


class _InDriver(NamedTuple):
    """rows: MATCH without those of the gateways in left, which Spark has to match."""

    rows: list[MatchRow]
    left: Collection[str]


class Matcher:
    """Only one process may match the events of a lake at a time.

    order_wait_s: how long a segment waits for missing ones before it. say: receives progress lines. wall: seconds since
    1970, by the clock of the lake's files. ahead: where gateways write matches ahead of their segments; None: such
    matches are not taken. few_records: a batch with more records for each shape of the queries, of `SHAPES_MAX` at
    most, is matched on Spark, others in the driver. check_lock: raises LockLostError if another process may match; it
    is called before each batch is written. spark_pauses: see `SlowGateways`. elapsed: a clock in seconds.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        *,
        order_wait_s: float = ORDER_WAIT_S,
        segments_max: int = SEGMENTS_MAX,
        say: Callable[[str], None] = lambda line: None,
        wall: Callable[[], float] = time.time,
        ahead: Destination | None = None,
        few_records: int = FEW_RECORDS,
        check_lock: Callable[[], None] = lambda: None,
        spark_pauses: float = 0.0,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._order_wait_s = order_wait_s
        self._segments_max = segments_max
        self._say = say
        self._wall = wall
        self._bronze = table(lake, "bronze")
        self._matches = table(lake, "matches")
        self._registry = SubscriptionRegistry(lake)
        self._descriptions = Descriptions(spark, lake)
        self._order = SegmentOrder()
        self._ingested: dict[str, TableBatch] = {}
        self._written: dict[str, TableBatch] = {}
        self._compiled: dict[str, FleetQuery | None] = {}
        self._told: set[str] = set()
        self._ahead = EarlyMatches(ahead, say)
        self._few_records = few_records
        self._check_lock = check_lock
        self._elapsed = elapsed
        self._slow = SlowGateways(spark_pauses, elapsed)

    @property
    def waiting(self) -> int:
        """Ingested segments that are not matched yet, as of the last `advance`."""
        return len(self._order)

    def advance(self) -> TableBatch | None:
        """Matches what can be matched now, as one batch. None if there is nothing."""
        self._read_manifests()
        followed = self._active_subscriptions()
        self._catch_up(followed)
        came = self._take_ahead(followed)
        if came is not None:
            return came
        self._find_numbers(followed)
        return self._match_next(followed)

    def _match_next(self, everyone: Sequence[FollowedSubscription]) -> TableBatch | None:
        """Matches the next segments, as one batch. None if there are none, or if they wait for Spark."""
        began = self._elapsed()
        slow = self._slow.pending()
        chosen = self._order.following(
            self._age_s,
            self._order_wait_s,
            self._segments_max,
            lambda gateway: gateway in slow if slow else gateway not in self._slow.gateways,
        )
        chosen = landed_between(chosen, (one.record.landing or 0 for one in everyone))
        followed = [one for one in everyone if all(is_seen(one.record, segment.number) for segment in chosen[:1])]
        rows: list[MatchRow] | None = None
        if followed and not slow and (found := self._in_driver(chosen, followed)) is not None:
            rows = found.rows
            self._slow.gateways.update(found.left)
            chosen = [one for one in chosen if one.segment.rpartition("/")[0] not in found.left]
            if found.left and not chosen:
                return self._match_next(everyone)
        if not chosen:
            if not slow:
                return None
            self._slow.note_matched(0.0)  # their segments are gone
            return self._match_next(everyone)
        batch = self._batch(segments=sorted(one.segment for one in chosen))
        if followed:
            batch = self._stage(batch, chosen, followed, rows)
        self._commit(batch)
        took_s = self._elapsed() - began
        if slow:
            self._slow.note_matched(took_s)
        self._say(
            f"matches {batch.id}: {count_text(batch.rows, 'row', ',')} of {count_text(len(chosen), 'segment', ',')}, "
            f"{count_text(len(followed), 'subscription', ',')}, {took_s:.1f} s"
        )
        return batch

    def _read_manifests(self) -> None:
        """Reads the manifests that are new since the last time."""
        written = self._matches.all(known=self._written)
        for batch in written:
            if match_span(batch.id) is None:
                path = self._lake.path(self._matches.name, "_batches", f"{batch.id}.json")
                raise ConfigurationError(f"{path}: not a batch of matches, whose names are numbers; remove it")
            self._written[batch.id] = batch
            self._order.note_matched(batch.segments)
        for batch in written:
            self._ahead.note_batch(self._matches, batch, self._order)
        for batch in self._bronze.all(known=self._ingested):
            self._ingested[batch.id] = batch
            self._order.note_ingested(batch.segments, batch.landings)
        self._descriptions.advance(live_of(self._ingested.values()))

    def _find_numbers(self, followed: Sequence[FollowedSubscription]) -> None:
        """Asks the landing log for the numbers of segments that were ingested while it was away, or by an earlier
        version, if a subscription needs them."""
        if any(one.record.landing is not None for one in followed) and (wanted := self._order.without_number):
            self._order.note_numbers(wanted, LandingLog(self._lake).numbers(wanted))

    def _active_subscriptions(self) -> list[FollowedSubscription]:
        """The active subscriptions. A broken record or query is told of once, and the others go on."""
        registered = self._registry.all("active")
        for one in registered.broken:
            self._tell_once(one.reason)
        compiled = ((record, self._query(record)) for record in registered.records)
        return [FollowedSubscription(record, query) for record, query in compiled if query is not None]

    def _query(self, record: SubscriptionRecord) -> FleetQuery | None:
        key = _version(record)
        if key not in self._compiled:
            try:
                self._compiled[key] = fleet_query(record.query)
            except GatewayError as error:
                self._compiled[key] = None
                self._say(f"subscription {record.id}: {error}; replace its query")
        return self._compiled[key]

    def _tell_once(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            self._say(line)

    def _catch_up(self, followed: Sequence[FollowedSubscription]) -> None:
        """Matches subscriptions that begin with the whole history in all segments that are matched already."""
        had = {version for batch in self._written.values() for version in batch.caught_up}
        new = [one for one in followed if one.record.begin == "all" and _version(one.record) not in had]
        if not new:
            return
        batch = self._batch(caught_up=[_version(one.record) for one in new])
        earlier = [ChosenSegment(segment, False) for segment in self._order.matched_segments]
        if earlier:
            found = self._in_driver(earlier, new)
            batch = self._stage(batch, earlier, new, None if found is None or found.left else found.rows)
        self._commit(batch)
        self._say(f"matches {batch.id}: {count_text(batch.rows, 'row', ',')} of earlier segments")

    def _take_ahead(self, followed: Sequence[FollowedSubscription]) -> TableBatch | None:
        """Writes the new matches that gateways sent ahead of their segments, as a batch."""
        rows, read = self._ahead.take(self._lake, followed, self._order)
        if rows:
            batch = msgspec.structs.replace(self._batch(), ahead=read)
            self._commit(self._matches.stage_rows(match_table(rows), batch))
            self._ahead.note(rows, self._order)
            self._say(f"matches {batch.id}: {count_text(len(rows), 'row', ',')} ahead of their segments")
        self._ahead.confirm(read)
        return self._written[batch.id] if rows else None

    def _stage(
        self,
        batch: TableBatch,
        chosen: Sequence[ChosenSegment],
        followed: Sequence[FollowedSubscription],
        rows: list[MatchRow] | None,
    ) -> TableBatch:
        """Writes the matches in some segments; the batch does not count yet. rows: None: Spark has to find them."""
        if rows is None:
            return self._staged_by_spark(batch, chosen, followed)
        others, outcomes = compare_rows(rows, self._ahead.to_compare(batch.segments, followed))
        told = behind(others, self._ahead.newest({row["gw"] for row in others}))
        return self._matches.stage_rows(match_table(told), msgspec.structs.replace(batch, compared=dict(outcomes)))

    def _in_driver(self, chosen: Sequence[ChosenSegment], followed: Sequence[FollowedSubscription]) -> _InDriver | None:
        """MATCH of some segments, without gateways that Spark has to match. None if they have too many records."""
        late = {one.segment: one.late for one in chosen}
        rows_max = self._few_records * min(SHAPES_MAX, len({one.query.shape for one in followed}))
        records = self._bronze.few_rows(
            self._live(late.keys()), (*RECORD, "segment"), rows_max=rows_max, members_max=rows_max * QUADS_A_RECORD
        )
        if records is None:
            return None
        found = SingleMatches(followed, self._descriptions.gateways.get, rows_max * PAIRS_A_RECORD)
        for one in records:
            is_late = late.get(one["segment"])
            if is_late is not None:
                found.take(one, late=is_late)
        rows = found.rows()
        for reason in found.left.values():
            self._tell_once(f"some events are matched on Spark, which takes longer: {reason}")
        return _InDriver(rows, found.left.keys())

    def _staged_by_spark(
        self, batch: TableBatch, chosen: Sequence[ChosenSegment], followed: Sequence[FollowedSubscription]
    ) -> TableBatch:
        deleted = any(one.record.changes != "added" for one in followed)
        frames = []
        for late in sorted({one.late for one in chosen}):
            records = self._records({one.segment for one in chosen if one.late == late})
            frames.append(events(records, deleted=deleted).withColumn("late", F.lit(late)))
        found = reduce(lambda one, other: one.unionByName(other), frames).persist()
        try:
            with matches(self._descriptions.complete(found), followed) as rows:
                return self._stage_new(rows, batch, followed)
        finally:
            found.unpersist()

    def _stage_new(self, rows: DataFrame, batch: TableBatch, followed: Sequence[FollowedSubscription]) -> TableBatch:
        """Writes MATCH without the matches that came ahead, which are compared."""
        came = self._ahead.to_compare(batch.segments, followed)
        newest = self._ahead.newest({segment.rpartition("/")[0] for segment in batch.segments})
        if newest:
            rows = behind_frame(rows, newest)
        if not came:
            return self._matches.stage(in_order(rows), batch)
        rows = rows.persist()
        try:
            others, outcomes = compare(rows, came)
            return self._matches.stage(in_order(others), msgspec.structs.replace(batch, compared=dict(outcomes)))
        finally:
            rows.unpersist()

    def _records(self, segments: set[str]) -> DataFrame:
        """BRONZE of some segments."""
        live = self._live(segments)
        records = self._bronze.frame(self._spark, live)
        if segments.issuperset(segment for batch in live for segment in batch.segments):
            return records
        return records.where(F.array_contains(F.lit(sorted(segments)), F.col("segment")))

    def _live(self, segments: Collection[str]) -> list[TableBatch]:
        """The batches of bronze that have some of these segments."""
        wanted = set(segments)
        return [batch for batch in live_of(self._ingested.values()) if not wanted.isdisjoint(batch.segments)]

    def _age_s(self, segment: str) -> float:
        """Seconds since a segment landed. A segment of unknown age waits for nothing."""
        landed = self._lake.modification_time("segments", *segment.split("/"))
        return float("inf") if landed is None else self._wall() - landed

    def _batch(self, *, segments: list[str] | None = None, caught_up: list[str] | None = None) -> TableBatch:
        """The next batch, without rows yet. The numbers of batches ascend, also after some were merged."""
        return TableBatch(
            id=following_id(self._written), files=[], rows=0, segments=segments or [], caught_up=caught_up or []
        )

    def _commit(self, batch: TableBatch) -> None:
        """A batch without rows takes the place of one before it."""
        # So an idle matcher does not pile up manifests.
        last = self._written[max(self._written)] if self._written else None
        if last is not None and not batch.rows and not last.rows and len(last.segments) < _SEGMENTS_OF_EMPTY_MAX:
            batch = msgspec.structs.replace(
                batch,
                segments=sorted({*last.segments, *batch.segments}),
                caught_up=[*last.caught_up, *batch.caught_up],
                compared=dict(Counter(last.compared) + Counter(batch.compared)),
                replaces=[last.id],
            )
        self._check_lock()
        self._written[batch.id] = self._matches.commit(batch, new=True)
        self._order.note_matched(batch.segments)
        self._ahead.forget(self._ahead.within(batch.segments))
        if last is not None and batch.replaces:
            self._matches.forget(last)
            del self._written[last.id]


def is_seen(record: SubscriptionRecord, number: int) -> bool:
    """Whether a subscription sees a segment with a number in the landing log."""
    return record.begin == "all" or record.landing is None or number > record.landing


def _version(record: SubscriptionRecord) -> str:
    return f"{record.id}/{record.version}"


class SlowGateways:
    """Gateways whose segments wait for Spark. The others go on, so one gateway cannot slow down a whole fleet.

    pauses: after Spark took some time for such gateways, it is not used for them for so many times as long. elapsed: a
    clock in seconds.
    """

    def __init__(self, pauses: float, elapsed: Callable[[], float]) -> None:
        self._pauses = pauses
        self._elapsed = elapsed
        self.gateways: set[str] = set()
        self._not_before = elapsed()

    def pending(self) -> frozenset[str]:
        """Those that Spark may match now."""
        return frozenset(self.gateways) if self._elapsed() >= self._not_before else frozenset()

    def note_matched(self, seconds: float) -> None:
        """All of them are matched, which took some seconds."""
        self.gateways.clear()
        self._not_before = self._elapsed() + self._pauses * seconds
