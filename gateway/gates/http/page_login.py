"""Log-in to the web page in secure mode: a cookie with an access token.

The cookie is a credential for the gateway's own page only (`Browsers.is_own_page`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from lamplighter.engine.errors import ForeignRequestError, UnauthorizedError
from lamplighter.gateway.gates.http.answers import JsonAnswer
from lamplighter.gateway.gates.http.calls import json_body
from lamplighter.gateway.gates.http.routes import Permission, Route
from lamplighter.gateway.security.browsers import COOKIE, Browsers, cookie_token
from lamplighter.gateway.security.callers import Caller

if TYPE_CHECKING:  # it loads cryptography: 9 MB that plain mode does not need
    from lamplighter.gateway.security.authorization import Authorization

BODY_BYTES_MAX = 16 * 1024
_POST = frozenset({"POST"})
_ATTRIBUTES = "Path=/; Secure; HttpOnly; SameSite=Strict"
_NO_STORE = {"Cache-Control": "no-store"}


class _LogIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """client: its id; secret: as registration returned it."""

    client: str
    secret: str


class PageLogin:
    """The handlers. authorization: None in plain mode."""

    def __init__(self, authorization: Authorization | None, browsers: Browsers) -> None:
        self._authorization = authorization
        self._browsers = browsers

    def routes(self) -> Iterator[Route]:
        yield Route("/page/login", self.login, Permission.NOTHING, _POST)
        yield Route("/page/logout", self.logout, Permission.NOTHING, _POST)

    async def login(self, request: Request, caller: Caller) -> Response:
        """Sets the cookie. Each log-in gets a new token, whatever cookie the request has."""
        if self._authorization is None:
            raise UnauthorizedError("dependability_not_configured", "this gateway requires no log-in", 500)
        self._check_page(request)
        given = await json_body(request, _LogIn, BODY_BYTES_MAX)
        address = request.client.host if request.client else "local"
        token = self._authorization.token(given.client, given.secret, address)
        cookie = f"{COOKIE}={token.token}; Max-Age={token.life_s}; {_ATTRIBUTES}"
        return JsonAnswer(
            {"client": given.client, "expires_in": token.life_s}, headers=_NO_STORE | {"Set-Cookie": cookie}
        )

    async def logout(self, request: Request, caller: Caller) -> Response:
        """Revokes the token, and removes the cookie."""
        self._check_page(request)
        token = cookie_token(request.headers.getlist("cookie"))
        if self._authorization is not None and token is not None:
            await self._authorization.revoke(token, request.client.host if request.client else "local")
        return JsonAnswer({}, headers=_NO_STORE | {"Set-Cookie": f"{COOKIE}=; Max-Age=0; {_ATTRIBUTES}"})

    def _check_page(self, request: Request) -> None:
        """Raises ForeignRequestError unless the gateway's own page made the request."""
        if not self._browsers.is_own_page(request.scope["headers"], writes=True):
            raise ForeignRequestError("cors_error", 403, "only the gateway's own page can log in or out")
