"""Cross-origin rules: listed pages may use the gate; preflights are answered as in SEPA protocol 1.5."""

from __future__ import annotations

from collections.abc import Awaitable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lamplighter.engine.errors import ForeignRequestError
from lamplighter.gateway.gates.http.answers import Refusal, error_answer
from lamplighter.gateway.monitoring.figures import HttpCounters
from lamplighter.gateway.security.browsers import Browsers

VARY = (b"vary", b"Origin")
"""For every answer, to requests without Origin too (Fetch standard, 3.2.5: CORS protocol and HTTP caches)."""


class Cors:
    """Refuses requests that pages of other sites made a browser send, before the body is read.

    links: paths that links on any page may lead to; without a query they only read, and little. options: beginnings of
    paths that answer OPTIONS themselves, where it is no preflight.
    """

    def __init__(
        self,
        app: ASGIApp,
        browsers: Browsers,
        links: frozenset[str],
        counters: HttpCounters,
        options: tuple[str, ...] = (),
    ) -> None:
        self._app = app
        self._browsers = browsers
        self._links = links
        self._counters = counters
        self._options = options

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        method = scope["method"]
        try:
            origin = None
            if not scope["state"]["listener"].local:
                link = method in ("GET", "HEAD") and scope["path"] in self._links and not scope["query_string"]
                origin = self._browsers.origin(scope["headers"], scope["http_version"], link=link)
        except ForeignRequestError as error:
            response: Response = error_answer(error)
        else:
            if method != "OPTIONS" or self._answers_options(scope):
                return self._app(scope, receive, send if origin is None else _with_origin(send, origin))
            response = _preflight(Request(scope))
        if isinstance(response, Refusal):
            self._counters.errors[response.code] += 1
        return response(scope, receive, send)

    def _answers_options(self, scope: Scope) -> bool:
        preflight = any(name == b"access-control-request-method" for name, _ in scope["headers"])
        return not preflight and scope["path"].startswith(self._options)


def _with_origin(send: Send, origin: bytes) -> Send:
    async def send_with_origin(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"access-control-allow-origin", origin)]
        await send(message)

    return send_with_origin


def _preflight(request: Request) -> Response:
    origins = request.headers.getlist("origin")
    methods = request.headers.getlist("access-control-request-method")
    if len(origins) != 1 or len(methods) != 1:
        return Refusal("cors_error", 401, "a preflight must have one Origin and one Access-Control-Request-Method")
    headers = {"Access-Control-Allow-Origin": origins[0], "Access-Control-Allow-Methods": methods[0]}
    asked = request.headers.get("access-control-request-headers")
    if asked:
        headers["Access-Control-Allow-Headers"] = asked
    if request.headers.get("access-control-request-private-network") == "true":
        headers["Access-Control-Allow-Private-Network"] = "true"
    return Response(status_code=204, headers=headers)
