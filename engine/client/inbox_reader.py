"""A consumer of Linked Data Notifications (LDN, section 3.3): reads the inbox of a target.

The target is named by the caller, and all that follows by others: where the inbox is, which notifications it lists, and
where a redirect leads. So each URL is checked before it is called:

- The origin of the target, and those that the caller allows, may have any address. If one of their addresses is public,
  only their public ones are called, so that a name cannot lead into the local network later (DNS rebinding).
- Other origins are called at public addresses only, and only for the target and its inbox. A notification has to be at
  the origin of the inbox, or at an allowed one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple, Self, TypeVar
from urllib.parse import urljoin, urlsplit

from lamplighter.engine.client.addresses import check_private, trusting
from lamplighter.engine.client.inboxes import (
    ACCEPT,
    NoInboxError,
    inbox_in_body,
    inbox_in_links,
    notifications_in_body,
    triples_of,
)
from lamplighter.engine.client.messages import Tokens, check_trust
from lamplighter.engine.client.outward import AddressRefusedError, OutwardAnswer, OutwardHttp, addresses, origin
from lamplighter.engine.client.results import Triple
from lamplighter.engine.errors import (
    ConfigurationError,
    RefusedError,
    RequestError,
    UpstreamError,
    check_list,
    check_type,
)
from lamplighter.engine.networks import EVERYWHERE, Address, public_refusal, refusal

# Of the answer of a target, an inbox, or a notification.
DOCUMENT_BYTES_MAX = 1024 * 1024
URL_BYTES_MAX = 2000
REDIRECTS_MAX = 5
TIMEOUT_S = 30.0
_PORTS = {"http": 80, "https": 443}
_REDIRECTS = (301, 302, 303, 307, 308)
_Read = TypeVar("_Read")


class WebOrigin(NamedTuple):
    """Scheme, host and port of a URL (RFC 6454)."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


class InboxReader:
    """Reads one inbox: ``async with InboxReader("https://example.org/article") as reader``.

    target: the URL of the resource whose inbox it is. is_inbox: whether it is the URL of the inbox itself. origins:
    further origins that are trusted as that of the target is, such as ``http://192.168.7.2:8000``. tokens: the source
    of bearer tokens, which the origin of the target gets, and no other. ca: file with the certificates to trust instead
    of the machine's. timeout_s: for each request. Raises ConfigurationError.

    The methods raise UpstreamError where there is no answer, a refused address, or an answer that is too large or
    refers to a URL that may not be called; RefusedError for an answer that is no success; and other RequestErrors for
    documents that cannot be read, each with the URL.
    """

    def __init__(
        self,
        target: str,
        *,
        is_inbox: bool = False,
        origins: Sequence[str] = (),
        tokens: Tokens | None = None,
        ca: Path | str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        check_type("target", target, str)
        check_type("is_inbox", is_inbox, bool)
        check_list("origins", origins, str)
        check_type("timeout_s", timeout_s, int, float)
        check_trust(tokens, ca)
        try:
            self._home = _origin(target)
            self._origins = frozenset(map(_origin, origins))
        except UpstreamError as error:
            raise ConfigurationError(f"{error}; write one such as https://example.org/article") from error
        if tokens is not None:
            check_private(target)
        self._target = target
        self._is_inbox = is_inbox
        self._tokens = tokens
        self._inbox: str | None = None
        self._inbox_origin: WebOrigin | None = None
        self._local: dict[WebOrigin, bool] = {}
        tls = trusting(ca)
        limit = DOCUMENT_BYTES_MAX + 1  # a longer answer is noticed
        self._anywhere, self._public = (
            OutwardHttp(refused, total_s=timeout_s, answer_bytes_max=limit, connections_max=2, tls=tls)
            for refused in (_unusable, public_refusal)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._anywhere.aclose()
        await self._public.aclose()

    async def inbox(self) -> str:
        """The URL of the inbox: by the header Link of the target, else by its RDF. Raises NoInboxError besides."""
        if self._inbox is None:
            self._inbox = _without_fragment(self._target) if self._is_inbox else await self._discover()
        return self._inbox

    async def urls(self) -> list[str]:
        """The URLs of the notifications that the inbox lists now, each once, in its order."""
        at, answer = await self._answer(await self.inbox(), None)
        found = await _read_document(notifications_in_body, at, answer)
        self._inbox_origin = _origin(at)
        return list(dict.fromkeys(map(_without_fragment, found)))

    async def notification(self, url: str) -> list[Triple]:
        """The triples of a notification, each once, with fresh blank nodes. url: of `urls`."""
        check_type("url", url, str)
        if self._inbox_origin is None:
            await self.urls()
        assert self._inbox_origin is not None
        at, answer = await self._answer(url, {self._inbox_origin, *self._origins})
        return await _read_document(triples_of, at, answer)

    async def _discover(self) -> str:
        at, answer = await self._send(self._target, None)
        found = inbox_in_links(answer.headers.get("link", ""))
        if found is None:
            _check(at, answer)
            found = await _read_document(inbox_in_body, at, answer)
        if found is None:
            raise NoInboxError(f"{at} advertises no inbox, neither by a Link header nor in its RDF")
        return _resolve_reference(at, found)

    async def _answer(self, url: str, within: Collection[WebOrigin] | None) -> tuple[str, OutwardAnswer]:
        """The URL behind the redirects, and its answer of 2xx."""
        at, answer = await self._send(url, within)
        _check(at, answer)
        return at, answer

    async def _send(self, url: str, within: Collection[WebOrigin] | None) -> tuple[str, OutwardAnswer]:
        """within: the origins that may be called, None for all. Redirects are followed, each as a URL of its own."""
        at = _without_fragment(url)
        for _ in range(REDIRECTS_MAX + 1):
            there = _origin(at)
            if within is not None and there not in within:
                raise UpstreamError(f"{at}: not at the origin of the inbox, and {there} is not allowed")
            headers = {"Accept": ACCEPT, "User-Agent": "lamplighter"}
            if self._tokens is not None and there == self._home:
                headers["Authorization"] = f"Bearer {await self._tokens.token()}"
            try:
                answer = await (await self._http(there)).send("GET", at, headers)
            except AddressRefusedError as error:
                cure = "" if self._is_trusted(there) else f"; allow the origin {there} if you trust it"
                raise AddressRefusedError(f"{at}: {error}{cure}") from error
            except UpstreamError as error:
                raise UpstreamError(f"{at}: {str(error).removeprefix(f'{origin(at)}: ')}") from error
            if answer.status not in _REDIRECTS or "location" not in answer.headers:
                return at, answer
            at = _resolve_reference(at, answer.headers["location"])
        raise UpstreamError(f"{url}: more than {REDIRECTS_MAX} redirects")

    def _is_trusted(self, there: WebOrigin) -> bool:
        return there == self._home or there in self._origins

    async def _http(self, there: WebOrigin) -> OutwardHttp:
        if not self._is_trusted(there):
            return self._public
        if there not in self._local:
            found = await addresses(there.host, there.port)
            self._local[there] = all(map(public_refusal, found))
        return self._anywhere if self._local[there] else self._public


def _unusable(address: Address) -> str:
    return refusal(address, EVERYWHERE)


def _origin(url: str) -> WebOrigin:
    """Raises UpstreamError for what cannot be called."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UpstreamError(f"{url[:200]!r} is not a URL: {error}") from error
    if parts.scheme not in _PORTS or not parts.hostname or "@" in parts.netloc:
        raise UpstreamError(f"{url[:200]!r} is not a URL with http or https, without user and password")
    if not url.isascii() or not url.isprintable() or " " in url or len(url) > URL_BYTES_MAX:
        raise UpstreamError(f"{url[:200]!r} is not a URL in ASCII of at most {URL_BYTES_MAX} characters")
    return WebOrigin(parts.scheme, parts.hostname, port or _PORTS[parts.scheme])


def _without_fragment(url: str) -> str:
    return url.partition("#")[0]


def _resolve_reference(base: str, reference: str) -> str:
    """A reference resolved, without a fragment. Raises UpstreamError."""
    try:
        return _without_fragment(urljoin(base, reference))
    except ValueError as error:
        raise UpstreamError(f"{base} refers to {reference[:200]!r}, which is not a URL: {error}") from error


def _check(url: str, answer: OutwardAnswer) -> None:
    """Raises RefusedError for an answer that is no success, UpstreamError for one that is too large."""
    if not 200 <= answer.status < 300:
        raise RefusedError("http", answer.status, f"{url} answered {answer.status}")
    if len(answer.body) > DOCUMENT_BYTES_MAX:
        raise UpstreamError(f"{url}: the answer has more than {DOCUMENT_BYTES_MAX} bytes")


async def _read_document(reading: Callable[[bytes, str, str], _Read], url: str, answer: OutwardAnswer) -> _Read:
    """Reads a document, beside the event loop. Errors name the URL."""
    try:
        return await asyncio.to_thread(reading, answer.body, answer.headers.get("content-type", ""), url)
    except RequestError as error:
        raise type(error)(f"{url}: {error}") from error
