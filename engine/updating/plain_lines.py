"""Plain lines: N-Triples and N-Quads as the store writes them -> quads, without a native object of each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pyoxigraph as ox

from lamplighter.engine.sparql.skeletons import is_canonical
from lamplighter.engine.term_bounds import SHORT
from lamplighter.engine.terms import Quad, Term

# Of a document that are read at once. More would not stay in the processor's cache: 1 MiB takes a third longer.
_BATCH_BYTES = 64 * 1024
_IRI = f"<[^>]{{1,{SHORT - 2}}}+>"
_SIGNS = r'[^"\\\x00-\x1f\x7f\ufffe\uffff]*+'
_LITERAL = rf'"{_SIGNS}(?:\\["\\nrtbf]{_SIGNS}|(?!))*+"(?:\^\^{_IRI}|@[a-z]{{2,3}}(?:-[a-z]{{2}})?)?'
_TRIPLE = rf"^({_IRI}) ({_IRI}) ({_IRI}|{_LITERAL})"
# A triple whose strings and language tags are valid and canonical. Nothing is said of its IRIs and datatypes.
_TRIPLE_LINE = re.compile(rf"{_TRIPLE}() \.\n", re.M)
# The same with or without a graph.
_QUAD_LINE = re.compile(rf"{_TRIPLE}(?: ({_IRI}))? \.\n", re.M)
# Creates a named tuple in half the time of its own constructor.
_new: Any = tuple.__new__


def plain_quads(document: bytes, graph: Term | None, *, has_graphs: bool) -> list[Quad] | None:
    """The quads of N-Triples or N-Quads in order, or None if the document has a line that is not plain.

    A plain line is a valid statement in the store's canonical form, with a newline behind it. It has no blank node and
    no triple term, no term of more than `SHORT` characters, and no datatype but those of `is_canonical`. graph: the
    graph of the triples. has_graphs: whether lines may have a graph. Equal terms of neighbouring lines are one text.
    """
    if not document.endswith(b"\n"):
        return None
    line = _QUAD_LINE if has_graphs else _TRIPLE_LINE
    found: list[Quad] = []
    try:
        for text in _batches(document):
            lines = line.findall(text)
            if len(lines) != text.count("\n"):
                return None
            subject, texts = "", dict[Term, Term]()
            one = texts.setdefault
            for s, p, o, g in lines:
                if s != subject:
                    subject = one(s, s)
                found.append(_new(Quad, (subject, one(p, p), one(o, o), one(g, g) if g else graph)))
            for term in texts:
                if term[0] == "<":
                    ox.NamedNode(term[1:-1])
                elif len(term) > SHORT or (term[-1] == ">" and not is_canonical(term)):
                    return None
    except ValueError:  # an invalid IRI, or bytes that are not UTF-8
        return None
    return found


def _batches(document: bytes) -> Iterator[str]:
    """The text of a document in parts that end with a line, as the document does."""
    start, end = 0, len(document)
    while start < end:
        stop = document.index(b"\n", min(start + _BATCH_BYTES, end - 1)) + 1
        yield document[start:stop].decode()
        start = stop
