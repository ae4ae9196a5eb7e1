"""Paths, their methods and required permissions. The only way to a handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from time import perf_counter

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
from lamplighter.gateway.gates.http.answers import Refusal, error_answer
from lamplighter.gateway.gates.http.parameters import NONE, Parameters, read_parameters
from lamplighter.gateway.gates.http.reports import refusal
from lamplighter.gateway.monitoring.figures import HttpCounters
from lamplighter.gateway.monitoring.timings import Timing
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.security.gatekeeper import Gatekeeper
from lamplighter.gateway.state.quotas import Held

logger = EventLogger(__name__)

WAITED = "lamplighter.waited"
"""Key of a request's scope: seconds that its handler only waited."""

Handler = Callable[[Request, Caller], Awaitable[Response]]


class UnsupportedMediaTypeError(RequestError):
    """A body in an unsupported format or coding."""

    code = "unsupported_media_type"
    status = 415


class ConditionError(RequestError):
    """A change with a precondition (RFC 9110, 13.1), which no door evaluates."""

    code = "precondition_not_supported"
    status = 501


_CONDITIONS = frozenset((b"if-match", b"if-none-match", b"if-unmodified-since"))
"""If-Modified-Since is for GET and HEAD only."""

_NOTHING = Graphs(frozenset())
NOBODY = Caller("", Access(_NOTHING, _NOTHING, _NOTHING), operator=False, registered=False)
"""The caller of paths that require no authentication."""


class Need(Enum):
    """The permission that a place requires."""

    NOTHING = auto()
    CALLER = auto()
    OPERATOR = auto()


@dataclass(frozen=True)
class Place:
    """A path and its handler. A path that ends with a slash serves the paths below it; `request.scope["below"]` is the
    rest.

    methods: None leaves the check to the handler. parameters: those of its URL, by request where they differ; None
    leaves them to the handler. problem: the answer to an error, where a standard has a form of its own.
    """

    path: str
    handler: Handler
    need: Need
    methods: frozenset[str] | None = frozenset({"GET", "HEAD"})
    parameters: Parameters | Callable[[Request], Parameters | None] | None = NONE
    problem: Callable[[GatewayError], Refusal] | None = None

    def read_parameters(self, request: Request) -> None:
        """Raises MalformedRequestError, and further errors of `Parameters.error`."""
        table = self.parameters
        if table is not None and not isinstance(table, Parameters):
            table = table(request)
        if table is not None:
            read_parameters(request, table)


def by_path(places: Iterable[Place], prefix: str) -> tuple[dict[str, Place], dict[str, Place]]:
    """The places by their paths: those that serve one path, and those that serve the paths below.

    prefix: optional before every path. Raises ConfigurationError for two places with one path.
    """
    exact: dict[str, Place] = {}
    below: dict[str, Place] = {}
    for place in places:
        served = below if place.path.endswith("/") and place.path != "/" else exact
        for path in dict.fromkeys((place.path, prefix + place.path)):
            if path in served:
                raise ConfigurationError(
                    f"two resources have the path {path}; set http.query_path, http.update_path and "
                    "http.graph_store_path paths that nothing else has"
                )
            served[path] = place
    return exact, below


class HttpApplication:
    """The ASGI application: finds the place, authenticates the caller, calls the handler. Errors have the three
    members.

    prefix: optional before every path. counters, took: updated with each request. elsewhere: serves the paths below its
    own that no other place has, without the prefix and with its methods only. Raises ConfigurationError for two places
    with one path.
    """

    def __init__(
        self,
        places: Iterable[Place],
        gatekeeper: Gatekeeper,
        prefix: str,
        counters: HttpCounters,
        took: Timing,
        elsewhere: Place | None = None,
    ) -> None:
        self._gatekeeper = gatekeeper
        self._counters = counters
        self._handling = took
        self._exact, self._below = by_path(places, prefix)
        self._elsewhere = elsewhere

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = perf_counter()
        self._counters.requests += 1
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except GatewayError as error:
            response = refusal(request, bare(error))
        except ClientDisconnect:
            response = Response(status_code=400)  # there is no reader
        except Exception:
            logger.exception("request failed", method=request.method, path=scope["path"])
            response = Refusal("internal", 500, "internal error; see the gateway's log")
        if isinstance(response, Refusal):
            self._counters.errors[response.code] += 1
        await response(scope, receive, send)
        self._handling.took(perf_counter() - begun - scope.get(WAITED, 0.0))

    async def _answer(self, request: Request) -> Response:
        path = request.scope["path"]
        place = self._place(request)
        if place is None:
            return Refusal("not_found", 404, f"there is nothing at {path}; GET / lists the paths")
        if place.methods is not None and request.method not in place.methods:
            allowed = ", ".join(sorted(place.methods))
            return Refusal(
                "method_not_allowed",
                405,
                f"{request.method} is not allowed at {path}; use {allowed}",
                {"Allow": allowed},
            )
        # The caller is authenticated before anything of the request is read or parsed.
        caller = NOBODY
        if place.need is not Need.NOTHING:
            caller = self._gatekeeper.http_caller(request)
            connection = request.scope["state"]
            held: Held = connection["held"]
            try:
                if caller.registered:
                    held.by_caller(caller)
            except LimitExceededError as error:
                response = error_answer(bare(error))
                response.headers["Connection"] = "close"
                return response
            if not held.trusted:
                held.trusted = True
                connection["listener"].trust(connection["socket"].fileno())
        try:
            if place.need is Need.OPERATOR:
                caller.require_operator(f"use {place.path}")
            _check_coding(request)
            _check_conditions(request)
            place.read_parameters(request)
            answer = await place.handler(request, caller)
            if WAITED in request.scope and place.need is not Need.NOTHING:  # it may have lost its rights meanwhile
                caller = self._gatekeeper.http_caller(request)
                if place.need is Need.OPERATOR:
                    caller.require_operator(f"use {place.path}")
            return answer
        except AccessDeniedError as error:
            self._gatekeeper.audit_denial(caller, place.path.strip("/"), error)
            if place.problem is None:
                raise
            return place.problem(error)
        except GatewayError as error:
            if place.problem is None:
                raise
            return place.problem(bare(error))

    def _place(self, request: Request) -> Place | None:
        path = request.scope["path"]
        if (place := self._exact.get(path)) is not None:
            return place
        above = next((above for above in self._below if path.startswith(above)), None)
        if above is not None:
            request.scope["below"] = path.removeprefix(above)
            return self._below[above]
        place = self._elsewhere
        if place is None or not path.startswith(place.path) or request.method not in (place.methods or ()):
            return None
        return place


def _check_coding(request: Request) -> None:
    """Raises UnsupportedMediaTypeError for a body with a Content-Encoding."""
    for name, value in request.scope["headers"]:
        if name == b"content-encoding" and value.strip().lower() != b"identity":
            coding = value.decode("latin-1")[:100]
            raise UnsupportedMediaTypeError(f"Content-Encoding is {coding!r}; send the body as it is, without a coding")


def _check_conditions(request: Request) -> None:
    """Raises ConditionError for a request that must have no effect unless a condition holds. What only reads answers
    with the whole representation, as RFC 9110 permits, or evaluates If-None-Match itself."""
    if request.method in ("GET", "HEAD", "OPTIONS"):
        return
    for name, _ in request.scope["headers"]:
        if name in _CONDITIONS:
            raise ConditionError(
                f"{name.decode().title()} is not supported by {request.method}, and nothing was changed; leave it out, "
                "or send a SPARQL update whose WHERE has the condition"
            )
