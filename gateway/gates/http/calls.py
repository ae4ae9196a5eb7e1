"""Reads queries and updates from requests, by the SPARQL 1.1 Protocol, 2.1 and 2.2."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from lamplighter.engine.errors import LimitExceededError, MalformedRequestError, QueueFullError
from lamplighter.engine.sparql.requests import REQUEST_BYTES_MAX
from lamplighter.gateway.gates.http.negotiation import FORMAT_PARAMETERS
from lamplighter.gateway.gates.http.parameters import LARGE_BYTES, Parameters, UrlParameters, fields
from lamplighter.gateway.gates.http.places import Handler
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.sharing import SharedRoom

FORM = "application/x-www-form-urlencoded"
BODIES_BYTES_MAX = 4 * REQUEST_BYTES_MAX
"""Bytes of the bodies of all unanswered requests."""
_CLIENT, _HELD = "lamplighter.client", "lamplighter.held"
"""Keys of a request's scope: whose room its body takes, and the bytes of its body."""

Operation = Literal["query", "update"]
_Struct = TypeVar("_Struct", bound=msgspec.Struct)
QUERY: tuple[Operation, ...] = ("query",)
UPDATE: tuple[Operation, ...] = ("update",)
EITHER = QUERY + UPDATE
TEXTS: Mapping[str, Operation] = {"application/sparql-query": "query", "application/sparql-update": "update"}
"""Media types of bodies that are SPARQL texts."""
_OF_QUERY = "it is a parameter of a query"
_OF_UPDATE = "it is a parameter of an update"
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
"""Of URLs and forms (SPARQL 1.1 Protocol, 2.1 and 2.2, and Lamplighter's own)."""


@dataclass(frozen=True)
class Call:
    """A protocol request, wherever its parts were in the HTTP request. parameters: those of `PARAMETERS`."""

    operation: Operation
    sparql: str
    parameters: UrlParameters


class Bodies:
    """Receives bodies and bounds their total over all clients."""

    def __init__(self) -> None:
        self._room = SharedRoom(lambda: BODIES_BYTES_MAX, "the bytes of all unanswered requests")

    def holding(self, handler: Handler) -> Handler:
        """Wraps a handler that reads bodies: the bytes count until it has answered."""

        async def answer(request: Request, caller: Caller) -> Response:
            request.scope[_CLIENT] = caller.client
            try:
                return await handler(request, caller)
            finally:
                self._room.take(caller.client, -request.scope.pop(_HELD, 0))

        return answer

    async def read(self, request: Request) -> bytes:
        """The whole body. Raises LimitExceededError, and QueueFullError while the client, or all, hold too much."""
        parts, size, more, client = [], 0, True, request.scope[_CLIENT]
        while more:
            part, more = await _part(request)
            size += len(part)
            if size > REQUEST_BYTES_MAX:
                raise LimitExceededError(f"a request may have at most {REQUEST_BYTES_MAX} bytes; send it in parts")
            if why := self._room.refusal(client, len(part)):
                raise QueueFullError(f"too many large requests at once: {why}; try again later")
            self._room.take(client, len(part))
            request.scope[_HELD] = size
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def call(self, request: Request, operations: Sequence[Operation]) -> Call:
        """The query or update in a request. operations: those of this path. Raises RequestError."""
        parameters = fields(request.scope["query_string"])
        if request.method in ("GET", "HEAD") and "query" in operations:
            return _checked_call("query", _text(parameters, "query"), parameters)
        if request.method != "POST":
            raise MalformedRequestError(f"{request.method} is not allowed to {' or '.join(operations)}; use POST")
        media_type = content_type(request)
        operation = TEXTS.get(media_type)
        if media_type != FORM and operation not in operations:
            texts = [name for name, serves in TEXTS.items() if serves in operations]
            raise MalformedRequestError(f"Content-Type is {media_type or 'missing'}; use {' or '.join([*texts, FORM])}")
        body = await self.read(request)
        if operation is not None:
            if operation in parameters:
                raise MalformedRequestError(f"the {operation} is in the body; remove it from the URL")
            try:
                return _checked_call(operation, body.decode(), parameters)
            except UnicodeDecodeError as error:
                raise MalformedRequestError(f"the body is not UTF-8: {error.reason} at byte {error.start}") from error
        form = fields(body) if len(body) < LARGE_BYTES else await asyncio.to_thread(fields, body)
        form = {name: parameters.get(name, []) + form.get(name, []) for name in {**parameters, **form}}
        named = [name for name in operations if name in form]
        if len(named) > 1:
            raise MalformedRequestError("a request is either a query or an update; send two requests")
        meant = named[0] if named else operations[0]
        return _checked_call(meant, _text(form, meant), form)


async def _part(request: Request) -> tuple[bytes, bool]:
    """The next part of a body, and whether more follows. As `Request.stream`, but without an asynchronous generator,
    which takes 5 us for a body of one part. Raises ClientDisconnect."""
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
    """The media type of a body, in lower case; "" where there is none.

    Raises MalformedRequestError for several, and for an encoding other than UTF-8.
    """
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


def _checked_call(operation: Operation, sparql: str, found: Mapping[str, list[str]]) -> Call:
    return Call(operation, sparql, UrlParameters(PARAMETERS[operation], found))


def _text(found: Mapping[str, list[str]], operation: str) -> str:
    texts = found.get(operation, [])
    if len(texts) != 1:
        raise MalformedRequestError(f"{len(texts)} parameters are called {operation}; there must be one")
    return texts[0]
