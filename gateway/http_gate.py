"""HTTP gate: SPARQL 1.1 Protocol (SEPA protocol, section 1), delayed updates, health."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.change_log import SUFFIX, Cause
from engine.errors import (
    ConfigurationError,
    GatewayError,
    LimitExceededError,
    MalformedRequestError,
    QueueFullError,
)
from engine.protocol import dataset, error_members, graph_names
from engine.sparql import REQUEST_BYTES_MAX, Query, query_outline
from engine.update import UsingGraphs
from gateway.delayed import missed_policy
from gateway.metrics import MEDIA_TYPE, prometheus_text
from gateway.reader import GRAPH_FORMATS, SOLUTION_FORMATS, Answer
from gateway.restoring import difference, received
from gateway.runner import Runner, UpdateCall
from gateway.settings import HttpSettings

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True)
class _Call:
    """What a protocol request says, wherever in the request it says it. parameters: each name with its values."""

    sparql: str
    parameters: Mapping[str, list[str]]

    def one(self, name: str) -> str | None:
        values = self.parameters.get(name, [])
        if len(values) > 1:
            raise MalformedRequestError(f"the parameter {name} occurs {len(values)} times; it may occur once")
        return values[0] if values else None


async def _call(request: Request, operation: str) -> _Call:
    """Reads a query or update by the three ways of SPARQL 1.1 Protocol, 2.1 and 2.2. Raises RequestError."""
    parameters = _fields(request.url.query)
    if request.method == "GET" and operation == "query":
        return _Call(_text(parameters, operation), parameters)
    if request.method != "POST":
        raise MalformedRequestError(f"{request.method} is no way to {operation}; use POST")
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        body = (await _body(request)).decode()
    except UnicodeDecodeError as error:
        raise MalformedRequestError(f"the body is not UTF-8: {error.reason} at byte {error.start}") from error
    if content_type == f"application/sparql-{operation}":
        return _Call(body, parameters)
    if content_type == FORM:
        fields = _fields(body)
        return _Call(_text(fields, operation), {**parameters, **fields})
    raise MalformedRequestError(
        f"Content-Type is {content_type or 'missing'}; send application/sparql-{operation} or {FORM}"
    )


def _fields(text: str) -> dict[str, list[str]]:
    """The fields of a URL's query or of a form. Raises MalformedRequestError when one is not UTF-8."""
    try:
        return parse_qs(text, keep_blank_values=True, errors="strict")
    except UnicodeDecodeError as error:
        raise MalformedRequestError(f"a parameter is not UTF-8: {error.reason}") from error


def _text(fields: Mapping[str, list[str]], operation: str) -> str:
    texts = fields.get(operation, [])
    if len(texts) != 1:
        raise MalformedRequestError(f"{len(texts)} parameters are called {operation}; there must be one")
    return texts[0]


async def _body(request: Request) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > REQUEST_BYTES_MAX:
            raise LimitExceededError(f"a request has {REQUEST_BYTES_MAX} bytes at most; send it in parts")
        parts.append(part)
    return b"".join(parts)


def _media_type(accept: str, query: Query) -> str:
    """The media type to answer a query with. SEPA's clients send anything and expect SPARQL JSON (protocol 1.3)."""
    offered = SOLUTION_FORMATS if query.form in ("SELECT", "ASK") else GRAPH_FORMATS
    wanted = []
    for position, item in enumerate(accept.split(",")):
        name, *options = (part.strip().lower() for part in item.split(";"))
        quality = next((option[2:] for option in options if option.startswith("q=")), "1")
        with contextlib.suppress(ValueError):
            wanted.append((-float(quality), position, name))
    for quality_below, _, name in sorted(wanted):
        if quality_below == 0:
            continue
        if name in offered and not (query.form == "ASK" and name.startswith("text/")):
            return name
        if name == JSON and offered is GRAPH_FORMATS:
            return "application/ld+json"
        if name in ("*/*", JSON):
            break
    return next(iter(offered))


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type=JSON)


def _error(error: GatewayError) -> Response:
    return _json(error_members(error), error.status)


async def _no_such_place(request: Request, exception: Exception) -> Response:
    """A path or method that nobody serves, in the three-member form too."""
    assert isinstance(exception, HTTPException)
    members = {
        "error": "not_found" if exception.status_code == 404 else "method_not_allowed",
        "status_code": exception.status_code,
        "error_description": f"{request.method} {request.url.path} is not served here; GET / lists what is",
    }
    return _json(members, exception.status_code)


class _Gate:
    """The handlers. Each answers GatewayErrors in the three-member form (protocol 1.4)."""

    def __init__(self, runner: Runner, about: str) -> None:
        self._runner = runner
        self._about = about
        self._backing_up = False

    def routes(self) -> Iterator[Route]:
        every = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"]
        yield Route("/", self.index)
        yield Route("/query", self._answering(self.query), methods=every)
        yield Route("/update", self._answering(self.update), methods=every)
        yield Route("/delayed", self._answering(self.delayed))
        yield Route("/delayed/{id}", self._answering(self.cancel), methods=["DELETE"])
        yield Route("/health", self._answering(self.health))
        yield Route("/metrics", self._answering(self.metrics))
        yield Route("/subscriptions", self._answering(self.subscriptions))
        yield Route("/backup", self._answering(self.backup))
        yield Route("/restore", self._answering(self.restore), methods=["POST"])

    def _answering(self, handler: Any) -> Any:
        async def answer(request: Request) -> Response:
            try:
                return await handler(request)  # type: ignore[no-any-return]
            except GatewayError as error:
                return _error(error)
            except ClientDisconnect:
                return Response(status_code=400)  # nobody reads it

        return answer

    async def index(self, request: Request) -> Response:
        return PlainTextResponse(self._about)

    async def query(self, request: Request) -> Response:
        call = await _call(request, "query")
        query = query_outline(call.sparql)
        media_type = _media_type(request.headers.get("accept", ""), query)
        answer = await self._runner.query(
            query,
            media_type,
            *dataset(call.parameters.get("default-graph-uri"), call.parameters.get("named-graph-uri")),
        )
        chunks = answer.chunks()
        # The first one decides between an answer and an error.
        first = await anext(chunks, b"")

        async def rest() -> AsyncIterator[bytes]:
            yield first
            async for chunk in chunks:
                yield chunk

        return StreamingResponse(rest(), media_type=media_type)

    async def update(self, request: Request) -> Response:
        call = await _call(request, "update")
        using = UsingGraphs(
            graph_names(call.parameters.get("using-graph-uri")) or (),
            graph_names(call.parameters.get("using-named-graph-uri")) or (),
        )
        client = request.client
        accepted = await self._runner.update(
            UpdateCall(
                call.sparql,
                Cause("http", f"{client.host}:{client.port}" if client else "local"),
                using or None,
                call.one("request_id"),
                call.one("delay"),
                call.one("at"),
                missed_policy(call.one("missed")),
            )
        )
        body: dict[str, Any] = {"sequence": accepted.sequence}
        if accepted.delayed is not None:
            return _json(body | {"delayed": accepted.delayed}, 202)
        # Its clients look at the status only; both historic spellings are there (protocol 1.3).
        return _json({"response": {"body": "", "isJson": False, "isJsonBody": False}} | body)

    async def delayed(self, request: Request) -> Response:
        return _json({"total": self._runner.delayed_count, "delayed": self._runner.delayed_updates()})

    async def cancel(self, request: Request) -> Response:
        name = request.path_params["id"]
        client = request.client
        await self._runner.cancel(name, Cause("http", f"{client.host}:{client.port}" if client else "local"))
        return _json({"cancelled": name})

    async def health(self, request: Request) -> Response:
        status = self._runner.status()
        return _json(status, 200 if status["status"] == "ok" else 503)

    async def metrics(self, request: Request) -> Response:
        return Response(prometheus_text(self._runner.status()), media_type=MEDIA_TYPE)

    async def subscriptions(self, request: Request) -> Response:
        return _json(self._runner.subscriptions())

    async def backup(self, request: Request) -> Response:
        if self._backing_up:
            raise QueueFullError("another backup is under way; try a little later")
        self._backing_up = True
        try:
            taken = await self._runner.take_snapshot()
            chunks = self._backup(taken.content)
            first = await anext(chunks, b"")
        except BaseException:
            self._backing_up = False
            raise

        async def content() -> AsyncIterator[bytes]:
            yield first
            async for chunk in chunks:
                yield chunk

        head = taken.head
        name = f"{head.gw}-{head.epoch}-{head.seq:012d}{SUFFIX}"
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return StreamingResponse(content(), media_type="application/zstd", headers=headers)

    async def _backup(self, answer: Answer) -> AsyncIterator[bytes]:
        try:
            async for chunk in answer.chunks():
                yield chunk
        finally:
            self._backing_up = False

    async def restore(self, request: Request) -> Response:
        log = self._runner.log
        async with received(log.disk, log.data / "snapshots", request.stream()) as path:
            answer = await self._runner.begin_restore(path)
            try:
                restored = await self._runner.restore(await difference(answer))
            finally:
                self._runner.end_restore()
        return _json(restored)


class _Cors:
    """Cross-origin rules (SEPA protocol 1.5): every origin may, and preflights are answered before anything else."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        origins = request.headers.getlist("origin")
        if request.method == "OPTIONS":
            await self._preflight(request, origins)(scope, receive, send)
            return

        async def send_with_origin(message: Message) -> None:
            if message["type"] == "http.response.start" and len(origins) == 1:
                message["headers"] = [
                    *message["headers"],
                    (b"access-control-allow-origin", origins[0].encode("latin-1")),
                    (b"vary", b"Origin"),
                ]
            await send(message)

        await self._app(scope, receive, send_with_origin)

    def _preflight(self, request: Request, origins: list[str]) -> Response:
        methods = request.headers.getlist("access-control-request-method")
        if len(origins) != 1 or len(methods) != 1:
            members = {
                "error": "cors_error",
                "status_code": 401,
                "error_description": "a preflight has one Origin and one Access-Control-Request-Method",
            }
            return _json(members, 401)
        headers = {"Access-Control-Allow-Origin": origins[0], "Access-Control-Allow-Methods": methods[0]}
        asked = request.headers.get("access-control-request-headers")
        if asked:
            headers["Access-Control-Allow-Headers"] = asked
        return Response(status_code=204, headers=headers)


class _Server(uvicorn.Server):
    """Leaves the signals to the gateway, which ends all its parts in order."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def http_gate(runner: Runner, settings: HttpSettings, about: str) -> AsyncIterator[int]:
    """Serves until left; gives the port. about: the text page at ``/``. Raises ConfigurationError."""
    app = Starlette(routes=list(_Gate(runner, about).routes()), exception_handlers={HTTPException: _no_such_place})
    try:
        listener = socket.create_server((settings.host, settings.port), backlog=256)
    except OSError as error:
        raise ConfigurationError(
            f"http: cannot listen on {settings.host}:{settings.port}: {error.strerror}; name another port"
        ) from error
    config = uvicorn.Config(
        _Cors(app),
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        limit_concurrency=1000,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]), name="HTTP gate")
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await task
