"""Graphs as resources (SPARQL 1.1 Graph Store HTTP Protocol).

A write is one commit with the net change, so it is logged and subscribers are notified.
"""

from __future__ import annotations

import uuid

from starlette.requests import Request
from starlette.responses import Response

from lamplighter.engine.errors import MalformedRequestError
from lamplighter.engine.protocol import graph_names
from lamplighter.engine.terms import Term, lexical
from lamplighter.engine.updating.graph_store import GraphVerb, GraphWrite
from lamplighter.gateway.gates.http.answers import stream_answer
from lamplighter.gateway.gates.http.calls import Bodies, content_type
from lamplighter.gateway.gates.http.negotiation import negotiate, request_iri
from lamplighter.gateway.gates.http.parameters import Parameters, UrlParameters, parameters
from lamplighter.gateway.gates.http.routes import UnsupportedMediaTypeError
from lamplighter.gateway.gates.http.sparql import cause
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.workers.ad_hoc import GRAPH_FORMATS

METHODS = frozenset({"GET", "HEAD", "PUT", "POST", "DELETE"})
_READ = Parameters(("default", "graph"), unsupported={"priority": "it is of writes"})
_WRITE = Parameters(("default", "graph", "priority"))


class GraphStore:
    """The handler of the graph store's path and of the paths below it."""

    def __init__(self, runner: Runner, bodies: Bodies) -> None:
        self._runner = runner
        self._bodies = bodies

    async def answer(self, request: Request, caller: Caller) -> Response:
        asked = parameters(request)
        if request.method in ("GET", "HEAD"):
            return await self._send_graph(request, asked, caller)
        named = asked.text("priority")
        priority = caller.usual if named is None else caller.priority(named)
        if request.method == "DELETE":
            write = GraphWrite(GraphVerb.DROP, _graph_of(request, asked))
            await self._runner.updates.write_graph(write, cause(request, caller), caller, priority)
            return Response(status_code=204)
        verb = GraphVerb.REPLACE if request.method == "PUT" else GraphVerb.ADD
        to_store = verb is GraphVerb.ADD and "below" not in request.scope and not _names_graph(asked)
        # A document that is sent to the store itself becomes a new graph (5.5).
        new = f"{request_iri(request).rstrip('/')}/{uuid.uuid4()}" if to_store else None
        graph = _graph_of(request, asked) if new is None else f"<{new}>"
        media_type = content_type(request)
        if media_type not in GRAPH_FORMATS:
            raise UnsupportedMediaTypeError(
                f"Content-Type is {media_type or 'missing'}; send one of {', '.join(GRAPH_FORMATS)}"
            )
        # Before anything is read. Checked once more in its turn, since the permissions may change.
        caller.access.write.check([graph], "write")
        body = await self._bodies.receive(request, caller.client)
        base = request_iri(request) if graph is None else lexical(graph)
        quads = await self._runner.rdf_bodies.quads(body, media_type, graph, base, caller.client)
        write = GraphWrite(verb, graph, quads)
        created = await self._runner.updates.write_graph(write, cause(request, caller), caller, priority)
        return Response(status_code=201 if created else 204, headers={} if new is None else {"Location": new})

    async def _send_graph(self, request: Request, asked: UrlParameters, caller: Caller) -> Response:
        found = negotiate(request, GRAPH_FORMATS)
        answer = await self._runner.queries.graph(_graph_of(request, asked), found.format, caller)
        return await stream_answer(request, answer.chunks(), found.media_type, {"Vary": "Accept"})


def graph_parameters(request: Request) -> Parameters:
    return _READ if request.method in ("GET", "HEAD") else _WRITE


def _names_graph(asked: UrlParameters) -> bool:
    return asked.text("default") is not None or asked.text("graph") is not None


def _graph_of(request: Request, asked: UrlParameters) -> Term | None:
    """The graph of a request, None for the default graph. Raises MalformedRequestError."""
    default, name, below = asked.text("default"), asked.text("graph"), request.scope.get("below", "")
    if below and not _names_graph(asked):
        name = request_iri(request)
    elif below:
        raise MalformedRequestError("the path names a graph already; leave the parameters graph and default out")
    if default:
        raise MalformedRequestError("default has no value; write ?default")
    if (default is None) == (name is None):
        raise MalformedRequestError("name one graph: ?graph=<its IRI, percent-encoded>, or ?default")
    if name is None:
        return None
    found = graph_names([name])
    if found is None or not name:
        raise MalformedRequestError("graph parameter: it is empty; give an absolute IRI")
    return found[0]
