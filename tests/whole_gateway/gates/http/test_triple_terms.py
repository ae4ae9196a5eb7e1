"""Triple terms and base directions in requests and answers, and after restarts."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pyoxigraph as ox
import pytest

from lamplighter.gateway.addresses import Addresses
from lamplighter.gateway.log.snapshots import snapshots
from tests.rdf12.cases import TERMS
from tests.support.oracle import canonical, term_text
from tests.support.running_gateway import http, query, running_gateway, until, update

NAMED = tuple(term for term in TERMS if "_:" not in term)
DATA = " ".join(
    f"<a:s> <a:p{number}> {term} . GRAPH <a:g> {{ <a:s> <a:p> {term} }}" for number, term in enumerate(NAMED)
)


async def _terms(at: Addresses, media_type: str, syntax: ox.QueryResultsFormat) -> set[str]:
    answer = await query(at, "SELECT ?o { { ?s ?p ?o } UNION { GRAPH ?g { ?s ?p ?o } } }", media_type)
    assert (answer.status, answer.media_type) == (200, media_type)
    solutions = ox.parse_query_results(answer.body, syntax)
    assert isinstance(solutions, ox.QuerySolutions)
    return {term_text(solution["o"]) for solution in solutions}


async def test_a_gateway_keeps_terms_over_the_wire_and_over_restarts(tmp_path: Path) -> None:
    terms = set(NAMED)
    formats = {
        "application/sparql-results+json": ox.QueryResultsFormat.JSON,
        "application/sparql-results+xml": ox.QueryResultsFormat.XML,
        "text/tab-separated-values": ox.QueryResultsFormat.TSV,
    }
    async with running_gateway(tmp_path) as at:
        assert (await update(at, f"INSERT DATA {{ {DATA} }}")).status == 200
        for media_type, syntax in formats.items():
            assert await _terms(at, media_type, syntax) == terms, media_type
        answer = await query(at, "SELECT ?o { ?s ?p ?o }", "text/csv")
        rows = {",".join(row) for row in csv.reader(io.StringIO(answer.body.decode()))}
        assert "http://e/s http://e/p http://e/o" in rows
        graphs = at.query.replace("/query", "/graphs")
        documents = {}
        for media_type in ("text/turtle", "application/n-triples", "application/rdf+xml"):
            answer = await http(graphs, headers={"Accept": media_type}, graph="a:g")
            assert answer.status == 200
            documents[media_type] = canonical(ox.parse(answer.body, ox.RdfFormat.from_media_type(media_type)))
            put = await http(graphs, "PUT", answer.body, {"Content-Type": media_type}, graph="a:copy")
            assert put.status in (200, 201, 204), put
            same = "ASK { { GRAPH <a:g> { ?s ?p ?o } } MINUS { GRAPH <a:copy> { ?s ?p ?o } } }"
            assert (await query(at, same)).json["boolean"] is False
        assert len({frozenset(document) for document in documents.values()}) == 1
        await update(at, "DROP GRAPH <a:copy>")
    folder = tmp_path / "data" / "snapshots"

    async def taken() -> bool:
        await update(at, "INSERT DATA { <a:another> <a:record> <a:follows> } ; DELETE WHERE { <a:another> ?p ?o }")
        return bool(snapshots(folder))

    async with running_gateway(tmp_path, log={"snapshot_records": 1}) as at:  # from the log
        assert await _terms(at, "application/sparql-results+json", ox.QueryResultsFormat.JSON) == terms
        await until(taken, "a snapshot")
    async with running_gateway(tmp_path) as at:  # from a snapshot
        assert await _terms(at, "application/sparql-results+json", ox.QueryResultsFormat.JSON) == terms


CONSTRUCT = "CONSTRUCT { ?s ?p ?o } WHERE { ?s ?p ?o }"
MANY = "CONSTRUCT { ?s ?p ?o . ?t <a:q> ?u } WHERE { ?s ?p ?o . ?t <a:n> ?u }"  # too many rows for the loop


@pytest.mark.parametrize("text", [CONSTRUCT, MANY])
async def test_json_ld_has_no_triple_terms(gateway: Addresses, text: str) -> None:
    numbers = " ".join(f"<a:t> <a:n> {number} ." for number in range(600))
    await update(gateway, f"INSERT DATA {{ {DATA} {numbers} }}")
    accept = "application/ld+json"
    for answer in (
        await query(gateway, text, accept),
        await http(gateway.query.replace("/query", "/graphs"), headers={"Accept": accept}, default=""),
    ):
        assert (answer.status, answer.json["error"]) == (400, "unsupported"), answer.body
        assert "ask for text/turtle" in answer.json["error_description"]


async def test_what_the_store_cannot_evaluate_is_told_with_the_cure(gateway: Addresses) -> None:
    await update(gateway, 'INSERT DATA { <a:a> <a:p> "lit" . <a:r> <a:of> <<( <a:b> <a:q> <a:c> )>> }')
    where = "{ ?x <a:p> ?o . ?r <a:of> <<( ?o <a:q> <a:c> )>> }"
    for answer in (
        await query(gateway, f"SELECT * {where}"),
        await query(gateway, f"ASK {where}"),
        await query(gateway, f"CONSTRUCT {{ ?r <a:x> ?o }} WHERE {where}"),
        await update(gateway, f"INSERT {{ ?r <a:x> ?o }} WHERE {where}"),
    ):
        assert (answer.status, answer.json["error"]) == (500, "sparql11endpoint"), answer.body
        assert "compare SUBJECT(?t)" in answer.json["error_description"]
    cured = "SELECT * { ?x <a:p> ?o . ?r <a:of> ?t FILTER(SUBJECT(?t) = ?o) }"
    assert (await query(gateway, cured)).json["results"]["bindings"] == []
