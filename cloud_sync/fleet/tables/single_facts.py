"""A record of bronze -> its quads that describe streams, without Spark, as `streams.facts` makes a frame of many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from lamplighter.cloud_sync.fleet.lazy import pa
from lamplighter.cloud_sync.fleet.tables.streams import CLASSES, DESCRIBING
from lamplighter.engine.terms import Term, iri
from lamplighter.ontology import vocabulary as v

if TYPE_CHECKING:
    import pyarrow

RECORD = ("gw", "epoch", "seq", "ts", "d", "a", "k")
"""Columns of bronze that facts are made of."""
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


def fact_table(records: Iterable[Mapping[str, Any]]) -> pyarrow.Table:
    """FACTS of some records."""
    kinds: dict[str, Any] = {
        "epoch": pa.int32(),
        "seq": pa.int64(),
        "ts": pa.timestamp("us", "UTC"),
        "added": pa.bool_(),
    }
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in Fact._fields])
    return pa.Table.from_pylist([fact._asdict() for record in records for fact in single_facts(record)], schema)
