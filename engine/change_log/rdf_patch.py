"""Change log -> RDF Patch, in which Apache Jena exchanges changes (https://jena.apache.org/documentation/rdf-patch/).

A commit becomes a patch with one transaction. Terms are written as N-Quads writes them, but for blank nodes, which Jena
writes as ``<_:label>``: a label names the same node in every patch. No prefixes, since no terms are shortened.

What the format has no rows for is left out, and that is quads that were asserted and there already, delayed updates and
whatever else changed no quad; that a graph was created or dropped stands in a comment.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator

from lamplighter.engine.change_log.codec import Record
from lamplighter.engine.terms import XSD, Quad, Term, literal

_BLANK = re.compile(r'"(?:[^"\\]|\\.)*"|<[^<>]*>|(_:[^\s<>")]+)', re.S)
"""Blank nodes in a term, which is one, or a triple term with some; literals and IRIs are passed over."""


def patch_id(record: Record) -> Term:
    """The same for the same record, for ever and everywhere; a UUID, since Jena's patch logs want one."""
    return f"<urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'lamplighter:{record.gw}/{record.epoch}/{record.seq}')}>"


def patches(records: Iterable[Record]) -> Iterator[str]:
    """The patches of those records that changed quads or graphs; each names the one before it in this sequence."""
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
