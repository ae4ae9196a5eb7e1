"""Administration of clients and keys, for `lamplighter clients` and `lamplighter keys`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from lamplighter.engine.errors import ConfigurationError, MalformedRequestError, UnauthorizedError
from lamplighter.gateway.gates.http.answers import JsonAnswer
from lamplighter.gateway.gates.http.calls import json_body
from lamplighter.gateway.gates.http.routes import Permission, Route
from lamplighter.gateway.security.audit import audit
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.security.permissions import Permissions
from lamplighter.gateway.security.registry import Client, check_name

if TYPE_CHECKING:  # it loads cryptography: 9 MB that plain mode does not need
    from lamplighter.gateway.security.authorization import Authorization

BODY_BYTES_MAX = 1024 * 1024


class _WantedPermissions(Permissions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is written wrong in a request must not be ignored; in a file, a newer version may have written it."""


class _Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """permissions: None for those of the settings, or to keep them. how: ``list`` the name, so that it can register;
    ``register`` it at once; issue a one-time ``code`` for it."""

    name: str
    how: str = "list"
    permissions: _WantedPermissions | None = None


class _Rotation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """revoke: whether tokens that were issued before become invalid."""

    revoke: bool = False


class Clients:
    """Handlers for operators. grant: the default permissions of a new client. authorization: None in plain mode."""

    def __init__(self, authorization: Authorization | None, grant: Permissions, code_life_s: int) -> None:
        self._authorization = authorization
        self._grant = grant
        self._code_life_s = code_life_s

    def routes(self) -> Iterator[Route]:
        yield Route("/clients", self.clients, Permission.OPERATOR, frozenset({"GET", "POST"}))
        yield Route("/clients/", self.client, Permission.OPERATOR, frozenset({"PUT", "DELETE"}))
        yield Route("/keys/rotate", self.rotate, Permission.OPERATOR, frozenset({"POST"}))

    async def clients(self, request: Request, caller: Caller) -> Response:
        registry = self._require_authorization().registry
        if request.method == "GET":
            coded = self._require_authorization().registration == "code"
            found = [_client_json(client, coded) for client in registry.all()]
            return JsonAnswer({"total": len(found), "clients": found})
        wanted = await json_body(request, _Wanted, BODY_BYTES_MAX)
        permissions = _valid_permissions(wanted.permissions)
        check_name(wanted.name)
        answer: dict[str, object] = {"name": wanted.name}
        if wanted.how == "code":
            answer |= {"code": await registry.code(wanted.name, permissions, self._grant), "life_s": self._code_life_s}
        elif wanted.how == "register":
            answer["client_secret"] = await registry.add_registered(wanted.name, permissions or self._grant)
        elif wanted.how == "list":
            await registry.add(wanted.name, permissions or self._grant)
            answer["needs_code"] = self._require_authorization().registration == "code"
        else:
            raise MalformedRequestError(f"how: unknown value {wanted.how!r}; use list, register or code")
        audit("client_added", client=wanted.name, how=wanted.how, by=_who(caller), **_audit_fields(permissions))
        return JsonAnswer(answer, 201)

    async def client(self, request: Request, caller: Caller) -> Response:
        registry = self._require_authorization().registry
        name = request.scope["below"]
        if request.method == "DELETE":
            await registry.remove(name)
            audit("client_removed", client=name, by=_who(caller))
        else:
            permissions = _valid_permissions(await json_body(request, _WantedPermissions, BODY_BYTES_MAX))
            assert permissions is not None
            await registry.permit(name, permissions)
            audit("client_permitted", client=name, by=_who(caller), **_audit_fields(permissions))
        return JsonAnswer({"name": name})

    async def rotate(self, request: Request, caller: Caller) -> Response:
        tokens = self._require_authorization().tokens
        revoke = (await json_body(request, _Rotation, BODY_BYTES_MAX)).revoke
        await tokens.rotate(revoke=revoke)
        audit("keys_rotated", key=tokens.jwk["kid"], revoked=revoke, by=_who(caller))
        return JsonAnswer({"kid": tokens.jwk["kid"], "revoked": revoke})

    def _require_authorization(self) -> Authorization:
        if self._authorization is None:
            raise UnauthorizedError(
                "dependability_not_configured",
                "this gateway is in plain mode and has no clients; set security.enabled in lamplighter.toml",
                500,
            )
        return self._authorization


def _client_json(client: Client, coded: bool) -> dict[str, object]:
    """coded: whether all need a code."""
    state = "registered" if client.registration else "needs a code" if client.coded or coded else "listed"
    return {"name": client.name, "state": state, "since": client.since} | msgspec.structs.asdict(client.permissions)


def _audit_fields(permissions: Permissions | None) -> dict[str, object]:
    if permissions is None:
        return {}
    lists = {name: ",".join(getattr(permissions, name)) or "-" for name in ("read", "write", "subscribe")}
    return {**lists, "operate": permissions.operate, "priority": permissions.priority}


def _who(caller: Caller) -> str:
    return caller.name or "local"


def _valid_permissions(permissions: Permissions | None) -> Permissions | None:
    """Raises MalformedRequestError for invalid graphs."""
    try:
        if permissions is not None:
            _ = permissions.access
    except ConfigurationError as error:
        raise MalformedRequestError(str(error)) from error
    return permissions
