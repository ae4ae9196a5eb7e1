"""The capabilities of the endpoint, for programs (SPARQL 1.1 Service Description)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import pyoxigraph as ox
from starlette.requests import Request
from starlette.responses import Response

from lamplighter.gateway.gates.http.negotiation import names_one_of, negotiate, request_iri
from lamplighter.gateway.workers.ad_hoc import GRAPH_FORMATS
from lamplighter.ontology.vocabulary import GATEWAY, RDF_TYPE, RDFS_LABEL

SD = "http://www.w3.org/ns/sparql-service-description#"
FORMATS = "http://www.w3.org/ns/formats/"

# The language extension: subscriptions to queries, by SEPA's SPARQL 1.1 SE Protocol.
SUBSCRIPTIONS = GATEWAY + "subscriptions"
_RESULTS = ("SPARQL_Results_JSON", "SPARQL_Results_XML", "SPARQL_Results_CSV", "SPARQL_Results_TSV")
_GRAPHS = ("Turtle", "N-Triples", "RDF_XML", "JSON-LD")


def wants_description(request: Request) -> bool:
    """True for a request to the query path without parameters that names an RDF format in Accept."""
    return (
        request.method in ("GET", "HEAD") and names_one_of(request, GRAPH_FORMATS) and not request.scope["query_string"]
    )


@dataclass(frozen=True)
class Description:
    """The paths, and for subscriptions the scheme, port and path of the other gate."""

    query_path: str
    update_path: str
    graph_store_path: str
    subscribe_at: str

    def answer(self, request: Request) -> Response:
        """Raises RequestError."""
        found = negotiate(request, GRAPH_FORMATS)
        here = urlsplit(request_iri(request))
        base = f"{here.scheme}://{here.netloc}{here.path.removesuffix(self.query_path)}"
        subscribe = urlsplit(self.subscribe_at)._replace(netloc=f"{here.hostname}:{urlsplit(self.subscribe_at).port}")
        triples = self._triples(base, subscribe.geturl())
        body = ox.serialize(triples, format=GRAPH_FORMATS[found.format], prefixes={"sd": SD, "gateway": GATEWAY})
        return Response(body, media_type=found.media_type, headers={"Vary": "Accept"})

    def _triples(self, base: str, subscribe: str) -> Iterator[ox.Triple]:
        service, dataset, graph = ox.BlankNode(), ox.BlankNode(), ox.BlankNode()
        extension = ox.NamedNode(SUBSCRIPTIONS)

        def statement(
            subject: ox.NamedNode | ox.BlankNode, predicate: str, value: str | ox.Literal | ox.BlankNode
        ) -> ox.Triple:
            return ox.Triple(subject, ox.NamedNode(predicate), ox.NamedNode(value) if isinstance(value, str) else value)

        yield statement(service, RDF_TYPE, SD + "Service")
        for path in sorted({self.query_path, self.update_path}):
            yield statement(service, SD + "endpoint", base + path)
        yield statement(service, SD + "supportedLanguage", SD + "SPARQL11Query")
        yield statement(service, SD + "supportedLanguage", SD + "SPARQL11Update")
        yield statement(service, SD + "feature", SD + "EmptyGraphs")
        yield statement(service, SD + "defaultEntailmentRegime", "http://www.w3.org/ns/entailment/Simple")
        for name in (*_RESULTS, *_GRAPHS):
            yield statement(service, SD + "resultFormat", FORMATS + name)
        for name in _GRAPHS:
            yield statement(service, SD + "inputFormat", FORMATS + name)
        yield statement(service, SD + "defaultDataset", dataset)
        yield statement(dataset, RDF_TYPE, SD + "Dataset")
        yield statement(dataset, SD + "defaultGraph", graph)
        yield statement(graph, RDF_TYPE, SD + "Graph")
        yield statement(service, SD + "extensionFunction", GATEWAY + "clock")
        yield statement(ox.NamedNode(GATEWAY + "clock"), RDF_TYPE, SD + "Function")
        yield statement(service, SD + "languageExtension", SUBSCRIPTIONS)
        yield statement(extension, RDF_TYPE, SD + "Feature")
        yield statement(extension, RDFS_LABEL, ox.Literal("subscriptions to queries by the SPARQL 1.1 SE Protocol"))
        yield statement(service, GATEWAY + "subscribeEndpoint", subscribe)
        yield statement(service, GATEWAY + "graphStore", base + self.graph_store_path)
