"""Parameters of URLs."""

from __future__ import annotations

import re

from starlette.requests import Request

from lamplighter.engine.errors import MalformedRequestError
from lamplighter.gateway.gates.http.calls import fields
from lamplighter.gateway.log.snapshots import Place

_RECORD = re.compile(r"(?:([0-9]{1,9})/)?([0-9]{1,12})")
_NUMBER = re.compile(r"[0-9]{1,4}")
_SECONDS = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,6})?")


class UrlParameters:
    """The parameters of a URL. Raises MalformedRequestError for unknown ones, and where one occurs twice."""

    def __init__(self, request: Request, names: tuple[str, ...]) -> None:
        self._found = fields(request.scope["query_string"])
        for name, values in self._found.items():
            if name not in names:
                raise MalformedRequestError(f"unknown parameter {name[:100]!r}; use {', '.join(names)}")
            if len(values) > 1:
                raise MalformedRequestError(f"the parameter {name} occurs {len(values)} times; it may occur once")

    def text(self, name: str) -> str | None:
        return self._found[name][0] if name in self._found else None

    def record(self, name: str) -> Place | str | None:
        """A place, or a sequence without an epoch."""
        text = self.text(name)
        if text is None:
            return None
        found = _RECORD.fullmatch(text)
        if found is None:
            raise MalformedRequestError(f"{name}: write the sequence of a record, such as 17, or 1/17 for epoch 1")
        return found[2] if found[1] is None else (int(found[1]), int(found[2]))

    def number(self, name: str, most: int) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= most:
            raise MalformedRequestError(f"{name}: write a number from 1 to {most}")
        return int(text)

    def seconds(self, name: str, most: float) -> float | None:
        text = self.text(name)
        if text is None:
            return None
        if not _SECONDS.fullmatch(text) or float(text) > most:
            raise MalformedRequestError(f"{name}: write seconds from 0 to {most:g}")
        return float(text)
