"""The report of a refusal by SHACL shapes as Turtle, for clients that prefer it to JSON."""

from __future__ import annotations

from typing import Final

import msgspec
import pyoxigraph as ox
from starlette.requests import Request

from lamplighter.engine.errors import GatewayError, ShapesViolatedError
from lamplighter.gateway.gates.http.answers import JSON, Refusal, error_answer
from lamplighter.gateway.gates.http.negotiation import NotAcceptableError, accepted

_TURTLE: Final = "text/turtle"


def refusal(request: Request, error: GatewayError) -> Refusal:
    """The answer of an error: with members in JSON, or the sh:ValidationReport alone in Turtle."""
    answer = error_answer(error)
    if isinstance(error, ShapesViolatedError) and error.report is not None:
        answer.headers.add_vary_header("Accept")
        if _prefers_turtle(request):
            document = msgspec.json.encode(error.report)
            prefixes = error.report["@context"]
            text = ox.serialize(ox.parse(document, ox.RdfFormat.JSON_LD), format=ox.RdfFormat.TURTLE, prefixes=prefixes)
            assert text is not None, "without an output file the text is returned"
            answer.body = text
            answer.headers["content-length"] = str(len(text))
            answer.headers["content-type"] = _TURTLE
    return answer


def _prefers_turtle(request: Request) -> bool:
    try:
        return accepted(request, (JSON, _TURTLE)).format == _TURTLE
    except NotAcceptableError:
        return False
