"""Parameters of URLs and forms. Each place declares its own; no other can be read, and none is ignored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qs, unquote_to_bytes

from starlette.requests import Request

from lamplighter.engine.errors import MalformedRequestError, RequestError, UnknownResourceError
from lamplighter.gateway.log.snapshots import Place

FIELDS_MAX = 1000  # fields of a form or a URL
LARGE_BYTES = 256 * 1024  # a larger form is decoded beside the loop
_PIECE_BYTES = 64 * 1024
_RECORD = re.compile(r"(?:([0-9]{1,9})/)?([0-9]{1,12})")
_NUMBER = re.compile(r"[0-9]{1,9}")
NUMBER_MAX: Final = 10**9 - 1
_SECONDS = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,6})?")
_READ: Final = "lamplighter.parameters"  # key of a request's scope: its parameters


@dataclass(frozen=True)
class Parameters:
    """What a place takes. names: each may occur once; repeated: may occur several times; prefix: of further names, each
    once. unsupported: those of its standard that it does not have, with the reason; error: the refusal of these."""

    names: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()
    prefix: str = ""
    unsupported: Mapping[str, str] = field(default_factory=dict)
    error: type[RequestError] = MalformedRequestError

    def takes(self, name: str) -> bool:
        return name in self.names or name in self.repeated or bool(self.prefix and name.startswith(self.prefix))

    def check(self, found: Mapping[str, list[str]]) -> None:
        """Raises MalformedRequestError for an unknown parameter, and where one occurs twice; `error`."""
        for name, values in found.items():
            if not self.takes(name):
                if name in self.unsupported:
                    raise self.error(f"{name} is not supported: {self.unsupported[name]}")
                raise MalformedRequestError(f"unknown parameter {name[:100]!r}; {self._names_text()}")
            if len(values) > 1 and name not in self.repeated:
                raise MalformedRequestError(f"the parameter {name} occurs {len(values)} times; it may occur once")

    def _names_text(self) -> str:
        known = [*self.names, *self.repeated, *([f"{self.prefix}NAME"] if self.prefix else [])]
        return f"use {', '.join(known)}" if known else "there are none here"


NONE: Final = Parameters()


class UrlParameters:
    """The parameters of a request, by the table of its place. Only what the table has can be read."""

    def __init__(self, table: Parameters, found: Mapping[str, list[str]]) -> None:
        """Raises as `Parameters.check`."""
        table.check(found)
        self._table = table
        self._found = found

    def values(self, name: str) -> list[str] | None:
        """All values of one that may be repeated."""
        assert name in self._table.repeated, name
        return self._found.get(name)

    def with_prefix(self) -> dict[str, str]:
        """Those whose names have the prefix, without it."""
        prefix = self._table.prefix
        assert prefix
        return {name.removeprefix(prefix): one[0] for name, one in self._found.items() if name.startswith(prefix)}

    def texts(self) -> dict[str, str]:
        """All that occur once."""
        return {name: values[0] for name, values in self._found.items() if name not in self._table.repeated}

    def text(self, name: str) -> str | None:
        assert name in self._table.names, name
        return self._found[name][0] if name in self._found else None

    def flag(self, name: str) -> bool:
        text = self.text(name)
        if text not in (None, "true", "false"):
            raise MalformedRequestError(f"{name}: write true or false")
        return text == "true"

    def record(self, name: str) -> Place | str | None:
        """A place, or a sequence without an epoch."""
        text = self.text(name)
        if text is None:
            return None
        found = _RECORD.fullmatch(text)
        if found is None:
            raise MalformedRequestError(f"{name}: write the sequence of a record, such as 17, or 1/17 for epoch 1")
        return found[2] if found[1] is None else (int(found[1]), int(found[2]))

    def number(self, name: str, most: int, least: int = 1) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
            raise MalformedRequestError(f"{name}: write a number from {least} to {most}")
        return int(text)

    def seconds(self, name: str, most: float) -> float | None:
        text = self.text(name)
        if text is None:
            return None
        if not _SECONDS.fullmatch(text) or float(text) > most:
            raise MalformedRequestError(f"{name}: write seconds from 0 to {most:g}")
        return float(text)


def read_parameters(request: Request, table: Parameters) -> None:
    """Reads those of a URL. Raises as `Parameters.check`."""
    request.scope[_READ] = UrlParameters(table, fields(request.scope["query_string"]))


def parameters(request: Request) -> UrlParameters:
    """Those of the URL, which were read before its handler was called."""
    found: UrlParameters = request.scope[_READ]
    return found


def path_segments(request: Request, above: str, standard: str) -> list[str]:
    """The segments of the path behind `above`, decoded. standard: for the error. Raises UnknownResourceError."""
    try:
        segments = [unquote_to_bytes(part).decode() for part in request.scope["raw_path"].split(b"/")]
        return segments[segments.index(above) + 1 :]
    except ValueError as error:
        reason = f"the path is not one of {standard}; percent-encode ids and names as UTF-8"
        raise UnknownResourceError(reason) from error


def fields(text: bytes) -> dict[str, list[str]]:
    """The fields of a URL's query or of a form. Raises MalformedRequestError."""
    if not text:
        return {}
    try:
        if len(text) > LARGE_BYTES:
            return _large_fields(text)
        return parse_qs(text.decode(), keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX)
    except UnicodeDecodeError as error:
        raise MalformedRequestError(f"a parameter is not UTF-8: {error.reason}") from error
    except ValueError as error:
        raise MalformedRequestError(f"there are more than {FIELDS_MAX} parameters") from error


def _large_fields(text: bytes) -> dict[str, list[str]]:
    """As `parse_qs`, which blocks all other threads for a second with 16 MiB."""
    if text.count(b"&") >= FIELDS_MAX:
        raise ValueError
    found: dict[str, list[str]] = {}
    for part in filter(None, text.split(b"&")):
        name, _, value = part.partition(b"=")
        found.setdefault(_unquote(name), []).append(_unquote(value))
    return found


def _unquote(text: bytes) -> str:
    """Raises UnicodeDecodeError."""
    parts, start = [], 0
    while start < len(text):
        end = start + _PIECE_BYTES
        if (cut := text.find(b"%", end - 2, end)) >= 0:  # what it stands for is not torn apart
            end = cut
        parts.append(unquote_to_bytes(text[start:end].replace(b"+", b" ")))
        start = end
    return b"".join(parts).decode()
