"""Responses: JSON, errors in the three-member form (SEPA protocol 1.4), and streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lamplighter.engine.errors import GatewayError, QueueFullError, ShapesViolatedError, UnauthorizedError
from lamplighter.engine.log_events import EventLogger

logger = EventLogger(__name__)

JSON = "application/json"
_JSON_TYPE = (b"content-type", JSON.encode())


def json_answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    if headers is None:
        return _Json(value, status)
    return Response(msgspec.json.encode(value), status, headers, media_type=JSON)


def is_known(request: Request, tag: str) -> bool:
    """Whether the client has the answer with this entity tag (RFC 9110, 13.1.2)."""
    return tag in {one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")}


class _Json(Response):
    """An answer with no header of its own. `Response` takes 3 us more to find that out."""

    def __init__(self, value: Any, status: int) -> None:
        self.status_code = status
        self.background = None
        self.body = msgspec.json.encode(value)
        self.raw_headers = [(b"content-length", b"%d" % len(self.body)), _JSON_TYPE]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body})


class Refusal(Response):
    """An error in the three-member form. code: its member `error`; more: further members, where a standard has some."""

    def __init__(
        self,
        code: str,
        status: int,
        description: str,
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        self.code = code
        members = {"error": code, "status_code": status, "error_description": description, **(more or {})}
        super().__init__(msgspec.json.encode(members), status, headers, media_type=JSON)


def error_answer(error: GatewayError) -> Refusal:
    headers = {}
    if isinstance(error, UnauthorizedError) and error.status == 401:
        headers["WWW-Authenticate"] = f'{error.scheme} realm="lamplighter", error="{error.code}"'
    if isinstance(error, QueueFullError):
        headers["Retry-After"] = str(error.retry_after_s)
    more = None
    if isinstance(error, ShapesViolatedError) and error.report is not None:
        more = {"report": error.report}
    return Refusal(error.code, error.status, str(error), headers, more)


async def streamed(
    request: Request,
    chunks: AsyncGenerator[bytes, None],
    media_type: str,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """An answer in chunks, of which the first was received: it decides between an answer and an error.

    headers: read when the first chunk is there. The iteration ends when the answer was sent or the client disconnects.
    Raises the error of the first chunk, and ClientDisconnect.
    """
    left = asyncio.ensure_future(gone(request.receive))
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


async def gone(receive: Receive) -> None:
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
        async def put(body: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": body, "more_body": more})

        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if scope["method"] != "HEAD":
                await put(self._first)
                async for chunk in self._rest:
                    if self._gone.done():
                        return
                    await put(chunk)
            await put(b"", more=False)
        except GatewayError as error:
            # Sent bytes cannot be withdrawn. The server closes the connection, since the answer has no end.
            logger.warning("response aborted", path=scope["path"], reason=error)
        finally:
            self._gone.cancel()
            await self._rest.aclose()
