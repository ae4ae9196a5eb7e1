"""Paths and parameters of subscriptions by Server-Sent Events."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from lamplighter.engine.client.sending import LongMessage
from lamplighter.engine.errors import MalformedRequestError
from lamplighter.engine.protocol import dataset
from lamplighter.gateway.gates.event_streams import (
    EventStream,
    EventStreams,
    LongEvent,
    StreamEvent,
    asked_resume,
    event_id,
)
from lamplighter.gateway.gates.http.answers import Refusal
from lamplighter.gateway.gates.http.parameters import Parameters, UrlParameters, parameters
from lamplighter.gateway.gates.http.routes import Permission, Route
from lamplighter.gateway.gates.outbox import Message, SendBudget
from lamplighter.gateway.gates.sinks import ClientSink
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.state.applications import DeclaredApplications

PATH: Final = "/subscribe"
_GRAPHS = ("default-graph-uri", "named-graph-uri")
_NAMES = ("alias", "keep", "class", "commit", "priority", "last-event-id")
_BY_TEXT = Parameters(("query", *_NAMES), _GRAPHS)
# The query of an application. Behind the prefix is the name of a forced binding.
_BY_NAME = Parameters(_NAMES, prefix="$")


class EventSink(ClientSink):
    """The sink of one stream: the data of each event is a message of the SE protocol, as over WebSocket
    (`docs/protocol.md`). Adds to the notifications of a resumable subscription what their client resumes by."""

    __slots__ = ()
    kind = "http"

    def with_id(self, message: Message, spuid: str, sequence: int) -> Message:
        name = event_id(spuid, sequence)
        if isinstance(message, LongMessage):
            return LongEvent([b"id: %b\ndata: " % name, *message.parts, b"\n\n"])
        return StreamEvent(b"id: %b\ndata: %b\n\n" % (name, message))


class ServerSentEvents:
    """The door. `GET /subscribe?query=...`, and `GET /subscribe/APPLICATION/QUERY` for a query of a JSAP file."""

    def __init__(
        self, runner: Runner, settings: Settings, applications: DeclaredApplications, send_budget: SendBudget
    ) -> None:
        """send_budget: what waits for all network clients."""
        self._applications = applications
        self._streams = EventStreams(runner, settings, send_budget)

    def routes(self) -> Iterator[Route]:
        yield Route(PATH, self._by_text, Permission.CALLER, frozenset({"GET"}), _BY_TEXT)
        yield Route(f"{PATH}/", self._by_name, Permission.CALLER, frozenset({"GET"}), _BY_NAME)

    def about(self) -> Iterator[tuple[str, str]]:
        yield PATH, "subscription by Server-Sent Events: ?query=<SPARQL>, or /subscribe/<application>/<query>"

    async def run(self) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._streams.close()

    async def _by_text(self, request: Request, caller: Caller) -> Response:
        asked = parameters(request)
        sparql = asked.text("query")
        if sparql is None:
            raise MalformedRequestError("there must be a parameter query: the SPARQL query to subscribe to")
        return await self._stream(request, caller, asked, sparql, *map(asked.values, _GRAPHS))

    async def _by_name(self, request: Request, caller: Caller) -> Response:
        application, _, name = request.scope["below"].partition("/")
        found = self._applications.get(application)
        if found is None or name not in found.profile.queries:
            return Refusal("not_found", 404, f"no application has the query {request.scope['below'][:200]!r}")
        asked = parameters(request)
        return await self._stream(
            request, caller, asked, found.profile.whole_query_text(name, {}, asked.with_prefix()), None, None
        )

    async def _stream(
        self,
        request: Request,
        caller: Caller,
        asked: UrlParameters,
        sparql: str,
        default_graphs: list[str] | None,
        named_graphs: list[str] | None,
    ) -> Response:
        names_commits = asked.flag("commit") and caller.sees_sequence  # the sequence counts the commits of all clients
        alias, tells_class = asked.text("alias"), asked.flag("class")

        def sink_of(stream: EventStream) -> EventSink:
            return EventSink(stream, stream.outbox, alias, tells_class, names_commits)

        resume = asked_resume(request, asked.text("keep"), asked.text("last-event-id"))
        graphs = dataset(default_graphs, named_graphs)
        named = asked.text("priority")
        priority = caller.usual if named is None else caller.priority(named)
        return await self._streams.subscribe(request, caller, sparql, sink_of, graphs, resume, priority)
