"""Matches that gateways send ahead of the segments, and their comparison with those of Spark.

A gateway evaluates pushed subscriptions and sends their rows before its segments. They become rows of `matches` at
once. When Spark matches the same event, its match is compared, and not written a second time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from lamplighter.cloud_sync.destinations import Destination
from lamplighter.cloud_sync.early_notifications import EarlyNotification
from lamplighter.cloud_sync.fleet.lake import Batches, Lake, TableBatch
from lamplighter.cloud_sync.fleet.lake.folder import gateway_of
from lamplighter.cloud_sync.fleet.lazy import F, pa, pc
from lamplighter.cloud_sync.fleet.subscriptions.early_objects import CELLS_MAX, EarlyNotificationObjects, is_small
from lamplighter.cloud_sync.fleet.subscriptions.matching import FollowedSubscription, MatchRow
from lamplighter.cloud_sync.fleet.subscriptions.planner import covers_gateway, spark_reasons
from lamplighter.cloud_sync.fleet.subscriptions.push import read_pushed, subscription_version
from lamplighter.cloud_sync.fleet.subscriptions.pushdown import gateway_query
from lamplighter.cloud_sync.fleet.subscriptions.segment_order import Place, SegmentOrder
from lamplighter.engine.change_log import segment_name
from lamplighter.engine.errors import GatewayError, PayloadError
from lamplighter.engine.terms import Bag, Term

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Matches that are taken at once.
ROWS_MAX = 20_000
# Of the matches of one gateway that wait for the comparison with Spark's. Further ones are left to Spark.
WAITING_MAX, WAITING_CHARACTERS_MAX = 10_000, 8 * 1024 * 1024
# Spark has the same rows; it has others; it has no match in the event.
EQUAL, DIFFERENT, UNFOUND = "equal", "different", "unfound"


class MatchKey(NamedTuple):
    """What identifies a match, as the id of its notification does. graph: "" for the default graph."""

    subscription: str
    version: int
    gw: str
    epoch: int
    seq: int
    change: str
    graph: str


class _Room:
    """How many further matches of a gateway may wait. refused: those that had no room."""

    def __init__(self, matches: int, characters: int) -> None:
        self._matches = WAITING_MAX - matches
        self._characters = WAITING_CHARACTERS_MAX - characters
        self.refused = 0

    @classmethod
    def beside(cls, waiting: Iterable[Mapping[MatchKey, list[list[Term | None]]]]) -> _Room:
        matches = [rows for of_epoch in waiting for rows in of_epoch.values()]
        return cls(len(matches), sum(map(_characters, matches)))

    def takes(self, rows: list[list[Term | None]]) -> bool:
        size = _characters(rows)
        if self._matches <= 0 or self._characters < size:
            self.refused += 1
            return False
        self._matches -= 1
        self._characters -= size
        return True


def _characters(rows: list[list[Term | None]]) -> int:
    return sum(len(term) + 8 for row in rows for term in row if term is not None) + 8 * len(rows)


class EarlyMatches:
    """The matches that came ahead and are not compared yet, and the objects that were read.

    source: where the objects are; None: nothing is taken, and what was taken before is compared. say: receives lines.
    """

    def __init__(self, source: Destination | None, say: Callable[[str], None]) -> None:
        self._source = None if source is None else EarlyNotificationObjects(source, say)
        self._say = say
        self._last = ""
        self._read: dict[str, int] = {}
        self._pending: dict[tuple[str, int], dict[MatchKey, list[list[Term | None]]]] = defaultdict(dict)
        self._fault = ""

    def note_batch(self, table: Batches, batch: TableBatch, order: SegmentOrder) -> None:
        """Notes a batch of `matches` that another process has written, if its matches came ahead."""
        if not batch.ahead:
            return
        for gateway, number in batch.ahead.items():
            self._read[gateway] = max(self._read.get(gateway, 0), number)
        from pyarrow import ArrowException

        begin = 0
        for name in batch.files:
            path = table.lake.path(table.name, name)
            try:
                for rows, end in _rows_ahead(table, path, batch, begin):
                    self.note(rows, order)
                    begin = end
            except (OSError, ArrowException) as error:
                self._say(f"{path}: {error}; restore it. Without it, its matches are written a second time")

    def note(self, rows: Iterable[Mapping[str, Any]], order: SegmentOrder) -> None:
        """Notes rows of `matches` that came ahead. Those whose segment is matched are compared already."""
        for row in rows:
            key = _key(row)
            if not order.is_matched(key.gw, (key.epoch, key.seq)):
                self._pending[key.gw, key.epoch][key] = row["rows"]

    def take(
        self, lake: Lake, followed: Sequence[FollowedSubscription], order: SegmentOrder
    ) -> tuple[list[dict[str, Any]], dict[str, int]]:
        """New rows of `matches`; and for each gateway the last object that was read for them.

        Rows without a commit, of other versions, of subscriptions that the gateway was not given, of segments that are
        matched already, of gateways with several histories, and of those with too many matches that wait for their
        segments are left to Spark.
        """
        wanted = {
            (one.record.id, one.record.version): one for one in followed if not spark_reasons(one.record, one.query)
        }
        if self._source is None or not wanted:
            return [], {}
        try:
            given = {(one.subscription, one.gateway) for one in read_pushed(lake) if one.kind == "subscribe"}
            landed = set(lake.names("segments"))
            self._fault = ""
        except (GatewayError, OSError) as error:
            if str(error) != self._fault:
                self._fault = str(error)
                self._say(f"rows of gateways: {error}")
            return [], {}
        found: dict[MatchKey, dict[str, Any]] = {}
        read: dict[str, int] = {}
        # A gateway does not know which of its histories it writes. Under another name a match would come twice.
        forked = {gateway_of(name) for name in landed if name != gateway_of(name)}
        gateways = sorted(({gateway for _, gateway in given} & landed) - forked)
        first = bisect_right(gateways, self._last)
        for gateway in [*gateways[first:], *gateways[:first]]:  # each one is the first in its turn
            mine = {key: one for key, one in wanted.items() if (key[0], gateway) in given}
            self._take_of(gateway, mine, order, found, read)
            self._last = gateway
            if len(found) >= ROWS_MAX:
                break
        return list(found.values()), read

    def _take_of(
        self,
        gateway: str,
        wanted: Mapping[tuple[str, int], FollowedSubscription],
        order: SegmentOrder,
        found: dict[MatchKey, dict[str, Any]],
        read: dict[str, int],
    ) -> None:
        """Adds the new rows of a gateway to found, and the last object to read."""
        assert self._source is not None
        room = _Room.beside(rows for of, rows in self._pending.items() if of[0] == gateway)
        newest = self.newest([gateway])
        lines = self._source.notifications(
            gateway, self._read.get(gateway, 0), lambda number: read.update({gateway: number})
        )
        with closing(lines):
            for line in lines:
                told = line.told
                one = wanted.get((told.subscription, subscription_version(told.version)))
                if one is None or not covers_gateway(one.record, gateway) or told.commit is None:
                    continue
                try:
                    rows = list(_matches(one, gateway, told))
                except PayloadError as error:
                    self._source.refuse(line.place, str(error))
                    continue
                for row in rows:
                    key = _key(row)
                    if key not in found and self._is_new(key, order) and room.takes(row["rows"]):
                        found[key] = behind([row], newest)[0]
                        found[key]["late"] |= order.is_behind(gateway, (key.epoch, key.seq))
                        newest[key.subscription, gateway] = max(
                            (key.epoch, key.seq), newest.get((key.subscription, gateway), (0, 0))
                        )
                if len(found) >= ROWS_MAX:
                    break
        if room.refused:
            self._say(
                f"gateway {gateway}: {room.refused:,} of its matches ahead of segments are left to Spark, because too "
                "many wait for their segments; check whether it ships them"
            )

    def confirm(self, read: Mapping[str, int]) -> None:
        """What was read until there need not be read again."""
        self._read |= read

    def to_compare(
        self, segments: Iterable[str], followed: Sequence[FollowedSubscription]
    ) -> dict[MatchKey, list[list[Term | None]]]:
        """The matches that Spark has in these segments too: those of subscriptions that it still follows."""
        known = {(one.record.id, one.record.version): one.record for one in followed}
        found = self.within(segments)
        return {
            key: rows
            for key, rows in found.items()
            if (record := known.get(key[:2])) is not None and covers_gateway(record, key.gw)
        }

    def within(self, segments: Iterable[str]) -> dict[MatchKey, list[list[Term | None]]]:
        """The matches in these segments, `<gateway>/<name>`."""
        found: dict[MatchKey, list[list[Term | None]]] = {}
        for segment in segments if any(self._pending.values()) else ():
            gateway, _, text = segment.rpartition("/")
            name = segment_name(text)
            if name is not None and name.last is not None:
                of_epoch = self._pending.get((gateway, name.epoch), {})
                found |= {key: rows for key, rows in of_epoch.items() if name.first <= key.seq <= name.last}
        return found

    def newest(self, gateways: Collection[str]) -> dict[tuple[str, str], Place]:
        """For each subscription and gateway the last record whose match came ahead and is not compared yet."""
        found: dict[tuple[str, str], Place] = {}
        for (gateway, epoch), keys in self._pending.items():
            for key in keys if gateway in gateways else ():
                name, place = (key.subscription, gateway), (epoch, key.seq)
                found[name] = max(place, found.get(name, place))
        return found

    def forget(self, keys: Iterable[MatchKey]) -> None:
        """Forgets matches whose comparison is durable."""
        for key in keys:
            self._pending[key.gw, key.epoch].pop(key, None)

    def _is_new(self, key: MatchKey, order: SegmentOrder) -> bool:
        return key not in self._pending.get((key.gw, key.epoch), {}) and not order.is_matched(
            key.gw, (key.epoch, key.seq)
        )


def behind(rows: Sequence[MatchRow], newest: Mapping[tuple[str, str], Place]) -> list[dict[str, Any]]:
    """MATCH in which what comes behind matches of later records is late. newest: as `EarlyMatches.newest`."""
    return [
        {
            **row,
            "late": row["late"] or (row["epoch"], row["seq"]) < newest.get((row["subscription"], row["gw"]), (0, 0)),
        }
        for row in rows
    ]


def behind_frame(found: DataFrame, newest: Mapping[tuple[str, str], Place]) -> DataFrame:
    """As `behind`, on Spark."""
    names = ("_subscription", "_gw", "_epoch", "_seq")
    kinds = (pa.string(), pa.string(), pa.int32(), pa.int64())
    rows = [dict(zip(names, (*name, *place), strict=True)) for name, place in newest.items()]
    schema = pa.schema(list(zip(names, kinds, strict=True)))
    ahead = found.sparkSession.createDataFrame(pa.Table.from_pylist(rows, schema))
    same = (F.col("subscription") == F.col("_subscription")) & (F.col("gw") == F.col("_gw"))
    later = (F.col("_epoch") > F.col("epoch")) | ((F.col("_epoch") == F.col("epoch")) & (F.col("_seq") > F.col("seq")))
    joined = found.join(F.broadcast(ahead), same, "left")
    return joined.withColumn("late", F.col("late") | F.coalesce(later, F.lit(False))).drop(*names)


def compare_rows(
    rows: Sequence[MatchRow], ahead: Mapping[MatchKey, list[list[Term | None]]]
) -> tuple[list[MatchRow], Counter[str]]:
    """As `compare`, for rows in the driver."""
    if not ahead:
        return list(rows), Counter()
    repeated = {key: row for row in rows if (key := _key(row)) in ahead}
    outcomes = Counter(_outcome(row, ahead[key]) for key, row in repeated.items())
    outcomes[UNFOUND] = len(ahead) - len(repeated)
    return [row for row in rows if _key(row) not in repeated], +outcomes


def compare(found: DataFrame, ahead: Mapping[MatchKey, list[list[Term | None]]]) -> tuple[DataFrame, Counter[str]]:
    """MATCH -> MATCH without the matches that came ahead, and the number of those by outcome.

    A match that is incomplete on Spark counts as equal.
    """
    kinds = {"version": pa.int32(), "epoch": pa.int32(), "seq": pa.int64()}
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in MatchKey._fields])
    keys = found.sparkSession.createDataFrame(pa.Table.from_pylist([key._asdict() for key in ahead], schema))
    here = keys.select(*(F.col(name).alias(f"_{name}") for name in MatchKey._fields))
    same = F.coalesce("graph", F.lit("")) == F.col("_graph")
    for name in MatchKey._fields[:-1]:
        same &= F.col(name) == F.col(f"_{name}")
    outcomes: Counter[str] = Counter()
    repeated = found.join(F.broadcast(here), same, "left_semi").collect()
    for row in repeated:
        outcomes[_outcome(row, ahead[_key(row)])] += 1
    outcomes[UNFOUND] = len(ahead) - len(repeated)
    return found.join(F.broadcast(here), same, "left_anti"), +outcomes


def _outcome(row: Any, rows: Iterable[Sequence[Term | None]]) -> str:
    equal = row["incomplete"] or sorted(map(_sortable, row["rows"])) == sorted(map(_sortable, rows))
    return EQUAL if equal else DIFFERENT


def _rows_ahead(table: Batches, path: str, batch: TableBatch, begin: int) -> Iterator[tuple[list[dict[str, Any]], int]]:
    """The rows of a file of `matches` that came ahead, and the number of rows of the batch up to their end.

    begin: the number of rows of the batch before the file.
    """
    from pyarrow.parquet import ParquetFile

    spans = list(accumulate((one.rows for one in batch.merged), initial=0))
    with table.lake.fs.open(path, "rb") as file:
        for part in ParquetFile(file).iter_batches(1000, columns=[*MatchKey._fields, "rows", "ts"]):
            came = [not batch.merged] * part.num_rows
            for one, first, end in zip(batch.merged, spans, spans[1:], strict=False):
                for row in range(max(first, begin), min(end, begin + part.num_rows)) if one.ahead else ():
                    came[row - begin] = True
            # Older lakes do not say which batches came ahead; their rows have no time.
            ahead = pc.or_(pa.array(came), pc.is_null(part["ts"]))
            begin += part.num_rows
            # No gateway: a row that was removed.
            yield part.filter(pc.and_(ahead, pc.is_valid(part["gw"]))).to_pylist(), begin


def _matches(one: FollowedSubscription, gateway: str, told: EarlyNotification) -> Iterator[dict[str, Any]]:
    """The rows of `matches` of a notification of a gateway. Raises PayloadError for damaged results."""
    assert told.commit is not None
    if not told.sequence:
        return
    query = gateway_query(one.query)
    for change, results in (("added", told.added), ("deleted", told.removed)):
        if one.record.changes not in (change, "both") or not results:
            continue
        try:
            if not is_small(results):
                raise ValueError(f"it has more than {CELLS_MAX} cells, or none")
            bag = Bag.from_json(results)
        except (ValueError, RecursionError) as error:
            raise PayloadError(f"its results cannot be read: {error}") from error
        if set(bag.variables) != query.projected or len(bag.variables) != len(query.projected):
            raise PayloadError("its results have other variables than the query for gateways")
        for graph, rows in query.rows(list(bag.bindings())).items():
            yield {
                "subscription": one.record.id,
                "version": one.record.version,
                "gw": gateway,
                "epoch": told.commit[0],
                "seq": told.commit[1],
                "ts": told.at,
                "trusted": told.trusted,
                "late": False,
                "change": change,
                "graph": graph,
                "form": one.query.form,
                "variables": list(one.query.variables),
                "rows": rows,
                "incomplete": False,
                "request": None,
            }


def _key(row: Any) -> MatchKey:
    return MatchKey._make([*(row[name] for name in MatchKey._fields[:-1]), row["graph"] or ""])


def _sortable(row: Sequence[Term | None]) -> list[tuple[bool, str]]:
    return [(term is not None, term or "") for term in row]
