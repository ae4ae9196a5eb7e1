"""The URLs that a delivery may go to. Whoever may subscribe chooses them, so the settings are the limit."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from urllib.parse import urlsplit

from lamplighter.adapters.networks import Networks
from lamplighter.engine.errors import MalformedRequestError
from lamplighter.engine.networks import Address, public_refusal, refusal

URL_BYTES_MAX = 2000
_PRINTABLE = re.compile(r"[!#-;=?-\[\]_a-z~]+")
"""The characters of a URL (RFC 3986, appendix A)."""
_PORTS = {"http": 80, "https": 443}


def checked_url(text: str, ports: Collection[int], table: str, member: str) -> str:
    """The URL. ports: those that may be called, none for all; table: of the settings; member: of the request, for the
    error. Raises MalformedRequestError."""
    if len(text) > URL_BYTES_MAX:
        raise MalformedRequestError(f"{member}: the URL has {len(text)} characters; {URL_BYTES_MAX} are the most")
    if not _PRINTABLE.fullmatch(text):
        raise MalformedRequestError(f"{member}: a URL has ASCII only; encode other characters (RFC 3986)")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise MalformedRequestError(f"{member}: not a URL: {error}") from error
    if parts.scheme not in _PORTS or not text.startswith(f"{parts.scheme}://") or not parts.hostname:
        raise MalformedRequestError(f"{member}: write a URL such as https://example.org/hook, with https or http")
    if "@" in parts.netloc:
        raise MalformedRequestError(f"{member}: no user or password in the URL; the change log would have it")
    if "#" in text:
        raise MalformedRequestError(f"{member}: a URL that is called has no fragment; remove it")
    port = _PORTS[parts.scheme] if port is None else port
    if port == 0 or (ports and port not in ports):
        raise MalformedRequestError(f"{member}: the port {port} is not in {table}.ports; the operator can add it")
    return text


def address_refusal(entries: list[str], setting: str) -> Callable[[Address], str]:
    """Why an address may not be called: it is not public, and in none of the networks of the setting."""
    listed = Networks(entries, setting)

    def refused(address: Address) -> str:
        reason = public_refusal(address)
        if not reason or not refusal(address, listed.current()):
            return ""
        return f"{reason}, and not in {setting}; the operator can add its network there"

    return refused
