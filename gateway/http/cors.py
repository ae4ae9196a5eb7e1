"""Cross-origin rules (SEPA protocol 1.5)."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.figures import HttpCounters
from gateway.http.answers import Refusal


class Cors:
    """Every origin may ask for everything, and preflights are answered before anything else is looked at."""

    def __init__(self, app: ASGIApp, counters: HttpCounters) -> None:
        self._app = app
        self._counters = counters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origins = [value for name, value in scope["headers"] if name == b"origin"]
        if scope["method"] == "OPTIONS":
            response = _preflight(Request(scope), len(origins))
            if isinstance(response, Refusal):
                self._counters.errors[response.code] += 1
            await response(scope, receive, send)
        elif len(origins) == 1:
            await self._app(scope, receive, _with_origin(send, origins[0]))
        else:
            await self._app(scope, receive, send)


def _with_origin(send: Send, origin: bytes) -> Send:
    async def send_with_origin(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"access-control-allow-origin", origin), (b"vary", b"Origin")]
        await send(message)

    return send_with_origin


def _preflight(request: Request, origins: int) -> Response:
    methods = request.headers.getlist("access-control-request-method")
    if origins != 1 or len(methods) != 1:
        return Refusal("cors_error", 401, "a preflight has one Origin and one Access-Control-Request-Method")
    headers = {
        "Access-Control-Allow-Origin": request.headers["origin"],
        "Access-Control-Allow-Methods": methods[0],
        "Vary": "Origin",
    }
    asked = request.headers.get("access-control-request-headers")
    if asked:
        headers["Access-Control-Allow-Headers"] = asked
    return Response(status_code=204, headers=headers)
