"""What the doors of several standards have in common: JSON bodies, links to further pages, and Problem Details."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from lamplighter.engine.errors import GatewayError, MalformedRequestError, RequestError
from lamplighter.gateway.gates.http.answers import Refusal, error_answer

PROBLEM: Final = "application/problem+json"


class JsonNumber(str):
    """A number with a point or an exponent, or a large one, as written."""

    __slots__ = ()


class ConflictError(RequestError):
    """What is there does not allow the change."""

    code = "conflict"
    status = 409


def decode_json(
    body: bytes, error: type[RequestError] = MalformedRequestError, number: type[str] | None = JsonNumber
) -> Any:
    """A body. number: the type of what is no small integer; None for float. Raises error."""
    try:
        # A float would lose digits that xsd:decimal keeps.
        return msgspec.json.Decoder(float_hook=number).decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as reason:
        raise error(f"the body is not JSON: {reason}") from reason


def json_object(body: bytes, hint: str, error: type[RequestError] = MalformedRequestError) -> dict[str, Any]:
    """As `decode_json`. hint: what to write. Raises MalformedRequestError for another value."""
    value = decode_json(body, error)
    if not isinstance(value, dict):
        raise MalformedRequestError(f"the body is no JSON object; {hint}")
    return value


def page_url(path: str, parameters: Sequence[tuple[str, object]], offset: int, limit: int) -> str:
    """The URL of a page of a list. parameters: the others of the list."""
    return f"{path}?{urlencode([*parameters, ('limit', limit), ('offset', offset)], quote_via=quote)}"


def next_link(url: str) -> str:
    """RFC 8288, for the header Link."""
    return f'<{url}>; rel="next"'


def problem_answer(error: GatewayError, members: Mapping[str, Any]) -> Refusal:
    """Problem Details (RFC 9457), with the three members of the other gates. members: further ones of the standard."""
    details = {"status": error.status, "detail": str(error), **members}
    return error_answer(error, details, PROBLEM)
