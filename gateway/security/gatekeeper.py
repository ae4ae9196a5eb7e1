"""Authentication at both gates: credentials -> caller (SEPA protocol, 3.4 and 3.6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qs

from starlette.requests import Request
from websockets.asyncio.server import ServerConnection
from websockets.http11 import Request as HandshakeRequest

from lamplighter.engine.errors import GatewayError, UnauthorizedError
from lamplighter.engine.pacing import TokenBuckets
from lamplighter.gateway.clock import Clock
from lamplighter.gateway.security.audit import log_refusal
from lamplighter.gateway.security.browsers import Browsers, cookie_token
from lamplighter.gateway.security.callers import ANYBODY, LOCAL, Caller
from lamplighter.gateway.security.peers import PeerSocket, network, peer, too_many

if TYPE_CHECKING:  # it loads cryptography: 9 MB that plain mode does not need
    from lamplighter.gateway.security.authorization import Authorization


class Gatekeeper(Protocol):
    """Authenticates callers, before anything of the request is parsed."""

    def http_caller(self, request: Request) -> Caller:
        """The sender of an HTTP request. Raises UnauthorizedError (401), QueueFullError (429)."""
        ...

    def page_caller(self, request: Request) -> Caller | None:
        """The caller that the web page acts for, None if nobody is logged in."""
        ...

    def socket_caller(self, authorization: object, socket: ServerConnection, origin: str) -> Caller:
        """The sender of a message over a WebSocket. authorization: the member of the message, None where it has none;
        origin: of the connection (`peers.origin`). Raises UnauthorizedError, QueueFullError."""
        ...

    def trusts(self, socket: ServerConnection) -> bool:
        """Whether a WebSocket may send large messages from the start: plain mode, a local process that may use the
        gateway, or a valid token in the handshake."""
        ...

    def audit_denial(self, caller: Caller, operation: str, error: GatewayError) -> None:
        """Audits that a caller was denied an operation, such as ``update``."""
        ...


class OpenGatekeeper:
    """Plain mode: no authentication. requests_per_s: of one address; 0 for any number."""

    def __init__(self, clock: Clock | None = None, requests_per_s: int = 0) -> None:
        self._clock = clock
        self.allow(requests_per_s)

    def allow(self, requests_per_s: int) -> None:
        self._requests_per_s = requests_per_s
        self._requests = TokenBuckets(requests_per_s, requests_per_s)

    def http_caller(self, request: Request) -> Caller:
        if self._requests_per_s:
            self._check_rate(request.client.host if request.client else "local")
        return _unnamed_caller(ANYBODY, request.scope["state"]["origin"])

    def page_caller(self, request: Request) -> Caller:
        return _unnamed_caller(ANYBODY, request.scope["state"]["origin"])

    def socket_caller(self, authorization: object, socket: ServerConnection, origin: str) -> Caller:
        if self._requests_per_s:
            self._check_rate(socket_address(socket))
        return _unnamed_caller(ANYBODY, origin)

    def trusts(self, socket: ServerConnection) -> bool:
        return True

    def audit_denial(self, caller: Caller, operation: str, error: GatewayError) -> None:
        pass

    def _check_rate(self, address: str) -> None:
        if self._clock is not None:
            wait_s = self._requests.take(network(address), self._clock.boottime_us() / 1e6)
            if wait_s:
                raise too_many(wait_s, f"security.plain_requests_per_s = {self._requests_per_s} is reached")


class TokenGatekeeper:
    """Secure mode: bearer tokens, and on Unix sockets the user that the kernel names. users: ids of those who may use
    the sockets; browsers: whose cookie counts as a token."""

    def __init__(self, authorization: Authorization, users: frozenset[int], browsers: Browsers) -> None:
        self._authorization = authorization
        self._users = users
        self._browsers = browsers

    def http_caller(self, request: Request) -> Caller:
        local = self._local(request.scope["state"]["socket"], request.scope["state"]["origin"])
        if local is not None:
            return local
        address = request.client.host if request.client else "unknown"
        self._check_url(request.url.query, address)
        headers = request.headers.getlist("authorization")
        if not headers:
            return self._authorization.caller(self._page_token(request), address)
        return self._authorization.caller(headers[0] if len(headers) == 1 else None, address)

    def page_caller(self, request: Request) -> Caller | None:
        local = self._local(request.scope["state"]["socket"], request.scope["state"]["origin"])
        if local is not None:
            return local
        authorization = self._page_token(request)
        if authorization is None:
            return None
        try:
            return self._authorization.caller(authorization, request.client.host if request.client else "unknown")
        except UnauthorizedError:
            return None  # the cookie has expired

    def _page_token(self, request: Request) -> str | None:
        """The token in the cookie of a request of the gateway's page, as in the header Authorization."""
        headers = request.scope["headers"]
        if not self._browsers.is_own_page(headers, writes=request.method not in ("GET", "HEAD")):
            return None
        return _cookie_token(request.headers.getlist("cookie"))

    def socket_caller(self, authorization: object, socket: ServerConnection, origin: str) -> Caller:
        local = self._local(socket.transport.get_extra_info("socket"), origin)
        if local is not None:
            return local
        address = socket_address(socket)
        if authorization is None and socket.request is not None:
            self._check_url(socket.request.path.partition("?")[2], address)
            headers = socket.request.headers.get_all("Authorization")
            authorization = headers[0] if len(headers) == 1 else None if headers else self._socket_token(socket.request)
        return self._authorization.caller(authorization, address)

    def trusts(self, socket: ServerConnection) -> bool:
        process = peer(socket.transport.get_extra_info("socket"))
        if process is not None:
            return process.user in self._users
        if socket.request is None or not any(name in socket.request.headers for name in ("Authorization", "Cookie")):
            return False
        try:
            self.socket_caller(None, socket, "")
        except GatewayError:
            return False  # its messages are told why
        return True

    def _socket_token(self, request: HandshakeRequest) -> str | None:
        """The token in the cookie of a handshake by the gateway's page."""
        if "Cookie" not in request.headers or not self._browsers.is_own_page(raw_headers(request), connects=True):
            return None
        return _cookie_token(request.headers.get_all("Cookie"))

    def audit_denial(self, caller: Caller, operation: str, error: GatewayError) -> None:
        log_refusal("denied", client=caller.name, operation=operation, why=str(error))

    def _local(self, socket: PeerSocket | None, origin: str) -> Caller | None:
        """The caller on a Unix socket, None if it came by the network. Raises UnauthorizedError."""
        process = peer(socket)
        if process is None:
            return None
        if process.user not in self._users:
            log_refusal("request_refused", process=process.pid, user=process.user, reason="invalid_grant")
            raise UnauthorizedError(
                "invalid_grant", f"user {process.user} may not use this socket; name it in security.local_users"
            )
        return _unnamed_caller(LOCAL, origin)

    def _check_url(self, query: str, address: str) -> None:
        """Tokens in addresses end up in logs and histories (RFC 6750, 5.3)."""
        if "access_token" in query and "access_token" in parse_qs(query, keep_blank_values=True):
            self._authorization.refuse(
                address,
                "request_refused",
                UnauthorizedError("invalid_request", "a token must not be in the address; send it in a header"),
            )


@lru_cache(maxsize=4096)
def _unnamed_caller(caller: Caller, origin_of: str) -> Caller:
    """A caller without a name, with its origin. It is made once, since each request needs it."""
    return replace(caller, origin=origin_of) if origin_of else caller


def socket_address(socket: ServerConnection) -> str:
    address: Any = socket.remote_address
    return str(address[0]) if isinstance(address, tuple) and address else "local"


def raw_headers(request: HandshakeRequest) -> list[tuple[bytes, bytes]]:
    """The headers of a handshake, names in lower case."""
    return [
        (name.lower().encode("latin-1"), value.encode("latin-1", "replace"))
        for name, value in request.headers.raw_items()
    ]


def _cookie_token(headers: Sequence[str]) -> str | None:
    """The token of the page's cookie, as in the header Authorization."""
    token = cookie_token(headers)
    return None if token is None else f"Bearer {token}"
