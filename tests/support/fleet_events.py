"""Frames of records and of compound events, from N-Quads text."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyoxigraph as ox

from lamplighter.cloud_sync.fleet.events.events import EVENT
from lamplighter.cloud_sync.fleet.lake.tables import BRONZE
from lamplighter.engine.change_log import VERSION, Cause, Record
from lamplighter.engine.terms import Quad
from lamplighter.ontology.vocabulary import PREFIXES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GATEWAY = "gw-1"
BASE = "http://example.org/"
START = datetime(2026, 6, 1, tzinfo=UTC)
_PREFIXES = "".join(f"PREFIX {name}: <{iri}> " for name, iri in {**PREFIXES, "": BASE}.items())

Triple = tuple[str, str, str, bool]
Key = tuple[str, int, int, str, str | None]
"""Gateway, epoch, sequence, change, graph."""


@dataclass(frozen=True)
class PlainEvent:
    """A row of EVENT. new, old: triples as Turtle text."""

    seq: int
    new: str
    old: str = ""
    gw: str = GATEWAY
    epoch: int = 1
    change: str = "added"
    graph: str | None = None
    trusted: bool = True
    request: str | None = None

    def row(self) -> dict[str, Any]:
        triples = [(*one, True) for one in triples_of(self.new)] + [(*one, False) for one in triples_of(self.old)]
        return {
            "gw": self.gw,
            "epoch": self.epoch,
            "seq": self.seq,
            "ts": START + timedelta(seconds=self.seq),
            "trusted": self.trusted,
            "change": self.change,
            "graph": self.graph,
            "triples": triples,
            "cause_kind": "mqtt",
            "cause_id": "topic",
            "cause_seq": None,
            "request": self.request,
        }


def event_frame(spark: "SparkSession", events: Iterable[PlainEvent]) -> "DataFrame":
    """EVENT."""
    return frame(spark, EVENT, [event.row() for event in events])


def triples_of(text: str) -> list[tuple[str, str, str]]:
    """The triples of Turtle text, as terms of the change log."""
    return [(quad.s, quad.p, quad.o) for quad in quads_of(text)]


def quads_of(text: str) -> list[Quad]:
    """The quads of TriG or N-Quads text, in order. TriG may use the prefixes of the vocabulary, and the empty one."""
    try:
        found = list(ox.parse(_PREFIXES + text, ox.RdfFormat.TRIG))
    except SyntaxError:
        found = list(ox.parse(text, ox.RdfFormat.N_QUADS))
    return list(map(_quad, found))


def _quad(quad: ox.Quad) -> Quad:
    graph = None if quad.graph_name == ox.DefaultGraph() else str(quad.graph_name)
    return Quad(str(quad.subject), str(quad.predicate), str(quad.object), graph)


def commit(
    seq: int, *, a: str = "", d: str = "", k: str = "", gw: str = GATEWAY, epoch: int = 1, **members: Any
) -> Record:
    """A commit of quads in TriG or N-Quads text."""
    ts = (START + timedelta(seconds=seq)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    quads = {name: tuple(quads_of(text)) for name, text in (("a", a), ("d", d), ("k", k))}
    members = {"cause": Cause("mqtt", "topic"), **members}
    return Record(VERSION, "commit", gw, epoch, seq, ts, True, "boot", seq * 1_000_000, **quads, **members)


def record_frame(spark: "SparkSession", records: Iterable[Record]) -> "DataFrame":
    """BRONZE."""
    return frame(spark, BRONZE, map(_bronze_row, records))


def _bronze_row(record: Record) -> dict[str, Any]:
    cause = record.cause
    return {
        **{name: getattr(record, name) for name in ("gw", "epoch", "seq", "trusted", "boot", "boottime_us", "type")},
        "ts": datetime.fromisoformat(record.ts),
        "cause_kind": cause.kind if cause else None,
        "cause_id": cause.id if cause else None,
        "cause_seq": cause.seq if cause else None,
        "request": record.request,
        **{name: [tuple(quad) for quad in getattr(record, name)] or None for name in "dak"},
    }


def frame(spark: "SparkSession", schema: str, rows: Iterable[dict[str, Any]]) -> "DataFrame":
    """Rows by name; what is missing is null."""
    empty = spark.createDataFrame([], schema)
    made = [tuple(row.get(name) for name in empty.columns) for row in rows]
    return spark.createDataFrame(made, empty.schema)


def collected(events: "DataFrame") -> dict[Key, list[Triple]]:
    """The sorted triples of EVENT rows. Fails if two rows are of one event."""
    found: dict[Key, list[Triple]] = {}
    for row in events.collect():
        key = (row["gw"], row["epoch"], row["seq"], row["change"], row["graph"])
        assert key not in found, f"two rows of {key}"
        found[key] = sorted(map(tuple, row["triples"]))
    return found


def plain_events(records: Iterable[Record], *, deleted: bool) -> dict[Key, list[Triple]]:
    """What `events` should give, by a loop over records."""
    found: dict[Key, list[Triple]] = {}
    for record in records:
        if record.type != "commit":
            continue
        here = (record.gw, record.epoch, record.seq)
        for quad in record.a:
            found.setdefault((*here, "added", quad.g), []).append((quad.s, quad.p, quad.o, True))
        for quad in record.k:
            if (*here, "added", quad.g) in found:
                found[*here, "added", quad.g].append((quad.s, quad.p, quad.o, False))
        for quad in record.d if deleted else ():
            found.setdefault((*here, "deleted", quad.g), []).append((quad.s, quad.p, quad.o, True))
    return {key: sorted(triples) for key, triples in found.items()}
