"""Refusals as Problem Details (RFC 7807), which WoT Discovery asks for. They have the three members of the other gates,
too."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

from lamplighter.engine.errors import GatewayError, RequestError
from lamplighter.gateway.gates.http.answers import Refusal, error_answer
from lamplighter.gateway.gates.wot.description import PROBLEM


class Fault(NamedTuple):
    """A fault of a Thing Description. field: the path of the member, such as ``properties.status.forms.0.href``."""

    field: str
    description: str


class InvalidDescriptionError(RequestError):
    """faults: with their places."""

    code = "invalid_description"

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("the Thing Description cannot be used; validationErrors says why")
        self.faults = tuple(faults)


def problem(error: GatewayError) -> Refusal:
    members = _members(error.status, str(error))
    if isinstance(error, InvalidDescriptionError):
        members["validationErrors"] = [fault._asdict() for fault in error.faults]
    return error_answer(error, members, PROBLEM)


def problem_details(code: str, status: int, detail: str) -> Refusal:
    """code: the member `error`."""
    return Refusal(code, status, detail, None, _members(status, detail), PROBLEM)


def no_thing(identifier: str) -> Refusal:
    return problem_details("not_found", 404, f"no thing has the id {identifier[:200]!r}; GET /things lists them")


def _members(status: int, detail: str) -> dict[str, Any]:
    return {"title": HTTPStatus(status).phrase, "status": status, "detail": detail}
