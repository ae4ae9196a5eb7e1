"""Facts of snapshots: descriptions whose segments are missing in the lake."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from lamplighter.cloud_sync.fleet.lake import Lake, TableBatch
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.lazy import pa
from lamplighter.cloud_sync.fleet.tables import streams
from lamplighter.cloud_sync.fleet.tables.bronze import read_snapshots, records
from lamplighter.cloud_sync.fleet.tables.streams import CLASSES, DESCRIBING
from lamplighter.engine.change_log import segment_name
from lamplighter.engine.terms import Term, iri
from lamplighter.ontology import vocabulary as v

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def snapshots_of(lake: Lake, gateways: Iterable[str]) -> list[str]:
    """The landed snapshots of some gateways, `<gw>/<name>`."""
    return [
        f"{gateway}/{name}"
        for gateway in gateways
        for name in lake.names("snapshots", gateway)
        if segment_name(name) is not None
    ]


def add_snapshots(spark: SparkSession, lake: Lake, new: list[str], prefix: str) -> TableBatch:
    """Writes the facts of snapshots as one batch, whose manifest names them as its segments.

    prefix: of the batch's name, so that two commands at the same time write different folders.
    """
    batch = TableBatch(id=f"{prefix}-{name_of(new)}", files=[], rows=0, segments=new)
    return table(lake, "facts").write(snapshot_facts(spark, lake, new), batch, files=1)


def snapshot_facts(spark: SparkSession, lake: Lake, snapshots: list[str]) -> DataFrame:
    """FACTS of the default graphs in snapshots."""
    lines = records(read_snapshots(spark, lake, snapshots)).where("gw IS NOT NULL")
    return streams.facts(lines, default_graph_only=True)


def name_of(sources: Iterable[str]) -> str:
    """A batch name that depends only on its sources."""
    # So a repeated run replaces what a crash left.
    return hashlib.sha256("\n".join(sorted(sources)).encode()).hexdigest()[:16]


# Columns of bronze that facts are made of.
RECORD = ("gw", "epoch", "seq", "ts", "d", "a", "k")
_WANTED = frozenset(map(iri, DESCRIBING))
_TYPE, _RESULT = iri(v.RDF_TYPE), iri(v.HAS_SIMPLE_RESULT)
_CLASSES = frozenset(map(iri, CLASSES))


class Fact(NamedTuple):
    """A row of FACTS."""

    gw: str
    epoch: int
    seq: int
    ts: Any
    added: bool
    s: Term
    p: Term
    o: Term
    g: Term | None


def single_facts(record: Mapping[str, Any]) -> Iterator[Fact]:
    """The facts of a record. A reading in a graph of its own (model `event`) does not describe a stream."""
    quads = [(name, quad) for name in "dak" for quad in record[name] or ()]
    own = {quad["g"] for _, quad in quads if quad["p"] == _RESULT and quad["g"] is not None}
    for name, quad in quads:
        describes = quad["p"] in _WANTED or (quad["p"] == _TYPE and quad["o"] in _CLASSES)
        if describes and quad["g"] not in own:
            said = {one: record[one] for one in ("gw", "epoch", "seq", "ts")}
            yield Fact(**said, added=name != "d", **quad)


def fact_table(records: Iterable[Mapping[str, Any]]) -> pa.Table:
    """FACTS of some records."""
    kinds: dict[str, Any] = {
        "epoch": pa.int32(),
        "seq": pa.int64(),
        "ts": pa.timestamp("us", "UTC"),
        "added": pa.bool_(),
    }
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in Fact._fields])
    return pa.Table.from_pylist([fact._asdict() for record in records for fact in single_facts(record)], schema)
