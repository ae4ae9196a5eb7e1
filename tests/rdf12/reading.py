"""Cases as values: datasets, requests and expected rows, in the notation of `tests.support.oracle`."""

from __future__ import annotations

from collections import Counter

import pyoxigraph as ox

from tests.rdf12.cases import PREFIXES, QueryCase
from tests.support.oracle import Answer, Row, canonical, term_text
from tests.w3c.suite import in_columns, same_rows


def request(text: str) -> str:
    """A query or update with the prefixes of all cases."""
    return PREFIXES + text


def dataset(trig: str) -> ox.Store:
    store = ox.Store()
    store.load(PREFIXES + trig, ox.RdfFormat.TRIG)
    return store


def isomorphic(store: ox.Store, other: bytes) -> bool:
    """Whether a store has the quads of a document in N-Quads, up to the labels of blank nodes."""
    return canonical(store) == canonical(ox.parse(other, ox.RdfFormat.N_QUADS))


def expected(case: QueryCase) -> Counter[Row]:
    """The rows of a case, in canonical terms; blank nodes have the labels that stand there."""
    if case.rows in ("true", "false") and case.text.startswith("ASK"):
        return Counter([(f'"{case.rows}"^^<http://www.w3.org/2001/XMLSchema#boolean>',)])
    return Counter(tuple(map(_term, line.split("|"))) for line in case.rows.splitlines())


def _term(text: str) -> str | None:
    if text == "-":
        return None
    store = ox.Store()
    store.load(f"{PREFIXES} :s :p {text} .", ox.RdfFormat.TURTLE)
    (quad,) = store
    return term_text(quad.object)


def as_expected(case: QueryCase, columns: tuple[str, ...], rows: Counter[Row]) -> bool:
    """Whether these are the rows of the case, up to the labels of blank nodes; columns: the order of the text."""
    found = Answer(columns, rows.elements())
    return same_rows(in_columns(found, columns), expected(case))
