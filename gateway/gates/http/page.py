"""The web page: its files, the rows of its views for programs, and what it has to know before it asks for data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from lamplighter.engine.errors import LimitExceededError, MalformedRequestError
from lamplighter.engine.sparql.requests import QueryOutline
from lamplighter.gateway.gates.http.answers import JSON, JsonAnswer, Refusal, is_known, stream_answer
from lamplighter.gateway.gates.http.files import IMMUTABLE, file_headers, not_modified, takes_gzip
from lamplighter.gateway.gates.http.negotiation import NotAcceptableError, negotiate, request_iri
from lamplighter.gateway.gates.http.parameters import NONE, Parameters, parameters
from lamplighter.gateway.gates.http.routes import Handler, Permission, Route
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.page.assets import Asset, Assets
from lamplighter.gateway.page.rows import NOW, STREET, Row, csv_text, result_rows
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.security.gatekeeper import Gatekeeper

PAGE = "/page/"
# Each has the address `/page/<view>`.
VIEWS = (
    *("now", "street", "devices", "history", "logbook", "applications", "query", "timers", "subscriptions"),
    *("log", "explain", "health", "system"),
)
TEXTS_MAX = 16 * 1024 * 1024  # characters of the texts of a view's rows
_QUERY = Parameters(("query",))
_ROWS_HEADERS = {"Cache-Control": "no-store"}
_RESULTS, _CSV = "application/sparql-results+json", "text/csv"

_Rows = Callable[[Caller], Sequence[Row]]


def page_paths() -> frozenset[str]:
    """Paths that links of any web page may lead to."""
    return frozenset({PAGE.rstrip("/"), PAGE, *(PAGE + view for view in VIEWS)})


class PageRequests:
    """The handlers. assets: None if the page was not built; documents: whether they are at ``/page/docs/``;
    subscribe_at: URL of subscriptions, whose host is replaced by that of a request; index: the handler of ``/`` for
    programs."""

    def __init__(
        self,
        runner: Runner,
        assets: Assets | None,
        documents: bool,
        gatekeeper: Gatekeeper,
        subscribe_at: str,
        index: Handler,
    ) -> None:
        self._runner = runner
        self._assets = assets
        self._documents = documents
        self._gatekeeper = gatekeeper
        self._subscribe_at = subscribe_at
        self._index = index

    def routes(self) -> Iterator[Route]:
        yield Route("/", self.root, Permission.NOTHING)
        yield Route(PAGE.rstrip("/"), self.without_slash, Permission.NOTHING)
        yield Route(PAGE, self.file, Permission.NOTHING, parameters=None)  # the page's script reads them
        yield Route(f"{PAGE}session.json", self.session, Permission.NOTHING)
        for view, sparql, taken in (("now", NOW, NONE), ("street", STREET, NONE), ("query", None, _QUERY)):
            for suffix, handler in (("json", self._result_json), ("csv", self._result_csv)):
                yield Route(f"{PAGE}{view}.{suffix}", partial(handler, sparql), Permission.CALLER, parameters=taken)
        yield from _both("timers", lambda caller: self._runner.delayed_updates(caller), Permission.CALLER)
        yield from _both("subscriptions", self._subscriptions, Permission.OPERATOR)
        yield from _both("health", self._health, Permission.CALLER)

    # --- files ---

    async def root(self, request: Request, caller: Caller) -> Response:
        if self._assets is not None:
            try:
                if negotiate(request, ("text/plain", "text/html")).format == "text/html":
                    return Response(status_code=303, headers={"Location": PAGE[1:], "Vary": "Accept"})
            except NotAcceptableError:
                pass  # the list of paths helps anyway
        answer = await self._index(request, caller)
        answer.headers["Vary"] = "Accept"
        return answer

    async def without_slash(self, request: Request, caller: Caller) -> Response:
        return Response(status_code=308, headers={"Location": PAGE[1:]})

    async def file(self, request: Request, caller: Caller) -> Response:
        below: str = request.scope["below"]
        if self._assets is None:
            return Refusal("not_found", 404, "the page was not built; run gateway/page/build.sh in the source folder")
        if below == "" or below in VIEWS:
            return _asset(request, self._assets.index, "no-cache", self._index_headers(request))
        asset = self._assets.files.get(below.removeprefix("assets/"))
        if asset is None or not below.startswith("assets/"):
            return Refusal("not_found", 404, f"there is nothing at {request.scope['path']}; the page is at {PAGE}")
        return _asset(request, asset, IMMUTABLE)

    def _index_headers(self, request: Request) -> dict[str, str]:
        subscribe = urlsplit(self._subscribe_url(request))
        policy = (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
            f"connect-src 'self' {subscribe.scheme}://{subscribe.netloc}; "
            "manifest-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
        )
        return {
            "Content-Security-Policy": policy,
            "Referrer-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
        }

    def _subscribe_url(self, request: Request) -> str:
        """Where this request's browser subscribes. Raises MalformedRequestError for a Host that is no name."""
        subscribe, here = urlsplit(self._subscribe_at), urlsplit(request_iri(request)).netloc
        host = here if here.endswith("]") else here.rpartition(":")[0] or here
        return subscribe._replace(netloc=f"{host}:{subscribe.port}").geturl()

    # --- data ---

    async def session(self, request: Request, caller: Caller) -> Response:
        """What the page has to know first. client: None if nobody is logged in."""
        logged_in = self._gatekeeper.page_caller(request)
        settings = self._runner.settings
        members: dict[str, Any] = {
            "secure": self._subscribe_at.startswith("wss:"),
            "client": None if logged_in is None else logged_in.name,
            "operator": logged_in is not None and logged_in.operator,
            "subscribe": self._subscribe_url(request),
            "query": settings.http.query_path,
            "update": settings.http.update_path,
            "base": settings.gateway.base_iri,
            "documents": self._documents,
        }
        return JsonAnswer(members, headers=_ROWS_HEADERS)

    async def _result_json(self, sparql: str | None, request: Request, caller: Caller) -> Response:
        """sparql: None for that of the parameter `query`."""
        answer = await self._runner.queries.query(self._outline(sparql, request), _RESULTS, None, None, caller=caller)
        return Response(await self._array(await answer.whole(), caller), media_type=JSON, headers=_ROWS_HEADERS)

    async def _result_csv(self, sparql: str | None, request: Request, caller: Caller) -> Response:
        answer = await self._runner.queries.query(self._outline(sparql, request), _CSV, None, None, caller=caller)
        return await stream_answer(request, answer.chunks(), _CSV, _ROWS_HEADERS)

    def _outline(self, sparql: str | None, request: Request) -> QueryOutline:
        """Raises MalformedRequestError, also for a query whose result has no rows."""
        text = parameters(request).text("query") if sparql is None else sparql
        if text is None:
            raise MalformedRequestError("the parameter query is missing")
        outline = self._runner.queries.outline(text)
        if outline.form not in ("SELECT", "ASK"):
            raise MalformedRequestError(
                f"the result of {outline.form} has no rows; send it to the query path, which returns RDF"
            )
        return outline

    async def _array(self, result: bytes, caller: Caller) -> bytes:
        """The rows of a result as an array. Raises LimitExceededError, QueueFullError."""
        # A fork makes it: variables that are not bound make it far longer than the result, and its objects take twenty
        # times the memory.

        def write(out: BinaryIO) -> None:
            out.write(b"+" + msgspec.json.encode(result_rows(result)))

        return await (await self._runner.beside(write, caller)).whole()

    def _subscriptions(self, caller: Caller) -> Sequence[Row]:
        rows: Sequence[Row] = self._runner.figures.subscriptions()["subscriptions"]
        return rows

    def _health(self, caller: Caller) -> Sequence[Row]:
        status = self._runner.figures.status()
        rows: Sequence[Row] = status["components"] if caller.operator else [{"status": status["status"]}]
        return rows


def _both(view: str, rows: _Rows, permission: Permission) -> Iterator[Route]:
    """The routes of a view's rows as JSON and as CSV."""

    def answering(answer: Callable[[Sequence[Row]], Response]) -> Callable[[Request, Caller], Awaitable[Response]]:
        async def handler(request: Request, caller: Caller) -> Response:
            found = rows(caller)
            if sum(len(value) for row in found for value in row.values() if isinstance(value, str)) > TEXTS_MAX:
                raise LimitExceededError(f"the texts have more than {TEXTS_MAX} characters; use `lamplighter {view}`")
            return answer(found)

        return handler

    yield Route(f"{PAGE}{view}.json", answering(lambda found: JsonAnswer(found, headers=_ROWS_HEADERS)), permission)
    yield Route(
        f"{PAGE}{view}.csv",
        answering(lambda found: Response(csv_text(found), media_type=_CSV, headers=_ROWS_HEADERS)),
        permission,
    )


def _asset(request: Request, asset: Asset, caching: str, headers: Mapping[str, str] | None = None) -> Response:
    """The file, as gzip where the client takes it."""
    packed = takes_gzip(request)
    more = file_headers(asset.tag, caching, packed=packed) | dict(headers or {})
    if is_known(request, more["ETag"]):
        return not_modified(more)
    return Response(asset.packed if packed else asset.plain, media_type=asset.media_type, headers=more)
