"""Ids of entities: the IRIs of the dataset in a form that is safe in URLs, MQTT topics and quoted keys.

An IRI below the gateway's base IRI is shortened to what follows it. Letters, digits and ``-._:`` stay, ``/`` becomes
``~``, and any other byte of the UTF-8 form becomes ``!`` with two hexadecimal digits. Other IRIs begin with ``!!``.
The form is reversible: two IRIs never have the same id.
"""

from __future__ import annotations

import re
from typing import Final

from lamplighter.engine.errors import MalformedRequestError
from lamplighter.engine.terms import Term, iri

ID_CHARS_MAX: Final = 4_096
_ABSOLUTE = "!!"
_OTHER = re.compile(r"[^A-Za-z0-9._:-]")
_ESCAPED = re.compile(r"(?:![0-9A-F]{2})+|~")


def id_of(value: str, base_iri: str) -> str:
    """The id of an IRI. base_iri: of the gateway."""
    below = value.removeprefix(base_iri)
    relative = below != value and below != ""
    return ("" if relative else _ABSOLUTE) + _OTHER.sub(_escape, below if relative else value)


def term_of(text: str, base_iri: str) -> Term:
    """The IRI that has an id, as a term. Raises MalformedRequestError for what is no id."""
    absolute = text.startswith(_ABSOLUTE)
    written = text.removeprefix(_ABSOLUTE)
    fault = f"{text[:200]!r} is no id of this service; take ids from its answers (@iot.id)"
    if not written or len(text) > ID_CHARS_MAX:
        raise MalformedRequestError(fault)
    try:
        value = ("" if absolute else base_iri) + _ESCAPED.sub(_unescape, written)
        if id_of(value, base_iri) != text:
            raise ValueError(text)
        return iri(value)
    except ValueError as error:
        raise MalformedRequestError(fault) from error


def _escape(found: re.Match[str]) -> str:
    sign = found.group()
    return "~" if sign == "/" else "".join(f"!{byte:02X}" for byte in sign.encode(errors="surrogatepass"))


def _unescape(found: re.Match[str]) -> str:
    """Raises ValueError."""
    text = found.group()
    return "/" if text == "~" else bytes.fromhex(text.replace("!", "")).decode()
