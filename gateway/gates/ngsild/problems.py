"""Errors of NGSI-LD (6.3.2, 5.5.2): Problem Details (RFC 9457). They have the three members of the other gates, too."""

from __future__ import annotations

from typing import Final

import msgspec

from lamplighter.engine.errors import (
    GatewayError,
    LimitExceededError,
    MalformedRequestError,
    NotJsonError,
    QueueFullError,
    RequestError,
    UnknownResourceError,
)
from lamplighter.gateway.gates.http.answers import MethodError, Refusal
from lamplighter.gateway.gates.standards import problem_answer

_TYPES: Final = "https://uri.etsi.org/ngsi-ld/errors/"
_TITLES: Final = {
    "InvalidRequest": "The request is not one of NGSI-LD",
    "BadRequestData": "The data of the request is wrong",
    "AlreadyExists": "It exists",
    "OperationNotSupported": "Not supported by this gateway",
    "ResourceNotFound": "Not found",
    "TooComplexQuery": "The query takes too much",
    "TooManyResults": "The query asks for too many results",
    "LdContextNotAvailable": "An @context is not known here",
    "NoMultiTenantSupport": "There are no tenants",
    "InternalError": "The gateway could not do it",
}


class AlreadyExistsError(RequestError):
    code = "already_exists"
    status = 409


class OperationNotSupportedError(RequestError):
    """What the standard has and this door does not."""

    code = "not_supported"
    status = 422


class TooManyResultsError(RequestError):
    code = "too_many_results"
    status = 403


class UnknownContextError(RequestError):
    """An @context that would have to be fetched."""

    code = "context_not_available"
    status = 503


class NoTenantsError(RequestError):
    code = "no_tenants"
    status = 501


_NAMES: Final = (
    (AlreadyExistsError, "AlreadyExists"),
    (OperationNotSupportedError, "OperationNotSupported"),
    (TooManyResultsError, "TooManyResults"),
    (UnknownContextError, "LdContextNotAvailable"),
    (NoTenantsError, "NoMultiTenantSupport"),
    (MethodError, "OperationNotSupported"),
    (UnknownResourceError, "ResourceNotFound"),
    (NotJsonError, "InvalidRequest"),
    (MalformedRequestError, "BadRequestData"),
    (LimitExceededError, "TooComplexQuery"),
    (QueueFullError, "TooComplexQuery"),
    (RequestError, "InvalidRequest"),
)


def details(error: GatewayError) -> dict[str, object]:
    name = next((name for kind, name in _NAMES if isinstance(error, kind)), "InternalError")
    return {"type": _TYPES + name, "title": _TITLES[name], "detail": str(error), "status": error.status}


def problem(error: GatewayError) -> Refusal:
    return problem_answer(error, details(error))


def excerpt(members: object) -> str:
    try:
        return msgspec.json.encode(members).decode()[:100]
    except (TypeError, ValueError, RecursionError):
        return repr(type(members).__name__)
