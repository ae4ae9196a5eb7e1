"""The SPARQL 1.1 Protocol tests of the W3C, and its listing for the Graph Store HTTP Protocol, against a gateway.

The suite has the names and what each one means; the requests are ours.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, urlencode

import pyoxigraph as ox
import pytest

from lamplighter.gateway.addresses import Addresses
from tests.support.running_gateway import FORM, Answer, http, running_gateway, update
from tests.w3c.suite import MF, parsed

FORM_TYPE = {"Content-Type": FORM}
QUERY_TYPE = {"Content-Type": "application/sparql-query"}
UPDATE_TYPE = {"Content-Type": "application/sparql-update"}
ASK = "ASK {}"
G = [f"http://kasei.us/2009/09/sparql/data/data{number}.rdf" for number in range(4)]
DATA = "".join(f"GRAPH <{graph}> {{ <{graph}#s> a <http://xmlns.com/foaf/0.1/Document> }}" for graph in G[1:])
EMPTIED = "DROP ALL ; INSERT DATA { " + DATA + " }"
BOTH = "ASK { ?s a ?t . ?s2 a ?t . FILTER(STR(?s) < STR(?s2)) }"


def fields(*pairs: tuple[str, str]) -> str:
    return urlencode(pairs)


async def said(answer: Answer, value: bool) -> None:
    assert (answer.status, answer.json["boolean"]) == (200, value)


async def refused(answer: Answer) -> None:
    assert 400 <= answer.status < 500, answer
    assert answer.json["status_code"] == answer.status


async def ask(at: Addresses, text: str) -> bool:
    return bool((await http(at.query, query=text)).json["boolean"])


DEFAULTS = [("default-graph-uri", G[1]), ("default-graph-uri", G[2])]
NAMED = [("named-graph-uri", G[1]), ("named-graph-uri", G[2])]
IN_BOTH = f"ASK {{ GRAPH <{G[1]}> {{ ?s a ?t }} GRAPH <{G[2]}> {{ ?s2 a ?t }} }}"
IN_THIRD = f"ASK {{ GRAPH <{G[3]}> {{ ?s ?p ?o }} }}"
FULL = f"ASK {{ ?s a ?t . GRAPH <{G[1]}> {{ ?s1 a ?t }} GRAPH <{G[2]}> {{ ?s2 a ?t }} FILTER(?s != ?s1 && ?s != ?s2) }}"
COPY = "INSERT { GRAPH <http://example.org/protocol-update-dataset-test/> { ?s a ?t } } WHERE { ?s a ?t }"
COPY_NAMED = COPY.replace("WHERE { ?s a ?t }", "WHERE { GRAPH ?g { ?s a ?t } }")
COPIED = "SELECT ?s { GRAPH <http://example.org/protocol-update-dataset-test/> { ?s a ?t } }"


async def copied(at: Addresses) -> list[str]:
    answer = await http(at.query, query=COPIED)
    return sorted(row["s"]["value"].removesuffix("#s") for row in answer.json["results"]["bindings"])


async def update_with(at: Addresses, text: str, *pairs: tuple[str, str]) -> None:
    answer = await http(f"{at.update}?{fields(*pairs)}", "POST", text, UPDATE_TYPE)
    assert answer.status == 200


class Cases:
    """A method for each entry of the manifest; the dataset is `DATA` before each."""

    async def query_get(self, at: Addresses) -> None:
        await said(await http(f"{at.query}?query={quote(ASK)}"), True)

    async def query_post_form(self, at: Addresses) -> None:
        await said(await http(at.query, "POST", fields(("query", ASK)), FORM_TYPE), True)

    async def query_post_direct(self, at: Addresses) -> None:
        await said(await http(at.query, "POST", ASK, QUERY_TYPE), True)

    async def query_dataset_default_graphs_get(self, at: Addresses) -> None:
        await said(await http(f"{at.query}?{fields(('query', BOTH), *DEFAULTS)}"), True)
        await said(await http(f"{at.query}?{fields(('query', BOTH), DEFAULTS[0])}"), False)

    async def query_dataset_default_graphs_post(self, at: Addresses) -> None:
        await said(await http(f"{at.query}?{fields(*DEFAULTS)}", "POST", BOTH, QUERY_TYPE), True)
        await said(await http(at.query, "POST", fields(*DEFAULTS, ("query", BOTH)), FORM_TYPE), True)

    async def query_dataset_named_graphs_get(self, at: Addresses) -> None:
        await said(await http(f"{at.query}?{fields(NAMED[0], ('query', IN_BOTH), NAMED[1])}"), True)
        await said(await http(f"{at.query}?{fields(('query', IN_THIRD), *NAMED)}"), False)

    async def query_dataset_named_graphs_post(self, at: Addresses) -> None:
        await said(await http(f"{at.query}?{fields(*NAMED)}", "POST", IN_BOTH, QUERY_TYPE), True)
        await said(await http(f"{at.query}?{fields(*NAMED)}", "POST", IN_THIRD, QUERY_TYPE), False)

    async def query_dataset_full(self, at: Addresses) -> None:
        graphs = [("default-graph-uri", G[3]), *NAMED]
        await said(await http(f"{at.query}?{fields(*graphs)}", "POST", FULL, QUERY_TYPE), True)

    async def query_multiple_dataset(self, at: Addresses) -> None:
        text = f"ASK FROM <{G[1]}> {{ <{G[2]}#s> a ?t }}"
        await said(await http(f"{at.query}?default-graph-uri={quote(G[2])}", "POST", text, QUERY_TYPE), True)

    async def _of_type(self, at: Addresses, text: str, *media_types: str) -> None:
        answer = await http(at.query, "POST", text, QUERY_TYPE)
        assert (answer.status, answer.media_type in media_types) == (200, True), answer.media_type

    async def query_content_type_select(self, at: Addresses) -> None:
        await self._of_type(
            at,
            "SELECT (1 AS ?value) {}",
            *("application/sparql-results+xml", "application/sparql-results+json"),
            *("text/tab-separated-values", "text/csv"),
        )

    async def query_content_type_ask(self, at: Addresses) -> None:
        await self._of_type(at, ASK, "application/sparql-results+xml", "application/sparql-results+json")

    async def query_content_type_describe(self, at: Addresses) -> None:
        await self._of_type(at, "DESCRIBE <http://example.org/>", "application/rdf+xml", "text/turtle", "text/plain")

    async def query_content_type_construct(self, at: Addresses) -> None:
        await self._of_type(
            at, "CONSTRUCT { <s> <p> 1 } WHERE {}", "application/rdf+xml", "text/turtle", "application/n-triples"
        )

    async def update_dataset_default_graph(self, at: Addresses) -> None:
        await update_with(at, COPY, ("using-graph-uri", G[1]))
        assert await copied(at) == [G[1]]

    async def update_dataset_default_graphs(self, at: Addresses) -> None:
        await update_with(at, COPY, ("using-graph-uri", G[1]), ("using-graph-uri", G[2]))
        assert await copied(at) == [G[1], G[2]]

    async def update_dataset_named_graphs(self, at: Addresses) -> None:
        await update_with(at, COPY_NAMED, ("using-named-graph-uri", G[1]), ("using-named-graph-uri", G[2]))
        assert await copied(at) == [G[1], G[2]]

    async def update_dataset_full(self, at: Addresses) -> None:
        text = COPY.replace("WHERE { ?s a ?t }", "WHERE { { GRAPH ?g { ?s a ?t } } UNION { ?s a ?t } }")
        await update_with(at, text, ("using-graph-uri", G[1]), ("using-named-graph-uri", G[2]))
        assert await copied(at) == [G[1], G[2]]

    async def update_post_form(self, at: Addresses) -> None:
        assert (await http(at.update, "POST", fields(("update", "CLEAR ALL")), FORM_TYPE)).status == 200

    async def update_post_direct(self, at: Addresses) -> None:
        assert (await http(at.update, "POST", "CLEAR ALL", UPDATE_TYPE)).status == 200

    async def update_base_uri(self, at: Addresses) -> None:
        await update_with(at, "INSERT DATA { GRAPH <http://example.org/g> { <http://s> <http://p> <test> } }")
        assert await ask(
            at, f"ASK {{ GRAPH <http://example.org/g> {{ ?s ?p <{at.update.rpartition('/')[0]}/test> }} }}"
        )

    async def bad_query_method(self, at: Addresses) -> None:
        await refused(await http(f"{at.query}?query={quote(ASK)}", "PUT"))

    async def bad_multiple_queries(self, at: Addresses) -> None:
        twice = fields(("query", ASK), ("query", "SELECT * {}"))
        await refused(await http(f"{at.query}?{twice}"))
        await refused(await http(at.query, "POST", twice, FORM_TYPE))
        await refused(await http(f"{at.query}?query={quote(ASK)}", "POST", ASK, QUERY_TYPE))
        await refused(await http(f"{at.query}?query={quote(ASK)}", "POST", fields(("query", ASK)), FORM_TYPE))

    async def bad_query_wrong_media_type(self, at: Addresses) -> None:
        await refused(await http(at.query, "POST", ASK, {"Content-Type": "text/plain"}))

    async def bad_query_missing_form_type(self, at: Addresses) -> None:
        await refused(await http(at.query, "POST", fields(("query", ASK))))

    async def bad_query_missing_direct_type(self, at: Addresses) -> None:
        await refused(await http(at.query, "POST", ASK))

    async def bad_query_non_utf8(self, at: Addresses) -> None:
        for encoding in ("", "; charset=UTF-16"):
            content_type = {"Content-Type": "application/sparql-query" + encoding}
            await refused(await http(at.query, "POST", ASK.encode("utf-16"), content_type))

    async def bad_query_syntax(self, at: Addresses) -> None:
        await refused(await http(f"{at.query}?query={quote('ASK {')}"))

    async def bad_update_get(self, at: Addresses) -> None:
        await refused(await http(f"{at.update}?update={quote('CLEAR ALL')}"))

    async def bad_multiple_updates(self, at: Addresses) -> None:
        await refused(
            await http(at.update, "POST", fields(("update", "CLEAR ALL"), ("update", "CLEAR ALL")), FORM_TYPE)
        )

    async def bad_update_wrong_media_type(self, at: Addresses) -> None:
        await refused(await http(at.update, "POST", "CLEAR ALL", {"Content-Type": "text/plain"}))

    async def bad_update_missing_form_type(self, at: Addresses) -> None:
        await refused(await http(at.update, "POST", fields(("update", "CLEAR ALL"))))

    async def bad_update_non_utf8(self, at: Addresses) -> None:
        await refused(await http(at.update, "POST", "CLEAR ALL".encode("utf-16"), UPDATE_TYPE))
        await refused(
            await http(at.update, "POST", "CLEAR ALL", {"Content-Type": "application/sparql-update; charset=latin1"})
        )

    async def bad_update_syntax(self, at: Addresses) -> None:
        await refused(await http(at.update, "POST", "CLEAR XYZ", UPDATE_TYPE))

    async def bad_update_dataset_conflict(self, at: Addresses) -> None:
        for clause in (f"USING <{G[1]}>", f"USING NAMED <{G[1]}>"):
            text = COPY.replace("WHERE", f"{clause} WHERE")
            for name in ("using-graph-uri", "using-named-graph-uri"):
                await refused(await http(f"{at.update}?{fields((name, G[2]))}", "POST", text, UPDATE_TYPE))


def entries() -> list[str]:
    """The names in the manifest."""
    folder = "sparql11/protocol"
    kind = ox.NamedNode(MF + "ProtocolTest")
    return sorted(
        quad.subject.value.rpartition("#")[2]
        for quad in parsed(f"{folder}/manifest.ttl")
        if quad.object == kind and isinstance(quad.subject, ox.NamedNode)
    )


@pytest.mark.parametrize(
    "paths", [{}, {"query_path": "/sparql", "update_path": "/sparql"}], ids=["two paths", "one path"]
)
async def test_every_entry_of_the_protocol_manifest_holds(tmp_path: Path, paths: dict[str, str]) -> None:
    names = entries()
    assert len(names) == 34
    async with running_gateway(tmp_path, http={"port": 0, **paths}) as at:
        for name in names:
            assert (await update(at, EMPTIED)).status == 200
            try:
                await getattr(Cases(), name)(at)
            except AssertionError as error:
                raise AssertionError(name) from error
