"""Responses: JSON, errors in the three-member form (SEPA protocol 1.4), and streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any, Final

import msgspec
import pyoxigraph as ox
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lamplighter.engine.errors import GatewayError, QueueFullError, RequestError, ShapesViolatedError, UnauthorizedError
from lamplighter.engine.log_events import EventLogger
from lamplighter.gateway.gates.http.negotiation import NotAcceptableError, negotiate

logger = EventLogger(__name__)

JSON = "application/json"
_JSON_TYPE = (b"content-type", JSON.encode())
_TURTLE: Final = "text/turtle"


def is_known(request: Request, tag: str) -> bool:
    """Whether the client has the answer with this entity tag (RFC 9110, 13.1.2)."""
    return tag in {one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")}


class JsonAnswer(Response):
    """A value as JSON. Without headers of its own it is made here, which takes `Response` 3 us more."""

    def __init__(self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        content = msgspec.json.encode(value)
        if headers is not None:
            super().__init__(content, status, headers, JSON)
            return
        self.status_code = status
        self.background = None
        self.body = content
        self.raw_headers = [(b"content-length", b"%d" % len(content)), _JSON_TYPE]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body})


class Refusal(Response):
    """An error in the three-member form. code: the member `error`; more: further members of a standard."""

    def __init__(
        self,
        code: str,
        status: int,
        description: str,
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, Any] | None = None,
        media_type: str = JSON,
    ) -> None:
        self.code = code
        members = {"error": code, "status_code": status, "error_description": description, **(more or {})}
        super().__init__(msgspec.json.encode(members), status, headers, media_type)


class MethodError(RequestError):
    """A method that a path does not have. allowed: those that it has; hint: what to do instead."""

    code = "method_not_allowed"
    status = 405

    def __init__(self, method: str, allowed: Iterable[str], where: str = "here", hint: str = "") -> None:
        self.allowed = ", ".join(sorted(allowed))
        super().__init__(f"{method} is not allowed {where}; use {self.allowed}{hint}")


def error_answer(error: GatewayError, more: Mapping[str, Any] | None = None, media_type: str = JSON) -> Refusal:
    """more: further members, where a standard has some."""
    headers = {}
    if isinstance(error, MethodError):
        headers["Allow"] = error.allowed
    if isinstance(error, UnauthorizedError) and error.status == 401:
        headers["WWW-Authenticate"] = f'{error.scheme} realm="lamplighter", error="{error.code}"'
    if isinstance(error, QueueFullError):
        headers["Retry-After"] = str(error.retry_after_s)
    if isinstance(error, ShapesViolatedError) and error.report is not None and more is None:
        more = {"report": error.report}
    return Refusal(error.code, error.status, str(error), headers, more, media_type)


def refusal(request: Request, error: GatewayError) -> Refusal:
    """The answer of an error: with members in JSON, or the sh:ValidationReport alone in Turtle."""
    answer = error_answer(error)
    if isinstance(error, ShapesViolatedError) and error.report is not None:
        answer.headers.add_vary_header("Accept")
        if _prefers_turtle(request):
            document = msgspec.json.encode(error.report)
            prefixes = error.report["@context"]
            text = ox.serialize(ox.parse(document, ox.RdfFormat.JSON_LD), format=ox.RdfFormat.TURTLE, prefixes=prefixes)
            assert text is not None, "without an output file the text is returned"
            answer.body = text
            answer.headers["content-length"] = str(len(text))
            answer.headers["content-type"] = _TURTLE
    return answer


def _prefers_turtle(request: Request) -> bool:
    try:
        return negotiate(request, (JSON, _TURTLE)).format == _TURTLE
    except NotAcceptableError:
        return False


async def stream_answer(
    request: Request, chunks: AsyncGenerator[bytes, None], media_type: str, headers: Mapping[str, str] | None = None
) -> Response:
    """An answer in chunks, of which the first was received: it decides between an answer and an error. headers: read
    when the first chunk is there. The iteration ends when the answer was sent or the client disconnects. Raises the
    error of the first chunk, and ClientDisconnect."""
    left = asyncio.ensure_future(wait_for_disconnect(request.receive))
    first = asyncio.ensure_future(anext(chunks, b""))
    try:
        await asyncio.wait({first, left}, return_when=asyncio.FIRST_COMPLETED)
        if not first.done():
            raise ClientDisconnect
        return _Streamed(first.result(), chunks, left, media_type, headers)
    except BaseException:
        left.cancel()
        first.cancel()
        await asyncio.wait({first})
        await chunks.aclose()
        raise


async def wait_for_disconnect(receive: Receive) -> None:
    """Returns when the client has disconnected or has the whole answer."""
    while (await receive())["type"] != "http.disconnect":
        pass


class _Streamed(Response):
    def __init__(
        self,
        first: bytes,
        rest: AsyncGenerator[bytes, None],
        gone: asyncio.Future[None],
        media_type: str,
        headers: Mapping[str, str] | None,
    ) -> None:
        super().__init__(None, 200, headers, media_type)
        del self.headers["content-length"]
        self._first = first
        self._rest = rest
        self._gone = gone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_part(body: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": body, "more_body": more})

        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if scope["method"] != "HEAD":
                await send_part(self._first)
                async for chunk in self._rest:
                    if self._gone.done():
                        return
                    await send_part(chunk)
            await send_part(b"", more=False)
        except GatewayError as error:
            # Sent bytes cannot be withdrawn. The server closes the connection, since the answer has no end.
            logger.warning("response aborted", path=scope["path"], reason=error)
        finally:
            self._gone.cancel()
            await self._rest.aclose()
