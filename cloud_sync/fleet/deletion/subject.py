"""Everything about one subject: the quads that name it, its observations, and the events in which they were."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from lamplighter.cloud_sync.early_notifications import EarlyNotification
from lamplighter.cloud_sync.fleet.deletion.selection import blank_rows
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.lake.forgotten import FOLDER, ForgottenGateways
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.lazy import pa, pc
from lamplighter.cloud_sync.fleet.subscriptions.push import PushedOrder
from lamplighter.engine.errors import ConfigurationError
from lamplighter.ontology import vocabulary as v

# Gateway, epoch, sequence, and the graph as a term.
Event = tuple[str, int, int, str | None]

_PENDING = "subject.json"
_QUADS, _GRAPHS = ("d", "a", "k"), ("created", "dropped")
_TEXTS = ("timer", "cancel", "gap", "subscribe", "unsubscribe", "request", "cause_id")
# Columns that make a row one of the subject. Where another column has it, only its value is removed.
_OWN = {
    "streams": ("stream", "sensor", "feature", "observation"),
    "observations": ("observation", "graph", "stream", "sensor", "feature", "value"),
    "actuations": ("actuator", "value"),
}
_OTHER = {"streams": ("property", "platform", "unit", "topic", "label"), "observations": ("property", "unit")}
_MADE = {f"<{one}>" for one in (v.MADE_BY_SENSOR, v.MADE_BY_ACTUATOR, v.HAS_FEATURE_OF_INTEREST)}
_LIVE = f"<{v.LIVE_OBSERVATION}>"


class SubjectTrace(msgspec.Struct, frozen=True):
    """What leads to the data of a subject: terms, events and segments. `<lake>/deletions/subject.json` has it until the
    deletion is complete, because a part of the links is gone when one was killed. subject: keyed hash."""

    subject: str
    terms: list[str] = []
    events: list[Event] = []
    segments: list[str] = []


@dataclass(frozen=True)
class OfSubject:
    """The data of a subject. iri: without brackets; trace: as `find_trace` finds it."""

    iri: str
    trace: SubjectTrace

    @cached_property
    def terms(self) -> frozenset[str]:
        return frozenset(self.trace.terms)

    @cached_property
    def plain(self) -> frozenset[str]:
        return frozenset(one[1:-1] for one in self.terms)

    @cached_property
    def events(self) -> frozenset[Event]:
        return frozenset(self.trace.events)

    @cached_property
    def _records(self) -> frozenset[tuple[str, int, int]]:
        return frozenset(one[:3] for one in self.events)

    @cached_property
    def segments(self) -> frozenset[str]:
        return frozenset(self.trace.segments)

    def columns(self, table: str) -> list[str]:
        of = {
            "bronze": (*_QUADS, *_GRAPHS, *_TEXTS),
            "facts": ("s", "p", "o", "g"),
            "matches": ("gw", "epoch", "seq", "graph", "rows"),
        }
        return list(of.get(table, (*_OWN.get(table, ()), *_OTHER.get(table, ()))))

    def removal_mask(self, table: str, rows: pa.Table) -> Any:
        """Which rows have something of the subject."""
        if table == "bronze":
            parts = [list(map(self._names_it(name), rows.column(name).to_pylist())) for name in self.columns(table)]
            return pa.array([any(flags) for flags in zip(*parts, strict=True)], pa.bool_())
        if table == "matches":
            found = zip(*(rows.column(name).to_pylist() for name in self.columns(table)), strict=True)
            return pa.array([self._is_match(one[:4], one[4] or ()) for one in found], pa.bool_())
        values = pa.array(sorted(self.terms if table == "facts" else self.plain), pa.string())
        gone = pa.array([False] * rows.num_rows, pa.bool_())
        for name in self.columns(table):
            gone = pc.or_(gone, pc.is_in(rows.column(name), values))
        return gone

    def rest(self, table: str, rows: pa.Table) -> pa.Table:
        if table == "matches":
            return blank_rows(rows, self.removal_mask(table, rows))
        if table == "bronze":
            changes: dict[str, Callable[[Any], Any]] = dict.fromkeys(_QUADS, self._other_quads)
            changes |= dict.fromkeys(_GRAPHS, self._other_graphs)
            changes |= dict.fromkeys(_TEXTS, lambda text: None if self.has(text) else text)
            for name, change in changes.items():
                number = rows.schema.get_field_index(name)
                field = rows.schema.field(number).with_nullable(True)
                column = pa.array(list(map(change, rows.column(number).to_pylist())), field.type)
                rows = rows.set_column(number, field, column)
            return rows
        values = pa.array(sorted(self.terms if table == "facts" else self.plain), pa.string())
        for name in _OWN.get(table, ("s", "p", "o", "g")):
            rows = rows.filter(pc.invert(pc.is_in(rows.column(name), values)))
        for name in _OTHER.get(table, ()):
            number = rows.schema.get_field_index(name)
            gone = pc.is_in(rows.column(number), values)
            column = pc.if_else(gone, pa.scalar(None, pa.string()), rows.column(number))
            rows = rows.set_column(number, rows.schema.field(number).with_nullable(True), column)
        return rows

    def has(self, text: str | None) -> bool:
        """Whether a text, such as that of an update, names the subject."""
        return text is not None and (f"<{self.iri}>" in text or text == self.iri)

    def is_about(self, quad: Iterable[str | None]) -> bool:
        """Whether a quad has one of the terms, also as a literal or in a triple term."""
        return any(
            one in self.terms
            or (one is not None and (one.startswith(f'"{self.iri}"') or (one.startswith("<<") and self.has(one))))
            for one in quad
        )

    def segment(self, segment: str) -> bool:
        return False  # its file is written again

    def snapshot(self, snapshot: str) -> bool:
        return False

    def notification(self, told: dict[str, Any]) -> bool:
        if "gw" in told:
            return self._is_match((told["gw"], told["epoch"], told["seq"], told["graph"]), told["rows"])
        graph = told.get("graph")
        event = (told["gateway"], told["epoch"], told["sequence"], None if graph is None else f"<{graph}>")
        bindings = told.get("results", {}).get("results", {}).get("bindings", ())
        return event in self.events or any(one["value"] in self.plain for row in bindings for one in row.values())

    def ahead(self, gateway: str, told: EarlyNotification) -> bool:
        if told.commit is not None and (gateway, *told.commit) in self._records:
            return True
        return any(one in self.plain for one in _texts([told.added, told.removed]))

    def order(self, order: PushedOrder) -> PushedOrder | None:
        """Without a query that names the subject, the next run of `push` sends the subscription again."""
        kept = msgspec.structs.replace(order, reason="") if self.has(order.reason) else order
        return msgspec.structs.replace(kept, query="") if self.has(order.query) else kept

    def _is_match(self, event: Any, rows: Iterable[Iterable[str | None]]) -> bool:
        return tuple(event) in self.events or event[3] in self.terms or any(map(self.is_about, rows))

    def _names_it(self, column: str) -> Callable[[Any], bool]:
        if column in _QUADS:
            return lambda quads: any(self.is_about(quad.values()) for quad in quads or ())
        if column in _GRAPHS:
            return lambda graphs: any(one in self.terms for one in graphs or ())
        return self.has

    def _other_graphs(self, graphs: list[str] | None) -> list[str] | None:
        return [one for one in graphs or () if one not in self.terms] or None

    def _other_quads(self, quads: list[dict[str, str | None]] | None) -> list[dict[str, str | None]] | None:
        return [quad for quad in quads or () if not self.is_about(quad.values())] or None


def _texts(document: Any) -> Iterator[str]:
    """All texts in a JSON document."""
    left = [document]
    while left:
        one = left.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            left += one.values()
        elif isinstance(one, list):
            left += one


def find_trace(lake: Lake, iri: str) -> SubjectTrace:
    """Finds the terms of a subject, and the events and segments that have them.

    The terms: the IRI; streams and observations that were made by it as a sensor or an actuator, or have it as their
    feature of interest; the live observations of these streams, and the streams of these live observations; graphs
    that have nothing else. A deletion that was killed has left a trace, which is joined.
    """
    subject = ForgottenGateways.of(lake).hash(iri)
    before = pending(lake)
    if before is not None and before.subject != subject:
        raise ConfigurationError(
            f"lake {lake.url!r}: the deletion of another subject is not complete; repeat that one first"
        )
    made, live = set(), set()
    for s, p, o in _links(lake):
        if p in _MADE and o == f"<{iri}>":
            made.add(s)
        elif p == _LIVE:
            live.add((s, o))
    made |= {stream for stream, observation in live if observation in made}
    terms = {f"<{iri}>", *made} | {one for stream, one in live if stream in made or stream == f"<{iri}>"}
    terms |= set() if before is None else set(before.terms)
    found = OfSubject(iri, SubjectTrace(subject, sorted(terms)))
    events = set() if before is None else set(before.events)
    segments = set() if before is None else set(before.segments)
    own, shared = set(), set()
    for rows in _bronze(lake, ["gw", "epoch", "seq", "segment", *found.columns("bronze")]):
        segments |= set(rows.column("segment").filter(found.removal_mask("bronze", rows)).to_pylist())
        for row in rows.select(["gw", "epoch", "seq", *_QUADS]).to_pylist():
            for quad in (quad for name in _QUADS for quad in row[name] or ()):
                if found.is_about(quad.values()):
                    events.add((row["gw"], row["epoch"], row["seq"], quad["g"]))
                    own.add(quad["g"])
                else:
                    shared.add(quad["g"])
    terms |= own - shared - {None}
    return SubjectTrace(subject, sorted(terms), sorted(events, key=repr), sorted(segments))


def pending(lake: Lake) -> SubjectTrace | None:
    """The trace of a deletion that is not complete."""
    path = lake.path(FOLDER, _PENDING)
    try:
        return msgspec.json.decode(lake.fs.cat_file(path), type=SubjectTrace)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"{path}: damaged: {error}; remove it, and repeat the deletion") from error


def begin(lake: Lake, trace: SubjectTrace) -> None:
    """Writes the trace."""
    lake.write(msgspec.json.encode(trace) + b"\n", FOLDER, _PENDING)


def end(lake: Lake) -> None:
    """Removes the trace."""
    lake.fs.rm_file(lake.path(FOLDER, _PENDING))


def _bronze(lake: Lake, columns: list[str]) -> Iterator[pa.Table]:
    from pyarrow.parquet import ParquetFile

    bronze = table(lake, "bronze")
    for name in [name for batch in bronze.live() for name in batch.files]:
        with lake.fs.open(lake.path(bronze.name, name), "rb") as file:
            opened = ParquetFile(file)
            for number in range(opened.num_row_groups):
                yield opened.read_row_group(number, columns)


def _links(lake: Lake) -> Iterator[tuple[str, str, str]]:
    """Triples that link sensors, features, streams and observations, of records and of snapshots."""
    from pyarrow.parquet import read_table

    for rows in _bronze(lake, list(_QUADS)):
        for row in rows.to_pylist():
            for name in _QUADS:
                for quad in row[name] or ():
                    if quad["p"] in _MADE or quad["p"] == _LIVE:
                        yield quad["s"], quad["p"], quad["o"]
    facts = table(lake, "facts")
    for name in [name for batch in facts.live() for name in batch.files]:
        with lake.fs.open(lake.path(facts.name, name), "rb") as file:
            columns = read_table(file, columns=["s", "p", "o"])
            yield from zip(*(columns.column(one).to_pylist() for one in ("s", "p", "o")), strict=True)
