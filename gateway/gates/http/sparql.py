"""Queries and updates (SPARQL 1.1 Protocol; SEPA protocol 1.2 and 1.3; delayed updates)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from lamplighter.engine.change_log import Cause
from lamplighter.engine.errors import MalformedRequestError, RequestSyntaxError
from lamplighter.engine.protocol import dataset, delta_member, graph_names
from lamplighter.engine.updating.by_store import UsingGraphs
from lamplighter.gateway.gates.http.answers import json_answer, streamed
from lamplighter.gateway.gates.http.calls import EITHER, QUERY, UPDATE, Bodies, Call
from lamplighter.gateway.gates.http.description import Description, wanted
from lamplighter.gateway.gates.http.negotiation import FORMAT_PARAMETERS, for_query, request_iri
from lamplighter.gateway.gates.http.parameters import UrlParameters
from lamplighter.gateway.history.records import check_named
from lamplighter.gateway.loop.past import PastQuery
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.loop.updates import UpdateCall
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.state.delayed import missed_policy
from lamplighter.gateway.state.request_ids import Accepted
from lamplighter.gateway.workers.ad_hoc import ReadyAnswer

_RELATIVE = re.compile(r"""<(?![A-Za-z][A-Za-z0-9+.-]*:)[^<>"{}|^`\\\x00-\x20]*>""")
_SEARCHED = 1024 * 1024
"""Characters that are searched at a time, in at most 30 ms."""
_RELATIVE_MAX = 64 * 1024
"""Characters of the longest relative IRI that is searched beyond these."""
_REPRESENTATION = "return=representation"
_T = TypeVar("_T")


def cause(request: Request, caller: Caller) -> Cause:
    """The cause of an update for its record: the address, and the client where clients have names."""
    client = request.scope.get("client")
    address = f"{client[0]}:{client[1]}" if client else "local"
    return Cause("http", f"{caller.name}@{address}" if caller.name else address)


class Sparql:
    """The handlers of the query path, the update path, and of one path for both."""

    def __init__(self, runner: Runner, bodies: Bodies, description: Description) -> None:
        self._runner = runner
        self._bodies = bodies
        self._description = description

    async def query(self, request: Request, caller: Caller) -> Response:
        if wanted(request):
            return self._description.answer(request)
        return await self._query(request, caller, await self._bodies.call(request, QUERY))

    async def update(self, request: Request, caller: Caller) -> Response:
        return await self._update(request, caller, await self._bodies.call(request, UPDATE))

    async def either(self, request: Request, caller: Caller) -> Response:
        if wanted(request):
            return self._description.answer(request)
        call = await self._bodies.call(request, EITHER)
        return await (self._query if call.operation == "query" else self._update)(request, caller, call)

    async def _query(self, request: Request, caller: Caller, call: Call) -> Response:
        asked = call.parameters
        graphs = dataset(asked.values("default-graph-uri"), asked.values("named-graph-uri"))
        at, priority = asked.text("at"), caller.priority(asked.text("priority"))
        names = [one for one in map(asked.text, FORMAT_PARAMETERS) if one is not None]
        if at is not None:
            caller.require_operator("query the past")
            check_named(at)
            if asked.text("priority") is not None:
                raise MalformedRequestError("priority has no effect on a query of the past; leave it out")

        async def answer(sparql: str) -> Response:
            query = self._runner.outline(sparql)
            accepted = for_query(request, query, names)
            if at is not None:
                headers = {"Vary": "Accept"}
                asked = PastQuery(query, at, accepted.format, *graphs)
                chunks = self._runner.past.query(asked, caller, headers)
                return await streamed(request, chunks, accepted.media_type, headers)
            found = await self._runner.query(query, accepted.format, *graphs, caller=caller, priority=priority)
            if isinstance(found, ReadyAnswer):
                return Response(found.content, 200, {"Vary": "Accept"}, accepted.media_type)
            return await streamed(request, found.chunks(), accepted.media_type, {"Vary": "Accept"})

        return await _resolved(request, call.sparql, answer)

    async def _update(self, request: Request, caller: Caller, call: Call) -> Response:
        given, using = call.parameters.texts(), _using(call.parameters)
        update = UpdateCall(
            call.sparql,
            cause(request, caller),
            using,
            given.get("request_id"),
            given.get("delay"),
            given.get("at"),
            missed_policy(given.get("missed")),
            caller=caller,
            tells_delta=_prefers_representation(request),
            priority=caller.priority(given.get("priority")),
        )

        async def outcome(sparql: str) -> Accepted:
            return await self._runner.update(
                update if sparql is call.sparql else msgspec.structs.replace(update, sparql=sparql)
            )

        accepted = await _resolved(request, call.sparql, outcome)
        body: dict[str, Any] = {"sequence": accepted.sequence} if caller.sees_sequence else {}
        if accepted.delayed is not None:
            return json_answer(body | {"delayed": accepted.delayed}, 202)
        # Its clients look at the status only; both historic spellings are there (protocol 1.3).
        body = {"response": {"body": "", "isJson": False, "isJsonBody": False}} | body
        if not update.tells_delta:
            return json_answer(body)
        body["delta"] = delta_member(accepted.delta)
        return json_answer(body, headers={"Preference-Applied": _REPRESENTATION})


def _using(given: UrlParameters) -> UsingGraphs | None:
    """The graphs that the protocol names for an update, None if it names none. Raises MalformedRequestError."""
    if not given:
        return None
    graphs = UsingGraphs(
        graph_names(given.values("using-graph-uri")) or (), graph_names(given.values("using-named-graph-uri")) or ()
    )
    return graphs or None


def _prefers_representation(request: Request) -> bool:
    """Whether the client wants to be told what its update changed (RFC 7240, section 4.2)."""
    preferences = ",".join(request.headers.getlist("prefer")).split(",")
    return any(one.partition(";")[0].strip().lower() == _REPRESENTATION for one in preferences)


async def _resolved(request: Request, sparql: str, run: Callable[[str], Awaitable[_T]]) -> _T:
    """Runs a text; without a BASE, relative IRIs are resolved against the IRI of the request (RFC 3986, 5.1.3).

    The parser refuses them without a BASE, so only a text that failed is tried again.
    """
    try:
        return await run(sparql)
    except RequestSyntaxError as error:
        if not await _has_relative(sparql):
            raise
        failure = error
    try:
        return await run(f"BASE <{request_iri(request)}> {sparql}")
    except RequestSyntaxError:
        raise failure from None  # with its place in the text as it was sent


async def _has_relative(sparql: str) -> bool:
    """Whether something in a text looks like a relative IRI; other tasks run meanwhile."""
    for start in range(0, len(sparql), _SEARCHED):
        if start:
            await asyncio.sleep(0)
        if _RELATIVE.search(sparql, start, start + _SEARCHED + _RELATIVE_MAX):
            return True
    return False
