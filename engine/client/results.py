"""Query answers -> values: bags, booleans, triples."""

from __future__ import annotations

from typing import Any

from lamplighter.engine.errors import MalformedRequestError, UpstreamError
from lamplighter.engine.terms import Bag, Term

# Subject, predicate and object of a constructed graph.
Triple = tuple[Term, Term, Term]

# Media type -> file extension, by which pyoxigraph identifies it.
GRAPH_MEDIA_TYPES = {
    "application/n-triples": "nt",
    "text/turtle": "ttl",
    "application/ld+json": "jsonld",
    "application/rdf+xml": "rdf",
}


def bag(document: Any) -> Bag:
    """The result of a SELECT query. Raises MalformedRequestError for another form, UpstreamError."""
    if isinstance(document, list) or (isinstance(document, dict) and "results" not in document):
        form, method = (
            ("ASK", "ask") if isinstance(document, dict) and "boolean" in document else ("graph", "construct")
        )
        raise MalformedRequestError(f"query() is for SELECT queries, and this is a {form} query: use {method}()")
    try:
        return Bag.from_json(document)
    except ValueError as error:
        raise UpstreamError(f"the endpoint's answer cannot be read: {error}") from error


def boolean(document: Any) -> bool:
    """The result of an ASK query. Raises MalformedRequestError for another form."""
    if not isinstance(document, dict) or not isinstance(document.get("boolean"), bool):
        raise MalformedRequestError("ask() is for ASK queries: use query() for SELECT, construct() for CONSTRUCT")
    return bool(document["boolean"])


def triples(data: bytes, media_type: str) -> list[Triple]:
    """The triples of a CONSTRUCT or DESCRIBE query's result. Raises MalformedRequestError, UpstreamError."""
    name = GRAPH_MEDIA_TYPES.get(media_type)
    if name is None:
        raise MalformedRequestError(
            f"construct() is for CONSTRUCT and DESCRIBE queries, and the answer is {media_type}: use query() or ask()"
        )
    import pyoxigraph as ox  # imported here, so that other queries load no store

    syntax = ox.RdfFormat.from_extension(name)
    assert syntax is not None
    try:
        return [(str(quad.subject), str(quad.predicate), str(quad.object)) for quad in ox.parse(data, format=syntax)]
    except SyntaxError as error:
        raise UpstreamError(f"the endpoint's answer cannot be read as {media_type}: {error}") from error
