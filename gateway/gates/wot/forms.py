"""The forms of a submitted Thing Description: what those of all protocols have in common."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from lamplighter.adapters.devices.device import Table
from lamplighter.adapters.devices.draft import plain
from lamplighter.adapters.mapping import uris
from lamplighter.adapters.specs import Kind
from lamplighter.engine.errors import PayloadError
from lamplighter.gateway.settings import Settings

OPEN = ("nosec", "auto")
"""Security schemes that need no credentials."""
_FORMATS = {
    "": "json",
    "application/json": "json",
    "application/senml+json": "",
    "text/plain": "text",
    "application/cbor": "cbor",
}
"""Media types -> names of content formats; "": of none that a single value is read from."""


class UnusableError(ValueError):
    """Why a form or an affordance cannot be used. field: its path."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(reason)
        self.field = field


class FormPlace(NamedTuple):
    """Where a form reads or writes. kind: of the adapter; text: a topic, or the URI of a resource; media: name of its
    content format; message: keys of the command that say how it is sent; reading: further keys of the table that reads
    it."""

    kind: Kind
    text: str
    media: str
    message: Table
    reading: Table


@dataclass(frozen=True)
class DescribedThing:
    """What forms are read with. document: checked Thing Description; settings: of the gateway."""

    document: Mapping[str, Any]
    settings: Settings

    def schemes(self, form: Table) -> list[str]:
        """The security schemes of a form."""
        used = form.get("security", self.document["security"])
        definitions = self.document["securityDefinitions"]
        return [definitions[name]["scheme"] for name in (used if isinstance(used, list) else [used])]


class FormReader(Protocol):
    """How the forms of one protocol are read."""

    def __call__(
        self, thing: DescribedThing, form: Table, schema: Table, href: str, at: str, ops: Sequence[str]
    ) -> FormPlace:
        """schema: of the value; href: absolute URI of the form; at: path of the form; ops: the operations that it is
        wanted for, the most general last. Raises UnusableError."""
        ...


def media(form: Table, at: str, permitted: Collection[str] = ("json", "cbor", "text")) -> str:
    """The name of the content format of a form. Raises UnusableError."""
    text = form.get("contentType", "")
    found = _FORMATS.get(text.partition(";")[0].strip().lower(), "") if isinstance(text, str) else ""
    if not found or found not in permitted:
        known = [name for name, one in _FORMATS.items() if name and one in permitted]
        raise UnusableError(f"{at}.contentType", f"write {', '.join(known[:-1])} or {known[-1]}")
    return found


def method(form: Table, key: str, at: str, ops: Sequence[str]) -> str:
    """The method of a form that writes: PUT, or POST for an action, unless the key names one of them. Raises
    UnusableError."""
    found = form.get(key, "POST" if "invokeaction" in ops else "PUT")
    if found not in ("PUT", "POST"):
        raise UnusableError(f"{at}.{key}", "write PUT or POST")
    return str(found)


def reads(ops: Sequence[str]) -> bool:
    """Whether a form is wanted for reading."""
    return ops[-1] == "readproperty"


def resource(href: str, at: str) -> str:
    """A URI of a resource as rules have it. Raises UnusableError."""
    try:
        return uris.normal(href)
    except PayloadError as error:
        example = f"{plain(urlsplit(href).scheme, 20)}://HOST/PATH"
        raise UnusableError(f"{at}.href", f"{plain(str(error), 200)}; write {example}") from error
