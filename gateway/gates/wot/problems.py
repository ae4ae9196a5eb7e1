"""Refusals as Problem Details (RFC 7807), which WoT Discovery asks for. They have the three members of the other gates,
too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec

from lamplighter.engine.errors import GatewayError
from lamplighter.gateway.gates.http.answers import Refusal, error_answer
from lamplighter.gateway.gates.wot.description import PROBLEM


class Fault(NamedTuple):
    """A fault of a Thing Description. field: the path of the member, such as ``properties.status.forms.0.href``."""

    field: str
    description: str


class ProblemDetails(Refusal):
    """code: the member `error`; faults: of a Thing Description."""

    def __init__(
        self,
        code: str,
        status: int,
        detail: str,
        headers: Mapping[str, str] | None = None,
        faults: Sequence[Fault] = (),
    ) -> None:
        super().__init__(code, status, detail, headers)
        members: dict[str, Any] = {
            "title": HTTPStatus(status).phrase,
            "status": status,
            "detail": detail,
            "error": code,
            "status_code": status,
            "error_description": detail,
        }
        if faults:
            members["validationErrors"] = [one._asdict() for one in faults]
        self.body = msgspec.json.encode(members)
        self.headers["content-length"] = str(len(self.body))
        self.headers["content-type"] = PROBLEM


def problem(error: GatewayError) -> ProblemDetails:
    """The answer of an error."""
    answer = error_answer(error)
    headers = {name: value for name, value in answer.headers.items() if name in ("retry-after", "www-authenticate")}
    return ProblemDetails(error.code, error.status, str(error), headers)


def no_thing(identifier: str) -> ProblemDetails:
    return ProblemDetails("not_found", 404, f"no thing has the id {identifier[:200]!r}; GET /things lists them")
