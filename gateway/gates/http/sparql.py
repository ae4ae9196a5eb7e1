"""Queries and updates (SPARQL 1.1 Protocol; SEPA protocol 1.2 and 1.3; delayed updates)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from lamplighter.engine.change_log import Cause
from lamplighter.engine.errors import MalformedRequestError, RequestSyntaxError
from lamplighter.engine.protocol import delta_member
from lamplighter.engine.terms import Bag
from lamplighter.gateway.gates.http.answers import JsonAnswer, stream_answer
from lamplighter.gateway.gates.http.calls import Bodies, Operation, QueryParameters, UpdateParameters
from lamplighter.gateway.gates.http.description import Description, wants_description
from lamplighter.gateway.gates.http.negotiation import for_query, request_iri
from lamplighter.gateway.history.records import check_named
from lamplighter.gateway.loop.past import PastQuery
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.loop.updates import UpdateCall
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.workers.ad_hoc import ReadyAnswer

RESULTS_JSON: Final = "application/sparql-results+json"
_RELATIVE = re.compile(r"""<(?![A-Za-z][A-Za-z0-9+.-]*:)[^<>"{}|^`\\\x00-\x20]*>""")
_SEARCHED = 1024 * 1024  # characters that are searched at a time, in at most 30 ms
_RELATIVE_MAX = 64 * 1024  # characters of the longest relative IRI that is searched beyond these
_REPRESENTATION = "return=representation"


def cause(request: Request, caller: Caller) -> Cause:
    """The cause of an update for its record: the address, and the client where clients have names."""
    client = request.scope.get("client")
    address = f"{client[0]}:{client[1]}" if client else "local"
    return Cause("http", f"{caller.name}@{address}" if caller.name else address)


async def select(runner: Runner, caller: Caller, query: str, bytes_max: int) -> Bag:
    """The result of a SELECT query, as the caller may read it. Raises GatewayError, LimitExceededError."""
    answer = await runner.queries.query(runner.queries.outline(query), RESULTS_JSON, None, None, caller=caller)
    return await asyncio.to_thread(_bag, await answer.whole(bytes_max))


def _bag(content: bytes) -> Bag:
    return Bag.from_json(msgspec.json.decode(content))


class SparqlPath:
    """The handler of the query path, of the update path, or of one path for both. operations: those of the path."""

    def __init__(
        self, runner: Runner, bodies: Bodies, description: Description, operations: Sequence[Operation]
    ) -> None:
        self._runner = runner
        self._bodies = bodies
        self._description = description
        self._operations = operations

    async def answer(self, request: Request, caller: Caller) -> Response:
        if request.method != "POST" and "query" in self._operations and wants_description(request):
            return self._description.answer(request)
        call = await self._bodies.call(request, caller.client, self._operations)
        run: Callable[[str], Awaitable[Response]]
        if isinstance(call.parameters, UpdateParameters):
            run = partial(self._update, request, caller, call.parameters)
        else:
            run = partial(self._query, request, caller, call.parameters)
        try:
            return await run(call.sparql)
        except RequestSyntaxError as error:
            # The parser refuses relative IRIs without a BASE, so only a text that failed is tried again.
            if not await _has_relative(call.sparql):
                raise
            failure = error
        try:  # they are resolved against the IRI of the request (RFC 3986, 5.1.3)
            return await run(f"BASE <{request_iri(request)}> {call.sparql}")
        except RequestSyntaxError:
            raise failure from None  # with its place in the text as it was sent

    async def _query(self, request: Request, caller: Caller, given: QueryParameters, sparql: str) -> Response:
        priority = caller.usual if given.priority is None else caller.priority(given.priority)
        headers = {"Vary": "Accept"}
        if given.at is not None:
            caller.require_operator("query the past")
            check_named(given.at)
            if given.priority is not None:
                raise MalformedRequestError("priority has no effect on a query of the past; leave it out")
        query = self._runner.queries.outline(sparql)
        form = for_query(request, query, given.formats)
        if given.at is not None:
            chunks = self._runner.past.query(PastQuery(query, given.at, form.format, *given.graphs), caller, headers)
            return await stream_answer(request, chunks, form.media_type, headers)
        answer = await self._runner.queries.query(query, form.format, *given.graphs, caller=caller, priority=priority)
        if isinstance(answer, ReadyAnswer):
            return Response(answer.content, 200, headers, form.media_type)
        return await stream_answer(request, answer.chunks(), form.media_type, headers)

    async def _update(self, request: Request, caller: Caller, given: UpdateParameters, sparql: str) -> Response:
        update = UpdateCall(
            sparql,
            cause(request, caller),
            given.using,
            given.request_id,
            given.delay,
            given.at,
            given.missed,
            caller=caller,
            tells_delta=any(name == b"prefer" for name, _ in request.scope["headers"]) and _wants_delta(request),
            priority=caller.usual if given.priority is None else caller.priority(given.priority),
        )
        accepted = await self._runner.updates.update(update)
        body: dict[str, Any] = {"sequence": accepted.sequence} if caller.sees_sequence else {}
        if accepted.delayed is not None:
            return JsonAnswer(body | {"delayed": accepted.delayed}, 202)
        # Its clients look at the status only; both historic spellings are there (protocol 1.3).
        body = {"response": {"body": "", "isJson": False, "isJsonBody": False}} | body
        if not update.tells_delta:
            return JsonAnswer(body)
        body["delta"] = delta_member(accepted.delta)
        return JsonAnswer(body, headers={"Preference-Applied": _REPRESENTATION})


def _wants_delta(request: Request) -> bool:
    """Whether the client wants to be told what its update changed (RFC 7240, section 4.2)."""
    preferences = ",".join(request.headers.getlist("prefer")).split(",")
    return any(one.partition(";")[0].strip().lower() == _REPRESENTATION for one in preferences)


async def _has_relative(sparql: str) -> bool:
    """Whether something in a text looks like a relative IRI; other tasks run meanwhile."""
    for start in range(0, len(sparql), _SEARCHED):
        if start:
            await asyncio.sleep(0)
        if _RELATIVE.search(sparql, start, start + _SEARCHED + _RELATIVE_MAX):
            return True
    return False
