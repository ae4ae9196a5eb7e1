"""The capabilities of the endpoint, for programs (SPARQL 1.1 Service Description)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import pyoxigraph as ox
from starlette.requests import Request
from starlette.responses import Response

from lamplighter.gateway.gates.http.negotiation import accepted, names_one_of, request_iri
from lamplighter.gateway.workers.ad_hoc import GRAPH_FORMATS
from lamplighter.ontology.vocabulary import GATEWAY, RDF_TYPE, RDFS_LABEL

SD = "http://www.w3.org/ns/sparql-service-description#"
FORMATS = "http://www.w3.org/ns/formats/"

SUBSCRIPTIONS = GATEWAY + "subscriptions"
"""The language extension: subscriptions to queries, by SEPA's SPARQL 1.1 SE Protocol."""
_RESULTS = ("SPARQL_Results_JSON", "SPARQL_Results_XML", "SPARQL_Results_CSV", "SPARQL_Results_TSV")
_GRAPHS = ("Turtle", "N-Triples", "RDF_XML", "JSON-LD")


def wanted(request: Request) -> bool:
    """Whether a request to the query path asks for the description: it has no parameters and names an RDF format in
    Accept."""
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
        found = accepted(request, GRAPH_FORMATS)
        here = urlsplit(request_iri(request))
        base = f"{here.scheme}://{here.netloc}{here.path.removesuffix(self.query_path)}"
        subscribe = urlsplit(self.subscribe_at)._replace(netloc=f"{here.hostname}:{urlsplit(self.subscribe_at).port}")
        triples = self._triples(base, subscribe.geturl())
        body = ox.serialize(triples, format=GRAPH_FORMATS[found.format], prefixes={"sd": SD, "gateway": GATEWAY})
        return Response(body, media_type=found.media_type, headers={"Vary": "Accept"})

    def _triples(self, base: str, subscribe: str) -> Iterator[ox.Triple]:
        service, dataset, graph = ox.BlankNode(), ox.BlankNode(), ox.BlankNode()
        extension = ox.NamedNode(SUBSCRIPTIONS)

        def said(
            subject: ox.NamedNode | ox.BlankNode, predicate: str, value: str | ox.Literal | ox.BlankNode
        ) -> ox.Triple:
            return ox.Triple(subject, ox.NamedNode(predicate), ox.NamedNode(value) if isinstance(value, str) else value)

        yield said(service, RDF_TYPE, SD + "Service")
        for path in sorted({self.query_path, self.update_path}):
            yield said(service, SD + "endpoint", base + path)
        yield said(service, SD + "supportedLanguage", SD + "SPARQL11Query")
        yield said(service, SD + "supportedLanguage", SD + "SPARQL11Update")
        yield said(service, SD + "feature", SD + "EmptyGraphs")
        yield said(service, SD + "defaultEntailmentRegime", "http://www.w3.org/ns/entailment/Simple")
        for name in (*_RESULTS, *_GRAPHS):
            yield said(service, SD + "resultFormat", FORMATS + name)
        for name in _GRAPHS:
            yield said(service, SD + "inputFormat", FORMATS + name)
        yield said(service, SD + "defaultDataset", dataset)
        yield said(dataset, RDF_TYPE, SD + "Dataset")
        yield said(dataset, SD + "defaultGraph", graph)
        yield said(graph, RDF_TYPE, SD + "Graph")
        yield said(service, SD + "extensionFunction", GATEWAY + "clock")
        yield said(ox.NamedNode(GATEWAY + "clock"), RDF_TYPE, SD + "Function")
        yield said(service, SD + "languageExtension", SUBSCRIPTIONS)
        yield said(extension, RDF_TYPE, SD + "Feature")
        yield said(extension, RDFS_LABEL, ox.Literal("subscriptions to queries by the SPARQL 1.1 SE Protocol"))
        yield said(service, GATEWAY + "subscribeEndpoint", subscribe)
        yield said(service, GATEWAY + "graphStore", base + self.graph_store_path)
