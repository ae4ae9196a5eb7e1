"""The terms of RDF 1.2 come back as they were: from records, snapshots, documents, results and deltas.

`tests/whole_gateway/gates/http/test_triple_terms.py` has the same for a gateway.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyoxigraph as ox
import pytest

from lamplighter.engine import Engine
from lamplighter.engine.change_log import Record, decode, encode
from lamplighter.engine.terms import Quad, Term, term_from_json, term_to_json
from lamplighter.gateway.log.snapshots import read_snapshot, write
from tests.rdf12.cases import TERMS
from tests.support.oracle import canonical, respelled, term_text
from tests.support.tables import each_row

QUADS = tuple(
    Quad("<a:s>", f"<a:p{number}>", term, "<a:g>" if number % 2 else None) for number, term in enumerate(TERMS)
)
WITHOUT_BLANKS = tuple(quad for quad in QUADS if "_:" not in quad.o)
RECORD = Record(1, "commit", "gw", 1, 1, "2026-11-26T02:00:00.123456Z", True, "b", 5, a=QUADS)


def nquads(quads: tuple[Quad, ...] = QUADS) -> str:
    return "".join(f"{quad.to_nquads()}\n" for quad in quads)


def store() -> ox.Store:
    found = ox.Store()
    found.load(nquads(), ox.RdfFormat.N_QUADS)
    return found


def data() -> str:
    """The quads without blank nodes, as INSERT DATA takes them."""
    return " ".join(
        f"GRAPH {quad.g} {{ {quad.s} {quad.p} {quad.o} }}" if quad.g else f"{quad.s} {quad.p} {quad.o} ."
        for quad in WITHOUT_BLANKS
    )


@each_row("term", TERMS)
def test_a_term_is_spelled_as_the_store_spells_it(term: Term) -> None:
    assert respelled(term) == term
    assert term_from_json(term_to_json(term)) == term
    (solution,) = ox.parse_query_results(
        msgspec.json.encode({"head": {"vars": ["x"]}, "results": {"bindings": [{"x": term_to_json(term)}]}}),
        ox.QueryResultsFormat.JSON,
    )
    assert term_text(solution["x"]) == term


def test_records_and_snapshots_keep_terms(tmp_path: Path) -> None:
    record = msgspec.structs.replace(RECORD, d=QUADS[:3])
    assert decode(encode(record)[:-1]) == record
    path = tmp_path / "snapshot"
    with path.open("wb") as out:
        write(out, msgspec.structs.replace(RECORD, a=()), ["<a:g>"], b"{}", [QUADS])
    _, batches = read_snapshot(path)
    assert tuple(quad for batch in batches for quad in batch) == QUADS


@pytest.mark.parametrize("syntax", [ox.RdfFormat.N_QUADS, ox.RdfFormat.TRIG])
def test_documents_of_datasets_keep_terms(syntax: ox.RdfFormat) -> None:
    document = store().dump(format=syntax)
    assert document is not None
    with Engine() as engine, Engine() as other:
        engine.load(document, syntax.media_type)
        other.load(engine.dump(syntax.media_type), syntax.media_type)
        assert canonical(ox.parse(other.dump("application/n-quads"), ox.RdfFormat.N_QUADS)) == canonical(store())


@each_row("syntax", [ox.RdfFormat.N_TRIPLES, ox.RdfFormat.TURTLE, ox.RdfFormat.RDF_XML])
def test_documents_of_graphs_keep_terms(syntax: ox.RdfFormat) -> None:
    triples = ox.Store()
    triples.extend(ox.Quad(quad.subject, quad.predicate, quad.object) for quad in store())
    document = triples.dump(format=syntax, from_graph=ox.DefaultGraph())
    assert document is not None
    with Engine() as engine:
        engine.load(document, syntax.media_type)
        assert canonical(ox.parse(engine.dump("application/n-quads"), ox.RdfFormat.N_QUADS)) == canonical(triples)


def test_updates_and_deltas_keep_terms() -> None:
    with Engine() as engine:
        subscription = engine.subscribe("SELECT ?o { { ?s ?p ?o } UNION { GRAPH ?g { ?s ?p ?o } } }")
        commit = engine.update(f"INSERT DATA {{ {data()} }}")
        assert set(commit.added) == set(WITHOUT_BLANKS)
        (notification,) = commit.notifications
        assert notification.spuid == subscription.spuid
        assert {row[0] for row in notification.added.rows} == {quad.o for quad in WITHOUT_BLANKS}
        assert set(engine.update(f"DELETE DATA {{ {data()} }}").removed) == set(WITHOUT_BLANKS)
        assert engine.quad_count == 0
