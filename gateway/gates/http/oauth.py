"""Registration and tokens (SEPA protocol, 3.1, 3.2 and 3.6; RFC 6749, 4.4), and the authority's certificate."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from lamplighter.engine.errors import MalformedRequestError, RequestError, UnauthorizedError
from lamplighter.gateway.gates.http.answers import JSON, JsonAnswer
from lamplighter.gateway.gates.http.calls import FORM, small_body
from lamplighter.gateway.gates.http.negotiation import NotAcceptableError, negotiate
from lamplighter.gateway.gates.http.parameters import Parameters, UrlParameters, fields
from lamplighter.gateway.gates.http.routes import Permission, Route
from lamplighter.gateway.security.callers import Caller

if TYPE_CHECKING:  # it loads cryptography: 9 MB that plain mode does not need
    from lamplighter.gateway.security.authorization import Authorization

# Of a registration: the caller is not authenticated yet, and some clients put certificates into it.
BODY_BYTES_MAX = 128 * 1024
_GRANT = "client_credentials"
_POST = frozenset({"POST"})


class _InvalidScopeError(RequestError):
    """A token has all permissions of its client (RFC 6749, 5.2)."""

    code = "invalid_scope"
    status = 400


# Of a token request that is a form.
_TOKEN = Parameters(
    ("grant_type", "client_id", "client_secret"),
    unsupported={"scope": "a token has all permissions of its client; leave it out"},
    error=_InvalidScopeError,
)
_NO_STORE = {"Cache-Control": "no-store", "Pragma": "no-cache"}  # RFC 6749, 5.1


class OAuthHandlers:
    """The handlers. authorization: None in plain mode. authority: the certificate to publish, if there is one."""

    def __init__(self, authorization: Authorization | None, authority: bytes | None) -> None:
        self._authorization = authorization
        self._authority = authority

    def routes(self) -> Iterator[Route]:
        yield Route("/oauth/register", self.register, Permission.NOTHING, _POST)
        yield Route("/oauth/token", self.token, Permission.NOTHING, _POST)
        if self._authority is not None:
            yield Route("/ca.pem", self.certificate, Permission.NOTHING)

    async def certificate(self, request: Request, caller: Caller) -> Response:
        return Response(self._authority, media_type="application/x-pem-file")

    async def register(self, request: Request, caller: Caller) -> Response:
        authorization = self._require_authorization()
        _check_json(request)
        identity, code = _registration(await small_body(request, BODY_BYTES_MAX))
        credentials = await authorization.register(identity, code, _address(request))
        members = {
            "client_id": credentials.client_id,
            "client_secret": credentials.client_secret,
            "signature": authorization.tokens.jwk,
            "grant_types": [_GRANT],  # those that were registered, whatever others were asked for (RFC 7591, 3.2.1)
        }
        return JsonAnswer({"credentials": members}, 201, _NO_STORE)

    async def token(self, request: Request, caller: Caller) -> Response:
        authorization = self._require_authorization()
        address = _address(request)
        try:
            if _media_type(request.headers.getlist("content-type")) == FORM:
                client, secret = await _form_credentials(request)
                status = 200  # RFC 6749, 5.1; the protocol's own request is answered as its clients expect
            else:
                _check_json(request)
                client, secret = _basic(request.headers.getlist("authorization"))
                status = 201
        except UnauthorizedError as error:
            error.scheme = "Basic"
            if error.status == 401:
                authorization.refuse(address, "token_refused", error)
            raise
        given = authorization.token(client, secret, address)
        # Flat for standard clients and the Java one, wrapped for sepa-js and sepy.
        members = {"access_token": given.token, "token_type": "bearer", "expires_in": given.life_s}
        return JsonAnswer(members | {"token": members}, status, _NO_STORE)

    def _require_authorization(self) -> Authorization:
        if self._authorization is None:
            raise UnauthorizedError("dependability_not_configured", "this gateway requires no token; leave it out", 500)
        return self._authorization


def _address(request: Request) -> str:
    return request.client.host if request.client else "local"


def _media_type(headers: list[str]) -> str:
    """The one media type without its parameters; "" for none or several."""
    return headers[0].partition(";")[0].strip().lower() if len(headers) == 1 else ""


def _check_json(request: Request) -> None:
    """Raises UnauthorizedError unless both headers are there, once each, and name JSON."""
    if _media_type(request.headers.getlist("content-type")) != JSON:
        raise UnauthorizedError("content_type_error", f"there must be one Content-Type, {JSON}", 400)
    ranges = request.headers.getlist("accept")
    try:
        if len(ranges) != 1:
            raise NotAcceptableError
        negotiate(request, (JSON,))
    except NotAcceptableError as error:
        raise UnauthorizedError("accept_error", f"there must be one Accept, {JSON}", 400) from error


def _registration(body: bytes) -> tuple[str, str | None]:
    """Identity and one-time code; members that are not asked for are ignored. Raises UnauthorizedError."""
    try:
        document: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid("the body is not JSON") from error
    wanted = document.get("register") if isinstance(document, dict) else None
    if not isinstance(wanted, dict):
        raise _invalid("the member register is missing or not an object")
    identity, grants = wanted.get("client_identity"), wanted.get("grant_types")
    if not isinstance(identity, str):
        raise _invalid("the member register.client_identity is missing or not a string")
    if not isinstance(grants, list) or not all(isinstance(grant, str) for grant in grants):
        raise _invalid("the member register.grant_types is missing or not an array of strings")
    if _GRANT not in grants:
        raise UnauthorizedError("invalid_grant", f"register.grant_types must have {_GRANT}", 400)
    # Some clients can add members beside `register` only.
    code = wanted.get("code", document.get("code"))
    if code is not None and not isinstance(code, str):
        raise _invalid("the member code is not a string")
    return identity, code


def _invalid(description: str) -> UnauthorizedError:
    return UnauthorizedError("invalid_request", description, 400)


def _basic(headers: list[str]) -> tuple[str, str]:
    """Client id, which may have colons, and secret. Raises UnauthorizedError."""
    scheme, _, encoded = headers[0].strip().partition(" ") if len(headers) == 1 else ("", "", "")
    if scheme.lower() != "basic":
        raise UnauthorizedError(
            "unauthorized_client", "there must be one Authorization, Basic with client_id:client_secret in base64"
        )
    try:
        pair = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError) as error:
        raise UnauthorizedError("invalid_request", "the credentials are not base64 of UTF-8") from error
    client, colon, secret = pair.rpartition(":")
    if not colon:
        raise UnauthorizedError("invalid_client", "the credentials have no colon between client_id and client_secret")
    return client, secret


async def _form_credentials(request: Request) -> tuple[str, str]:
    """Those of a standard request (RFC 6749, 2.3.1 and 4.4.2). Raises RequestError."""
    form = fields(await small_body(request, BODY_BYTES_MAX))
    # Unknown ones are ignored, as RFC 6749, 3.2 asks for.
    known = {name: one for name, one in form.items() if _TOKEN.takes(name) or name in _TOKEN.unsupported}
    asked = UrlParameters(_TOKEN, known)
    if asked.text("grant_type") != _GRANT:
        raise UnauthorizedError("unsupported_grant_type", f"grant_type must be {_GRANT}", 400)
    headers = request.headers.getlist("authorization")
    named, told = asked.text("client_id"), asked.text("client_secret")
    if headers:
        if told is not None:  # RFC 6749, 2.3
            raise MalformedRequestError("client_secret and Authorization are two authentications; send one of them")
        client, secret = _basic(headers)
        # Both are form-encoded, so a colon in the id does no harm.
        return unquote_plus(client), unquote_plus(secret)
    if named is None or told is None:
        raise UnauthorizedError("unauthorized_client", "client_id and client_secret are missing")
    return named, told
