"""Reads queries and updates from requests, by the SPARQL 1.1 Protocol, 2.1 and 2.2."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Final, Literal, NamedTuple, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from lamplighter.engine.change_log import Missed
from lamplighter.engine.errors import LimitExceededError, MalformedRequestError, QueueFullError
from lamplighter.engine.protocol import dataset, graph_names
from lamplighter.engine.sparql.requests import REQUEST_BYTES_MAX
from lamplighter.engine.terms import Term
from lamplighter.engine.updating.by_store import UsingGraphs
from lamplighter.gateway.gates.http.negotiation import FORMAT_PARAMETERS
from lamplighter.gateway.gates.http.parameters import LARGE_BYTES, Parameters, UrlParameters, fields
from lamplighter.gateway.gates.http.routes import RELEASE, Handler
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.sharing import ClientTurns, TotalBudget
from lamplighter.gateway.state.delayed import missed_policy

FORM = "application/x-www-form-urlencoded"
BODIES_BYTES_MAX = 4 * REQUEST_BYTES_MAX  # bytes of the bodies of all unanswered requests

UNCOUNTED_BYTES = 4 * 1024
"""Bytes of a body that does not count: of as many connections as there may be, they take a few MB."""

BODY: Final = "lamplighter.body"
"""Key of a request's scope: its body, empty where its method has none."""
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})

Operation = Literal["query", "update"]
_Struct = TypeVar("_Struct", bound=msgspec.Struct)
QUERY: tuple[Operation, ...] = ("query",)
UPDATE: tuple[Operation, ...] = ("update",)
EITHER = QUERY + UPDATE
# Media types of bodies that are SPARQL texts.
TEXTS: Mapping[str, Operation] = {"application/sparql-query": "query", "application/sparql-update": "update"}
_OF_QUERY = "it is a parameter of a query"
_OF_UPDATE = "it is a parameter of an update"
# Of URLs and forms (SPARQL 1.1 Protocol, 2.1 and 2.2, and Lamplighter's own).
PARAMETERS: Mapping[Operation, Parameters] = {
    "query": Parameters(
        ("query", "at", "priority", *FORMAT_PARAMETERS),
        ("default-graph-uri", "named-graph-uri"),
        unsupported={
            **dict.fromkeys(("using-graph-uri", "using-named-graph-uri"), f"{_OF_UPDATE}; use default-graph-uri"),
            **dict.fromkeys(("update", "request_id", "delay", "missed"), f"{_OF_UPDATE}, and this is a query"),
            "timeout": "the limit is query.time_ms_max in lamplighter.toml",
        },
    ),
    "update": Parameters(
        ("update", "request_id", "delay", "at", "missed", "priority"),
        ("using-graph-uri", "using-named-graph-uri"),
        unsupported={
            **dict.fromkeys(("default-graph-uri", "named-graph-uri"), f"{_OF_QUERY}; use using-graph-uri"),
            **dict.fromkeys(("query", *FORMAT_PARAMETERS), f"{_OF_QUERY}, and this is an update"),
        },
    ),
}


class QueryParameters(NamedTuple):
    """Those of a query. graphs: default and named graphs; formats: names of the format of the answer."""

    graphs: tuple[tuple[Term, ...] | None, tuple[Term, ...] | None] = (None, None)
    at: str | None = None
    priority: str | None = None
    formats: Sequence[str] = ()


class UpdateParameters(NamedTuple):
    """Those of an update. using: the graphs that the protocol names, None if it names none."""

    using: UsingGraphs | None = None
    request_id: str | None = None
    delay: str | None = None
    at: str | None = None
    missed: Missed | None = None
    priority: str | None = None


class Call(NamedTuple):
    """A protocol request, wherever its parts were in the HTTP request."""

    sparql: str
    parameters: QueryParameters | UpdateParameters


class Bodies:
    """Receives bodies and bounds their total over all clients."""

    def __init__(self) -> None:
        self._room = TotalBudget(lambda: BODIES_BYTES_MAX, "the bytes of all unanswered requests")

    async def receive(self, request: Request, client: str) -> bytes:
        """The whole body. Its bytes count until the handler has answered, but for a small one that came at once.
        Raises LimitExceededError, and QueueFullError while the client, or all, hold too much."""
        part, more = await _part(request)
        if not more and len(part) <= UNCOUNTED_BYTES:
            return part
        parts: list[bytes] = []
        size = 0
        while True:
            size += len(part)
            if size > REQUEST_BYTES_MAX:
                raise LimitExceededError(f"a request may have at most {REQUEST_BYTES_MAX} bytes; send it in parts")
            if why := self._room.refusal(client, len(part)):
                raise QueueFullError(f"too many large requests at once: {why}; try again later")
            self._room.usage.add(client, len(part))
            request.scope[RELEASE] = partial(self._room.usage.add, client, -size)
            parts.append(part)
            if not more:
                return parts[0] if len(parts) == 1 else b"".join(parts)
            part, more = await _part(request)

    async def call(self, request: Request, client: str, operations: Sequence[Operation]) -> Call:
        """The query or update in a request. operations: those of this path. Raises RequestError."""
        query_string = request.scope["query_string"]
        parameters = fields(query_string) if query_string else {}
        if request.method in ("GET", "HEAD") and "query" in operations:
            return Call(_text(parameters, "query"), _query_parameters(parameters))
        if request.method != "POST":
            raise MalformedRequestError(f"{request.method} is not allowed to {' or '.join(operations)}; use POST")
        media_type = content_type(request)
        operation = TEXTS.get(media_type)
        if media_type != FORM and operation not in operations:
            texts = [name for name, serves in TEXTS.items() if serves in operations]
            raise MalformedRequestError(f"Content-Type is {media_type or 'missing'}; use {' or '.join([*texts, FORM])}")
        body = await self.receive(request, client)
        if operation is not None:
            if operation in parameters:
                raise MalformedRequestError(f"the {operation} is in the body; remove it from the URL")
            try:
                sparql = body.decode()
            except UnicodeDecodeError as error:
                raise MalformedRequestError(f"the body is not UTF-8: {error.reason} at byte {error.start}") from error
            return Call(sparql, _DECODE[operation](parameters) if parameters else _DEFAULTS[operation])
        form = fields(body) if len(body) < LARGE_BYTES else await asyncio.to_thread(fields, body)
        form = {name: parameters.get(name, []) + form.get(name, []) for name in {**parameters, **form}}
        named = [name for name in operations if name in form]
        if len(named) > 1:
            raise MalformedRequestError("a request is either a query or an update; send two requests")
        operation = named[0] if named else operations[0]
        return Call(_text(form, operation), _DECODE[operation](form))


async def _part(request: Request) -> tuple[bytes, bool]:
    """The next part of a body, and whether more follows. Raises ClientDisconnect."""
    # As `Request.stream`, but without an asynchronous generator, which takes 5 us for a body of one part.
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message["body"], message["more_body"]


async def small_body(request: Request, bytes_max: int) -> bytes:
    """The whole body of a small request. Raises LimitExceededError."""
    parts, size, more = [], 0, True
    while more:
        part, more = await _part(request)
        size += len(part)
        if size > bytes_max:
            raise LimitExceededError(f"the body of this request may have at most {bytes_max} bytes")
        parts.append(part)
    return b"".join(parts)


async def json_body(request: Request, struct: type[_Struct], bytes_max: int) -> _Struct:
    """The JSON body of a small request. Raises LimitExceededError, MalformedRequestError."""
    body = await small_body(request, bytes_max)
    try:
        return msgspec.json.decode(body, type=struct)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedRequestError(f"the body: {error}") from error


def content_type(request: Request) -> str:
    """The media type of a body in lower case, or "". Raises MalformedRequestError for several or not UTF-8."""
    headers = [value for name, value in request.scope["headers"] if name == b"content-type"]
    if len(headers) > 1:
        raise MalformedRequestError(f"there are {len(headers)} Content-Type headers; send one")
    if not headers:
        return ""
    text: str = headers[0].decode("latin-1")
    name, *options = text.lower().split(";")
    for option in options:
        key, _, value = option.strip().partition("=")
        if key == "charset" and value.strip('"') not in ("utf-8", "utf8", "us-ascii"):
            raise MalformedRequestError(f"charset={value} is not supported; send UTF-8")
    return name.strip()


def _query_parameters(fields: Mapping[str, list[str]]) -> QueryParameters:
    """Raises MalformedRequestError."""
    given = UrlParameters(PARAMETERS["query"], fields)
    texts = given.texts()
    graphs = dataset(given.values("default-graph-uri"), given.values("named-graph-uri"))
    formats = [texts[name] for name in FORMAT_PARAMETERS if name in texts]
    return QueryParameters(graphs, texts.get("at"), texts.get("priority"), formats)


def _update_parameters(fields: Mapping[str, list[str]]) -> UpdateParameters:
    """Raises MalformedRequestError."""
    given = UrlParameters(PARAMETERS["update"], fields)
    texts = given.texts()
    using = UsingGraphs(
        graph_names(given.values("using-graph-uri")) or (), graph_names(given.values("using-named-graph-uri")) or ()
    )
    policy = missed_policy(texts.get("missed"))
    return UpdateParameters(
        using or None, texts.get("request_id"), texts.get("delay"), texts.get("at"), policy, texts.get("priority")
    )


_DECODE: Mapping[Operation, Callable[[Mapping[str, list[str]]], QueryParameters | UpdateParameters]] = {
    "query": _query_parameters,
    "update": _update_parameters,
}
_DEFAULTS: Mapping[Operation, QueryParameters | UpdateParameters] = {
    "query": QueryParameters(),
    "update": UpdateParameters(),
}


def _text(fields: Mapping[str, list[str]], operation: str) -> str:
    texts = fields.get(operation, [])
    if len(texts) != 1:
        raise MalformedRequestError(f"{len(texts)} parameters are called {operation}; there must be one")
    return texts[0]


class RequestTurns:
    """Few requests of a door are answered at the same time, since each needs a process or much of the loop. at_once:
    answered at the same time; most: under way, those whose body is received too."""

    def __init__(self, at_once: int, most: int) -> None:
        self._turns = ClientTurns(at_once)
        self._under_way = TotalBudget(lambda: most, "the number of requests that may wait here")

    def of(self, answer: Handler, body_bytes_max: int) -> Handler:
        """A handler that has its turn. The handler raises LimitExceededError, and QueueFullError while too many
        requests of the client, or of all, are under way."""
        # The body is received before, since a client may take long to send it.

        async def in_turn(request: Request, caller: Caller) -> Response:
            with self._place(caller):
                request.scope[BODY] = await small_body(request, body_bytes_max) if request.method in _WITH_BODY else b""
                async with self._turns.of(caller.client):
                    return await answer(request, caller)

        return in_turn

    @asynccontextmanager
    async def turn(self, caller: Caller) -> AsyncIterator[None]:
        """Begins with a turn of the caller's. Raises QueueFullError as a handler of `of`."""
        with self._place(caller):
            async with self._turns.of(caller.client):
                yield

    @contextmanager
    def _place(self, caller: Caller) -> Iterator[None]:
        if why := self._under_way.refusal(caller.client):
            raise QueueFullError(f"{why}; try again later")
        with self._under_way.hold(caller.client):
            yield
