"""Paths, their methods, required permissions and cross-origin rules. The only way to a handler.

Listed pages may use the gate; preflights are answered as in SEPA protocol 1.5.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from time import perf_counter
from typing import NamedTuple

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lamplighter.engine.access import Access, Graphs
from lamplighter.engine.errors import (
    AccessDeniedError,
    ConfigurationError,
    GatewayError,
    LimitExceededError,
    RequestError,
    bare,
)
from lamplighter.engine.log_events import EventLogger
from lamplighter.gateway.gates.http.answers import MethodError, Refusal, error_answer, refusal
from lamplighter.gateway.gates.http.parameters import NONE, Parameters, read_parameters
from lamplighter.gateway.monitoring.figures import HttpCounters
from lamplighter.gateway.monitoring.timings import Timing, count_durations
from lamplighter.gateway.security.browsers import Browsers
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.security.gatekeeper import Gatekeeper
from lamplighter.gateway.state.quotas import ConnectionLease

# For every answer, to requests without Origin too (Fetch standard, 3.2.5: CORS protocol and HTTP caches).
VARY = (b"vary", b"Origin")


class CorsRules(NamedTuple):
    """Which pages may use the gate. links: paths that links on any page may lead to; they only read, and little."""

    browsers: Browsers
    links: frozenset[str]


def is_link(scope: Scope) -> bool:
    return scope["method"] in ("GET", "HEAD") and not scope["query_string"]


def answers_options(request: Request, methods: Collection[str] | None) -> bool:
    """Whether a place answers OPTIONS itself: no preflight, where it has the method."""
    return "OPTIONS" in (methods or ()) and "access-control-request-method" not in request.headers


def preflight(request: Request) -> Response:
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


logger = EventLogger(__name__)

WAITED = "lamplighter.waited"  # key of a request's scope: seconds that its handler only waited
RELEASE = "lamplighter.release"  # key of a request's scope: called when its handler has answered

Handler = Callable[[Request, Caller], Awaitable[Response]]


class UnsupportedMediaTypeError(RequestError):
    code = "unsupported_media_type"
    status = 415


class ConditionError(RequestError):
    """A change with a precondition (RFC 9110, 13.1), which no door evaluates."""

    code = "precondition_not_supported"
    status = 501


# If-Modified-Since is for GET and HEAD only.
_CONDITIONS = frozenset((b"if-match", b"if-none-match", b"if-unmodified-since"))

_NOTHING = Graphs(frozenset())
# The caller of paths that require no authentication.
NOBODY = Caller("", Access(_NOTHING, _NOTHING, _NOTHING), operator=False, registered=False)


class Permission(Enum):
    NOTHING = auto()
    CALLER = auto()
    OPERATOR = auto()


@dataclass(frozen=True)
class Route:
    """A path and its handler. A path that ends with a slash serves the paths below it; `request.scope["below"]` is the
    rest. methods: None leaves the check to the handler. parameters: those of its URL, by request where they differ;
    None leaves them to the handler. problem: the answer to an error, where a standard has a form of its own."""

    path: str
    handler: Handler
    permission: Permission
    methods: frozenset[str] | None = frozenset({"GET", "HEAD"})
    parameters: Parameters | Callable[[Request], Parameters | None] | None = NONE
    problem: Callable[[GatewayError], Refusal] | None = None


class Routes:
    """The routes by their paths. prefix: optional before every path. elsewhere: serves the paths below its own that no
    other route has, without the prefix and with its methods only."""

    def __init__(self, routes: Iterable[Route], prefix: str, elsewhere: Route | None = None) -> None:
        """Raises ConfigurationError for two routes with one path."""
        self.exact: dict[str, Route] = {}
        self._below: dict[str, Route] = {}
        self._elsewhere = elsewhere
        for route in routes:
            served = self._below if route.path.endswith("/") and route.path != "/" else self.exact
            for path in dict.fromkeys((route.path, prefix + route.path)):
                if path in served:
                    raise ConfigurationError(
                        f"two resources have the path {path}; set http.query_path, http.update_path and "
                        "http.graph_store_path paths that nothing else has"
                    )
                served[path] = route

    def below(self, scope: Scope) -> Route | None:
        """The route of a path that none has for itself."""
        path = scope["path"]
        above = next((above for above in self._below if path.startswith(above)), None)
        if above is not None:
            scope["below"] = path.removeprefix(above)
            return self._below[above]
        route = self._elsewhere
        if route is None or not path.startswith(route.path) or scope["method"] not in (route.methods or ()):
            return None
        return route


class HttpApplication:
    """The ASGI application: finds the route, refuses foreign pages, authenticates the caller, calls the handler. Errors
    have the three members. counters, took: updated with each request."""

    def __init__(
        self, routes: Routes, gatekeeper: Gatekeeper, cors: CorsRules, counters: HttpCounters, took: Timing
    ) -> None:
        self._routes = routes
        self._gatekeeper = gatekeeper
        self._cors = cors
        self._counters = counters
        self._handling = took

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin, begin_s = None, None
        request = Request(scope, receive)
        try:
            # Pages of other sites are refused before anything else of a request is looked at.
            if not scope["state"]["listener"].local:
                origin = self._cors.browsers.origin(
                    scope["headers"],
                    scope["http_version"],
                    link=scope["method"] != "POST" and scope["path"] in self._cors.links and is_link(scope),
                )
            route = self._routes.exact.get(scope["path"]) or self._routes.below(scope)
            if scope["method"] == "OPTIONS" and (route is None or not answers_options(request, route.methods)):
                response: Response = preflight(request)
                origin = None
            else:
                begin_s = perf_counter()
                self._counters.requests += 1
                response = await self._answer(request, route)
        except GatewayError as error:
            response = refusal(request, bare(error))
        except ClientDisconnect:
            response = Response(status_code=400)  # there is no reader
        except Exception:
            logger.exception("request failed", method=request.method, path=scope["path"])
            response = Refusal("internal", 500, "internal error; see the gateway's log")
        finally:
            if (release := scope.pop(RELEASE, None)) is not None:
                release()
        if isinstance(response, Refusal):
            self._counters.errors[response.code] += 1
        if origin is not None:
            response.raw_headers.append((b"access-control-allow-origin", origin))
        await response(scope, receive, send)
        if begin_s is not None:
            count_durations(((self._handling, perf_counter() - begin_s - scope.get(WAITED, 0.0)),))

    async def _answer(self, request: Request, route: Route | None) -> Response:
        path = request.scope["path"]
        if route is None:
            return Refusal("not_found", 404, f"there is nothing at {path}; GET / lists the paths")
        if route.methods is not None and request.method not in route.methods:
            raise MethodError(request.method, route.methods, f"at {path}")
        # The caller is authenticated before anything of the request is read or parsed.
        caller = NOBODY
        if route.permission is not Permission.NOTHING:
            caller = self._gatekeeper.http_caller(request)
            connection = request.scope["state"]
            held: ConnectionLease = connection["held"]
            try:
                if caller.registered:
                    held.by(caller.name)
            except LimitExceededError as error:
                response = error_answer(bare(error))
                response.headers["Connection"] = "close"
                return response
            if not held.trusted:
                held.trusted = True
                connection["listener"].trust(connection["socket"].fileno())
        try:
            if route.permission is Permission.OPERATOR:
                caller.require_operator(f"use {route.path}")
            _check_headers(request)
            table = route.parameters
            if table is not None and not isinstance(table, Parameters):
                table = table(request)
            if table is not None:
                read_parameters(request, table)
            answer = await route.handler(request, caller)
            # It may have lost its rights meanwhile.
            if WAITED in request.scope and route.permission is not Permission.NOTHING:
                caller = self._gatekeeper.http_caller(request)
                if route.permission is Permission.OPERATOR:
                    caller.require_operator(f"use {route.path}")
            return answer
        except AccessDeniedError as error:
            self._gatekeeper.audit_denial(caller, route.path.strip("/"), error)
            if route.problem is None:
                raise
            return route.problem(error)
        except GatewayError as error:
            if route.problem is None:
                raise
            return route.problem(bare(error))


def _check_headers(request: Request) -> None:
    """Raises UnsupportedMediaTypeError for a body with a Content-Encoding, and ConditionError for a request that must
    have no effect unless a condition holds."""
    # What only reads answers with the whole representation, as RFC 9110 permits, or evaluates If-None-Match itself.
    for name, value in request.scope["headers"]:
        if name == b"content-encoding" and value.strip().lower() != b"identity":
            coding = value.decode("latin-1")[:100]
            raise UnsupportedMediaTypeError(f"Content-Encoding is {coding!r}; send the body as it is, without a coding")
        if name in _CONDITIONS and request.method not in ("GET", "HEAD", "OPTIONS"):
            raise ConditionError(
                f"{name.decode().title()} is not supported by {request.method}, and nothing was changed; leave it out, "
                "or send a SPARQL update whose WHERE has the condition"
            )
