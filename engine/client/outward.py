"""HTTP requests to URLs that others choose: bounded, and only to addresses that are allowed.

A name is resolved when a connection begins, each of its addresses is checked, and the connection goes to an address
that was checked: a name cannot change to another address in between (DNS rebinding). Redirects are not followed, and
proxies of the environment are not used.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any

import httpcore

from lamplighter.engine.errors import UpstreamError
from lamplighter.engine.networks import Address

# For the resolution of a name, and for a connection.
CONNECT_S = 10.0
KEPT_ALIVE_S = 30.0
RETRY_AFTER_S_MAX = 3600.0
# Names that are looked up at the same time, those that were given up too.
LOOK_UPS_MAX = 64


class AddressRefusedError(UpstreamError):
    """None of the addresses of a host is allowed. The reason names the first of them."""


@dataclass(frozen=True)
class OutwardAnswer:
    """headers: names in lower case; of several with one name, the values are joined by commas. body: cut at the
    limit."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class OutwardHttp:
    """A client whose connections are checked.

    refusal: why an address is refused, "" if it is allowed. total_s: for one request, from the resolution to the end of
    the answer; answer_bytes_max: of an answer's body, of which no more is read; connections_max: at the same time.
    """

    def __init__(
        self,
        refusal: Callable[[Address], str],
        *,
        total_s: float,
        answer_bytes_max: int,
        connections_max: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """tls: None for the authorities of the machine, as they are when the process sends its first request."""
        self._refusal = refusal
        self._total_s = total_s
        self._answer_bytes_max = answer_bytes_max
        self._connections_max = connections_max
        self._tls = tls
        self._pool: httpcore.AsyncConnectionPool | None = None

    async def send(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes | None = None
    ) -> OutwardAnswer:
        """The answer, whatever its status. url: in ASCII. Raises UpstreamError where there is none,
        AddressRefusedError."""
        if not url.isascii():
            raise UpstreamError(f"{origin(url)}: the URL has other characters than ASCII; encode them")
        try:
            async with (
                asyncio.timeout(self._total_s),
                self._connections().stream(
                    method,
                    url,
                    headers=[("Accept-Encoding", "identity"), *headers.items()],
                    content=content,
                    extensions={"timeout": {"connect": CONNECT_S}},
                ) as answer,
            ):
                body = await self._body(answer)
                return OutwardAnswer(answer.status, _headers(answer.headers), body)
        except TimeoutError as error:
            raise UpstreamError(f"{origin(url)}: no answer within {self._total_s:g} s") from error
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError, OSError) as error:
            raise UpstreamError(f"{origin(url)}: {error or type(error).__name__}") from error
        except (httpcore.UnsupportedProtocol, UnicodeError, ValueError) as error:
            raise UpstreamError(f"{origin(url)}: the URL cannot be used: {error}") from error

    async def aclose(self) -> None:
        if self._pool is not None:
            await self._pool.aclose()

    def _connections(self) -> httpcore.AsyncConnectionPool:
        """Set up by the first request: most gateways have no receivers, and start without TLS."""
        if self._pool is None:
            self._pool = httpcore.AsyncConnectionPool(
                ssl_context=self._tls or _machine_tls(),
                max_connections=self._connections_max,
                max_keepalive_connections=self._connections_max,
                keepalive_expiry=KEPT_ALIVE_S,
                network_backend=_CheckedNetwork(self._refusal),
            )
        return self._pool

    async def _body(self, answer: httpcore.Response) -> bytes:
        body = b""
        async for part in answer.aiter_stream():
            body += part[: self._answer_bytes_max - len(body)]
            if len(body) >= self._answer_bytes_max:
                break  # the connection is closed, since the rest is not read
        return body


@cache
def _machine_tls() -> ssl.SSLContext:
    """The authorities of the machine. Reading them takes 25 ms and blocks the event loop, so it is done once."""
    return ssl.create_default_context()


class _CheckedNetwork(httpcore.AsyncNetworkBackend):
    def __init__(self, refusal: Callable[[Address], str]) -> None:
        self._refusal = refusal
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - as httpcore calls it
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        allowed = self._allowed_addresses(host, await addresses(host, port))
        failure: Exception | None = None
        for address in allowed:
            try:
                return await self._network.connect_tcp(str(address), port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        assert failure is not None
        raise failure

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109 - as httpcore calls it
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        raise httpcore.UnsupportedProtocol("a Unix socket")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def _allowed_addresses(self, host: str, found: Iterable[Address]) -> list[Address]:
        reasons: dict[str, None] = {}
        allowed = []
        for address in found:
            reason = self._refusal(address)
            if reason:
                reasons[reason] = None
            else:
                allowed.append(address)
        if not allowed:
            raise AddressRefusedError(f"{host}: {'; '.join(reasons) or 'it has no address'}")
        return allowed


async def addresses(host: str, port: int) -> list[Address]:
    """The addresses of a name, or the address that it is. Raises UpstreamError."""
    try:
        return [ipaddress.ip_address(host)]
    except ValueError:
        pass
    try:
        async with asyncio.timeout(CONNECT_S):
            found = await _looked_up(host, port)
    except (OSError, UnicodeError) as error:
        raise UpstreamError(f"{host} cannot be resolved: {error or 'no answer'}") from error
    return list(dict.fromkeys(ipaddress.ip_address(place[0]) for *_, place in found))


async def _looked_up(host: str, port: int) -> list[Any]:
    """The result of `getaddrinfo`, in a thread of its own: others choose the name, and a server of theirs may answer
    late. So it takes no thread of the event loop, whose end waits for those. Raises as `getaddrinfo`, OSError while
    too many names are looked up."""
    if len(_looking_up) >= LOOK_UPS_MAX:
        raise OSError(f"{LOOK_UPS_MAX} names are being looked up already")
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[Any]] = loop.create_future()

    def look_up() -> None:
        answer: list[Any] | Exception
        try:
            answer = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except Exception as error:
            answer = error
        _looking_up.discard(threading.current_thread())
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(_tell, found, answer)

    thread = threading.Thread(target=look_up, name="look-up", daemon=True)
    _looking_up.add(thread)
    try:
        thread.start()
    except RuntimeError as error:
        _looking_up.discard(thread)
        raise OSError(f"there is no thread to look it up: {error}") from error
    return await found


def _tell(found: asyncio.Future[list[Any]], answer: list[Any] | Exception) -> None:
    if found.done():
        return  # it was given up
    if isinstance(answer, Exception):
        found.set_exception(answer)
    else:
        found.set_result(answer)


_looking_up: set[threading.Thread] = set()


def retry_after_s(text: str, now: float) -> float:
    """Seconds that a Retry-After asks for (RFC 9110, section 10.2.3), bounded; 0 if it cannot be read."""
    if re.fullmatch(r"[0-9]{1,9}", text.strip()):
        wanted = float(text)
    else:
        try:
            until = parsedate_to_datetime(text)
        except (ValueError, OverflowError):
            return 0.0
        wanted = (until if until.tzinfo else until.replace(tzinfo=UTC)).timestamp() - now
    return max(0.0, min(RETRY_AFTER_S_MAX, wanted))


def origin(url: str) -> str:
    """Scheme, host and port of a URL, for people: its path may be secret."""
    return "/".join(url.split("/", 3)[:3])


def _headers(found: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    joined: dict[str, str] = {}
    for name, value in found:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        joined[key] = f"{joined[key]}, {text}" if key in joined else text
    return joined
