"""Cross-origin rules: listed pages may use the gate; preflights are answered as in SEPA protocol 1.5."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from lamplighter.gateway.gates.http.answers import Refusal
from lamplighter.gateway.security.browsers import Browsers

# For every answer, to requests without Origin too (Fetch standard, 3.2.5: CORS protocol and HTTP caches).
VARY = (b"vary", b"Origin")


class CorsRules(NamedTuple):
    """Which pages may use the gate. links: paths that links on any page may lead to; without a query they only read,
    and little."""

    browsers: Browsers
    links: frozenset[str]


def is_link(scope: Scope) -> bool:
    return scope["method"] in ("GET", "HEAD") and not scope["query_string"]


def answers_options(request: Request, methods: Collection[str] | None) -> bool:
    """Whether a place answers OPTIONS itself: no preflight, where it has the method."""
    return "OPTIONS" in (methods or ()) and "access-control-request-method" not in request.headers


def preflight(request: Request) -> Response:
    """The answer to a preflight."""
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
