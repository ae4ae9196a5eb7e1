"""Notifications by HTTP: one POST for each, signed as Standard Webhooks describes it (standardwebhooks.com, 1.0.0)."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import ipaddress
import re
import socket
import ssl
from collections.abc import Callable, Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.delivery.match_table import ChunkBounds
from lamplighter.cloud_sync.fleet.delivery.notifications import MatchNotification
from lamplighter.cloud_sync.fleet.delivery.sinks.base import UndeliveredError, secret
from lamplighter.cloud_sync.fleet.subscriptions.records import WebhookSink
from lamplighter.engine.errors import ConfigurationError
from lamplighter.engine.networks import EVERYWHERE, Address, public_refusal, refusal

if TYPE_CHECKING:
    import httpx

TOTAL_S = 30.0
"""For one notification, from the connection to the end of the answer."""
CONNECT_S = 10.0
ANSWER_BYTES_MAX = 64 * 1024
"""Of an answer's body. The connection is closed instead of reading more."""
RETRY_AFTER_S_MAX = 3600.0
RETRIED = frozenset((408, 425, 429))
"""4xx answers that say: again, later."""
_SHOWN_BYTES = 200
_SECRET_PREFIX = "whsec_"
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?)")
_OWN_HEADERS = frozenset(
    (
        *("host", "content-type", "content-length", "transfer-encoding", "connection", "accept-encoding"),
        *("idempotency-key", "webhook-id", "webhook-timestamp", "webhook-signature"),
    )
)


class WebhookNotifications:
    """POSTs each notification to one URL.

    The name is resolved before each chunk, and the connection goes to an address that was checked, so a name cannot
    change to a private address in between. Redirects are not followed, proxies of the environment not used.

    allow_private: whether addresses that are not public are allowed. wall: seconds since 1970.
    """

    bounds = ChunkBounds(32, 200_000)
    blocking = False

    def __init__(self, sink: WebhookSink, *, allow_private: bool, wall: Callable[[], float]) -> None:
        self._sink = sink
        self._allow_private = allow_private
        self._wall = wall
        self._client: httpx.AsyncClient | None = None

    async def deliver(self, notifications: Sequence[MatchNotification]) -> None:
        import httpx

        url = httpx.URL(self._sink.url)
        headers, key = self._headers(), self._key()
        if self._client is None:
            limits = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=30.0)
            timeout = httpx.Timeout(TOTAL_S, connect=CONNECT_S)
            self._client = httpx.AsyncClient(
                verify=_tls(self._sink.ca_file), trust_env=False, limits=limits, timeout=timeout
            )
        address = await self._address(url)
        for number, notification in enumerate(notifications):
            request = self._client.build_request(
                "POST",
                url.copy_with(host=str(address)),
                content=notification.body,
                headers={
                    **headers,
                    "Host": url.netloc.decode(),
                    "Content-Type": "application/json",
                    "Accept-Encoding": "identity",
                    "User-Agent": "lamplighter-fleet",
                    **signature_headers(notification, key, int(self._wall())),
                },
                extensions={"sni_hostname": url.raw_host.decode()},
            )
            try:
                async with asyncio.timeout(TOTAL_S):
                    await self._post(request, number)
            except (TimeoutError, httpx.TimeoutException) as error:
                await self.close()
                raise UndeliveredError(
                    f"{self._sink.url}: no answer within {TOTAL_S:.0f} s", accepted=number
                ) from error
            except (httpx.HTTPError, httpx.StreamError, OSError) as error:
                await self.close()
                told = str(error) or type(error).__name__
                raise UndeliveredError(f"{self._sink.url}: {told}", accepted=number) from error

    async def close(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            await client.aclose()

    async def _post(self, request: httpx.Request, number: int) -> None:
        """Raises UndeliveredError for an answer other than 2xx."""
        assert self._client
        response = await self._client.send(request, stream=True)
        begin = b""
        try:
            size = 0
            async for part in response.aiter_raw():
                size += len(part)
                begin = (begin + part)[:_SHOWN_BYTES]
                if size > ANSWER_BYTES_MAX:
                    break
        finally:
            await response.aclose()
        status = response.status_code
        if 200 <= status < 300:
            return
        said = begin.decode(errors="replace").strip()
        raise UndeliveredError(
            f"{self._sink.url} answered {status}{f': {said}' if said else ''}",
            accepted=number,
            permanent=400 <= status < 500 and status not in RETRIED,
            wait_s=retry_after_s(response.headers.get("retry-after", ""), self._wall()),
        )

    async def _address(self, url: httpx.URL) -> Address:
        """The first address of the host that is allowed. Raises UndeliveredError, ConfigurationError."""
        port = url.port or (443 if url.scheme == "https" else 80)
        reasons = {}
        for address in await _addresses(url.raw_host.decode(), port):
            reason = refusal(address, EVERYWHERE) if self._allow_private else public_refusal(address)
            if not reason:
                return address
            reasons[reason] = True
        raise ConfigurationError(
            f"{self._sink.url}: {'; '.join(reasons)}; run deliver with --allow-private if it shall go there"
        )

    def _headers(self) -> dict[str, str]:
        if not self._sink.headers_file:
            return {}
        what = f"headers_file of sink {self._sink.name}"
        found = {}
        for number, line in enumerate(secret(self._sink.headers_file, what).splitlines(), 1):
            if not line.strip():
                continue
            matched = _HEADER.fullmatch(line.strip())
            if matched is None or matched[1].lower() in _OWN_HEADERS:
                raise ConfigurationError(
                    f"{self._sink.headers_file} line {number}: write one header of your own as Name: value, in ASCII"
                )
            found[matched[1]] = matched[2]
        return found

    def _key(self) -> bytes | None:
        if not self._sink.secret_file:
            return None
        what = f"secret_file of sink {self._sink.name}"
        text = secret(self._sink.secret_file, what).partition("\n")[0].strip()
        if not text:
            raise ConfigurationError(f"{self._sink.secret_file}: the first line is empty; write the key there")
        if not text.startswith(_SECRET_PREFIX):
            return text.encode()
        try:
            return base64.b64decode(text.removeprefix(_SECRET_PREFIX), validate=True)
        except binascii.Error as error:
            raise ConfigurationError(
                f"{self._sink.secret_file}: a key that begins with {_SECRET_PREFIX} goes on in Base64; correct it"
            ) from error


def signature_headers(notification: MatchNotification, key: bytes | None, timestamp: int) -> dict[str, str]:
    """The headers that identify and, with a key, sign a notification. timestamp: seconds since 1970.

    The HMAC-SHA256 is over ``id.timestamp.body``.
    """
    headers = {
        "Idempotency-Key": notification.id,
        "webhook-id": notification.id,
        "webhook-timestamp": str(timestamp),
    }
    if key is not None:
        signed = f"{notification.id}.{timestamp}.".encode() + notification.body
        digest = hmac.new(key, signed, hashlib.sha256).digest()
        headers["webhook-signature"] = f"v1,{base64.b64encode(digest).decode()}"
    return headers


def retry_after_s(text: str, now: float) -> float:
    """Seconds that a Retry-After asks for (RFC 9110, section 10.2.3), bounded; 0 if it cannot be read."""
    if re.fullmatch(r"[0-9]{1,9}", text.strip()):
        wanted = float(text)
    else:
        try:
            until = parsedate_to_datetime(text)
        except ValueError:
            return 0.0
        wanted = (until if until.tzinfo else until.replace(tzinfo=UTC)).timestamp() - now
    return max(0.0, min(RETRY_AFTER_S_MAX, wanted))


async def _addresses(host: str, port: int) -> list[Address]:
    """Raises UndeliveredError."""
    try:
        return [ipaddress.ip_address(host)]
    except ValueError:
        pass
    try:
        async with asyncio.timeout(CONNECT_S):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UndeliveredError(f"{host} cannot be resolved: {error or 'no answer'}") from error
    return [ipaddress.ip_address(place[0]) for *_, place in found]


_contexts: dict[str, ssl.SSLContext] = {}
"""One for each ca_file: a context has all authorities, and takes 20 ms and a megabyte."""


def _tls(ca_file: str) -> ssl.SSLContext:
    """Raises ConfigurationError."""
    if ca_file not in _contexts:
        try:
            _contexts[ca_file] = ssl.create_default_context(cafile=ca_file or None)
        except OSError as error:
            raise ConfigurationError(f"ca_file {ca_file}: {error}; name a file of certificates in PEM") from error
    return _contexts[ca_file]
