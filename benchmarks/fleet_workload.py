"""Records, and queries of subscriptions, for the benchmark of the fleet's subscriptions.

Chains are the workload of EventCloud (Pellegrino 2013, 5): a compound event of k quads in one graph, in which each
object is the next subject, and subscriptions with one pattern for each quad. Readings are those of sensors in model
`event`.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice, product
from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.lake.tables import BRONZE
from lamplighter.cloud_sync.fleet.sparql.supported import fleet_query
from lamplighter.cloud_sync.fleet.subscriptions.matching import FollowedSubscription
from lamplighter.cloud_sync.fleet.subscriptions.records import SubscriptionRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LENGTH = 5
"""Quads of a chain, and patterns of its subscription."""
SENSORS = 10_000
ACCEPT_ALL = "SELECT ?g WHERE { GRAPH ?g { ?s ?p ?o } }"
SOSA, XSD = "http://www.w3.org/ns/sosa/", "http://www.w3.org/2001/XMLSchema#"
_BASE = "http://www.example.org"
_PREFIX = f"PREFIX sosa: <{SOSA}> "
_RDF_TYPE = "http://www.w3.org/1999/02/22-rdf-syntax-ns#type"
_GATEWAYS = 50
_SEGMENT_RECORDS = 1000


def chains(spark: "SparkSession", count: int, kinds: int = 1) -> "DataFrame":
    """BRONZE: compound events of LENGTH quads and about 670 bytes. Event i matches chain_query(i % kinds)."""
    quads = [
        _quad(
            f"concat('<{_BASE}/events/', id, '/resource/{step}>')",
            f"concat('<{_BASE}/predicates/', id % {kinds}, '/{step}>')",
            f"concat('<{_BASE}/events/', id, '/resource/{step + 1}>')",
            f"concat('<{_BASE}/graphs/event/', id, '>')",
        )
        for step in range(1, LENGTH + 1)
    ]
    return _bronze(spark, count, quads)


def chain_query(kind: int = 0) -> str:
    """The query of Pellegrino 2013, 5, with k patterns."""
    steps = " . ".join(
        f"{'?s1' if step == 1 else f'?o{step - 1}'} <{_BASE}/predicates/{kind}/{step}> ?o{step}"
        for step in range(1, LENGTH + 1)
    )
    return f"SELECT * WHERE {{ GRAPH ?g {{ {steps} }} }}"


def readings(spark: "SparkSession", count: int, *, sensors: int = SENSORS, share: float = 1.0) -> "DataFrame":
    """BRONZE: readings of six quads in a graph of their own.

    A part (`share`) of them are of sensors 0 to `sensors` - 1 in turns; the others are of sensors that have no
    subscription.
    """
    every = max(1, round(1 / share))
    sensor = f"if(id % {every} = 0, concat('', (id div {every}) % {sensors}), concat('other/', id % {SENSORS}))"
    observation, graph = f"concat('<{_BASE}/observation/', id, '>')", f"concat('<{_BASE}/graph/', id, '>')"
    described = [
        (_RDF_TYPE, f"'<{SOSA}Observation>'"),
        (f"{SOSA}madeBySensor", f"concat('<{_BASE}/sensor/', {sensor}, '>')"),
        (f"{SOSA}observedProperty", f"concat('<{_BASE}/property/', id % 8, '>')"),
        (f"{SOSA}hasFeatureOfInterest", f"concat('<{_BASE}/post/', id % 1000, '>')"),
        (f"{SOSA}hasSimpleResult", f"concat('\"', id % 40, '.5\"^^<{XSD}decimal>')"),
        (f"{SOSA}resultTime", f"concat('\"2026-06-01T', lpad(id % 24, 2, '0'), ':00:00Z\"^^<{XSD}dateTime>')"),
    ]
    return _bronze(spark, count, [_quad(observation, f"'<{p}>'", o, graph) for p, o in described])


def fine_query(number: int) -> str:
    """The readings of one sensor: queries of one shape, each with constants of its own."""
    return (
        f"{_PREFIX}SELECT ?value ?time WHERE {{ GRAPH ?g {{ ?o sosa:madeBySensor <{_BASE}/sensor/{number}> ; "
        f"sosa:hasSimpleResult ?value ; sosa:resultTime ?time }} FILTER(?value < {1000 + number}) }}"
    )


def star_query(patterns: int) -> str:
    """All readings, by 1 to 6 patterns with one subject."""
    predicates = ("hasSimpleResult", "resultTime", "observedProperty", "madeBySensor", "hasFeatureOfInterest")
    parts = [*(f"sosa:{one} ?v{number}" for number, one in enumerate(predicates)), "a sosa:Observation"]
    return f"{_PREFIX}SELECT * WHERE {{ GRAPH ?g {{ ?o {' ; '.join(parts[:patterns])} }} }}"


def shaped_queries(count: int) -> list[str]:
    """Queries of different shapes, 256 at most: with and without a filter, OPTIONAL, BIND and further patterns."""
    parts = (
        "?o sosa:resultTime ?time .",
        "?o sosa:observedProperty ?property .",
        "?o sosa:hasFeatureOfInterest ?feature .",
        f"OPTIONAL {{ ?o <{_BASE}/unit> ?unit }}",
        "FILTER(?value > -10)",
        f"FILTER(CONTAINS(STR(?sensor), '{_BASE}'))",
        "BIND(?value * 2 AS ?double)",
        "FILTER(!isBlank(?o))",
    )
    return [
        f"{_PREFIX}SELECT * WHERE {{ ?o sosa:madeBySensor <{_BASE}/sensor/{number}>, ?sensor ; "
        f"sosa:hasSimpleResult ?value . {' '.join(chosen)} }}"
        for number, chosen in enumerate(islice(_combinations(parts), count))
    ]


def _combinations(parts: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for taken in product((False, True), repeat=len(parts)):
        yield tuple(part for part, is_taken in zip(parts, taken, strict=True) if is_taken)


def followed(queries: list[str]) -> list[FollowedSubscription]:
    """Subscriptions with these queries."""
    now = datetime(2026, 6, 1, tzinfo=UTC)
    return [
        FollowedSubscription(
            SubscriptionRecord(id=f"s{number:06d}", query=query, created=now, changed=now), fleet_query(query)
        )
        for number, query in enumerate(queries)
    ]


def _quad(s: str, p: str, o: str, g: str) -> str:
    return f"named_struct('s', {s}, 'p', {p}, 'o', {o}, 'g', {g})"


def _bronze(spark: "SparkSession", count: int, quads: list[str]) -> "DataFrame":
    """BRONZE: one commit with these quads for each id, spread over the gateways."""
    values = {
        "gw": f"concat('gw-', lpad(id % {_GATEWAYS}, 6, '0'))",
        "epoch": "1",
        "seq": f"id div {_GATEWAYS} + 1",
        "ts": "timestamp_micros(1780300000000000 + id * 1000)",
        "trusted": "true",
        "boot": "'00000000-0000-0000-0000-000000000000'",
        "boottime_us": "id * 1000",
        "type": "'commit'",
        "cause_kind": "'mqtt'",
        "a": f"array({', '.join(quads)})",
        "segment": f"concat('gw-', id % {_GATEWAYS}, '/', id div {_SEGMENT_RECORDS})",
    }
    names = [field.name for field in spark.createDataFrame([], BRONZE).schema]
    types = {field.name: field.dataType.simpleString() for field in spark.createDataFrame([], BRONZE).schema}
    columns = (f"cast({values.get(name, 'null')} AS {types[name]}) AS {name}" for name in names)
    return spark.range(count).selectExpr(*columns)
