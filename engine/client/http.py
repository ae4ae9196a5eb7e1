"""A client of the SPARQL 1.1 Protocol: queries and updates over HTTP, with a gateway or any other endpoint; and of the
change feed of a gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

import httpx
import msgspec

from lamplighter.engine.client import results
from lamplighter.engine.client.addresses import check_private, split_address, trusting
from lamplighter.engine.client.changes import DatasetChange, follow
from lamplighter.engine.client.messages import Tokens, UpdateAnswer, UpdateDelta, check_trust, graph_members
from lamplighter.engine.errors import (
    ConfigurationError,
    MalformedRequestError,
    RefusedError,
    UpstreamError,
    check_list,
    check_type,
    check_types,
)
from lamplighter.engine.terms import Bag

if TYPE_CHECKING:
    from lamplighter.engine.protocol.jsap import Method

RESULTS_JSON = "application/sparql-results+json"
RESULT_BYTES_MAX = 256 * 1024 * 1024
TIMEOUT_S = 60.0
_FORM = "application/x-www-form-urlencoded"
_GRAPHS = "application/n-triples, text/turtle;q=0.9, application/ld+json;q=0.8"


class SparqlEndpoint:
    """An endpoint, used as ``async with SparqlEndpoint("http://127.0.0.1:8000") as endpoint``.

    base: the address that precedes ``/query`` and ``/update``. query_url, update_url: addresses with other paths, such
    as ``http://127.0.0.1:3030/place/sparql``. query_method, update_method: how requests are sent. unix: path of a Unix
    socket to connect to. tokens: the source of bearer tokens in secure mode. ca: file with the certificates to trust
    instead of the machine's. Raises ConfigurationError for a malformed address, and for one to which tokens would be
    sent unencrypted.
    """

    def __init__(
        self,
        base: str = "",
        *,
        query_url: str = "",
        update_url: str = "",
        query_method: Method = "POST",
        update_method: Method = "POST",
        unix: Path | str | None = None,
        tokens: Tokens | None = None,
        ca: Path | str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        texts = {"base": base, "query_url": query_url, "update_url": update_url}
        check_types(str, **texts, query_method=query_method, update_method=update_method)
        check_type("unix", unix, str, Path, NoneType)
        check_type("timeout_s", timeout_s, int, float)
        check_trust(tokens, ca)
        self._base = base.rstrip("/")
        self._timeout_s = timeout_s
        self._query_url = _check_url(query_url or (f"{base.rstrip('/')}/query" if base else ""))
        self._update_url = _check_url(update_url or (f"{base.rstrip('/')}/update" if base else ""))
        self._query_method = query_method
        self._update_method = update_method
        self._tokens = tokens
        # Of the last answer to a query of a past dataset: its record and time, such as ``1/17 2026-11-21T...``.
        self.as_of = ""
        for url in filter(None, (self._query_url, self._update_url)):
            if tokens is not None:
                check_private(url)
        secure = any(url.startswith("https:") for url in (self._query_url, self._update_url))
        transport = httpx.AsyncHTTPTransport(
            verify=trusting(ca) if secure else False, uds=None if unix is None else str(unix)
        )
        self._http = httpx.AsyncClient(transport=transport, timeout=timeout_s, trust_env=False)

    async def __aenter__(self) -> SparqlEndpoint:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._http.aclose()

    async def query(self, sparql: str, *, default_graphs: Sequence[str] = (), named_graphs: Sequence[str] = ()) -> Bag:
        """The result of a SELECT query. default_graphs, named_graphs: IRIs of its dataset, if not the whole dataset.

        Raises RefusedError with the endpoint's answer, UpstreamError if there is none or it cannot be read,
        MalformedRequestError for another form of query.
        """
        return results.bag(await self._document(sparql, default_graphs, named_graphs))

    async def ask(self, sparql: str, *, default_graphs: Sequence[str] = (), named_graphs: Sequence[str] = ()) -> bool:
        """The result of an ASK query. Raises as `query`."""
        return results.boolean(await self._document(sparql, default_graphs, named_graphs))

    async def construct(
        self, sparql: str, *, default_graphs: Sequence[str] = (), named_graphs: Sequence[str] = ()
    ) -> list[results.Triple]:
        """The triples of a CONSTRUCT or DESCRIBE query. Raises as `query`."""
        graphs = graph_members(default_graphs, named_graphs)
        media_type, data = await self.answer(sparql, _GRAPHS, graphs)
        return results.triples(data, media_type)

    async def update(
        self,
        sparql: str,
        *,
        using_graphs: Sequence[str] = (),
        using_named_graphs: Sequence[str] = (),
        extensions: Mapping[str, str] | None = None,
        delta: bool = False,
    ) -> UpdateAnswer | None:
        """Sends an update, and returns when it has taken effect.

        using_graphs, using_named_graphs: IRIs of the dataset of its WHERE. extensions: parameters of Lamplighter, such
        as ``delay`` and ``request_id``. delta: whether the answer is to tell what the update changed. Returns the
        gateway's answer, None from other endpoints. Raises RefusedError, and UpstreamError, after which the update may
        have taken effect or not.
        """
        check_type("sparql", sparql, str)
        check_list("using_graphs", using_graphs, str)
        check_list("using_named_graphs", using_named_graphs, str)
        check_type("extensions", extensions, Mapping, NoneType)
        check_type("delta", delta, bool)
        graphs = {"using-graph-uri": list(using_graphs), "using-named-graph-uri": list(using_named_graphs)}
        parameters = {**{name: value for name, value in graphs.items() if value}, **(extensions or {})}
        if not self._update_url:
            raise ConfigurationError("this endpoint has no address for updates; give update_url")
        headers = {"Accept": "*/*"} | ({"Prefer": "return=representation"} if delta else {})
        async with self._send("update", self._update_url, self._update_method, sparql, parameters, headers) as answer:
            body = await _read_body(answer)
        try:
            told = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        if not isinstance(told, dict):
            return None
        sequence, delayed = told.get("sequence"), told.get("delayed")
        if not isinstance(sequence, int) and not isinstance(delayed, str) and "delta" not in told:
            return None
        try:
            changed = None if told.get("delta") is None else UpdateDelta.of(told["delta"])
            return UpdateAnswer(sequence, delayed, changed)
        except ValueError as error:
            raise UpstreamError(f"{self._update_url} answered with {error}") from error

    async def follow_changes(self, after: str | None = None) -> AsyncIterator[DatasetChange]:
        """The dataset of a gateway, as far as the client may read it, and then each of its changes, without end.

        after: the `position` of a change, to continue behind it instead; then only changes come. A connection that is
        lost is made again, and what it missed follows. Where that is impossible, the dataset comes once more; its first
        part has the reason as `reset`. Raises RefusedError for an answer that would be the same again,
        ConfigurationError for an endpoint that was made without `base`.
        """
        check_type("after", after, str, NoneType)
        if not self._base:
            raise ConfigurationError("this endpoint has no address for changes; give base")
        async for change in follow(self._get, after, self._timeout_s):
            yield change

    @asynccontextmanager
    async def _get(self, path: str, parameters: Mapping[str, str], accept: str) -> AsyncIterator[httpx.Response]:
        url = self._base + path
        headers = {"Accept": accept}
        async with self._open_accepted(
            url, lambda: self._http.build_request("GET", url, params=dict(parameters), headers=headers)
        ) as answer:
            yield answer

    async def answer(
        self, sparql: str, accept: str, graphs: Mapping[str, Sequence[str]] | None = None, at: str | None = None
    ) -> tuple[str, bytes]:
        """(media type, content) of the answer to a query. accept: the header Accept; at: a record or time of a gateway,
        whose dataset is queried; then `as_of` is the record that was used. Raises as `query`."""
        async with self.stream(sparql, accept, graphs, at) as (media_type, chunks):
            data = bytearray()
            async for chunk in chunks:
                data += chunk
                if len(data) > RESULT_BYTES_MAX:
                    raise UpstreamError(f"a result has more than {RESULT_BYTES_MAX} bytes; ask for less, or stream it")
            return media_type, bytes(data)

    @asynccontextmanager
    async def stream(
        self, sparql: str, accept: str, graphs: Mapping[str, Sequence[str]] | None = None, at: str | None = None
    ) -> AsyncIterator[tuple[str, AsyncIterator[bytes]]]:
        """As `answer`, with the content as a stream of chunks."""
        check_types(str, sparql=sparql, accept=accept)
        check_type("graphs", graphs, Mapping, NoneType)
        check_type("at", at, str, NoneType)
        if not self._query_url:
            raise ConfigurationError("this endpoint has no address for queries; give query_url")
        parameters = {**(graphs or {}), **({} if at is None else {"at": [at]})}
        headers = {"Accept": accept}
        async with self._send("query", self._query_url, self._query_method, sparql, parameters, headers) as answer:
            self.as_of = answer.headers.get("lamplighter-at", "")
            if at is not None and not self.as_of:
                raise UpstreamError(f"{self._query_url} does not query past datasets; it answered with the current one")
            media_type = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
            yield media_type, _chunks(answer)

    async def _document(self, sparql: str, default_graphs: Sequence[str], named_graphs: Sequence[str]) -> Any:
        graphs = graph_members(default_graphs, named_graphs)
        media_type, data = await self.answer(sparql, f"{RESULTS_JSON}, application/json;q=0.9", graphs)
        if media_type in results.GRAPH_MEDIA_TYPES and media_type != "application/ld+json":
            raise MalformedRequestError("the answer is a graph: use construct()")
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UpstreamError(f"{self._query_url} answered with {media_type}, which is no JSON") from error

    @asynccontextmanager
    async def _send(
        self,
        kind: str,
        url: str,
        method: Method,
        sparql: str,
        parameters: Mapping[str, str | Sequence[str]],
        headers: Mapping[str, str],
    ) -> AsyncIterator[httpx.Response]:
        """As `_open_accepted`, of a SPARQL request."""

        def build() -> httpx.Request:
            request = self._request(kind, url, method, sparql, parameters)
            request.headers.update(headers)
            return request

        async with self._open_accepted(url, build) as answer:
            yield answer

    @asynccontextmanager
    async def _open_accepted(self, url: str, build: Callable[[], httpx.Request]) -> AsyncIterator[httpx.Response]:
        """The answer to an accepted request. A request whose token has expired is repeated once with a new token."""
        tokens_left = 2
        while True:
            token = None if self._tokens is None else await self._tokens.token()
            request = build()
            if token is not None:
                request.headers["Authorization"] = f"Bearer {token}"
            try:
                answer = await self._http.send(request, stream=True)
            except httpx.HTTPError as error:
                raise UpstreamError(f"no answer from {url}: {error or type(error).__name__}") from error
            try:
                if answer.status_code < 300:
                    yield answer
                    return
                refusal = refusal_error(answer.status_code, await _read_body(answer))
            finally:
                await answer.aclose()
            tokens_left -= 1
            if token is None or not tokens_left or (refusal.status, refusal.code) != (401, "invalid_grant"):
                raise refusal
            assert self._tokens is not None
            self._tokens.expired(token)

    def _request(
        self, kind: str, url: str, method: Method, sparql: str, parameters: Mapping[str, str | Sequence[str]]
    ) -> httpx.Request:
        if method == "POST":
            asked = urlencode(dict(parameters), doseq=True)
            target = f"{url}{'&' if urlsplit(url).query else '?'}{asked}" if asked else url
            return self._http.build_request(
                "POST", target, content=sparql.encode(), headers={"Content-Type": f"application/sparql-{kind}"}
            )
        form = urlencode({kind: sparql, **parameters}, doseq=True)
        if method == "GET":
            return self._http.build_request("GET", f"{url}{'&' if urlsplit(url).query else '?'}{form}")
        return self._http.build_request("POST", url, content=form.encode(), headers={"Content-Type": _FORM})


def refusal_error(status: int, body: bytes) -> RefusedError:
    """The error of an answer (SEPA protocol 1.4); for other endpoints, with the beginning of their text."""
    try:
        told = msgspec.json.decode(body)
        return RefusedError(str(told["error"]), status, str(told.get("error_description", "")))
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError):
        return RefusedError("http", status, body[:500].decode("utf-8", "replace").strip() or "no reason was given")


async def _chunks(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in answer.aiter_bytes():
            yield chunk
    except httpx.HTTPError as error:
        raise UpstreamError(f"the answer from {answer.url} broke off: {error or type(error).__name__}") from error


async def _read_body(answer: httpx.Response) -> bytes:
    return b"".join([chunk async for chunk in _chunks(answer)])


def _check_url(url: str) -> str:
    if url and (split_address(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
        raise ConfigurationError(f"not an address: {url!r}; it looks like http://host:8000")
    return url
