"""Change log -> RDF Patch, Apache Jena's format for changes (https://jena.apache.org/documentation/rdf-patch/).

A commit becomes a patch with one transaction. Terms are in N-Quads syntax, except for blank nodes, which are written as
``<_:label>``; a label names the same node in all patches. There are no prefixes.

The format has no rows for kept quads, delayed updates and other records without changed quads; they are left out.
Created and dropped graphs become comments.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping

from lamplighter.engine.change_log.codec import Record
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.terms import XSD, Quad, Term, literal

# The rows around a transaction.
BEGIN, END = "TX .", "TC ."
# The blank nodes of a term. Literals and IRIs are skipped.
_BLANK = re.compile(r'"(?:[^"\\]|\\.)*"|<[^<>]*>|(_:[^\s<>")]+)', re.S)


def patch_id(record: Record) -> Term:
    """The id of a record's patch, derived from the record's number. A UUID, as Jena's patch logs require."""
    return f"<urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'lamplighter:{record.gw}/{record.epoch}/{record.seq}')}>"


def patches(records: Iterable[Record]) -> Iterator[str]:
    """The patches of the records that change quads or graphs. Each refers to the previous one."""
    previous: Term | None = None
    for record in records:
        if record.type == "commit" and record.delta.changes:
            name = patch_id(record)
            place = {"record": literal(f"{record.gw}/{record.epoch}/{record.seq}")}
            yield patch(header(name, previous, place, record.ts), change_rows(record.delta))
            previous = name


def header(name: Term, previous: Term | None, place: Mapping[str, Term], ts: str) -> Iterator[str]:
    """The rows before the transaction. name, previous: ids of the patch, and of the one before it; place: what it says
    of its place; ts: its time."""
    yield f"H id {name} ."
    if previous is not None:
        yield f"H prev {previous} ."
    for key, value in place.items():
        yield f"H {key} {value} ."
    yield f"H time {literal(ts, datatype=XSD + 'dateTime')} ."


def patch(header: Iterable[str], rows: Iterable[str]) -> str:
    """A patch with one transaction."""
    return "\n".join([*header, BEGIN, *rows, END]) + "\n"


def change_rows(delta: QuadDelta) -> Iterator[str]:
    """The rows of a delta. A graph is dropped when its quads are deleted."""
    yield from (f"D {_row(quad)} ." for quad in delta.removed)
    yield from (f"# graph dropped: {name}" for name in delta.dropped)
    yield from (f"# graph created: {name}" for name in delta.created)
    yield from (f"A {_row(quad)} ." for quad in delta.added)


def _row(quad: Quad) -> str:
    text = " ".join(quad[:3]) if quad.g is None else " ".join((*quad[:3], quad.g))
    return _BLANK.sub(lambda found: f"<{found[1]}>" if found[1] else found[0], text) if "_:" in text else text
