"""Notifications by HTTP: one POST for each, signed as Standard Webhooks describes it (standardwebhooks.com, 1.0.0)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

from lamplighter.cloud_sync.fleet.delivery.match_table import ChunkBounds
from lamplighter.cloud_sync.fleet.delivery.notifications import MatchNotification
from lamplighter.cloud_sync.fleet.delivery.sinks.base import UndeliveredError, secret
from lamplighter.cloud_sync.fleet.subscriptions.records import WebhookSink
from lamplighter.engine.client.outward import AddressRefusedError, OutwardAnswer, OutwardHttp, retry_after_s
from lamplighter.engine.errors import ConfigurationError, UpstreamError
from lamplighter.engine.networks import EVERYWHERE, Address, public_refusal, refusal

# For one notification, from the connection to the end of the answer.
TOTAL_S = 30.0
# Of an answer's body. The connection is closed instead of reading more.
ANSWER_BYTES_MAX = 64 * 1024
# 4xx answers that say: again, later.
RETRIED = frozenset((408, 425, 429))
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

    Connections go to addresses that were checked (`engine.client.outward`).

    allow_private: whether addresses that are not public are allowed. wall: seconds since 1970.
    """

    bounds = ChunkBounds(32, 200_000)
    blocking = False

    def __init__(self, sink: WebhookSink, *, allow_private: bool, wall: Callable[[], float]) -> None:
        self._sink = sink
        self._allow_private = allow_private
        self._wall = wall
        self._http: OutwardHttp | None = None

    async def deliver(self, notifications: Sequence[MatchNotification]) -> None:
        import httpx

        url = str(httpx.URL(self._sink.url).copy_with(fragment=None))  # in ASCII
        headers, key = self._headers(), self._key()
        if self._http is None:
            tls = _tls(self._sink.ca_file)
            self._http = OutwardHttp(
                self._refusal, total_s=TOTAL_S, answer_bytes_max=ANSWER_BYTES_MAX, connections_max=1, tls=tls
            )
        for number, notification in enumerate(notifications):
            sent = {
                **headers,
                "Content-Type": "application/json",
                "User-Agent": "lamplighter-fleet",
                **signature_headers(notification, key, int(self._wall())),
            }
            try:
                answer = await self._http.send("POST", url, sent, notification.body)
            except AddressRefusedError as error:
                if number:  # the next attempt says it
                    raise UndeliveredError(str(error), accepted=number) from error
                raise ConfigurationError(f"{error}; run deliver with --allow-private if it shall go there") from error
            except UpstreamError as error:
                await self.close()  # the next attempt takes the certificates of then
                raise UndeliveredError(str(error), accepted=number) from error
            self._check(answer, number)

    async def close(self) -> None:
        if self._http is not None:
            http, self._http = self._http, None
            await http.aclose()

    def _check(self, answer: OutwardAnswer, number: int) -> None:
        """Raises UndeliveredError for an answer other than 2xx."""
        status = answer.status
        if 200 <= status < 300:
            return
        said = answer.body[:_SHOWN_BYTES].decode(errors="replace").strip()
        raise UndeliveredError(
            f"{self._sink.url} answered {status}{f': {said}' if said else ''}",
            accepted=number,
            permanent=400 <= status < 500 and status not in RETRIED,
            wait_s=retry_after_s(answer.headers.get("retry-after", ""), self._wall()),
        )

    def _refusal(self, address: Address) -> str:
        return refusal(address, EVERYWHERE) if self._allow_private else public_refusal(address)

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
    headers = {"Idempotency-Key": notification.id, "webhook-id": notification.id, "webhook-timestamp": str(timestamp)}
    if key is not None:
        signed = f"{notification.id}.{timestamp}.".encode() + notification.body
        digest = hmac.new(key, signed, hashlib.sha256).digest()
        headers["webhook-signature"] = f"v1,{base64.b64encode(digest).decode()}"
    return headers


# One for each ca_file, with its size and time: a context has all authorities, and takes 20 ms and a megabyte.
_contexts: dict[str, tuple[tuple[int, int], ssl.SSLContext]] = {}


def _tls(ca_file: str) -> ssl.SSLContext:
    """Raises ConfigurationError."""
    try:
        status = Path(ca_file).stat() if ca_file else None
        written = (0, 0) if status is None else (status.st_size, status.st_mtime_ns)
        if ca_file not in _contexts or _contexts[ca_file][0] != written:
            _contexts[ca_file] = written, ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        raise ConfigurationError(f"ca_file {ca_file}: {error}; name a file of certificates in PEM") from error
    return _contexts[ca_file][1]
