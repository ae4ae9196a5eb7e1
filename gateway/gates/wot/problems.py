"""Refusals as Problem Details, which WoT Discovery asks for."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

from lamplighter.engine.errors import GatewayError, RequestError, UnknownResourceError
from lamplighter.gateway.gates.http.answers import Refusal
from lamplighter.gateway.gates.standards import problem_answer


class Fault(NamedTuple):
    """A fault of a Thing Description. field: the path of the member, such as ``properties.status.forms.0.href``."""

    field: str
    description: str


class NoValueError(RequestError):
    """A property that has no value yet, or none that JSON has."""

    code = "no_value"
    status = 404


class InvalidDescriptionError(RequestError):
    """faults: with their places."""

    code = "invalid_description"

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("the Thing Description cannot be used; validationErrors says why")
        self.faults = tuple(faults)


def problem(error: GatewayError) -> Refusal:
    members: dict[str, Any] = {"title": HTTPStatus(error.status).phrase}
    if isinstance(error, InvalidDescriptionError):
        members["validationErrors"] = [fault._asdict() for fault in error.faults]
    return problem_answer(error, members)


def no_thing(identifier: str) -> UnknownResourceError:
    return UnknownResourceError(f"no thing has the id {identifier[:200]!r}; GET /things lists them")
