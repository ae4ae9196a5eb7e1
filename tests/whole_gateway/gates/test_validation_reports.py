"""A refusal by shapes over HTTP and WebSocket: 422, with the validation report as JSON-LD or Turtle."""

from __future__ import annotations

import json
from pathlib import Path

import pyoxigraph as ox
from websockets.asyncio.client import connect

from tests.support.running_gateway import ask, http, rows, running_gateway, update
from tests.support.shacl_engine import PREFIXES
from tests.support.shacl_results import SH, ResultRow, result_rows

SHAPES = f"""{PREFIXES}
:Lamp a sh:NodeShape ; sh:targetClass :Lamp ; sh:property :Level .
:Level sh:path ( :part :level ) ; sh:minCount 1 ; sh:maxInclusive 100 ; sh:message "0 to 100"@en .
"""
BAD = f"{PREFIXES} INSERT DATA {{ :b a :Lamp ; :part [ :level 101 ] }}"


def triples_of(report: bytes, syntax: ox.RdfFormat) -> list[tuple[str, str, str]]:
    """In an order, with blank nodes in one spelling for all reports."""
    found = ox.Dataset(ox.parse(report, format=syntax))
    found.canonicalize(ox.CanonicalizationAlgorithm.UNSTABLE)
    return sorted((str(quad.subject), str(quad.predicate), str(quad.object)) for quad in found)


async def test_a_refusal_has_the_report_over_both_gates(tmp_path: Path) -> None:
    (tmp_path / "lamps.ttl").write_text(SHAPES)
    async with running_gateway(tmp_path, shacl={"shapes": ["lamps.ttl"]}) as addresses:
        answer = await update(addresses, BAD)
        assert answer.status == 422
        assert answer.json["error"] == "shacl_violation"
        assert "<http://e/b> at (<http://e/part>/<http://e/level>) value" in answer.json["error_description"]
        triples = triples_of(json.dumps(answer.json["report"]).encode(), ox.RdfFormat.JSON_LD)
        assert result_rows(triples) == {
            ResultRow(
                "<http://e/b>",
                "<http://e/part> <http://e/level>",
                '"101"^^<http://www.w3.org/2001/XMLSchema#integer>',
                f"<{SH}MaxInclusiveConstraintComponent>",
                f"<{SH}Violation>",
                "<http://e/Level>",
            )
        }
        members = {p: o for _, p, o in triples}
        assert members[f"<{SH}conforms>"] == '"false"^^<http://www.w3.org/2001/XMLSchema#boolean>'
        assert members[f"<{SH}resultMessage>"] == '"0 to 100"@en'
        for accept, media_type in (
            ("text/turtle", "text/turtle"),
            ("text/turtle, application/json;q=0.9", "text/turtle"),
            ("*/*", "application/json"),
            ("application/json, text/turtle", "application/json"),
            ("image/png", "application/json"),
        ):
            sent = {"Content-Type": "application/sparql-update", "Accept": accept}
            negotiated = await http(addresses.update, "POST", BAD, sent)
            assert (negotiated.status, negotiated.media_type) == (422, media_type), accept
            assert "Accept" in negotiated.headers["vary"]
            if media_type == "text/turtle":
                assert triples_of(negotiated.body, ox.RdfFormat.TURTLE) == triples
        async with connect(addresses.subscribe) as socket:
            refused = await ask(socket, {"update": {"sparql": BAD, "alias": "x"}})
        assert (refused["status_code"], refused["alias"], refused["report"]) == (422, "x", answer.json["report"])
        assert await rows(addresses, "SELECT ?s { ?s ?p ?o }") == []
        figures = (await http(f"{addresses.page}figures")).json
        assert figures["shacl"] == {"shapes": 2, "violations": 0}
