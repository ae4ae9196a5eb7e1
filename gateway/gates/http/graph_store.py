"""Graphs as resources (SPARQL 1.1 Graph Store HTTP Protocol).

A write is one commit with the net change, so it is logged and subscribers are notified.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from lamplighter.engine.errors import MalformedRequestError
from lamplighter.engine.protocol import graph_names
from lamplighter.engine.terms import Term, lexical
from lamplighter.engine.updating.graph_store import GraphVerb, GraphWrite
from lamplighter.gateway.gates.http.answers import streamed
from lamplighter.gateway.gates.http.calls import Bodies, content_type, fields
from lamplighter.gateway.gates.http.negotiation import accepted, request_iri
from lamplighter.gateway.gates.http.places import UnsupportedMediaTypeError
from lamplighter.gateway.gates.http.sparql import cause
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.workers.ad_hoc import GRAPH_FORMATS

METHODS = frozenset({"GET", "HEAD", "PUT", "POST", "DELETE"})


class GraphStore:
    """The handler of the graph store's path and of the paths below it."""

    def __init__(self, runner: Runner, bodies: Bodies) -> None:
        self._runner = runner
        self._bodies = bodies

    async def answer(self, request: Request, caller: Caller) -> Response:
        named = fields(request.scope["query_string"])
        if request.method in ("GET", "HEAD"):
            return await self._read(request, named, caller)
        asked = named.pop("priority", [])
        if len(asked) > 1:
            raise MalformedRequestError("the parameter priority occurs several times; it may occur once")
        priority = caller.priority(asked[0] if asked else None)
        if request.method == "DELETE":
            write = GraphWrite(GraphVerb.DROP, _named(request, named))
            await self._runner.write_graph(write, cause(request, caller), caller, priority)
            return Response(status_code=204)
        verb = GraphVerb.REPLACE if request.method == "PUT" else GraphVerb.ADD
        to_store = verb is GraphVerb.ADD and "below" not in request.scope and not named
        # A document that is sent to the store itself becomes a new graph (5.5).
        new = f"{request_iri(request).rstrip('/')}/{uuid.uuid4()}" if to_store else None
        graph = _named(request, named) if new is None else f"<{new}>"
        media_type = content_type(request)
        if media_type not in GRAPH_FORMATS:
            raise UnsupportedMediaTypeError(
                f"Content-Type is {media_type or 'missing'}; send one of {', '.join(GRAPH_FORMATS)}"
            )
        # Before anything is read. Checked once more in its turn, since the permissions may change.
        caller.access.write.check([graph], "write")
        body = await self._bodies.read(request)
        base = request_iri(request) if graph is None else lexical(graph)
        quads = await self._runner.rdf_bodies.quads(body, media_type, graph, base)
        write = GraphWrite(verb, graph, quads)
        created = await self._runner.write_graph(write, cause(request, caller), caller, priority)
        return Response(status_code=201 if created else 204, headers={} if new is None else {"Location": new})

    async def _read(self, request: Request, named: Mapping[str, list[str]], caller: Caller) -> Response:
        found = accepted(request, GRAPH_FORMATS)
        answer = await self._runner.graph(_named(request, named), found.format, caller)
        return await streamed(request, answer.chunks(), found.media_type, {"Vary": "Accept"})


def _named(request: Request, parameters: Mapping[str, list[str]]) -> Term | None:
    """The graph of a request, None for the default graph. parameters: those that may name it. Raises
    MalformedRequestError."""
    default, names = "default" in parameters, parameters.get("graph", [])
    if "below" in request.scope and not parameters:
        names = [request_iri(request)]
    if default + len(names) != 1:
        raise MalformedRequestError("name one graph: ?graph=<its IRI, percent-encoded>, or ?default")
    if default:
        return None
    found = graph_names(names)
    if found is None or not names[0]:
        raise MalformedRequestError("graph parameter: it is empty; give an absolute IRI")
    return found[0]
