"""A secure gateway with inference: a client reads inferred triples if it reads all that they follow from."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from tests.support.running_gateway import Answer
from tests.support.secure_gateway import SecureGateway

INFERRED, ONTOLOGY = "urn:lamplighter:inferred:default", "http://e.example/ontology"
SUB_CLASS = "http://www.w3.org/2000/01/rdf-schema#subClassOf"


def test_permissions_follow_the_sources(tmp_path: Path) -> None:
    tables = {"inference": {"graphs": ["default"], "ontologies": [ONTOLOGY]}}
    with SecureGateway(tmp_path, tables, registration="listed", attempts_per_min=100_000) as gateway:

        def bearer(name: str, *read: str) -> str:
            return gateway.bearer(name, gateway.client(name, read=list(read), write=["*"]))

        def send(method: str, path: str, who: str, body: str = "") -> Answer:
            headers = {"Content-Type": "application/sparql-update", "Authorization": who}
            return gateway.https(method, path, body, headers)

        both, one, named = bearer("both", "default", ONTOLOGY), bearer("one", "default"), bearer("named", INFERRED)
        data = f"INSERT DATA {{ <a:x> a <a:C> GRAPH <{ONTOLOGY}> {{ <a:C> <{SUB_CLASS}> <a:D> }} }}"
        assert send("POST", "/secure/update", one, data).status == 200
        text = quote(f"SELECT ?c {{ GRAPH <{INFERRED}> {{ <a:x> a ?c }} }}")
        rows = [
            [row["c"]["value"] for row in send("GET", f"/secure/query?query={text}", who).json["results"]["bindings"]]
            for who in (both, one, named)
        ]
        assert rows == [["a:D"], [], []]
        refused = send("POST", "/secure/update", both, f"DROP GRAPH <{INFERRED}>")
        assert refused.status == 403
        assert "change the triples that they follow from" in refused.json["error_description"]
        for method in ("PUT", "DELETE"):
            answer = gateway.https(
                method,
                f"/secure/graphs?graph={quote(INFERRED)}",
                "<a:x> <a:y> <a:z> .",
                {"Content-Type": "text/turtle", "Authorization": both},
            )
            assert answer.status == 403, answer.body
