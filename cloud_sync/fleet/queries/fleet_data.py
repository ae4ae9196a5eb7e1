"""What a query over a fleet is asked of: the state of the gateways, or their history, as quads in rows of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.events.completion import PastDescriptions
from lamplighter.cloud_sync.fleet.events.events import ADDED, DELETED, events
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.lazy import F
from lamplighter.cloud_sync.fleet.sparql.csma import EVENT_KEY
from lamplighter.cloud_sync.fleet.sparql.stars import star_predicates
from lamplighter.cloud_sync.fleet.sparql.supported import FleetQuery
from lamplighter.cloud_sync.fleet.tables.past import FleetPast
from lamplighter.engine.sparql.algebra import Bgp, Constant, Graph, Pattern, Values, Variable, walk
from lamplighter.engine.tables import count_text
from lamplighter.engine.terms import Term

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# The columns that all triples of an event share, with the time of its commit.
HISTORY_KEY = (*EVENT_KEY, "ts")
# Matches strings and IRIs, which are skipped, or a blank node. A term never contains a raw .
_BLANK = r'("(?:[^"\\]|\\.)*"|<[^<>]*>)|(_:[^\s<>")]+)'


@dataclass(frozen=True)
class FleetData:
    """quads, key: as `csma.solutions` takes them; left_out: gateways whose state is unknown."""

    quads: DataFrame
    key: tuple[str, ...]
    left_out: tuple[str, ...] = ()


def state(
    spark: SparkSession,
    lake: Lake,
    query: FleetQuery,
    *,
    wanted: Callable[[str], bool],
    at: datetime | None,
    per_gateway: bool,
    say: Callable[[str], None],
) -> FleetData:
    """The union of the gateways' datasets at the end of their logs. at: as of this time, by each gateway's clock.

    per_gateway: a dataset for each gateway instead. If records are missing, the dataset is that of the last record
    before the hole; `say` gets a line for each such gateway. Only the quads that the query may use are in it.
    """
    past = FleetPast(spark, lake, wanted)
    places, left_out = {}, []
    for gateway, end in sorted(past.ends(at).items()):
        place = past.last_known_place(gateway, end)
        if place is None:
            left_out.append(gateway)
            say(f"gateway {gateway}: left out, because {past.way(gateway, end)} are missing; ship and ingest them")
            continue
        places[gateway] = place
        if place != end:
            say(
                f"gateway {gateway}: as of record {place[0]}/{place[1]} instead of {end[0]}/{end[1]}, because "
                f"{past.way(gateway, end)} are missing"
            )
    say(f"the state of {count_text(len(places), 'gateway', ',')}")
    predicates = None if _uses_names_alone(query, per_gateway) else predicates_of(query)
    quads = past.dataset(places, predicates).select(
        "gw", *(_of_gateway(part).alias(part) for part in "spo"), _of_gateway("g").alias("graph")
    )
    if per_gateway:
        return FleetData(by_subject(quads, query, "gw"), ("gw",), tuple(left_out))
    return FleetData(by_subject(quads.drop("gw"), query).distinct(), (), tuple(left_out))


def history(
    spark: SparkSession,
    lake: Lake,
    query: FleetQuery,
    *,
    wanted: Callable[[str], bool],
    changes: str,
    say: Callable[[str], None],
) -> FleetData:
    """All events, completed as for subscriptions: each event is a graph of its own. changes: as of a subscription."""
    past = FleetPast(spark, lake, wanted)
    say(f"the history of {count_text(len(past.gateways), 'gateway', ',')}")
    descriptions = PastDescriptions(spark, lake, table(lake, "bronze").live())
    predicates = predicates_of(query)
    records = past.records
    if predicates is not None:
        wanted_predicates = F.array(*map(F.lit, sorted(predicates))).cast("ARRAY<STRING>")
        records = records.where(
            F.arrays_overlap(F.concat(*(F.coalesce(f"{name}.p", F.array()) for name in "ad")), wanted_predicates)
        )
    found = events(records, deleted=changes != "added")
    if changes != "both":
        found = found.where(F.col("change") == {"added": ADDED, "deleted": DELETED}[changes])
    quads = descriptions.complete(found).select(*HISTORY_KEY, F.inline("triples"))
    if predicates is not None:
        quads = quads.where(F.col("p").isin(sorted(predicates)))
    parts = {part: _of_gateway(part) for part in ("s", "p", "o", "graph")}
    return FleetData(quads.withColumns(parts), HISTORY_KEY)


def predicates_of(query: FleetQuery) -> frozenset[Term] | None:
    """The predicates of the triples that a query can use; None for any."""
    found = set()
    for one in walk(query.tree):
        if isinstance(one, Pattern):
            if isinstance(one.p, Variable):
                return None
            found.add(query.constants[one.p.number] if isinstance(one.p, Constant) else one.p)
    return frozenset(found)


def by_subject(quads: DataFrame, query: FleetQuery, *key: str) -> DataFrame:
    """For a query with stars, the quads partitioned by subject: neither a star nor `distinct` shuffles them again."""
    # The number of partitions is explicit, so that adaptive execution keeps them apart.
    if not star_predicates(query):
        return quads
    return quads.repartition(int(str(quads.sparkSession.conf.get("spark.sql.shuffle.partitions"))), *key, "s")


def _uses_names_alone(query: FleetQuery, per_gateway: bool) -> bool:
    """Whether gateways or graphs may be in a solution without a quad that the query uses."""
    alone = [one for one in walk(query.tree) if isinstance(one, Values) or one == Bgp(())]
    return (per_gateway and bool(alone)) or any(isinstance(one, Graph) for one in walk(query.tree))


def _of_gateway(name: str) -> Column:
    """A term in which blank nodes have labels that those of no other gateway have."""
    term = F.col(name)
    label = F.concat(F.lit("_:g"), F.substring(F.sha1("gw"), 1, 16), F.lit("-"))
    marked = F.regexp_replace(term, _BLANK, "$1\x01$2")
    nested = F.replace(F.replace(marked, F.lit("\x01_:"), label), F.lit("\x01"), F.lit(""))
    return (
        F.when(term.startswith("_:"), F.concat(label, F.substring(term, F.lit(3), F.length(term))))
        .when(term.startswith("<<("), nested)
        .otherwise(term)
    )
