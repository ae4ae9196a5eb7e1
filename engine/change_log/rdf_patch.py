"""Change log -> RDF Patch, Apache Jena's format for changes (https://jena.apache.org/documentation/rdf-patch/).

A commit becomes a patch with one transaction. Terms are in N-Quads syntax, except for blank nodes, which are written as
``<_:label>``; a label names the same node in all patches. There are no prefixes.

The format has no rows for kept quads, delayed updates and other records without changed quads; they are left out.
Created and dropped graphs become comments.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator

from lamplighter.engine.change_log.codec import Record
from lamplighter.engine.terms import XSD, Quad, Term, literal

_BLANK = re.compile(r'"(?:[^"\\]|\\.)*"|<[^<>]*>|(_:[^\s<>")]+)', re.S)
"""The blank nodes of a term. Literals and IRIs are skipped."""


def patch_id(record: Record) -> Term:
    """The id of a record's patch, derived from the record's number. A UUID, as Jena's patch logs require."""
    return f"<urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'lamplighter:{record.gw}/{record.epoch}/{record.seq}')}>"


def patches(records: Iterable[Record]) -> Iterator[str]:
    """The patches of the records that change quads or graphs. Each refers to the previous one."""
    previous: Term | None = None
    for record in records:
        if record.type == "commit" and record.delta.changes:
            yield _patch(record, previous)
            previous = patch_id(record)


def _patch(record: Record, previous: Term | None) -> str:
    delta = record.delta
    rows = [
        f"H id {patch_id(record)} .",
        *([] if previous is None else [f"H prev {previous} ."]),
        f"H record {literal(f'{record.gw}/{record.epoch}/{record.seq}')} .",
        f"H time {literal(record.ts, datatype=XSD + 'dateTime')} .",
        "TX .",
        *(f"# graph dropped: {name}" for name in delta.dropped),
        *(f"D {_row(quad)} ." for quad in delta.removed),
        *(f"# graph created: {name}" for name in delta.created),
        *(f"A {_row(quad)} ." for quad in delta.added),
        "TC .",
    ]
    return "\n".join(rows) + "\n"


def _row(quad: Quad) -> str:
    text = " ".join(quad[:3]) if quad.g is None else " ".join((*quad[:3], quad.g))
    return _BLANK.sub(lambda found: f"<{found[1]}>" if found[1] else found[0], text) if "_:" in text else text
