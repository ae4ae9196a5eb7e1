"""Resources below the base IRI: GET of the path of an IRI returns what the dataset says about the IRI."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from urllib.parse import quote_from_bytes, unquote, unquote_to_bytes, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from lamplighter.engine.errors import UnknownResourceError
from lamplighter.gateway.gates.http.answers import Refusal, stream_answer
from lamplighter.gateway.gates.http.negotiation import NotAcceptableError, negotiate
from lamplighter.gateway.gates.http.routes import Permission, Route
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.workers.resources import FORMATS, HTML, ResourceRequest

_ENCODED = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
_UNRESERVED = re.compile(r"[A-Za-z0-9._~-]")
TARGET_BYTES_MAX = 8_192  # of an IRI that is looked up; RFC 9110, 4.1 asks for 8000
_HEADERS = {"Vary": "Accept"}


class Resources:
    """The handler of the paths below the base IRI's, under whatever Host."""

    def __init__(self, runner: Runner, base_iri: str) -> None:
        self._runner = runner
        self._base_iri = base_iri

    @property
    def route(self) -> Route | None:
        path = resources_path(self._base_iri)
        return None if path is None else Route(path, self.answer, Permission.CALLER, parameters=None)  # of the IRI

    async def answer(self, request: Request, caller: Caller) -> Response:
        iris = tuple(requested_iris(self._base_iri, request.scope["raw_path"], request.scope["query_string"]))
        try:
            return await self._description(request, caller, iris)
        except UnknownResourceError:
            return Refusal(
                "not_found",
                404,
                f"there is nothing at {request.scope['path']}, and the dataset has no triples of that IRI that this "
                "client may read; GET / lists the paths",
            )

    async def _description(self, request: Request, caller: Caller, iris: Sequence[str]) -> Response:
        """Raises UnknownResourceError, and NotAcceptableError only where there is something."""
        if not iris:
            raise UnknownResourceError
        try:
            found = negotiate(request, FORMATS)
        except NotAcceptableError:
            answer = await self._runner.queries.resource(ResourceRequest(iris, FORMATS[0], self._base_iri), caller)
            async with aclosing(answer.chunks()) as chunks:
                await anext(chunks)
            raise
        answer = await self._runner.queries.resource(ResourceRequest(iris, found.format, self._base_iri), caller)
        headers = _HEADERS
        if found.format == HTML:
            from lamplighter.gateway.workers.resource_page import POLICY  # as in `ResourceRequest`: few ask for a page

            headers = headers | {"Content-Security-Policy": POLICY}
        return await stream_answer(request, answer.chunks(), found.media_type, headers)


def resources_path(base_iri: str) -> str | None:
    """The path of the base IRI; None for one without paths below it, such as one that ends with ``#``."""
    parts = urlsplit(base_iri)
    if parts.scheme not in ("http", "https") or not base_iri.endswith("/") or parts.query or parts.fragment:
        return None
    return unquote(parts.path)


def requested_iris(base_iri: str, raw_path: bytes, query: bytes) -> Iterator[str]:
    """The IRIs that a request may mean: with the characters as sent, then decoded (RFC 3987, 3.2)."""
    origin = base_iri[: len(base_iri) - len(urlsplit(base_iri).path)]
    target = raw_path + (b"?" + query if query else b"")
    if len(target) > TARGET_BYTES_MAX:
        return
    try:
        sent = origin + target.decode("ascii")
    except UnicodeDecodeError:
        return
    for iri in dict.fromkeys((sent, _ENCODED.sub(_decode, sent))):
        if iri.startswith(base_iri):
            yield iri


def _decode(found: re.Match[str]) -> str:
    text = unquote_to_bytes(found.group()).decode(errors="surrogateescape")
    return "".join(
        sign if _UNRESERVED.match(sign) or (sign > "\xa0" and sign.isprintable()) else _encode(sign) for sign in text
    )


def _encode(sign: str) -> str:
    return quote_from_bytes(sign.encode(errors="surrogateescape"), safe="")
