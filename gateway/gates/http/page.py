"""The web page: its files, the rows of its views for programs, and what it has to know before it asks for data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from lamplighter.engine.errors import LimitExceededError, MalformedRequestError
from lamplighter.gateway.gates.http.answers import JSON, JsonAnswer, Refusal, is_known, streamed
from lamplighter.gateway.gates.http.negotiation import NotAcceptableError, accepted, request_iri
from lamplighter.gateway.gates.http.parameters import Parameters, parameters
from lamplighter.gateway.gates.http.places import Handler, Need, Place
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.page.assets import Asset, Assets
from lamplighter.gateway.page.rows import NOW, STREET, Row, csv_text, result_rows
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.security.gatekeeper import Gatekeeper
from lamplighter.gateway.settings import HttpSettings

PAGE = "/page/"
VIEWS = ("now", "street", "devices", "query", "timers", "subscriptions", "log", "explain", "health")
"""Each has the address `/page/<view>`."""
TEXTS_MAX = 16 * 1024 * 1024
"""Characters of the texts of a view's rows."""
_QUERY = Parameters(("query",))
_ROWS_HEADERS = {"Cache-Control": "no-store"}
_YEAR = "public, max-age=31536000, immutable"
_RESULTS, _CSV = "application/sparql-results+json", "text/csv"

_Rows = Callable[[Caller], Sequence[Row]]


def page_paths() -> frozenset[str]:
    """Paths that links of any web page may lead to."""
    return frozenset({PAGE.rstrip("/"), PAGE, *(PAGE + view for view in VIEWS)})


class PageRequests:
    """The handlers.

    assets: None if the page was not built; subscribe_at: URL of subscriptions, whose host is replaced by that of a
    request; base_iri: of the gateway; index: the handler of ``/`` for programs.
    """

    def __init__(
        self,
        runner: Runner,
        settings: HttpSettings,
        assets: Assets | None,
        gatekeeper: Gatekeeper,
        subscribe_at: str,
        base_iri: str,
        index: Handler,
    ) -> None:
        self._runner = runner
        self._query_path = settings.query_path
        self._update_path = settings.update_path
        self._assets = assets
        self._gatekeeper = gatekeeper
        self._subscribe_at = subscribe_at
        self._base_iri = base_iri
        self._index = index

    def places(self) -> Iterator[Place]:
        yield Place("/", self.root, Need.NOTHING)
        yield Place(PAGE.rstrip("/"), self.without_slash, Need.NOTHING)
        yield Place(PAGE, self.file, Need.NOTHING, parameters=None)  # the page's script reads them
        yield Place(f"{PAGE}session.json", self.session, Need.NOTHING)
        yield Place(f"{PAGE}now.json", self.now_json, Need.CALLER)
        yield Place(f"{PAGE}now.csv", self.now_csv, Need.CALLER)
        yield Place(f"{PAGE}street.json", self.street_json, Need.CALLER)
        yield Place(f"{PAGE}street.csv", self.street_csv, Need.CALLER)
        yield Place(f"{PAGE}query.json", self.query_json, Need.CALLER, parameters=_QUERY)
        yield Place(f"{PAGE}query.csv", self.query_csv, Need.CALLER, parameters=_QUERY)
        yield from _both("timers", self._timers, Need.CALLER)
        yield from _both("subscriptions", self._subscriptions, Need.OPERATOR)
        yield from _both("health", self._health, Need.CALLER)

    # --- files ---

    async def root(self, request: Request, caller: Caller) -> Response:
        if self._assets is not None:
            try:
                if accepted(request, ("text/plain", "text/html")).format == "text/html":
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
            return _file(request, self._assets.index, "no-cache", self._index_headers(request))
        asset = self._assets.files.get(below.removeprefix("assets/"))
        if asset is None or not below.startswith("assets/"):
            return Refusal("not_found", 404, f"there is nothing at {request.scope['path']}; the page is at {PAGE}")
        return _file(request, asset, _YEAR)

    def _index_headers(self, request: Request) -> dict[str, str]:
        subscribe = urlsplit(self._subscribe_url(request))
        policy = (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
            f"connect-src 'self' {subscribe.scheme}://{subscribe.netloc}; "
            "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
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
        known = self._gatekeeper.page_caller(request)
        told: dict[str, Any] = {
            "secure": self._subscribe_at.startswith("wss:"),
            "client": None if known is None else known.name,
            "operator": known is not None and known.operator,
            "subscribe": self._subscribe_url(request),
            "query": self._query_path,
            "update": self._update_path,
            "base": self._base_iri,
        }
        return JsonAnswer(told, headers=_ROWS_HEADERS)

    async def now_json(self, request: Request, caller: Caller) -> Response:
        return await self._result_json(NOW, caller)

    async def now_csv(self, request: Request, caller: Caller) -> Response:
        return await self._result_csv(request, NOW, caller)

    async def street_json(self, request: Request, caller: Caller) -> Response:
        return await self._result_json(STREET, caller)

    async def street_csv(self, request: Request, caller: Caller) -> Response:
        return await self._result_csv(request, STREET, caller)

    async def query_json(self, request: Request, caller: Caller) -> Response:
        return await self._result_json(_query(request), caller)

    async def query_csv(self, request: Request, caller: Caller) -> Response:
        return await self._result_csv(request, _query(request), caller)

    async def _result_json(self, sparql: str, caller: Caller) -> Response:
        outline = self._runner.outline(sparql)
        _check_form(outline.form)
        answer = await self._runner.query(outline, _RESULTS, None, None, caller=caller)
        result = await answer.whole()
        return Response(await self._array(result, caller), media_type=JSON, headers=_ROWS_HEADERS)

    async def _array(self, result: bytes, caller: Caller) -> bytes:
        """The rows of a result as an array. A fork makes it: variables that are not bound make it far longer than the
        result, and its objects take twenty times the memory. Raises LimitExceededError, QueueFullError."""

        def write(out: BinaryIO) -> None:
            out.write(b"+" + msgspec.json.encode(result_rows(result)))

        return await (await self._runner.beside(write, caller)).whole()

    async def _result_csv(self, request: Request, sparql: str, caller: Caller) -> Response:
        outline = self._runner.outline(sparql)
        _check_form(outline.form)
        answer = await self._runner.query(outline, _CSV, None, None, caller=caller)
        return await streamed(request, answer.chunks(), _CSV, _ROWS_HEADERS)

    def _timers(self, caller: Caller) -> Sequence[Row]:
        return self._runner.delayed_updates(caller)

    def _subscriptions(self, caller: Caller) -> Sequence[Row]:
        rows: Sequence[Row] = self._runner.figures.subscriptions()["subscriptions"]
        return rows

    def _health(self, caller: Caller) -> Sequence[Row]:
        status = self._runner.figures.status()
        rows: Sequence[Row] = status["components"] if caller.operator else [{"status": status["status"]}]
        return rows


def _both(view: str, rows: _Rows, need: Need) -> Iterator[Place]:
    """The places of a view's rows as JSON and as CSV."""

    def answering(answer: Callable[[Sequence[Row]], Response]) -> Callable[[Request, Caller], Awaitable[Response]]:
        async def handler(request: Request, caller: Caller) -> Response:
            found = rows(caller)
            if sum(len(value) for row in found for value in row.values() if isinstance(value, str)) > TEXTS_MAX:
                raise LimitExceededError(f"the texts have more than {TEXTS_MAX} characters; use `lamplighter {view}`")
            return answer(found)

        return handler

    yield Place(f"{PAGE}{view}.json", answering(lambda found: JsonAnswer(found, headers=_ROWS_HEADERS)), need)
    yield Place(
        f"{PAGE}{view}.csv",
        answering(lambda found: Response(csv_text(found), media_type=_CSV, headers=_ROWS_HEADERS)),
        need,
    )


def _query(request: Request) -> str:
    """The parameter `query`. Raises MalformedRequestError."""
    text = parameters(request).text("query")
    if text is None:
        raise MalformedRequestError("the parameter query is missing")
    return text


def _check_form(form: str) -> None:
    """Raises MalformedRequestError for a query whose result has no rows."""
    if form not in ("SELECT", "ASK"):
        raise MalformedRequestError(f"the result of {form} has no rows; send it to the query path, which returns RDF")


def _file(request: Request, asset: Asset, caching: str, headers: Mapping[str, str] | None = None) -> Response:
    """The file, as gzip where the client takes it."""
    packed = _takes_gzip(request)
    tag = f'"{asset.tag}{"-gzip" if packed else ""}"'
    more = {"ETag": tag, "Cache-Control": caching, "Vary": "Accept-Encoding", **(headers or {})}
    if is_known(request, tag):
        return Response(status_code=304, headers=more)
    if packed:
        more["Content-Encoding"] = "gzip"
    return Response(asset.packed if packed else asset.plain, media_type=asset.media_type, headers=more)


def _takes_gzip(request: Request) -> bool:
    for item in request.headers.get("accept-encoding", "").lower().split(","):
        name, *options = (part.strip() for part in item.split(";"))
        if name in ("gzip", "*"):
            return not any(option.replace(" ", "") in ("q=0", "q=0.0", "q=0.00", "q=0.000") for option in options)
    return False
